"""Runs torchrun on a node. `allocation` starts `python -m workbook.runner.nodes.launcher` on each node of a trial.

The process first opens a line (a TCP connection) to the runner. The line shows the runner by which addresses nodes
reach each other, brings the job, and later carries the ranks' exit codes. When the line ends, this process ends. Each
rank has its own line and ends with it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import Any

from workbook.lifetime import end_after
from workbook.runner.nodes.network import interfaces_for
from workbook.runner.process import oom_kills
from workbook.runner.protocol import ADDRESS, NODE, TOKEN, line_to_runner


def main() -> int:
    """Run this node's ranks. Return torchrun's exit code."""
    node = os.environ.get(NODE) or os.environ["SLURM_NODEID"]
    host, port = os.environ[ADDRESS].rsplit(":", 1)
    os.environ |= {NODE: node, ADDRESS: f"{host or os.environ['SLURM_LAUNCH_NODE_IPADDR']}:{port}"}
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)  # so that one signal ends this process and all its children
    line = line_to_runner()
    _send(line, token=os.environ[TOKEN], node=int(node))
    lines = line.makefile("rb")
    job = json.loads(lines.readline())
    end_after(lines.read)
    # The launcher (srun) may have set CUDA_VISIBLE_DEVICES, so the job's environment comes last.
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
    """Return torchrun's arguments on a node. Addresses are numeric, because on some clusters names do not resolve."""
    if job["nodes"] == 1:
        rendezvous = ["--standalone", "--local-addr=127.0.0.1"]
    else:
        rendezvous = [
            *(f"--nnodes={job['nodes']}", "--rdzv-backend=c10d", f"--rdzv-id={job['id']}"),
            *(f"--rdzv-endpoint={job['endpoint']}", f"--rdzv-conf=is_host={int(first)}"),
            f"--local-addr={job['address']}",
        ]
    return [*rendezvous, f"--nproc-per-node={job['ranks_of_node']}", "--max-restarts=0", "-m", "workbook.runner.rank"]


def _torchrun(given: list[str]) -> tuple[int, dict[str, int]]:
    """Run torchrun. Return its exit code, and the exit codes of this node's failed ranks by their local number."""
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


if __name__ == "__main__":
    sys.exit(main())
