"""Tests of metrics from traces, on a GPU whose host the profiler slows, and on a CPU whose operators it slows too.

The trial takes 10 ms per step of 64 images without the profiler. Five of its steps were traced, in 20 ms each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.workbook.made_records import blocks, of_records
from workbook.claims.evidence import Side
from workbook.records import Record
from workbook.records.traced import (
    ALGORITHMS_HOLD_SINCE,
    Copies,
    Kernel,
    Piece,
    Section,
    Total,
    Trace,
    Traced,
    Untraced,
)
from workbook.results import Results
from workbook.results import from_trace as traced
from workbook.results.metrics import metric_of, why_missing
from workbook.results.missing import or_none
from workbook.trials.trial import Trial

TRIAL = Trial(model="alexnet", traced_iterations=5)
STUDY = "profile"
FLOP = 67 * 10**9  # of a step: 1/1000 of the nominal FP32 FLOP/s of an H200


def total(seconds: float, count: int = 5) -> Total:
    return Total(seconds=seconds, count=count)


def section(launch_s: float, clean_up_s: float) -> Section:
    calls: Any = {"launch": total(launch_s), "clean_up": total(clean_up_s)}
    return Section(host_s=0.02, kernel_s=0.01, busy_s=0.01, calls=calls)


def trace(**other: Any) -> Traced:
    """Return a trace of five steps of 20 ms: kernels 6 ms, copies 1 ms, launch gaps 10 ms and queue gaps 3 ms each."""
    values: dict[str, Any] = {
        "of": "kernels",
        "rules": ALGORITHMS_HOLD_SINCE,
        "steps": 5,
        "asked_for": 5,
        "pieces": [Piece(steps=5, elapsed_s=0.1, busy_s=0.03, kernel_s={"convolution": 0.02, "pooling": 0.012})],
        "elapsed_s": 0.1,
        "busy_s": 0.03,
        "active_s": 0.035,
        "launch_gap_s": 0.05,
        "queue_gap_s": 0.015,
        "kernels": {"convolution": total(0.020), "pooling": total(0.012)},
        "algorithms": {"winograd": total(0.005), "implicit_gemm": total(0.015)},
        "longest": [Kernel(seconds=0.015, count=5, name="sgemm", kind="convolution", algorithm="implicit_gemm")],
        "convolution_kernel": "sgemm",
        "max_pool_backward_s": 0.008,
        "broadcast_s": 0.004,
        "overlapping_s": 0.0015,
        "copies": {
            "host_to_device": Copies(seconds=0.004, count=10, bytes=4_000_000, median_bytes=300),
            "device_to_host": Copies(seconds=0.001, count=5, bytes=20, median_bytes=4),
            "device_to_device": Copies(seconds=0.003, count=50, bytes=10**9, median_bytes=10**7),
        },
        "copy_s": 0.005,
        "copy_beside_kernel_s": 0.001,
        "calls": {"launch": total(0.03), "clean_up": total(0.01), "memory": total(0.005), "wait": total(0.005)},
        "sections": {"forward": section(1.0, 1.0), "backward": section(0.03, 0.0), "optimiser": section(0.03, 0.02)},
    }
    return Traced(**(values | other))


def record(found: Trace | None, trial: Trial = TRIAL, **other: Any) -> Record:
    made = blocks(STUDY, trial, 1, 6400.0)
    assert made.blocks is not None
    return made.model_copy(update={"result": made.blocks.model_copy(update={"trace": found, **other})})


def metric(name: str, found: Trace | None, trial: Trial = TRIAL, *, hw: str = "h200", **other: Any) -> float | None:
    made = record(found, trial, **other)
    return metric_of(of_records(STUDY, [made], hw=hw), made, name)


WHOLE = 0.032 + 0.008  # kernels and copies
EXPECTED = {
    "step_s": 0.010,
    "traced_step_s": 0.020,
    "busy_step_s": 0.006,
    "kernels_per_step": 2.0,
    "profiled_utilisation": 0.3,
    "trace_slowdown": 2.0,
    "compute_utilisation": 0.6,  # 6 ms of kernels in a timed step of 10 ms, not in a traced one of 20 ms
    "launch_gap_share": (1 - 0.7) * 50 / 65,
    "waiting_share": (1 - 0.7) * 50 / 65,
    "copy_share": 0.008 / WHOLE,
    "broadcast_share": 0.004 / WHOLE,
    "winograd_share": 0.005 / WHOLE,
    "maxpool_backward_share": 0.25,
    "launch_api_share": 0.6,
    "cleanup_api_share": 0.2,
    "memory_api_share": 0.1,
    "backward_launch_api_share": 0.75,  # of 80 ms of calls in the backward pass and the optimiser
    "backward_cleanup_api_share": 0.25,
    "backward_memory_api_share": 0.0,
    "kernel_overlap_share": 0.05,
    "copy_overlap_share": 0.2,
    "copy_bytes": 300.0,
    "copy_bytes_per_s": 4_000_020 / 0.005,
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_metric_of_a_trace_of_a_gpu(name: str) -> None:
    assert metric(name, trace()) == pytest.approx(EXPECTED[name])


def test_every_metric_of_a_trace_has_an_expected_value() -> None:
    exchange = {"exchange_s", "exposed_exchange_s", "hidden_exchange_share"}  # of several devices, see test_traffic.py
    assert set(EXPECTED) - {"step_s"} == traced.METRICS - exchange - set(traced.OF_PIECES)


def of_pieces(step_s: Sequence[float], busy_s: float = 0.003) -> Traced:
    """Return a trace of pieces of 5 or 20 steps, with the elapsed seconds of a step of each, and equal busy seconds."""
    lengths = [20 if place % 3 else 5 for place in range(len(step_s))]
    pieces = [
        Piece(steps=steps, elapsed_s=steps * seconds, busy_s=steps * busy_s, kernel_s={})
        for steps, seconds in zip(lengths, step_s, strict=True)
    ]
    return trace(pieces=pieces, steps=sum(lengths), elapsed_s=sum(piece.elapsed_s for piece in pieces))


def test_95_percent_of_a_traces_pieces_deviate_by_less_from_its_rest() -> None:
    scattered = np.exp(np.random.default_rng(1).normal(scale=0.08, size=300))
    found = metric("piece_step_deviation", of_pieces(scattered.tolist()))
    assert found == pytest.approx(np.expm1(1.96 * 0.08), rel=0.1)
    within = np.maximum(scattered, 1 / scattered) < 1 + found
    assert within.mean() == pytest.approx(0.95, abs=0.02)
    assert metric("piece_busy_deviation", of_pieces(scattered.tolist())) == pytest.approx(0, abs=1e-9)


def test_a_trace_that_drifts_or_pauses_in_one_piece_deviates_and_one_of_few_pieces_does_not_tell() -> None:
    for uneven in ([1.0, 1.1, 1.2, 1.3], [1.0, 1.0, 1.0, 1.5]):
        assert (metric("piece_step_deviation", of_pieces(uneven)) or 0) > 0.2
    for name in traced.OF_PIECES:
        assert metric(name, of_pieces([1.0, 1.0, 1.5])) is None


def test_busy_and_idle_shares_sum_to_1() -> None:
    trace_ = trace()
    made = record(trace_)
    launch, queued = traced.idle_shares(made, trace_) or (0.0, 0.0)
    assert launch + queued + trace_.active_s / 5 / 0.010 == pytest.approx(1)
    busier = trace(busy_s=0.06, active_s=0.07)
    assert metric("compute_utilisation", busier) == pytest.approx(1.2), (
        "kernels that the profiler slowed down stay visible"
    )
    assert metric("launch_gap_share", busier) == 0.0


ON_CPU: dict[str, Any] = {"of": "operators", "launch_gap_s": None, "queue_gap_s": None, "copies": {}, "copy_s": 0.0}


def test_shares_of_operators_on_a_cpu_are_of_the_traced_time() -> None:
    trace_ = trace(**ON_CPU, calls={}, sections={}, algorithms={"library": total(0.02)})
    assert metric("compute_utilisation", trace_) == pytest.approx(0.3)
    assert metric("maxpool_backward_share", trace_) == pytest.approx(0.25)


@pytest.mark.parametrize("name", traced.OF_SHORT_TRACES)
def test_a_short_trace_is_kept_as_facts_and_a_long_one_counts_first(name: str) -> None:
    facts = {"busy_step_s": 0.5, "kernels_per_step": 50.0}
    for found, value in ((None, facts[name]), (trace(), EXPECTED[name])):
        made = record(found).model_copy(update={"facts": facts})
        assert metric_of(of_records(STUDY, [made]), made, name) == pytest.approx(value)


@pytest.mark.parametrize(
    "name",
    [
        *("kernels_per_step", "launch_gap_share", "copy_share", "winograd_share", "launch_api_share"),
        *("backward_launch_api_share", "kernel_overlap_share", "copy_overlap_share", "copy_bytes", "copy_bytes_per_s"),
    ],
)
def test_metrics_of_a_gpu_are_missing_and_not_0_on_a_cpu(name: str) -> None:
    assert metric(name, trace(**ON_CPU, calls={}, sections={}, algorithms={"library": total(0.02)})) is None


def test_the_share_of_winograd_is_0_without_it_and_missing_without_convolutions() -> None:
    assert metric("winograd_share", trace(algorithms={"direct": total(0.02)})) == 0.0
    assert metric("winograd_share", trace(algorithms={})) is None


def test_the_share_of_winograd_by_outdated_rules_is_missing_with_a_reason() -> None:
    wrongly = ALGORITHMS_HOLD_SINCE - 1
    earlier = record(trace(rules=wrongly))
    assert metric("winograd_share", trace()) is not None and metric("winograd_share", trace(rules=wrongly)) is None
    reason = why_missing(of_records(STUDY, [earlier]), earlier, "winograd_share")
    assert "earlier rules" in reason and "`FORCE=1`" in reason
    assert metric("maxpool_backward_share", trace(rules=wrongly)) == pytest.approx(0.25), "unchanged rules"


def test_a_captured_step_has_no_sections() -> None:
    assert metric("backward_launch_api_share", trace(sections={})) is None


@pytest.mark.parametrize("name", sorted(traced.METRICS))
def test_without_a_trace_a_metric_is_missing_with_a_reason(name: str) -> None:
    for lacking, reason in ((None, "no steps"), (Untraced(reason="the driver keeps it"), "keeps it")):
        made = record(lacking)
        assert metric(name, lacking) is None
        assert reason in why_missing(of_records(STUDY, [made]), made, name)


def test_the_convolution_kernel_is_a_label() -> None:
    made = record(trace())
    assert Side(Results([of_records(STUDY, [made])]), TRIAL).labels("convolution_kernel") == ["sgemm"]
    assert or_none(traced.label, record(None), "convolution_kernel") is None
    assert traced.label(made.model_copy(update={"facts": {"stem": "cifar"}}), "stem") == "cifar"


def test_an_operator_is_not_labelled_as_a_kernel() -> None:
    on_cpu = Trial(model="alexnet", device="cpu", traced_iterations=5)
    side = Side(Results([of_records(STUDY, [record(trace(of="operators"), on_cpu)], hw="cpu")]), on_cpu)
    assert side.labels("convolution_kernel") == []
    assert "operator" in side.why_no_label("convolution_kernel")
    untraced = Side(Results([of_records(STUDY, [record(None)])]), TRIAL)
    assert "no steps" in untraced.why_no_label("convolution_kernel")


def test_fp32_utilisation_is_flop_over_the_nominal_peak_and_the_timed_step() -> None:
    assert metric("fp32_utilisation", trace(), flop_per_step=FLOP) == pytest.approx(0.1)
    half = Trial(model="alexnet", precision="bf16", traced_iterations=5)
    assert metric("fp32_utilisation", trace(), half, flop_per_step=FLOP) is None, "the trial does not compute in FP32"
    on_cpu = Trial(model="alexnet", device="cpu", traced_iterations=5)
    assert metric("fp32_utilisation", trace(), on_cpu, hw="cpu", flop_per_step=FLOP) is None, "no peak is known"


def test_without_a_nominal_peak_the_measured_peak_is_used() -> None:
    on_cpu = Trial(model="alexnet", device="cpu", traced_iterations=5)
    product = Trial(workload="matmul", device="cpu", data="none", size=64)
    ceiling = record(None, product, images_per_step=None, flop_per_step=10**9)  # in the same 10 ms
    made = record(trace(), on_cpu, flop_per_step=10**8)
    results = of_records(STUDY, [made, ceiling], hw="cpu")
    assert metric_of(results, made, "fp32_utilisation") == pytest.approx(0.1)
