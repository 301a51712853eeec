"""The page of the batch size says what the records say, whatever is missing from them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from labkit.analysis import engine_tables, engines, method, quality, summary
from labkit.analysis.draw import ENGINES
from labkit.analysis.figure import DARK, LIGHT, Figure
from labkit.analysis.studies import batch_size, batch_size_figures, convergence, key_numbers
from labkit.analysis.table import Table, Text
from labkit.analysis.verdicts.evidence import Evidence
from labkit.analysis.verdicts.judge import judge
from labkit.analysis.verdicts.verdict import VERDICTS, Finding
from labkit.papers import load_papers
from labkit.profile import load_profile
from labkit.recipes import CAPTURED, COMPILED, COMPILED_ON_CPU, FUSED_ON_CPU, Recipe, engine_name, recipes
from labkit.records import Record
from labkit.results.study_records import StudyRecords as Results
from labkit.trial import Trial
from tests.unit.made_records import NOISE, PASSES, blocks, failed, of_records, run
from tests.unit.reading import row_of, said

STUDY = "02_batch_size"
YES, NO, OPEN, UNTESTED = VERDICTS
RUN = {"epochs": 15, "schedule": "one_cycle", "learning_rate": 0.05, **COMPILED}
SWEPT = (16, 64, 256, 2048, 16384)
LARGE = 16384


def rate(trial: Trial) -> float:
    """Images/s that saturate with the batch; tuned engines launch less."""
    launch_s = {"eager": 20e-3, "graph": 4e-3, "compile": 12e-3, "compile+graph": 3e-3}[trial.engine]
    image_s = {"resnet50": 2e-5, "resnet152": 6e-5, "vgg16": 3e-5, "vgg19": 4e-5}[trial.model]
    return trial.batch / (launch_s + trial.batch * image_s * (1 if trial.engine == "eager" else 0.4))


def timed_trials() -> list[Trial]:
    found = [Trial(batch=batch, **recipe) for recipe in ({}, CAPTURED) for batch in SWEPT]
    for recipe in ({}, CAPTURED):
        found += [Trial(model=m, batch=b, **recipe) for m in ("resnet152", "vgg16", "vgg19") for b in (64, 256)]
    found += [Trial(batch=batch, **COMPILED) for batch in (64, 256, 2048)]
    return found + [Trial(model=model, batch=256, **COMPILED) for model in ("resnet152", "vgg16")]


def timed_records(passes: tuple[int, ...] = PASSES) -> list[Record]:
    """Every trial in every pass; the largest plain batch does not fit."""
    return [
        failed(STUDY, trial, n)
        if trial.batch == LARGE and trial.engine == "eager"
        else blocks(STUDY, trial, n, rate(trial) * NOISE[(n + place) % 3])
        for n in passes
        for place, trial in enumerate(timed_trials())
    ]


def run_records(passes: tuple[int, ...] = PASSES, top1: dict[int, float] | None = None) -> list[Record]:
    """Batch 64 learns faster by epoch, batch 256 faster by second."""
    ends = top1 or {64: 0.42, 256: 0.36}
    return [
        run(
            STUDY,
            Trial(batch=batch, **RUN),
            n,
            [6.9 * math.exp(-(0.09 if batch == 64 else 0.07) * e) * NOISE[n - 1] for e in range(15)],
            ends[batch] * NOISE[n - 1],
        )
        for n in passes
        for batch in (64, 256)
    ]


def on_cpu() -> list[Record]:
    found: tuple[Recipe, ...] = ({}, FUSED_ON_CPU, COMPILED_ON_CPU)
    timed = [Trial(batch=batch, device="cpu", **recipe) for recipe in found for batch in (16, 64)]
    digits = {"model": "resnet18", "device": "cpu", "data": "digits", "classes": 10, "schedule": "one_cycle"}
    runs = [Trial(batch=batch, epochs=2, learning_rate=0.05, **digits) for batch in (64, 256)]
    return [
        *[blocks(STUDY, trial, n, (90 + trial.batch) * NOISE[n - 1]) for n in PASSES for trial in timed],
        *[run(STUDY, trial, n, [2.0, 1.5 * NOISE[n - 1]], 0.6 * NOISE[n - 1]) for n in PASSES for trial in runs],
    ]


def diverged() -> list[Record]:
    trial = Trial(batch=64, **RUN)
    return [run(STUDY, trial, n, [6.9, None, None], 0.001) for n in PASSES]


CASES: dict[str, Callable[[], Results]] = {
    "a GPU": lambda: of_records(STUDY, [*timed_records(), *run_records()]),
    "one pass": lambda: of_records(STUDY, [*timed_records((1,)), *run_records((1,))]),
    "timed trials only": lambda: of_records(STUDY, timed_records()),
    "runs only": lambda: of_records(STUDY, run_records()),
    "one run": lambda: of_records(STUDY, [one for one in run_records() if one.trial["batch"] == 64]),
    "a run that diverged": lambda: of_records(STUDY, diverged()),
    "plain only": lambda: of_records(STUDY, [one for one in timed_records() if one.trial["engine"] == "eager"]),
    "no plain": lambda: of_records(STUDY, [one for one in timed_records() if one.trial["engine"] != "eager"]),
    "all failed": lambda: of_records(STUDY, [failed(STUDY, trial, n) for n in PASSES for trial in timed_trials()]),
    "a CPU": lambda: of_records(STUDY, on_cpu(), hw="cpu"),
    "no records": lambda: of_records(STUDY, []),
    "no records of a CPU": lambda: of_records(STUDY, [], hw="cpu"),
}


@cache
def case_of(name: str) -> Results:
    return CASES[name]()


def both(r: Results) -> tuple[list[Trial], list[Trial]]:
    return engines.timed(r), convergence.runs(r)


PARTS: dict[str, Callable[[Results], Any]] = {
    "left_out": lambda r: engines.left_out(r.profile, r.trials(), "quick"),
    "headline": lambda r: batch_size.headline(r, *both(r)),
    "table": lambda r: batch_size.table(r, engines.timed(r)),
    "throughput": lambda r: batch_size_figures.throughput(r, engines.timed(r)),
    "epoch_time": lambda r: batch_size_figures.epoch_time(r, engines.timed(r)),
    "speed_up": lambda r: batch_size_figures.speed_up(r, engines.timed(r)),
    "curves": lambda r: convergence.curves(r, convergence.runs(r)),
    "runs": lambda r: convergence.table(r, convergence.runs(r)),
    "cost": lambda r: engine_tables.cost_table(r, engines.timed(r)),
    "gate": lambda r: engine_tables.gate_table(r, engines.timed(r)),
    "limitations": lambda r: batch_size.limitations(r, *both(r)),
    "method": lambda r: method.sentence(r, "Done."),
    "failures": summary.failures_table,
    "pass_time": quality.pass_time,
    "steadiness": lambda r: quality.steadiness(r, engines.timed(r)[:4]),
    "prediction": lambda r: summary.prediction_table(r.profile, timed_trials()),
    "trials": lambda r: summary.trials_table([*timed_trials(), Trial(batch=64, **RUN)], 3),
}
FIGURES = ("throughput", "epoch_time", "speed_up", "curves", "pass_time")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("case", CASES)
def test_no_part_of_the_page_fails_or_shows_nan_or_none(case: str, part: str) -> None:
    from matplotlib.figure import Figure as Canvas

    made = PARTS[part](case_of(case))
    assert isinstance(made, Figure | Table | Text)
    if isinstance(made, Figure):
        made.draw(Canvas(layout="constrained"), LIGHT)
        assert made.caption and made.alt and len(made.data)
        assert "1 x" not in made.caption
        text = made.caption + made.alt + Table(made.data, "")._repr_mimebundle_()["text/html"]
    else:
        text = made._repr_mimebundle_()["text/html"]
    for odd in ("nan", "None", "NaN", "inf "):
        assert odd not in text, text


@pytest.mark.parametrize("part", FIGURES)
def test_each_figure_draws_in_both_schemes(part: str) -> None:
    figure = PARTS[part](case_of("a GPU"))
    assert isinstance(figure, Figure)
    assert figure.svg(LIGHT) != figure.svg(DARK)


# ---- what it says, of records whose answers are known ----------------------------------------------------------------


def test_a_gate_is_shown_by_the_pass_that_was_nearest_to_its_own_tolerance() -> None:
    tuned = Trial(batch=64, **CAPTURED)
    wide = {"loss_tolerance": 0.02, "change_difference": 0.44, "change_tolerance": 0.6, "rounding_difference": 0.43}
    gates = [{"change_difference": 0.33, "change_tolerance": 0.35}, wide, {"change_difference": None}]
    records = [blocks(STUDY, tuned, number, 900.0) for number in PASSES]
    made = [
        one.model_copy(update={"facts": {**one.facts, "gate": gate}}) for one, gate in zip(records, gates, strict=True)
    ]
    table = engine_tables.gate_table(of_records(STUDY, made), [tuned])
    assert isinstance(table, Table)
    (row,) = table.frame.to_dict("records")
    assert row["passes"] == 3 and row["against FP32"] == 1 and "0.33 of 0.35" in row.values()
    assert "held against plain FP32" in table.caption
    plain = engine_tables.gate_table(of_records(STUDY, records), [tuned])
    assert isinstance(plain, Table) and "FP32" not in plain.caption and "against FP32" not in plain.frame


def test_a_speed_up_is_formed_within_passes_and_only_over_the_plain_loop_of_the_same_batch() -> None:
    plain, tuned = Trial(batch=64), Trial(batch=64, **CAPTURED)
    drifting = [(1, 100.0), (2, 200.0), (3, 400.0)]  # a machine that drifts by more than the effect
    records = [blocks(STUDY, plain, n, rate) for n, rate in drifting]
    records += [blocks(STUDY, tuned, n, 3 * rate) for n, rate in drifting]
    records += [blocks(STUDY, Trial(batch=256, **CAPTURED), n, 900.0) for n in PASSES]
    results = of_records(STUDY, records)
    frame = engines.ratios(results, engines.over_plain(results, engines.timed(results)), "images_per_s")
    assert frame["batch"].tolist() == [64], "at 256 there is no plain trial"
    row = frame.iloc[0]
    assert (row["value"], row["n"]) == (pytest.approx(3.0), 3)
    assert row["low"] == pytest.approx(3.0) and row["high"] == pytest.approx(3.0)


def test_a_trial_out_of_memory_is_a_cross_a_row_and_a_sentence_never_a_number() -> None:
    results = case_of("a GPU")
    figure = PARTS["throughput"](results)
    assert "Crosses have no result (out of memory: ResNet-50, 16,384, FP32, plain)" in figure.caption
    lost = row_of(figure.data, batch=LARGE, engine="plain")
    assert lost["value"] is None or math.isnan(lost["value"])
    row = row_of(PARTS["table"](results).frame, batch=LARGE, engine="plain, FP32")
    assert (row["images/s"], row["no result"], row["n"]) == ("–", "oom", 0)
    assert "Out of memory: ResNet-50, 16,384, FP32, plain." in said(PARTS["headline"](results))


def test_captions_say_that_tuned_and_plain_differ_in_precision_and_where_that_is_taken_apart() -> None:
    results = case_of("a GPU")
    for part in ("throughput", "speed_up", "epoch_time"):
        caption = PARTS[part](results).caption
        assert "differ in precision too (07_precision" in caption
        assert "plain in FP32, contiguous, sgd" in caption
        assert "graph and compile+graph in BF16, channels last, sgd_master" in caption
        for word in ("NVIDIA H200", "synthetic32", "n = 3", "95 % interval", "batch 16, 64, 256"):
            assert word in caption
    assert "precision, memory format and optimiser differ too" in said(PARTS["limitations"](results))
    assert "part of it is precision" in said(PARTS["headline"](results))
    assert "precision" not in said(PARTS["headline"](case_of("a CPU"))), "both are FP32 there"
    alone = case_of("plain only")
    assert "differ in precision" not in PARTS["throughput"](alone).caption
    assert "differ too" not in said(PARTS["limitations"](alone))


def test_the_bound_is_that_of_the_trials_own_precision_and_of_its_weights() -> None:
    data = PARTS["throughput"](case_of("a GPU")).data
    plain, tuned = (row_of(data, model="ResNet-50", batch=16, engine=e)["bound"] for e in ("plain", "graph"))
    assert tuned / plain == pytest.approx(8 / 6.5, rel=1e-3), "both are bounded by memory, BF16 weights pass less often"
    peaks = load_profile("h200").peaks.flop_per_s
    plain, tuned = (row_of(data, model="ResNet-50", batch=2048, engine=e)["bound"] for e in ("plain", "graph"))
    assert tuned / plain == pytest.approx(peaks["bf16"].value / peaks["fp32"].value, rel=1e-3)
    assert "bound" not in PARTS["throughput"](case_of("a CPU")).data
    assert "No nominal peaks, so no bound." in PARTS["throughput"](case_of("a CPU")).caption


def test_an_epoch_takes_its_images_over_the_throughput() -> None:
    trial = Trial(batch=64)
    results = of_records(STUDY, [blocks(STUDY, trial, n, 1000.0) for n in PASSES])
    assert batch_size_figures.epoch_time(results, [trial]).data.iloc[0]["value"] == pytest.approx(50)  # type: ignore[union-attr]


def test_what_an_engine_costs_once_is_cold_in_the_first_pass_and_pays_after_so_many_steps() -> None:
    plain, tuned = Trial(batch=64), Trial(batch=64, **COMPILED)
    records = [blocks(STUDY, plain, n, 64 / 20e-3) for n in PASSES]  # a step of 20 ms
    records += [blocks(STUDY, tuned, n, 64 / 5e-3) for n in PASSES]  # and of 5 ms: 15 ms are saved
    results = of_records(STUDY, records)
    table = engine_tables.cost_table(results, engines.timed(results))
    assert isinstance(table, Table)
    (row,) = table.frame.to_dict("records")
    assert (row["compile cold (s)"], row["compile cached (s)"], row["capture (s)"]) == (45.0, 12.0, 0.5)
    assert row["paid after, cold (s)"] == "60.7"  # 45.5 s / 15 ms, and that many steps of 20 ms
    assert row["paid after, cached (s)"] == "16.7"
    slower = [blocks(STUDY, tuned, n, 64 / 25e-3) for n in PASSES]
    results = of_records(STUDY, [*records[:3], *slower])
    (row,) = engine_tables.cost_table(results, engines.timed(results)).frame.to_dict("records")  # type: ignore[union-attr]
    assert row["paid after, cold (s)"] == "never: it is not faster"


def test_a_first_pass_that_found_another_trials_graphs_is_not_called_cold() -> None:
    plain, tuned = Trial(batch=64), Trial(batch=64, **COMPILED)
    records = [blocks(STUDY, plain, n, 3200.0) for n in PASSES]
    for number, graphs in ((1, (2, 5)), (2, (0, 7)), (3, (9, 0))):  # compiled, from the cache
        made = blocks(STUDY, tuned, number, 12_800.0)
        facts = {**made.facts, "compiled_regions": dict(zip(("compiled", "from the cache"), graphs, strict=True))}
        records.append(made.model_copy(update={"facts": facts}))
    results = of_records(STUDY, records)
    (row,) = engine_tables.cost_table(results, engines.timed(results)).frame.to_dict("records")  # type: ignore[union-attr]
    found = tuple(row[f"compile {state} (s)"] for state in ("partly cached", "cached", "cold"))
    assert found == (45.0, 12.0, 12.0), "passes 1, 2 and 3, whichever came first"


def test_seeds_that_ended_not_finite_are_counted_where_the_others_mean_stands() -> None:
    trial = Trial(batch=64, **RUN)
    losses = ([6.0, 3.0], [6.0, 3.1], [6.0, None])
    results = of_records(STUDY, [run(STUDY, trial, n, losses[n - 1], 0.2) for n in PASSES])
    lost = "(1 of 3 seeds ended not finite and are left out)"
    assert lost in row_of(PARTS["runs"](results).frame, run="ResNet-50")["loss"]
    assert lost in PARTS["curves"](results).caption


def test_with_one_pass_what_is_cached_is_not_known() -> None:
    table = PARTS["cost"](case_of("one pass"))
    assert isinstance(table, Table) and table.frame["compile cached (s)"].isna().all()
    assert table.frame["paid after, cached (s)"].isna().all()


def test_the_gate_stands_beside_what_it_tolerates() -> None:
    table = PARTS["gate"](case_of("a GPU"))
    row = row_of(table.frame, trial="ResNet-50, 64, BF16, graph")
    assert (row["loss"], row["passes"]) == ("0.0012 of 0.02", 3)
    assert "plain" not in " ".join(table.frame["trial"]), "the plain loop is what is compared with"


def test_what_the_larger_batch_gains_is_told_by_its_ends_in_each_engine() -> None:
    text = said(PARTS["headline"](case_of("a GPU"))).split("\n\n")[0]
    assert "plain 2.70x" in text and "(ResNet-152) to 3.39x" in text
    assert "graph 2.18x" in text and "compile+graph 2.78x" in text and "(ResNet-50) to" not in text
    assert "Images/s at batch 256 over batch 64" not in said(PARTS["headline"](case_of("no records")))


def test_the_end_of_the_runs_is_a_mean_over_seeds_with_its_interval_and_no_imagenet_accuracy() -> None:
    figure = PARTS["curves"](case_of("a GPU"))
    assert "batch 64: loss" in figure.caption and "over seeds" in figure.caption
    assert convergence.NO_ACCURACY in figure.caption and "one-cycle" in figure.caption
    assert set(figure.data["seed"]) == {0, 1, 2} and figure.data["epoch"].max() == 15
    one = figure.data[(figure.data["run"] == "batch 64") & (figure.data["seed"] == 0)]
    assert one["seconds"].tolist() == pytest.approx([3.0 * n for n in range(1, 16)])
    assert "batch 256 minus batch 64: -6.02 points [" in said(PARTS["headline"](case_of("a GPU")))
    for case in ("a GPU", "a CPU", "one run"):
        text = said(PARTS["headline"](case_of(case)))
        assert "ImageNet" not in text.replace(convergence.NO_ACCURACY, "")


def test_a_loss_that_is_not_finite_is_said_and_leaves_a_gap() -> None:
    figure = PARTS["curves"](case_of("a run that diverged"))
    assert "a loss that is not finite" in figure.caption and figure.data["loss"].isna().sum() == 6


def test_a_run_that_failed_is_a_row_and_a_sentence_and_so_is_a_trial_that_its_gate_refused() -> None:
    lost, refused = Trial(batch=256, **RUN), Trial(batch=64, **CAPTURED)
    why = "correctness gate: the loss differs by 12 %"
    records = [r for r in run_records() if r.trial["batch"] == 64] + [failed(STUDY, lost, n) for n in PASSES]
    results = of_records(STUDY, [*records, *[failed(STUDY, refused, n, "crashed", why) for n in PASSES]])
    row = row_of(PARTS["runs"](results).frame, run="batch 256")
    assert (row["no result"], row["top-1 (%)"], row["n"]) == ("oom", "–", 0)
    assert "Without a result: batch 256 (oom: CUDA out of memory)." in PARTS["curves"](results).caption
    assert f"No result (crashed: {why}): ResNet-50, 64" in said(PARTS["headline"](results))


def test_one_pass_is_told_as_one() -> None:
    text = said(PARTS["headline"](case_of("one pass")))
    assert "(one pass, no interval)" in text and "[" not in text


def test_runs_stand_in_no_table_of_timed_trials() -> None:
    results = case_of("a GPU")
    assert all(trial.epochs == 0 for trial in engines.timed(results))
    assert [trial.batch for trial in convergence.runs(results)] == [64, 256]
    assert len(PARTS["table"](results).frame) == len(timed_trials())


def test_engines_that_a_scale_leaves_out_are_named() -> None:
    plain = [Trial(device="cpu", batch=4)]
    assert "Left out at this scale" in said(engines.left_out(load_profile("cpu"), plain, "smoke"))
    assert said(engines.left_out(load_profile("cpu"), plain, "smoke")).endswith("compile.")
    everything = [*timed_trials()]
    assert "Left out" not in said(engines.left_out(load_profile("h200"), everything, "quick"))


def test_the_key_numbers_are_the_gains_of_the_batch_and_of_the_engine_and_the_accuracy() -> None:
    r = case_of("a GPU")
    found = key_numbers.batch_size(r, *both(r))
    assert [what.split(",")[0] for _, what in found] == [
        "images/s at batch 256 over 64",
        "images/s at batch 256 over 64",
        "over the plain loop",
        "top-1 at batch 256 minus 64",
    ]
    assert all("[" in value for value, _ in found)
    assert key_numbers.batch_size(case_of("no records"), [], []) == []
    assert key_numbers.batch_size(case_of("all failed"), *both(case_of("all failed"))) == []


# ---- the claims ------------------------------------------------------------------------------------------------------


def verdict_on(claim: str, records: list[Record]) -> Finding:
    results = of_records(STUDY, records)
    seen = Evidence("h200", ("h200",), frozenset({STUDY}), lambda name, study: results)
    (paper, found) = next((p, c) for p in load_papers() for c in p.claims if c.id == claim)
    return judge(paper, found, seen)


def pair(low: float, high: float, noise: tuple[float, ...] = NOISE) -> list[Record]:
    """Batch 64 and 256 of the plain loop at two speeds; tuned trials say the opposite, which must not matter."""
    return [
        *[blocks(STUDY, Trial(batch=64), n, low * noise[n - 1]) for n in PASSES],
        *[blocks(STUDY, Trial(batch=256), n, high * noise[n % 3]) for n in PASSES],
        *[blocks(STUDY, Trial(batch=64, **CAPTURED), n, high) for n in PASSES],
        *[blocks(STUDY, Trial(batch=256, **CAPTURED), n, low) for n in PASSES],
        *run_records(),
    ]


WIDE = (0.5, 1.0, 2.0)
NO_256 = [failed(STUDY, Trial(batch=256), n) for n in PASSES]


@pytest.mark.parametrize(
    ("records", "verdict"),
    [
        (pair(100, 200), YES),
        (pair(100, 120), NO),
        (pair(100, 150, WIDE), OPEN),
        ([*[blocks(STUDY, Trial(batch=64), n, 100) for n in PASSES], *NO_256], UNTESTED),
        (run_records(), UNTESTED),
        ([], UNTESTED),
    ],
)
def test_the_claim_of_throughput_looks_at_timed_trials_of_the_plain_loop(records: list[Record], verdict: str) -> None:
    assert verdict_on("wisconsin-batch-throughput", records).verdict == verdict


@pytest.mark.parametrize(
    ("records", "verdict"),
    [
        (pair(100, 130), YES),
        (pair(100, 80), NO),
        (pair(100, 101, WIDE), OPEN),
        (run_records(), UNTESTED),
    ],
)
def test_the_claim_of_time_looks_at_timed_trials_of_the_plain_loop(records: list[Record], verdict: str) -> None:
    assert verdict_on("wisconsin-batch-time", records).verdict == verdict


@pytest.mark.parametrize(
    ("records", "verdict"),
    [
        (run_records(top1={64: 0.30, 256: 0.40}), YES),
        (run_records(), NO),
        (run_records(top1={64: 0.30, 256: 0.40}, passes=(1,)), OPEN),
        (timed_records(), UNTESTED),
        ([*timed_records(), *[r for r in run_records() if r.trial["batch"] == 64]], UNTESTED),
    ],
)
def test_the_claim_of_accuracy_looks_at_training_runs_of_any_engine_and_at_nothing_else(
    records: list[Record], verdict: str
) -> None:
    finding = verdict_on("wisconsin-batch-accuracy", [*records, *timed_records()])
    assert finding.verdict == verdict
    assert all(side.trial.epochs for judged in finding.tests for case in judged.cases for side in case.sides)


def test_of_two_lengths_of_runs_the_longer_decides_and_the_scope_names_data_and_precision() -> None:
    short = [
        run(STUDY, Trial(batch=batch, **{**RUN, "epochs": 2}), n, [6.0, 5.0], top1)
        for n in PASSES
        for batch, top1 in ((64, 0.5), (256, 0.1))
    ]
    finding = verdict_on("wisconsin-batch-accuracy", [*short, *run_records(top1={64: 0.30, 256: 0.40})])
    assert (finding.verdict, len(finding.tests[0].cases)) == (YES, 1)
    assert "on synthetic32" in finding.scope and "in BF16" in finding.scope


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_every_recipe_has_its_place_among_the_engines_and_is_drawn_unlike_the_others(kind: Any) -> None:
    trials = [Trial(device=kind, **recipe) for recipe in recipes(kind).values()]
    assert engines.in_order(trials[::-1])[0] == trials[0], "plain first"
    drawn = [ENGINES[engine_name(trial)] for trial in trials]
    assert len({place for place, _, _ in drawn}) == len({marker for _, marker, _ in drawn}) == len(trials)
