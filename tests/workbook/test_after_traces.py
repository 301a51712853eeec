"""Tests of traces and what follows them: a GPU's trace ends its process, and records of before that are withdrawn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
import pytest

from labkit.telemetry.summary import Statistic, Telemetry, Window
from tests.committed import committed_reports
from tests.workbook.made_records import blocks, of_records, run
from workbook.hardware.profile import Timing
from workbook.records import Process, Record, after_traces
from workbook.records.after_traces import BUSY, SHORT_MESSAGE_S, TRACES_BEFORE, launched_slowly, waits_for_launches
from workbook.records.selection import done
from workbook.records.store import Store
from workbook.registry import INDEPENDENT_OF_HOST, SMALL
from workbook.results import Results
from workbook.results.in_time import SLOWED
from workbook.results.metrics import OF_SHORT, metric_of, why_missing
from workbook.results.missing import Missing
from workbook.runner.processes import of_next_process
from workbook.runner.protocol import SHORT_TRACE_PASSES, Pass
from workbook.show import table
from workbook.studies import trust
from workbook.studies.sweeps import OPTIMISED, ORDINARY, beside_references
from workbook.studies.training import device_and_host
from workbook.trials.trial import NO_DATA, Trial
from workbook.words import NAN

STUDY = "01_training"
EAGER = Trial(batch=64, device="cuda", image_px=224)
TRACED = replace(EAGER, traced_iterations=5)
MESSAGE = Trial(workload="all_reduce", size=4096, data=NO_DATA, device="cuda", devices=2)
LAUNCHES = Trial(workload="launch_rate", size=3000, data=NO_DATA, device="cuda")
PRODUCT = Trial(workload="matmul", size=8192, data=NO_DATA, device="cuda")
LATER = Process(id="p1", position=3, startup_s=1.0)
STEP_S = 64 / 1000.0


def of_pass(number: int = 1, **settings: Any) -> Pass:
    return Pass(number=number, timing=Timing(warmup_s=0.2, timed_s=0.5, block_s=0.1, limit_s=120), **settings)


def processes(trials: Sequence[Trial], about: Pass) -> list[list[Trial]]:
    pending, seen = list(trials), []
    while pending:
        seen.append(of_next_process(pending, about))
        pending = [trial for trial in pending if trial not in seen[-1]]
    return seen


# ---- from now on -----------------------------------------------------------------------------------------------------


def test_a_trial_that_traces_a_gpu_is_the_last_of_its_process() -> None:
    network, other = EAGER, replace(EAGER, batch=128)
    assert processes([PRODUCT, network, LAUNCHES, TRACED, other], of_pass()) == [
        [PRODUCT, network],
        [LAUNCHES, TRACED],
        [other],
    ]


def test_trials_of_other_processes_wait_in_their_order() -> None:
    in_jax = [replace(EAGER, framework="keras-jax", engine="xla", batch=batch) for batch in (16, 64)]
    trials = [in_jax[0], EAGER, PRODUCT, in_jax[1], LAUNCHES]
    assert processes(trials, of_pass()) == [in_jax, [EAGER], [PRODUCT, LAUNCHES]]


def test_a_group_of_ranks_does_not_end_with_a_trace_on_one_gpu() -> None:
    ranks = [replace(EAGER, devices=2, batch=batch) for batch in (16, 32)]
    assert processes([ranks[0], EAGER, ranks[1]], of_pass()) == [ranks, [EAGER]]


@pytest.mark.parametrize("about", [of_pass(SHORT_TRACE_PASSES, short=True), of_pass(SHORT_TRACE_PASSES + 1)])
def test_a_pass_without_traces_needs_one_process(about: Pass) -> None:
    trials = [replace(EAGER, batch=batch) for batch in (1, 2, 4)]
    assert processes(trials, about) == [trials]


def test_a_short_pass_traces_nothing_that_its_trials_ask_for() -> None:
    assert of_pass(4).traces_gpu(TRACED)
    assert not of_pass(4, short=True).traces_gpu(TRACED)


def test_traces_of_a_cpu_share_a_process() -> None:
    trials = [replace(TRACED, device="cpu", batch=batch) for batch in (1, 2)]
    assert processes(trials, of_pass()) == [trials]


# ---- records of before -----------------------------------------------------------------------------------------------


def slowdowns(file: Path) -> Iterator[tuple[bool, float]]:
    """Yield for each step after a trace whether it waits for launches, and its seconds over those of steps before.

    `file` holds records of a study and host. The steps before are those of the same trial in processes, or parts of
    processes, that had not traced. Records that tell the traces of their process are of newer code.
    """
    records = Store(file.parents[2]).read(file.name.partition(".")[0], file.parent.name)
    old = [record for record in records if record.scale != SMALL and TRACES_BEFORE not in record.facts]
    first_trace: dict[str, int] = {}
    steps: dict[str, dict[bool, list[Record]]] = {}
    for record in sorted(old, key=lambda record: record.process.position):
        process, trial = record.process, record.as_trial
        is_after = process.position > first_trace.get(process.id, process.position)
        if not {"short_trace", "traced_steps"}.isdisjoint(record.phases_s):
            first_trace.setdefault(process.id, process.position)
        if record.blocks and (trial.device, trial.devices) == ("cuda", 1) and "graph" not in trial.engine:
            steps.setdefault(record.key, {False: [], True: []})[is_after].append(record)
    for same in steps.values():
        before_s = [record.blocks.step_s for record in same[False] if record.blocks]
        for record in same[True]:
            waits = waits_for_launches(record)
            if before_s and waits is not None and record.blocks:
                yield waits, record.blocks.step_s / median(before_s)


def test_the_records_show_what_the_module_says_of_them() -> None:
    said = " ".join((after_traces.__doc__ or "").split())
    every = [each for file in sorted(committed_reports().glob("*/records/*/*.jsonl.gz")) for each in slowdowns(file)]
    waited, others = ([ratio for waits, ratio in every if waits is kind] for kind in (True, False))
    assert f"{len(waited)} steps that waited for launches took {median(waited):.2f} times as long" in said
    assert f"(median; at most {max(waited):.1f})" in said
    assert f"{len(others)} other steps took {median(others):.3f} times as long (at most {max(others):.2f})" in said


def measured(trial: Trial, busy: float | None = None, step_s: float = STEP_S, **other: Any) -> Record:
    """Return a record of steps during which kernels run for the share `busy`, by a short trace."""
    made = blocks(STUDY, trial, 1, trial.batch_of_step / step_s, **({"process": LATER} | other))
    traced = {} if busy is None else {"busy_step_s": busy * step_s, "kernels_per_step": 100}
    return made.model_copy(update={"facts": made.facts | traced})


@pytest.mark.parametrize(
    ("record", "slowed"),
    [
        (measured(EAGER, BUSY - 0.01), True),
        (measured(EAGER, BUSY + 0.01), False),
        (measured(replace(EAGER, engine="compile"), 0.5), True),
        (measured(replace(EAGER, engine="graph", loader="device"), 0.5), False),
        (measured(EAGER, 0.5, process=Process(id="p1", position=0, startup_s=1.0)), False),
        (measured(EAGER, 0.5, short=True), False),
        (measured(EAGER, 0.5, facts={TRACES_BEFORE: 0}), False),
        (measured(EAGER, 0.5, facts={TRACES_BEFORE: 1}), True),
        (measured(replace(EAGER, device="cpu")), False),
        (measured(EAGER), None),
        (measured(replace(EAGER, devices=2), 0.5), None),
        (measured(LAUNCHES), True),
        (measured(PRODUCT), False),
        (measured(MESSAGE, step_s=SHORT_MESSAGE_S / 2), True),
        (measured(MESSAGE, step_s=SHORT_MESSAGE_S * 2), False),
    ],
)
def test_steps_that_wait_for_launches_are_slowed_by_an_earlier_trace(record: Record, slowed: bool | None) -> None:
    assert launched_slowly(record) is slowed


def test_times_of_a_slowed_step_are_withdrawn_and_what_the_device_alone_decides_is_not() -> None:
    sound, slowed = measured(EAGER, 0.95), measured(EAGER, 0.5)
    for metric in ("images_per_s", "step_s", "host_share", "training_90_epochs_s"):
        assert metric_of(of_records(STUDY, [sound]), sound, metric) is not None
        assert why_missing(of_records(STUDY, [slowed]), slowed, metric) == SLOWED
    for metric in INDEPENDENT_OF_HOST & {"busy_step_s", "framework_peak_bytes", "memory_bytes"} | {"kernels_per_step"}:
        assert metric_of(of_records(STUDY, [slowed]), slowed, metric) is not None, metric


def test_a_table_says_that_a_time_is_withdrawn_and_not_that_nothing_was_measured() -> None:
    records = [measured(EAGER, 0.5), measured(replace(EAGER, batch=128), 0.95)]
    data = Results([of_records(STUDY, records)]).frame()
    shown = table(data, "batch", {"rate": "images_per_s", "memory": "memory_bytes"})
    assert [(place, why) for (place, _), why in shown.reasons.items()] == [(0, SLOWED)]
    others = table(data.assign(memory_bytes=NAN), "batch", ["memory_bytes", "waiting_share", "energy_per_image_j"])
    reasons = set(others.reasons.values())
    assert "no steps were traced" in reasons and SLOWED not in reasons, "they have reasons of their own"
    failed = data.assign(batch=64, status=["ok", "oom"], reason=["", "80 GiB were asked for"], images_per_s=NAN)
    assert set(table(failed, "batch", "images_per_s").reasons.values()) == {"out of memory: 80 GiB were asked for"}
    user = data.assign(reason=pd.Categorical([None, None])).drop(columns="status")
    assert table(user, "batch", "images_per_s").reasons == {(0, "images/s"): SLOWED}
    of_words = table(data.assign(bound=[None, "launch-bound"]), "batch", "bound")
    assert of_words.reasons == {(0, "bound"): SLOWED}


POWER = {"gpu0": {"power_w": Statistic(mean=300.0, low=290.0, high=310.0, n=30)}}
READ = Telemetry(status="ok", windows={"timed": Window(start_s=0.0, length_s=5.0, sources=POWER)})


def test_a_table_says_what_a_short_run_and_a_workload_do_not_have() -> None:
    full = measured(EAGER, 0.95, telemetry=READ)
    short = measured(EAGER, short=True).model_copy(update={"pass_number": 4})
    rows = Results([of_records(STUDY, [full, short])]).frame().query("pass_number == 4")
    shown = table(rows, "batch", {"rate": "images_per_s", "power, W": "power_w", "latency, ms": "latency_s"})
    assert shown.reasons == {(0, "power, W"): OF_SHORT, (0, "latency, ms"): str(Missing())}


def test_power_and_blocks_of_a_slowed_step_are_withdrawn() -> None:
    sound, slowed = (measured(EAGER, busy, telemetry=READ) for busy in (0.95, 0.5))
    assert metric_of(of_records(STUDY, [sound]), sound, "power_w") == 300
    assert why_missing(of_records(STUDY, [slowed]), slowed, "power_w") == SLOWED
    tables = [Results([of_records(STUDY, [record])]) for record in (sound, slowed)]
    assert [table.blocks()["step_s"].notna().all() for table in tables] == [True, False]
    assert [len(table.readings()) > 0 for table in tables] == [True, False]


@pytest.mark.parametrize(("busy", "counts"), [(0.95, True), (0.5, False), (None, False)])
def test_one_gpu_tells_whether_several_wait_for_launches(busy: float | None, counts: bool) -> None:
    several = measured(replace(EAGER, devices=2), devices_used=2)
    short = measured(EAGER, short=True).model_copy(update={"pass_number": 4})  # which has no trace
    of_32_px = measured(replace(EAGER, image_px=32, loader="device"), 0.5)
    results = of_records("03_multi_gpu", [several, measured(EAGER, busy), short, of_32_px])
    assert (metric_of(results, several, "images_per_s") is not None) is counts
    assert metric_of(results, several, "framework_peak_bytes") is not None


def test_accuracies_of_a_training_run_stay_and_its_times_need_a_trace_of_the_same_step() -> None:
    trial = replace(EAGER, epochs=2, batch=64)
    learned = run("03_multi_gpu", trial, 1, [5.0, 4.0], 0.5, process=LATER)
    for busy, counts in ((0.95, True), (0.5, False)):
        results = of_records("03_multi_gpu", [learned, measured(EAGER, busy)])
        assert (metric_of(results, learned, "epoch_s") is not None) is counts
        assert metric_of(results, learned, "top1") == 0.5
    assert launched_slowly(learned) is None
    captured = replace(trial, engine="graph", loader="device")
    assert launched_slowly(run(STUDY, captured, 1, [5.0], 0.5, process=LATER)) is False


def test_a_run_without_a_trace_has_the_kernel_time_of_the_others() -> None:
    slowed, short = measured(EAGER, 0.5), measured(EAGER, short=True, step_s=STEP_S * 0.8)
    short = short.model_copy(update={"pass_number": 4})
    results = of_records(STUDY, [slowed, short])
    assert metric_of(results, short, "host_share") == pytest.approx(1 - 0.5 / 0.8)
    assert metric_of(results, slowed, "host_share") is None


def test_checks_and_figures_leave_withdrawn_steps_out() -> None:
    results = Results([of_records(STUDY, [measured(EAGER, 0.5)])])
    assert len(device_and_host(results.frame())) == 0
    assert not trust.summary(results)["check"].eq("Timed part of a run").any()


def test_the_next_report_measures_slowed_steps_again() -> None:
    records = [measured(EAGER, 0.5), measured(replace(EAGER, batch=128), 0.95, step_s=2 * STEP_S)]
    versions = {"torch": records[0].framework_version or ""}
    assert done(records, scale="quick", versions=versions) == {(records[1].key, 1)}


@pytest.mark.parametrize(
    ("status", "sides"), [("ok", {OPTIMISED}), ("oom", {OPTIMISED, ORDINARY})], ids=["withdrawn", "failed"]
)
def test_no_slower_loop_takes_the_place_of_one_whose_rate_is_withdrawn(status: str, sides: set[str]) -> None:
    rates = {"PyTorch as installed": 20.0, "tuned eager": float("nan"), "CUDA graph": 74.0}
    rows = pd.DataFrame({"batch": 64, "device": "cuda", "mode": rates.keys(), "images_per_s": rates.values()})
    rows["status"] = ["ok", status, "ok"]
    assert set(beside_references(rows)["side"]) == sides
