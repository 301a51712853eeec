"""Measure faulty and sound trials on a made-up machine: `python -m tests.faulty.campaign REPORT [WORKLOAD ...]`.

The prefix of a workload such as `keras-jax/hang` names the framework whose process runs the trial.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from workbook.hardware.host import Host
from workbook.hardware.profile import Device, Profile, Timing
from workbook.records import Record
from workbook.records.store import Store
from workbook.runner import Outcome, measure, order_of_pass
from workbook.runner.nodes.allocation import Nodes
from workbook.runner.plan import order_seed
from workbook.session import Session
from workbook.trials.trial import Trial

STUDY = "01_training"
TIMING = Timing(warmup_s=0.02, timed_s=0.03, block_s=0.005, limit_s=400.0)
HOST = Host(
    id="0123456789ab",
    gpus=(),
    driver=None,
    cpu="a CPU",
    cpu_cores=2,
    cpu_threads=2,
    cpu_features=(),
    memory_bytes=2**33,
    os="Linux 6",
    python="3.11",
    packages={"labkit": "0.1.0", "torch": "2.13.0", "jax": "0.7.0"},
    commit=None,
    source="0" * 12,
)


def tiny_profile(*, passes: int = 1, limit_s: float = TIMING.limit_s) -> Profile:
    """Return the profile of a CPU with scales `smoke` and `quick`, whose trials take about 0.05 s."""
    timing = TIMING.model_copy(update={"limit_s": limit_s, "passes": passes})
    return Profile(
        name="cpu", title="a CPU", device=Device(kind="cpu"), timing=dict.fromkeys(("smoke", "quick"), timing)
    )


def trial(workload: str = "ok", *, size: int = 0) -> Trial:
    """Return a trial of a workload of `tests.faulty` without images. Without a prefix it uses no framework."""
    framework, _, name = workload.rpartition("/")
    about = {"workload": f"tests.faulty.{name}", "framework": framework or "none"}
    return Trial(**about, device="cpu", data="none", size=size)


def sound(number: int) -> list[Trial]:
    """Return `number` trials that succeed."""
    return [trial(size=size) for size in range(1, number + 1)]


def between_sound_ones(*workloads: str) -> list[Trial]:
    """Return trials whose order in pass 1 alternates sound trials with `workloads`, a sound trial first and last."""
    wanted = sound(2 * len(workloads) + 1)
    wanted[1::2] = [trial(workload) for workload in workloads]
    return listed_for(wanted)


def listed_for(wanted: list[Trial], host: str = HOST.id) -> list[Trial]:
    """Return the trials arranged so that pass 1 at scale smoke on a host runs them in the order of `wanted`."""
    seed = order_seed(STUDY, "smoke", 1, host)
    places: list[int] = order_of_pass(range(len(wanted)), seed)  # type: ignore[arg-type]
    listed = dict(zip(places, wanted, strict=True))
    return [listed[place] for place in range(len(wanted))]


def run(
    trials: list[Trial],
    report: Path,
    *,
    scale: str = "smoke",
    passes: int = 1,
    limit_s: float = TIMING.limit_s,
    host: Host = HOST,
    nodes: Nodes | None = None,
    study: str = STUDY,
    rounds: Sequence[int] | None = None,
    keeps_traces: bool = False,
) -> Outcome:
    """Measure `trials` on `tiny_profile` and append their records to `report`."""
    profile = tiny_profile(passes=passes, limit_s=limit_s)
    session = Session(profile=profile, host=host, store=Store(report), scale=scale, keeps_traces=keeps_traces)
    return measure(trials, study=study, session=session, nodes=nodes, rounds=rounds)


def records(report: Path, host: str = HOST.id) -> list[Record]:
    """Return the records of the study STUDY in `report`."""
    return Store(report).read(STUDY, host)


if __name__ == "__main__":
    run([*sound(4), *map(trial, sys.argv[2:])], Path(sys.argv[1]), passes=2, limit_s=600)
