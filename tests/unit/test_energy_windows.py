"""Long windows over which energy is measured, on a simulated clock: how long, how many, and what lies between them."""

from __future__ import annotations

from itertools import count, pairwise, repeat
from types import SimpleNamespace

import pytest

from labkit.errors import GateError
from labkit.measure import ENERGY_WINDOW_S, LONGEST_GAP_S, time_blocks
from labkit.records import Blocks
from labkit.trial import NO_DATA, Trial
from labkit.workloads import build_workload
from labkit.workloads.idle import STEP_S as STEP_S_OF_IDLE
from tests.unit.test_measure import TIMING, SimulatedClock

STEP_S = 0.001  # a block of a tenth of a second has about a hundred of them
NANOSECONDS = 5e-9  # in which block starts are kept


def measured(windows: int, *, seed: int = 0, clock: SimulatedClock | None = None, **options) -> Blocks:
    clock = clock or SimulatedClock(repeat(STEP_S))
    return time_blocks(lambda: None, clock, TIMING, energy_windows=windows, gap_seed=seed, **options)


def spans(blocks: Blocks) -> list[tuple[float, float]]:
    """Start of the first block and end of the last one of each window, from the first timed block."""
    return [
        (blocks.at_s[first], blocks.at_s[after - 1] + blocks.host_s[after - 1]) for first, after in blocks.energy_blocks
    ]


def gaps(blocks: Blocks) -> list[float]:
    """Seconds between neighbouring windows."""
    return [later - earlier for (_, earlier), (later, _) in pairwise(spans(blocks))]


@pytest.mark.parametrize("windows", [1, 3, 4])
def test_there_are_as_many_windows_as_were_asked_for_and_together_they_hold_every_block(windows: int) -> None:
    blocks = measured(windows)
    assert len(blocks.energy_blocks) == windows
    assert [first for first, _ in blocks.energy_blocks] == [0, *(after for _, after in blocks.energy_blocks[:-1])]
    assert blocks.energy_blocks[-1][1] == len(blocks.host_s)


@pytest.mark.parametrize("step_s", [STEP_S, 0.7, 2.0, 8.0])
def test_a_window_is_at_least_five_seconds_and_ends_with_the_block_that_makes_it_so(step_s: float) -> None:
    blocks = measured(3, clock=SimulatedClock(repeat(step_s)))
    for (start, end), (_, after) in zip(spans(blocks), blocks.energy_blocks, strict=True):
        assert end - start >= ENERGY_WINDOW_S - NANOSECONDS
        assert blocks.at_s[after - 1] - start < ENERGY_WINDOW_S + NANOSECONDS


def test_what_happens_between_blocks_makes_no_window_shorter() -> None:
    clock = SimulatedClock(repeat(STEP_S))

    def slow(phase: str, share: float) -> None:
        clock.now += 0.3  # more than the block itself

    blocks = measured(2, clock=clock, on_block=slow)
    assert all(end - start >= ENERGY_WINDOW_S - NANOSECONDS for start, end in spans(blocks))


def test_without_windows_there_are_none_and_the_usual_time_is_measured() -> None:
    blocks = measured(0)
    assert blocks.energy_blocks == []
    assert blocks.timed_s < ENERGY_WINDOW_S
    assert measured(1).timed_s >= ENERGY_WINDOW_S > TIMING.timed_s
    assert measured(1).stopped_by == "time", "a window is not cut short because its mean is known"


# ---- gaps -----------------------------------------------------------------------------------------------------------


def test_gaps_come_from_their_seed() -> None:
    one, same, other = (gaps(measured(4, seed=seed)) for seed in (1, 1, 2))
    assert one == same != other
    assert len({round(gap, 6) for gap in one}) == len(one) == 3, "and differ among themselves"


def test_gaps_have_no_favourite_length_and_an_end() -> None:
    found = [gap for seed in range(12) for gap in gaps(measured(3, seed=seed))]
    chunk_s = 0.1 * TIMING.block_s * 1.3
    assert all(0 < gap <= LONGEST_GAP_S + chunk_s for gap in found)
    assert min(found) < 0.3 * LONGEST_GAP_S < 0.7 * LONGEST_GAP_S < max(found)
    places = {round(10 * gap / TIMING.block_s) % 10 for gap in found}
    assert len(places) > 5, "windows begin at any place of the rhythm of blocks, and of a sensor as slow as they"


def test_the_load_runs_on_in_a_gap_and_is_not_timed() -> None:
    clock = SimulatedClock(repeat(STEP_S))
    blocks = measured(3, clock=clock)
    untimed = clock.steps - sum(blocks.warmup_steps) - blocks.steps_per_block * len(blocks.host_s)
    assert untimed * STEP_S == pytest.approx(sum(gaps(blocks))), "no moment of a gap was idle"
    assert blocks.timed_s == pytest.approx(sum(end - start for start, end in spans(blocks)))
    assert clock.blocks[-1] == blocks.steps_per_block, "no gap follows the last window"
    assert all(block == pytest.approx(blocks.steps_per_block * STEP_S) for block in blocks.host_s)


# ---- when it was ----------------------------------------------------------------------------------------------------


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


def test_blocks_and_warm_up_stand_on_the_clock_of_the_host() -> None:
    clock = SimulatedClock(repeat(STEP_S))
    began = clock.now
    blocks = measured(2, clock=clock)
    assert blocks.began_s is not None and blocks.warmup_at_s is not None and blocks.warmup_end_s is not None
    assert blocks.began_s + blocks.warmup_at_s == pytest.approx(began)
    assert blocks.warmup_end_s - blocks.warmup_at_s == pytest.approx(sum(blocks.warmup_s))
    assert blocks.warmup_end_s <= 0
    assert blocks.began_s + blocks.at_s[-1] + blocks.host_s[-1] == pytest.approx(clock.now)


# ---- what is told in between ----------------------------------------------------------------------------------------


def test_losses_of_a_gap_are_forgotten() -> None:
    clock = SimulatedClock(repeat(STEP_S))
    told_of = 0

    def steps_since_the_last_reading() -> float:
        nonlocal told_of
        steps, told_of = clock.steps - told_of, clock.steps
        return float(steps)

    blocks = measured(3, clock=clock, read_loss=steps_since_the_last_reading)
    assert blocks.loss == [blocks.steps_per_block] * len(blocks.host_s), "each is of its own block's steps alone"
    assert blocks.warmup_loss == blocks.warmup_steps


def test_progress_goes_from_nothing_to_all_over_the_windows() -> None:
    told: list[float] = []
    measured(3, on_block=lambda phase, share: told.append(share) if phase == "timed" else None)
    assert told == sorted(told)
    assert told[0] < 0.05
    assert told[-1] == 1


def test_the_idle_workload_holds_the_device_and_does_nothing_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("labkit.workloads.idle.time", SimpleNamespace(sleep=slept.append))
    workload = build_workload(Trial(workload="idle", device="cpu", data=NO_DATA), None)
    workload.check()
    for _ in range(3):
        workload.step()
    assert slept == [STEP_S_OF_IDLE] * 3
    assert workload.images_per_step is workload.flop_per_step is workload.bytes_per_step is None
    workload._held += 1
    with pytest.raises(GateError, match="does not keep a number"):
        workload.check()
