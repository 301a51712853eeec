"""Times a step: warm-up to a steady state, then blocks of steps, all of which are kept."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from labkit.card import Card, number_text, seconds_text
from labkit.devices import choose_device
from labkit.errors import UserError, check_above, check_whole
from labkit.timing import Blocks, Clock, CudaClock, HostClock, Timing, time_blocks
from labkit.timing.blocks import MIN_BLOCKS

if TYPE_CHECKING:
    import torch

NOISY = 0.05  # share of the median above which the blocks' interquartile range, or a change of level, gives a warning
LEVELS, FEWEST_OF_LEVEL = 4, 3  # parts of the timing whose medians are compared, with blocks enough to hide a stall
UNSTEADY = "the warm-up did not become steady"


def doubts(blocks: Blocks) -> list[str]:
    """Return the reasons to doubt the times of blocks: an unsteady warm-up, uneven blocks, two levels of time.

    It is empty without any. A level that a minority of the blocks has is outside the interquartile range.
    """
    first, median, third = np.percentile(blocks.host_s, (25, 50, 75))
    doubted = [] if blocks.steady else [UNSTEADY]
    if (spread := (third - first) / median) > NOISY:
        doubted.append(f"blocks vary by {spread:.0%} (interquartile range)")
    elif len(blocks.host_s) >= LEVELS * FEWEST_OF_LEVEL:
        levels = [np.median(part) for part in np.array_split(blocks.host_s, LEVELS)]
        if (change := (max(levels) - min(levels)) / min(levels)) > NOISY:
            doubted.append(f"the time of a step changed by {change:.0%} during the timing")
    return doubted


@dataclass(frozen=True, repr=False)
class StepTiming(Card):
    """Times of a step, in seconds. `raw` holds every block as timed; every property is derived from `raw`."""

    raw: Blocks

    @property
    def blocks(self) -> pd.DataFrame:
        """A row per block: `block`, `start_s` after the first block's, `step_s`, `device_step_s` (NaN without CUDA)."""
        device_s = self.raw.device_s or [float("nan")] * len(self.raw.host_s)
        table = pd.DataFrame({"start_s": self.raw.at_s, "step_s": self.raw.host_s, "device_step_s": device_s})
        table[["step_s", "device_step_s"]] /= self.raw.steps_per_block
        return table.rename_axis("block").reset_index()

    @property
    def median_s(self) -> float:
        """The median over the blocks of the time per step."""
        return float(np.median(self.raw.host_s)) / self.raw.steps_per_block

    @property
    def quartiles_s(self) -> tuple[float, float]:
        """The first and the third quartile over the blocks of the time per step."""
        first, third = np.percentile(self.raw.host_s, (25, 75)) / self.raw.steps_per_block
        return float(first), float(third)

    @property
    def images_per_s(self) -> float | None:
        """Images per second at the median step; None without `images_per_step`."""
        return None if self.raw.images_per_step is None else self.raw.images_per_step / self.median_s

    @property
    def steady(self) -> bool:
        """Whether the last four blocks of the warm-up had a coefficient of variation under 5 %."""
        return self.raw.steady

    @property
    def warnings(self) -> list[str]:
        """Reasons to doubt the times; empty without any."""
        found = [f"{doubt}; raise warmup_s" if doubt == UNSTEADY else doubt for doubt in doubts(self.raw)]
        too_few = len(self.raw.host_s) < MIN_BLOCKS
        return [*found, *(["too few blocks for quartiles; raise timed_s"] if too_few else [])]

    def _card(self) -> tuple[str, list[tuple[str, str]]]:
        device_step_s = self.blocks["device_step_s"].median()
        rate = self.images_per_s
        lines = {
            "quartiles": " to ".join(map(seconds_text, self.quartiles_s)),
            "throughput": "unknown without images_per_step" if rate is None else f"{number_text(rate)} images/s",
            "device time": seconds_text(device_step_s) if device_step_s > 0 else "NaN: it needs a CUDA device",
            "blocks": f"{len(self.raw.host_s)} of {self.raw.steps_per_block} steps, "
            f"{'steady' if self.steady else 'not steady'} after warm-up",
        }
        title = f"StepTiming: {seconds_text(self.median_s)} per step (median)"
        return title, [*lines.items(), *(("warning", warning) for warning in self.warnings)]


def time_step(
    step: Callable[[], object] | str | PathLike[str],
    *,
    batch: int | None = None,
    images_per_step: int | None = None,
    device: torch.device | str | None = None,
    warmup_s: float = 0.5,
    timed_s: float = 2.0,
    block_s: float = 0.1,
    clock: Clock | None = None,
) -> StepTiming:
    """Time a step: warm up until its time is steady, then time blocks of steps with one synchronise each.

    `step` takes no arguments and runs one step. It may be a network's file or name instead, as for
    `labkit.models.open_network`: then its eager training is timed, on one batch of `batch` samples.

    Warm-up lasts `warmup_s` seconds, and up to three times as long until the last four blocks have a coefficient of
    variation under 5 %. Blocks last about `block_s`. Timing lasts `timed_s`, or half of it if the mean is precise by
    then. Slow steps get five blocks, or fewer once twice `timed_s` has passed.
    `device` None is CUDA if there is a device, else the CPU, whose device times are NaN. `clock` replaces the device's
    clock: `labkit.timing.HostClock(wait)` waits for a framework with its own queue.

    Raise UserError for a step that cannot be called, a device that is not here, and a value that is no such number.

    >>> labkit.time_step(lambda: sum(range(1000)), images_per_step=256, device="cpu", warmup_s=0.1, timed_s=0.2)
    StepTiming: ... per step (median)
      quartiles    ... to ...
      throughput   ... images/s
      device time  NaN: it needs a CUDA device
      blocks       ... of ... steps, ...
    """
    if isinstance(step, (str, PathLike)):
        from labkit.models import open_network

        check_whole("batch", batch)
        if images_per_step not in (None, batch):
            raise UserError("a network's step has `batch` images: leave images_per_step out.")
        assert batch is not None
        step, images_per_step = open_network(str(step)).training_step(batch, choose_device(device)), batch
    elif batch is not None:
        raise UserError("batch is for a network's file or name; a function knows its own batch.")
    if not callable(step):
        raise UserError(
            f"step is of type {type(step).__name__}; give a function without arguments: lambda: step(images)."
        )
    if clock is not None and not hasattr(clock, "time_block"):
        raise UserError(f"clock is {clock!r}; use a clock of labkit.timing, or name the device instead.")
    for name, value in {"timed_s": timed_s, "block_s": block_s}.items():
        check_above(name, value, 0)
    check_above("warmup_s", warmup_s, 0, or_equal=True)
    if images_per_step is not None:
        check_whole("images_per_step", images_per_step)
    timing = Timing(warmup_s=float(warmup_s), timed_s=float(timed_s), block_s=float(block_s))
    events_device: AbstractContextManager[object] = nullcontext()
    if clock is None:
        chosen, clock = choose_device(device), HostClock()
        if chosen.type == "cuda":
            import torch

            clock, events_device = CudaClock(chosen), torch.cuda.device(chosen)  # where a step of "cuda" runs
    gc.collect()  # so that Python's collector has little to do during a block
    with events_device:
        return StepTiming(time_blocks(step, clock, timing, images_per_step=images_per_step))
