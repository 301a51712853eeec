"""Starts the processes of a pass, reads their events and ends them: the runner's side of worker and launcher."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from labkit.errors import signal_name
from labkit.files import python_path
from workbook.hardware.environment import for_workers
from workbook.hardware.frameworks import interpreter_of
from workbook.runner.forked import ForkedWorker, ParentGone
from workbook.runner.nodes.allocation import Nodes
from workbook.runner.protocol import Pass
from workbook.trials.trial import Trial

VMSTAT = Path("/proc/vmstat")
ENDED_CHECK_S = 0.5  # how often the runner checks whether a silent worker has ended
STACKS_S = 3.0  # in which ranks must tell where they are
PARTING_S = 5.0  # in which torchrun must end its ranks after the group's stdin closes


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
    is_forked: bool = False  # a report, or a GPU's trials, need many processes, which one process can fork


class WorkerProcess:
    """A process that reads its job on stdin and writes events to stdout: `workbook.runner.worker` by default.

    `job` holds the trials and the settings of the pass. Use as a context: leaving it kills the process and its
    children.
    """

    def __init__(self, work: Work, command: Sequence[str] = ()) -> None:
        self.id = new_id()
        trials = [trial.only_timed() for trial in work.trials] if work.of_pass.short else work.trials
        self.job: dict[str, Any] = {
            "trials": [trial.as_dict() for trial in trials],
            "pass": work.of_pass.model_dump(mode="json"),
            "spawned_s": time.monotonic(),
            "gate_passed": list(work.gate_passed) or [False] * len(work.trials),
            "environment": work.environment,
        }
        self._kills_before = oom_kills()
        self._log = work.log
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._log_start = self._log.stat().st_size if self._log.exists() else 0
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._process = self._started(work, command)
        assert self._process.stdin and self._process.stdout
        self._stdin: IO[bytes] = self._process.stdin
        self._listener = threading.Thread(target=self._listen, args=(self._process.stdout,), daemon=True)
        self._listener.start()
        self._write(json.dumps(self.job))

    def _started(self, work: Work, command: Sequence[str]) -> ForkedWorker | subprocess.Popen[bytes]:
        framework = work.trials[0].framework
        environment = {**for_workers(), "PYTHONPATH": python_path(), **work.environment}
        if work.is_forked and not command and framework == "torch":
            with suppress(ParentGone):
                return ForkedWorker((work.of_pass.number, work.of_pass.timing), environment, self._log)
        with self._log.open("ab") as errors:
            return subprocess.Popen(
                command or [interpreter_of(framework), "-m", "workbook.runner.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                start_new_session=True,  # so that killing the session also kills the process's children
            )

    def _write(self, line: str) -> None:
        with suppress(BrokenPipeError):  # the process died, which the end of its events shows
            self._stdin.write((line + "\n").encode())
            self._stdin.flush()

    def _listen(self, stream: IO[bytes]) -> None:
        for line in stream:
            try:
                self._events.put(json.loads(line))
            except ValueError:
                continue  # a line cut short by the process's death
        self._events.put(None)

    def where_it_hangs(self) -> tuple[str, dict[str, Any]]:
        """Return text for the reason of a trial that timed out, and facts; both are empty for a single process."""
        return "", {}

    def next_event(self, timeout_s: float, waiting: Callable[[], None] = lambda: None) -> dict[str, Any] | None:
        """Return the next event; None once the process has ended. Raise TimeoutError if none comes in time.

        `waiting` is called about every `ENDED_CHECK_S` without an event.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            ended = self._process.poll() is not None  # not the pipe's end: a forked child may hold the pipe open
            left_s = deadline - time.monotonic()
            try:
                return self._events.get(timeout=ENDED_CHECK_S if ended else min(max(left_s, 0), ENDED_CHECK_S))
            except queue.Empty:
                waiting()
                if ended:
                    return None
                if left_s <= 0:
                    raise TimeoutError from None

    def end(self) -> None:
        """Kill the process and its children."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._listener.join(ENDED_CHECK_S)
        # A child in its own session may hold the pipe open, and closing stdout would then wait for the listener.
        for stream in (self._stdin, None if self._listener.is_alive() else self._process.stdout):
            if stream:
                with suppress(OSError):
                    stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def why_it_died(self) -> tuple[str, str]:
        """Return status and reason of a process that ended by itself in the middle of a trial."""
        code = self._process.wait()
        status, reason = death(code, "the process", for_memory=oom_kills() > self._kills_before)
        if status == "crashed":
            with self._log.open("rb") as file:
                file.seek(self._log_start)
                lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
            reason += f": {lines[-1][:300]}" if lines else ""
        return status, reason


class GroupProcess(WorkerProcess):
    """`ranks` processes that run trials together, on this node or divided evenly among `nodes`.

    The process is the launcher of the first node (`workbook.runner.nodes.launcher`), or the srun that starts it.
    """

    def __init__(self, work: Work, *, ranks: int, nodes: Nodes | None = None) -> None:
        super().__init__(work, (nodes or Nodes()).command(work.trials[0].nodes, ranks))

    def where_it_hangs(self) -> tuple[str, dict[str, Any]]:
        """Return words on the ranks that do not wait (on all, if all wait), and every rank's stack as facts."""
        self._write("where")
        deadline = time.monotonic() + 2 * STACKS_S
        with suppress(TimeoutError):
            while event := self.next_event(deadline - time.monotonic()):
                if event["event"] == "stacks":
                    return event["words"], {"stacks": event["stacks"]}
        return "; the ranks do not answer", {}

    def end(self) -> None:
        """Close stdin, upon which the launchers end their ranks and then themselves. Kill what remains."""
        with suppress(OSError, subprocess.TimeoutExpired):
            self._stdin.close()
            self._process.wait(2 * PARTING_S)
        super().end()


def death(code: int, what: str, *, for_memory: bool) -> tuple[str, str]:
    """Return status and reason of a process that ended with an exit code.

    `for_memory`: the kernel has killed a process for memory meanwhile.
    """
    if code == -signal.SIGKILL and for_memory:
        return "oom", f"the operating system killed {what} because the machine ran out of memory"
    if code < 0:
        return "crashed", f"{what} was killed by signal {-code} ({signal_name(-code)})"
    return "crashed", f"{what} ended with exit code {code}"


def oom_kills() -> int:
    """Return how many processes the kernel has killed for memory since boot; 0 if the kernel does not report it."""
    try:
        counters = dict(line.split() for line in VMSTAT.read_text().splitlines())
    except (OSError, ValueError):
        return 0
    return int(counters.get("oom_kill", 0))
