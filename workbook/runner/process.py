"""Starts a worker process, reads its events and ends it: the runner's side of `workbook.runner.worker`."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

from labkit.errors import signal_name
from labkit.files import python_path
from workbook.hardware.environment import for_workers
from workbook.hardware.frameworks import interpreter_of
from workbook.runner.protocol import Pass
from workbook.trials.trial import Trial

VMSTAT = Path("/proc/vmstat")
ENDED_CHECK_S = 0.5  # how often the runner checks whether a silent worker has ended


def new_id() -> str:
    """Return an id that is unique among the processes of all passes and hosts. It begins with the UTC time."""
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{os.urandom(3).hex()}"


@dataclass(frozen=True, kw_only=True)
class Work:
    """The trials of a process, and the settings that it starts with."""

    trials: Sequence[Trial]
    of_pass: Pass
    log: Path
    environment: dict[str, str]
    gate_passed: Sequence[bool] = ()  # of each trial: whether it passed its gate earlier, with this code


class Spawned(ABC):
    """A worker process and its events. Use as a context: leaving it kills the process and its children.

    `job` holds what the process reads at its start: its trials and the settings of the pass.
    """

    def __init__(self, work: Work) -> None:
        self.id = new_id()
        trials = [trial.only_timed() for trial in work.trials] if work.of_pass.short else work.trials
        self.job: dict[str, Any] = {
            "trials": [trial.as_dict() for trial in trials],
            "pass": work.of_pass.model_dump(mode="json"),
            "spawned_s": time.monotonic(),
            "gate_passed": list(work.gate_passed) or [False] * len(work.trials),
        }
        self._kills_before = oom_kills()
        self._log = work.log
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._log_start = self._log.stat().st_size if self._log.exists() else 0
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        with self._log.open("ab") as errors:
            self._process = self._start({**for_workers(), "PYTHONPATH": python_path(), **work.environment}, errors)

    @abstractmethod
    def _start(self, environment: dict[str, str], log: BinaryIO) -> subprocess.Popen[bytes]:
        """Start the process in its own session, so that killing the session also kills its children."""

    @abstractmethod
    def _close(self) -> None:
        """Close the pipes or sockets to the process."""

    def where_it_hangs(self) -> tuple[str, dict[str, Any]]:
        """Return text for the reason of a trial that timed out, and facts; both are empty for a single process."""
        return "", {}

    def next_event(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the next event; None once the process has ended. Raise TimeoutError if none comes in time."""
        deadline = time.monotonic() + timeout_s
        while True:
            ended = self._process.poll() is not None  # not the pipe's end: a forked child may hold the pipe open
            left_s = deadline - time.monotonic()
            try:
                return self._events.get(timeout=ENDED_CHECK_S if ended else min(max(left_s, 0), ENDED_CHECK_S))
            except queue.Empty:
                if ended:
                    return None
                if left_s <= 0:
                    raise TimeoutError from None

    def end(self) -> None:
        """Kill the process and its children."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def why_it_died(self) -> tuple[str, str]:
        """Return status and reason of a process that ended by itself in the middle of a trial."""
        status, reason = self._death(self._process.wait(), "the process")
        return status, reason + (self._tail() if status == "crashed" else "")

    def _death(self, code: int | None, what: str) -> tuple[str, str]:
        """Return status and reason of a process that ended with an exit code; None if nobody knows it."""
        if code == -signal.SIGKILL and self._killed_for_memory():
            return "oom", f"the operating system killed {what} because the machine ran out of memory"
        if code is None:
            return "crashed", f"{what} ended without a word"
        if code < 0:
            return "crashed", f"{what} was killed by signal {-code} ({signal_name(-code)})"
        return "crashed", f"{what} ended with exit code {code}"

    def _killed_for_memory(self) -> bool:
        """Return whether the kernel has killed any process for memory since this one started."""
        return oom_kills() > self._kills_before

    def _tail(self) -> str:
        """Return the last line of the process's log, after a colon; empty without one."""
        with self._log.open("rb") as file:
            file.seek(self._log_start)
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
        return f": {lines[-1][:300]}" if lines else ""


class WorkerProcess(Spawned):
    """One worker process, which reads its job on stdin and writes events to stdout. Its trials are of one framework."""

    def _start(self, environment: dict[str, str], log: BinaryIO) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [interpreter_of(self.job["trials"][0]["framework"]), "-m", "workbook.runner.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
        assert process.stdin and process.stdout
        self._listener = threading.Thread(target=self._listen, args=(process.stdout,), daemon=True)
        self._listener.start()
        try:
            process.stdin.write((json.dumps(self.job) + "\n").encode())
            process.stdin.flush()
        except BrokenPipeError:
            pass  # the process died at once, which the end of its events shows
        return process

    def _listen(self, stream: BinaryIO) -> None:
        for line in stream:
            try:
                self._events.put(json.loads(line))
            except ValueError:
                continue  # a line cut short by the process's death
        self._events.put(None)

    def _close(self) -> None:
        self._listener.join(ENDED_CHECK_S)
        # A child in its own session may hold the pipe open, and closing stdout would then wait for the listener.
        open_streams = (self._process.stdin, None if self._listener.is_alive() else self._process.stdout)
        for stream in open_streams:
            if stream:
                try:
                    stream.close()
                except OSError:
                    pass


def oom_kills() -> int:
    """Return how many processes the kernel has killed for memory since boot; 0 if the kernel does not report it."""
    try:
        counters = dict(line.split() for line in VMSTAT.read_text().splitlines())
    except (OSError, ValueError):
        return 0
    return int(counters.get("oom_kill", 0))
