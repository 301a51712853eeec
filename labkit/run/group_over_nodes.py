"""Ranks on several nodes: one torchrun on each, which find each other by the address that the other nodes see.

first node: runner (listens) <---- line ---- node 0: torchrun, ranks 0 ... n-1, each with a line of its own
                             <---- line ---- node 1: torchrun, ranks n ... 2n-1
"""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from labkit.hardware.profile import Timing
from labkit.run.group import DEATH_S, GroupProcess
from labkit.run.nodes import Nodes
from labkit.run.protocol import ADDRESS, TOKEN
from labkit.trial import Trial

ALL_THERE_S = 300.0  # in which all nodes must have come
PARTING_S = 5.0  # in which nodes end after their lines have, and again after they are asked to


class GroupOverNodes(GroupProcess):
    """The processes of trials that take the same number of devices and nodes."""

    LISTENS_AT = ""  # other nodes reach this one by an address that we don't know

    def __init__(
        self,
        trials: Sequence[Trial],
        timing: Timing,
        *,
        nodes: Nodes,
        log: Path,
        environment: dict[str, str],
        gap_seed: int = 0,
        pass_number: int = 1,
    ) -> None:
        self._nodes, self._number, self._of_node = nodes, trials[0].nodes, trials[0].devices_of_node
        self._told = environment
        self._places: dict[int, tuple[str, str]] = {}  # of each node: our address as it sees it, and its own
        self._all_there = threading.Condition()
        self._ended: dict[int, dict[str, Any]] = {}
        self._node_lines: list[socket.socket] = []
        super().__init__(
            trials,
            timing,
            ranks=trials[0].processes,
            log=log,
            environment=environment,
            gap_seed=gap_seed,
            pass_number=pass_number,
        )

    def _start(self, environment: dict[str, str], log: BinaryIO) -> subprocess.Popen[bytes]:
        self._rendezvous_port = _free_port()
        own = {ADDRESS: f":{self._server.getsockname()[1]}", TOKEN: self._token}
        threading.Thread(target=self._accept, daemon=True).start()
        return self._nodes.start(self._number, {**environment, **own}, log)

    def _attend(self, first: dict[str, Any], line: socket.socket, events: Iterable[bytes]) -> None:
        if "node" not in first:
            return super()._attend(first, line, events)
        node = int(first["node"])
        self._node_lines.append(line)
        with self._all_there:
            self._places[node] = (line.getsockname()[0], line.getpeername()[0])
            self._all_there.notify_all()
            if not self._all_there.wait_for(lambda: len(self._places) == self._number, ALL_THERE_S):
                return None
        line.sendall((json.dumps(self._job_of(node)) + "\n").encode())
        for event in events:
            self._ended[node] = json.loads(event)
        return None

    def _job_of(self, node: int) -> dict[str, Any]:
        """What a node needs to know. Its address is one by which the others reach it, which no loopback is."""
        here = self._places[1][0]  # this node, as another sees it
        return {
            "id": self.id,
            "nodes": self._number,
            "ranks_of_node": self._of_node,
            "address": here if node == 0 else self._places[node][1],
            "endpoint": f"{here}:{self._rendezvous_port}",
            "environment": self._told,
        }

    def _hear(self, event: dict[str, Any]) -> None:
        # Which rank failed first is told by this node's clock: those of the others differ.
        super()._hear({**event, "at_s": time.monotonic()} if "at_s" in event else event)

    def _exit_code(self, rank: int) -> int | None:
        """Of a rank that ended by itself, as its node tells it; None where it does not."""
        node, number = divmod(rank, self._of_node)
        deadline = time.monotonic() + DEATH_S
        while node not in self._ended and self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        code = self._ended.get(node, {}).get("exit_codes", {}).get(str(number))
        return None if code is None else int(code)

    def _killed_for_memory(self) -> bool:
        return super()._killed_for_memory() or any(ended.get("oom_kills") for ended in self._ended.values())

    def end(self) -> None:
        """End the processes on all nodes: each ends with its line. What started them is asked to, then killed."""
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
        for line in self._node_lines:
            try:
                line.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it is closed already
        super()._close()


def _free_port() -> int:
    """One of this node that nobody has at the moment."""
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])
