"""Long windows over which energy is measured, on a simulated clock: their length, their number and their gaps."""

from __future__ import annotations

from itertools import count, pairwise, repeat
from types import SimpleNamespace

import pytest

from labkit.timing import ENERGY_WINDOW_S, LONGEST_GAP_S, time_blocks
from tests.labkit.test_timing import TIMING, SimulatedClock
from workbook.errors import GateError
from workbook.records import Blocks
from workbook.trials.trial import NO_DATA, Trial
from workbook.workloads import build_workload
from workbook.workloads.idle import STEP_S as STEP_S_OF_IDLE

STEP_S = 0.001  # a block of 0.1 s has about a hundred steps
NANOSECONDS = 5e-9  # tolerance for block starts, which are kept in nanoseconds


def measured(windows: int, *, seed: int = 0, clock: SimulatedClock | None = None, **options) -> Blocks:
    clock = clock or SimulatedClock(repeat(STEP_S))
    return time_blocks(lambda: None, clock, TIMING, energy_windows=windows, gap_seed=seed, **options)


def spans(blocks: Blocks) -> list[tuple[float, float]]:
    """Return the start and end of each window, in seconds from the first timed block."""
    return [
        (blocks.at_s[first], blocks.at_s[after - 1] + blocks.host_s[after - 1]) for first, after in blocks.energy_blocks
    ]


def gaps(blocks: Blocks) -> list[float]:
    """Return the seconds between neighbouring windows."""
    return [later - earlier for (_, earlier), (later, _) in pairwise(spans(blocks))]


@pytest.mark.parametrize("windows", [1, 3, 4])
def test_the_requested_number_of_windows_holds_every_block(windows: int) -> None:
    blocks = measured(windows)
    assert len(blocks.energy_blocks) == windows
    assert [first for first, _ in blocks.energy_blocks] == [0, *(after for _, after in blocks.energy_blocks[:-1])]
    assert blocks.energy_blocks[-1][1] == len(blocks.host_s)


@pytest.mark.parametrize("step_s", [STEP_S, 0.7, 2.0, 8.0])
def test_a_window_lasts_at_least_five_seconds_and_ends_with_the_block_that_reaches_them(step_s: float) -> None:
    blocks = measured(3, clock=SimulatedClock(repeat(step_s)))
    for (start, end), (_, after) in zip(spans(blocks), blocks.energy_blocks, strict=True):
        assert end - start >= ENERGY_WINDOW_S - NANOSECONDS
        assert blocks.at_s[after - 1] - start < ENERGY_WINDOW_S + NANOSECONDS


def test_time_between_blocks_does_not_shorten_a_window() -> None:
    clock = SimulatedClock(repeat(STEP_S))

    def slow(phase: str, share: float) -> None:
        clock.now += 0.3  # more than the block itself

    blocks = measured(2, clock=clock, on_block=slow)
    assert all(end - start >= ENERGY_WINDOW_S - NANOSECONDS for start, end in spans(blocks))


def test_without_energy_windows_the_usual_time_is_measured() -> None:
    blocks = measured(0)
    assert blocks.energy_blocks == []
    assert blocks.timed_s < ENERGY_WINDOW_S
    assert measured(1).timed_s >= ENERGY_WINDOW_S > TIMING.timed_s
    assert measured(1).stopped_by == "time", "a window is not cut short because its mean is known"


# ---- gaps -----------------------------------------------------------------------------------------------------------


def test_gaps_depend_on_their_seed() -> None:
    first, same, second = (gaps(measured(4, seed=seed)) for seed in (1, 1, 2))
    assert first == same != second
    assert len({round(gap, 6) for gap in first}) == len(first) == 3, "the gaps of a run differ from each other"


def test_gap_lengths_are_spread_and_bounded() -> None:
    lengths = [gap for seed in range(12) for gap in gaps(measured(3, seed=seed))]
    chunk_s = 0.1 * TIMING.block_s * 1.3
    assert all(0 < gap <= LONGEST_GAP_S + chunk_s for gap in lengths)
    assert min(lengths) < 0.3 * LONGEST_GAP_S < 0.7 * LONGEST_GAP_S < max(lengths)
    places = {round(10 * gap / TIMING.block_s) % 10 for gap in lengths}
    assert len(places) > 5, "windows begin at any phase of the blocks, and of a sensor as slow as blocks"


def test_the_load_continues_in_a_gap_and_is_not_timed() -> None:
    clock = SimulatedClock(repeat(STEP_S))
    blocks = measured(3, clock=clock)
    untimed = clock.steps - sum(blocks.warmup_steps) - blocks.steps_per_block * len(blocks.host_s)
    assert untimed * STEP_S == pytest.approx(sum(gaps(blocks))), "no moment of a gap was idle"
    assert blocks.timed_s == pytest.approx(sum(end - start for start, end in spans(blocks)))
    assert clock.blocks[-1] == blocks.steps_per_block, "no gap follows the last window"
    assert all(block == pytest.approx(blocks.steps_per_block * STEP_S) for block in blocks.host_s)


# ---- times of blocks ------------------------------------------------------------------------------------------------


def test_the_start_of_a_block_is_the_end_of_the_one_before_it_except_across_a_gap() -> None:
    irregular = (0.0005 * (1 + n % 7) for n in count())
    blocks = measured(3, clock=SimulatedClock(irregular))
    first_after_gap = {first for first, _ in blocks.energy_blocks[1:]}
    assert blocks.at_s[0] == 0
    assert len(blocks.at_s) == len(blocks.host_s)
    for n in range(1, len(blocks.at_s)):
        between = blocks.at_s[n] - (blocks.at_s[n - 1] + blocks.host_s[n - 1])
        if n in first_after_gap:
            assert between > 0
        else:
            assert between == pytest.approx(0, abs=NANOSECONDS)


def test_times_of_blocks_and_warm_up_are_on_the_hosts_clock() -> None:
    clock = SimulatedClock(repeat(STEP_S))
    began = clock.now
    blocks = measured(2, clock=clock)
    assert blocks.began_s is not None and blocks.warmup_at_s is not None and blocks.warmup_end_s is not None
    assert blocks.began_s + blocks.warmup_at_s == pytest.approx(began)
    assert blocks.warmup_end_s - blocks.warmup_at_s == pytest.approx(sum(blocks.warmup_s))
    assert blocks.warmup_end_s <= 0
    assert blocks.began_s + blocks.at_s[-1] + blocks.host_s[-1] == pytest.approx(clock.now)


# ---- losses and progress --------------------------------------------------------------------------------------------


def test_losses_of_a_gap_are_discarded() -> None:
    clock = SimulatedClock(repeat(STEP_S))
    steps_read = 0

    def steps_since_the_last_reading() -> float:
        nonlocal steps_read
        steps, steps_read = clock.steps - steps_read, clock.steps
        return float(steps)

    blocks = measured(3, clock=clock, read_loss=steps_since_the_last_reading)
    assert blocks.loss == [blocks.steps_per_block] * len(blocks.host_s), "each loss covers only the steps of its block"
    assert blocks.warmup_loss == blocks.warmup_steps


def test_progress_rises_from_0_to_1_over_all_windows() -> None:
    shares: list[float] = []
    measured(3, on_block=lambda phase, share: shares.append(share) if phase == "timed" else None)
    assert shares == sorted(shares)
    assert shares[0] < 0.05
    assert shares[-1] == 1


def test_the_idle_workload_holds_the_device_and_computes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("workbook.workloads.idle.time", SimpleNamespace(sleep=slept.append))
    workload = build_workload(Trial(workload="idle", device="cpu", data=NO_DATA), None)
    workload.check()
    for _ in range(3):
        workload.step()
    assert slept == [STEP_S_OF_IDLE] * 3
    assert workload.images_per_step is workload.flop_per_step is workload.bytes_per_step is None
    workload._held += 1
    with pytest.raises(GateError, match="does not keep a number"):
        workload.check()
