"""Test of trials over two nodes of a real Slurm: the throughput of both nodes, and failures on the second node."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cluster.over_nodes import FAILING, LIMIT_S
from tests.cluster.slurm_here import SlurmHere
from tests.faulty.campaign import records
from workbook.paths import ROOT
from workbook.results.from_result import value_of

# Slurm takes some seconds to end the processes of a step. After that, only the job's shell may be left.
JOB = """#!/bin/bash
{python} -m tests.cluster.over_nodes {report}
sleep 10
srun --overlap --mem=0 ps -eo args > {report}/left
"""


def test_trials_run_over_two_nodes_and_a_failure_costs_only_its_trial(slurm: SlurmHere, tmp_path: Path) -> None:
    report, script, log = tmp_path / "cpu", tmp_path / "job.sh", tmp_path / "job.log"
    script.write_text(JOB.format(python=sys.executable, report=report))
    options = ("--wait", "--nodes=2", "--ntasks=2", "--exclusive", f"--output={log}", f"--chdir={ROOT}")
    slurm.ask("sbatch", *options, str(script), limit_s=550)
    made = {
        (record.as_trial.workload.split(".")[-1], record.as_trial.nodes, record.as_trial.size): record
        for record in records(report)
    }
    assert len(made) == len(records(report)) == 9, log.read_text()

    both, alone = made["train", 2, 0], made["train", 1, 0]
    for record, images in ((both, 16), (alone, 8)):
        assert record.status == "ok", record.reason
        assert record.blocks is not None and record.blocks.images_per_step == images
        steps = record.blocks.steps_per_block * len(record.blocks.host_s)
        assert value_of(record, "images_per_s") == pytest.approx(images * steps / record.blocks.timed_s)
    assert both.devices_used == 2 and both.facts["telemetry_of"] == "the first of 2 nodes"
    assert "telemetry_of" not in alone.facts
    assert both.facts["gate"]["change_difference"] <= both.facts["gate"]["change_tolerance"], "gradients are averaged"
    nodes = made["together_where", 2, 0].facts["nodes"]
    assert nodes == [["0", "n1"], ["1", "n2"]], "the first rank is where the runner is"

    assert all(made["together", 2, size].status == "ok" for size in (7, 8, 9))
    raised, killed, hung = (made[f"together_{how}", 2, 2] for how in FAILING)
    assert (raised.status, raised.reason) == ("crashed", "rank 1 of 2: ValueError: this rank has no such layer")
    assert 'raise ValueError("this rank has no such layer")' in raised.facts["traceback"]
    assert (killed.status, killed.reason) == ("crashed", "rank 1 of 2: it was killed by signal 9 (SIGKILL)")
    assert hung.status == "timeout" and hung.wall_s < 2 * LIMIT_S
    assert f"no result within {LIMIT_S:.0f} s; rank 1 stands at" in (hung.reason or "")
    assert "time.sleep(600)" in hung.facts["stacks"]["1"]
    left = (report / "left").read_text()
    assert left.count("slurmd -D -N n") >= 2 and "labkit" not in left and "torchrun" not in left
