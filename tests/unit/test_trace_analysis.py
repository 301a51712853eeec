"""What traces say: busy time, gaps, classes, copies, calls, sections and exchange, of events made by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.measure.trace import Analysis, UntracedError, analyse
from labkit.records.traced import RULES, Traced
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

GEMM = "volta_sgemm_32x128_tn"
UNKNOWN = "triton__0d1d2d3d"


def said(*events: Event | list[Event], steps: int | None = None) -> Traced:
    """What one piece says."""
    flat = [one for some in events for one in (some if isinstance(some, list) else [some])]
    analysis = Analysis()
    analysis.add(columns(flat), steps=steps)
    return analysis.traced()


# ---- busy, and what the device waits for ----------------------------------------------------------------------------


def test_two_kernels_at_once_are_busy_once_and_count_twice() -> None:
    found = said(step(0, 4), launched(CONVOLUTION, 0, 1, 3, 1), launched(ADDITION, 0, 2, 4, 2, stream=8))
    assert (found.busy_s, found.kernel_s, found.overlapping_s, found.elapsed_s) == (3, 4, 1, 4)
    assert found.of == "kernels"


def test_copies_and_fills_keep_a_device_active_and_not_busy() -> None:
    found = said(
        step(0, 8),
        launched(ADDITION, 0, 1, 3, 1),
        work("Memcpy HtoD (Pinned -> Device)", 2, 5, kind="copy", stream=8, size=4_000),
        work("Memset (Device)", 5, 6, kind="fill", stream=8, size=64),
    )
    assert (found.busy_s, found.active_s) == (2, 5)
    assert (found.copy_s, found.copy_beside_kernel_s) == (3, 1)
    assert found.fills is not None
    assert (found.fills.seconds, found.fills.count) == (1, 1)


def test_a_gap_is_a_launch_gap_until_the_next_call_has_ended_and_a_queue_gap_after_it() -> None:
    # The device ends at 2, the second call is from 2.5 to 2.625, its kernel begins at 4.
    found = said(step(0, 5), launched(ADDITION, 0, 0.125, 2, 1), launched(ADDITION, 2.5, 4, 5, 2))
    assert (found.launch_gap_s, found.queue_gap_s) == (0.625, 1.375)
    assert found.edge_gap_s == 0.125, "before the first kernel only the piece begins"


def test_a_gap_before_what_was_launched_long_ago_is_a_queue_gap_alone() -> None:
    graph = [call("cudaGraphLaunch", 0, 0.5, number=9)]
    found = said(step(0, 4), graph, work(GEMM, 0.5, 1, number=9), work(GEMM, 2, 4, number=9))
    assert (found.launch_gap_s, found.queue_gap_s, found.edge_gap_s) == (0, 1, 0.5)


def test_a_call_that_ends_after_its_kernel_began_makes_the_whole_gap_a_launch_gap() -> None:
    found = said(
        step(0, 4), launched(GEMM, 0, 0.125, 1, 1), call("cudaLaunchKernel", 2, 4, number=2), work(GEMM, 3, 4, number=2)
    )
    assert (found.launch_gap_s, found.queue_gap_s, found.edge_gap_s) == (2, 0, 0.125)


def test_what_lies_before_the_first_kernel_and_after_the_last_is_the_piece_s_edge() -> None:
    found = said(step(0, 4), launched(GEMM, 0, 0.125, 1, 1))
    assert (found.elapsed_s, found.launch_gap_s, found.queue_gap_s, found.edge_gap_s) == (4, 0, 0, 3.125)


def test_a_device_that_works_on_after_the_last_step_makes_it_longer() -> None:
    found = said(step(0, 1), step(1, 2), launched(GEMM, 1, 1.5, 7, 1), operator("aten::mm", 6, 9), steps=2)
    assert (found.elapsed_s, found.steps) == (7, 2)


def test_a_gap_before_work_without_a_call_is_a_queue_gap_and_said_so() -> None:
    found = said(step(0, 4), launched(GEMM, 0, 0.125, 1, 1), work(GEMM, 3, 4))
    assert (found.launch_gap_s, found.queue_gap_s, found.edge_gap_s) == (0, 2, 0.125)
    assert any("no call in the trace" in note for note in found.notes)


def test_what_was_launched_before_the_steps_is_none_of_theirs() -> None:
    found = said(launched(GEMM, 0, 0.5, 3, 1), step(2, 6), launched(ADDITION, 3, 4, 5, 2))
    assert (found.busy_s, found.elapsed_s) == (1, 4)
    assert any("1 kernels or copies of earlier work" in note for note in found.notes)


def test_of_two_devices_times_are_the_mean_and_kernels_the_sum() -> None:
    found = said(
        step(0, 4),
        launched(GEMM, 0, 1, 4, 1),
        launched(GEMM, 0, 3, 4, 2, device=1),
        launched("ncclDevKernel_Broadcast_RING_LL(Args)", 0, 0.5, 1, 3),
        launched("ncclDevKernel_Broadcast_RING_LL(Args)", 0, 0.5, 1, 4, device=1),
    )
    assert (found.devices, found.elapsed_s) == (2, 4)
    assert (found.busy_s, found.kernel_s) == (2.5, 5)
    assert (found.broadcast_s, found.exchange_s, found.exposed_exchange_s) == (1, 0.5, 0.5)
    gaps = [found.launch_gap_s, found.queue_gap_s, found.edge_gap_s]
    assert found.busy_s + sum(gap for gap in gaps if gap is not None) == found.elapsed_s
    assert any("mean of 2 devices" in note for note in found.notes)


# ---- what kernels do ------------------------------------------------------------------------------------------------


def test_kernels_stand_by_class_algorithm_and_length() -> None:
    found = said(
        step(0, 9),
        launched(CONVOLUTION, 0, 1, 3, 1),
        launched(CONVOLUTION, 0, 3, 4, 2),
        launched("void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, 2>(Params)", 0, 4, 8, 3),
        launched("maxwell_scudnn_winograd_128x128_ldg1_ldg4_tile148n_nt", 0, 8, 8.5, 4),
        launched(ADDITION, 0, 8.5, 9, 5),
    )
    assert {kind: (total.seconds, total.count) for kind, total in found.kernels.items()} == {
        "convolution": (7.5, 4),
        "element_wise": (0.5, 1),
    }
    assert {kind: total.seconds for kind, total in found.algorithms.items()} == {
        "helper": 4,
        "tensor_core": 3,
        "winograd": 0.5,
    }
    assert [(one.seconds, one.count, one.kind) for one in found.longest][:2] == [
        (4, 1, "convolution"),
        (3, 2, "convolution"),
    ]
    assert found.convolution_kernel is not None
    assert found.convolution_kernel.startswith("sm80_xmma_fprop")  # a change of layout does no convolution


def test_a_kernel_that_no_rule_knows_is_what_its_operator_is() -> None:
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
    # Autograd's functions compute nothing, an operator of another thread called nothing, and without a call nobody did.
    others = [*launched(UNKNOWN, 2.5, 3, 4, 2), *launched(UNKNOWN, 5, 6, 7, 3), work(UNKNOWN, 7, 8)]
    assert {kind: total.count for kind, total in said(*events, others).kernels.items()} == {"other": 3}


def test_a_matrix_product_that_a_convolution_calls_is_the_convolutions() -> None:
    found = said(
        step(0, 9),
        operator("aten::cudnn_convolution", 0, 1),
        launched(GEMM, 0.5, 1, 2, 1),
        operator("aten::addmm", 1, 2),
        launched(GEMM, 1.5, 2, 4, 2),
        operator("aten::convolution_backward", 2, 3),
        launched("void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(Params)", 2, 4, 5, 3),
        launched(GEMM, 2.5, 5, 9, 4),
    )
    assert {kind: total.seconds for kind, total in found.kernels.items()} == {"convolution": 6, "matrix_product": 2}
    assert {kind: total.seconds for kind, total in found.algorithms.items()} == {"winograd": 5, "implicit_gemm": 1}


def test_a_backward_pass_is_two_convolutions_each_by_its_own_algorithm() -> None:
    transform = "void cudnn::winograd_nonfused::winogradWgradData4x4<float, float>(Params)"
    back = "void cudnn::winograd_nonfused::winogradWgradOutput4x4<float, float>(Params)"
    found = said(
        step(0, 40),
        operator("aten::convolution_backward", 0, 3),
        launched(GEMM, 0.1, 1, 2, 1),  # the images' gradient, before the weights' by Winograd
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
    assert {kind: total.seconds for kind, total in found.algorithms.items()} == {
        "winograd": 2 + 4 + 4 + 1,
        "implicit_gemm": 1 + 1 + 2 + 3,
        "fft": 1 + 1,
    }
    assert found.rules == RULES


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
def test_what_multiplies_complex_numbers_is_an_fft_whoever_called_it(name: str, called: bool) -> None:
    caller = [operator("aten::convolution_backward", 0, 1)] if called else []
    found = said(step(0, 4), *caller, launched(name, 0.5, 1, 2, 1))
    assert {kind: total.seconds for kind, total in found.algorithms.items()} == {"fft": 1}


def test_batch_norm_that_keeps_pairs_of_numbers_is_no_fft() -> None:
    name = "void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512, true, 1>(float, float2)"
    assert set(said(step(0, 4), launched(name, 0.5, 1, 2, 1)).kernels) == {"batch_norm"}


def test_what_says_little_of_itself_belongs_to_its_section() -> None:
    found = said(
        step(0, 8),
        section("load", 0, 2),
        launched(ADDITION, 0, 1, 2, 1),
        section("optimiser", 2, 4),
        launched(ADDITION, 2, 3, 4, 2),
        launched(GEMM, 3, 4, 5, 3),
        section("forward", 4, 8),
        launched(ADDITION, 5, 6, 7, 4),
    )
    assert {kind: total.count for kind, total in found.kernels.items()} == {
        "loader": 1,
        "optimiser": 1,
        "matrix_product": 1,
        "element_wise": 1,
    }


def test_without_sections_pytorchs_own_range_says_what_the_optimiser_is() -> None:
    found = said(step(0, 4), ranged("Optimizer.step#SGD.step", 1, 3), launched(ADDITION, 2, 3, 4, 1))
    assert list(found.kernels) == ["optimiser"]
    assert found.sections["optimiser"].kernel_s == 1


def test_max_pooling_backwards_has_a_time_of_its_own() -> None:
    name = "void at::native::(anonymous namespace)::max_pool_backward_nchw<float, float>(float const*, long const*)"
    assert said(step(0, 4), launched(name, 0, 1, 3, 1), launched(ADDITION, 0, 3, 4, 2)).max_pool_backward_s == 2


# ---- copies, calls, sections, exchange ------------------------------------------------------------------------------


def test_copies_stand_by_direction_with_their_sizes() -> None:
    def copy(words: str, at: float, size: int) -> Event:
        return work(f"Memcpy {words}", at, at + 0.5, kind="copy", stream=8, size=size)

    found = said(
        step(0, 8),
        launched(GEMM, 0, 1, 2, 1),
        [copy("HtoD (Pageable -> Device)", at, size) for at, size in [(2, 10), (3, 400), (4, 20)]],
        copy("DtoH (Device -> Pinned)", 5, 8),
        copy("PtoP (Device -> Device)", 6, 32),
        copy("HtoH (Host -> Host)", 7, 64),
    )
    to_device = found.copies["host_to_device"]
    assert (to_device.bytes, to_device.median_bytes, to_device.count, to_device.seconds) == (430, 20, 3, 1.5)
    assert set(found.copies) == {"host_to_device", "device_to_host", "peer_to_peer"}
    assert found.copy_s == 3
    assert any("in no direction" in note for note in found.notes)


def test_a_copy_of_unknown_size_is_said_to_be_missing() -> None:
    found = said(
        step(0, 2), launched(GEMM, 0, 1, 2, 1), work("Memcpy HtoD (Host -> Device)", 0, 1, kind="copy", size=-1)
    )
    assert found.copies["host_to_device"].count == 1
    assert any("does not say how large" in note for note in found.notes)


def test_calls_stand_by_class_without_the_calls_within_them() -> None:
    found = said(
        step(0, 9),
        call("cudaLaunchKernel", 0, 2, number=1),
        call("cuLaunchKernel", 0.5, 1.5, number=2),
        work(GEMM, 2, 3, number=1),
        call("cudaEventDestroy", 3, 3.5),
        call("cudaMemcpyAsync", 4, 5),
        call("cudaDeviceSynchronize", 5, 8),
        call("cudaEventRecord", 8, 8.25),
    )
    assert {kind: (total.seconds, total.count) for kind, total in found.calls.items()} == {
        "wait": (3, 1),
        "launch": (2, 2),
        "memory": (1, 1),
        "clean_up": (0.5, 1),
        "other": (0.25, 1),
    }
    assert found.calls_by_name["cuLaunchKernel"].seconds == found.calls_by_name["cudaLaunchKernel"].seconds == 1


def test_a_call_belongs_to_the_section_the_host_was_in_and_a_kernel_to_its_calls_section() -> None:
    found = said(
        step(0, 8),
        section("forward", 0, 2),
        launched(GEMM, 1, 2, 6, 1),
        section("backward", 2, 7),
        launched(GEMM, 3, 6, 8, 2, thread=5),  # autograd's own thread calls while the host waits
        call("cudaEventDestroy", 4, 4.5, thread=5),
    )
    assert list(found.sections) == ["forward", "backward"]
    forward, backward = found.sections["forward"], found.sections["backward"]
    assert (forward.host_s, forward.kernel_s, forward.busy_s) == (2, 4, 4)
    assert (backward.host_s, backward.kernel_s, backward.busy_s) == (5, 2, 2)
    assert {kind: total.seconds for kind, total in backward.calls.items()} == {"clean_up": 0.5, "launch": 0.125}


def test_an_exchange_is_exposed_while_no_other_kernel_runs() -> None:
    found = said(
        step(0, 10),
        launched(CONVOLUTION, 0, 1, 5, 1),
        launched(REDUCTION, 0, 4, 8, 2, stream=20),
        work("Memcpy DtoD (Device -> Device)", 5, 6, kind="copy", size=8),
    )
    assert (found.exchange_s, found.exposed_exchange_s) == (4, 3)
    assert found.hidden_exchange_share == 0.25


# ---- a CPU ----------------------------------------------------------------------------------------------------------


def test_on_a_cpu_operators_compute_each_without_those_within_it() -> None:
    found = said(
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
    assert found.of == "operators"
    assert {kind: total.seconds for kind, total in found.kernels.items()} == {
        "convolution": 4,
        "matrix_product": 3,
        "pooling": 1,
    }
    assert {kind: total.count for kind, total in found.algorithms.items()} == {"library": 2}
    assert (found.busy_s, found.active_s, found.overlapping_s, found.max_pool_backward_s) == (7.5, 7.5, 0.5, 1)
    assert (found.launch_gap_s, found.queue_gap_s, found.calls) == (None, None, {})
    assert (found.exchange_s, found.exposed_exchange_s) == (1, 0.5)
    assert found.sections["forward"].kernel_s == 4
    assert found.sections["backward"].busy_s == 3.5


# ---- steps and pieces -----------------------------------------------------------------------------------------------


def test_steps_of_pytorchs_profiler_are_steps() -> None:
    found = said(
        [ranged(f"ProfilerStep#{number}", 2 * number, 2 * number + 2) for number in range(3, 6)],
        launched(GEMM, 6, 7, 8, 1),
        launched(GEMM, 0, 1, 2, 2),
    )
    assert (found.steps, found.elapsed_s, found.kernel_s) == (3, 6, 1)


def test_labkits_steps_go_before_the_profilers() -> None:
    found = said(ranged("ProfilerStep#1", 0, 9), step(2, 4), step(4, 6), launched(GEMM, 3, 4, 5, 1))
    assert (found.steps, found.elapsed_s) == (2, 4)


def test_a_trace_without_steps_is_one_piece_and_says_so() -> None:
    found = said(launched(GEMM, 1, 2, 3, 1), ranged("[whatever]", 0, 99))
    assert (found.steps, found.elapsed_s) == (1, pytest.approx(2))
    assert found.notes == ["no steps are marked in the trace: the whole of it counts as one step"]


def test_pieces_are_kept_apart_and_added_up() -> None:
    analysis = Analysis("kernels")
    analysis.add(columns([step(0, 4), *launched(GEMM, 0, 1, 3, 1)]), steps=1)
    analysis.add(columns([step(0, 2), step(2, 3), *launched(CONVOLUTION, 1, 2, 5, 1)]), steps=2)
    found = analysis.traced(asked_for=5, steps_before=300)
    assert analysis.steps == found.steps == 3
    assert (found.asked_for, found.steps_before) == (5, 300)
    assert [(one.steps, one.elapsed_s, one.busy_s, one.kernel_s) for one in found.pieces] == [
        (1, 4, 2, {"matrix_product": 2}),
        (2, 5, 3, {"convolution": 3}),
    ]
    assert (found.elapsed_s, found.busy_s) == (9, 5)


def test_a_piece_that_says_nothing_leaves_what_was_known() -> None:
    analysis = Analysis()
    analysis.add(columns([step(0, 4), *launched(GEMM, 0, 1, 3, 1)]))
    before = analysis.traced()
    with pytest.raises(UntracedError, match="saw 1 of 2 steps"):
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
def test_a_trace_that_says_nothing_of_its_steps_is_refused(events: list[Event], says: str) -> None:
    with pytest.raises(UntracedError, match=says):
        said(*events)


def test_without_any_piece_there_is_nothing_to_say() -> None:
    with pytest.raises(UntracedError, match="no step was traced"):
        Analysis().traced()


# ---- whatever a trace holds -----------------------------------------------------------------------------------------

NAMES = [GEMM, CONVOLUTION, ADDITION, REDUCTION, UNKNOWN, "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>(Params)"]
STEP_S = 8.0


@st.composite
def pieces(draw: st.DrawFn) -> list[Event]:
    """Two steps, with pauses of the host between them, and all that the first one launched over before the second."""
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
def test_shares_are_shares_and_sums_are_sums(events: list[Event]) -> None:
    found = said(*events)
    kernels_s = sum(one.ended_s - one.began_s for one in events if one.kind == "kernel")
    assert found.kernel_s == pytest.approx(kernels_s)
    assert sum(total.count for total in found.kernels.values()) == sum(one.kind == "kernel" for one in events)
    assert sum(total.seconds for total in found.algorithms.values()) == pytest.approx(
        found.kernels["convolution"].seconds if "convolution" in found.kernels else 0
    )
    assert 0 <= found.overlapping_s <= found.busy_s <= found.active_s <= found.elapsed_s
    assert found.busy_s <= found.kernel_s + 1e-9
    assert found.busy_s + found.overlapping_s <= found.kernel_s + 1e-9
    assert 0 <= found.copy_beside_kernel_s <= found.copy_s <= found.active_s
    assert 0 <= found.exposed_exchange_s <= found.exchange_s <= found.busy_s
    assert found.launch_gap_s is not None
    assert found.queue_gap_s is not None
    assert min(found.launch_gap_s, found.queue_gap_s) >= 0
    assert found.edge_gap_s is not None and found.edge_gap_s >= 0
    gaps_s = found.launch_gap_s + found.queue_gap_s + found.edge_gap_s
    assert found.active_s + gaps_s == pytest.approx(found.elapsed_s)
    assert sum(one.bytes for one in found.copies.values()) == sum(one.bytes for one in events if one.kind == "copy")
    assert Traced.model_validate_json(found.model_dump_json()) == found


@settings(max_examples=80, deadline=None)
@given(pieces())
def test_a_trace_cut_into_pieces_adds_up(events: list[Event]) -> None:
    """All but the pause between the two steps, which is no part of either piece."""
    whole = said(*events)
    analysis = Analysis()
    for first in (0.0, 100.0):
        kept = [one for one in events if first <= one.began_s < first + 50]
        analysis.add(columns([replace(one, began_s=one.began_s + 7, ended_s=one.ended_s + 7) for one in kept]), steps=1)
    parts = analysis.traced()
    assert parts.steps == whole.steps == 2
    assert parts.kernels.keys() == whole.kernels.keys()
    for kind, total in whole.kernels.items():
        assert (parts.kernels[kind].seconds, parts.kernels[kind].count) == (pytest.approx(total.seconds), total.count)
    for name in ("busy_s", "active_s", "overlapping_s", "copy_s", "copy_beside_kernel_s", "exchange_s"):
        assert getattr(parts, name) == pytest.approx(getattr(whole, name)), name
    assert parts.copies == {key: replace_seconds(parts.copies[key].seconds, one) for key, one in whole.copies.items()}
    assert parts.elapsed_s == pytest.approx(sum(one.elapsed_s for one in parts.pieces))
    assert parts.elapsed_s < whole.elapsed_s
    # What stands before a piece's first kernel is a launch gap, where within a trace a part of it is a queue gap.
    assert parts.queue_gap_s is not None
    assert whole.queue_gap_s is not None
    assert whole.queue_gap_s - 2 * STEP_S <= parts.queue_gap_s <= whole.queue_gap_s + 1e-9


def replace_seconds(seconds: float, one):
    """The copies with another time, which differs in its last digit."""
    assert seconds == pytest.approx(one.seconds)
    return one.model_copy(update={"seconds": seconds})


# ---- files ----------------------------------------------------------------------------------------------------------


def test_a_file_says_what_its_events_say(tmp_path: Path) -> None:
    events = [step(0, 4), *launched(CONVOLUTION, 0, 1, 3, 1), operator("aten::conv2d", 0, 1)]
    found = analyse(written(events, tmp_path / "trace.json.gz"))
    assert (found.busy_s, found.elapsed_s) == (pytest.approx(2), pytest.approx(4))
    assert found.convolution_kernel == said(*events).convolution_kernel


def test_a_file_that_says_nothing_is_named(tmp_path: Path) -> None:
    file = written([step(0, 4), operator("c10d::allreduce_", 0, 1)], tmp_path / "mine.json")
    with pytest.raises(UntracedError, match=r"^mine\.json can't be analysed: the profiler saw no operator"):
        analyse(file)


def test_a_tiny_networks_own_trace_adds_up(tmp_path: Path) -> None:
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
    found = analyse(file)
    assert (found.of, found.steps, found.notes) == ("operators", 3, [])
    assert {"convolution", "batch_norm", "pooling", "matrix_product", "loss", "optimiser"} <= set(found.kernels)
    assert "other" not in found.kernels
    by_pytorch = {one.key: (one.self_cpu_time_total * 1e-6, one.count) for one in tracer.key_averages()}
    for one in found.longest:
        if one.kind not in ("optimiser", "element_wise", "layout"):  # whose operators are of several classes
            assert (one.seconds, one.count) == (
                pytest.approx(by_pytorch[one.name][0], abs=1e-6),
                by_pytorch[one.name][1],
            )
    assert sum(one.kind == "convolution" for one in found.longest) >= 2
    assert list(found.sections) == ["forward", "loss", "backward", "optimiser"]
    assert 0 < found.max_pool_backward_s < found.kernels["pooling"].seconds
    assert 0 < found.busy_s <= found.elapsed_s
    assert found.busy_s <= found.kernel_s * (1 + 1e-6)
    assert sum(one.kernel_s for one in found.sections.values()) <= found.kernel_s * (1 + 1e-6)
    # Some operators stand outside of all sections (zero_grad), and each section has some of its own.
    assert all(0 < one.busy_s <= one.host_s for one in found.sections.values())
