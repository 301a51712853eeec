"""Test reading shards from nginx over a rate-limited link, and what a failing server or link says.

`pytest -s` prints the table of rates.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from labkit.data.readers import why_not
from labkit.data.stored import StoredSet, make_set
from labkit.data.stored.over_http import ANSWER_S
from labkit.places import ROOT
from tests.cluster.link import ADDRESSES, INTERFACES, run, shaper
from tests.cluster.nginx_here import NginxHere
from tests.cluster.shards_over_link import IMAGES, STEP_S

RATES_BITS_PER_S = (10e9, 1e9, 0.25e9)
LEAST_SHARE = 0.8  # of the link's rate, for links that one connection of this machine fills

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(why_not("webdataset", "shards", "cpu") is not None, reason="webdataset is not installed"),
]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> StoredSet:
    folder = tmp_path_factory.mktemp("published")
    return make_set(folder, images=IMAGES, classes=10, forms=("shards",))["shards"]


@pytest.fixture
def folder(shards: StoredSet, tmp_path: Path) -> Path:
    """Return a copy of the shards, which a test may change."""
    return Path(shutil.copytree(shards.folder, tmp_path / "shards"))


@pytest.fixture
def nginx(folder: Path, tmp_path: Path, hosts: list[list[str]]) -> Iterator[NginxHere]:
    with NginxHere(folder, tmp_path, before=hosts[1], address=ADDRESSES[1]) as server:
        yield server


def pattern(shards: StoredSet, scheme: str = "http") -> str:
    return f"{scheme}://{ADDRESSES[1]}/{{{shards.files[0].stem}..{shards.files[-1].stem}}}.tar"


def reading(host: list[str], what: str, address: str, tmp_path: Path) -> subprocess.Popen[str]:
    """Start `tests.cluster.shards_over_link` on a host."""
    command = [*host, sys.executable, "-m", "tests.cluster.shards_over_link", what, address]
    environment = {**os.environ, "LABKIT_CACHE": str(tmp_path / "cache")}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.usefixtures("nginx")
def test_a_reader_takes_what_the_link_gives_and_prefetching_hides_the_waiting(
    shards: StoredSet, hosts: list[list[str]], tmp_path: Path
) -> None:
    measured: dict[float, dict[str, Any]] = {}
    for rate in RATES_BITS_PER_S:
        run(*hosts[1], "tc", "qdisc", "replace", "dev", INTERFACES[1], *shaper(rate))
        output, _ = reading(hosts[0], "measure", pattern(shards), tmp_path).communicate(timeout=200)
        measured[rate] = json.loads(output)
    print(f"\nlink Gbit/s | streamed MB/s | step ms | workers | MB/s | images/s | waiting (batches of {STEP_S:g} s)")
    for rate, values in measured.items():
        for leg in values["legs"]:
            print(
                f"{rate / 1e9:g} | {values['streamed_bytes_per_s'] / 1e6:.1f} | {leg['step_s'] * 1e3:.0f} | "
                f"{leg['workers']} | {leg['bytes_per_s'] / 1e6:.1f} | {leg['images_per_s']:.0f} | "
                f"{leg['waiting_share']:.0%}"
            )
    for rate, values in measured.items():
        found = [values["streamed_bytes_per_s"], *(leg["bytes_per_s"] for leg in values["legs"])]
        assert max(found) <= rate / 8, "no more than the link carries"
        if rate < max(RATES_BITS_PER_S):
            assert values["streamed_bytes_per_s"] >= LEAST_SHARE * rate / 8
        alone, prefetched = (leg["waiting_share"] for leg in values["legs"] if leg["step_s"])
        assert prefetched < alone - 0.1
    slowest = measured[min(RATES_BITS_PER_S)]["legs"]
    assert max(leg["bytes_per_s"] for leg in slowest) >= LEAST_SHARE * min(RATES_BITS_PER_S) / 8


def stop(nginx: NginxHere, folder: Path, hosts: list[list[str]]) -> None:
    nginx.signal(signal.SIGSTOP)


def kill(nginx: NginxHere, folder: Path, hosts: list[list[str]]) -> None:
    nginx.signal(signal.SIGKILL)


def cut_link(nginx: NginxHere, folder: Path, hosts: list[list[str]]) -> None:
    run(*hosts[1], "ip", "link", "set", INTERFACES[1], "down")


def cut_shards(nginx: NginxHere, folder: Path, hosts: list[list[str]]) -> None:
    for shard in folder.glob("*.tar"):
        os.truncate(shard, shard.stat().st_size // 2)


def remove_shards(nginx: NginxHere, folder: Path, hosts: list[list[str]]) -> None:
    for shard in folder.glob("*.tar"):
        shard.unlink()


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (stop, r"the request failed \(.*timed out\)"),
        (cut_link, r"the request failed \(.*timed out\)"),
        (kill, r"the request failed \(Connection refused\)"),
        (cut_shards, "copy it to the server again"),
        (remove_shards, "the server answered 404 Not Found; check the address"),
    ],
)
def test_a_fault_during_reading_is_one_sentence_within_seconds(
    fault: Callable[[NginxHere, Path, list[list[str]]], None],
    said: str,
    nginx: NginxHere,
    folder: Path,
    shards: StoredSet,
    hosts: list[list[str]],
    tmp_path: Path,
) -> None:
    run(*hosts[1], "tc", "qdisc", "replace", "dev", INTERFACES[1], *shaper(0.1e9))
    with reading(hosts[0], "read", pattern(shards), tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "reading\n"
        fault(nginx, folder, hosts)
        began = time.monotonic()
        (sentence,) = process.communicate(timeout=300)[0].splitlines()
        seconds = time.monotonic() - began
    print(f"\n{fault.__name__}: {seconds:.1f} s: {sentence}")
    assert sentence.startswith(f"the reader webdataset failed: http://{ADDRESSES[1]}/0000")
    assert said in sentence
    assert seconds < 6 * ANSWER_S, "the batches that were read ahead take some seconds too"


@pytest.mark.usefixtures("nginx")
def test_a_certificate_that_is_not_trusted_is_one_sentence(
    shards: StoredSet, hosts: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = pattern(shards, "https")
    output, _ = reading(hosts[0], "read", address, tmp_path).communicate(timeout=100)
    assert "the server's certificate is not trusted (self-signed certificate); set SSL_CERT_FILE" in output
    assert len(output.splitlines()) == 1
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate"))
    with reading(hosts[0], "read", address, tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "reading\n"
        process.kill()
