"""A command ends soon after a signal, whatever it does meanwhile, and nothing that it has started stays."""

from __future__ import annotations

import fcntl
import os
import pty
import shutil
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from tests.commands import MADE_BY_MAKE
from tests.processes import command, eventually, nothing_left_running, workers_now
from workbook.lifetime import INTERRUPTED, REQUESTS, UNWINDING_S
from workbook.paths import ROOT

WORDS = "labkit: interrupted. "
LIMIT_S = 60.0  # a signal ends a command within 3 s on an idle machine; the commands would go on for ten minutes
COMMAND = """
import subprocess, sys, time
from workbook.lifetime import exit_interrupted, unwind_on_request

unwind_on_request()
try:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    print("begun", flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    {then}
"""
SWALLOWS = "time.sleep(600)"
CALCULATES = "import hashlib; hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)"
MAKES = ("report", "render", "compare", "plan", "pack", "lab", "profile", "doctor", "data-check")


def started(then: str = "exit_interrupted()", **options: object) -> subprocess.Popen[str]:
    """Start a command with a child in a session of its own, which runs `then` when it is interrupted."""
    process: subprocess.Popen[str] = subprocess.Popen(
        [sys.executable, "-c", COMMAND.format(then=then)],
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT}
        | {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL)}  # nohup may have started the tests
        | options,
    )
    assert process.stdout and process.stdout.readline() == "begun\n"
    return process


@pytest.fixture(autouse=True)
def default_signals() -> None:
    """Let processes get Ctrl-C: a shell ignores SIGINT in what it starts with `&`, and processes inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.parametrize(
    ("number", "then"),
    [*((number, "exit_interrupted()") for number in REQUESTS), (signal.SIGTERM, SWALLOWS), (signal.SIGINT, CALCULATES)],
)
def test_a_signal_ends_a_command_and_its_children(number: signal.Signals, then: str) -> None:
    with nothing_left_running():
        process = started(then)
        for _ in range(2):  # a process group's signal comes twice: make passes it on
            process.send_signal(number)
        assert process.communicate(timeout=LIMIT_S)[1].count(WORDS) == 1
        assert process.returncode == INTERRUPTED


def test_a_command_ends_even_if_nobody_reads_what_it_says() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    while True:
        try:
            os.write(writer, b" " * 2**16)
        except BlockingIOError:
            break
    os.set_blocking(writer, True)
    with nothing_left_running():
        process = started(stderr=writer)
        process.terminate()
        assert process.wait(timeout=LIMIT_S)
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("survives", [False, True], ids=["", "nohup"])
def test_a_closed_terminal_ends_a_command_unless_nohup_started_it(survives: bool) -> None:
    terminal, end = pty.openpty()

    def of_terminal() -> None:
        os.setsid()
        fcntl.ioctl(end, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGHUP, signal.SIG_IGN if survives else signal.SIG_DFL)

    with nothing_left_running():
        process = started(preexec_fn=of_terminal, stdin=end, stderr=end)
        os.close(end)
        os.close(terminal)
        if survives:
            assert_ignored(process)
        assert process.wait(timeout=LIMIT_S) == INTERRUPTED


def test_a_command_that_a_script_started_with_an_ampersand_ends_at_sigterm() -> None:
    with nothing_left_running():
        process = started(preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
        process.send_signal(signal.SIGINT)
        assert_ignored(process)
        assert process.wait(timeout=LIMIT_S) == INTERRUPTED


def assert_ignored(process: subprocess.Popen[str]) -> None:
    """Assert that a command goes on after a signal, and send it SIGTERM."""
    time.sleep(2 * UNWINDING_S)
    assert process.poll() is None
    process.terminate()


def of_make(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Start make with a Python that answers make's question and else sleeps; wait until it does."""
    for name in ("bin", "workbook"):
        (folder / name).mkdir()
    shutil.copy(ROOT / "Makefile", folder)
    for name in ("constraints.txt", "constraints-cu126.txt", "constraints-tf.txt", "pyproject.toml"):
        (folder / name).touch()
    (folder / "workbook" / "bootstrap.py").touch()
    python = folder / "bin" / "python3"
    python.write_text('#!/bin/sh\n[ "$1" != -c ] || { echo True; exit; }\nexec sleep 600\n')
    python.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if name not in MADE_BY_MAKE}
    path = os.pathsep.join([str(python.parent), kept["PATH"]])
    process = subprocess.Popen(["make", *arguments], cwd=folder, env={**kept, "PATH": path})
    assert eventually(lambda: any(command(one) == "sleep 600" for one in workers_now()))
    return process


@pytest.mark.parametrize("arguments", [*((goal, "PYTHON=bin/python3") for goal in MAKES), ("setup",), ("setup-tf",)])
def test_a_signal_to_make_alone_ends_what_it_runs(arguments: tuple[str, ...], tmp_path: Path) -> None:
    with nothing_left_running():
        process = of_make(tmp_path, *arguments)
        process.terminate()
        assert process.wait(timeout=LIMIT_S) == -signal.SIGTERM
    assert not list(tmp_path.glob(".venv*/.installed")), "make goes on with the set-up at the next call"


def test_a_signal_during_the_set_up_ends_pip_too(tmp_path: Path) -> None:
    """The virtual environment exists, so that the first long step is pip."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\n[ "$1" != -c ] || exit 0\nexec sleep 600\n')
    python.chmod(0o755)
    with nothing_left_running():
        process = subprocess.Popen(
            [sys.executable, "-I", ROOT / "workbook" / "bootstrap.py", tmp_path, "jax"],
            env={**os.environ, "TORCH_INDEX": "https://localhost/cpu"},
            stderr=subprocess.PIPE,
            text=True,
        )
        assert eventually(lambda: any(command(one) == "sleep 600" for one in workers_now()))
        process.terminate()
        said = process.communicate(timeout=LIMIT_S)[1]
    assert process.returncode == INTERRUPTED
    assert said.startswith("labkit: interrupted. ") and "Traceback" not in said
