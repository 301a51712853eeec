"""Tests of warm-up, blocks and losses on a simulated clock, of the host clock, of memory and of compiled trials."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import chain, count, repeat
from types import SimpleNamespace

import pytest

from labkit.timing import CudaClock, HostClock, Timing, time_blocks
from labkit.timing.blocks import MIN_BLOCKS, STEADY_BLOCKS, WARMUP_STRETCH
from labkit.timing.step import StepTiming

TIMING = Timing(warmup_s=1.0, timed_s=2.0, block_s=0.1)


class SimulatedClock:
    """A clock that advances by the next value of `step_s` in each step, without sleeping."""

    def __init__(self, step_s: Iterator[float], *, device_share: float | None = None) -> None:
        self.now, self.step_s, self.device_share = 100.0, step_s, device_share
        self.blocks: list[int] = []
        self.steps = 0

    def now_s(self) -> float:
        return self.now

    def time_block(self, step: Callable[[], object], steps: int) -> tuple[float, float | None]:
        took = 0.0
        for _ in range(steps):
            step()
            self.steps += 1
            took += next(self.step_s)
        self.now += took
        self.blocks.append(steps)
        return took, None if self.device_share is None else took * self.device_share


def steps_like(*first: float, then: float) -> Iterator[float]:
    return chain(first, repeat(then))


def measured(step_s: Iterator[float], timing: Timing = TIMING, **options):
    clock = SimulatedClock(step_s)
    return time_blocks(lambda: None, clock, timing, **options), clock


def test_warm_up_grows_a_block_to_about_its_planned_length() -> None:
    for step_s in (1e-5, 1e-4, 0.003, 0.02):
        blocks, _ = measured(repeat(step_s))
        assert 0.7 * TIMING.block_s <= blocks.steps_per_block * step_s <= 1.3 * TIMING.block_s
        assert blocks.steady
        assert sum(blocks.warmup_s) >= TIMING.warmup_s


def test_a_step_longer_than_a_block_makes_blocks_of_one_step() -> None:
    blocks, _ = measured(repeat(0.4))
    assert blocks.steps_per_block == 1
    assert blocks.warmup_steps == [1] * STEADY_BLOCKS, "steadiness needs this many blocks, even beyond the planned 1 s"
    assert blocks.steady


def test_a_slow_first_step_does_not_inflate_the_blocks() -> None:
    for first_s in (0.05, 0.5, 2.5):
        blocks, _ = measured(steps_like(first_s, then=0.001))
        assert 70 <= blocks.steps_per_block <= 130
        assert max(blocks.host_s) < 0.15
        assert blocks.warmup_steps[0] == 1
        assert max(blocks.warmup_s[1:]) < 0.2, "an estimate from the slow step made a long block"


def test_warm_up_goes_on_until_the_last_blocks_agree() -> None:
    slowing_down = (0.02 * (1 + math.exp(-n / 40)) for n in count())  # settles within about two seconds
    blocks, _ = measured(slowing_down)
    assert blocks.steady
    assert TIMING.warmup_s < sum(blocks.warmup_s) < WARMUP_STRETCH * TIMING.warmup_s
    last = blocks.warmup_s[-STEADY_BLOCKS:]
    assert max(last) / min(last) < 1.2


def test_a_trial_that_never_settles_is_timed_and_marked_unsteady() -> None:
    restless = (0.01 if n // 10 % 2 else 0.03 for n in count())  # blocks of ten steps alternate between fast and slow
    blocks, _ = measured(restless)
    assert not blocks.steady
    assert WARMUP_STRETCH * TIMING.warmup_s <= sum(blocks.warmup_s) < (WARMUP_STRETCH + 0.5) * TIMING.warmup_s
    assert blocks.host_s


def test_warm_up_ends_even_if_blocks_never_grow_long_enough() -> None:
    faster_and_faster = (max(0.05 * 0.9**n, 1e-7) for n in count())
    blocks, clock = measured(faster_and_faster, Timing(warmup_s=0.1, timed_s=1e-6, block_s=1.0))
    assert blocks.steps_per_block == 10**6, "the largest number of steps of a block"
    assert clock.now < 110


def test_every_block_is_kept_and_the_rate_counts_a_stall() -> None:
    stalled = (1.0 if n == 1500 else 0.001 for n in count())
    blocks, clock = measured(stalled, images_per_step=32, flop_per_step=10)
    assert clock.blocks == [*blocks.warmup_steps, *[blocks.steps_per_block] * len(blocks.host_s)]
    assert sum(blocks.warmup_s) + sum(blocks.host_s) == pytest.approx(clock.now - 100)
    assert max(blocks.host_s) > 1, "a block includes the stall"
    steps = blocks.steps_per_block * len(blocks.host_s)
    assert blocks.rate(blocks.images_per_step) == pytest.approx(32 * steps / sum(blocks.host_s))
    assert blocks.rate(blocks.images_per_step) < 0.8 * 32 / 0.001
    assert blocks.rate(blocks.flop_per_step) == pytest.approx(10 * steps / sum(blocks.host_s))
    assert blocks.rate(blocks.bytes_per_step) is None


def test_timing_stops_early_only_when_the_mean_is_known_precisely() -> None:
    still, _ = measured(repeat(0.001))
    assert still.stopped_by == "precision"
    assert 0.5 * TIMING.timed_s <= still.timed_s < 0.7 * TIMING.timed_s
    noisy, _ = measured(0.001 * (1 + 0.3 * (n // 100 % 2)) for n in count())
    assert noisy.stopped_by == "time"
    assert TIMING.timed_s <= noisy.timed_s < TIMING.timed_s + 0.2


def test_there_are_at_least_five_blocks_unless_that_takes_twice_the_time() -> None:
    slow, _ = measured(repeat(0.6))  # four blocks fill the two seconds
    assert len(slow.host_s) == MIN_BLOCKS
    very_slow, _ = measured(repeat(5.0))
    assert len(very_slow.host_s) == 1
    assert very_slow.stopped_by == "time"
    slowish, _ = measured(repeat(1.5))
    assert len(slowish.host_s) == 3


@pytest.mark.parametrize(
    ("slow", "warnings"),
    [
        (range(6, 10), ["the time of a step changed by 40% during the timing"]),
        (range(14, 20), ["blocks vary by 40% (interquartile range)"]),
        ([8], []),
        ([], []),
    ],
    ids=["early", "late third", "one stall", "none"],
)
def test_a_level_that_some_blocks_have_gives_a_warning(slow: list[int], warnings: list[str]) -> None:
    still, _ = measured(repeat(0.01))
    blocks = still.model_copy(update={"host_s": [0.14 if number in slow else 0.1 for number in range(21)]})
    given = StepTiming(blocks).warnings
    assert given == warnings


def test_each_block_has_the_loss_read_at_its_end() -> None:
    clock = SimulatedClock(repeat(0.01))
    read: list[float | None] = []

    def read_loss() -> float | None:
        read.append(None if len(read) % 7 == 3 else float(clock.steps))
        return read[-1]

    blocks = time_blocks(lambda: None, clock, TIMING, read_loss=read_loss)
    assert len(blocks.loss) == len(blocks.host_s)
    assert len(blocks.warmup_loss) == len(blocks.warmup_s)
    assert blocks.warmup_loss + blocks.loss == read
    warm = sum(blocks.warmup_steps)
    for number, loss in enumerate(blocks.loss, start=1):  # each loss is read at the end of its block
        assert loss in (None, warm + number * blocks.steps_per_block)
    without, _ = measured(repeat(0.01))
    assert without.loss == without.warmup_loss == []


def test_progress_is_reported_between_blocks_and_not_timed() -> None:
    clock = SimulatedClock(repeat(0.01))
    reports: list[tuple[str, float]] = []

    def on_block(phase: str, share: float) -> None:
        reports.append((phase, share))
        clock.now += 0.05  # as if drawing a progress bar

    blocks = time_blocks(lambda: None, clock, TIMING, on_block=on_block)
    assert len(reports) == len(blocks.warmup_s) + len(blocks.host_s)
    assert all(0 <= share <= 1 for _, share in reports)
    assert [phase for phase, _ in reports] == ["warmup"] * len(blocks.warmup_s) + ["timed"] * len(blocks.host_s)
    assert max(blocks.host_s) == pytest.approx(blocks.steps_per_block * 0.01)


def test_a_burst_lies_before_each_block_and_after_the_last_and_is_not_timed() -> None:
    clock = SimulatedClock(repeat(0.01))
    began_s: list[float] = []

    def burst() -> float:
        began_s.append(clock.now)
        clock.now += 0.03
        return 1e5 + len(began_s)

    blocks = time_blocks(lambda: None, clock, TIMING, burst=burst, launches_per_step=7)
    without, _ = measured(repeat(0.01))
    assert blocks.host_s == pytest.approx(without.host_s) and blocks.warmup_s == pytest.approx(without.warmup_s)
    assert blocks.launches_per_s == [1e5 + number for number in range(1, len(blocks.host_s) + 2)]
    assert without.launches_per_s == []
    ends = [at + length for at, length in zip(blocks.at_s, blocks.host_s, strict=True)]
    assert blocks.began_s is not None and blocks.warmup_end_s is not None
    assert blocks.began_s + blocks.warmup_end_s == pytest.approx(began_s[0]), "the warm-up ends before the first burst"
    assert [at - 0.03 for at in blocks.at_s] == pytest.approx([began - blocks.began_s for began in began_s[:-1]])
    assert ends == pytest.approx([began - blocks.began_s for began in began_s[1:]])
    assert blocks.launches_per_step == 7
    with pytest.raises(AssertionError):
        time_blocks(lambda: None, clock, TIMING, burst=burst, energy_windows=1)


def test_device_times_are_kept_beside_host_times() -> None:
    blocks = time_blocks(lambda: None, SimulatedClock(repeat(0.01), device_share=0.9), TIMING)
    assert blocks.device_s == pytest.approx([0.9 * block for block in blocks.host_s])
    without, _ = measured(repeat(0.01))
    assert without.device_s is None


def test_the_host_clock_runs_each_step_and_is_monotonic() -> None:
    clock, calls = HostClock(), []
    before = clock.now_s()
    took, device = clock.time_block(lambda: calls.append(clock.now_s()), 50)
    after = clock.now_s()
    assert len(calls) == 50
    assert device is None
    assert before <= calls[0] <= calls[-1] <= after
    assert calls[-1] - calls[0] <= took <= after - before


class TwoDevices:
    """A stand-in for `torch.cuda` with two devices, which notes the device of each event and each wait."""

    def __init__(self) -> None:
        self.current = 0
        self.noted: list[tuple[str, int]] = []

    def current_stream(self, device: int | None = None) -> SimpleNamespace:
        return SimpleNamespace(device=self.current if device is None else device)

    def synchronize(self, device: int | None = None) -> None:
        self.noted.append(("wait", self.current if device is None else device))

    def Event(self, *, enable_timing: bool) -> SimpleNamespace:
        assert enable_timing
        record = lambda stream=None: self.noted.append(("event", (stream or self.current_stream()).device))  # noqa: E731
        return SimpleNamespace(record=record, elapsed_time=lambda _end: 5.0)


@pytest.mark.parametrize(("chosen", "current"), [(1, 0), (0, 1), (None, 1)])
def test_events_and_waits_stay_on_one_device_though_the_step_changes_the_current_one(
    chosen: int | None, current: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, cuda = CudaClock(chosen), TwoDevices()
    monkeypatch.setattr(clock, "_torch", SimpleNamespace(cuda=cuda))
    cuda.current, asked = current, current if chosen is None else chosen

    def step() -> None:
        cuda.current = 1 - cuda.current

    assert clock.time_block(step, 3)[1] == pytest.approx(5e-3)
    assert cuda.noted == [("wait", asked), ("event", asked), ("event", asked), ("wait", asked)]
