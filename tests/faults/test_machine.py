"""Tests of faults of the machine: no network, no memory, a lost GPU, a clock that steps, and a user's umask."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from labkit.errors import LabkitError
from tests.fake_nvml import pynvml as fake
from tests.faults.project import Project, report_of
from tests.faulty.campaign import HOST, between_sound_ones, records, run, sound, tiny_profile, trial
from workbook.hardware.host import this_host
from workbook.hardware.profile import Device
from workbook.records import Record
from workbook.records.store import Store

CONTROL_GROUPS = Path("/sys/fs/cgroup")
LIMIT_BYTES = 400 * 2**20  # room for a process without a framework, not for the faulty trial


# ---- no network -----------------------------------------------------------------------------------------------------


def without_network() -> list[str]:
    """Return the start of a command in a network namespace whose only interface, the loopback, is down."""
    command = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--net", "--map-root-user"]
    if not shutil.which("unshare") or subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("a network namespace needs unshare and the permission to use it")
    return command


@pytest.mark.slow
def test_a_report_needs_no_network_and_not_even_the_loopback(project: Callable[..., Project]) -> None:
    of = project()
    command = [*without_network(), sys.executable, "-m", "workbook.cli", *report_of()]
    ended = subprocess.run(command, cwd=of.root, env=of.environment, capture_output=True, text=True, timeout=250)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert [record.status for record in of.records()] == ["ok"] * 10
    assert (of.report / "index.html").is_file() and (of.report / "05_inference.html").is_file()


# ---- no memory ------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_group() -> Iterator[Callable[[], None]]:
    """Yield a function that moves the calling process into a control group with little memory."""
    version_1 = (CONTROL_GROUPS / "memory").is_dir()
    group = (CONTROL_GROUPS / "memory" if version_1 else CONTROL_GROUPS) / f"labkit-test-{os.getpid()}"
    limit = group / ("memory.limit_in_bytes" if version_1 else "memory.max")
    try:
        group.mkdir()
        limit.write_text(str(LIMIT_BYTES))
    except OSError as error:
        pytest.skip(f"a control group with little memory needs root and its memory controller: {error.strerror}")
    yield lambda: (group / "cgroup.procs").write_text(str(os.getpid())) and None
    group.rmdir()


@pytest.mark.usefixtures("_nothing_is_left_running")
def test_a_trial_that_the_kernel_kills_for_memory_costs_only_itself(
    report: Path, small_group: Callable[[], None]
) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.faulty.campaign import *; "
        "run(between_sound_ones('takes_memory'), Path(sys.argv[1]))"
    )
    command = [sys.executable, "-c", code, str(report)]
    ended = subprocess.run(command, preexec_fn=small_group, capture_output=True, text=True, timeout=200)
    assert ended.returncode == 0, ended.stderr
    made = records(report)
    assert [record.status for record in made] == ["ok", "oom", "ok"], [record.reason for record in made]
    assert len({record.process.id for record in made}) == 2


# ---- a GPU ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_nothing_is_left_running")
def test_a_lost_gpu_stops_a_report_after_one_failed_trial(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setenv("FAKE_NVML", json.dumps({"chips": ["hopper"]}))
    host = replace(this_host(), id=HOST.id)
    on_gpu = Device(kind="cuda", pattern="H200", count=1)
    profile = tiny_profile().model_copy(update={"device": on_gpu})
    monkeypatch.setattr("tests.faulty.campaign.tiny_profile", lambda **_: profile)
    trials = between_sound_ones("kill", "raises")
    lost = {"function": "nvmlDeviceGetHandleByIndex", "error": "NVML_ERROR_GPU_IS_LOST"}
    with monkeypatch.context() as later:
        later.setenv("FAKE_NVML", json.dumps({"chips": ["hopper"], "faults": [lost]}))
        with pytest.raises(LabkitError, match=r"no longer lists 1 of 1 GPUs \(NVIDIA H200\).*same command"):
            run(trials, report, host=host)
    assert [record.status for record in records(report, host.id)] == ["ok", "crashed"]
    assert run(trials, report, host=host).measured == 4
    made = records(report, host.id)
    assert [record.status for record in made[2:]] == ["crashed", "ok", "crashed", "ok"]


# ---- the wall clock -------------------------------------------------------------------------------------------------

STEPPED = """
import datetime, os, time
_time, _moment = time.time, float(os.environ["LABKIT_TEST_STEP_AT"])
def _step():
    return -86400.0 if time.monotonic() > _moment else 0.0
time.time = lambda: _time() + _step()
class _Stepped(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return super().now(tz) + datetime.timedelta(seconds=_step())
datetime.datetime = _Stepped
"""


@pytest.mark.usefixtures("_nothing_is_left_running")
def test_a_wall_clock_that_steps_back_loses_and_doubles_no_record(
    report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(sound(3), report)
    (tmp_path / "sitecustomize.py").write_text(STEPPED)  # every process of the next run imports it
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("LABKIT_TEST_STEP_AT", str(time.monotonic()))
    assert run(sound(6), report).measured == 3
    made = records(report)
    days = [record.started_at[:10] for record in made]
    assert max(days[3:]) < min(days[:3]), "the later records have the earlier day"
    assert len({record.key for record in made}) == 6
    assert all(durations_are_sound(record) for record in made)
    assert run(sound(6), report).measured == 0, "nothing is measured again"
    assert Store(report).read("01_training", HOST.id) == made


def durations_are_sound(record: Record) -> bool:
    """Return whether no duration of a record contains the step of a day."""
    blocks, process = record.blocks, record.process
    assert blocks is not None and record.telemetry is not None
    times = [record.wall_s, process.startup_s, *record.phases_s.values(), *blocks.host_s]
    return all(0 <= seconds < 3600 for seconds in times) and record.telemetry.status == "ok"


# ---- permissions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o077, 0o002])
def test_files_of_a_report_have_the_users_umask(report: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        run([trial(size=1)], report)
        store = Store(report)
        store.pack(HOST.id, "01_training")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in report.rglob("*") if path.is_file()}
    assert len(modes) >= 4
    assert modes == dict.fromkeys(modes, 0o666 & ~umask)


# ---- another machine with the same home and checkout ----------------------------------------------------------------


def on_another_processor(folder: Path) -> list[str]:
    """Return the start of a command that sees a processor of another family, for which it needs a mount namespace."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    other = re.sub(r"^model(\s*):.*$", r"model\1: 250", text, flags=re.MULTILINE)
    if other == text:
        pytest.skip("this processor has no family and model")
    (folder / "cpuinfo").write_text(other, encoding="utf-8")
    command = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    mount = ["sh", "-c", 'mount --bind "$0" /proc/cpuinfo && exec "$@"', str(folder / "cpuinfo")]
    if not shutil.which("unshare") or subprocess.run([*command, *mount, "true"], capture_output=True).returncode:
        pytest.skip("a mount over /proc/cpuinfo needs unshare and the permission to use it")
    return [*command, *mount]


@pytest.mark.slow
def test_machines_that_share_a_home_and_a_checkout_keep_their_records_apart(
    project: Callable[..., Project], tmp_path: Path
) -> None:
    of = project()
    report = [sys.executable, "-m", "workbook.cli", *report_of("05_inference")]
    first = subprocess.run(report, cwd=of.root, env=of.environment, capture_output=True, text=True, timeout=250)
    (described,) = (of.report / "hosts").glob("*.json")
    before = described.read_bytes()
    command = [*on_another_processor(tmp_path), *report]
    second = subprocess.run(command, cwd=of.root, env=of.environment, capture_output=True, text=True, timeout=250)
    assert (first.returncode, second.returncode) == (0, 0), first.stdout + second.stdout + second.stderr
    assert described.read_bytes() == before
    hosts = {path.stem for path in (of.report / "hosts").glob("*.json")}
    made = of.records()
    assert len(hosts) == 2 and {record.host for record in made} == hosts
    assert len(made) == 2 * 6 and len({record.fingerprint for record in made}) == 2
    page = (of.report / "fingerprint.html").read_text(encoding="utf-8")
    assert f"{(hosts - {described.stem}).pop()}</code>" in page, "each machine shows its own records"
