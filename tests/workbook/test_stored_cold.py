"""Files are read from the disk after they were dropped, and the counters of a process tree tell how many bytes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tests.processes import eventually
from workbook.storage import StoredSet, counters, make_set, page_cache
from workbook.storage.counters import Counters, Series

BLOCK_BYTES = 4096  # the disk delivers whole blocks
FILE_BYTES = 8_000_000


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, StoredSet]:
    return make_set(tmp_path_factory.mktemp("stored") / "set", images=30, classes=3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder whose files can be read cold."""
    reason, here = page_cache.why_not_cold(tmp_path), page_cache.file_system(tmp_path)
    assert reason is None or here is None or here.type not in ("ext4", "xfs")  # these drop files
    if reason:
        pytest.skip(f"reading cold: {reason}")
    return tmp_path


@pytest.fixture
def file(folder: Path) -> Path:
    """Return a file that is on the disk and not in memory."""
    path = folder / "file"
    path.write_bytes(os.urandom(FILE_BYTES))
    page_cache.drop([path])
    return path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("form", ["jpeg", "shards", "tfrecord", "cache"])
def test_a_dropped_set_is_read_from_the_disk_once(form: str, made: dict[str, StoredSet]) -> None:
    stored = made[form]
    for path in stored.files:
        path.read_bytes()
    assert page_cache.resident_share(stored.files) == 1
    page_cache.drop(stored.files)
    assert page_cache.resident_share(stored.files) < 0.01

    counted = Counters()
    start = counted.now()
    passes = []
    for _ in range(2):
        for path in stored.files:
            path.read_bytes()
        passes.append(counted.now())
    cold, warm = passes[0] - start, passes[1] - passes[0]
    on_disk = sum(-(-path.stat().st_size // BLOCK_BYTES) * BLOCK_BYTES for path in stored.files)
    assert cold.read_bytes == pytest.approx(on_disk, rel=0.02)
    assert warm.read_bytes is not None and warm.read_bytes < 0.02 * on_disk
    assert warm.asked_bytes is not None and warm.asked_bytes >= stored.file_bytes


def test_a_file_is_in_memory_in_part_until_it_is_dropped(file: Path) -> None:
    assert page_cache.resident_share([file]) == 0
    descriptor = os.open(file, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # no reading ahead
    os.pread(descriptor, FILE_BYTES // 4, 0)
    os.close(descriptor)
    assert page_cache.resident_share([file]) == pytest.approx(0.25, abs=0.02)
    (empty := file.with_name("empty")).touch()
    assert page_cache.resident_share([empty]) == 0


def test_a_file_is_dropped_also_before_it_is_on_the_disk(folder: Path) -> None:
    new = folder / "new"
    new.write_bytes(os.urandom(FILE_BYTES))
    page_cache.drop([new])
    assert page_cache.resident_share([new]) < 0.01 and new.stat().st_size == FILE_BYTES


def partition(device: str, place: str, kind: str) -> Any:
    return SimpleNamespace(device=device, mountpoint=place, fstype=kind)


def test_the_reason_for_no_cold_read_names_the_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 5000)
    mounts = [partition("/dev/root", "/", "ext4")]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: mounts)
    for kind, device, reason in (
        ("tmpfs", "none", "tmpfs .* memory"),
        ("nfs4", "server:/data", "nfs4 on server:/data"),
        ("fuse.sshfs", "host:", "fuse.sshfs on host:"),
        ("zfs", "tank", "of its own"),
    ):
        mounts[1:] = [partition(device, str(tmp_path), kind)]
        for path in (file, tmp_path):
            assert re.search(reason, str(page_cache.why_not_cold(path)))
    monkeypatch.setattr(page_cache, "drop", lambda files: None)
    del mounts[1:]
    assert all(fact in str(page_cache.why_not_cold(file)) for fact in ("100%", "ext4"))
    monkeypatch.setattr(page_cache, "resident_share", lambda files: 0.0)
    assert "page cache" in str(page_cache.why_not_cold(file))
    assert "failed" in str(page_cache.why_not_cold(tmp_path / "absent"))
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".labkit-")] == []


def test_the_file_system_of_a_path_is_that_of_the_innermost_and_latest_mount(monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = [("overlay", "/", "overlay"), ("/dev/sda1", "/data", "ext4"), ("/dev/sdb1", "/data", "xfs")]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: [partition(*mount) for mount in mounts])
    for path, kind in (("/data/set/train", "xfs"), ("/database", "overlay")):
        assert (here := page_cache.file_system(path)) and here.type == kind
    mounts.clear()
    assert page_cache.file_system("/data") is None


READ = "import sys; open(sys.argv[1], 'rb').read(); import time; time.sleep(float(sys.argv[2]))"
READ_IN_A_CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {READ!r}, *sys.argv[1:]], check=True)"


@pytest.mark.parametrize("code", [READ, READ_IN_A_CHILD], ids=["a child", "a grandchild"])
def test_the_counters_keep_what_an_ended_process_has_read(code: str, file: Path) -> None:
    counted = Counters()
    start = counted.now()
    subprocess.run([sys.executable, "-c", code, str(file), "0"], check=True)
    total = counted.now() - start
    assert total.read_bytes is not None and total.asked_bytes is not None and total.cpu_s is not None
    # Python's own files may be read from the disk too.
    assert FILE_BYTES <= total.read_bytes < 4 * FILE_BYTES and total.asked_bytes >= FILE_BYTES
    assert total.cpu_s > 0 and total.minor_faults


def test_a_series_sees_a_living_child_and_the_peak_of_memory(file: Path) -> None:
    counted = Counters()
    alone = counted.now()
    with Series(counted, period_s=0.02) as series:
        child = subprocess.Popen([sys.executable, "-c", READ, str(file), "600"])
        assert eventually(lambda: (series.snapshots[-1] - alone).read_bytes >= FILE_BYTES)  # type: ignore[operator]
        living = series.snapshots[-1] - alone
        child.kill()
        child.wait()
    ended = series.snapshots[-1] - alone
    assert living.read_bytes is not None and ended.read_bytes is not None
    assert FILE_BYTES <= living.read_bytes <= ended.read_bytes < 4 * FILE_BYTES
    assert ended.peak_rss_bytes is not None and alone.peak_rss_bytes is not None
    assert ended.peak_rss_bytes > alone.peak_rss_bytes
    times = [snapshot.time_s for snapshot in series.snapshots]
    assert times == sorted(times) and len(times) >= 3


def test_written_bytes_are_counted(folder: Path) -> None:
    counted = Counters()
    start = counted.now()
    (folder / "new").write_bytes(os.urandom(FILE_BYTES))
    page_cache.drop([folder / "new"])
    written = counted.now() - start
    assert written.written_bytes is not None and written.written_bytes >= FILE_BYTES


def test_what_cannot_be_read_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "PROC", tmp_path)
    counted = Counters()
    monkeypatch.setattr(counters.psutil, "net_io_counters", lambda pernic: {"lo": None})
    difference = counted.now() - counted.now()
    for name in ("asked_bytes", "read_bytes", "cpu_s", "major_faults", "peak_rss_bytes"):
        assert getattr(difference, name) is None
    assert difference.sent_bytes is None


def test_the_network_without_the_loopback_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Link:
        bytes_recv, bytes_sent = 100, 10

    monkeypatch.setattr(counters.psutil, "net_io_counters", lambda pernic: dict.fromkeys(("lo", "eth0", "ib0"), Link))
    now = Counters().now()
    assert (now.received_bytes, now.sent_bytes) == (200, 20)
