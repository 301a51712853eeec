"""Tests of spans of time: union, gaps, shared and own time, nesting. Times are multiples of 1/8 s, which are exact."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbook.trace.spans import Spans, innermost, own_s, repeated_s, within

SPANS = st.lists(st.tuples(st.integers(0, 80), st.integers(0, 20)), max_size=25)
MOMENTS = [(n + 0.5) / 8 for n in range(110)]  # midpoints between all possible edges


def columns(spans: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    begin = np.array([at / 8 for at, _ in spans])
    return begin, begin + np.array([length / 8 for _, length in spans])


def covered(spans: list[tuple[int, int]], times: int = 1) -> set[float]:
    return {m for m in MOMENTS if sum(at / 8 < m < (at + length) / 8 for at, length in spans) >= times}


def test_overlapping_spans_count_once() -> None:
    union = Spans.union(np.array([0.0, 1, 3, 6, 6]), np.array([2.0, 3, 4, 7, 6.5]))
    assert union.begin.tolist() == [0, 6]
    assert union.end.tolist() == [4, 7]
    assert union.length_s == 5


def test_gaps_are_the_time_outside_the_spans() -> None:
    gaps = Spans.union(np.array([1.0, 4]), np.array([3.0, 5])).gaps(6)
    assert list(zip(gaps.begin.tolist(), gaps.end.tolist(), strict=True)) == [(0, 1), (3, 4), (5, 6)]
    assert Spans.union(np.array([0.0]), np.array([6.0])).gaps(6).length_s == 0
    assert Spans.union(np.zeros(0), np.zeros(0)).gaps(6).length_s == 6


@given(SPANS, SPANS)
def test_lengths_equal_a_count_of_moments(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    first, second = Spans.union(*columns(one)), Spans.union(*columns(other))
    assert first.length_s == len(covered(one)) / 8
    assert first.shared_s(second) == second.shared_s(first) == len(covered(one) & covered(other)) / 8
    assert repeated_s(*columns(one)) == len(covered(one, 2)) / 8
    assert first.gaps(20).length_s + first.length_s == 20


def test_the_own_time_of_an_operator_excludes_nested_operators() -> None:
    begin, end = np.array([0.0, 1, 2, 5, 0]), np.array([8.0, 4, 3, 7, 1])
    thread = np.array([1, 1, 1, 1, 2])
    parents = within(begin, end, thread)
    assert parents.tolist() == [-1, 0, 1, 0, -1]
    assert own_s(begin, end, parents).tolist() == [3, 2, 1, 2, 1]


@given(SPANS, st.integers(1, 3))
def test_own_times_of_a_thread_sum_to_its_busy_time(spans: list[tuple[int, int]], threads: int) -> None:
    begin, end = columns(nested(spans))
    thread = np.zeros(len(begin), dtype=np.int64)
    lanes = np.concatenate([thread + lane for lane in range(threads)])
    begins, ends = np.tile(begin, threads), np.tile(end, threads)
    own = own_s(begins, ends, within(begins, ends, lanes))
    assert own.sum() == pytest.approx(threads * Spans.union(begin, end).length_s)
    assert (own >= 0).all()


def nested(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the spans that are nested or disjoint, like operators of a thread."""
    kept: list[tuple[int, int]] = []
    for at, length in spans:
        begin, end = at, at + length
        if all(
            end <= b or begin >= b + n or (b <= begin and end <= b + n) or (begin <= b and b + n <= end)
            for b, n in kept
        ):
            kept.append((at, length))
    return kept


def test_the_innermost_operator_around_a_call_is_of_the_same_thread() -> None:
    begin, end, thread = np.array([0.0, 1, 2, 0]), np.array([8.0, 4, 3, 9]), np.array([1, 1, 1, 2])
    at, at_thread = np.array([2.5, 3.5, 6, 8.5, 2.5, 5]), np.array([1, 1, 1, 1, 2, 3])
    assert innermost(begin, end, thread, at, at_thread).tolist() == [2, 1, 0, -1, 3, -1]
