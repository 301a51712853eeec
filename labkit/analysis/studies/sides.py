"""The two sides, CPU and GPU: which trials answer the same question, the plain and the best of each, their ratios."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pandas as pd

from labkit.analysis import engines
from labkit.analysis.draw import ENGINES
from labkit.analysis.speed import OF_MODELS, threads_word, title
from labkit.papers import load_papers
from labkit.profile import load_profile
from labkit.recipes import engine_name, is_plain
from labkit.results.study_records import StudyRecords as Results
from labkit.statistics import Interval
from labkit.trial import PRECISIONS, Trial

SIDES = ("cpu", "cuda")


class Setting(NamedTuple):
    """What is asked of both sides alike: a workload, a model, the edge of its input in pixels, a batch."""

    workload: str
    model: str
    image_px: int
    batch: int

    @classmethod
    def of(cls, trial: Trial) -> Setting:
        """The setting that a trial belongs to."""
        return cls(trial.workload, trial.model, trial.image_px, trial.batch)

    @property
    def name(self) -> str:
        """`GoogLeNet training, 224 px, batch 32`."""
        model = title(Trial(model=self.model))
        return f"{model} {OF_MODELS[self.workload]}, {self.image_px} px, batch {self.batch:,}"


def networks(results: Results) -> list[Trial]:
    """The trials of networks in order: training before inference, CPU before GPU, plain before tuned."""
    found = [trial for workload in OF_MODELS for trial in results.trials(workload=workload, epochs=0)]
    order = list(dict.fromkeys(Setting.of(trial) for trial in found))

    def place(trial: Trial) -> tuple[int, int, int, int, int]:
        engine, precision = list(ENGINES).index(engine_name(trial)), PRECISIONS.index(trial.precision)
        return order.index(Setting.of(trial)), SIDES.index(trial.device), engine, precision, trial.threads

    return sorted(found, key=place)


def settings(trials: Sequence[Trial]) -> list[Setting]:
    """What was asked of both sides, in order."""
    return list(dict.fromkeys(Setting.of(trial) for trial in trials))


def plain_on(trials: Sequence[Trial], setting: Setting, device: str) -> Trial | None:
    """The papers' loop of a setting on a device, with the library's own number of threads."""
    return next((t for t in at(trials, setting, device) if is_plain(t) and not t.threads), None)


def best_on(results: Results, trials: Sequence[Trial], setting: Setting, device: str) -> Trial | None:
    """The trial with the most images/s of a setting on a device.

    None where nothing but the plain loop gave a result: what is the best of one is no best.
    """
    known = [(rate.point, t) for t in at(trials, setting, device) if (rate := results.interval(t, "images_per_s"))]
    plain = plain_on(trials, setting, device)
    return max(known, key=lambda pair: pair[0])[1] if any(trial != plain for _, trial in known) else None


def at(trials: Sequence[Trial], setting: Setting, device: str) -> list[Trial]:
    """The trials of a setting on a device."""
    return [trial for trial in trials if Setting.of(trial) == setting and trial.device == device]


def how(trial: Trial) -> str:
    """How a trial ran: `openvino, BF16, 8 threads`."""
    asked = [threads_word(trial.threads)] if trial.threads else []
    return ", ".join([engine_name(trial), trial.precision.upper(), *asked])


class Compared(NamedTuple):
    """GPU over CPU in images/s, within passes: plain over plain, best over best; None where a side is missing."""

    setting: Setting
    plain: Interval | None
    best: Interval | None


def compared(results: Results, trials: Sequence[Trial]) -> list[Compared]:
    """Each setting's two ratios."""
    found = []
    for setting in settings(trials):
        plain = [plain_on(trials, setting, device) for device in SIDES]
        best = [best_on(results, trials, setting, device) for device in SIDES]
        found.append(Compared(setting, _over(results, *plain), _over(results, *best)))
    return found


def _over(results: Results, cpu: Trial | None, gpu: Trial | None) -> Interval | None:
    return engines.ratio(results, gpu, cpu, "images_per_s") if gpu and cpu else None


class Printed(NamedTuple):
    """A published ratio of GPU over CPU: its value, which trials it is of, and what printed it."""

    value: float
    select: dict[str, Any]
    of: str

    def is_of(self, setting: Setting) -> bool:
        """Whether it is of that model and input."""
        return all(getattr(setting, name, value) == value for name, value in self.select.items())


def published(study: str) -> list[Printed]:
    """The ratios of one GPU over a CPU that papers print for a study."""
    found = []
    for paper in load_papers():
        for claim in paper.claims:
            for test in claim.tests if study in claim.studies else ():
                one = test.over.get("device") == "cuda" and test.over.get("devices", 1) == 1
                for magnitude in test.published if one and test.shape == "ratio" else ():
                    assert not isinstance(magnitude.value, tuple), "a range has no single line"
                    chosen = {k: v for k, v in {**test.select, **magnitude.select}.items() if not isinstance(v, list)}
                    hardware = load_profile(magnitude.hardware[0]).title
                    found.append(Printed(magnitude.value, chosen, f"{hardware}, {paper.name} paper"))
    return found


def swept(trials: Sequence[Trial]) -> list[list[Trial]]:
    """The sweeps of threads: trials that differ in nothing else, ascending; of two numbers of threads and more."""
    found: dict[Trial, list[Trial]] = {}
    for trial in sorted((t for t in trials if t.threads), key=lambda t: t.threads):
        found.setdefault(replace(trial, threads=0), []).append(trial)
    return [sweep for sweep in found.values() if len(sweep) > 1]


def thread_scaling(results: Results, trials: Sequence[Trial]) -> pd.DataFrame:
    """One row a number of threads: images/s, speed-up over the fewest threads (within passes), parallel efficiency.

    Efficiency is the speed-up over what so many threads more would give at most: 1 is linear.
    """
    rows = []
    for sweep in swept(trials):
        first = sweep[0]
        for trial in sweep:
            rate, gain = results.interval(trial, "images_per_s"), engines.ratio(results, trial, first, "images_per_s")
            share = first.threads / trial.threads
            rows.append(
                {
                    "what": f"{Setting.of(trial).name}, {how(replace(trial, threads=0))}",
                    "engine": engine_name(trial),
                    "threads": trial.threads,
                    **engines.ends(rate),
                    "speed-up": gain.point if gain else None,
                    "efficiency": gain.point * share if gain else None,
                    "efficiency low": gain.low * share if gain and gain.low is not None else None,
                    "efficiency high": gain.high * share if gain and gain.high is not None else None,
                    "failed": engines.failure(results, trial),
                }
            )
    return pd.DataFrame(rows)
