"""Nodes without Slurm: the process of each node runs on this machine, or where its command leads.

`python -m tests.several_nodes ADDRESS COMMANDS` starts them. COMMANDS is a JSON list; nodes reach the first one at
ADDRESS. The program gives each command its node number and ends with the commands. Like srun, it terminates all of them
soon after one has failed, and the first has its stdin.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

from workbook.runner.nodes.allocation import Nodes


@dataclass(frozen=True)
class Beside(Nodes):
    """Nodes with a prefix each (`before`) to the same command. `address` is where nodes reach the runner."""

    count: int = 2
    before: tuple[tuple[str, ...], ...] = ((), ())
    address: str = "127.0.0.1"

    def on_each(self, number: int, command: list[str]) -> list[str]:
        commands = [[*prefix, *command] for prefix in self.before[:number]]
        return [sys.executable, "-m", "tests.several_nodes", self.address, json.dumps(commands)]


def main(address: str, commands: list[list[str]]) -> int:
    nodes = [
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL if number else None,
            env={**os.environ, "SLURM_NODEID": str(number), "SLURM_LAUNCH_NODE_IPADDR": address},
        )
        for number, command in enumerate(commands)
    ]
    while True:
        codes = [node.poll() for node in nodes]
        if None not in codes:
            return max(map(abs, codes))
        if any(codes):
            time.sleep(1.0)
            for node in nodes:
                node.send_signal(signal.SIGTERM)
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], json.loads(sys.argv[2])))
