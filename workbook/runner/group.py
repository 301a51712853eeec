"""Ranks that run trials together, on one node or several: the runner's side of `run.rank` and `run.node`.

first node: runner (listens) <---- line ---- node 0: torchrun, ranks 0 ... n-1, each with a line of its own
                             <---- line ---- node 1: torchrun, ranks n ... 2n-1

A line is a TCP connection. A failed trial has the outcome of the rank that failed first, with that rank's number: the
later ranks fail because the first is gone.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO

from workbook.runner.nodes.allocation import Nodes
from workbook.runner.process import Spawned, Work
from workbook.runner.protocol import ADDRESS, TOKEN, kept_alive

LAST_WORDS_S = 1.0  # for further reports of a failure after its first sign
DEATH_S = 15.0  # in which torchrun must notice a dead rank and report its exit code
HELLO_S, HELLO_BYTES = 10.0, 4096  # limits of a connection's first message, which holds the token of our processes
MORE = 64  # connections that may wait to be accepted, beside one of each rank
STACKS_S = 3.0  # in which ranks must send their stacks
LOST = ("Connection closed by peer", "Connection reset by peer", "remote process exited")  # from Gloo and NCCL
SILENT_LEAD_S = 0.1  # subtracted from the time at which a rank is gone, because its end is noticed late
ALL_THERE_S = 300.0  # in which all nodes must connect
PARTING_S = 5.0  # in which nodes must end after their lines close, and again after SIGTERM
WAITING = re.compile(r"torch/(distributed|cuda|autograd)/")
OUTCOME = ("status", "reason", "facts")
FROM_RANK_0 = ("hello", "start", "progress", "done")


class GroupProcess(Spawned):
    """`ranks` processes on this node, or divided evenly among the nodes that the trials ask for."""

    def __init__(self, work: Work, *, ranks: int, nodes: Nodes | None = None) -> None:
        self._ranks, self._token, self._told = ranks, secrets.token_hex(16), work.environment
        self._nodes, self._number = nodes or Nodes(), work.trials[0].nodes
        # The address by which other nodes reach this one is not known, so the server listens at all of them.
        self._server = socket.create_server(("127.0.0.1" if self._number == 1 else "", 0), backlog=ranks + MORE)
        self._lines: dict[int, socket.socket] = {}
        self._pids: dict[int, int] = {}
        self._said_bye: set[int] = set()
        self._node_lines: dict[int, socket.socket] = {}
        self._all_there = threading.Condition()
        self._ended: dict[int, dict[str, Any]] = {}
        super().__init__(work)

    def _start(self, environment: dict[str, str], log: BinaryIO) -> subprocess.Popen[bytes]:
        with socket.create_server(("", 0)) as unused:
            self._rendezvous_port = unused.getsockname()[1]
        own = {ADDRESS: f":{self._server.getsockname()[1]}", TOKEN: self._token}
        threading.Thread(target=self._accept, daemon=True).start()
        return self._nodes.start(self._number, {**environment, **own}, log)

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._server.accept()
            except OSError:
                return  # `_close` closed the server
            threading.Thread(target=self._listen, args=(line,), daemon=True).start()

    def _listen(self, line: socket.socket) -> None:
        try:
            with line, kept_alive(line).makefile("rb") as events:
                line.settimeout(HELLO_S)
                first = json.loads(events.readline(HELLO_BYTES))
                if secrets.compare_digest(str(first.get("token")).encode(), self._token.encode()):
                    line.settimeout(None)
                    attend = self._attend_node if "node" in first else self._attend_rank
                    attend(first, line, events)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass  # the process died, or the connection comes from a stranger

    def _attend_node(self, first: dict[str, Any], line: socket.socket, events: Iterable[bytes]) -> None:
        """Send a node its job once all nodes are connected, and receive how its ranks ended."""
        node = int(first["node"])
        with self._all_there:
            self._node_lines[node] = line
            self._all_there.notify_all()
            if not self._all_there.wait_for(lambda: len(self._node_lines) == self._number, ALL_THERE_S):
                return
        line.sendall((json.dumps(self._job_of(node)) + "\n").encode())
        try:
            for event in events:
                self._ended[node] = json.loads(event)
        finally:
            self._ended.setdefault(node, {})

    def _job_of(self, node: int) -> dict[str, Any]:
        """Return a node's job; with several nodes, it has the address of this node and the rendezvous endpoint."""
        job = {"id": self.id, "nodes": self._number, "ranks_of_node": self._ranks // self._number}
        if self._number > 1:
            first_address = self._node_lines[1].getsockname()[0]  # the runner's node, as node 1 reaches it
            job["address"] = self._node_lines[node].getpeername()[0] if node else first_address
            job["endpoint"] = f"{first_address}:{self._rendezvous_port}"
        return {**job, "environment": self._told}

    def _attend_rank(self, first: dict[str, Any], line: socket.socket, events: Iterable[bytes]) -> None:
        """Send a rank its job and receive its events until its line ends."""
        rank = int(first["rank"])
        self._lines[rank], self._pids[rank] = line, int(first["pid"])
        try:
            line.sendall((json.dumps(self.job) + "\n").encode())
            for text in events:
                event = json.loads(text)
                if event["event"] == "bye":
                    self._said_bye.add(rank)
                else:  # the runner's clock orders failures, because the clocks of nodes differ
                    self._events.put({**event, "at_s": time.monotonic()})
        finally:
            if rank not in self._said_bye:
                self._events.put({"event": "gone", "rank": rank, "at_s": time.monotonic()})

    def next_event(self, timeout_s: float) -> dict[str, Any] | None:
        """Return rank 0's next event, or the outcome of a trial that a rank failed; None once the launcher ended."""
        deadline = time.monotonic() + timeout_s
        while True:
            event = super().next_event(deadline - time.monotonic())
            if event is None:
                return None
            failed = event["event"] in ("failed", "gone") or event.get("status") in ("oom", "crashed")
            if failed:
                return self._first_failure([event, *self._heard(LAST_WORDS_S, lambda _events: False)])
            if event["rank"] == 0 and event["event"] in FROM_RANK_0:
                return event

    def _heard(self, seconds: float, enough: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
        """Return the events that ranks send within `seconds`, or until `enough` accepts them."""
        events: list[dict[str, Any]] = []
        deadline = time.monotonic() + seconds
        while not enough(events):
            try:
                event = super().next_event(max(deadline - time.monotonic(), 0))
            except TimeoutError:
                break
            if event is None:
                break
            events.append(event)
        return events

    def _first_failure(self, events: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the outcome of the rank that failed first, as an event `done`."""
        reports = [e for e in events if e["event"] == "failed" or e.get("status") in ("oom", "crashed")]
        silent = [e for e in events if e["event"] == "gone" and e["rank"] not in {sign["rank"] for sign in reports}]
        codes = {sign["rank"]: self._exit_code(sign["rank"]) for sign in silent}
        # After a failure torchrun ends the remaining ranks by SIGTERM, so they did not fail first.
        silent = [sign for sign in silent if codes[sign["rank"]] != -signal.SIGTERM or not reports]
        # A killed rank reports nothing: its line ends, a moment before the remaining ranks fail because of it. On a
        # busy machine the report of a rank that lost its peer can arrive earlier, but that rank did not fail first.
        first = min(
            [*reports, *silent],
            key=lambda sign: (
                any(text in sign.get("reason", "") for text in LOST),
                sign["at_s"] - (SILENT_LEAD_S if sign in silent else 0),
            ),
        )
        rank = first["rank"]
        outcome: dict[str, Any] = {name: first[name] for name in OUTCOME if name in first}
        if first["event"] == "gone":
            outcome["status"], outcome["reason"] = self._death(codes[rank], "it")
        outcome["reason"] = f"rank {rank} of {self._ranks}: {outcome['reason']}"
        outcome["facts"] = {**outcome.get("facts", {}), "failed_rank": rank}
        # Only rank 0's event has the trial's times.
        times = next((e for e in reports if e["event"] == "done"), {})
        return {**times, "event": "done", **outcome}

    def _exit_code(self, rank: int) -> int | None:
        """Return the exit code that a rank's node reports; None if the node reports none within DEATH_S."""
        node, number = divmod(rank, self._ranks // self._number)
        deadline = time.monotonic() + DEATH_S
        while node not in self._ended and time.monotonic() < deadline:
            time.sleep(0.1)
        code = self._ended.get(node, {}).get("exit_codes", {}).get(str(number))
        return None if code is None else int(code)

    def _killed_for_memory(self) -> bool:
        return super()._killed_for_memory() or any(ended.get("oom_kills") for ended in self._ended.values())

    def where_it_hangs(self) -> tuple[str, dict[str, Any]]:
        """Return words on the ranks that do not wait (on all, if all wait), and every rank's stack as facts."""
        for line in self._lines.values():
            try:
                line.sendall(b'{"ask": "stack"}\n')
            except OSError:
                continue
        replies = self._heard(STACKS_S, lambda events: sum(e["event"] == "stack" for e in events) == self._ranks)
        stacks: dict[int, list[str]] = {e["rank"]: e["stack"] for e in replies if e["event"] == "stack"}
        places = {rank: stack[-1].strip().splitlines()[0] if stack else "nowhere" for rank, stack in stacks.items()}
        # Ranks that wait for other ranks in a collective operation, or for their device, do not cause the hang.
        busy = {rank for rank, place in places.items() if not WAITING.search(place)}
        words = [f"rank {rank} stands at {place}" for rank, place in sorted(places.items()) if rank in busy or not busy]
        words += [f"rank {rank} does not answer" for rank in range(self._ranks) if rank not in stacks]
        return "".join(f"; {w}" for w in words), {"stacks": {str(r): "".join(s) for r, s in sorted(stacks.items())}}

    def end(self) -> None:
        """Close every line, which ends the processes on all nodes. End what remains by SIGTERM, then by SIGKILL."""
        self._close()
        for ask in (lambda: None, self._process.terminate):
            ask()
            try:
                self._process.wait(PARTING_S)
                break
            except subprocess.TimeoutExpired:
                continue
        super().end()

    def _close(self) -> None:
        for line in [*self._node_lines.values(), *self._lines.values()]:
            try:
                line.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # already closed
        self._server.close()
        for pid in self._pids.values():  # torchrun gives each rank a session of its own
            if self._is_ours(pid):
                try:
                    os.killpg(os.getpgid(pid), signal.SIGKILL)
                except (ProcessLookupError, PermissionError):
                    pass

    def _is_ours(self, pid: int) -> bool:
        """Return whether `pid` still belongs to one of our ranks: the kernel may have reused the number."""
        try:
            return self._token.encode() in Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False
