"""What the first of two linked hosts measures: `python -m tests.cluster.over_link REPORT COMMAND`.

COMMAND, a JSON list, stands before what is started on the second host.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from labkit.profile import Device, Profile, Timing
from labkit.record_store import Store
from labkit.run import measure
from labkit.trial import Trial
from tests.cluster.link import Link
from tests.faulty.campaign import HOST, STUDY
from tests.several_nodes import Beside

TIMING = Timing(warmup_s=0.5, timed_s=40.0, block_s=0.005, limit_s=280.0, passes=1)


def main(report: Path, there: list[str]) -> None:
    trial = Trial(
        workload="tests.cluster.on_the_wire",
        model="tables",
        batch=8,
        device="cpu",
        threads=1,
        devices=2,
        nodes=2,
        network="ethernet",
        data="none",
    )
    profile = Profile(name="cpu", title="a CPU", device=Device(kind="cpu"), timing={"smoke": TIMING})
    nodes = Beside(before=((), tuple(there)), address=Link().address(0))
    measure([trial], study=STUDY, scale="smoke", profile=profile, host=HOST, store=Store(report), nodes=nodes)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
