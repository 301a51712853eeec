"""Training whose gradients go in our own buckets, whatever drives it: a CPU need not compile for it.

`size` 1 leaves the exchange out; of an update that is shared out, 2 keeps the new weights to itself and 3 takes nobody
else's gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from labkit.data import DataSet
from labkit.engines.buckets import Buckets
from labkit.trial import Trial
from labkit.workloads import Workload
from labkit.workloads.train import build as build_training


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


def build(trial: Trial, data: DataSet) -> Workload:
    """The training workload."""
    with (
        patch("labkit.engines.training.in_buckets", lambda _trial: True),
        patch("labkit.engines.training.Buckets", _FAULTS.get(trial.size, Buckets)),
    ):
        return build_training(trial, data)
