"""Forked workers of a report: which are forked, what they share with their parent, and that they end as others do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faulty.campaign import listed_for, records, run, trial
from tests.processes import eventually, is_forked, nothing_left_running, workers_now
from workbook.paths import ROOT
from workbook.runner import forked
from workbook.runner.forked import ForkedWorker, ParentGone, end_parent
from workbook.trials.trial import Trial

RUN = 7
FAULTS = ("torch/kill_with_fork", "torch/segfault", "torch/raises")
BEGINNING = ("told", "inherited", "signals", "start_method", "leads_group", "descriptors", "folder", "threads")


@pytest.fixture(autouse=True)
def own_parent() -> Iterator[None]:
    """End the parents of workers before and after a test."""
    end_parent()
    yield
    end_parent()


@pytest.fixture
def empty_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let parents import an empty PyTorch from a folder, which is returned."""
    folder = tmp_path / "packages"
    folder.mkdir()
    for name in ("torch", "torchvision"):
        (folder / f"{name}.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    return folder


def sound(number: int) -> list[Trial]:
    """Return trials of PyTorch that succeed: others are never forked."""
    return [trial("torch/ok", size=size) for size in range(1, number + 1)]


def parent_of(environment: dict[str, str], tmp_path: Path, number: int = RUN) -> int:
    """Fork a worker, end it, and return the process id of its parent."""
    worker = ForkedWorker(number, {**os.environ, **environment}, tmp_path / "log")
    os.killpg(worker.pid, signal.SIGKILL)
    assert worker.wait(10) == -signal.SIGKILL
    return worker._parent._process.pid


@pytest.mark.usefixtures("empty_pytorch")
def test_workers_of_a_run_share_a_parent_and_other_runs_have_another(tmp_path: Path) -> None:
    assert parent_of({}, tmp_path) == parent_of({}, tmp_path) != parent_of({}, tmp_path, RUN + 1)


@pytest.mark.usefixtures("empty_pytorch")
@pytest.mark.parametrize("name", ["MALLOC_ARENA_MAX", "LD_LIBRARY_PATH", "PYTHONHASHSEED", "CUDA_MODULE_LOADING"])
def test_a_variable_that_is_read_at_the_start_has_another_parent(name: str, tmp_path: Path) -> None:
    assert parent_of({}, tmp_path) != parent_of({name: "1"}, tmp_path)
    assert parent_of({}, tmp_path) == parent_of({"OF_NO_FRAMEWORK": "1"}, tmp_path)


def test_a_report_forks_its_workers_and_a_notebook_starts_them(tmp_path: Path) -> None:
    run(sound(1), tmp_path)
    assert not has_parent()
    assert run(sound(2), tmp_path, rounds=[1]).measured == 1
    assert has_parent()


def test_a_forked_worker_begins_and_fails_as_another_does(tmp_path: Path) -> None:
    """Variables, folder, signals, descriptors, threads and the start method of its own processes are the same."""
    faulty = [each for pair in zip(sound(len(FAULTS)), map(trial, FAULTS), strict=True) for each in pair]
    trials, began, ended = [*faulty, trial("torch/settings")], {}, {}
    with nothing_left_running():
        for way, rounds in (("started", None), ("forked", [1])):
            run(listed_for(trials), tmp_path / way, rounds=rounds)
            made = records(tmp_path / way)
            # The rest of a crash's reason lists the extension modules, of which a parent imports more.
            ended[way] = [(record.status, (record.reason or "")[:50]) for record in made]
            began[way] = {fact: made[-1].facts[fact] for fact in BEGINNING}
    assert ended["started"] == ended["forked"]
    assert [status for status, _ in ended["forked"]].count("ok") == len(trials) - len(FAULTS)
    assert began["started"] == began["forked"]
    assert began["forked"]["leads_group"]


def test_a_forked_worker_that_hangs_ends_with_its_children(tmp_path: Path) -> None:
    with nothing_left_running():
        run([trial("torch/hang_with_child")], tmp_path, limit_s=1.0, rounds=[1])
    assert [record.status for record in records(tmp_path)] == ["timeout"]


@pytest.mark.usefixtures("empty_pytorch")
def test_without_its_parent_a_worker_ends_and_the_others_start_by_themselves(tmp_path: Path) -> None:
    worker = ForkedWorker(RUN, os.environ, tmp_path / "log")
    # A worker names itself after its parent has answered.
    assert eventually(lambda: worker.pid in [process.pid for process in workers_now() if is_forked(process)])
    worker._parent._process.kill()
    worker._parent._process.wait()
    assert worker.poll() == -signal.SIGKILL
    worker.stdin.close()
    for _ in range(2):
        with pytest.raises(ParentGone):
            ForkedWorker(RUN, os.environ, tmp_path / "log")
    assert parent_of({}, tmp_path, RUN + 1), "the next run has a parent again"


def test_a_parent_that_cannot_import_costs_no_trial(empty_pytorch: Path, tmp_path: Path) -> None:
    (empty_pytorch / "torch.py").unlink()
    (empty_pytorch / "torchvision.py").write_text("raise OSError('libcudart.so: cannot open shared object file')\n")
    assert run(sound(2), tmp_path, rounds=[1]).failed == 0
    assert [record.status for record in records(tmp_path)] == ["ok", "ok"]
    assert not has_parent()


@pytest.mark.usefixtures("empty_pytorch")
def test_an_answer_that_an_interrupt_left_unread_is_no_answer_to_the_next_request(tmp_path: Path) -> None:
    worker = ForkedWorker(RUN, os.environ, tmp_path / "log")
    worker._parent._asked += 1
    worker._parent._socket.send(f'[{worker._parent._asked}, {{"exit_code_of": {worker.pid}}}]'.encode())
    os.killpg(worker.pid, signal.SIGKILL)
    assert worker.wait(10) == -signal.SIGKILL


def test_the_parent_imports_pytorch_alone_and_starts_no_cuda() -> None:
    code = """
import sys
from unittest.mock import patch
from workbook import forkserver
with patch.object(forkserver, "_serve", return_value=False):
    assert forkserver.main() == 0
import torch
assert "torchvision" in sys.modules
assert not torch.cuda.is_initialized()
assert [name for name in sys.modules if name.startswith("workbook.")] == ["workbook.forkserver"]
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def has_parent() -> bool:
    """Return whether this process has a parent of workers that can fork."""
    return forked._parent is not None
