"""What a group of ranks needs beyond torchrun: a job, the rank that failed first, and where ranks hang.

runner: stdin, stdout <-> node 0: launcher with torchrun and a TCPStore <-> ranks 0 ... n-1 (rank 0 writes to stdout)
                                                                        <-> node 1: launcher <-> ranks n ... 2n-1

torchrun starts the ranks and ends them all after a failure. These are its gaps, which the keys of the store fill:

- Its error files have the time in whole seconds and stay on their node, so they do not tell which rank failed first.
  Here each rank counts up `failures` and writes its outcome under its own number.
- It does not know that the kernel killed a rank for memory, and an agent does not hear of failures on other nodes.
- It does not tell where ranks hang.

The store asks for no password. On one node it listens only on the loopback interface. Between nodes it trusts the
network, as torch.distributed does.
"""

from __future__ import annotations

import json
import re
import signal
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from datetime import timedelta
from typing import Any

from torch.distributed import PrefixStore, TCPStore

from workbook.ranks import FOREVER
from workbook.runner.process import STACKS_S, death
from workbook.runner.protocol import without_paths

CONNECTED_S = 300.0  # in which all nodes must connect
LOST = ("Connection closed by peer", "Connection reset by peer", "remote process exited")  # from Gloo and NCCL
LOST_S = 1.0  # in which torchrun must notice a dead rank, before the ranks that lost it end
NODES_S = 15.0  # in which the other nodes must report how their ranks ended
WAITING = re.compile(r"torch/(distributed|cuda|autograd)/")


class GroupStore:
    """A connection to the group's TCPStore.

    With `serves` this process is the server: on `port` of all interfaces, or for port 0 on a free port of `host` alone.
    A call that waits for a key occupies its connection, so threads need connections of their own. Methods raise
    RuntimeError once the server is gone.
    """

    def __init__(self, host: str, port: int, *, serves: bool = False) -> None:
        listening = None
        if serves and not port:
            server = socket.create_server((host, 0))
            port, listening = server.getsockname()[1], server.detach()
        self.port = port
        tcp = TCPStore(
            host,
            port,
            is_master=serves,
            timeout=timedelta(seconds=CONNECTED_S),
            wait_for_workers=False,
            multi_tenant=serves,  # torchrun's rendezvous finds this server at its port, and uses it
            master_listen_fd=listening,
        )
        self._store = PrefixStore("labkit", tcp)

    def put(self, key: str, value: object) -> None:
        """Set a key to a value, as JSON."""
        self._store.set(key, json.dumps(value, allow_nan=False))

    def get(self, key: str) -> Any:
        """Return a key's value. Wait up to CONNECTED_S for it."""
        return json.loads(self._store.get(key))

    def wait(self, key: str) -> None:
        """Wait for a key, or until the server is gone, which raises RuntimeError."""
        self._store.wait([key], FOREVER)

    def present(self, keys: dict[int, str], *, within_s: float = 0.0) -> dict[int, Any]:
        """Return the values of the keys that are set, once all are or the time is over."""
        deadline = time.monotonic() + within_s
        while not self._store.check(list(keys.values())) and time.monotonic() < deadline:
            time.sleep(0.05)
        return {number: self.get(key) for number, key in keys.items() if self._store.check([key])}

    def fail(self, rank: int, outcome: dict[str, Any]) -> None:
        """Write the outcome of a rank's failed trial. A rank that lost another waits for torchrun to notice."""
        self.put(f"failure/{rank}", {**outcome, "order": self._store.add("failures", 1)})
        if is_lost(outcome):
            time.sleep(LOST_S)

    def follow(self, rank: int) -> None:
        """Write the main thread's stack when it is asked for. Return when the server is gone."""
        with suppress(RuntimeError):
            self.wait("where")
            frame = sys._current_frames().get(threading.main_thread().ident or 0)
            self.put(f"stack/{rank}", [without_paths(entry) for entry in traceback.format_stack(frame)])
            self.wait("never")

    def where(self, ranks: int) -> tuple[str, dict[str, str]]:
        """Ask all ranks for their stacks. Return words on those that hang, and the stacks by rank."""
        self.put("where", True)
        return where_they_hang(self.present({n: f"stack/{n}" for n in range(ranks)}, within_s=STACKS_S), ranks)

    def failure(self, ranks: int, nodes: int) -> dict[str, Any] | None:
        """Return the outcome of the rank that failed first, after waiting for the other nodes; None without any."""
        ended = self.present({node: f"ended/{node}" for node in range(nodes)}, within_s=NODES_S)
        reports = self.present({rank: f"failure/{rank}" for rank in range(ranks)})
        codes = {int(rank): code for end in ended.values() for rank, code in end["exit_codes"].items()}
        return first_failure(reports, codes, ranks, for_memory=any(end["oom_kills"] for end in ended.values()))


def is_lost(outcome: dict[str, Any]) -> bool:
    """Return whether a failure only says that another rank is gone."""
    return any(text in outcome["reason"] for text in LOST)


def first_failure(
    reports: dict[int, dict[str, Any]], exit_codes: dict[int, int], ranks: int, *, for_memory: bool
) -> dict[str, Any] | None:
    """Return the outcome of the rank that failed first, or None if no rank failed.

    `reports` are the outcomes of ranks with the `order` of their failures, `exit_codes` are those of failed ranks.
    A rank that the kernel kills reports nothing and its exit is noticed late, so it precedes all reports. Further ranks
    abort (NCCL), report a lost connection, or are ended by torchrun, because the first is gone.
    """
    silent = {rank: code for rank, code in exit_codes.items() if rank not in reports}
    signs = {rank: (3 if is_lost(report) else 1, report["order"]) for rank, report in reports.items()}
    signs |= {rank: ({-signal.SIGABRT: 2, -signal.SIGTERM: 4}.get(code, 0), rank) for rank, code in silent.items()}
    if not signs:
        return None
    rank = min(signs, key=signs.__getitem__)
    if rank in silent:
        status, reason = death(silent[rank], "it", for_memory=for_memory)
        facts = {}
    else:
        status, reason, facts = reports[rank]["status"], reports[rank]["reason"], reports[rank].get("facts", {})
    own = {"status": status, "reason": f"rank {rank} of {ranks}: {reason}", "facts": {**facts, "failed_rank": rank}}
    return {**reports.get(0, {}), **own}  # rank 0's report has the trial's times


def where_they_hang(stacks: dict[int, list[str]], ranks: int) -> tuple[str, dict[str, str]]:
    """Return words on the ranks that do not wait for others (on all, if all wait), and the stacks as text."""
    places = {rank: stack[-1].strip().splitlines()[0] if stack else "nowhere" for rank, stack in stacks.items()}
    # Ranks that wait for other ranks in a collective operation, or for their device, do not cause the hang.
    busy = {rank for rank, place in places.items() if not WAITING.search(place)}
    words = [f"rank {rank} stands at {place}" for rank, place in sorted(places.items()) if rank in busy or not busy]
    words += [f"rank {rank} does not answer" for rank in range(ranks) if rank not in stacks]
    return "".join(f"; {w}" for w in words), {str(rank): "".join(stack) for rank, stack in sorted(stacks.items())}
