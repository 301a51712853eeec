"""Start one worker, listen to it, and end it: the runner's side of `labkit.run.worker`."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from labkit.host import ROOT
from labkit.profile import Timing
from labkit.trial import Trial

VMSTAT = Path("/proc/vmstat")
ENDED_CHECK_S = 0.5  # how often a silent worker is looked after


class WorkerProcess:
    """A running worker. Use as a context: on leaving, the process and its children are gone."""

    def __init__(
        self,
        trials: Sequence[Trial],
        timing: Timing,
        *,
        log: Path,
        environment: dict[str, str],
        gap_seed: int = 0,
        pass_number: int = 1,
    ) -> None:
        self.id = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{os.urandom(3).hex()}"
        self._kills_before = _oom_kills()
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log
        self._log_start = log.stat().st_size if log.exists() else 0
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        with log.open("ab") as errors:
            # A session of its own, so that ending it ends whatever it started.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "labkit.run.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": path, **environment},
                start_new_session=True,
            )
        job = {
            "trials": [trial.as_dict() for trial in trials],
            "timing": timing.model_dump(),
            "spawned_s": time.monotonic(),
            "gap_seed": gap_seed,
            "pass_number": pass_number,
        }
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        assert self._process.stdin and self._process.stdout
        self._listener = threading.Thread(target=self._listen, args=(self._process.stdout,), daemon=True)
        self._listener.start()
        try:
            self._process.stdin.write((json.dumps(job) + "\n").encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it died at once; the end of its events tells

    def _listen(self, stream: BinaryIO) -> None:
        for line in stream:
            try:
                self._events.put(json.loads(line))
            except ValueError:
                continue  # cut short by its death
        self._events.put(None)

    def next_event(self, timeout_s: float) -> dict[str, Any] | None:
        """The next event, None when the process has ended. TimeoutError when none comes in time."""
        deadline = time.monotonic() + timeout_s
        while True:
            ended = self._process.poll() is not None
            if ended:
                self._kill_group()  # a child it forked holds the pipe open, and its end would never be heard of
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
        self._listener.join(ENDED_CHECK_S)
        # A child in a session of its own may still hold the pipe, and closing it under the listener would wait for it.
        open_streams = (self._process.stdin, None if self._listener.is_alive() else self._process.stdout)
        for stream in open_streams:
            if stream:
                try:
                    stream.close()
                except OSError:
                    pass

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def why_it_died(self) -> tuple[str, str]:
        """Status and reason of a process that ended by itself in the middle of a trial."""
        code = self._process.wait()
        if code == -signal.SIGKILL and _oom_kills() > self._kills_before:
            return "oom", "the operating system killed the process because the machine ran out of memory"
        if code < 0:
            return "crashed", f"the process was killed by signal {-code} ({signal.Signals(-code).name}){self._tail()}"
        return "crashed", f"the process ended with exit code {code}{self._tail()}"

    def _tail(self) -> str:
        """The last thing it said."""
        with self._log.open("rb") as file:
            file.seek(self._log_start)
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
        return f": {lines[-1][:300]}" if lines else ""


def _oom_kills() -> int:
    """How many processes the kernel has killed for memory since it booted; 0 where it does not say."""
    try:
        counters = dict(line.split() for line in VMSTAT.read_text().splitlines())
    except (OSError, ValueError):
        return 0
    return int(counters.get("oom_kill", 0))
