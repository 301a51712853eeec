"""The page of precision says what the records say, whatever is missing from them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from labkit.analysis import engine_tables, engines, method, quality, summary
from labkit.analysis.figure import DARK, LIGHT, Figure
from labkit.analysis.studies import by_precision, convergence, key_numbers, precision, precision_figures
from labkit.analysis.table import Table, Text
from labkit.analysis.verdicts.evidence import Evidence
from labkit.analysis.verdicts.judge import judge
from labkit.analysis.verdicts.verdict import VERDICTS, Finding
from labkit.papers import load_papers
from labkit.profile import load_profile
from labkit.recipes import COMPILED
from labkit.records import Record
from labkit.results.study_records import StudyRecords as Results
from labkit.trial import Trial
from tests.unit.made_records import NOISE, PASSES, blocks, busy, failed, of_records, run
from tests.unit.reading import said

STUDY = "07_precision"
YES, NO, OPEN, UNTESTED = VERDICTS
PAPERS = load_papers()
ALIKE = {"memory_format": "channels_last", "batch": 256}
FUSED = {**ALIKE, "engine": "graph", "optimizer": "sgd_fused"}
ALL = ("fp32", "tf32", "fp16", "bf16")
SPEED = {"fp32": 1.0, "tf32": 1.4, "fp16": 1.8, "bf16": 1.9}


def timed_trials() -> list[Trial]:
    small = [Trial(model=m, precision=p, **ALIKE) for m in ("resnet50", "resnet152", "vgg16", "vgg19") for p in ALL]
    large = [Trial(model="resnet50", image_px=224, precision=p, **ALIKE) for p in ALL]
    fused = [Trial(model=m, precision=p, **FUSED) for m in ("resnet50", "vgg16") for p in ALL]
    return [*small, *large, *fused, *[Trial(image_px=px, batch=256, **COMPILED) for px in (32, 224)]]


def rate(trial: Trial) -> float:
    base = {"resnet50": 12_000.0, "resnet152": 5_000.0, "vgg16": 9_000.0, "vgg19": 8_000.0}[trial.model]
    engine = {"eager": 1.0, "graph": 1.6, "compile+graph": 2.2}[trial.engine]
    return base * SPEED[trial.precision] * engine * (0.06 if trial.image_px == 224 else 1)


def timed_records(passes: tuple[int, ...] = PASSES, speed: dict[str, float] | None = None) -> list[Record]:
    return [
        blocks(
            STUDY,
            trial,
            n,
            rate(trial) * NOISE[(n + place) % 3] * (speed or {}).get(trial.precision, 1.0),
            telemetry=busy(0.01 if trial.precision == "fp32" else 0.2),
        )
        for n in passes
        for place, trial in enumerate(timed_trials())
    ]


def run_records(passes: tuple[int, ...] = PASSES, *, bf16: float = 1.0) -> list[Record]:
    trials = [Trial(precision=p, epochs=5, learning_rate=0.02, **FUSED) for p in ALL]
    worse = {"fp32": 1.0, "tf32": 1.001, "fp16": 1.004, "bf16": 1.01 * bf16}
    return [
        run(
            STUDY,
            trial,
            n,
            [6.9 * math.exp(-0.2 * e) * NOISE[n - 1] * worse[trial.precision] for e in range(5)],
            0.2 * NOISE[(n + place) % 3],
        )
        for n in passes
        for place, trial in enumerate(trials)
    ]


def on_cpu() -> list[Record]:
    alike = {"device": "cpu", "batch": 16, "memory_format": "channels_last"}
    found = [
        blocks(STUDY, Trial(precision=p, **alike), n, 60 * SPEED[p] * NOISE[n - 1])
        for n in PASSES
        for p in ("fp32", "bf16")
    ]
    for p in ("tf32", "fp16"):
        why = f"{p.upper()} is not for CPUs"
        found += [failed(STUDY, Trial(precision=p, **alike), n, "unsupported", why) for n in PASSES]
    digits = {"model": "resnet18", "device": "cpu", "data": "digits", "classes": 10, "epochs": 2}
    runs = [Trial(precision=p, **digits) for p in ("fp32", "bf16")]
    return found + [run(STUDY, one, n, [2.0, 1.4 * NOISE[n - 1]], 0.7 * NOISE[n - 1]) for n in PASSES for one in runs]


def without_telemetry() -> list[Record]:
    return [one.model_copy(update={"telemetry": None}) for one in [*timed_records(), *run_records()]]


def one_failed() -> list[Record]:
    """FP32 at 224 px does not fit, so nothing at 224 px has a ratio."""
    found = []
    for one in timed_records():
        trial = one.as_trial
        lost = trial.image_px == 224 and trial.precision == "fp32"
        found.append(failed(STUDY, trial, one.pass_number) if lost else one)
    return found


CASES: dict[str, Callable[[], Results]] = {
    "a GPU": lambda: of_records(STUDY, [*timed_records(), *run_records()]),
    "one pass": lambda: of_records(STUDY, [*timed_records((1,)), *run_records((1,))]),
    "timed trials only": lambda: of_records(STUDY, timed_records()),
    "runs only": lambda: of_records(STUDY, run_records()),
    "runs without FP32": lambda: of_records(STUDY, [r for r in run_records() if r.trial["precision"] != "fp32"]),
    "FP32 only": lambda: of_records(STUDY, [r for r in timed_records() if r.trial["precision"] == "fp32"]),
    "one failed": lambda: of_records(STUDY, one_failed()),
    "all failed": lambda: of_records(STUDY, [failed(STUDY, trial, n) for n in PASSES for trial in timed_trials()]),
    "without telemetry": lambda: of_records(STUDY, without_telemetry()),
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
    "headline": lambda r: precision.headline(r, *both(r)),
    "table": lambda r: precision.table(r, engines.timed(r)),
    "throughput": lambda r: precision_figures.throughput(r, engines.timed(r)),
    "over_fp32": lambda r: precision_figures.over_fp32(r, engines.timed(r), PAPERS),
    "activity": lambda r: precision_figures.activity(r, engines.timed(r)),
    "curves": lambda r: convergence.curves(r, convergence.runs(r)),
    "parity": lambda r: precision.parity(r, convergence.runs(r)),
    "gate": lambda r: engine_tables.gate_table(r, engines.timed(r)),
    "limitations": lambda r: precision.limitations(r, *both(r)),
    "method": lambda r: method.sentence(r, "Done."),
    "failures": summary.failures_table,
    "pass_time": quality.pass_time,
    "prediction": lambda r: summary.prediction_table(r.profile, timed_trials()),
    "trials": lambda r: summary.trials_table(timed_trials(), 3),
}
FIGURES = ("throughput", "over_fp32", "activity", "curves")


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


def test_a_ratio_is_over_the_trial_that_differs_in_nothing_but_precision() -> None:
    data = precision.ratios(case_of("a GPU"), timed_trials())
    assert set(data["precision"]) == {"TF32", "FP16", "BF16"} and set(data["engine"]) == {"eager", "graph"}
    assert "compile+graph" not in set(data["engine"]), "it has no FP32 twin"
    fp16 = data[(data["precision"] == "FP16") & (data["model"] == "VGG-16") & (data["engine"] == "graph")].iloc[0]
    assert fp16["value"] == pytest.approx(1.8) and fp16["n"] == 3 and fp16["low"] < 1.8 < fp16["high"]


def crosses_of(figure: Figure) -> int:
    """How many crosses a picture has."""
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(layout="constrained")
    figure.draw(canvas, LIGHT)
    lines = [line for axes in canvas.axes for line in axes.lines if line.get_marker() == "x"]
    return sum(len(line.get_xdata()) for line in lines)  # type: ignore[arg-type]


def test_where_fp32_failed_there_is_a_rate_and_no_ratio() -> None:
    results = case_of("one failed")
    frame = PARTS["table"](results).frame
    large = frame[(frame["px"] == 224) & (frame["engine"] == "eager")].set_index("precision")
    assert large.loc["FP32", "no result"] == "oom" and large.loc["FP32", "images/s"] == "–"
    assert large.loc["FP16", "over FP32"] is None and "[" in large.loc["FP16", "images/s"]
    figure = PARTS["throughput"](results)
    assert "Crosses have no result (out of memory: ResNet-50, 256, 224 px, FP32, eager)" in figure.caption
    assert crosses_of(figure) == 1
    assert "ResNet-50, 256, 224 px, FP32, eager gave no result" in said(PARTS["headline"](results))


def test_the_published_ratio_comes_from_the_papers_and_names_whose_it_is() -> None:
    (band,) = by_precision.published_ratios(PAPERS, STUDY)
    assert (band.over, band.under, band.low, band.high) == ("FP16", "FP32", 1.60, 2.07)
    caption = PARTS["over_fp32"](case_of("a GPU")).caption
    assert "Hatched: published for" in caption and "FP16 over FP32 1.60x to 2.07x" in caption
    assert load_profile("v100_sxm2").title in caption and "section IV-C" in caption
    bare = precision_figures.over_fp32(case_of("a GPU"), timed_trials(), [])
    assert "No paper printed such a ratio." in said(bare)


def test_parity_is_an_interval_of_the_difference_to_fp32_and_never_a_word_of_sameness() -> None:
    text = said(PARTS["headline"](case_of("a GPU")))
    assert "minus FP32's: TF32 0.00311 [" in text and "BF16 0.0311 [" in text
    assert "rules out only differences larger than it" in text
    frame = PARTS["parity"](case_of("a GPU")).frame.set_index("run")
    assert frame.loc["BF16", "loss minus FP32"].startswith("0.0311 [") and frame.loc["FP32", "loss minus FP32"] is None
    r = case_of("a GPU")
    for sentence in (
        precision.parity_sentence(r, convergence.runs(r)),
        said(PARTS["curves"](r)),
        said(PARTS["limitations"](r)),
    ):
        assert "the same" not in sentence and "equal" not in sentence
    assert "minus" not in said(PARTS["headline"](case_of("runs without FP32")))


def test_a_precision_that_the_device_lacks_is_a_row_with_its_reason() -> None:
    results = case_of("a CPU")
    frame = PARTS["table"](results).frame.set_index("precision")
    assert frame.loc["TF32", "no result"] == "unsupported"
    assert "FP16 gave no result (unsupported: FP16 is not for CPUs)" in said(PARTS["headline"](results))
    assert "not supported here" in PARTS["throughput"](results).caption
    page = PARTS["failures"](results)._repr_mimebundle_()["text/html"]
    assert "tf32" in page and "fp16" in page, "rows of a table of failures can be told apart"


def test_tensor_activity_stands_for_the_first_model_and_its_lack_is_said() -> None:
    figure = PARTS["activity"](case_of("a GPU"))
    assert set(figure.data) == {"trial", "Tensor-core activity, mean", "SM activity, mean"}
    fp32 = figure.data[figure.data["trial"].str.contains("FP32")]
    assert set(fp32["Tensor-core activity, mean"]) == {1.0} and len(figure.data) == 9
    without = PARTS["activity"](case_of("without telemetry"))
    assert isinstance(without, Text) and "these records hold no telemetry" in without.body
    cpu = PARTS["activity"](case_of("a CPU"))
    assert isinstance(cpu, Text) and cpu.body.startswith("Tensor-core activity is not readable here")


def test_captions_name_device_precision_batch_data_and_n() -> None:
    for part in ("throughput", "over_fp32", "curves", "parity"):
        caption = said(PARTS[part](case_of("a GPU")))
        for word in ("NVIDIA H200", "BF16", "channels last", "batch 256", "synthetic32", "n = 3", "95 %"):
            assert word in caption, (part, word)
    assert "eager in FP32, TF32, FP16 and BF16, channels last, sgd" in PARTS["throughput"](case_of("a GPU")).caption


def test_the_key_numbers_are_the_largest_gain_of_each_engine_and_the_parity_of_each_precision() -> None:
    r = case_of("a GPU")
    found = key_numbers.precision(r, *both(r))
    assert [what.split(",")[0] for _, what in found[:2]] == ["over FP32", "over FP32"]
    assert [what.split(" minus")[0] for _, what in found[2:]] == [
        f"final loss of {p}" for p in ("TF32", "FP16", "BF16")
    ]
    assert key_numbers.precision(case_of("no records"), [], []) == []
    assert key_numbers.precision(case_of("all failed"), *both(case_of("all failed"))) == []


# ---- the claim -------------------------------------------------------------------------------------------------------


def verdict_on(records: list[Record], hw: str = "h200") -> Finding:
    results = of_records(STUDY, records, hw=hw)
    seen = Evidence(hw, (hw,), frozenset({STUDY}), lambda name, study: results)
    (paper, found) = next((p, c) for p in PAPERS for c in p.claims if c.id == "dell_v100-fp16")
    return judge(paper, found, seen)


def only(records: list[Record], *precisions: str) -> list[Record]:
    return [record for record in records if record.trial["precision"] in precisions]


@pytest.mark.parametrize(
    ("records", "verdict"),
    [
        (timed_records(), YES),
        (timed_records(speed={"fp16": 0.5}), NO),
        (timed_records(passes=(1,)), OPEN),
        (timed_records(speed={"fp16": 1 / 1.8}), OPEN),
        (only(timed_records(), "fp32"), UNTESTED),
        (run_records(), UNTESTED),
    ],
)
def test_the_claim_looks_at_timed_eager_trials_in_fp16_and_fp32(records: list[Record], verdict: str) -> None:
    finding = verdict_on([*records, *run_records()])
    assert finding.verdict == verdict
    sides = [side.trial for judged in finding.tests for case in judged.cases for side in case.sides]
    assert all((trial.epochs, trial.engine, trial.model) == (0, "eager", "resnet50") for trial in sides)


def test_the_magnitude_is_judged_on_its_own_hardware_and_at_224_px_only() -> None:
    near, far = timed_records(), timed_records(speed={"fp16": 3.0})
    assert verdict_on(far).verdict == YES, "on other hardware only the direction counts"
    assert verdict_on(near, hw="v100_sxm2").verdict == YES
    finding = verdict_on(far, hw="v100_sxm2")
    assert finding.verdict == NO
    assert [case.verdict for case in finding.cases] == [YES, NO], "at 32 px nothing was published"
