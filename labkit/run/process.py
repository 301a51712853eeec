"""Start one worker, listen to it, and end it: the runner's side of `labkit.run.worker`."""

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

from labkit.hardware.frameworks import interpreter_of, path_of_workers
from labkit.hardware.profile import Timing
from labkit.trial import Trial

VMSTAT = Path("/proc/vmstat")
ENDED_CHECK_S = 0.5  # how often a silent worker is looked after


def new_id() -> str:
    """What tells processes of all passes and hosts apart; it begins with the time."""
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{os.urandom(3).hex()}"


@dataclass(frozen=True, kw_only=True)
class Work:
    """The trials of a process, and what it is started with."""

    trials: Sequence[Trial]
    timing: Timing
    log: Path
    environment: dict[str, str]
    gap_seed: int = 0
    pass_number: int = 1


class Spawned(ABC):
    """A process of ours that runs trials, and what it says. Use as a context: on leaving, it and its children are gone.

    `job` is what the process needs to know: trials, timing, seeds.
    """

    def __init__(self, work: Work) -> None:
        self.id = new_id()
        self.job: dict[str, Any] = {
            "trials": [trial.as_dict() for trial in work.trials],
            "timing": work.timing.model_dump(),
            "spawned_s": time.monotonic(),
            "gap_seed": work.gap_seed,
            "pass_number": work.pass_number,
        }
        self._kills_before = oom_kills()
        self._log = work.log
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._log_start = self._log.stat().st_size if self._log.exists() else 0
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        with self._log.open("ab") as errors:
            self._process = self._start({**os.environ, "PYTHONPATH": path_of_workers(), **work.environment}, errors)

    @abstractmethod
    def _start(self, environment: dict[str, str], log: BinaryIO) -> subprocess.Popen[bytes]:
        """Start it in a session of its own, so that ending it ends whatever it started."""

    @abstractmethod
    def _close(self) -> None:
        """Give back what listening to it took."""

    def where_it_hangs(self) -> tuple[str, dict[str, Any]]:
        """Words to add to the reason of a trial that gave no result in time, and facts; empty of a single process."""
        return "", {}

    def next_event(self, timeout_s: float) -> dict[str, Any] | None:
        """The next event, None when the process has ended. TimeoutError when none comes in time."""
        deadline = time.monotonic() + timeout_s
        while True:
            ended = self._process.poll() is not None  # a child it forked may hold the pipe open: its end is not awaited
            left_s = deadline - time.monotonic()
            try:
                return self._events.get(timeout=ENDED_CHECK_S if ended else min(max(left_s, 0), ENDED_CHECK_S))
            except queue.Empty:
                if ended:
                    return None
                if left_s <= 0:
                    raise TimeoutError from None

    def _kill_group(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def end(self) -> None:
        """Kill the process and all it started."""
        self._kill_group()
        self._process.wait()
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def why_it_died(self) -> tuple[str, str]:
        """Status and reason of a process that ended by itself in the middle of a trial."""
        code = self._process.wait()
        if code == -signal.SIGKILL and self._killed_for_memory():
            return "oom", "the operating system killed the process because the machine ran out of memory"
        if code < 0:
            return "crashed", f"the process was killed by signal {-code} ({signal.Signals(-code).name}){self._tail()}"
        return "crashed", f"the process ended with exit code {code}{self._tail()}"

    def _killed_for_memory(self) -> bool:
        """Whether the kernel has killed anything for memory since this began."""
        return oom_kills() > self._kills_before

    def _tail(self) -> str:
        """The last thing it said."""
        with self._log.open("rb") as file:
            file.seek(self._log_start)
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
        return f": {lines[-1][:300]}" if lines else ""


class WorkerProcess(Spawned):
    """A worker: one process, which hears on its stdin and speaks on its stdout. Its trials are of one framework."""

    def _start(self, environment: dict[str, str], log: BinaryIO) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [interpreter_of(self.job["trials"][0]["framework"]), "-m", "labkit.run.worker"],
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
            pass  # it died at once; the end of its events tells
        return process

    def _listen(self, stream: BinaryIO) -> None:
        for line in stream:
            try:
                self._events.put(json.loads(line))
            except ValueError:
                continue  # cut short by its death
        self._events.put(None)

    def _close(self) -> None:
        self._listener.join(ENDED_CHECK_S)
        # A child in a session of its own may still hold the pipe, and closing it under the listener would wait for it.
        open_streams = (self._process.stdin, None if self._listener.is_alive() else self._process.stdout)
        for stream in open_streams:
            if stream:
                try:
                    stream.close()
                except OSError:
                    pass


def oom_kills() -> int:
    """How many processes the kernel has killed for memory since it booted; 0 where it does not say."""
    try:
        counters = dict(line.split() for line in VMSTAT.read_text().splitlines())
    except (OSError, ValueError):
        return 0
    return int(counters.get("oom_kill", 0))
