"""Tests of intervals: against scipy, their coverage, and samples that allow no interval."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from labkit.statistics import coefficient_of_variation, t_quantile
from workbook.statistics import (
    Interval,
    difference_interval,
    linear_interval,
    log_interval,
    ratio_interval,
    share_interval,
    unpaired_difference,
    unpaired_ratio,
)

near_one = st.floats(0.5, 2.0)
shares = st.floats(0.0, 1.0)
anything = st.floats(-1e3, 1e3)


def ends(interval: Interval) -> tuple[float | None, float | None]:
    return interval.low, interval.high


def test_the_interval_of_two_values_equals_a_calculation_by_hand():
    # Logs 0 and ln 4: mean ln 2, standard deviation ln 4 / sqrt 2, t(0.975, 1) = 12.706.
    # Half the interval is therefore 12.706 * ln 4 / 2 = 8.807.
    interval = log_interval([1.0, 4.0])
    assert interval.point == pytest.approx(2.0)
    assert interval.low == pytest.approx(2 * math.exp(-8.807), rel=1e-3)
    assert interval.high == pytest.approx(2 * math.exp(8.807), rel=1e-3)
    assert interval.n == 2


@settings(deadline=None)
@given(st.lists(near_one, min_size=3, max_size=12))
def test_the_interval_equals_scipys_on_the_logarithms(values):
    logs = np.log(values)
    interval = log_interval(values)
    assume(logs.std() > 1e-9)
    low, high = stats.t.interval(0.95, len(logs) - 1, loc=logs.mean(), scale=stats.sem(logs))
    assert interval.point == pytest.approx(stats.gmean(values))
    assert (interval.low, interval.high) == pytest.approx((math.exp(low), math.exp(high)))


@settings(deadline=None)
@given(st.lists(near_one, min_size=2, max_size=8), st.floats(1e-3, 1e3))
def test_the_interval_scales_with_the_unit(values, factor):
    plain, scaled = log_interval(values), log_interval([value * factor for value in values])
    assert scaled.point == pytest.approx(plain.point * factor)
    assert (scaled.low, scaled.high) == pytest.approx((plain.low * factor, plain.high * factor), rel=1e-6)


@pytest.mark.parametrize("n", [3, 6])
def test_95_percent_of_the_intervals_over_passes_cover_the_truth(n):
    samples = np.random.default_rng(20_240_501 + n).lognormal(mean=math.log(17.0), sigma=0.05, size=(4000, n))
    intervals = [log_interval(row) for row in samples]
    covered = sum(interval.low <= 17.0 <= interval.high for interval in intervals) / len(intervals)
    assert 0.93 <= covered <= 0.97


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_a_value_without_a_logarithm_is_refused(bad):
    sound = {1: 1.0, 2: 1.0}
    for interval_of, *values in (
        (log_interval, [1.0, bad, 2.0]),
        (ratio_interval, {1: 1.0, 2: bad}, sound),
        (ratio_interval, sound, {1: 1.0, 2: bad}),
        (unpaired_ratio, [1.0, 2.0], [1.0, bad]),
        (unpaired_ratio, [bad, 2.0], [1.0, 1.0]),
    ):
        with pytest.raises(ValueError, match="positive finite"):
            interval_of(*values)


def test_a_ratio_is_paired_by_pass():
    # The passes differ tenfold, but the ratios hardly differ, so the paired interval is narrow.
    slow, fast = {1: 10.0, 2: 100.0, 3: 1000.0}, {1: 20.0, 2: 202.0, 3: 1980.0}
    ratio = ratio_interval(fast, slow)
    assert ratio.point == pytest.approx((2.0 * 2.02 * 1.98) ** (1 / 3))
    assert ratio.n == 3
    assert ratio.high - ratio.low < 0.06 * ratio.point


def test_a_pass_without_both_values_is_left_out():
    ratio = ratio_interval({1: 2.0, 2: 2.0, 7: 1e9}, {1: 1.0, 2: 1.0, 8: 1e-9})
    assert (ratio.point, ratio.n) == (pytest.approx(2.0), 2)
    assert ratio_interval({1: 2.0, 7: -1.0}, {1: 1.0}).point == pytest.approx(2.0), "an unpaired value is not checked"


@pytest.mark.parametrize(("first", "second"), [({}, {}), ({1: 1.0}, {}), ({1: 1.0}, {2: 1.0})])
def test_without_a_shared_pass_there_is_no_ratio_and_no_difference(first, second):
    assert ratio_interval(first, second) is difference_interval(first, second) is None


def test_the_coefficient_of_variation_is_the_standard_deviation_over_the_mean():
    assert coefficient_of_variation([9.0, 10.0, 11.0]) == pytest.approx(0.1)
    assert coefficient_of_variation([5.0]) is None
    assert coefficient_of_variation([]) is None


@pytest.mark.parametrize(("degrees", "table"), [(1, 12.706), (2, 4.303), (5, 2.571), (30, 2.042)])
def test_the_quantile_equals_that_of_printed_tables(degrees, table):
    assert t_quantile(0.95, degrees) == pytest.approx(table, abs=5e-4)


# ---- values that may be 0 or negative -------------------------------------------------------------------------------


@given(st.lists(anything, min_size=2, max_size=12))
def test_the_linear_interval_equals_scipys(values):
    assume(np.std(values) > 1e-6)
    interval = linear_interval(values)
    low, high = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=stats.sem(values))
    assert interval.point == pytest.approx(np.mean(values), abs=1e-9)
    assert ends(interval) == pytest.approx((low, high), abs=1e-9)
    assert interval.n == len(values)


@given(st.lists(shares, min_size=2, max_size=12))
def test_the_interval_of_shares_is_the_linear_interval_cut_to_0_and_1(values):
    interval, uncut = share_interval(values), linear_interval(values)
    assert interval.point == uncut.point, "cutting the interval does not change the point"
    assert ends(interval) == (min(max(uncut.low, 0.0), 1.0), min(max(uncut.high, 0.0), 1.0))
    assert 0 <= interval.low <= interval.high <= 1


@pytest.mark.parametrize("bad", [-0.001, 1.001, 95.0])
@pytest.mark.parametrize("sound", [[0.5], []])
def test_a_value_that_is_not_a_share_is_refused(sound, bad):
    with pytest.raises(ValueError, match="between 0 and 1"):
        share_interval([*sound, bad])


@pytest.mark.parametrize(
    ("interval_of", "value"), [(linear_interval, 0.0), (share_interval, 0.0), (log_interval, 42.0)]
)
def test_a_single_value_is_a_point_without_an_interval(interval_of, value):
    interval = interval_of([value])
    assert (interval.point, interval.low, interval.high, interval.n) == (pytest.approx(value), None, None, 1)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_refused(bad):
    for interval_of, *values in (
        (linear_interval, [0.5, bad]),
        (share_interval, [0.5, bad]),
        (difference_interval, {1: 1.0, 2: bad}, {1: 0.5, 2: 0.5}),
        (unpaired_difference, [1.0, 2.0], [1.0, bad]),
    ):
        with pytest.raises(ValueError, match="finite values"):
            interval_of(*values)


@pytest.mark.parametrize("interval_of", [linear_interval, share_interval, unpaired_difference, unpaired_ratio])
def test_an_interval_of_no_values_is_refused(interval_of):
    arguments = ([], []) if interval_of in (unpaired_difference, unpaired_ratio) else ([],)
    with pytest.raises(ValueError, match="at least one"):
        interval_of(*arguments)


# ---- differences ----------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(anything, anything), min_size=2, max_size=10))
def test_a_paired_difference_equals_scipys(pairs):
    first, second = zip(*pairs, strict=True)
    assume(np.std(np.subtract(first, second)) > 1e-6)
    interval = difference_interval(dict(enumerate(first)), dict(enumerate(second)))
    expected = stats.ttest_rel(first, second).confidence_interval(0.95)
    assert interval.point == pytest.approx(np.mean(first) - np.mean(second), abs=1e-9)
    assert ends(interval) == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_a_difference_is_paired_by_the_number_of_the_pass():
    interval = difference_interval({3: 5.0, 1: 2.0, 7: 1e9}, {1: 1.0, 3: 4.0, 8: -1e9})
    assert (interval.point, *ends(interval), interval.n) == (1.0, 1.0, 1.0, 2)
    assert difference_interval({1: 5.0, 2: 1.0}, {1: 3.0}) == Interval(2.0, None, None, 1)


# ---- values that share no passes ------------------------------------------------------------------------------------

samples = st.lists(anything, min_size=2, max_size=10)


@given(samples, samples)
def test_an_unpaired_difference_equals_scipys_welch_interval(first, second):
    assume(min(np.std(first), np.std(second)) > 1e-3)
    interval = unpaired_difference(first, second)
    expected = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
    assert interval.point == pytest.approx(np.mean(first) - np.mean(second), abs=1e-9)
    assert ends(interval) == pytest.approx((expected.low, expected.high), abs=1e-6)
    assert interval.n == min(len(first), len(second)), "the smaller count limits the interval"


@given(st.lists(near_one, min_size=2, max_size=10), st.lists(near_one, min_size=2, max_size=10))
def test_an_unpaired_ratio_equals_welchs_interval_on_the_logarithms(first, second):
    assume(min(np.log(first).std(), np.log(second).std()) > 1e-3)
    interval = unpaired_ratio(first, second)
    expected = stats.ttest_ind(np.log(first), np.log(second), equal_var=False).confidence_interval(0.95)
    assert interval.point == pytest.approx(stats.gmean(first) / stats.gmean(second))
    assert ends(interval) == pytest.approx((math.exp(expected.low), math.exp(expected.high)))


@pytest.mark.parametrize("of", [unpaired_difference, unpaired_ratio])
def test_a_single_value_on_a_side_gives_a_point_without_an_interval(of):
    for first, second in (([4.0], [2.0, 2.0]), ([4.0, 4.0], [2.0]), ([4.0], [2.0])):
        interval = of(first, second)
        assert interval.point == pytest.approx(2.0)
        assert (*ends(interval), interval.n) == (None, None, 1)


@pytest.mark.parametrize("of", [unpaired_difference, unpaired_ratio])
def test_values_without_spread_have_an_interval_of_width_0(of):
    interval = of([4.0, 4.0], [2.0, 2.0, 2.0])
    assert (interval.point, *ends(interval), interval.n) == pytest.approx((2.0, 2.0, 2.0, 2))


def test_with_spread_on_one_side_only_its_passes_count():
    # Welch's degrees of freedom are those of the side that varies: t(0.975, 2) = 4.3027.
    interval = unpaired_difference([-1.0, 0.0, 1.0], [5.0] * 50)
    assert interval.high - interval.point == pytest.approx(4.3027 / math.sqrt(3), rel=1e-4)


def test_95_percent_of_welchs_intervals_cover_the_truth_with_unequal_spreads_and_counts():
    draw = np.random.default_rng(3)
    first, second = draw.normal(5, 1, size=(4000, 6)), draw.normal(3, 3, size=(4000, 4))
    intervals = [unpaired_difference(a, b) for a, b in zip(first, second, strict=True)]
    covered = sum(interval.low <= 2 <= interval.high for interval in intervals) / len(intervals)
    assert 0.935 <= covered <= 0.97


def test_the_quantile_equals_scipys_for_fractional_degrees_of_freedom():
    for degrees in (1.0, 1.37, 2.5, 17.9):
        assert t_quantile(0.95, degrees) == pytest.approx(stats.t.ppf(0.975, degrees))
