"""Trials over the two nodes of a real Slurm: images/s of both, and one record of whatever fails on the second."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from labkit.places import ROOT
from labkit.records import Record
from labkit.results.from_result import value_of
from tests.cluster.over_nodes import FAILING, LEFT, LIMIT_S
from tests.cluster.slurm_here import SlurmHere
from tests.faulty.campaign import records

pytestmark = pytest.mark.timeout(600)


def job_of_two_nodes(slurm: SlurmHere, report: Path, what: str) -> dict[tuple[str, int, int], Record]:
    """Submit it, wait for its end; its records by workload, nodes and size."""
    script, log = report.parent / "job.sh", report.parent / "job.log"
    report.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(f"#!/bin/bash\nexec {sys.executable} -m tests.cluster.over_nodes {report} {what}\n")
    slurm.ask(
        *("sbatch", "--wait", "--nodes=2", "--ntasks=2", "--exclusive", f"--output={log}", f"--chdir={ROOT}"),
        str(script),
        limit_s=500,
    )
    made = records(report)
    logs = [path.read_text(errors="replace")[-3000:] for path in (log, *report.glob("logs/*.log")) if path.exists()]
    assert made, "\n".join(logs)
    return {(one.as_trial.workload.split(".")[-1], one.as_trial.nodes, one.as_trial.size): one for one in made}


def test_two_nodes_train_one_network_and_say_how_fast(slurm: SlurmHere, tmp_path: Path) -> None:
    made = job_of_two_nodes(slurm, tmp_path / "cpu", "sound")
    both, alone = made["train", 2, 0], made["train", 1, 0]
    for one, images in ((both, 16), (alone, 8)):
        assert one.status == "ok", one.reason
        assert one.blocks is not None and one.blocks.images_per_step == images
        steps = one.blocks.steps_per_block * len(one.blocks.host_s)
        assert value_of(one, "images_per_s") == pytest.approx(images * steps / one.blocks.timed_s)
    assert both.devices_used == 2 and both.facts["telemetry_of"] == "the first of 2 nodes"
    assert "telemetry_of" not in alone.facts
    assert both.facts["gate"]["change_difference"] <= both.facts["gate"]["change_tolerance"], "gradients are averaged"
    where = made["together_where", 2, 0]
    assert where.facts["nodes"] == [["0", "n1"], ["1", "n2"]], "the first rank is where the runner is"
    refused = made["together", 3, 0]
    assert refused.status == "unsupported"
    assert "there are 2 of 3: `make report ON=slurm HW=... NODES=3`" in (refused.reason or "")


def test_what_fails_on_the_second_node_costs_its_trial_alone(slurm: SlurmHere, tmp_path: Path) -> None:
    made = job_of_two_nodes(slurm, tmp_path / "cpu", "faulty")
    assert len(made) == len(FAILING) + 3, "one record of each"
    for size in (7, 8, 9):
        assert made["together", 2, size].status == "ok"
    raised, killed, hung = (made[f"together_{how}", 2, 2] for how in FAILING)
    assert (raised.status, raised.reason) == ("crashed", "rank 1 of 2: ValueError: this rank has no such layer")
    assert 'raise ValueError("this rank has no such layer")' in raised.facts["traceback"]
    assert (killed.status, killed.reason) == ("crashed", "rank 1 of 2: it was killed by signal 9 (SIGKILL)")
    assert hung.status == "timeout" and hung.wall_s < 2 * LIMIT_S
    assert f"no result within {LIMIT_S:.0f} s; rank 1 stands at" in (hung.reason or "")
    assert "time.sleep(600)" in hung.facts["stacks"]["1"]
    assert json.loads((tmp_path / "cpu" / LEFT).read_text()) == [], "nothing is left on either node"
    assert not slurm.of_jobs()
