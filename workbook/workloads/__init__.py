"""Workloads: the steps of a trial, without clocks. A workload is a module with `build(trial, data) -> Workload`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from labkit.data import DataSet
from labkit.errors import LabkitError, one_of
from workbook.records.scored import Scored
from workbook.storage import StoredSet
from workbook.trace import Held
from workbook.trials.rules import Rule, check
from workbook.trials.trial import Trial, as_on_disk

OF_USER = "A module of yours has a dot in its name: `folder/module.py` is workload='folder.module'."
FROM_FILES = ("load", "train")  # the workloads whose images a reader may deliver


class Workload(Protocol):
    """One trial, ready to run its steps. Counts are per step, or None if a step has no such work."""

    images_per_step: int | None = None
    flop_per_step: int | None = None
    bytes_per_step: int | None = None
    facts: dict[str, Any]
    # Returns the mean loss of the steps since the last call (None if not finite). None without a loss.
    read_loss: Callable[[], float | None] | None = None

    def check(self) -> None:
        """Run the first step and check its results, before any timing. Raise GateError for a wrong result."""

    def step(self) -> object:
        """Queue one step on the device, without waiting for the device."""


@runtime_checkable
class Prepared(Workload, Protocol):
    """A workload with preparations before its first step, each of which the worker process times."""

    def preparations(self) -> Iterable[tuple[str, Callable[[], None]]]:
        """Yield names and calls in order: reference steps for the gate, compilation, capture."""


@runtime_checkable
class HasGate(Workload, Protocol):
    """A workload whose `check` compares its results with a reference, which takes time."""

    def leave_out_gate(self) -> None:
        """Drop the reference, before any preparation. `check` then takes the first step without comparing it."""


@runtime_checkable
class CountsLaunches(Workload, Protocol):
    """A workload whose steps consist of launches of tiny operations, so that it measures the launch rate."""

    launches_per_step: int


@runtime_checkable
class AwaitedByItself(Workload, Protocol):
    """A workload whose framework has its own way to wait for the device. Its blocks end with `wait`."""

    def wait(self) -> None:
        """Wait until all queued steps are done."""


@runtime_checkable
class AnswersQueries(Workload, Protocol):
    """A workload whose steps answer queries, so that latency can be measured."""

    def query(self) -> object:
        """Run one step and wait for its answer."""


@runtime_checkable
class BuildsInPhases(Workload, Protocol):
    """A workload with phases before its construction. `build_phases` holds their seconds by name."""

    build_phases: dict[str, float]


@runtime_checkable
class ScoresImages(Workload, Protocol):
    """A workload whose answers can be scored as right or wrong."""

    def score(self, on_share: Callable[[float], None]) -> Scored:
        """Return which of the trial's validation images are classified correctly. `on_share` receives the progress."""


@runtime_checkable
class HoldsReaders(Workload, Protocol):
    """A workload that may have started processes and threads, which end with `close`."""

    def close(self) -> None:
        """End them. The workload cannot be used afterwards, unless it has a `restart`."""


@runtime_checkable
class HoldsTensors(Workload, Protocol):
    """A training that can list its tensors in memory between steps."""

    def held(self) -> Held:
        """Return the tensors that the training holds now."""


@runtime_checkable
class DrawsSamples(Workload, Protocol):
    """A workload whose networks generate images."""

    def draw_samples(self) -> dict[str, Any]:
        """Return `trial.samples` images made after the last step, as facts of the record: base64 PNG by name."""


class Scores(NamedTuple):
    """Result of a validation: mean loss (None if not finite), accuracies as fractions of 1, number of images."""

    loss: float | None
    top1: float
    top5: float
    images: int


@runtime_checkable
class TrainsEpochs(Workload, Protocol):
    """A workload that can train whole epochs from the initial weights, with a validation after each."""

    def restart(self) -> None:
        """Go back to the initial weights and the first image, which undoes the gate's steps."""

    def steps_of_epoch(self, epoch: int) -> int:
        """Return the steps from the end of the last epoch until all images have been seen `epoch + 1` times."""

    def learning_rate(self) -> float:
        """Return the learning rate of the last step."""

    def evaluate(self) -> Scores:
        """Score all validation images."""


@runtime_checkable
class ReadsFiles(HoldsReaders, Protocol):
    """A workload whose images lie in files, so that whole epochs can be read from them.

    `waited_s` are the seconds that all steps so far have waited for their batches, and `skipped` the images that could
    not be read.
    """

    stored: StoredSet
    waited_s: float
    skipped: int

    def bring_cache(self) -> float | None:
        """Bring the page cache into the trial's state. Return the share of the set that it holds, None if unknown."""

    def restart(self) -> None:
        """Open its readers anew after `close`, which forgets the batches that were read ahead."""

    def steps_of_epoch(self, epoch: int) -> int:
        """Return the steps from the end of the last epoch until all images have been seen `epoch + 1` times."""


# fmt: off
BUILDS = (
    Rule("version", lambda t: t.form != "embedded" and (t.framework != "torch" or t.workload not in FROM_FILES),
        f"readers of files feed the workloads {' and '.join(FROM_FILES)} in PyTorch, "
        "not {workload} in {framework}"),
    Rule("version", lambda t: t.framework != "torch" and t.workload != "train",
        "the {workload} workload needs PyTorch; {framework} has only the train workload"),
)
# fmt: on


def build_workload(trial: Trial, data: DataSet | StoredSet | None, weights: Path | None = None) -> Workload:
    """Build a trial's workload: a module of this package, or any importable module if the name has a dot.

    `weights` is the folder of trained weights, None for the one in the cache.

    Raise LabkitError for a user's module whose text has changed since the measurement began.
    """
    build: Callable[..., Workload]
    if "." in trial.workload:
        build = importlib.import_module(trial.workload).build
        if trial.workload_source and trial != as_on_disk(trial):
            raise LabkitError(f"{trial.workload}, or a module that it imports, has changed meanwhile: measure again")
        return build(trial, data)
    check(BUILDS, trial)
    if trial.framework != "torch":
        build = importlib.import_module(f"{__name__}._train_in_keras").build
    else:
        names = [module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")]
        one_of("workload", trial.workload, names, hint=OF_USER)
        build = importlib.import_module(f"{__name__}.{trial.workload}").build
        if trial.workload == "infer":
            build = partial(build, weights=weights)
    return build(trial, data)
