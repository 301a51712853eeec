"""Over a link that decides how long a step takes, step times follow the bytes that are sent, over the link's rate."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

from labkit.host import ROOT
from tests.cluster.link import Link, why_not
from tests.faulty.campaign import records

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

RATES_BITS_PER_S = (2e9, 1e9, 0.5e9)
HEADERS = 1.08  # of packets, and what is sent to agree on steps: at most this beside the gradients


@pytest.fixture
def link() -> Iterator[Link]:
    if reason := why_not():
        pytest.skip(reason)
    made = Link()
    try:
        made.make()
        yield made
    finally:
        made.remove()


def step_over(link: Link, bits_per_s: float, report: Path) -> tuple[float, float, float]:
    """Of a training on two hosts: seconds a step, bytes that the first sends in one, and bytes of its gradients."""
    link.shape(bits_per_s)
    report.parent.mkdir(parents=True)
    command = [*link.inside(0), sys.executable, "-m", "tests.cluster.over_link", str(report)]
    done = subprocess.run(
        [*command, json.dumps(link.inside(1))], cwd=ROOT, capture_output=True, text=True, timeout=400, check=False
    )
    made = records(report)
    assert made, done.stderr + (report / "logs" / "01_training.log").read_text(errors="replace")[-3000:]
    (one,) = made
    assert one.status == "ok", one.reason
    blocks = one.blocks
    assert blocks is not None and len(blocks.host_s) >= 4
    counted = one.facts["sent_bytes"][-len(blocks.host_s) - 1 :]
    sent = median(after - before for before, after in pairwise(counted)) / blocks.steps_per_block
    return median(blocks.host_s) / blocks.steps_per_block, sent, one.facts["parameter_bytes"]


def test_differences_of_step_times_are_bytes_over_rate(link: Link, tmp_path: Path) -> None:
    steps = {rate: step_over(link, rate, tmp_path / f"{rate:.0f}" / "cpu") for rate in RATES_BITS_PER_S}
    for rate, (seconds, sent, gradients) in steps.items():
        print(
            f"{rate / 1e9} Gbit/s: {seconds:.3f} s a step, {sent / 1e6:.1f} MB sent, {gradients / 1e6:.1f} MB gradients"
        )
        # A ring of two: each sends half of the gradients to be added up, and half of the sums.
        assert 1 <= sent / gradients <= HEADERS
    for faster, slower in pairwise(RATES_BITS_PER_S):
        difference_s = steps[slower][0] - steps[faster][0]
        expected_s = 8 * steps[slower][1] / slower - 8 * steps[faster][1] / faster
        print(f"{faster / 1e9} to {slower / 1e9} Gbit/s: {difference_s:.3f} s more, by the bytes {expected_s:.3f} s")
        assert difference_s == pytest.approx(expected_s, rel=0.1)
