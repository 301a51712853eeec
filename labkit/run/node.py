"""torchrun on a node. Started on each as `python -m labkit.run.node`, by whatever starts processes there.

A line to the runner comes first. By it the runner learns how several nodes reach each other, and this process what to
start; when it ends, so do this process and, each by a line of its own, the ranks. Afterwards it tells how ranks ended.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from typing import Any

from labkit.run.network import interfaces_for
from labkit.run.process import oom_kills
from labkit.run.protocol import ADDRESS, NODE, TOKEN, line_to_runner


def main() -> int:
    """Run this node's ranks."""
    node = os.environ.get(NODE) or os.environ["SLURM_NODEID"]
    host, port = os.environ[ADDRESS].rsplit(":", 1)
    os.environ |= {NODE: node, ADDRESS: f"{host or os.environ['SLURM_LAUNCH_NODE_IPADDR']}:{port}"}
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)  # so that this process can end with all it starts
    line = line_to_runner()
    _send(line, token=os.environ[TOKEN], node=int(node))
    lines = line.makefile("rb")
    job = json.loads(lines.readline())
    threading.Thread(target=_end_with, args=(lines,), daemon=True).start()
    # What starts processes on nodes may have set devices of its own.
    os.environ |= job["environment"]
    if job["nodes"] > 1:
        os.environ |= interfaces_for(job["address"], os.environ)
    if not os.environ.get("OMP_NUM_THREADS"):  # torchrun would set one thread; the trials set their own
        os.environ["OMP_NUM_THREADS"] = str(len(os.sched_getaffinity(0)))
    kills_before = oom_kills()
    code, exit_codes = _torchrun(arguments(job, first=node == "0"))
    _send(line, event="ended", code=code, exit_codes=exit_codes, oom_kills=oom_kills() - kills_before)
    return code


def arguments(job: dict[str, Any], *, first: bool) -> list[str]:
    """torchrun's, on the first node or another. Addresses are numbers: on some clusters names don't resolve."""
    if job["nodes"] == 1:
        meeting = ["--standalone", "--local-addr=127.0.0.1"]
    else:
        meeting = [
            *(f"--nnodes={job['nodes']}", "--rdzv-backend=c10d", f"--rdzv-id={job['id']}"),
            *(f"--rdzv-endpoint={job['endpoint']}", f"--rdzv-conf=is_host={int(first)}"),
            f"--local-addr={job['address']}",
        ]
    return [*meeting, f"--nproc-per-node={job['ranks_of_node']}", "--max-restarts=0", "-m", "labkit.run.rank"]


def _torchrun(given: list[str]) -> tuple[int, dict[str, int]]:
    """Its exit code, and that of each of this node's ranks which ended badly, by its number on the node."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    try:
        run(parse_args(given))
    except ChildFailedError as error:
        print(error, file=sys.stderr, flush=True)  # noqa: T201 - the log
        return 1, {str(failure.local_rank): failure.exitcode for failure in error.failures.values()}
    return 0, {}


def _send(line: socket.socket, **event: Any) -> None:
    line.sendall((json.dumps(event) + "\n").encode())


def _end_with(lines: Any) -> None:
    try:
        lines.read()
    except OSError:
        pass  # the runner's node is gone
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
