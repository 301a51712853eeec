"""Tests of `make pack`: packed records and series take less space and hold the same data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from labkit.errors import UserError
from tests.workbook.test_records import HOST, STUDY, record
from workbook.records.series_store import SeriesStore
from workbook.records.store import Store
from workbook.report import keep
from workbook.report.keep import pack_records


def test_every_file_of_a_profile_is_packed_and_the_total_is_printed(report: Path) -> None:
    store = Store(report)
    made = [record(batch=batch, scale="quick") for batch in range(1, 20)]
    for entry in made:
        store.append(entry)
    lines = list(pack_records("cpu"))
    assert lines[0].startswith(f"Records of {STUDY} on machine {HOST}: 19; 0.0") and "MB before" in lines[0]
    assert lines[-1].startswith("Records, machines and series of cpu") and len(lines) == 2
    assert store.path(HOST, STUDY).name == f"{STUDY}.jsonl.gz" and store.read(STUDY, HOST) == made
    assert "before" not in "".join(pack_records("cpu")), "nothing is left to pack"


def test_records_of_jupyterlab_are_counted_and_packed(report: Path) -> None:
    store, reported = Store(report), record(batch=1, scale="quick")
    extra = record(batch=2, scale="quick").model_copy(
        update={"planned": reported.planned.model_copy(update={"extra": True})}
    )
    for entry in (reported, extra, reported.model_copy(update={"scale": "full"})):
        store.append(entry)
    first, second, _ = pack_records("cpu")
    assert f"Records of {STUDY} on machine {HOST}: 3; " in first
    assert second.startswith("Records measured in JupyterLab: 1.") and len(store.read(STUDY, HOST)) == 3


def test_series_are_the_same_after_packing(report: Path) -> None:
    Store(report).append(record(batch=1, scale="quick"))
    path = SeriesStore(report, HOST, STUDY).path
    path.parent.mkdir(parents=True)
    rows = {"scale": "quick", "key": "0", "pass": [1, 1], "source": "gpu0", "metric": "power_w", "t_s": [0.0, 0.5]}
    pd.DataFrame({**rows, "value": [70.5, 701.25]}).to_parquet(path)
    before = SeriesStore(report, HOST, STUDY).read()
    list(pack_records("cpu"))
    pd.testing.assert_frame_equal(
        SeriesStore(report, HOST, STUDY).read(), before, check_dtype=False, check_categorical=False
    )


def test_records_and_series_of_round_0_are_not_packed(report: Path) -> None:
    store, own = Store(report), "02_batch_size"
    kept, small = record(batch=1, scale="quick"), [record(batch=batch) for batch in (2, 3)]
    for entry in (small[0], kept, small[1], small[0].model_copy(update={"study": own})):
        store.append(entry)
    about = {"key": "0", "pass": 1, "source": "gpu0", "metric": "power_w", "t_s": [0.0, 0.5], "value": [1.0, 2.0]}
    for study, scale in ((STUDY, ["smoke", "quick"]), (own, "smoke")):
        path = SeriesStore(report, HOST, study).path
        path.parent.mkdir(parents=True, exist_ok=True)
        pd.DataFrame({"scale": scale, **about}).to_parquet(path)
    said = list(pack_records("cpu"))
    assert store.read(STUDY, HOST) == [kept] and store.studies(HOST) == [STUDY]
    assert set(SeriesStore(report, HOST, STUDY).read()["scale"]) == {"quick"}
    assert not SeriesStore(report, HOST, own).path.exists()
    assert [line.split(": ")[-1] for line in said if "aside/" in line] == ["2.", "1."], "nothing is deleted"
    assert len(list((report / "records" / HOST / "aside").iterdir())) == 2


def with_series(report: Path, host: str, day: int, *, rows: int = 2000) -> Path:
    """Write a record and the series of a host, and return the file of the series."""
    started = f"2026-01-{day:02}T00:00:00+00:00"
    Store(report).append(record(batch=1, scale="quick").model_copy(update={"host": host, "started_at": started}))
    path = SeriesStore(report, host, STUDY).path
    path.parent.mkdir(parents=True)
    where = {"scale": "quick", "key": "0", "pass": 1, "source": "gpu0", "metric": "power_w"}
    values = np.random.default_rng(day).normal(size=rows)
    pd.DataFrame({**where, "t_s": np.arange(rows) * values, "value": values}).to_parquet(path)
    return path


def test_series_of_the_oldest_hosts_go_first_if_a_profile_is_too_large(
    report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [with_series(report, host, day) for host, day in (("c" * 12, 1), ("a" * 12, 2), ("b" * 12, 3))]
    list(pack_records("cpu"))
    assert all(path.is_file() for path in paths), "within the limit nothing is deleted"
    whole = sum(path.stat().st_size for path in report.rglob("*") if path.is_file())
    monkeypatch.setattr(keep, "LIMIT_BYTES", whole - 1)
    told = [sentence for sentence in pack_records("cpu") if "deleted" in sentence]
    assert len(told) == 1 and told[0].startswith(f"Telemetry of {STUDY} of machine cccccccccccc is deleted")
    assert [path.is_file() for path in paths] == [False, True, True]


def test_series_that_a_page_shows_and_all_records_are_kept(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [with_series(report, host, day) for host, day in (("c" * 12, 1), ("a" * 12, 2), ("b" * 12, 3))]
    monkeypatch.setattr(keep, "LIMIT_BYTES", 1)
    *_, deleted, last_deleted, total = pack_records("cpu")
    assert "machine cccccccccccc" in deleted and "machine aaaaaaaaaaaa" in last_deleted
    assert [path.is_file() for path in paths] == [False, False, True], "a page shows the newest host"
    assert "MB, more than 0 MB." in total
    assert len(Store(report).hosts(STUDY)) == 3


def test_a_missing_or_unknown_profile_is_refused(report: Path) -> None:
    with pytest.raises(UserError, match="make pack HW=h200"):
        list(pack_records(""))
    with pytest.raises(UserError, match="h200"):
        list(pack_records("h20"))
