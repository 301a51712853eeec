"""Nodes without Slurm: the process of each node runs on this machine, or where its command leads.

`python -m tests.several_nodes COMMANDS` starts them. COMMANDS is a JSON list. The program gives each command its node
number and ends with the commands. Like srun, it terminates all of them soon after one has failed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import BinaryIO

from workbook.runner.nodes.allocation import ON_EACH_NODE
from workbook.runner.protocol import ADDRESS, NODE


@dataclass(frozen=True)
class Beside:
    """Nodes with a prefix each (`before`) to the same command. `address` is where nodes reach the runner."""

    before: tuple[tuple[str, ...], ...] = ((), ())
    address: str = "127.0.0.1"

    @property
    def count(self) -> int:
        return len(self.before)

    def start(self, number: int, environment: dict[str, str], log: BinaryIO) -> subprocess.Popen[bytes]:
        commands = [[*prefix, *ON_EACH_NODE] for prefix in self.before[:number]]
        return subprocess.Popen(
            [sys.executable, "-m", "tests.several_nodes", json.dumps(commands)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**environment, ADDRESS: self.address + environment[ADDRESS]},
            start_new_session=True,
        )


def main(commands: list[list[str]]) -> int:
    nodes = [
        subprocess.Popen(command, env={**os.environ, NODE: str(number)}) for number, command in enumerate(commands)
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
    sys.exit(main(json.loads(sys.argv[1])))
