"""Training on several ranks whose exchange of gradients or whose gate is not as it should be.

`in_buckets` sends gradients in our own buckets, whatever drives it: a CPU need not compile for it. There `size` 1
leaves the exchange out; of an update that is shared out, 2 keeps the new weights to itself and 3 takes nobody else's
gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from labkit import ranks
from labkit.data import DataSet
from labkit.engines import training
from labkit.engines.buckets import Buckets
from labkit.engines.precision import TOLERANCES
from labkit.trial import Trial
from labkit.workloads import Workload
from labkit.workloads.train import build


def apart(trial: Trial, data: DataSet) -> Workload:
    """Ranks that train beside each other: nobody averages their gradients."""
    training.overlapped = lambda model, _team, _precision: model  # type: ignore[attr-defined]
    return build(trial, data)


def rounded(trial: Trial, data: DataSet) -> Workload:
    """The second rank alone finds its steps beyond the gate's tolerances, and no rank's are wrong.

    The gate stands in a process of its own, which ends with the pass.
    """
    team = ranks.team()
    if team is not None and not team.leads:
        TOLERANCES[trial.precision] = TOLERANCES[trial.precision]._replace(change=-1.0)
    return build(trial, data)


class Nowhere:
    """A way that sends nothing."""

    def send(self, _bucket: object, _after: object) -> None:
        """Each rank keeps its own gradients."""

    def send_weights(self, _bucket: object, update: Callable[[], None]) -> None:
        """Each rank keeps its own weights."""
        update()

    def wait(self, number: int) -> None:
        """There is nothing to wait for."""

    def forget(self) -> None:
        """Nor to forget."""


class Apart(Buckets):
    """An exchange without one."""

    def __init__(self, *about: Any, **options: Any) -> None:
        super().__init__(*about, **options)
        self._way = Nowhere()  # type: ignore[assignment]


class Without(Buckets):
    """An exchange that leaves one of NCCL's operations out."""

    left_out: str

    def __init__(self, *about: Any, **options: Any) -> None:
        super().__init__(*about, **options)
        for name in ("send", "send_weights"):
            setattr(self._way, name, self._lacking(getattr(self._way, name)))

    def _lacking(self, step: Callable[..., None]) -> Callable[..., None]:
        def lacking(*about: Any) -> None:
            with patch(f"torch.distributed.{self.left_out}"):
                step(*about)

        return lacking


class Silent(Without):
    """Each rank keeps its share of the new weights to itself."""

    left_out = "all_gather_into_tensor"


class Selfish(Without):
    """Each rank updates its share by its own gradients."""

    left_out = "reduce_scatter_tensor"


_FAULTS = {1: Apart, 2: Silent, 3: Selfish}


def in_buckets(trial: Trial, data: DataSet) -> Workload:
    """Gradients go in our own buckets."""
    with (
        patch("labkit.engines.training.in_buckets", lambda _trial: True),
        patch("labkit.engines.training.Buckets", _FAULTS.get(trial.size, Buckets)),
    ):
        return build(trial, data)
