"""Test that step times over a rate-limited link differ by the bytes sent divided by the link's rate."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

from labkit.places import ROOT
from tests.cluster.over_link import ADDRESSES, RATES_BITS_PER_S, shaper
from tests.faulty.campaign import records

HEADERS = 1.08  # most bytes sent per gradient byte: packet headers, and messages that agree on steps


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@pytest.fixture
def hosts() -> Iterator[list[list[str]]]:
    """Join two network namespaces by a link, and yield for each the prefix of a command that runs there."""
    names = [f"lk{os.getpid()}{end}" for end in "ab"]
    inside = [["nsenter", f"--net=/run/netns/{name}"] for name in names]
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", "va", "netns", names[0], "type", "veth", "peer", "name", "vb", "netns", names[1])
        for name, interface, address, before in zip(names, ("va", "vb"), ADDRESSES, inside, strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", interface)
            for device in ("lo", interface):
                ip("-n", name, "link", "set", device, "up")
            command = [*before, "tc", "qdisc", "replace", "dev", interface, *shaper(RATES_BITS_PER_S[0])]
            subprocess.run(command, check=True, capture_output=True, text=True)
        yield inside
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this kernel or container permits no shaped link: {error.cmd}: {error.stderr}")
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


@pytest.mark.timeout(600)
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
