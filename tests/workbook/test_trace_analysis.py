"""Tests of trace analysis on made-up events: busy time, gaps, classes, copies, calls, sections and exchange."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.traces import (
    ADDITION,
    CONVOLUTION,
    REDUCTION,
    Event,
    call,
    columns,
    launched,
    operator,
    ranged,
    section,
    step,
    work,
    written,
)
from workbook.records.traced import RULES, Traced
from workbook.trace import Analysis, UntracedError, analyse

GEMM = "volta_sgemm_32x128_tn"
UNKNOWN = "triton__0d1d2d3d"


def said(*events: Event | list[Event], steps: int | None = None) -> Traced:
    """Return the analysis of a single piece with these events."""
    flat = [one for some in events for one in (some if isinstance(some, list) else [some])]
    analysis = Analysis()
    analysis.add(columns(flat), steps=steps)
    return analysis.traced()


# ---- busy time and gaps ---------------------------------------------------------------------------------------------


def test_concurrent_kernels_count_once_as_busy_time_and_twice_as_kernel_time() -> None:
    trace = said(step(0, 4), launched(CONVOLUTION, 0, 1, 3, 1), launched(ADDITION, 0, 2, 4, 2, stream=8))
    assert (trace.busy_s, trace.kernel_s, trace.overlapping_s, trace.elapsed_s) == (3, 4, 1, 4)
    assert trace.of == "kernels"


def test_copies_and_fills_make_a_device_active_but_not_busy() -> None:
    trace = said(
        step(0, 8),
        launched(ADDITION, 0, 1, 3, 1),
        work("Memcpy HtoD (Pinned -> Device)", 2, 5, kind="copy", stream=8, size=4_000),
        work("Memset (Device)", 5, 6, kind="fill", stream=8, size=64),
    )
    assert (trace.busy_s, trace.active_s) == (2, 5)
    assert (trace.copy_s, trace.copy_beside_kernel_s) == (3, 1)
    assert trace.fills is not None
    assert (trace.fills.seconds, trace.fills.count) == (1, 1)


FIRST = launched(GEMM, 0, 0.125, 1, 1)  # the device is busy from 0.125 to 1


@pytest.mark.parametrize(
    ("events", "gaps"),
    [
        pytest.param(
            [launched(ADDITION, 0, 0.125, 2, 1), launched(ADDITION, 2.5, 4, 5, 2)], (0.625, 1.375, 0.125),
            id="a launch gap until the next call ends, at 2.625, and then a queue gap",
        ),
        pytest.param(
            [call("cudaGraphLaunch", 0, 0.5, number=9), work(GEMM, 0.5, 1, number=9), work(GEMM, 2, 5, number=9)],
            (0, 1, 0.5), id="only a queue gap before work launched long ago",
        ),
        pytest.param(
            [FIRST, call("cudaLaunchKernel", 2, 4, number=2), work(GEMM, 3, 5, number=2)],
            (2, 0, 0.125), id="only a launch gap if the call ends after its kernel began",
        ),
        pytest.param([FIRST], (0, 0, 4.125), id="an edge gap before the first and after the last kernel"),
        pytest.param([FIRST, work(GEMM, 3, 5)], (0, 2, 0.125), id="a queue gap and a note without a call"),
    ],
)  # fmt: skip
def test_a_gap_of_the_device_has_a_cause(events: list[Event | list[Event]], gaps: tuple[float, ...]) -> None:
    trace = said(step(0, 5), *events)
    assert (trace.launch_gap_s, trace.queue_gap_s, trace.edge_gap_s) == gaps and trace.elapsed_s == 5
    assert any("no call" in note for note in trace.notes) == (events[-1] == work(GEMM, 3, 5))


def test_device_work_after_the_last_step_extends_the_step() -> None:
    trace = said(step(0, 1), step(1, 2), launched(GEMM, 1, 1.5, 7, 1), operator("aten::mm", 6, 9), steps=2)
    assert (trace.elapsed_s, trace.steps) == (7, 2)


def test_work_launched_before_the_steps_is_left_out() -> None:
    trace = said(launched(GEMM, 0, 0.5, 3, 1), step(2, 6), launched(ADDITION, 3, 4, 5, 2))
    assert (trace.busy_s, trace.elapsed_s) == (1, 4)
    assert any("1 kernels" in note for note in trace.notes)


def test_with_two_devices_times_are_means_and_kernel_times_are_sums() -> None:
    trace = said(
        step(0, 4),
        launched(GEMM, 0, 1, 4, 1),
        launched(GEMM, 0, 3, 4, 2, device=1),
        launched("ncclDevKernel_Broadcast_RING_LL(Args)", 0, 0.5, 1, 3),
        launched("ncclDevKernel_Broadcast_RING_LL(Args)", 0, 0.5, 1, 4, device=1),
    )
    assert (trace.devices, trace.elapsed_s) == (2, 4)
    assert (trace.busy_s, trace.kernel_s) == (2.5, 5)
    assert (trace.broadcast_s, trace.exchange_s, trace.exposed_exchange_s) == (1, 0.5, 0.5)
    gaps = [trace.launch_gap_s, trace.queue_gap_s, trace.edge_gap_s]
    assert trace.busy_s + sum(gap for gap in gaps if gap is not None) == trace.elapsed_s
    assert any("2 devices" in note for note in trace.notes)


# ---- classes of kernels ---------------------------------------------------------------------------------------------


def test_kernels_are_grouped_by_class_algorithm_and_length() -> None:
    trace = said(
        step(0, 9),
        launched(CONVOLUTION, 0, 1, 3, 1),
        launched(CONVOLUTION, 0, 3, 4, 2),
        launched("void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, 2>(Params)", 0, 4, 8, 3),
        launched("maxwell_scudnn_winograd_128x128_ldg1_ldg4_tile148n_nt", 0, 8, 8.5, 4),
        launched(ADDITION, 0, 8.5, 9, 5),
    )
    assert {kind: (total.seconds, total.count) for kind, total in trace.kernels.items()} == {
        "convolution": (7.5, 4),
        "element_wise": (0.5, 1),
    }
    assert {kind: total.seconds for kind, total in trace.algorithms.items()} == {
        "helper": 4,
        "tensor_core": 3,
        "winograd": 0.5,
    }
    assert [(kernel.seconds, kernel.count, kernel.kind) for kernel in trace.longest][:2] == [
        (4, 1, "convolution"),
        (3, 2, "convolution"),
    ]
    assert trace.convolution_kernel is not None
    assert trace.convolution_kernel.startswith("sm80_xmma_fprop")  # a change of layout computes no convolution


def test_a_kernel_without_a_rule_has_the_class_of_its_operator() -> None:
    events = [
        step(0, 8),
        operator("aten::native_batch_norm", 0, 1),
        operator("aten::empty", 0, 0.25),
        operator("autograd::engine::evaluate_function: Unheard", 2, 4),
        operator("aten::batch_norm", 4, 8, thread=2),
    ]
    assert {kind: total.count for kind, total in said(*events, launched(UNKNOWN, 0.5, 1, 2, 1)).kernels.items()} == {
        "batch_norm": 1
    }
    # Autograd's functions compute nothing, an operator of another thread is no caller, and the last work has no call.
    others = [*launched(UNKNOWN, 2.5, 3, 4, 2), *launched(UNKNOWN, 5, 6, 7, 3), work(UNKNOWN, 7, 8)]
    assert {kind: total.count for kind, total in said(*events, others).kernels.items()} == {"other": 3}


def test_a_matrix_product_called_by_a_convolution_counts_as_convolution() -> None:
    trace = said(
        step(0, 9),
        operator("aten::cudnn_convolution", 0, 1),
        launched(GEMM, 0.5, 1, 2, 1),
        operator("aten::addmm", 1, 2),
        launched(GEMM, 1.5, 2, 4, 2),
        operator("aten::convolution_backward", 2, 3),
        launched("void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(Params)", 2, 4, 5, 3),
        launched(GEMM, 2.5, 5, 9, 4),
    )
    assert {kind: total.seconds for kind, total in trace.kernels.items()} == {"convolution": 6, "matrix_product": 2}
    assert {kind: total.seconds for kind, total in trace.algorithms.items()} == {"winograd": 5, "implicit_gemm": 1}


def test_a_backward_pass_has_two_convolutions_with_their_own_algorithms() -> None:
    transform = "void cudnn::winograd_nonfused::winogradWgradData4x4<float, float>(Params)"
    back = "void cudnn::winograd_nonfused::winogradWgradOutput4x4<float, float>(Params)"
    trace = said(
        step(0, 40),
        operator("aten::convolution_backward", 0, 3),
        launched(GEMM, 0.1, 1, 2, 1),  # the gradient of the images, before that of the weights by Winograd
        launched(transform, 0.2, 2, 4, 2),
        launched(GEMM, 0.3, 4, 8, 3),
        launched(GEMM, 0.4, 8, 12, 4),
        launched(back, 0.5, 12, 13, 5),
        launched(GEMM, 0.6, 13, 14, 6),
        operator("aten::convolution_backward", 3, 6),
        launched("void fft2d_r2c_32x32<float, false, 0u, false>(float2*, int)", 3.1, 14, 15, 7),
        launched(GEMM, 3.2, 15, 17, 8),
        launched("void fft2d_c2r_32x32<float, false, false, 0u, false, false>(float*)", 3.3, 17, 18, 9),
        launched(GEMM, 3.4, 18, 21, 10),
    )
    assert {kind: total.seconds for kind, total in trace.algorithms.items()} == {
        "winograd": 2 + 4 + 4 + 1,
        "implicit_gemm": 1 + 1 + 2 + 3,
        "fft": 1 + 1,
    }
    assert trace.rules == RULES


COMPLEX = (
    "sm80_xmma_gemm_cf32cf32_f32f32_cf32_nt_n_tilesize64x32x8_stage3_warpsize2x2x1_ffma_aligna8_alignc8",
    "void pointwise_mult_and_sum_complex<float2, 8, 4>(float2*, float2*)",
    "void gemv2T_kernel_val<int, int, float2, float2, float2, float2, 128, 16, 2, 2, false, false, P>(P, float2)",
    "void splitKreduce_kernel<32, 16, int, float2, float2, float2, float2, true, true, false>(P)",
    "void DSE::regular_fft_pad<0, 1, 256, 16, 32, 1, float, float, float2>(float2*, float*)",
    "composite_2way_fft_2d_1d_64x64",
    "void internal::region_transform_ABC_val<int, 32, 32, false, internal::TransformParamsABC<float2, int> >(int)",
)


@pytest.mark.parametrize("called", [True, False], ids=["called", "captured"])
@pytest.mark.parametrize("name", COMPLEX)
def test_kernels_on_complex_numbers_are_fft_with_or_without_a_caller(name: str, called: bool) -> None:
    caller = [operator("aten::convolution_backward", 0, 1)] if called else []
    trace = said(step(0, 4), *caller, launched(name, 0.5, 1, 2, 1))
    assert {kind: total.seconds for kind, total in trace.algorithms.items()} == {"fft": 1}


def test_batch_norm_with_float2_is_not_fft() -> None:
    name = "void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512, true, 1>(float, float2)"
    assert set(said(step(0, 4), launched(name, 0.5, 1, 2, 1)).kernels) == {"batch_norm"}


def test_element_wise_kernels_have_the_class_of_their_section() -> None:
    trace = said(
        step(0, 8),
        section("load", 0, 2),
        launched(ADDITION, 0, 1, 2, 1),
        section("optimiser", 2, 4),
        launched(ADDITION, 2, 3, 4, 2),
        launched(GEMM, 3, 4, 5, 3),
        section("forward", 4, 8),
        launched(ADDITION, 5, 6, 7, 4),
    )
    assert {kind: total.count for kind, total in trace.kernels.items()} == {
        "loader": 1,
        "optimiser": 1,
        "matrix_product": 1,
        "element_wise": 1,
    }


def test_without_sections_pytorchs_range_marks_the_optimiser() -> None:
    trace = said(step(0, 4), ranged("Optimizer.step#SGD.step", 1, 3), launched(ADDITION, 2, 3, 4, 1))
    assert list(trace.kernels) == ["optimiser"]
    assert trace.sections["optimiser"].kernel_s == 1


def test_the_time_of_max_pooling_backward_is_separate() -> None:
    name = "void at::native::(anonymous namespace)::max_pool_backward_nchw<float, float>(float const*, long const*)"
    assert said(step(0, 4), launched(name, 0, 1, 3, 1), launched(ADDITION, 0, 3, 4, 2)).max_pool_backward_s == 2


# ---- copies, calls, sections, exchange ------------------------------------------------------------------------------


def test_copies_are_grouped_by_direction_with_their_sizes() -> None:
    def copy(words: str, at: float, size: int) -> Event:
        return work(f"Memcpy {words}", at, at + 0.5, kind="copy", stream=8, size=size)

    trace = said(
        step(0, 8),
        launched(GEMM, 0, 1, 2, 1),
        [copy("HtoD (Pageable -> Device)", at, size) for at, size in [(2, 10), (3, 400), (4, 20)]],
        copy("DtoH (Device -> Pinned)", 5, 8),
        copy("PtoP (Device -> Device)", 6, 32),
        copy("HtoH (Host -> Host)", 7, 64),
    )
    to_device = trace.copies["host_to_device"]
    assert (to_device.bytes, to_device.median_bytes, to_device.count, to_device.seconds) == (430, 20, 3, 1.5)
    assert set(trace.copies) == {"host_to_device", "device_to_host", "peer_to_peer"}
    assert trace.copy_s == 3
    assert any("direction" in note for note in trace.notes)


def test_a_copy_of_unknown_size_is_noted() -> None:
    trace = said(
        step(0, 2), launched(GEMM, 0, 1, 2, 1), work("Memcpy HtoD (Host -> Device)", 0, 1, kind="copy", size=-1)
    )
    assert trace.copies["host_to_device"].count == 1
    assert any("how large" in note for note in trace.notes)


def test_calls_are_grouped_by_class_without_nested_calls() -> None:
    trace = said(
        step(0, 9),
        call("cudaLaunchKernel", 0, 2, number=1),
        call("cuLaunchKernel", 0.5, 1.5, number=2),
        work(GEMM, 2, 3, number=1),
        call("cudaEventDestroy", 3, 3.5),
        call("cudaMemcpyAsync", 4, 5),
        call("cudaDeviceSynchronize", 5, 8),
        call("cudaEventRecord", 8, 8.25),
    )
    assert {kind: (total.seconds, total.count) for kind, total in trace.calls.items()} == {
        "wait": (3, 1),
        "launch": (2, 2),
        "memory": (1, 1),
        "clean_up": (0.5, 1),
        "other": (0.25, 1),
    }
    assert trace.calls_by_name["cuLaunchKernel"].seconds == trace.calls_by_name["cudaLaunchKernel"].seconds == 1


def test_a_call_belongs_to_the_hosts_section_and_a_kernel_to_that_of_its_call() -> None:
    trace = said(
        step(0, 8),
        section("forward", 0, 2),
        launched(GEMM, 1, 2, 6, 1),
        section("backward", 2, 7),
        launched(GEMM, 3, 6, 8, 2, thread=5),  # autograd's thread calls while the host waits
        call("cudaEventDestroy", 4, 4.5, thread=5),
    )
    assert list(trace.sections) == ["forward", "backward"]
    forward, backward = trace.sections["forward"], trace.sections["backward"]
    assert (forward.host_s, forward.kernel_s, forward.busy_s) == (2, 4, 4)
    assert (backward.host_s, backward.kernel_s, backward.busy_s) == (5, 2, 2)
    assert {kind: total.seconds for kind, total in backward.calls.items()} == {"clean_up": 0.5, "launch": 0.125}


def test_an_exchange_is_exposed_while_no_other_kernel_runs() -> None:
    trace = said(
        step(0, 10),
        launched(CONVOLUTION, 0, 1, 5, 1),
        launched(REDUCTION, 0, 4, 8, 2, stream=20),
        work("Memcpy DtoD (Device -> Device)", 5, 6, kind="copy", size=8),
    )
    assert (trace.exchange_s, trace.exposed_exchange_s) == (4, 3)
    assert trace.hidden_exchange_share == 0.25


# ---- a CPU ----------------------------------------------------------------------------------------------------------


def test_on_a_cpu_the_time_of_an_operator_excludes_nested_operators() -> None:
    trace = said(
        step(0, 10),
        section("forward", 0, 5),
        operator("aten::conv2d", 0, 4),
        operator("aten::mkldnn_convolution", 1, 3),
        operator("aten::addmm", 5, 6),
        section("backward", 5, 10),
        operator("autograd::engine::evaluate_function: AddmmBackward0", 6, 9, thread=2),
        operator("aten::mm", 6.5, 8.5, thread=2),
        operator("aten::max_pool2d_with_indices_backward", 8, 9, thread=3),
        operator("c10d::allreduce_", 9, 10),
        ranged("gloo:all_reduce", 8.5, 9.5, thread=4),
    )
    assert trace.of == "operators"
    assert {kind: total.seconds for kind, total in trace.kernels.items()} == {
        "convolution": 4,
        "matrix_product": 3,
        "pooling": 1,
    }
    assert {kind: total.count for kind, total in trace.algorithms.items()} == {"library": 2}
    assert (trace.busy_s, trace.active_s, trace.overlapping_s, trace.max_pool_backward_s) == (7.5, 7.5, 0.5, 1)
    assert (trace.launch_gap_s, trace.queue_gap_s, trace.calls) == (None, None, {})
    assert (trace.exchange_s, trace.exposed_exchange_s) == (1, 0.5)
    assert trace.sections["forward"].kernel_s == 4
    assert trace.sections["backward"].busy_s == 3.5


# ---- steps and pieces -----------------------------------------------------------------------------------------------


def test_steps_of_pytorchs_profiler_count_as_steps() -> None:
    trace = said(
        [ranged(f"ProfilerStep#{number}", 2 * number, 2 * number + 2) for number in range(3, 6)],
        launched(GEMM, 6, 7, 8, 1),
        launched(GEMM, 0, 1, 2, 2),
    )
    assert (trace.steps, trace.elapsed_s, trace.kernel_s) == (3, 6, 1)


def test_labkits_steps_take_precedence_over_the_profilers() -> None:
    trace = said(ranged("ProfilerStep#1", 0, 9), step(2, 4), step(4, 6), launched(GEMM, 3, 4, 5, 1))
    assert (trace.steps, trace.elapsed_s) == (2, 4)


def test_a_trace_without_steps_counts_as_a_single_step_with_a_note() -> None:
    trace = said(launched(GEMM, 1, 2, 3, 1), ranged("[whatever]", 0, 99))
    assert (trace.steps, trace.elapsed_s) == (1, pytest.approx(2))
    assert [note for note in trace.notes if "one step" in note] == trace.notes != []


def test_pieces_are_kept_separately_and_summed() -> None:
    analysis = Analysis("kernels")
    analysis.add(columns([step(0, 4), *launched(GEMM, 0, 1, 3, 1)]), steps=1)
    analysis.add(columns([step(0, 2), step(2, 3), *launched(CONVOLUTION, 1, 2, 5, 1)]), steps=2)
    trace = analysis.traced(asked_for=5, steps_before=300)
    assert analysis.steps == trace.steps == 3
    assert (trace.asked_for, trace.steps_before) == (5, 300)
    assert [(piece.steps, piece.elapsed_s, piece.busy_s, piece.kernel_s) for piece in trace.pieces] == [
        (1, 4, 2, {"matrix_product": 2}),
        (2, 5, 3, {"convolution": 3}),
    ]
    assert (trace.elapsed_s, trace.busy_s) == (9, 5)


def test_a_piece_that_is_refused_changes_nothing() -> None:
    analysis = Analysis()
    analysis.add(columns([step(0, 4), *launched(GEMM, 0, 1, 3, 1)]))
    before = analysis.traced()
    with pytest.raises(UntracedError, match="1 of 2"):
        analysis.add(columns([step(0, 4), *launched(GEMM, 0, 1, 3, 1)]), steps=2)
    with pytest.raises(UntracedError, match="no kernels"):
        analysis.add(columns([step(0, 4), operator("aten::mm", 0, 1)]))
    assert analysis.traced() == before


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ([step(0, 1)], "no operator"),
        ([step(0, 1), call("cudaLaunchKernel", 0, 0.5, number=1)], "holds launches of kernels but no kernels"),
        ([ranged("whatever", 0, 1)], "ranges only"),
        ([step(0, 1), operator("aten::mm", 5, 6)], "no operator"),
    ],
)
def test_a_trace_without_events_in_its_steps_is_refused(events: list[Event], says: str) -> None:
    with pytest.raises(UntracedError, match=says):
        said(*events)


def test_an_analysis_without_pieces_is_refused() -> None:
    with pytest.raises(UntracedError, match="no step was traced"):
        Analysis().traced()


# ---- properties of any trace ----------------------------------------------------------------------------------------

NAMES = [GEMM, CONVOLUTION, ADDITION, REDUCTION, UNKNOWN, "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>(Params)"]
STEP_S = 8.0


@st.composite
def pieces(draw: st.DrawFn) -> list[Event]:
    """Draw two steps with a pause between them. All work of the first step ends before the second."""
    events: list[Event] = []
    number = 0
    for first in (0.0, 100.0):
        events.append(step(first, first + STEP_S))
        for _ in range(draw(st.integers(1, 8))):
            number += 1
            at = first + draw(st.integers(0, 56)) / 8
            begun = at + draw(st.integers(0, 40)) / 8
            ended = begun + draw(st.integers(1, 40)) / 8
            kind = draw(st.sampled_from(["kernel", "kernel", "kernel", "copy", "fill"]))
            name = {"copy": "Memcpy HtoD (Pinned -> Device)", "fill": "Memset (Device)"}.get(kind)
            name = name or draw(st.sampled_from(NAMES))
            stream, size = draw(st.integers(7, 9)), draw(st.integers(1, 100))
            events.append(call("cudaLaunchKernel", at, at + 0.125, number=number))
            events.append(work(name, begun, ended, number=number, kind=kind, stream=stream, size=size))
        events += launched(GEMM, first, first + 1, first + 2, number + 1000)
    return events


@settings(max_examples=80, deadline=None)
@given(pieces())
def test_times_of_any_trace_are_consistent(events: list[Event]) -> None:
    trace = said(*events)
    kernels_s = sum(row.ended_s - row.began_s for row in events if row.kind == "kernel")
    assert trace.kernel_s == pytest.approx(kernels_s)
    assert sum(total.count for total in trace.kernels.values()) == sum(row.kind == "kernel" for row in events)
    assert sum(total.seconds for total in trace.algorithms.values()) == pytest.approx(
        trace.kernels["convolution"].seconds if "convolution" in trace.kernels else 0
    )
    assert 0 <= trace.overlapping_s <= trace.busy_s <= trace.active_s <= trace.elapsed_s
    assert trace.busy_s <= trace.kernel_s + 1e-9
    assert trace.busy_s + trace.overlapping_s <= trace.kernel_s + 1e-9
    assert 0 <= trace.copy_beside_kernel_s <= trace.copy_s <= trace.active_s
    assert 0 <= trace.exposed_exchange_s <= trace.exchange_s <= trace.busy_s
    assert trace.launch_gap_s is not None
    assert trace.queue_gap_s is not None
    assert min(trace.launch_gap_s, trace.queue_gap_s) >= 0
    assert trace.edge_gap_s is not None and trace.edge_gap_s >= 0
    gaps_s = trace.launch_gap_s + trace.queue_gap_s + trace.edge_gap_s
    assert trace.active_s + gaps_s == pytest.approx(trace.elapsed_s)
    assert sum(row.bytes for row in trace.copies.values()) == sum(row.bytes for row in events if row.kind == "copy")
    assert Traced.model_validate_json(trace.model_dump_json()) == trace


@settings(max_examples=80, deadline=None)
@given(pieces())
def test_the_sum_of_the_pieces_of_a_trace_equals_the_whole(events: list[Event]) -> None:
    """The pause between the two steps is in neither piece."""
    whole = said(*events)
    analysis = Analysis()
    for first in (0.0, 100.0):
        kept = [row for row in events if first <= row.began_s < first + 50]
        analysis.add(columns([replace(row, began_s=row.began_s + 7, ended_s=row.ended_s + 7) for row in kept]), steps=1)
    parts = analysis.traced()
    assert parts.steps == whole.steps == 2
    assert parts.kernels.keys() == whole.kernels.keys()
    for kind, total in whole.kernels.items():
        assert (parts.kernels[kind].seconds, parts.kernels[kind].count) == (pytest.approx(total.seconds), total.count)
    for name in ("busy_s", "active_s", "overlapping_s", "copy_s", "copy_beside_kernel_s", "exchange_s"):
        assert getattr(parts, name) == pytest.approx(getattr(whole, name)), name
    assert parts.copies == {key: replace_seconds(parts.copies[key].seconds, row) for key, row in whole.copies.items()}
    assert parts.elapsed_s == pytest.approx(sum(row.elapsed_s for row in parts.pieces))
    assert parts.elapsed_s < whole.elapsed_s
    # The time before a piece's first kernel is an edge gap, but within a whole trace a part of it is a queue gap.
    assert parts.queue_gap_s is not None
    assert whole.queue_gap_s is not None
    assert whole.queue_gap_s - 2 * STEP_S <= parts.queue_gap_s <= whole.queue_gap_s + 1e-9


def replace_seconds(seconds: float, one):
    """Return the copies with another time, which differs at most in its last digit."""
    assert seconds == pytest.approx(one.seconds)
    return one.model_copy(update={"seconds": seconds})


# ---- files ----------------------------------------------------------------------------------------------------------


def test_the_analysis_of_a_file_equals_that_of_its_events(tmp_path: Path) -> None:
    events = [step(0, 4), *launched(CONVOLUTION, 0, 1, 3, 1), operator("aten::conv2d", 0, 1)]
    trace = analyse(written(events, tmp_path / "trace.json.gz"))
    assert (trace.busy_s, trace.elapsed_s) == (pytest.approx(2), pytest.approx(4))
    assert trace.convolution_kernel == said(*events).convolution_kernel


def test_the_error_for_a_file_without_operators_names_the_file(tmp_path: Path) -> None:
    file = written([step(0, 4), operator("c10d::allreduce_", 0, 1)], tmp_path / "mine.json")
    with pytest.raises(UntracedError, match=r"^mine\.json can't be analysed: the profiler saw no operator"):
        analyse(file)


def test_a_real_trace_of_a_small_network_is_consistent(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(8 * 7 * 7, 10),
    )
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    images, labels = torch.randn(4, 3, 16, 16), torch.randint(10, (4,))

    def train() -> None:
        optimiser.zero_grad()
        with torch.profiler.record_function("labkit section: forward"):
            logits = network(images)
        with torch.profiler.record_function("labkit section: loss"):
            loss = torch.nn.functional.cross_entropy(logits, labels)
        with torch.profiler.record_function("labkit section: backward"):
            loss.backward()
        with torch.profiler.record_function("labkit section: optimiser"):
            optimiser.step()

    train()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as tracer:
        for _ in range(3):
            with torch.profiler.record_function("labkit step"):
                train()
    file = tmp_path / "trace.json"
    tracer.export_chrome_trace(str(file))
    trace = analyse(file)
    assert (trace.of, trace.steps, trace.notes) == ("operators", 3, [])
    assert {"convolution", "batch_norm", "pooling", "matrix_product", "loss", "optimiser"} <= set(trace.kernels)
    assert "other" not in trace.kernels
    by_pytorch = {item.key: (item.self_cpu_time_total * 1e-6, item.count) for item in tracer.key_averages()}
    for item in trace.longest:
        if item.kind not in ("optimiser", "element_wise", "layout"):  # their operators are of several classes
            assert (item.seconds, item.count) == (
                pytest.approx(by_pytorch[item.name][0], abs=1e-6),
                by_pytorch[item.name][1],
            )
    assert sum(item.kind == "convolution" for item in trace.longest) >= 2
    assert list(trace.sections) == ["forward", "loss", "backward", "optimiser"]
    assert 0 < trace.max_pool_backward_s < trace.kernels["pooling"].seconds
    assert 0 < trace.busy_s <= trace.elapsed_s
    assert trace.busy_s <= trace.kernel_s * (1 + 1e-6)
    assert sum(item.kernel_s for item in trace.sections.values()) <= trace.kernel_s * (1 + 1e-6)
    # Some operators are outside all sections (zero_grad), and each section has operators.
    assert all(0 < item.busy_s <= item.host_s for item in trace.sections.values())
