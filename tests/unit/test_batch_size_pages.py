"""The page of the batch size says what the records say, whatever is missing from them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from labkit.analysis import batch_size, batch_size_figures, convergence, engines, key_numbers, quality, summary
from labkit.analysis.figure import DARK, LIGHT, Figure
from labkit.analysis.results import Results
from labkit.analysis.table import Table, Text
from labkit.analysis.verdicts.evidence import Evidence
from labkit.analysis.verdicts.judge import judge
from labkit.analysis.verdicts.verdict import VERDICTS, Finding
from labkit.papers import load_papers
from labkit.profile import load_profile
from labkit.records import Record
from labkit.recipes import CAPTURED, COMPILED, COMPILED_ON_CPU
from labkit.trial import Trial
from tests.unit.made_records import NOISE, PASSES, blocks, failed, of_records, run

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
    plain, tuned = {"device": "cpu"}, {"device": "cpu", **COMPILED_ON_CPU}
    timed = [Trial(batch=batch, **recipe) for recipe in (plain, tuned) for batch in (16, 64)]
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
    "cost": lambda r: engines.cost_table(r, engines.timed(r)),
    "gate": lambda r: engines.gate_table(r, engines.timed(r)),
    "limitations": lambda r: batch_size.limitations(r, *both(r)),
    "method": lambda r: summary.method_sentence(r, "Done."),
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
