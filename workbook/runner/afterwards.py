"""Measurements after a trial's timed blocks: queries, scores, further steps, a trace, memory, samples.

blocks | queries | scoring | steps up to `steps_before` | a trace, long or short | steps for memory | images of a GAN

These measurements enter no other number. They lie between the timed part and the pause in which telemetry sees an
idle device, and have no telemetry window.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from labkit.timing import Clock, time_queries
from workbook.hardware.profile import Timing
from workbook.records import Blocks, Queries, short_hash
from workbook.records.traced import Trace, Traced, Untraced
from workbook.runner.protocol import BY_PYTORCH, Events, Pass
from workbook.trace import (
    TRACE_LIMIT_S,
    WARM_UP_STEPS,
    Analysis,
    UntracedError,
    memory_of_step,
    take_trace,
)
from workbook.trace.profiler import marked
from workbook.trials.trial import Trial
from workbook.workloads import Workload

# Time for queries, as a share of the timed part. Batch 1 gets more, because its report shows the slowest queries.
SINGLES_SHARE, QUERIES_SHARE = 2.0, 0.5
SHORT_TRACE_STEPS, SHORT_TRACE_LIMIT_S = 5, 5.0  # of trials that ask for no other trace
LOSSES = 20  # mean losses to record over the steps before a trace, each of an equal part of these steps

ClosePhase = Callable[[str], None]


def asked_of_answers(
    trial: Trial,
    workload: Workload,
    clock: Clock,
    blocks: Blocks,
    timing: Timing,
    events: Events,
    close_phase: ClosePhase,
) -> Blocks:
    """Return the blocks, extended by the query latencies and the scores that the trial asks for."""
    if trial.queries:
        assert workload.query
        latencies = time_queries(
            workload.query,
            clock,
            trial.queries,
            limit_s=timing.timed_s * (SINGLES_SHARE if trial.batch == 1 else QUERIES_SHARE),
            on_query=lambda share: events.progress("queries", share),
        )
        queries = Queries(images=trial.batch, latency_ns=latencies, asked_for=trial.queries)
        blocks = blocks.model_copy(update={"queries": queries})
        close_phase("queries")
    if trial.scored:
        assert workload.score
        scored = workload.score(lambda share: events.progress("scoring", share))
        blocks = blocks.model_copy(update={"scored": scored})
        close_phase("scoring")
    return blocks


def asked_of_steps(
    trial: Trial,
    workload: Workload,
    clock: Clock,
    blocks: Blocks,
    of_pass: Pass,
    events: Events,
    close_phase: ClosePhase,
) -> tuple[Blocks, dict[str, Any]]:
    """Return the blocks, extended by a trace of further steps if the trial asks for one, and facts on these steps."""
    facts: dict[str, Any] = {}
    taken = sum(blocks.warmup_steps) + blocks.steps_per_block * len(blocks.host_s)
    # The step that warms the profiler up counts as one of the steps before the trace.
    wanted = trial.steps_before - (WARM_UP_STEPS if trial.traced_iterations else 0)
    if taken < wanted:
        losses = _go_on(workload, clock, taken, wanted, events)
        taken = wanted
        facts |= {"later_loss": losses} if workload.read_loss else {}
        close_phase("steps_before")
    if trial.traced_iterations:
        events.progress("tracing", 0.0)
        name = f"{short_hash(trial.key)}-pass{of_pass.number}.json.gz"
        keep = of_pass.traces / name if of_pass.traces else None
        if keep is not None:
            keep.unlink(missing_ok=True)  # left by an earlier measurement
        trace = _trace(trial, workload, clock, blocks, taken, keep, events)
        blocks = blocks.model_copy(update={"trace": trace})
        if keep is not None and keep.exists():
            facts["trace_file"] = "/".join(keep.parts[-4:])
        close_phase("traced_steps")  # not "trace", the phase in which a compiler traces a step
    elif of_pass.has_short_trace(trial):
        events.progress("tracing", 0.0)
        facts |= _device_time(workload, clock, blocks)
        close_phase("short_trace")
    if trial.samples:
        assert workload.draw_samples
        facts |= workload.draw_samples()
        close_phase("samples")
    return blocks, facts


def _device_time(workload: Workload, clock: Clock, blocks: Blocks) -> dict[str, Any]:
    """Return facts of a step, or why a few steps could not be traced.

    `busy_step_s` are the seconds in which any kernel ran, `kernels_per_step` is the number of kernels. `kernel_step_s`
    are the seconds of kernels by class, under the rules of the number `kernel_rules`. Their sum is `busy_step_s` and,
    once more, the time in which a further kernel ran beside another. Names alone decide on classes: a short trace marks
    no sections, which in a long one tell the loader, the loss and the optimiser.
    """
    analysis = Analysis(of="kernels")
    try:
        take_trace(
            workload.step,
            clock,
            analysis,
            asked_for=SHORT_TRACE_STEPS,
            limit_s=SHORT_TRACE_LIMIT_S,
            step_s=blocks.step_s,
            on_gpu=True,
            after_piece=workload.read_loss or (lambda: None),
        )
        traced = analysis.traced()
    except UntracedError as error:
        return {"untraced": str(error)}
    kernels = sum(total.count for total in traced.kernels.values())
    return {
        "busy_step_s": traced.busy_s / traced.steps,
        "kernels_per_step": kernels / traced.steps,
        "kernel_step_s": {kind: total.seconds / traced.steps for kind, total in traced.kernels.items()},
        "kernel_rules": traced.rules,
    }


def _go_on(workload: Workload, clock: Clock, taken: int, wanted: int, events: Events) -> list[tuple[int, float | None]]:
    """Run steps until the trial has taken `wanted`. Return pairs of step number and mean loss since the last pair."""
    first, part = taken, math.ceil((wanted - taken) / LOSSES)
    losses: list[tuple[int, float | None]] = []
    while taken < wanted:
        steps = min(part, wanted - taken)
        clock.time_block(workload.step, steps)
        taken += steps
        if workload.read_loss:
            losses.append((taken, workload.read_loss()))
        events.progress("steps before the trace", (taken - first) / (wanted - first))
    return losses


def _trace(
    trial: Trial, workload: Workload, clock: Clock, blocks: Blocks, taken: int, keep: Path | None, events: Events
) -> Trace:
    """Trace the next steps on this process's device and measure their memory, or return Untraced with a reason."""
    on_gpu = trial.device == "cuda"
    if trial.framework not in BY_PYTORCH and "." not in trial.workload:
        return Untraced(reason=f"the profiler is PyTorch's, and the configuration runs on {trial.framework}")
    analysis = Analysis(of="kernels" if on_gpu else "operators")
    try:
        with marked():
            seen = take_trace(
                workload.step,
                clock,
                analysis,
                asked_for=trial.traced_iterations,
                limit_s=trial.traced_s or TRACE_LIMIT_S,
                step_s=blocks.step_s,
                on_gpu=on_gpu,
                after_piece=workload.read_loss or (lambda: None),
                on_share=lambda share: events.progress("tracing", share),
                keep=keep,
            )
        memory = None
        if workload.held:
            memory = memory_of_step(workload.step, clock, workload.held, on_gpu=on_gpu)
        traced: Traced = analysis.traced(
            asked_for=trial.traced_iterations, steps_before=taken + WARM_UP_STEPS, memory=memory
        )
    except UntracedError as error:
        return Untraced(reason=str(error))
    notes = [*traced.notes, *seen.notes]
    if "graph" in trial.engine:
        notes.append("the host replays a captured step in one call, so the trace cannot tell the step's sections apart")
    return traced.model_copy(update={"notes": notes})
