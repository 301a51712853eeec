"""What stands beside what: trials alike in everything but the framework, and their images/s over native PyTorch's.

Alike are network, input, batch, precision and the class of engine: operators one by one (`eager`), or a step that was
traced and compiled. The workbook's own engines for PyTorch have another update or loader: they stand beside, in no
class.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from labkit.analysis import engines
from labkit.analysis.format import listing
from labkit.analysis.speed import input_words, title
from labkit.recipes import engine_class, engine_name
from labkit.registry import FRAMEWORK_TITLES
from labkit.results.study_records import StudyRecords as Results
from labkit.statistics import Interval
from labkit.trial import FRAMEWORKS, PRECISIONS, Trial

NATIVE = "torch"
ENGINE_WORDS = {"xla": "XLA"}
_ENGINES = ("eager", "fused", "compile", "function", "xla", "graph", "compile+graph")


class Setting(NamedTuple):
    """What every framework is given alike: a network, the edge of its input in pixels, a batch."""

    model: str
    image_px: int
    batch: int

    @classmethod
    def of(cls, trial: Trial) -> Setting:
        """The setting that a trial belongs to."""
        return cls(trial.model, trial.image_px, trial.batch)

    @property
    def network(self) -> str:
        """`ResNet-50, 32 px`."""
        about = Trial(model=self.model, image_px=self.image_px)
        return f"{title(about)}, {input_words([about])}"

    @property
    def name(self) -> str:
        """`ResNet-50, 32 px, batch 256`."""
        return f"{self.network}, batch {self.batch:,}"


class Cell(NamedTuple):
    """A setting in one precision by one class of engine: in it nothing but frameworks differ."""

    setting: Setting
    kind: str
    precision: str

    @classmethod
    def of(cls, trial: Trial) -> Cell:
        """The cell that a trial belongs to."""
        return cls(Setting.of(trial), engine_class(trial.engine), trial.precision)

    @property
    def how(self) -> str:
        """`eager in FP32`."""
        return f"{self.kind} in {self.precision.upper()}"

    @property
    def name(self) -> str:
        """`ResNet-50, 32 px, batch 256, eager in FP32`."""
        return f"{self.setting.name}, {self.how}"


def is_own(trial: Trial) -> bool:
    """Whether a trial is PyTorch by one of the workbook's own engines or updates."""
    return trial.framework == NATIVE and trial.optimizer != "sgd"


def is_mastered(trial: Trial) -> bool:
    """Whether a trial has BF16 weights beside their FP32 masters: only the workbook's own engines do."""
    return is_own(trial) and trial.optimizer == "sgd_master"


def framework(trial: Trial) -> str:
    """`Keras on JAX`."""
    return FRAMEWORK_TITLES.get(trial.framework, trial.framework)


def engine(trial: Trial) -> str:
    """How its step is run: `XLA`; of the workbook's own with a mark."""
    name = engine_name(trial) if is_own(trial) else trial.engine
    return f"{name} (tuned)" if is_own(trial) else ENGINE_WORDS.get(name, name)


def how(trial: Trial) -> str:
    """`Keras on TensorFlow, XLA`."""
    return f"{framework(trial)}, {engine(trial)}"


def side_by_side(results: Results) -> list[Trial]:
    """The timed trainings on one device that several frameworks were asked for, in order.

    By setting, framework, engine and precision. What one framework alone was asked for stands in another table.
    """
    timed = [trial for trial in results.trials(workload="train", epochs=0) if trial.devices == 1]
    asked: dict[Setting, set[str]] = {}
    for trial in timed:
        asked.setdefault(Setting.of(trial), set()).add(trial.framework)
    found = [trial for trial in timed if len(asked[Setting.of(trial)]) > 1]
    order = list(dict.fromkeys(Setting.of(trial) for trial in found))

    def place(trial: Trial) -> tuple[int, int, bool, int, int]:
        by_engine = _ENGINES.index(engine_name(trial) if is_own(trial) else trial.engine)
        by_framework = FRAMEWORKS.index(trial.framework)
        setting = order.index(Setting.of(trial))
        return setting, by_framework, is_own(trial), by_engine, PRECISIONS.index(trial.precision)

    return sorted(found, key=place)


def cells(trials: Sequence[Trial]) -> dict[Cell, list[Trial]]:
    """The trials by what they are alike in, eager before compiled, FP32 first; the workbook's own are in none."""
    found: dict[Cell, list[Trial]] = {}
    for trial in trials:
        if not is_own(trial):
            found.setdefault(Cell.of(trial), []).append(trial)
    settings = list(dict.fromkeys(cell.setting for cell in found))

    def place(cell: Cell) -> tuple[int, bool, int]:
        return settings.index(cell.setting), cell.kind != "eager", PRECISIONS.index(cell.precision)

    return {cell: found[cell] for cell in sorted(found, key=place)}


def contested(results: Results, trials: Sequence[Trial]) -> dict[Cell, list[Trial]]:
    """The cells in which at least two frameworks have a result: of each framework its fastest trial, fastest first."""
    found = {}
    for cell, alike in cells(trials).items():
        best: dict[str, tuple[float, Trial]] = {}
        for trial in alike:
            rate = results.interval(trial, "images_per_s")
            if rate and rate.point > best.get(trial.framework, (0.0, trial))[0]:
                best[trial.framework] = (rate.point, trial)
        if len(best) > 1:
            found[cell] = [trial for _, trial in sorted(best.values(), key=lambda pair: -pair[0])]
    return found


def native_of(results: Results, trial: Trial) -> Trial | None:
    """Native PyTorch's trial of the same cell; None where there is none."""
    alike = results.trials(framework=NATIVE, workload="train", epochs=0, devices=trial.devices)
    return next((other for other in alike if Cell.of(other) == Cell.of(trial) and not is_own(other)), None)


def over_native(results: Results, trial: Trial) -> Interval | None:
    """Images/s over native PyTorch's, formed within each pass first; None of PyTorch itself, and without both."""
    if trial.framework == NATIVE:
        return None
    return engines.ratio(results, trial, native_of(results, trial), "images_per_s")


def apart(results: Results, ranked: Sequence[Trial]) -> Interval | None:
    """The fastest framework's images/s over the slowest's, within passes; None where they share no pass."""
    return engines.ratio(results, ranked[0], ranked[-1], "images_per_s")


class Gain(NamedTuple):
    """What an engine buys within one framework: a compiled trial over the eager one that is alike otherwise."""

    over: Trial
    ratio: Interval


def gains(results: Results, trials: Sequence[Trial]) -> list[Gain]:
    """Compiled over eager in each framework, network and precision; the workbook's own too, over the same precision."""
    found = []
    for trial in trials:
        if engine_class(trial.engine) == "eager":
            continue
        eager = [
            other
            for other in trials
            if other.engine == "eager"
            and not is_own(other)
            and (other.framework, other.precision, Setting.of(other))
            == (trial.framework, trial.precision, Setting.of(trial))
        ]
        ratio = engines.ratio(results, trial, eager[0], "images_per_s") if eager else None
        if ratio:
            found.append(Gain(trial, ratio))
    return found


def rows(results: Results, trials: Sequence[Trial], metric: str) -> pd.DataFrame:
    """One row a trial: a metric in SI units with its interval, or why there is none."""
    found = [
        {
            "setting": Setting.of(trial).name,
            "how": how(trial),
            "framework": trial.framework,
            "precision": trial.precision.upper(),
            **engines.ends(results.interval(trial, metric)),
            "failed": engines.failure(results, trial),
        }
        for trial in trials
    ]
    return pd.DataFrame(found, columns=["setting", "how", "framework", "precision", *ENDS, "failed"])


ENDS = ("value", "low", "high", "n")


def conditions(results: Results, trials: Sequence[Trial]) -> str:
    """What a caption must name: precisions, optimiser, data, device, host, scale, passes."""
    if not trials:
        return results.describe()
    precisions = sorted({trial.precision for trial in trials}, key=PRECISIONS.index)
    batches = listing([f"{batch:,}" for batch in sorted({trial.batch for trial in trials})])
    data = listing(sorted({trial.data for trial in trials}))
    own = " (tuned: the workbook's own update)" if any(map(is_own, trials)) else ""
    return (
        f"{listing([name.upper() for name in precisions])}, SGD{own}; {input_words(trials)}, batch {batches}, "
        f"on {data}; {results.describe()}"
    )
