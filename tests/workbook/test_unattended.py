"""Commands of cron, of CI and below nohup: no prompt, no terminal, few variables, and few lines in the log."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.commands import apart
from workbook.paths import ROOT
from workbook.runner.progress import LINE_EVERY_S, Progress


def test_a_command_runs_with_what_cron_gives_and_without_a_terminal(shared_cache: Path, tmp_path: Path) -> None:
    own = apart(tmp_path, shared_cache)
    names = ("LABKIT_REPORTS", "LABKIT_CACHE", "LABKIT_LOCK", "XDG_STATE_HOME")
    environment = {"PATH": "/usr/bin:/bin", **{name: own[name] for name in names}}
    command = ("make", "plan", f"PYTHON={sys.executable}", "HW=cpu", "SCALE=smoke", "STUDY=training")
    of_shell = ("/bin/sh", "-c", '"$@" <&-', "sh", *command)  # with stdin closed
    done = subprocess.run(of_shell, capture_output=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    assert b"      ResNet-50, batch 8" in done.stdout  # ", FP32" follows where the CPU has BF16
    assert not set(done.stdout + done.stderr) & (set(range(32)) - {ord("\n")}), "no control codes"


@pytest.mark.parametrize("stderr", ["a file", "closed"])
def test_progress_is_a_line_every_half_minute_without_a_terminal(
    stderr: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now_s = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    monkeypatch.setitem(sys.modules, "ipykernel", sys)  # a report imports it to render pages
    if stderr == "closed":
        monkeypatch.setattr("sys.stderr", None)
    progress = Progress("a study", total=9, done=2)
    lines_at_s: list[float] = []
    for second in range(200):
        now_s = float(second)
        progress.show("run 1/3, timed 5%", remaining_s=100.0)
        out = capsys.readouterr().out
        lines_at_s += [now_s] * out.count("\n")
        assert "\r" not in out and "\x1b" not in out
    progress.close()
    gaps_s = [after - before for before, after in pairwise(lines_at_s)]
    assert len(lines_at_s) > 4 and min(gaps_s) >= LINE_EVERY_S


def test_a_step_that_tells_no_share_shows_every_half_minute_that_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now_s = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    monkeypatch.setattr("sys.stderr", None)
    progress = Progress("a study", total=9, done=2)
    progress.go_on()  # before the first step is shown
    progress.show("run 1/3, compile 0%", remaining_s=100.0)
    for second in range(200):
        now_s = float(second)
        progress.go_on()
    lines = capsys.readouterr().out.splitlines()
    assert 5 <= len(lines) <= 6
    assert lines[0].endswith("run 1/3, compile 0% for 31 s, about 1 min 9 s left")
    assert lines[-1].endswith("for 3 min 6 s, longer than planned")
    progress.finished_one()
    now_s = 300.0
    progress.go_on()  # the next step has not begun
    assert capsys.readouterr().out == ""
