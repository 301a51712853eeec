"""Warm a step up to a steady state, then time blocks of steps and keep every block.

    first step | warm-up: K grows until a block is long enough, then until the last blocks agree | timed blocks

With energy windows, the timed part is several stretches of blocks of at least 5 s each. Between two stretches the same
load runs on, untimed, for a random time:

    warm-up | 5 s of blocks | gap | 5 s of blocks | gap | 5 s of blocks

A power sensor updates every 100 ms and may sample only a quarter of that time (Yang et al., SC'24). A window must be
much longer than that, and the windows must not all begin at the same phase of the sensor's cycle. The load does not
pause in a gap, so the edges of a window lie in a steady load, where a late reading costs nothing.

Bursts, if asked for, measure the host's launch rate beside the blocks, in no block's time:

    warm-up | burst | block | burst | block | burst

Times are seconds. The confidence interval of the blocks only decides when to stop. Blocks of a process are not
independent, so an interval for a result needs several processes.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from labkit.statistics import coefficient_of_variation, t_quantile
from labkit.timing.clocks import Clock, Step

STEADY_BLOCKS = 4  # the step is steady when this many last warm-up blocks ...
STEADY_CV = 0.05  # ... agree within this coefficient of variation
WARMUP_STRETCH = 3.0  # without a steady step, the warm-up ends after this many times its planned length
MAX_GROWTHS = 12  # K grows at most this many times, ...
MAX_STEPS = 10**6  # ... and up to this value: a step of zero length must not make the warm-up endless
MIN_BLOCKS = 5
EARLY_STOP_HALF_WIDTH = 0.002  # a mean with this relative half-width (95 %) needs no more blocks ...
EARLY_STOP_SHARE = 0.5  # ... once this share of the planned time is spent
ENERGY_WINDOW_S = 5.0
LONGEST_GAP_S = 0.5

OnBlock = Callable[[str, float], None]
Burst = Callable[[], float]
# Numbers as a file may hold them: with others, rates would not be finite.
Count = Annotated[int, Field(ge=0, lt=2**63)]
Seconds = Annotated[float, Field(gt=1e-12, lt=1e9)]


class Timing(BaseModel, extra="forbid", frozen=True, strict=True, allow_inf_nan=False):
    """Seconds of warm-up, of the timed part and of a block. The timed part ends earlier if the blocks agree well."""

    warmup_s: Annotated[float, Field(ge=0)]
    timed_s: Annotated[float, Field(gt=0)]
    block_s: Annotated[float, Field(gt=0)]


class Blocks(BaseModel, extra="forbid", frozen=True, allow_inf_nan=False):
    """Times of blocks of `steps_per_block` steps each. Every block is kept; rates are derived, never stored.

    `host_s` is the time of each block on the host's clock, with one synchronise at its end. `device_s` is the time
    between device events around the same block (None without events). `warmup_s` and `warmup_steps` list the warm-up.

    `began_s` is the start of the first timed block on the host's monotonic clock. `at_s` (start of each block),
    `warmup_at_s` and `warmup_end_s` (both negative) count from there. `energy_blocks` are the long energy windows: the
    first block of each, and the block after its last.
    """

    kind: Literal["blocks"] = "blocks"
    steps_per_block: Annotated[Count, Field(ge=1)]
    images_per_step: Count | None = None
    flop_per_step: Count | None = None
    bytes_per_step: Count | None = None
    launches_per_step: Count | None = None
    host_s: Annotated[list[Seconds], Field(min_length=1)]
    device_s: list[float] | None = None
    began_s: float | None = None
    at_s: list[float] = []
    warmup_at_s: float | None = None
    warmup_end_s: float | None = None
    energy_blocks: list[tuple[int, int]] = []
    warmup_s: list[float]
    warmup_steps: list[int]
    steady: bool
    stopped_by: Literal["precision", "time"]
    launches_per_s: list[float] = []  # by a burst of tiny operations before each timed block and after the last
    loss: list[float | None] = []  # mean loss of each timed block, None if it was not finite
    warmup_loss: list[float | None] = []

    @property
    def timed_s(self) -> float:
        """Seconds in timed blocks, stalls included."""
        return sum(self.host_s)

    @property
    def step_s(self) -> float:
        """Mean seconds of a step over the whole timed part."""
        return self.timed_s / (self.steps_per_block * len(self.host_s))

    def rate(self, per_step: int | None) -> float | None:
        """Return units per second over the timed part, for `per_step` units a step; None if `per_step` is None."""
        return None if per_step is None else per_step * self.steps_per_block * len(self.host_s) / self.timed_s


def time_blocks(
    step: Step,
    clock: Clock,
    timing: Timing,
    *,
    images_per_step: int | None = None,
    flop_per_step: int | None = None,
    bytes_per_step: int | None = None,
    launches_per_step: int | None = None,
    energy_windows: int = 0,
    gap_seed: int = 0,
    on_block: OnBlock = lambda _phase, _share: None,
    read_loss: Callable[[], float | None] | None = None,
    burst: Burst | None = None,
) -> Blocks:
    """Warm `step` up, time it in blocks and return all blocks.

    `energy_windows`, if not 0, is the number of long windows that replace `timing.timed_s`; `gap_seed` seeds their
    gaps. `on_block(phase, share)` is called between blocks, untimed, with "warmup" or "timed" and the share of the
    phase that is done. `read_loss` is called at the same points and returns the mean loss of the last block. `burst` is
    called before each timed block and after the last, and returns a launch rate. It must leave the device idle. It
    does not go with energy windows, in which the load must not pause.
    """
    assert burst is None or not energy_windows
    losses: dict[str, list[float | None]] = {"warmup": [], "timed": []}

    def after(phase: str, share: float) -> None:
        if read_loss is not None:
            losses[phase].append(read_loss())
        on_block(phase, min(share, 1.0))

    t_quantile(0.95, MIN_BLOCKS - 1)  # import SciPy now: that takes half a second, too long between blocks
    warmup_began = clock.now_s()
    warmup_s, warmup_steps, steady = _warm_up(step, clock, timing, after)
    warmup_ended = clock.now_s()
    timed = _Timed(step, clock, warmup_steps[-1], burst)
    if energy_windows:
        chance = random.Random(gap_seed)  # noqa: S311 - not for secrets
        _time_windows(timed, energy_windows, chance, after, forget=read_loss or (lambda: None))
        stopped_by: Literal["precision", "time"] = "time"
    else:
        stopped_by = _time_once(timed, timing, after)
    timed.measure_launches()
    began = timed.starts_s[0]
    return Blocks(
        steps_per_block=timed.steps,
        images_per_step=images_per_step,
        flop_per_step=flop_per_step,
        bytes_per_step=bytes_per_step,
        launches_per_step=launches_per_step,
        host_s=timed.host_s,
        device_s=timed.device_s or None,
        began_s=began,
        at_s=[round(start - began, 9) for start in timed.starts_s],  # nanoseconds, as the clock tells them
        warmup_at_s=warmup_began - began,
        warmup_end_s=warmup_ended - began,
        energy_blocks=timed.windows,
        warmup_s=warmup_s,
        warmup_steps=warmup_steps,
        steady=steady,
        stopped_by=stopped_by,
        launches_per_s=timed.launches_per_s,
        loss=losses["timed"],
        warmup_loss=losses["warmup"],
    )


@dataclass
class _Timed:
    """The blocks timed so far."""

    step: Step
    clock: Clock
    steps: int
    burst: Burst | None = None
    host_s: list[float] = field(default_factory=list)
    device_s: list[float] = field(default_factory=list)
    starts_s: list[float] = field(default_factory=list)
    windows: list[tuple[int, int]] = field(default_factory=list)
    launches_per_s: list[float] = field(default_factory=list)

    def measure_launches(self) -> None:
        """Measure the launch rate by a burst, if bursts are asked for."""
        if self.burst is not None:
            self.launches_per_s.append(self.burst())

    def one(self) -> None:
        """Time one more block, after a burst."""
        self.measure_launches()
        self.starts_s.append(self.clock.now_s())
        host, device = self.clock.time_block(self.step, self.steps)
        self.host_s.append(host)
        if device is not None:
            self.device_s.append(device)


def _time_once(timed: _Timed, timing: Timing, after: Callable[[str, float], None]) -> Literal["precision", "time"]:
    """Time blocks until the planned time is spent or their mean is precise enough. Return which of the two ended it."""
    while True:
        timed.one()
        spent = sum(timed.host_s)
        after("timed", spent / timing.timed_s)
        if len(timed.host_s) < MIN_BLOCKS and spent < 2 * timing.timed_s:
            continue
        if spent >= timing.timed_s:
            return "time"
        if spent >= EARLY_STOP_SHARE * timing.timed_s and _half_width(timed.host_s) < EARLY_STOP_HALF_WIDTH:
            return "precision"


def _time_windows(
    timed: _Timed,
    number: int,
    chance: random.Random,
    after: Callable[[str, float], None],
    forget: Callable[[], object],
) -> None:
    """Time long windows of blocks. Between them the load runs on untimed for a random time; `forget` drops its loss."""
    for window in range(number):
        first, lasted = len(timed.host_s), 0.0
        while lasted < ENERGY_WINDOW_S:  # from first block's start to last block's end, calls of `after` included
            timed.one()
            lasted = timed.starts_s[-1] + timed.host_s[-1] - timed.starts_s[first]
            after("timed", (window + lasted / ENERGY_WINDOW_S) / number)
        timed.windows.append((first, len(timed.host_s)))
        if window + 1 < number:
            gap_s, gap_began = chance.uniform(0, LONGEST_GAP_S), timed.clock.now_s()
            while timed.clock.now_s() - gap_began < gap_s:
                timed.clock.time_block(timed.step, max(timed.steps // 10, 1))
            forget()


def _warm_up(
    step: Step, clock: Clock, timing: Timing, after: Callable[[str, float], None]
) -> tuple[list[float], list[int], bool]:
    """Run blocks until K steps last `block_s` and the last blocks agree. Return times, steps and whether they agree."""
    times: list[float] = []
    counts: list[int] = []
    steps, began = 1, clock.now_s()
    while True:
        elapsed, _ = clock.time_block(step, steps)
        times.append(elapsed)
        counts.append(steps)
        spent = clock.now_s() - began
        after("warmup", spent / max(timing.warmup_s, 1e-9))
        if elapsed < 0.7 * timing.block_s and len(times) < MAX_GROWTHS:
            # At most x8 at once: the first step is often slow, and one estimate from one block would be far off.
            steps = max(steps + 1, math.ceil(steps * min(timing.block_s / max(elapsed, 1e-9), 8)))
            steps = min(steps, MAX_STEPS)
            continue
        same = [t for t, k in zip(times, counts, strict=True) if k == steps][-STEADY_BLOCKS:]
        variation = coefficient_of_variation(same) if len(same) == STEADY_BLOCKS else None
        steady = variation is not None and variation < STEADY_CV
        slow_start = len(same) == 1 and steps == 1  # a slow first step does not tell how many steps a block needs
        if spent >= timing.warmup_s and (steady or spent >= WARMUP_STRETCH * timing.warmup_s) and not slow_start:
            return times, counts, steady


def _half_width(times: list[float]) -> float:
    """Return the relative half-width of the 95 % interval of the mean block time, as if blocks were independent."""
    variation = coefficient_of_variation(times) or 0.0
    return t_quantile(0.95, len(times) - 1) * variation / math.sqrt(len(times))


WARM_UP = 20  # untimed queries before the first timed one: the device has just run other work


def time_queries(
    query: Callable[[], object],
    clock: Clock,
    count: int,
    *,
    limit_s: float,
    on_query: Callable[[float], None] = lambda _share: None,
) -> list[int]:
    """Return latencies in nanoseconds of 1 to `count` queries. No query but the first begins after `limit_s` seconds.

    `query` returns when its answer is there. `on_query` is called between queries with the share that is done, untimed.
    """
    warm_up_ends = clock.now_s() + 0.1 * limit_s
    for _ in range(WARM_UP):
        query()
        if clock.now_s() > warm_up_ends:
            break
    latencies: list[int] = []
    began_s = clock.now_s()
    spent_s = 0.0
    while not latencies or (len(latencies) < count and spent_s < limit_s):
        before = time.perf_counter_ns()
        query()
        latencies.append(time.perf_counter_ns() - before)
        spent_s = clock.now_s() - began_s
        on_query(max(len(latencies) / count, spent_s / limit_s))
    return latencies
