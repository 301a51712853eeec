"""Runs torchrun on a node: `python -m workbook.runner.nodes.launcher NODES PORT RANKS_OF_NODE`.

The runner starts this process on its own node, for several nodes through srun on each of them. Node 0 serves the
group's store (`workbook.runner.group`), reads the job on stdin and writes events to stdout. A node ends its ranks when
ranks of another node have failed, and when node 0 or the runner is gone.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from functools import partial
from io import FileIO
from typing import Any

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from workbook.lifetime import end_after
from workbook.runner.group import GroupStore
from workbook.runner.nodes.network import interfaces_for
from workbook.runner.process import PARTING_S, oom_kills


def main(nodes: int, port: int, ranks_of_node: int) -> int:
    """Run this node's ranks. Return 0, or 1 after a failure."""
    node = int(os.environ["SLURM_NODEID"]) if nodes > 1 else 0
    # Addresses are numeric, because on some clusters names do not resolve.
    host = os.environ["SLURM_LAUNCH_NODE_IPADDR"] if node else "127.0.0.1"
    store = GroupStore(host, port, serves=node == 0)
    end_after(partial(_follow_others, GroupStore(host, store.port)))
    if node == 0:
        store.put("job", json.loads(sys.stdin.readline()))
        end_after(partial(_follow_runner, GroupStore(host, store.port), nodes * ranks_of_node))
    else:
        os.dup2(2, 1)
    os.environ |= store.get("job")["environment"]  # after srun, which may have set CUDA_VISIBLE_DEVICES
    if nodes > 1:
        os.environ |= interfaces_for(_address(store, node, host), os.environ)
    exit_codes: dict[int, int] = {}
    kills_before = oom_kills()
    try:
        config = launch_config(nodes, node, f"{host}:{store.port}", ranks_of_node)
        elastic_launch(config, sys.executable)("-m", "workbook.runner.rank")
        return 0
    except ChildFailedError as error:
        print(error, file=sys.stderr, flush=True)  # noqa: T201 - the log
        exit_codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
    except SignalException:
        pass  # another node has failed, or the runner has closed stdin
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    store.put(f"ended/{node}", {"exit_codes": exit_codes, "oom_kills": oom_kills() - kills_before})
    store.put("over", True)
    if node:
        with suppress(RuntimeError):
            store.wait("never")  # srun ends a step with its first failed task, and node 0 still has to report
    elif outcome := store.failure(nodes * ranks_of_node, nodes):
        _send(event="done", **outcome)
    return 1


def launch_config(nodes: int, node: int, endpoint: str, ranks_of_node: int) -> LaunchConfig:
    """Return torchrun's settings on a node. The static rendezvous numbers the ranks by `node`, the runner's first."""
    return LaunchConfig(
        min_nodes=nodes,
        max_nodes=nodes,
        nproc_per_node=ranks_of_node,
        run_id="group",
        rdzv_backend="static",
        rdzv_endpoint=endpoint,
        rdzv_configs={"rank": node},
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),  # else each launch leaves a folder in the temporary one
    )


def _address(store: GroupStore, node: int, host: str) -> str:
    """Return this node's address: where node 1 reaches node 0, or from where this node reaches node 0."""
    if node == 1:
        store.put("address", host)
    if node == 0:
        return str(store.get("address"))
    with socket.create_connection((host, store.port)) as line:
        return str(line.getsockname()[0])


def _follow_others(store: GroupStore) -> None:
    """End torchrun once a node's ranks have failed or the runner is gone. Return when node 0 is gone."""
    with suppress(RuntimeError):
        store.wait("over")
        os.kill(os.getpid(), signal.SIGTERM)
        store.wait("never")


def _follow_runner(store: GroupStore, ranks: int) -> None:
    """Answer each line on stdin by where the ranks hang. Return some time after the end of stdin ends the group."""
    for _ in FileIO(0, closefd=False):
        words, stacks = store.where(ranks)
        _send(event="stacks", words=words, stacks=stacks)
    store.put("over", True)
    time.sleep(PARTING_S)


def _send(**event: Any) -> None:
    """Send an event to the runner. A killed rank 0 may have left half a line."""
    print("\n" + json.dumps(event), flush=True)  # noqa: T201 - the channel


if __name__ == "__main__":
    code = main(*map(int, sys.argv[1:]))
    sys.stderr.flush()
    os._exit(code)  # threads still wait for the store
