"""Warm up to a steady state, then time blocks and keep every one.

    first step | warm-up: K grows until a block is long enough, then until the last blocks agree | timed blocks

Times: seconds. A within-pass interval decides only when to stop; what is reported comes from intervals over passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from labkit.measure.clocks import Clock, Step
from labkit.profile import Timing
from labkit.records import Blocks
from labkit.statistics import coefficient_of_variation, t_quantile

STEADY_BLOCKS = 4  # the last so many warm-up blocks ...
STEADY_CV = 0.05  # ... agree within this coefficient of variation
WARMUP_STRETCH = 3.0  # warm-up goes on for at most this many times its planned length
MAX_GROWTHS = 12  # of K, and ...
MAX_STEPS = 10**6  # ... its largest value: a step of no length at all must not make the warm-up endless
MIN_BLOCKS = 5
EARLY_STOP_HALF_WIDTH = 0.002  # a mean known this well (relative, 95 %) needs no more blocks ...
EARLY_STOP_SHARE = 0.5  # ... once this share of the planned time is spent

OnBlock = Callable[[str, float], None]


def time_blocks(
    step: Step,
    clock: Clock,
    timing: Timing,
    *,
    images_per_step: int | None = None,
    flop_per_step: int | None = None,
    bytes_per_step: int | None = None,
    on_block: OnBlock = lambda _phase, _share: None,
    read_loss: Callable[[], float | None] | None = None,
) -> Blocks:
    """Warm `step` up and time it.

    `on_block(phase, share)` is called between blocks, outside the timed part, with "warmup" or "timed" and the share of
    the phase that is done. `read_loss` is called there too and gives the mean loss of the block just run.
    """
    losses: dict[str, list[float | None]] = {"warmup": [], "timed": []}

    def after(phase: str, share: float) -> None:
        if read_loss is not None:
            losses[phase].append(read_loss())
        on_block(phase, min(share, 1.0))

    warmup_s, warmup_steps, steady = _warm_up(step, clock, timing, after)
    steps = warmup_steps[-1]
    host_s: list[float] = []
    device_s: list[float] = []
    stopped_by = "time"
    while True:
        host, device = clock.time_block(step, steps)
        host_s.append(host)
        if device is not None:
            device_s.append(device)
        spent = sum(host_s)
        after("timed", spent / timing.timed_s)
        if len(host_s) < MIN_BLOCKS and spent < 2 * timing.timed_s:
            continue
        if spent >= timing.timed_s:
            break
        if spent >= EARLY_STOP_SHARE * timing.timed_s and _half_width(host_s) < EARLY_STOP_HALF_WIDTH:
            stopped_by = "precision"
            break
    return Blocks(
        steps_per_block=steps,
        images_per_step=images_per_step,
        flop_per_step=flop_per_step,
        bytes_per_step=bytes_per_step,
        host_s=host_s,
        device_s=device_s or None,
        warmup_s=warmup_s,
        warmup_steps=warmup_steps,
        steady=steady,
        stopped_by=stopped_by,
        loss=losses["timed"],
        warmup_loss=losses["warmup"],
    )


def _warm_up(
    step: Step, clock: Clock, timing: Timing, after: Callable[[str, float], None]
) -> tuple[list[float], list[int], bool]:
    """Blocks until K steps last `block_s` and the last blocks agree: (their times, their steps, whether they agree)."""
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
            # At most x8 at once: the first step is often slow, and one estimate from it would end far too long.
            steps = max(steps + 1, math.ceil(steps * min(timing.block_s / max(elapsed, 1e-9), 8)))
            steps = min(steps, MAX_STEPS)
            continue
        same = [t for t, k in zip(times, counts, strict=True) if k == steps][-STEADY_BLOCKS:]
        variation = coefficient_of_variation(same) if len(same) == STEADY_BLOCKS else None
        steady = variation is not None and variation < STEADY_CV
        slow_start = len(same) == 1 and steps == 1  # a slow first step says nothing of how long a block should be
        if spent >= timing.warmup_s and (steady or spent >= WARMUP_STRETCH * timing.warmup_s) and not slow_start:
            return times, counts, steady


def _half_width(times: list[float]) -> float:
    """Relative half-width of the 95 % interval of the mean block time, as if blocks were independent."""
    variation = coefficient_of_variation(times) or 0.0
    return t_quantile(0.95, len(times) - 1) * variation / math.sqrt(len(times))
