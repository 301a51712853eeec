"""Start several ranks that run trials together, listen to each, and end them all: the runner's side of `run.rank`.

torchrun starts the ranks and tells them of each other. Each has a line of its own to here. Of a trial that fails there
is one outcome: that of the rank which failed first, with its number, since the others fail of its absence.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from labkit.hardware.profile import Timing
from labkit.run.process import Spawned
from labkit.run.protocol import ADDRESS, TOKEN, kept_alive
from labkit.trial import Trial

LAST_WORDS_S = 1.0  # after a first sign of failure, for what else the ranks have to say of it
DEATH_S = 15.0  # in which torchrun notices that a rank has died, and says with which exit code
HELLO_S, HELLO_BYTES = 10.0, 4096  # of a connection's first line, which shows it to be one of ours
MORE = 64  # connections that may wait to be accepted, beside one of each rank
STACKS_S = 3.0  # in which ranks say where they stand
SILENT_LEAD_S = 0.1  # by which a rank that is gone may seem to have gone too late
WAITING = re.compile(r"torch/(distributed|cuda|autograd)/")
OUTCOME = ("status", "reason", "facts")
FROM_RANK_0 = ("hello", "start", "progress", "done")


class GroupProcess(Spawned):
    """`ranks` processes under one torchrun."""

    LISTENS_AT = "127.0.0.1"

    def __init__(
        self,
        trials: Sequence[Trial],
        timing: Timing,
        *,
        ranks: int,
        log: Path,
        environment: dict[str, str],
        gap_seed: int = 0,
        pass_number: int = 1,
    ) -> None:
        self._ranks, self._token = ranks, secrets.token_hex(16)
        self._server = socket.create_server((self.LISTENS_AT, 0), backlog=ranks + MORE)
        self._lines: dict[int, socket.socket] = {}
        self._pids: dict[int, int] = {}
        self._said_bye: set[int] = set()
        super().__init__(trials, timing, log=log, environment=environment, gap_seed=gap_seed, pass_number=pass_number)

    def _start(self, environment: dict[str, str], log: BinaryIO) -> subprocess.Popen[bytes]:
        host, port = self._server.getsockname()
        own = {ADDRESS: f"{host}:{port}", TOKEN: self._token, "OMP_NUM_THREADS": environment.get("OMP_NUM_THREADS", "")}
        if not own["OMP_NUM_THREADS"]:  # torchrun would set one thread; the trials set their own
            own["OMP_NUM_THREADS"] = str(len(os.sched_getaffinity(0)))
        threading.Thread(target=self._accept, daemon=True).start()
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self._ranks}"),
                # Else torchrun asks for the host's name, which need not resolve.
                *("--local-addr=127.0.0.1", "--max-restarts=0", "-m", "labkit.run.rank"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**environment, **own},
            start_new_session=True,
        )

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._server.accept()
            except OSError:
                return  # closed: it is over
            threading.Thread(target=self._listen, args=(line,), daemon=True).start()

    def _listen(self, line: socket.socket) -> None:
        try:
            with line, kept_alive(line).makefile("rb") as events:
                line.settimeout(HELLO_S)
                first = json.loads(events.readline(HELLO_BYTES))
                if secrets.compare_digest(str(first.get("token")).encode(), self._token.encode()):
                    line.settimeout(None)
                    self._attend(first, line, events)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass  # cut short by its death, or none of ours

    def _attend(self, first: dict[str, Any], line: socket.socket, events: Iterable[bytes]) -> None:
        """Give a rank its job and listen to it until its line ends."""
        rank = int(first["rank"])
        self._lines[rank], self._pids[rank] = line, int(first["pid"])
        try:
            line.sendall((json.dumps(self.job) + "\n").encode())
            for event in events:
                self._hear(json.loads(event))
        finally:
            if rank not in self._said_bye:
                self._events.put({"event": "gone", "rank": rank, "at_s": time.monotonic()})

    def _hear(self, event: dict[str, Any]) -> None:
        if event["event"] == "bye":
            self._said_bye.add(event["rank"])
        else:
            self._events.put(event)

    def next_event(self, timeout_s: float) -> dict[str, Any] | None:
        """The next event of rank 0, or the outcome of a trial that another rank has failed."""
        deadline = time.monotonic() + timeout_s
        while True:
            event = super().next_event(deadline - time.monotonic())
            if event is None:
                return None
            failed = event["event"] in ("failed", "gone") or event.get("status") in ("oom", "crashed")
            if failed:
                return self._first_failure([event, *self._last_words()])
            if event["rank"] == 0 and event["event"] in FROM_RANK_0:
                return event

    def _last_words(self) -> list[dict[str, Any]]:
        """What else is said within a moment."""
        found: list[dict[str, Any]] = []
        deadline = time.monotonic() + LAST_WORDS_S
        while True:
            try:
                event = super().next_event(max(deadline - time.monotonic(), 0))
            except TimeoutError:
                return found
            if event is None:
                return found
            found.append(event)

    def _first_failure(self, events: list[dict[str, Any]]) -> dict[str, Any]:
        """The outcome of the rank that failed first."""
        told = [e for e in events if e["event"] == "failed" or e.get("status") in ("oom", "crashed")]
        silent = [e for e in events if e["event"] == "gone" and e["rank"] not in {sign["rank"] for sign in told}]
        codes = {sign["rank"]: self._exit_code(sign["rank"]) for sign in silent}
        # torchrun ends the others by SIGTERM once one has failed: they are not the ones to name.
        silent = [sign for sign in silent if codes[sign["rank"]] != -signal.SIGTERM or not told]
        # A rank that is killed says nothing: its line ends, a moment before the others fail of its absence.
        first = min([*told, *silent], key=lambda sign: sign["at_s"] - (SILENT_LEAD_S if sign in silent else 0))
        rank = first["rank"]
        outcome: dict[str, Any] = {name: first[name] for name in OUTCOME if name in first}
        if first["event"] == "gone":
            outcome = self._death(codes[rank])
        outcome["reason"] = f"rank {rank} of {self._ranks}: {outcome['reason']}"
        outcome["facts"] = {**outcome.get("facts", {}), "failed_rank": rank}
        # Rank 0 knows what the trial took.
        known = next((e for e in told if e["event"] == "done"), {})
        return {**known, "event": "done", **outcome}

    def _exit_code(self, rank: int) -> int | None:
        """Of a rank that ended by itself, as torchrun tells it in the log; None where it does not."""
        deadline = time.monotonic() + DEATH_S
        while self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        with self._log.open("rb") as file:
            file.seek(self._log_start)
            said = file.read().decode(errors="replace")
        codes = re.findall(rf"rank\s*:\s*{rank} .*?\n\s*exitcode\s*:\s*(-?\d+)", said)
        return int(codes[-1]) if codes else None

    def _death(self, code: int | None) -> dict[str, Any]:
        """Status and reason of a rank that ended without a word."""
        if code == -signal.SIGKILL and self._killed_for_memory():
            return {"status": "oom", "reason": "the operating system killed it because the machine ran out of memory"}
        how = "it ended without a word" if code is None else f"it ended with exit code {code}"
        if code is not None and code < 0:
            how = f"it was killed by signal {-code} ({signal.Signals(-code).name})"
        return {"status": "crashed", "reason": how}

    def where_it_hangs(self) -> tuple[str, dict[str, Any]]:
        """The ranks that stand elsewhere than most, and every rank's stack."""
        for line in self._lines.values():
            try:
                line.sendall(b'{"ask": "stack"}\n')
            except OSError:
                continue
        stacks: dict[int, list[str]] = {}
        deadline = time.monotonic() + STACKS_S
        while len(stacks) < self._ranks and time.monotonic() < deadline:
            try:
                event = super().next_event(max(deadline - time.monotonic(), 0))
            except TimeoutError:
                break
            if event is None:
                break
            if event["event"] == "stack":
                stacks[event["rank"]] = event["stack"]
        places = {rank: stack[-1].strip().splitlines()[0] if stack else "nowhere" for rank, stack in stacks.items()}
        # Those that wait for others, in a collective operation or for their device, are not the ones to look at.
        busy = {rank for rank, place in places.items() if not WAITING.search(place)}
        said = [f"rank {rank} stands at {place}" for rank, place in sorted(places.items()) if rank in busy or not busy]
        said += [f"rank {rank} does not answer" for rank in range(self._ranks) if rank not in stacks]
        return "".join(f"; {one}" for one in said), {"stacks": {str(r): "".join(s) for r, s in sorted(stacks.items())}}

    def _close(self) -> None:
        for line in list(self._lines.values()):
            try:
                line.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it is closed already
        self._server.close()
        for pid in self._pids.values():  # torchrun gives each rank a session of its own
            if self._is_ours(pid):
                try:
                    os.killpg(os.getpgid(pid), signal.SIGKILL)
                except (ProcessLookupError, PermissionError):
                    pass

    def _is_ours(self, pid: int) -> bool:
        """Whether a process still is the one that said so: its number may have been given to another."""
        try:
            return self._token.encode() in Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False
