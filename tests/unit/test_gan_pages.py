"""The page of the WGAN says what the records say, whatever is missing from them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib import pyplot

from labkit.analysis import method, summary
from labkit.analysis.figure import DARK, LIGHT, Figure
from labkit.analysis.observations import readings
from labkit.analysis.studies.gan import answer, curves, gate, generated, grids, sampling, seen, utilisations
from labkit.analysis.table import Table, Text
from labkit.analysis.verdicts import Evidence, judge_all
from labkit.models import count
from labkit.observed import Metrics, Statistic, Telemetry, Window
from labkit.papers import load_papers
from labkit.profile import SCALES, load_profile
from labkit.recipes import adversarial
from labkit.records import Record
from labkit.results import roofline
from labkit.results.study_records import StudyRecords as Results
from labkit.traced import RULES, Kernel, Piece, Total, Trace, Traced, Untraced
from labkit.trial import Trial, grid
from labkit.trial_label import trial_label
from tests.unit.made_records import NOISE, PASSES, blocks, failed, of_records
from tests.unit.reading import row_of, said

STUDY = "10_gan"
BATCHES = (8, 32, 128, 512)
FLOP = 5 * count("wgan").flop_training  # of an iteration, an image of its batch
# A 1x1 image in one colour.
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="


def trial(batch: int, kind: Any = "cuda", engine: str = "eager", **fields: Any) -> Trial:
    asked = {"traced_iterations": 5, "steps_before": 300}
    return Trial(**{**adversarial(kind)[engine], "batch": batch, "device": kind, **asked, **fields})


def step_s(of: Trial) -> float:
    """Launches bound small batches of the eager loop, arithmetic large ones."""
    launches_s = {"eager": 8e-3, "graph": 5e-4}[of.engine]
    rate = 40e12 if of.precision == "fp32" else 150e12
    return launches_s + of.batch * FLOP / rate


def traced(of: Trial, number: int, *, steps: int | None = None, tilt: float = 0.0) -> Traced:
    """Kernels take what arithmetic takes; convolutions three quarters of it, and `tilt` more."""
    steps = steps or of.traced_iterations
    busy_s = steps * of.batch * FLOP / 40e12 * NOISE[number - 1]
    elapsed_s = steps * 2 * step_s(of)
    share = 0.75 + tilt
    kernels: Any = {
        "convolution": Total(seconds=share * busy_s, count=40 * steps),
        "batch_norm": Total(seconds=(1 - share) * busy_s, count=30 * steps),
    }
    return Traced(
        of="kernels" if of.device == "cuda" else "operators",
        steps=steps,
        asked_for=of.traced_iterations,
        steps_before=of.steps_before,
        pieces=[Piece(steps=steps, elapsed_s=elapsed_s, busy_s=busy_s, kernel_s={"convolution": busy_s})],
        elapsed_s=elapsed_s,
        busy_s=busy_s,
        active_s=busy_s,
        launch_gap_s=0.9 * (elapsed_s - busy_s),
        queue_gap_s=0.1 * (elapsed_s - busy_s),
        kernels=kernels,
        longest=[Kernel(seconds=busy_s / 2, count=5, name="sgemm", kind="convolution")],
    )


def sensed(of: Trial) -> Telemetry:
    busy = min(0.9, of.batch / 512)
    means = {"sm_activity": busy, "fp32_activity": busy / 2, "tensor_activity": 0.0, "utilisation": 0.99}
    metrics: Metrics = {name: Statistic(mean=m, low=m, high=m, n=10) for name, m in means.items()}
    return Telemetry(status="ok", windows={"timed": Window(start_s=0, length_s=2, sources={"gpu0": metrics})})


def record(of: Trial, number: int, found: Trace | None = None, *, sensors: bool = True, **other: Any) -> Record:
    made = blocks(STUDY, of, number, of.batch / step_s(of) * NOISE[number - 1])
    assert made.blocks is not None
    trace = found or (traced(of, number) if of.traced_iterations else None)
    flop, images = FLOP * of.batch, 5 * of.batch
    result = made.blocks.model_copy(update={"trace": trace, "flop_per_step": flop, "images_per_step": images})
    passed = {"loss_difference": 1e-4, "loss_tolerance": 0.01, "change_difference": 0.02, "change_tolerance": 0.4}
    passed |= {"squares_difference": 1e-3, "squares_tolerance": 0.05}
    facts = {**made.facts, **({"gate": passed} if of.engine == "graph" else {}), **other}
    telemetry = sensed(of) if sensors and of.device == "cuda" else None
    return made.model_copy(update={"result": result, "facts": facts, "telemetry": telemetry})


def drawn(number: int, kind: Any = "cuda", **other: Any) -> Record:
    """A trial whose generator was asked for images after 1,500 iterations."""
    of = trial(64, kind, traced_iterations=0, steps_before=1500, samples=32, data="digits")
    images = dict.fromkeys(generated.GRIDS, PNG)
    return record(of, number, **{**images, "later_loss": [[800, 0.9], [1500, 0.4]], **other})


def trials() -> list[Trial]:
    swept = [trial(batch) for batch in BATCHES] + [trial(8, precision="bf16")]
    swept += [trial(batch, engine="graph", precision=precision) for batch in (8, 128) for precision in ("fp32", "bf16")]
    return [*swept, trial(32, traced_iterations=200)]


def sooner() -> list[Trial]:
    """As the profiles of GPUs have it: traced right after the timed part, and one of them again after the 300th."""
    swept = [trial(batch, steps_before=0) for batch in BATCHES] + [trial(8, engine="graph", steps_before=0)]
    return [*swept, trial(32), trial(32, traced_iterations=200, traced_s=60)]


def records(passes: tuple[int, ...] = PASSES, **other: Any) -> list[Record]:
    return [*(record(one, n, **other) for n in passes for one in trials()), *(drawn(n) for n in passes)]


def on_cpu() -> list[Record]:
    of = [trial(batch, "cpu", traced_iterations=2, steps_before=6) for batch in (2, 8)]
    of.append(trial(2, "cpu", traced_iterations=8, steps_before=6))
    return [*(record(one, n) for n in PASSES for one in of), *(drawn(n, "cpu", later_loss=[]) for n in PASSES)]


def ceiling(number: int, device: Any = "cpu", flop_per_s: float = 200e9) -> Record:
    """A matrix product."""
    of = Trial(workload="matmul", device=device, data="none", size=2048)
    made = blocks(STUDY, of, number, 1.0)
    assert made.blocks is not None
    step_s = made.blocks.timed_s / (10 * 5)
    about = {"images_per_step": None, "flop_per_step": int(flop_per_s * step_s)}
    return made.model_copy(update={"result": made.blocks.model_copy(update=about)})


def some_failed() -> list[Record]:
    kept = [one for one in records() if one.trial["batch"] != 512]
    return [*kept, *(failed(STUDY, trial(512), n) for n in PASSES)]


CASES: dict[str, Callable[[], Results]] = {
    "a GPU": lambda: of_records(STUDY, records()),
    "traced sooner": lambda: of_records(STUDY, [record(one, n) for n in PASSES for one in sooner()]),
    "one pass": lambda: of_records(STUDY, records((1,))),
    "no sensors": lambda: of_records(STUDY, records(sensors=False)),
    "no traces": lambda: of_records(STUDY, records(found=Untraced(reason="the profiler saw nothing"))),
    "no peaks": lambda: of_records(STUDY, records(), hw="h100"),
    "some failed": lambda: of_records(STUDY, some_failed()),
    "all failed": lambda: of_records(STUDY, [failed(STUDY, one, n) for n in PASSES for one in trials()]),
    "captured only": lambda: of_records(STUDY, [one for one in records() if one.trial["engine"] == "graph"]),
    "a CPU": lambda: of_records(STUDY, [*on_cpu(), *map(ceiling, PASSES)], hw="cpu"),
    "a CPU without ceilings": lambda: of_records(STUDY, on_cpu(), hw="cpu"),
    "no records": lambda: of_records(STUDY, []),
    "no records of a CPU": lambda: of_records(STUDY, [], hw="cpu"),
}


@cache
def case_of(name: str) -> Results:
    return CASES[name]()


def swept(r: Results) -> list[Trial]:
    return seen.swept(r)


PARTS: dict[str, Callable[[Results], Any]] = {
    "headline": lambda r: answer.headline(r, swept(r)),
    "table": lambda r: utilisations.table(r, swept(r)),
    "utilisation": lambda r: curves.utilisation(r, swept(r)),
    "arithmetic": lambda r: curves.arithmetic(r, swept(r)),
    "why apart": lambda r: utilisations.why_apart(r, swept(r)),
    "step time": lambda r: curves.step_time(r, swept(r)),
    "sampling": sampling.table,
    "gate": lambda r: gate.table(r, swept(r)),
    "samples": lambda r: generated.samples(r, next(iter(seen.sampled(r)), None)),
    "limitations": lambda r: answer.limitations(r, swept(r)),
    "method": lambda r: method.sentence(r, "Nothing was measured now."),
    "prediction": lambda r: summary.prediction_table(r.profile, trials()),
    "trials": lambda r: summary.trials_table(trials(), 3),
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("case", CASES)
def test_no_part_of_the_page_fails_or_shows_nan_or_none(case: str, part: str) -> None:
    made = PARTS[part](case_of(case))
    assert isinstance(made, Figure | Table | Text)
    if isinstance(made, Figure):
        assert made.caption and made.alt and len(made.data)
        text = made.caption + made.alt + Table(made.data, "")._repr_mimebundle_()["text/html"]
    else:
        text = made._repr_mimebundle_()["text/html"]
    for odd in ("nan", "None", "NaN", "inf "):
        assert odd not in text, text


@pytest.mark.parametrize("part", ["utilisation", "arithmetic", "step time", "samples"])
@pytest.mark.parametrize("case", ["a GPU", "some failed", "a CPU"])
def test_each_figure_draws_in_both_schemes(case: str, part: str) -> None:
    figure = PARTS[part](case_of(case))
    assert isinstance(figure, Figure) and figure.alt
    for theme in (LIGHT, DARK):
        assert figure.svg(theme).startswith("<")


def test_a_page_shows_each_configuration_once_however_often_it_was_traced() -> None:
    results = case_of("a GPU")
    shown = [(one.batch, one.engine, one.precision) for one in swept(results)]
    assert len(set(shown)) == len(shown) == len(trials()) - 1
    assert all(one.traced_iterations == 5 and not one.samples for one in swept(results))
    (found,) = seen.samples(results)
    assert found == (trial(32), trial(32, traced_iterations=200), None)
    assert set(swept(case_of("traced sooner"))) == {one for one in sooner() if not one.steps_before}
    (found,) = seen.samples(case_of("traced sooner"))
    assert found == (trial(32), trial(32, traced_iterations=200, traced_s=60), trial(32, steps_before=0))


def test_the_headline_gives_the_papers_two_utilisations_at_both_ends() -> None:
    text = said(PARTS["headline"](case_of("a GPU")))
    work_s = [batch * FLOP / 40e12 for batch in (8, 512)]
    few, many = (100 * work / (8e-3 + work) for work in work_s)
    once = said(PARTS["headline"](case_of("one pass")))
    assert f"{few:.1f} % (one pass, no interval) at mini-batch 8 and {many:.1f} % (one pass" in once
    assert "% [" in text and "at mini-batch 512" in text
    assert "the peak is the vendor's 67.00 TFLOP/s" in text
    # All FLOP are in the convolutions, which take three quarters of the kernels' time.
    reached = 40e12 / 0.75 / np.mean(NOISE)
    assert "At mini-batch 512 convolutions take 75 % of the kernels' time and reach" in text
    assert f"reach {reached / 1e12:.1f} TFLOP/s in it, {100 * reached / 67e12:.0f} % of that peak" in text
    assert "the longest kernel is sgemm with 50 %" in text.replace("`", "")
    least = step_s(trial(128)) / step_s(trial(128, engine="graph"))
    assert f"Captured over eager of the same precision in images/s: in FP32 {least:.2f}x" in text
    assert "(mini-batch 128, graph, FP32) to" in text and "; in BF16 " in text
    runs = f"{1e3 * traced(trial(32), 1).busy_s / 5:.3f} ms (one pass, no interval)"
    assert f"At mini-batch 32 kernels run for {runs} of an iteration by 5 and for {runs} by 200" in once
    assert "classes of kernels differ by less than 0.05 points; their share of the profiled iterations" in text
    assert "a large matrix product" not in text, "none was measured"
    smallest = "That share does not tell how well the chip is used: at mini-batch 8 a kernel runs for "
    assert smallest in text and "of the FP32 peak." in text.split(smallest)[1]


def test_what_is_reached_stands_beside_what_a_matrix_product_reaches() -> None:
    results = of_records(STUDY, [*records(), *(ceiling(n, "cuda", 50e12) for n in PASSES)])
    share = 100 * 512 * FLOP / step_s(trial(512)) / 50e12
    text = said(answer.headline(results, swept(results)))
    assert f"and the last is {share:.0f} % of what a large matrix product reached here" in text


def test_time_for_other_layouts_is_said_where_it_is_much() -> None:
    of = trial(8)
    found = traced(of, 1)
    told = []
    for share in (0.05, 0.3):
        helpers = {"helper": Total(seconds=share * found.kernel_s, count=5)}
        results = of_records(STUDY, [record(of, 1, found.model_copy(update={"algorithms": helpers}))])
        told.append(said(answer.limitations(results, [of])))
    assert "other layouts" not in told[0]
    assert (
        "memory format is contiguous: of mini-batch 8, eager, FP32 30 % of the kernels' time goes to other layouts"
        in told[1]
    )


def test_kernels_sorted_by_earlier_rules_are_said_to_be() -> None:
    of = trial(8)
    now, before = traced(of, 1).model_copy(update={"rules": RULES}), traced(of, 1)
    assert before.rules < RULES, "records that do not say are earlier ones"
    told = [said(answer.limitations(of_records(STUDY, [record(of, 1, one)]), [of])) for one in (now, before)]
    assert ["earlier rules" in one for one in told] == [False, True]


def test_measures_that_differ_are_explained_where_there_are_counters() -> None:
    told = said(PARTS["why apart"](case_of("a GPU")))
    assert "however small; SM activity how many multiprocessors" in told
    assert said(PARTS["why apart"](case_of("no sensors"))) == ""


def test_two_points_are_no_line() -> None:
    whole = pyplot.figure()
    PARTS["step time"](case_of("a GPU")).draw(whole, LIGHT)
    _, labels = whole.axes[0].get_legend_handles_labels()
    styles = {line.get_label(): line.get_linestyle() for axes in whole.axes for line in axes.get_lines()}
    styles |= {bars.get_label(): bars.lines[0].get_linestyle() for axes in whole.axes for bars in axes.containers}
    pyplot.close(whole)
    assert {"eager, FP32", "graph, FP32"} <= set(labels)
    assert (styles["eager, FP32"], styles["graph, FP32"]) == ("-", "None"), "four mini-batches and two"


def test_captured_trials_alone_still_say_how_busy_they_are() -> None:
    text = said(PARTS["headline"](case_of("captured only")))
    assert "can't be said: no eager FP32 trial has a result" in text
    busy = 100 * (8 * FLOP / 40e12) / step_s(trial(8, engine="graph"))
    once = [one for one in records((1,)) if one.trial["engine"] == "graph"]
    captured = of_records(STUDY, once)
    assert f"in FP32, {busy:.1f} % (one pass" in said(answer.headline(captured, swept(captured)))
    assert "Captured in one CUDA graph" in text and "over eager" not in text


def test_of_a_cpu_a_headline_tells_operators_and_how_long_the_few_took() -> None:
    few, many = (trial(2, "cpu", traced_iterations=steps, steps_before=6) for steps in (2, 8))

    def results(slower: float) -> Results:
        of_few = traced(few, 1)
        of_few = of_few.model_copy(update={"elapsed_s": slower * of_few.elapsed_s})
        return of_records(STUDY, [record(few, 1, of_few), record(many, 1)], hw="cpu")

    text = said(answer.headline(results(1.145), [few]))
    assert "classes of operators differ by" in text and "kernel" not in text
    many_ms = 1e3 * traced(many, 1).elapsed_s / 8
    assert f"as such an iteration takes {1.145 * many_ms:.1f} ms in the few and {many_ms:.1f} ms in the many" in text


def test_what_is_missing_is_said_with_its_reason() -> None:
    assert "can't be said: the profiler saw nothing" in said(PARTS["headline"](case_of("no traces")))
    assert "Not readable here: SM activity" in said(PARTS["table"](case_of("no sensors")))
    on_a_cpu = said(PARTS["table"](case_of("a CPU")))
    assert "a CPU has no such counters here" in on_a_cpu and "operator" in on_a_cpu
    assert "a matrix product reached here: 0.2" in said(PARTS["arithmetic"](case_of("a CPU")))
    without = case_of("a CPU without ceilings")
    assert "no FP32 peak is known" in said(PARTS["table"](without))
    assert "No trial says anything of this" in said(PARTS["arithmetic"](without))
    assert "SM" not in PARTS["table"](case_of("a CPU")).frame.columns
    assert "Nothing was captured here" in said(PARTS["gate"](case_of("a CPU")))
    assert "No generator was asked for images" in said(PARTS["samples"](case_of("captured only")))


def test_a_failure_is_a_row_and_a_sentence() -> None:
    results = case_of("some failed")
    row = row_of(PARTS["table"](results).frame, training="eager, FP32", **{"mini-batch": 512})
    assert (row["images/s"], row["n"], row["no result"]) == ("–", 0, "oom")
    assert "Without a result: mini-batch 512, eager, FP32" in said(PARTS["headline"](results))


def test_few_and_many_iterations_stand_side_by_side_class_by_class() -> None:
    short, long = trial(32), trial(32, traced_iterations=200)
    made = [record(short, n) for n in PASSES]
    made += [record(long, n, traced(long, n, tilt=0.02)) for n in PASSES]
    frame = sampling.table(of_records(STUDY, made)).frame  # type: ignore[union-attr]
    row = row_of(frame, what="convolution")
    assert (row["5 traced"], row["200 traced"], row["difference"]) == ("75 %", "77 %", "-2.0 points")
    assert row_of(frame, what="batch norm")["difference"] == "2.0 points"
    assert list(frame["what"])[:4] == [
        *("kernels of an iteration", "an iteration under the profiler"),
        *("kernels' share of it", "kernels' share of a timed one"),
    ]
    assert [row_of(frame, what=what)["difference"] for what in frame["what"][:4]] == [
        *("0.0 %",) * 2,
        *("0.0 points",) * 2,
    ]


def test_on_a_cpu_the_share_of_timed_iterations_is_no_other_row() -> None:
    shown = sampling.table(case_of("a CPU"))
    assert isinstance(shown, Table) and "operators' share of it" in set(shown.frame["what"])
    assert "operators' share of a timed one" not in set(shown.frame["what"])


def test_a_sample_taken_sooner_stands_beside_with_its_own_difference() -> None:
    early, few, many = trial(32, steps_before=0), trial(32), trial(32, traced_iterations=200)
    others = [trial(batch, steps_before=0) for batch in (8, 128)]
    made = [record(one, n, traced(one, n, tilt=0.01 if one == early else 0.0)) for n in PASSES for one in (early, few)]
    results = of_records(STUDY, [*made, *(record(one, n) for n in PASSES for one in (many, *others))])
    shown = sampling.table(results)
    row = row_of(shown.frame, what="convolution")  # type: ignore[union-attr]
    assert (row["5 traced early"], row["5 traced"], row["200 traced"]) == ("76 %", "75 %", "75 %")
    assert (row["difference"], row["early - few"]) == ("0.0 points", "1.0 points")
    whole = row_of(shown.frame, what="an iteration under the profiler")  # type: ignore[union-attr]
    assert whole["early - few"] == "0.0 %"
    assert "Early: as few, traced sooner" in said(shown)
    assert "traced after 0 iterations and not after 300, they run for " in sampling.sentence(results)
    without = sampling.table(case_of("a GPU"))
    assert "early" not in said(without).lower()


def test_a_share_stands_beside_what_the_profiler_makes_of_it_and_kernels_time_beside_the_steps() -> None:
    results = case_of("a GPU")
    row = row_of(PARTS["table"](results).frame, training="eager, FP32", **{"mini-batch": 512})
    computing, profiled = (float(row[name].split()[0]) for name in ("computing", "profiled"))
    assert profiled == pytest.approx(computing / 2, rel=0.01), "traced steps take twice as long here"
    assert "(GPM) over the timed part, 10 readings a pass." in PARTS["table"](results).caption
    few = results.records[0].telemetry
    assert few is not None
    once = {name: one.model_copy(update={"n": 1}) for name, one in few.windows["timed"].sources["gpu0"].items()}
    rare = few.model_copy(update={"windows": {"timed": Window(start_s=0, length_s=2, sources={"gpu0": once})}})
    made = of_records(STUDY, [one.model_copy(update={"telemetry": rare}) for one in results.records])
    assert readings(made, swept(made), "sm_activity") == "1 reading a pass"
    both = of_records(STUDY, [made.records[0], *results.records[1:]])
    assert readings(both, swept(both), "sm_activity") == "1 to 10 readings a pass"
    assert readings(both, swept(both), "dram_activity") == ""
    assert "profiled" not in PARTS["table"](case_of("a CPU")).frame
    of_step = row_of(sampling.table(results).frame, what="kernels of an iteration")  # type: ignore[union-attr]
    assert of_step["5 traced"] == of_step["200 traced"] and of_step["difference"] == "0.0 %"


def test_a_timed_part_that_was_long_enough_leaves_no_sooner_sample() -> None:
    early, few, many = trial(32, steps_before=0), trial(32), trial(32, traced_iterations=200)
    late = traced(early, 1).model_copy(update={"steps_before": 300})
    results = of_records(STUDY, [record(early, 1, late), record(few, 1), record(many, 1)])
    (found,) = seen.samples(results)
    assert found.early is None and seen.traced_after(results, early) == 300
    assert seen.traced_after(results, trial(64)) is None


def test_what_keeps_the_peak_away_is_said_only_where_the_trace_tells_it() -> None:
    one = trial(512)
    whole = traced(one, 1)
    without = whole.model_copy(update={"kernels": {"batch_norm": whole.kernels["batch_norm"]}})
    for found in (without, whole.model_copy(update={"longest": []})):
        results = of_records(STUDY, [record(one, 1, found)])
        text = said(answer.headline(results, [one]))
        assert "FP32 utilisation by the paper's formula" in text and "convolutions take" not in text


def test_claims_take_the_sweep_and_the_papers_own_sample() -> None:
    results = case_of("traced sooner")
    evidence = Evidence(results.profile.name, (results.profile.name,), frozenset({STUDY}), lambda _, study: results)
    found = {finding.claim.id: finding for finding in judge_all(load_papers(), evidence, STUDY)}
    (rises,) = found["cern-batch-utilisation"].cases
    assert {side.trial for side in rises.sides} == {trial(batch, steps_before=0) for batch in BATCHES}
    for case in found["cern-sampling"].cases:
        assert [side.trial for side in case.sides] == [trial(32), trial(32, traced_iterations=200, traced_s=60)]
    assert len(found["cern-sampling"].cases) == 2, "one a metric"


@pytest.mark.parametrize("hw", ["cpu", "h200", "p100_16gb"])
@pytest.mark.parametrize("scale", SCALES)
def test_every_profile_sweeps_samples_and_draws(hw: str, scale: str) -> None:
    profile = load_profile(hw)
    lab = SimpleNamespace(
        profile=profile,
        sweep=profile.sweep(STUDY, scale),
        trials=lambda **axes: grid(device=profile.device.kind, **axes),
    )
    swept, sampled, drawn = grids.swept(lab), grids.sampled(lab), grids.drawn(lab, own_images=False)  # type: ignore[arg-type]
    assert len(set(swept)) == len(swept) and not {one for one in swept if one.samples}
    asked = of_records(STUDY, [record(one, 1) for one in dict.fromkeys([*swept, *sampled])], hw)
    assert set(seen.swept(asked)) == set(swept), "the others are told from the sweep"
    known = seen.samples(asked)
    assert {one.few.batch for one in known} == set(lab.sweep["longer_batch"])
    assert all(one.many.traced_iterations == lab.sweep["longer_traced"] for one in known)
    labels = [trial_label(one, beside=[*swept, *sampled, *drawn]) for one in dict.fromkeys([*swept, *sampled, *drawn])]
    assert len(set(labels)) == len(labels), "no two trials are called the same"
    later = lab.sweep["longer_after"] > lab.sweep["steps_before"]
    assert all((one.early is not None) == later for one in known)
    assert [(one.samples, one.data) for one in drawn] == [(lab.sweep["samples"], "digits")]


def test_few_and_many_that_are_not_the_same_everywhere_are_called_so() -> None:
    of = [trial(8), trial(8, traced_iterations=100), trial(32), trial(32, traced_iterations=200)]
    frame = sampling.table(of_records(STUDY, [record(one, 1) for one in of])).frame  # type: ignore[union-attr]
    assert {"5 traced", "many"} <= set(frame.columns)


def test_a_step_has_no_interval_of_its_own_and_noise_is_not_a_share() -> None:
    one = trial(8)
    tiny = traced(one, 1).model_copy(update={"launch_gap_s": 0.0})
    shown = of_records(STUDY, [record(one, 1, tiny)])
    row = row_of(utilisations.table(shown, [one]).frame, training="eager, FP32")  # type: ignore[union-attr]
    assert float(row["step (ms)"]) == pytest.approx(1e3 * step_s(one), rel=1e-3)
    assert "one pass" in row["images/s"] and row["waiting"] == "0 %"
    assert [utilisations.share_words(share) for share in (0.0, 1.3e-5, 0.001)] == ["0 %", "< 0.1 %", "0.1 %"]


def test_launches_are_blamed_only_where_the_device_waits_for_them() -> None:
    blamed = PARTS["step time"](case_of("a GPU")).caption
    assert "At mini-batch 8, eager, FP32, the host bounds it: the device waits for launches for " in blamed
    busy = trial(8192)
    idle = curves.step_time(of_records(STUDY, [record(busy, 1, traced(busy, 1))]), [busy])
    assert "bound" not in idle.caption  # type: ignore[union-attr]
    assert "bound" not in PARTS["step time"](case_of("a CPU")).caption


def test_idle_tensor_pipes_get_a_sentence_and_no_panel() -> None:
    figure = PARTS["arithmetic"](case_of("a GPU"))
    assert "tensor_activity" not in set(figure.data["metric"])
    assert "Tensor pipes did nothing in any trial." in figure.caption


def test_shares_are_drawn_on_one_scale() -> None:
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(layout="constrained")
    PARTS["arithmetic"](case_of("a GPU")).draw(canvas, LIGHT)
    assert {axes.get_ylim() for axes in canvas.axes} == {(0.0, curves.FULL)}


def test_a_cpu_page_says_once_that_there_are_no_such_counters() -> None:
    parts = ("headline", "table", "utilisation", "arithmetic", "step time", "limitations")
    whole = " ".join(said(PARTS[part](case_of("a CPU"))) for part in parts)
    assert whole.count("a CPU has no such counters here") == 1


def test_what_the_profiler_may_do_to_operators_is_a_limit_of_a_cpu_alone() -> None:
    assert "profiler's doing alone" in said(PARTS["limitations"](case_of("a CPU")))
    assert "profiler's doing alone" not in said(PARTS["limitations"](case_of("a GPU")))


def test_images_s_are_real_ones_of_five_mini_batches() -> None:
    table = PARTS["table"](case_of("a GPU"))
    row = row_of(table.frame, training="eager, FP32", **{"mini-batch": 8})
    expected = 5 * 8 / step_s(trial(8))
    assert float(row["images/s"].split()[0].replace(",", "")) == pytest.approx(expected, rel=0.01)
    assert "5 mini-batches a step" in table.caption


def test_the_roofline_counts_the_real_images_of_all_the_critics_steps() -> None:
    work = roofline.planned_work(trial(64))
    facts = count("wgan")
    assert work.images == 5 * 64
    assert work.flop == 5 * 64 * facts.flop_training
    assert work.unavoidable_bytes == facts.weight_traffic_bytes + 5 * 64 * 3072  # type: ignore[operator]
    of = trial(64)
    known = {name: getattr(facts, name) for name in ("parameters", "flop_training", "flop_forward")}
    known |= {"weight_traffic_bytes_per_step": facts.weight_traffic_bytes, "image_bytes": 3072}
    assert roofline.work_of(of_records(STUDY, [record(of, 1, **known)]), of) == work
    penalised = Trial(**adversarial("cuda", "gradient_penalty")["eager"])
    assert roofline.planned_work(penalised).flop > 1.5 * work.flop


def test_the_samples_say_after_how_many_iterations_and_where_the_estimate_went() -> None:
    figure = PARTS["samples"](case_of("a GPU"))
    assert "after 1,500 iterations" in figure.caption
    assert "Whether it trains is not shown" not in figure.caption
    assert list(figure.data["iterations"])[-2:] == [800, 1500]
    few = drawn(1)
    few = few.model_copy(update={"trial": {**few.trial, "steps_before": 3}})
    shown = generated.samples(of_records(STUDY, [few]), few.as_trial)
    assert "after 55 iterations" in said(shown), "five of the warm-up, ten blocks of five"
    assert "Whether it trains is not shown here: after 55 iterations the critic is still learning" in said(shown)
    assert "SCALE=full trains 5,000." in said(shown)


@pytest.mark.parametrize(
    ("later", "told"),
    [
        ([[800, 9.0], [1500, 4.0]], "It fell from 9.0, its largest (by iteration 800), to 4.0."),
        ([[800, 4.0], [1500, 9.0]], "It has not fallen: it is largest at the end, 9.0."),
    ],
)
def test_a_long_training_says_whether_the_estimate_fell(later: list[list[float]], told: str) -> None:
    shown = of_records(STUDY, [drawn(1, later_loss=later)])
    figure = generated.samples(shown, seen.sampled(shown)[0])
    assert told in said(figure)


def test_on_a_cpu_the_scale_is_named_that_trains_long_enough() -> None:
    few = drawn(1, "cpu", later_loss=[])
    few = few.model_copy(update={"trial": {**few.trial, "steps_before": 24}})
    assert "SCALE=full trains 600." in said(generated.samples(of_records(STUDY, [few], hw="cpu"), few.as_trial))


def test_a_samples_picture_holds_the_records_own_pixels() -> None:
    assert np.array_equal(generated._pixels(PNG), np.zeros((1, 1, 3), dtype=np.uint8))


def test_key_numbers_are_of_both_ends() -> None:
    found = answer.key_numbers(case_of("a GPU"), swept(case_of("a GPU")))
    assert [what for _, what in found] == [
        "of the time computing, eager FP32, mini-batch 8",
        "of the time computing, eager FP32, mini-batch 512",
        "of the FP32 peak, eager, mini-batch 8",
        "of the FP32 peak, eager, mini-batch 512",
        "the eager loop's images/s by capturing, mini-batch 8, graph, BF16",
    ]
    gain = step_s(trial(8, precision="bf16")) / step_s(trial(8, engine="graph", precision="bf16"))
    assert float(found[-1][0].split("x")[0]) == pytest.approx(gain, rel=0.01)
    assert answer.key_numbers(case_of("no records"), []) == []


def test_memory_is_the_mean_of_passes() -> None:
    made = [record(trial(8), n, memory_bytes=n * 2**30) for n in PASSES]
    table = utilisations.table(of_records(STUDY, made), [trial(8)])
    assert isinstance(table, Table) and table.frame["memory (GiB)"].iloc[0] == "2.00"
    assert "Memory: the most that was allocated at once, mean of passes" in table.caption
    without = [record(trial(8), n, memory_bytes=None) for n in PASSES]
    table = utilisations.table(of_records(STUDY, without), [trial(8)])
    assert isinstance(table, Table) and "Memory:" not in table.caption and "memory (GiB)" not in table.frame


def launching(of: Trial, number: int, launches: int, slower: float) -> Record:
    """An iteration that takes so many times as long, with so many launches in it."""
    calls: Any = {"launch": Total(seconds=1e-3, count=launches * of.traced_iterations)}
    made = record(of, number, traced(of, number).model_copy(update={"calls": calls}))
    assert made.blocks is not None
    host_s = [slower * one for one in made.blocks.host_s]
    return made.model_copy(update={"result": made.blocks.model_copy(update={"host_s": host_s})})


def test_a_narrower_precision_that_is_slower_for_its_launches_is_named() -> None:
    usual, narrow = trial(8), trial(8, precision="bf16")

    def told(launches: int, slower: float) -> str:
        made = [launching(usual, n, 600, 1.0) for n in PASSES] + [
            launching(narrow, n, launches, slower) for n in PASSES
        ]
        return said(answer.headline(of_records(STUDY, made), [usual, narrow]))

    assert "; 1,100 against 600 launches an iteration)." in told(1100, 1.5)
    assert "a narrower precision" not in told(600, 1.5), "as many launches explain nothing"
    assert "a narrower precision" not in told(1100, 0.5), "which is faster"
