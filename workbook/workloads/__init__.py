"""Workloads: the steps of a trial, without clocks. A workload is a module with `build(trial, data) -> Workload`."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple

from labkit.data import DataSet
from labkit.errors import LabkitError
from labkit.models import Network, open_network
from workbook.records.scored import Scored
from workbook.storage import StoredSet
from workbook.trace import Held
from workbook.trials.own_module import source_hash_of_file
from workbook.trials.rules import Rule, check
from workbook.trials.today import TODAY, open_today
from workbook.trials.trial import NO_DATA, OF_NETWORKS, OWN, Trial, as_on_disk


class Scores(NamedTuple):
    """Result of a validation: mean loss (None if not finite), accuracies as fractions of 1, number of images."""

    loss: float | None
    top1: float
    top5: float
    images: int


class Workload:
    """One trial, ready to run its steps. Inherit from it, and give at least `facts`, `check` and `step`.

    A trial that needs an ability which the workload lacks (None) is unsupported.
    """

    facts: dict[str, Any]
    check: Callable[[], None]  # runs the first step, before any timing; raises GateError if its results are wrong
    step: Callable[[], object]  # queues one step on the device, without waiting for the device

    # Counts of a step, None if it has no such work. Launches of tiny operations measure the launch rate.
    images_per_step: int | None = None
    flop_per_step: int | None = None
    bytes_per_step: int | None = None
    launches_per_step: int | None = None

    build_phases: Mapping[str, float] = MappingProxyType({})  # seconds of phases before its construction, by name
    read_loss: Callable[[], float | None] | None = None  # mean loss since the last call, None if not finite
    wait: Callable[[], None] | None = None  # for all queued steps, if the framework has its own way to wait
    query: Callable[[], object] | None = None  # runs one step and waits for its answer, to measure latency
    held: Callable[[], Held] | None = None  # the tensors that a training holds in memory between steps
    # Which of the trial's validation images are classified correctly. The argument receives the progress.
    score: Callable[[Callable[[float], None]], Scored] | None = None
    # `trial.samples` images made after the last step, as facts of the record: base64 PNG by name.
    draw_samples: Callable[[], dict[str, Any]] | None = None

    epoch_images: int = 0
    learning_rate: Callable[[], float] | None = None  # of the last step
    evaluate: Callable[[], Scores] | None = None  # on all validation images, after each whole epoch of training
    stored: StoredSet | None = None  # the set of images in files, of which whole epochs can be read

    def preparations(self) -> Iterable[tuple[str, Callable[[], None]]]:
        """Yield names and calls in order, each timed by itself: reference steps for the gate, compilation, capture."""
        return ()

    def leave_out_gate(self) -> None:
        """Drop the gate's reference, before any preparation. `check` then takes the first step without comparing it."""

    def restart(self) -> None:
        """Go back to the initial weights and the first image. Open the readers anew after `close`."""

    def steps_of_epoch(self, epoch: int) -> int:
        """Return the steps from the end of the last epoch until all images have been seen `epoch + 1` times."""
        images, batch = self.epoch_images, self.images_per_step or 1
        return math.ceil((epoch + 1) * images / batch) - math.ceil(epoch * images / batch)

    def bring_cache(self) -> float | None:
        """Bring the page cache into the trial's state. Return the share of the set that it holds, None if unknown."""
        return None

    def waited_s(self) -> float:
        """Return the seconds in which all steps so far waited for their batches."""
        return 0.0

    def skipped(self) -> int:
        """Return the images that could not be read since the readers were opened."""
        return 0

    def close(self) -> None:
        """End the processes and threads of readers. Only `restart` makes the workload usable again."""


class _OfAnyClass(Workload):
    """A user's workload whose class does not inherit from Workload: what it lacks comes from there."""

    def __init__(self, own: Any) -> None:
        self._own = own

    def __getattribute__(self, name: str) -> Any:
        own = object.__getattribute__(self, "_own")
        lacks = name in vars(Workload) and not hasattr(own, name)
        return super().__getattribute__(name) if lacks else getattr(own, name)


# fmt: off
OF_ANY = (
    Rule("never", lambda t: t.data == NO_DATA and t.workload in OF_NETWORKS and t.workload not in OWN,
        "the workload {workload} needs images or documents: the trial's `data` names no data set"),
    Rule("version", lambda t: t.threads and t.framework not in ("torch", "keras-torch"),
        "this version sets the threads of PyTorch and OpenVINO, not of {framework}: leave threads"),
)
# fmt: on


def rules_of(trial: Trial) -> tuple[Rule, ...]:
    """Return the rules of support of a trial's workload. Rules on the content of its data are in its module too."""
    return OF_ANY if "." in trial.workload else (*OF_ANY, *_module_of(trial).RULES)


def _module_of(trial: Trial) -> ModuleType:
    if "." in trial.workload:
        return importlib.import_module(trial.workload)
    name = trial.workload if trial.framework == "torch" else "_train_in_keras"
    return importlib.import_module(f"{__name__}.{name}")


def build_workload(
    trial: Trial, data: DataSet | StoredSet | None, weights: Path | None = None, network: str | None = None
) -> Workload:
    """Build a trial's workload: a module of this package, or any importable module if the name has a dot.

    `weights` is the folder of trained weights, None for the one in the cache. `network` is the file or name of the
    network that the user brings with this command; no record names a file to load.

    Raise Unsupported if a rule refuses the trial, and LabkitError for a user's module whose text has changed since the
    measurement began.
    """
    check(rules_of(trial), trial)
    build: Callable[..., Workload] = _module_of(trial).build
    if "." in trial.workload:
        if trial.workload_source and trial != as_on_disk(trial):
            raise LabkitError(f"{trial.workload}, or a module that it imports, has changed meanwhile: measure again")
        workload = build(trial, data)
        return workload if isinstance(workload, Workload) else _OfAnyClass(workload)
    if trial.workload in OWN:
        return build(trial, data, brought(trial, network))
    return build(trial, data, weights) if trial.workload == "infer" else build(trial, data)


def brought(trial: Trial, name: str | None) -> Network:
    """Return the network of a trial: of NETWORK=, or of today. Raise LabkitError if it is another one than recorded."""
    network = open_today(trial.model) if trial.model in TODAY else open_network(name) if name else None
    source = source_hash_of_file(network.path) if network and network.path else ""
    if network is None or (network.name, source) != (trial.model, trial.workload_source):
        state = "has changed meanwhile" if network and network.name == trial.model else "is not the network of NETWORK="
        raise LabkitError(f"{trial.model} {state}: give NETWORK=, and measure again")
    return network
