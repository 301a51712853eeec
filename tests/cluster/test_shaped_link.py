"""Over a link that decides how long a step takes, step times follow the bytes that are sent, over the link's rate."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

from labkit.places import ROOT
from labkit.records import Record
from tests.cluster.link import Link, why_not
from tests.cluster.on_the_wire import RATES_BITS_PER_S
from tests.faulty.campaign import records

pytestmark = pytest.mark.timeout(600)

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


def trained_over(link: Link, report: Path) -> Record:
    """The record of a training on both ends; the runner is at the first."""
    link.shape(RATES_BITS_PER_S[0])
    # Before whatever else runs on this host, which would be measured too.
    command = ["nice", "-n", "-15", *link.inside(0), sys.executable, "-m", "tests.cluster.over_link", str(report)]
    done = subprocess.run(
        [*command, json.dumps(link.inside(1))], cwd=ROOT, capture_output=True, text=True, timeout=500, check=False
    )
    made = records(report)
    log = report / "logs" / "01_training.log"
    assert made, done.stderr + (log.read_text(errors="replace")[-3000:] if log.exists() else "")
    return made[0]


def test_differences_of_step_times_are_bytes_over_rate(link: Link, tmp_path: Path) -> None:
    one = trained_over(link, tmp_path / "cpu")
    assert one.status == "ok", one.reason
    assert one.blocks is not None and one.blocks.steps_per_block == 1
    times, gradients = one.blocks.host_s, one.facts["gradient_bytes"]
    rates = one.facts["rates_bits_per_s"][-len(times) - 1 :]
    sent = [after - before for before, after in pairwise(one.facts["sent_bytes"][-len(times) - 1 :])]
    step_s: defaultdict[float, list[float]] = defaultdict(list)
    for rate, took_s, sent_bytes in zip(rates, times, sent, strict=False):
        step_s[rate].append(took_s)
        # A ring of two: each sends half of the gradients to be added up, and half of the sums.
        assert 1 <= sent_bytes / gradients <= HEADERS
    wire_bytes = median(sent)
    print(f"{wire_bytes / 1e6:.1f} MB sent a step, {gradients / 1e6:.1f} MB of gradients among them")
    for rate in RATES_BITS_PER_S:
        print(f"{rate / 1e9} Gbit/s: {min(step_s[rate]):.3f} s a step, of", *(f"{one:.2f}" for one in step_s[rate]))
        assert len(step_s[rate]) >= 4
    for faster, slower in pairwise(RATES_BITS_PER_S):
        # Steps of all rates take turns, and what else runs on this host makes some longer but none shorter.
        difference_s = min(step_s[slower]) - min(step_s[faster])
        expected_s = 8 * wire_bytes / slower - 8 * wire_bytes / faster
        print(f"{faster / 1e9} to {slower / 1e9} Gbit/s: {difference_s:.3f} s more, by the bytes {expected_s:.3f} s")
        assert difference_s == pytest.approx(expected_s, rel=0.1)
