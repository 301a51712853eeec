"""Tests of a disk that is full and of a folder that is read-only. Each mounts a small disk in memory, as root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from labkit.files import LEFT_OVER_S, remove_leftovers, temporary_folder
from tests.faults.project import Project, report_of, whole_lines
from tests.faulty.campaign import HOST, STUDY, records, run, sound
from workbook.cli import main
from workbook.records.store import Store
from workbook.runner import runner

OTHERS = "others"
FULL = "disk is full"


def fill(disk: Path) -> Path:
    """Fill a disk to its last byte with one file, and return the file."""
    path = disk / OTHERS
    for size in (4096, 1):  # whole pages first
        try:
            with path.open("ab", buffering=0) as file:
                while file.write(bytes(size)):
                    pass
        except OSError:
            continue
    return path


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run a command of labkit in this process and return its exit code."""
    monkeypatch.setattr("sys.argv", ["labkit", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_a_record_for_which_there_is_no_room_is_measured_again(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = disk / "cpu"
    run(sound(2), report)
    path = Store(report).path(HOST.id, STUDY)
    before = path.read_bytes()
    with monkeypatch.context() as others:  # they fill the disk just before the trials
        others.setattr(runner, "write_host", lambda *_: fill(disk))
        with pytest.raises(OSError, match="No space left"):
            run(sound(4), report)
    left = path.read_bytes()
    assert left.startswith(before)
    assert not left.endswith(b"\n"), "the last page of the file took a part of the record"
    (disk / OTHERS).unlink()
    assert run(sound(4), report).measured == 2
    assert len({record.key for record in records(report)}) == len(records(report)) == 4


@pytest.mark.usefixtures("_nothing_is_left_running")
def test_a_full_disk_is_one_sentence_for_every_command(
    disk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LABKIT_REPORTS", str(disk))
    run(sound(2), disk / "cpu", scale="quick")
    kept = Store(disk / "cpu").path(HOST.id, STUDY).read_bytes()
    others = fill(disk)
    assert command(monkeypatch, "pack", "--hw", "cpu") == 2
    said = capsys.readouterr().err
    assert FULL in said and said.count("\n") == 1
    assert Store(disk / "cpu").path(HOST.id, STUDY).read_bytes() == kept
    others.unlink()
    assert command(monkeypatch, "pack", "--hw", "cpu") == 0
    assert {record.key for record in records(disk / "cpu")} == {item.key for item in sound(2)}  # a run may be repeated


def test_a_folder_that_is_read_only_is_one_sentence(
    disk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LABKIT_REPORTS", str(disk))
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    assert command(monkeypatch, "report", "--hw", "cpu", "--scale", "smoke", "--study", "09_profile") == 2
    said = capsys.readouterr().err
    assert said.startswith(f"labkit: {disk}/cpu ") and "LABKIT_REPORTS" in said and said.count("\n") == 1


@pytest.mark.parametrize("name", ["a file", "a link", "n" * 300])
def test_a_folder_that_cannot_be_made_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (tmp_path / "a file").touch()
    (tmp_path / "a link").symlink_to(tmp_path / "nothing")
    monkeypatch.setenv("LABKIT_REPORTS", str(tmp_path / name))
    assert command(monkeypatch, "render", "--hw", "cpu", "--study", "09_profile") == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"labkit: {tmp_path / name}") and "LABKIT_REPORTS" in said


def test_another_error_of_a_file_is_not_called_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path / "elsewhere"))

    monkeypatch.setattr("workbook.report.keep.pack_records", fails)
    monkeypatch.setattr("sys.argv", ["labkit", "pack", "--hw", "cpu"])
    with pytest.raises(PermissionError):
        main()


@pytest.mark.slow
def test_a_report_continues_after_a_page_for_which_there_was_no_room(
    disk: Path, project: Callable[..., Project]
) -> None:
    of = project(LABKIT_REPORTS=str(disk))
    assert of.run(*report_of("07_precision")).code == 0
    before = of.files()
    others = fill(disk)
    ended = of.run(*report_of())
    assert ended.code == 2 and FULL in ended.output.splitlines()[-1]
    assert "Traceback" not in ended.output
    others.unlink()
    assert of.run(*report_of()).code == 0
    after = of.files()
    assert all(after[path] == text for path, text in before.items())
    assert sum(len(whole_lines(text)) for text in after.values()) == 10
    assert not list(of.report.rglob(".*")), "nothing half written"


def test_temporary_files_of_killed_processes_are_removed_and_others_are_not(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as killed:
        killed.wait()
    with subprocess.Popen(["sleep", "60"]) as stopped:  # its file is old, or the clock was set ahead
        dead, new, alive, foreign = (
            tmp_path / f".{name}"
            for name in (f"a.html.{killed.pid}", f"b.html.{killed.pid}", f"a.csv.{stopped.pid}", "hidden")
        )
        for path in (dead, new, alive, foreign):
            path.write_text("half of it")
        for path in (dead, alive, foreign):
            os.utime(path, (time.time() - 2 * LEFT_OVER_S,) * 2)
        remove_leftovers(tmp_path)
        stopped.kill()
    assert {*tmp_path.iterdir()} == {foreign, new, alive}


HOLD = """
import sys
from labkit.files import temporary_folder
with temporary_folder(sys.argv[1]) as folder:
    (folder / "content").touch()
    print(folder, flush=True)
    sys.stdin.read()
"""


def test_the_folder_of_a_killed_process_is_removed_by_the_next_one_and_others_are_not(tmp_path: Path) -> None:
    foreign = tmp_path / "labkit-findings-1"
    foreign.mkdir()
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as killed, subprocess.Popen(command, **pipes) as alive:  # type: ignore[call-overload]
        left, used = (Path(process.stdout.readline().strip()) for process in (killed, alive))
        killed.kill()
        killed.wait()
        assert left.exists() and used.exists()
        with temporary_folder(str(tmp_path)) as own:
            assert sorted(tmp_path.iterdir()) == sorted([foreign, used, own])
        alive.stdin.close()
    assert list(tmp_path.iterdir()) == [foreign]


def test_a_container_that_shares_the_place_removes_no_folder_of_its_host(tmp_path: Path) -> None:
    own_numbers = ["unshare", "--pid", "--fork"]
    if not shutil.which("unshare") or subprocess.run([*own_numbers, "true"], capture_output=True).returncode:
        pytest.skip("this machine gives its users no own numbers of processes")
    apart = [*own_numbers, "--mount-proc", sys.executable, "-c", HOLD, str(tmp_path)]
    with temporary_folder(str(tmp_path)) as own:
        subprocess.run(apart, stdin=subprocess.DEVNULL, check=True, stdout=subprocess.DEVNULL)
        assert own.exists()
