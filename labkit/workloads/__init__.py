"""What a trial does: pure steps, no clocks. A workload is a module with `build(trial, data) -> Workload`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol, runtime_checkable

from labkit.data import DataSet
from labkit.errors import Unsupported, unknown
from labkit.measure import Held
from labkit.records.scored import Scored
from labkit.trial import Trial


class Workload(Protocol):
    """One trial, ready to be stepped. Counts are per step; None where a step has no such work."""

    images_per_step: int | None = None
    flop_per_step: int | None = None
    bytes_per_step: int | None = None
    facts: dict[str, Any]
    # Mean loss of the steps since the last call (None when it was not finite), for a workload that has a loss.
    read_loss: Callable[[], float | None] | None = None

    def check(self) -> None:
        """The correctness gate, before any timing; GateError when a result is wrong. Runs the first step."""

    def step(self) -> object:
        """One step, queued on the device; does not wait for it."""


@runtime_checkable
class Prepared(Workload, Protocol):
    """A workload that does more before its first step: the worker times each part on its own."""

    def preparations(self) -> Iterable[tuple[str, Callable[[], None]]]:
        """Names and calls, in order: what the engine is compared with, compiling, capturing."""


@runtime_checkable
class AwaitedByItself(Workload, Protocol):
    """A workload whose framework waits in its own way: its blocks end with `wait`."""

    def wait(self) -> None:
        """Return when the steps that were queued are done."""


@runtime_checkable
class AnswersQueries(Workload, Protocol):
    """A workload whose steps have an answer that somebody may wait for."""

    def query(self) -> object:
        """One step; returns when its answer is there."""


@runtime_checkable
class BuildsInPhases(Workload, Protocol):
    """A workload that needs something else before it is built: seconds of that, by name."""

    build_phases: dict[str, float]


@runtime_checkable
class ScoresImages(Workload, Protocol):
    """A workload whose answers are right or wrong."""

    def score(self, on_share: Callable[[float], None]) -> Scored:
        """Which of the trial's validation images are answered rightly; `on_share` is told how far it is."""


@runtime_checkable
class HoldsTensors(Workload, Protocol):
    """A training that can say what lies in memory between its steps."""

    def held(self) -> Held:
        """The tensors now."""


@runtime_checkable
class DrawsSamples(Workload, Protocol):
    """A workload whose networks make images."""

    def draw_samples(self) -> dict[str, Any]:
        """As many as the trial asks for, made after its last step, as facts of its record: PNG in base64 by name."""


class Scores(NamedTuple):
    """A validation: mean loss (None when it was not finite), accuracies as fractions of 1, how many images."""

    loss: float | None
    top1: float
    top5: float
    images: int


@runtime_checkable
class TrainsEpochs(Workload, Protocol):
    """A workload that can train whole epochs from its beginning, with a validation after each."""

    def restart(self) -> None:
        """Back to the initial weights and the first image: the gate's steps are undone."""

    def steps_of_epoch(self, epoch: int) -> int:
        """Steps until the training images have been seen `epoch + 1` times, from where the last epoch ended."""

    def learning_rate(self) -> float:
        """The learning rate of the step before."""

    def evaluate(self) -> Scores:
        """Score all validation images."""


def build_workload(trial: Trial, data: DataSet | None) -> Workload:
    """Build the workload a trial names: a module of this room, or any importable one when the name has a dot."""
    build: Callable[[Trial, DataSet | None], Workload]
    if "." in trial.workload:
        build = importlib.import_module(trial.workload).build
    elif trial.framework != "torch" and trial.workload != "train":
        raise Unsupported(f"the {trial.workload} workload is PyTorch's; under {trial.framework} networks are trained")
    elif trial.framework != "torch":
        build = importlib.import_module(f"{__name__}._train_in_keras").build
    else:
        names = [module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")]
        if trial.workload not in names:
            raise unknown("workload", trial.workload, names)
        build = importlib.import_module(f"{__name__}.{trial.workload}").build
    return build(trial, data)
