"""Tests of the cores that this process may use, on made processors."""

from __future__ import annotations

import os
from pathlib import Path

import joblib
import pytest

from workbook.hardware import limits

# Four cores with two hyper-threads each; neighbours in number share a core.
SIBLINGS = {0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3", 4: "4-5", 5: "4-5", 6: "6-7", 7: "6-7"}


@pytest.mark.parametrize(
    ("mask", "quota", "cores"),
    [
        ({0, 1, 2, 3, 4, 5, 6, 7}, 8, 4),
        ({2, 3, 4}, 8, 2),
        ({6, 7}, 8, 1),
        ({1, 3, 5}, 8, 3),
        ({1, 3, 5}, 2, 2),
    ],
)
def test_hyper_threads_of_a_core_count_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mask: set[int], quota: int, cores: int
) -> None:
    for number, siblings in SIBLINGS.items():
        topology = tmp_path / f"cpu{number}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(siblings)
    monkeypatch.setattr(limits, "PROCESSORS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: mask)
    monkeypatch.setattr(joblib, "cpu_count", lambda: min(len(mask), quota))
    monkeypatch.setattr(limits.psutil, "cpu_count", lambda logical: 8 if logical else 4)
    assert limits.usable_cores() == cores
    assert limits.usable_threads() == min(len(mask), quota)


def test_without_the_systems_list_the_machines_cores_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(limits, "PROCESSORS", tmp_path)
    monkeypatch.setattr(joblib, "cpu_count", lambda: 8)
    monkeypatch.setattr(limits.psutil, "cpu_count", lambda logical: 8 if logical else 4)
    assert limits.usable_cores() == 4
