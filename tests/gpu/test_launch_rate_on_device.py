"""Launch rates of a real NVIDIA GPU: the ceiling, bursts in a short pass, and block times beside bursts."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import pytest

from labkit.data import open_data
from labkit.timing import CudaClock, time_blocks
from labkit.timing.blocks import Burst
from workbook.hardware.profile import Timing
from workbook.runner.execution import BURST, burst_of, run
from workbook.runner.preparing import Data
from workbook.runner.protocol import Events, Pass
from workbook.trials.trial import NO_DATA, Trial
from workbook.workloads import build_workload

pytestmark = pytest.mark.gpu

TIMING = Timing(warmup_s=0.3, timed_s=0.8, block_s=0.1, limit_s=120)
CEILING = Trial(workload="launch_rate", size=BURST, data=NO_DATA)


class Quiet(Events):
    """A channel to nobody."""

    def __init__(self) -> None:
        """Leave stdout to the test."""

    def send(self, **event: Any) -> None:
        """Drop the event."""


def measured(trial: Trial, *, short: bool) -> dict[str, Any]:
    """Return the result of a trial in this process."""
    outcome = run(trial, Pass(number=4, timing=TIMING, short=short), Data(), Quiet())
    assert outcome["status"] == "ok", outcome["reason"]
    return outcome["result"]  # type: ignore[no-any-return]


def test_the_ceiling_has_a_positive_launch_rate() -> None:
    result = measured(CEILING, short=False)
    rate = result["launches_per_step"] * result["steps_per_block"] * len(result["host_s"]) / sum(result["host_s"])
    assert 1e3 < rate < 1e8
    assert result["launches_per_s"] == []


def test_a_short_pass_of_an_eager_trial_records_bursts() -> None:
    images = open_data("digits")
    trial = Trial(model="resnet18", batch=32, classes=10, data=images.name, data_checksum=images.checksum)
    eager = measured(trial, short=True)
    assert len(eager["launches_per_s"]) == len(eager["host_s"]) + 1
    assert all(1e3 < rate < 1e8 for rate in eager["launches_per_s"])


def test_bursts_do_not_change_the_times_of_blocks() -> None:
    """A matrix product is as steady as a captured step: the device alone decides its time."""
    clock = CudaClock()
    product = build_workload(Trial(workload="matmul", size=4096, data=NO_DATA), None)
    product.check()

    bursts: list[Burst | None] = [burst_of(Trial(), clock), None]
    runs = [[time_blocks(product.step, clock, TIMING, burst=burst).step_s for burst in bursts] for _ in range(3)]
    beside, alone = (fmean(times) for times in zip(*runs, strict=True))
    assert beside == pytest.approx(alone, rel=0.05)
