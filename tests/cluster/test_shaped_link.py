"""Test that step times over a rate-limited link differ by the bytes sent divided by the link's rate."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

from tests.cluster.over_link import RATES_BITS_PER_S
from tests.faulty.campaign import records
from workbook.paths import ROOT

HEADERS = 1.08  # most bytes sent per gradient byte: packet headers, and messages that agree on steps


def test_step_times_differ_by_the_bytes_sent_over_the_links_rate(hosts: list[list[str]], tmp_path: Path) -> None:
    report = tmp_path / "cpu"
    # A high priority keeps other processes of this host from slowing the steps.
    command = ["nice", "-n", "-15", *hosts[0], sys.executable, "-m", "tests.cluster.over_link", str(report)]
    done = subprocess.run([*command, json.dumps(hosts[1])], cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert records(report), done.stderr
    (record,) = records(report)
    assert record.status == "ok", record.reason
    assert record.blocks is not None and record.blocks.steps_per_block == 1
    times, gradients = record.blocks.host_s, record.facts["gradient_bytes"]
    rates = record.facts["rates_bits_per_s"][-len(times) - 1 :]
    sent = [after - before for before, after in pairwise(record.facts["sent_bytes"][-len(times) - 1 :])]
    step_s: defaultdict[float, list[float]] = defaultdict(list)
    for rate, time_s, sent_bytes in zip(rates, times, sent, strict=False):
        step_s[rate].append(time_s)
        # All-reduce in a ring of two: each rank sends half of the gradients, then half of the sums.
        assert 1 <= sent_bytes / gradients <= HEADERS
    assert min(map(len, step_s.values())) >= 4 and len(step_s) == len(RATES_BITS_PER_S)
    for faster, slower in pairwise(RATES_BITS_PER_S):
        # Steps of all rates alternate. Other load on this host can only lengthen steps, so the test compares minima.
        difference_s = min(step_s[slower]) - min(step_s[faster])
        expected_s = 8 * median(sent) / slower - 8 * median(sent) / faster
        print(f"{faster / 1e9} to {slower / 1e9} Gbit/s: {difference_s:.3f} s more, by the bytes {expected_s:.3f} s")
        assert difference_s == pytest.approx(expected_s, rel=0.1)
