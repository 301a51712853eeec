"""Training on several ranks with a faulty gradient exchange or a faulty gate.

`in_buckets` sends gradients in labkit's own buckets with any engine, so that a CPU need not compile. `size` 1 exchanges
nothing. In an update shared out over ranks, `size` 2 skips the gather of new weights, and 3 the sum of gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from labkit.data import DataSet
from workbook import ranks
from workbook.engines import training
from workbook.engines.exchange.buckets import Buckets
from workbook.engines.precision import TOLERANCES
from workbook.trials.trial import Trial
from workbook.workloads import Workload
from workbook.workloads.train import build


def apart(trial: Trial, data: DataSet) -> Workload:
    """Return a training workload whose ranks do not average their gradients."""
    training.overlapped = lambda model, _team, _precision: model  # type: ignore[attr-defined]
    return build(trial, data)


def rounded(trial: Trial, data: DataSet) -> Workload:
    """Return a correct training whose gate exceeds its tolerances on every rank but the first.

    The changed tolerances affect only this worker process, which ends with the pass.
    """
    team = ranks.team()
    if team is not None and not team.leads:
        TOLERANCES[trial.precision] = TOLERANCES[trial.precision]._replace(change=-1.0)
    return build(trial, data)


class Nowhere:
    """A transport that sends nothing."""

    def send(self, _bucket: object, _after: object) -> None:
        """Send nothing: each rank keeps its own gradients."""

    def send_weights(self, _bucket: object, update: Callable[[], None]) -> None:
        """Update the weights without sending them."""
        update()

    def wait(self, number: int) -> None:
        """Return at once."""

    def forget(self) -> None:
        """Do nothing."""


class Apart(Buckets):
    """Buckets that exchange nothing."""

    def __init__(self, *about: Any, **options: Any) -> None:
        super().__init__(*about, **options)
        self._way = Nowhere()  # type: ignore[assignment]


class Without(Buckets):
    """Buckets that skip the collective operation named by `left_out`."""

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
    """Buckets that do not gather the new weights: each rank keeps its share."""

    left_out = "all_gather_into_tensor"


class Selfish(Without):
    """Buckets that do not sum gradients: each rank updates its share with its own."""

    left_out = "reduce_scatter_tensor"


_FAULTS = {1: Apart, 2: Silent, 3: Selfish}


def in_buckets(trial: Trial, data: DataSet) -> Workload:
    """Return a training that sends gradients in labkit's own buckets, with the fault that `size` selects."""
    with (
        patch("workbook.engines.training.in_buckets", lambda _trial: True),
        patch("workbook.engines.training.Buckets", _FAULTS.get(trial.size, Buckets)),
    ):
        return build(trial, data)
