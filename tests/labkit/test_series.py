"""Tests of series of readings: means over time, gaps, polling, counters and energy."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from labkit.sensors import KINDS, PERIODS_S
from labkit.telemetry.series import GAP_PERIODS, Series, Span, energy
from labkit.telemetry.summary import Statistic


def power(*readings: tuple[float, float], gaps: tuple[Span, ...] = ()) -> Series:
    """Return a series of a level whose sensor renews every 0.1 s. Silence of more than 1 s is a gap."""
    return Series("power_w", [at for at, _ in readings], [value for _, value in readings], gaps)


def busy(*readings: tuple[float, float]) -> Series:
    """Return a series whose readings are averages over the time since the reading before."""
    return Series("utilisation", [at for at, _ in readings], [value for _, value in readings])


def counter(*readings: tuple[float, float], gaps: tuple[Span, ...] = ()) -> Series:
    return Series("energy_j", [at for at, _ in readings], [value for _, value in readings], gaps)


def polled_every(period_s: float, value: Callable[[float], float], until_s: float) -> Series:
    return power(*((n * period_s, value(n * period_s)) for n in range(round(until_s / period_s) + 1)))


# Readings without a gap: steps of 0.01 s to 0.5 s, and 0 W to 10 kW.
series_of_power = st.lists(st.tuples(st.floats(0.01, 0.5), st.floats(0, 1e4)), min_size=3, max_size=40).map(
    lambda rows: power(*zip(itertools.accumulate(step for step, _ in rows), (value for _, value in rows), strict=True))
)
shares = st.integers(0, 1000).map(lambda thousandths: thousandths / 1000)


def inside(one: Series, share: float) -> float:
    """Return the time at this share of the series' length."""
    moment = one.times_s[0] + share * (one.times_s[-1] - one.times_s[0])
    return float(min(moment, one.times_s[-1]))  # rounding may exceed the end


# ---- means ----------------------------------------------------------------------------------------------------------


def test_the_mean_of_a_level_is_weighted_by_time_and_not_by_readings() -> None:
    level = power((0, 100), (0.2, 300), (1, 300)).statistic(0, 1)
    assert level is not None
    assert level.mean == pytest.approx(0.2 * 200 + 0.8 * 300)
    assert (level.low, level.high, level.n) == (100, 300, 3)


def test_an_average_applies_to_the_time_before_its_reading() -> None:
    one = busy((0, 0.9), (0.5, 0.2), (1.5, 0.8))
    found = one.statistic(0, 1.5)
    assert found is not None
    assert found.mean == pytest.approx((0.5 * 0.2 + 1.0 * 0.8) / 1.5), "the reading at 0 applies to the time before"
    assert found.n == 2


def test_an_average_across_an_edge_of_the_window_counts_only_without_a_whole_one() -> None:
    one = busy((0, 0.9), (0.2, 0.9), (0.4, 0.1), (0.6, 0.1), (0.8, 0.9))
    idle = one.statistic(0.25, 0.75)
    assert idle is not None
    assert (idle.low, idle.mean, idle.high, idle.n) == (0.1, 0.1, 0.1, 1), "only (0.4, 0.6]"
    short = one.statistic(0.25, 0.45)
    assert short is not None and (short.mean, short.n) == (0.1, 1), "most of (0.2, 0.4]"
    assert one.statistic(0.25, 0.3) is None, "no average describes so short a window"


def test_a_window_between_two_readings_is_interpolated() -> None:
    found = power((0, 100), (0.4, 200)).statistic(0.1, 0.2)
    assert found is not None
    assert found.mean == found.low == found.high == pytest.approx(137.5)
    assert found.n == 0, "no reading is in the window"


@given(one=series_of_power, ends=st.tuples(shares, shares), kind=st.sampled_from(["power_w", "utilisation"]))
def test_the_mean_lies_between_low_and_high(one: Series, ends: tuple[float, float], kind: str) -> None:
    one = Series(kind, one.times_s, one.values)
    start, end = sorted(inside(one, share) for share in ends)
    assume(end > start)
    found = one.statistic(start, end)
    assume(kind == "power_w" or found is not None)
    assert found is not None
    assert found.low <= found.mean <= found.high
    every = [float(value) for value in one.values]
    assert min(every) - 1e-6 <= found.mean <= max(every) + 1e-6


@given(value=st.floats(0, 1e4), one=series_of_power, share=shares)
def test_a_constant_series_has_its_value_as_mean_and_its_area_as_integral(value: float, one: Series, share: float):
    same = Series("power_w", one.times_s, [value] * len(one))
    start, end = inside(one, 0), inside(one, share)
    assume(end - start > 1e-3)
    found = same.statistic(start, end)
    assert found is not None
    assert found.mean == pytest.approx(value)
    assert same.integral(start, end) == pytest.approx(value * (end - start))


@pytest.mark.parametrize("window", [(-5.0, -4.0), (4.0, 5.0)])
def test_a_window_without_readings_has_no_values(window: Span) -> None:
    one = power((0, 100), (0.5, 100))
    assert one.statistic(*window) is None
    assert one.polled(*window) is None
    assert one.integral(*window) is None
    assert power().statistic(0, 1) is power().polled(0, 1) is power().integral(0, 1) is None


def test_a_counter_and_flags_have_no_mean() -> None:
    for metric in ("energy_j", "throttle", "network_sent_bytes"):
        assert KINDS[metric] in ("counter", "flags")
        assert Series(metric, [0, 1, 2], [4, 5, 6]).statistic(0, 2) is None


# ---- gaps -----------------------------------------------------------------------------------------------------------


def test_a_gap_is_left_out_of_a_mean() -> None:
    before, after = [(n / 10, 100.0) for n in range(11)], [(3 + n / 10, 300.0) for n in range(11)]
    silent = power(*before, *after)
    told = power(*before, (1.5, 300.0), *((t - 1.4, v) for t, v in after), gaps=((1.0, 1.5),))
    assert silent.statistic(0, 4).mean == pytest.approx(200)  # type: ignore[union-attr]
    assert told.statistic(0, 2.6).mean == pytest.approx((1.0 * 100 + 1.1 * 300) / 2.1)  # type: ignore[union-attr]
    assert silent.unknown_s(0, 4) == silent.uncovered_s(0, 4) == pytest.approx(2.0)
    assert told.unknown_s(0, 2.6) == told.uncovered_s(0, 2.6) == pytest.approx(0.5)
    assert told.unknown_s(1.2, 1.3) == pytest.approx(0.1)
    assert told.unknown_s(1.6, 2.6) == 0


def test_silence_is_a_gap_only_after_many_periods() -> None:
    for metric in ("power_w", "memory_clock_hz"):  # renewed every 0.1 s and every 1 s
        longest = max(GAP_PERIODS * PERIODS_S[metric], 1.0)
        one = Series(metric, [0, longest, 2 * longest + 0.01], [1, 1, 1])
        assert not one.is_gap(0, longest)
        assert one.is_gap(longest, 2 * longest + 0.01)
        assert one.uncovered_s(0, 2 * longest) == pytest.approx(longest)


def test_overlapping_gaps_are_counted_once() -> None:
    one = power((0, 1), (3, 1), gaps=((0, 2), (1, 3)))
    assert one.unknown_s(0, 3) == pytest.approx(3)


def test_the_mean_of_a_window_within_a_gap_is_missing_and_not_0() -> None:
    one = power((0, 100), (0.1, 100), (5, 100), (5.1, 100))
    assert one.statistic(1, 4) is None
    assert busy((0, 1), (5, 0.3)).statistic(1, 4) is None


def test_a_reading_does_not_apply_long_after_it() -> None:
    one = power((0, 100), (0.1, 100))
    assert one.uncovered_s(10, 10.05) == pytest.approx(0.05)
    assert one.integral(10, 10.05) is None
    assert one.integral(0.1, 0.15) == pytest.approx(5), "the reading holds until its sensor renews"


# ---- polling once a second ------------------------------------------------------------------------------------------


def test_polling_takes_the_reading_in_force_at_each_whole_second() -> None:
    one = polled_every(0.1, lambda at: 500.0 if 0.25 < at % 1 < 0.85 else 100.0, until_s=5)
    assert one.polled(0, 5) == Statistic(mean=100, low=100, high=100, n=5), "polling misses a rhythm of 1 s"
    assert one.statistic(0, 5).mean > 300  # type: ignore[union-attr]
    assert one.polled(0.45, 4.5) == Statistic(mean=500, low=500, high=500, n=4)
    assert one.polled(0, 0.99) is None, "no poll falls into so short a window"


def test_polling_takes_no_reading_in_a_gap() -> None:
    told = power(*((n / 10, 100.0) for n in range(11)), (1.9, 300.0), (3, 300.0), gaps=((1.0, 1.9),))
    three = Statistic(mean=700 / 3, low=100, high=300, n=3)
    assert told.polled(-0.5, 3.5) == three, "at 0.5 s, 2.5 s and 3.5 s, and not at 1.5 s"
    silent = power((0, 100), (3.5, 300), (4, 300))
    two = Statistic(mean=200, low=100, high=300, n=2)
    assert silent.polled(0, 4) == two, "at 1 s the first still holds; at 2 s and 3 s none does"


# ---- counters -------------------------------------------------------------------------------------------------------


def test_without_power_a_counter_grows_evenly_between_its_readings() -> None:
    one = counter((0, 1000), (1, 1100), (2, 1400))
    assert one.growth(0, 2) == pytest.approx(400)
    assert one.growth(0.5, 1.5) == pytest.approx(50 + 150)


def test_polled_power_distributes_a_counters_growth_between_its_readings() -> None:
    steps = polled_every(0.01, lambda at: 100.0 if at < 0.5 else 300.0, until_s=2)
    one = counter((0, 7), (2, 7 + 500))  # 50 J in the first half second, 450 J in the rest
    assert one.growth(0, 0.5, steps) == pytest.approx(50, rel=0.02)
    assert one.growth(0.5, 2, steps) == pytest.approx(450, rel=0.02)
    assert one.growth(0, 0.5) == pytest.approx(125), "without polled power the growth is even"


def test_polled_power_extends_a_counter_beyond_its_readings_for_a_short_time() -> None:
    level = polled_every(0.1, lambda at: 200.0, until_s=10)
    one = counter((0.5, 0), (1, 100), (1.5, 200))
    assert one.growth(1, 1.9, level) == pytest.approx(100 + 0.4 * 200)
    assert one.growth(0.2, 1, level) == pytest.approx(0.3 * 200 + 100)
    assert one.growth(1, 1.9) is None
    assert one.growth(1, 4, level) is None
    assert one.growth(1, 1.5) == pytest.approx(100)


def test_a_counter_that_went_back_or_was_read_once_has_no_growth() -> None:
    assert counter((0, 50), (1, 60), (2, 10), (3, 20)).growth(0, 1) is None
    assert counter((0, 50)).growth(0, 0) is None
    assert counter((0, 50), (1, 50)).growth(0, 1) == 0, "a counter that stands still has not gone back"


def test_the_growth_of_a_counter_in_a_gap_is_known_only_at_its_ends() -> None:
    one = counter((0, 0), (1, 100), (11, 1100), (12, 1200))
    assert one.growth(0, 12) == pytest.approx(1200)
    assert one.growth(1, 11) == pytest.approx(1000)
    assert one.growth(6, 12) is None
    assert one.growth(6, 12, polled_every(0.1, lambda at: 100.0, until_s=12)) == pytest.approx(600)


@given(one=series_of_power, ends=st.tuples(shares, shares, shares))
def test_energies_of_adjoining_windows_add_up(one: Series, ends: tuple[float, float, float]) -> None:
    start, middle, end = sorted(inside(one, share) for share in ends)
    counted = counter(*zip(one.times_s.tolist(), itertools.accumulate(one.values.tolist()), strict=True))
    for energies in (
        [one.integral(*span) for span in ((start, middle), (middle, end), (start, end))],
        [counted.growth(*span) for span in ((start, middle), (middle, end), (start, end))],
        [counted.growth(*span, one) for span in ((start, middle), (middle, end), (start, end))],
    ):
        assert None not in energies
        assert energies[0] + energies[1] == pytest.approx(energies[2], abs=1e-6)
        assert energies[2] >= -1e-9


# ---- energy ---------------------------------------------------------------------------------------------------------


def test_energy_comes_from_the_counter_if_there_is_one() -> None:
    level = polled_every(0.1, lambda at: 90.0, until_s=5)  # a sensor that reads a tenth too low
    result = energy(counter(*((n / 2, 50.0 * n) for n in range(11))), level, 0.7, 4.3)
    assert (result.energy_j, result.method) == (pytest.approx(360, rel=1e-3), "counter")


def test_without_a_counter_energy_is_the_trapezoid_over_polled_power() -> None:
    ramp = polled_every(0.02, lambda at: 100 * at, until_s=5)
    result = energy(None, ramp, 1.01, 3.03)
    assert result.energy_j == pytest.approx(50 * (3.03**2 - 1.01**2)) and result.method.startswith("trapezoid")


@pytest.mark.parametrize(
    ("readings", "why"),
    [
        (((0, 900), (1, 1000), (2, 0), (3, 100)), "the counter went back"),
        (((3, 900), (4, 1000)), "the counter was not read around it"),
    ],
)
def test_the_method_says_why_a_counter_was_not_used(readings: tuple[tuple[float, float], ...], why: str) -> None:
    result = energy(counter(*readings), polled_every(0.1, lambda at: 100.0, until_s=5), 0.5, 2.5)
    assert result.energy_j == pytest.approx(200)
    assert result.method == f"trapezoid over polled power, because {why}"


def test_missing_energy_has_a_reason() -> None:
    hole = power((0, 100), (0.5, 100), (3, 100), (3.5, 100))
    for counted, polled, until_s, why in (
        (None, None, 1, "neither"),
        (counter(), power(), 1, "neither"),
        (counter((0, 5), (1, 6), (2, 0)), None, 2, "went back"),
        (None, hole, 3.5, "a tenth"),
    ):
        result = energy(counted, polled, 0, until_s)
        assert result.energy_j is None and result.method.startswith("none") and why in result.method


@pytest.mark.parametrize(("missing_share", "known"), [(0.09, True), (0.11, False)])
def test_a_gap_of_a_tenth_is_bridged_and_a_longer_one_leaves_no_energy(missing_share: float, known: bool) -> None:
    lost_s = 20 * missing_share
    readings = [(n / 10, 100.0) for n in range(201) if not 8 < n / 10 < 8 + lost_s]
    result = energy(None, power(*readings, gaps=((8.0, 8 + lost_s),)), 0, 20)
    assert (result.energy_j is not None) == known
    if known:
        assert result.energy_j == pytest.approx(2000), "the gap is taken to draw as much as the time around it"


@pytest.mark.parametrize(
    ("seconds", "share", "known"),
    [
        (6, 1.0, True),
        (6, 0.93, True),
        (6, 0.57, False),
        (6, 1.2, False),
        (3, 0.85, True),
        (3, 0.57, False),
        (1, 0.5, True),
    ],
)
def test_a_counter_that_the_polled_power_contradicts_gives_no_energy(seconds: int, share: float, known: bool) -> None:
    level = power(*((n / 10, 500.0) for n in range(100)))
    counted = counter(*((n / 2, 250.0 * share * n) for n in range(20)))
    result = energy(counted, level, 1.0, 1.0 + seconds)
    assert (result.energy_j is not None) == known
    if not known:
        for joules in (500 * share * seconds, 500 * seconds):
            assert f"{joules:.0f} J" in result.method
