"""An interval covers what it says, and there is none where nothing can be said."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from labkit.statistics import coefficient_of_variation, log_interval, ratio_interval, t_quantile

near_one = st.floats(0.5, 2.0)


def test_the_interval_of_two_values_is_what_a_pocket_calculator_gives():
    # Logs 0 and ln 4: mean ln 2, standard deviation ln 4 / sqrt 2, t(0.975, 1) = 12.706;
    # so half the interval is 12.706 * ln 4 / 2 = 8.807.
    interval = log_interval([1.0, 4.0])
    assert interval.point == pytest.approx(2.0)
    assert interval.low == pytest.approx(2 * math.exp(-8.807), rel=1e-3)
    assert interval.high == pytest.approx(2 * math.exp(8.807), rel=1e-3)
    assert (interval.n, interval.confidence) == (2, 0.95)


def test_the_interval_of_three_values_is_what_a_pocket_calculator_gives():
    # Logs -0.1, 0, 0.1: standard deviation 0.1, t(0.975, 2) = 4.3027: half = 4.3027 * 0.1 / sqrt 3 = 0.24842.
    interval = log_interval([math.exp(-0.1), 1.0, math.exp(0.1)])
    assert interval.point == pytest.approx(1.0)
    assert (interval.low, interval.high) == pytest.approx((math.exp(-0.24842), math.exp(0.24842)), rel=1e-4)
    assert interval.half_width == pytest.approx(math.sinh(0.24842), rel=1e-4)


@settings(deadline=None)
@given(st.lists(near_one, min_size=3, max_size=12), st.sampled_from([0.8, 0.95, 0.99]))
def test_the_interval_is_scipys_on_the_logarithms(values, confidence):
    logs = np.log(values)
    interval = log_interval(values, confidence)
    assume(logs.std() > 1e-9)
    low, high = stats.t.interval(confidence, len(logs) - 1, loc=logs.mean(), scale=stats.sem(logs))
    assert interval.point == pytest.approx(stats.gmean(values))
    assert (interval.low, interval.high) == pytest.approx((math.exp(low), math.exp(high)))


@settings(deadline=None)
@given(st.lists(near_one, min_size=2, max_size=8), st.floats(1e-3, 1e3))
def test_the_unit_does_not_matter(values, factor):
    one, other = log_interval(values), log_interval([value * factor for value in values])
    assert other.point == pytest.approx(one.point * factor)
    assert other.half_width == pytest.approx(one.half_width, rel=1e-6, abs=1e-12)


@settings(deadline=None)
@given(st.lists(near_one, min_size=2, max_size=8))
def test_times_and_rates_say_the_same(values):
    time, rate = log_interval(values), log_interval([1 / value for value in values])
    assert (1 / rate.high, 1 / rate.point, 1 / rate.low) == pytest.approx((time.low, time.point, time.high))


@pytest.mark.parametrize("n", [3, 6])
def test_95_percent_of_the_intervals_over_passes_cover_the_truth(n):
    samples = np.random.default_rng(20_240_501 + n).lognormal(mean=math.log(17.0), sigma=0.05, size=(4000, n))
    intervals = [log_interval(row) for row in samples]
    covered = sum(interval.low <= 17.0 <= interval.high for interval in intervals) / len(intervals)
    assert 0.93 <= covered <= 0.97


def test_a_normal_quantile_in_place_of_students_would_fail_the_coverage_test():
    # Shows that the test above can fail: with three passes a normal interval covers about 81 %.
    samples = np.log(np.random.default_rng(1).lognormal(sigma=0.05, size=(4000, 3)))
    half = 1.96 * samples.std(axis=1, ddof=1) / math.sqrt(3)
    assert np.mean(np.abs(samples.mean(axis=1)) <= half) < 0.85


def test_one_value_is_a_point_without_an_interval():
    interval = log_interval([42.0])
    assert interval.point == pytest.approx(42.0)
    assert (interval.low, interval.high, interval.half_width, interval.n) == (None, None, None, 1)


def test_equal_values_have_an_interval_of_no_width():
    interval = log_interval([3.0, 3.0, 3.0])
    assert (interval.low, interval.high) == pytest.approx((3.0, 3.0))
    assert interval.half_width == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_a_value_without_a_logarithm_is_refused(bad):
    with pytest.raises(ValueError, match="positive finite"):
        log_interval([1.0, bad, 2.0])
    with pytest.raises(ValueError, match="positive finite"):
        ratio_interval({1: 1.0, 2: bad}, {1: 1.0, 2: 1.0})
    with pytest.raises(ValueError, match="positive finite"):
        ratio_interval({1: 1.0, 2: 1.0}, {1: 1.0, 2: bad})


def test_two_negative_values_do_not_make_a_positive_ratio():
    with pytest.raises(ValueError, match="positive finite"):
        ratio_interval({1: -4.0}, {1: -2.0})


def test_no_value_at_all_is_refused():
    with pytest.raises(ValueError, match="at least one value"):
        log_interval([])


def test_a_ratio_is_taken_within_each_pass_first():
    # The passes differ tenfold, the ratio hardly: paired it is sharp.
    slow, fast = {1: 10.0, 2: 100.0, 3: 1000.0}, {1: 20.0, 2: 202.0, 3: 1980.0}
    ratio = ratio_interval(fast, slow)
    assert ratio.point == pytest.approx((2.0 * 2.02 * 1.98) ** (1 / 3))
    assert ratio.n == 3
    assert ratio.half_width < 0.03


def test_a_ratio_pairs_by_the_passes_number_not_by_its_place():
    assert ratio_interval({2: 6.0, 1: 2.0}, {1: 1.0, 2: 3.0}).half_width == pytest.approx(0.0, abs=1e-9)


def test_a_pass_that_holds_only_one_of_the_two_is_left_out():
    ratio = ratio_interval({1: 2.0, 2: 2.0, 7: 1e9}, {1: 1.0, 2: 1.0, 8: 1e-9})
    assert (ratio.point, ratio.n) == (pytest.approx(2.0), 2)
    assert ratio_interval({1: 2.0, 7: -1.0}, {1: 1.0}).point == pytest.approx(2.0), "and is not looked at"


def test_a_ratio_of_one_shared_pass_is_a_point_without_an_interval():
    ratio = ratio_interval({1: 3.0, 2: 1.0}, {1: 2.0})
    assert (ratio.point, ratio.low, ratio.high, ratio.n) == (pytest.approx(1.5), None, None, 1)


@pytest.mark.parametrize(("top", "bottom"), [({}, {}), ({1: 1.0}, {}), ({1: 1.0}, {2: 1.0})])
def test_without_a_shared_pass_there_is_no_ratio(top, bottom):
    assert ratio_interval(top, bottom) is None


def test_the_coefficient_of_variation_is_the_standard_deviation_over_the_mean():
    assert coefficient_of_variation([9.0, 10.0, 11.0]) == pytest.approx(0.1)
    assert coefficient_of_variation([5.0]) is None
    assert coefficient_of_variation([]) is None


@pytest.mark.parametrize(("degrees", "table"), [(1, 12.706), (2, 4.303), (5, 2.571), (30, 2.042)])
def test_the_quantile_is_the_one_in_printed_tables(degrees, table):
    assert t_quantile(0.95, degrees) == pytest.approx(table, abs=5e-4)
