"""What a trace says of computation and exchange, from events made up here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.errors import UserError
from labkit.measure.trace import (
    STEP,
    Event,
    Kind,
    UntracedError,
    events_of,
    length_s,
    of_steps,
    overlap,
    union,
    without,
)
from labkit.trial import Trial

CONVOLUTION, REDUCTION = "sm90_xmma_fprop", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def kernel(name: str, began_s: float, ended_s: float, *, stream: int = 7, kind: Kind = "kernel") -> Event:
    return Event(name, kind, began_s, ended_s, stream)


# ---- stretches of time ----------------------------------------------------------------------------------------------


def test_what_runs_at_once_counts_once() -> None:
    events = [kernel("a", 0, 2), kernel("b", 1, 3, stream=8), kernel("c", 3, 4), kernel("d", 6, 7), kernel("e", 6, 6.5)]
    assert union(events) == [(0, 4), (6, 7)]
    assert length_s(union(events)) == 5


def test_what_is_taken_away_leaves_the_rest_in_pieces() -> None:
    assert without([(0, 10)], [(-1, 1), (2, 3), (9, 12)]) == [(1, 2), (3, 9)]
    assert without([(0, 1), (2, 3)], [(0, 3)]) == []
    assert without([(0, 1)], []) == [(0, 1)]


def test_an_exchange_is_hidden_while_any_other_kernel_runs() -> None:
    events = [
        kernel(CONVOLUTION, 1, 4),
        kernel(CONVOLUTION, 3, 5, stream=9),
        kernel(REDUCTION, 4, 8, stream=20),
        kernel("Memcpy DtoD", 5, 6, kind="copy"),
        kernel("aten::convolution", 0, 9, kind="operator"),
        kernel("nccl:all_reduce", 0, 9, kind="range"),
        kernel("sgd", 9, 10),
    ]
    found = overlap(events, on_gpu=True)
    assert (found.span_s, found.compute_s, found.exchange_s, found.exposed_exchange_s) == (9, 5, 4, 3)
    assert found.hidden_exchange_share == 0.25


def test_without_a_gpu_operators_compute_and_gloo_exchanges() -> None:
    events = [
        kernel("aten::convolution", 0, 4, kind="operator"),
        kernel("aten::mkldnn_convolution", 1, 3, kind="operator"),
        kernel("c10d::allreduce_", 4, 5, kind="operator"),
        kernel("gloo:all_reduce", 3, 6, kind="range", stream=8),
        kernel("Optimizer.step#SGD.step", 0, 9, kind="range"),
    ]
    found = overlap(events, on_gpu=False)
    assert (found.span_s, found.compute_s, found.exchange_s, found.exposed_exchange_s) == (6, 4, 3, 2)


def test_nothing_exchanged_has_no_share() -> None:
    assert overlap([kernel(CONVOLUTION, 0, 1)], on_gpu=True).hidden_exchange_share is None
    assert overlap([], on_gpu=True).span_s == 0


SOME = st.lists(
    st.builds(
        lambda name, at, length, stream: kernel(name, at / 8, (at + length) / 8, stream=stream),
        st.sampled_from([CONVOLUTION, REDUCTION]),
        st.integers(0, 80),
        st.integers(0, 20),
        st.integers(0, 3),
    ),
    max_size=30,
)


@given(SOME)
def test_parts_of_a_trace_add_up(events: list[Event]) -> None:
    found = overlap(events, on_gpu=True)
    computing = union(one for one in events if one.name == CONVOLUTION)
    exchanging = union(one for one in events if one.name == REDUCTION)
    hidden_s = length_s(exchanging) - length_s(without(exchanging, computing))
    # Eighths of a second are exact: how often each of them is covered says the same without any union.
    moments = [n / 8 + 1 / 16 for n in range(120)]
    busy = {name: {m for m in moments for e in events if e.name == name and e.began_s < m < e.ended_s}
            for name in (CONVOLUTION, REDUCTION)}  # fmt: skip
    assert found.compute_s == len(busy[CONVOLUTION]) / 8
    assert found.exchange_s == len(busy[REDUCTION]) / 8
    assert hidden_s == len(busy[CONVOLUTION] & busy[REDUCTION]) / 8
    assert found.exposed_exchange_s + hidden_s == found.exchange_s
    assert max(found.compute_s, found.exchange_s) <= found.span_s
    assert length_s(union(events)) == found.compute_s + found.exposed_exchange_s
    if found.exchange_s:
        assert found.hidden_exchange_share == pytest.approx(hidden_s / found.exchange_s)


# ---- from the profiler's file ---------------------------------------------------------------------------------------


def row(name: str, category: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "ts": ts, "dur": dur, "tid": 12, "args": args}


def test_a_file_of_the_profiler_becomes_events_in_seconds() -> None:
    rows = [
        row("void gemm", "kernel", 5e6, 250.5, stream=7),
        row("aten::mm", "cpu_op", 4e6, 1.0),
        row("nccl:all_reduce", "gpu_user_annotation", 5e6, 9.0, stream=20),
        row("Memset", "gpu_memset", 5e6, 1.0, stream=7),
        {"ph": "f", "cat": "ac2g", "name": "ac2g", "ts": 1, "tid": 12},
        {"ph": "M", "name": "process_name", "ts": 1, "tid": 0, "args": {"name": "python"}},
    ]
    gemm, mm, memset = events_of(rows)
    assert (gemm.name, gemm.kind, gemm.began_s, gemm.stream) == ("void gemm", "kernel", 5.0, 7)
    assert gemm.ended_s - gemm.began_s == pytest.approx(250.5e-6)
    assert (mm.kind, mm.stream, memset.kind) == ("operator", 12, "fill")


def test_only_what_belongs_to_the_steps_is_kept() -> None:
    steps = [kernel(STEP, 10, 11, kind="range"), kernel(STEP, 12, 13, kind="range")]
    others = [
        kernel("gloo:barrier", 9, 9.5, kind="range"),
        kernel("aten::mm", 12.5, 12.75, kind="operator"),
        kernel(CONVOLUTION, 9, 9.5),
        kernel(CONVOLUTION, 13.5, 14),
        kernel("gloo:all_reduce", 13.5, 14, kind="range"),
    ]
    kept = of_steps([*others, *steps], 2, on_gpu=True)
    assert [(one.name, one.began_s, one.ended_s) for one in kept] == [
        (STEP, 0, 1),
        (STEP, 2, 3),
        ("aten::mm", 2.5, 2.75),
        (CONVOLUTION, 3.5, 4),
    ]
    with pytest.raises(UntracedError, match="saw 2 of 3 steps"):
        of_steps(steps, 3, on_gpu=True)
    with pytest.raises(UntracedError, match="saw no kernels"):
        of_steps([*steps, replace(others[1], kind="operator")], 2, on_gpu=True)


def test_whole_epochs_are_not_traced() -> None:
    with pytest.raises(UserError, match="whole epochs or traces steps"):
        Trial(epochs=1, traced_iterations=5)
    with pytest.raises(UserError, match="traced_iterations is at least 0"):
        Trial(traced_iterations=-1)
