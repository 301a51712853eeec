"""Tests of `make pack`: packed records and series take less space and hold the same data."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from labkit.errors import UserError
from labkit.records.series_store import SeriesStore
from labkit.records.store import Store
from labkit.report.keep import pack_records
from labkit.results import reports_folder
from tests.unit.test_records import HOST, STUDY, record


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LABKIT_REPORTS", str(tmp_path))
    return reports_folder() / "cpu"


def test_every_file_of_a_profile_is_packed_and_the_total_is_printed(report: Path) -> None:
    store = Store(report)
    made = [record(batch=batch) for batch in range(1, 20)]
    for entry in made:
        store.append(entry)
    lines = list(pack_records("cpu"))
    assert lines[0].startswith(f"{STUDY} of host {HOST}: scale smoke, 19 records; 0.0") and "MB before" in lines[0]
    assert lines[-1].startswith("Records, hosts and series of cpu") and len(lines) == 2
    assert store.path(HOST, STUDY).name == f"{STUDY}.jsonl.gz" and store.read(STUDY, HOST) == made
    assert "before" not in "".join(pack_records("cpu")), "nothing is left to pack"


def test_records_of_jupyterlab_are_counted_and_packed(report: Path) -> None:
    store, reported = Store(report), record(batch=1)
    extra = record(batch=2).model_copy(update={"planned": reported.planned.model_copy(update={"extra": True})})
    for entry in (reported, extra, reported.model_copy(update={"scale": "quick"})):
        store.append(entry)
    first, second, _ = pack_records("cpu")
    assert (
        f"{STUDY} of host {HOST}: scale smoke, 2 records, 1 of them measured in JupyterLab; scale quick, 1 r" in first
    )
    assert "JupyterLab are packed too" in second and len(store.read(STUDY, HOST)) == 3


def test_series_are_the_same_after_packing(report: Path) -> None:
    Store(report).append(record(batch=1))
    path = SeriesStore(report, HOST, STUDY).path
    path.parent.mkdir(parents=True)
    rows = {"scale": "smoke", "key": "0", "pass": [1, 1], "source": "gpu0", "metric": "power_w", "t_s": [0.0, 0.5]}
    pd.DataFrame({**rows, "value": [70.5, 701.25]}).to_parquet(path)
    before = SeriesStore(report, HOST, STUDY).read()
    list(pack_records("cpu"))
    pd.testing.assert_frame_equal(
        SeriesStore(report, HOST, STUDY).read(), before, check_dtype=False, check_categorical=False
    )


def test_a_missing_or_unknown_profile_is_refused(report: Path) -> None:
    with pytest.raises(UserError, match="make pack HW=h200"):
        list(pack_records(""))
    with pytest.raises(UserError, match="h200"):
        list(pack_records("h20"))
