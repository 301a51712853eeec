"""The page of precision says what the records say, whatever is missing from them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from labkit.analysis import (
    convergence,
    engines,
    key_numbers,
    precision,
    precision_figures,
    quality,
    summary,
    utilisation,
)
from labkit.analysis.figure import DARK, LIGHT, Figure
from labkit.analysis.results import Results
from labkit.analysis.table import Table, Text
from labkit.analysis.verdicts.evidence import Evidence
from labkit.analysis.verdicts.judge import judge
from labkit.analysis.verdicts.verdict import VERDICTS, Finding
from labkit.papers import load_papers
from labkit.recipes import COMPILED
from labkit.records import Record
from labkit.trial import Trial
from tests.unit.made_records import NOISE, PASSES, blocks, busy, failed, of_records, run

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
    "curves": lambda r: convergence.curves(r, precision.in_order(convergence.runs(r))),
    "parity": lambda r: precision.parity(r, convergence.runs(r)),
    "gate": lambda r: engines.gate_table(r, engines.timed(r)),
    "limitations": lambda r: precision.limitations(r, *both(r)),
    "method": lambda r: summary.method_sentence(r, "Done."),
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
