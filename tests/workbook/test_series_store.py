"""Tests of the file of a study's series: it keeps only changes, restores every reading and is replaced atomically."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.telemetry.series import Series
from workbook.records import short_hash
from workbook.records.series_store import COLUMNS, SeriesStore

ZERO = 1000.0  # start of the first timed block, on the monotonic clock
GPU = ("gpu0", "power_w")


def series(metric: str, values: list[float], *, period_s: float = 0.1, gaps: tuple[tuple[float, float], ...] = ()):
    return Series(metric, [ZERO + n * period_s for n in range(len(values))], values, gaps)


def put(store: SeriesStore, *values: float, key: str = "a", pass_number: int = 1, scale: str = "smoke") -> None:
    """Store a trial with these readings of power."""
    store.put({GPU: series("power_w", list(values))}, scale=scale, key=key, pass_number=pass_number, zero=ZERO)


def kept(store: SeriesStore, metric: str = "power_w") -> list[tuple[float, float]]:
    """Return (seconds, value) of the rows of a metric in the file."""
    rows = store.read()
    rows = rows[rows["metric"] == metric]
    return [(round(float(t), 4), float(v)) for t, v in zip(rows["t_s"], rows["value"], strict=True)]


@pytest.fixture
def store(tmp_path: Path) -> SeriesStore:
    return SeriesStore(tmp_path, "0123456789ab", "01_training")


# ---- stored rows ----------------------------------------------------------------------------------------------------


def test_only_changes_are_kept_and_the_last_reading(store: SeriesStore) -> None:
    put(store, 100, 100, 100, 250, 250, 100, 100, 100)
    assert kept(store) == [(0, 100), (0.3, 250), (0.5, 100), (0.7, 100)]


def test_of_equal_averages_only_the_last_is_kept(store: SeriesStore) -> None:
    readings = {("gpu0", "utilisation"): series("utilisation", [0, 0.9, 0.9, 0.9, 0.1, 0.1], period_s=0.2)}
    store.put(readings, scale="smoke", key="a", pass_number=1, zero=ZERO)
    assert [(t, pytest.approx(v)) for t, v in kept(store, "utilisation")] == [(0, 0), (0.6, 0.9), (1.0, 0.1)]


def test_seconds_count_from_the_first_timed_block(store: SeriesStore) -> None:
    store.put({GPU: series("power_w", [1, 2])}, scale="smoke", key="a", pass_number=1, zero=ZERO + 5)
    assert [t for t, _ in kept(store)] == pytest.approx([-5, -4.9])


def test_a_gap_is_stored_as_nan_until_the_next_reading(store: SeriesStore) -> None:
    told = series("power_w", [7, 7, 7, 7, 7], gaps=((ZERO + 0.1, ZERO + 0.2),))
    silent = Series("memory_bytes", [ZERO, ZERO + 0.5, ZERO + 60], [7, 7, 7])
    store.put({GPU: told, ("gpu0", "memory_bytes"): silent}, scale="smoke", key="a", pass_number=1, zero=ZERO)
    (_, first), (since, gap), (_, nothing), (until, back), (_, last) = kept(store)
    assert (since, until) == (0.1, 0.2)
    assert math.isnan(nothing)
    assert first == gap == back == last == 7, "the readings beside the gap are kept although unchanged"
    assert [math.isnan(value) for _, value in kept(store, "memory_bytes")] == [False, False, True, False]


def test_a_counter_keeps_every_digit(store: SeriesStore) -> None:
    joules = [123_456_789.001, 123_456_789.002]
    store.put({("gpu0", "energy_j"): series("energy_j", joules)}, scale="smoke", key="a", pass_number=1, zero=ZERO)
    assert [value for _, value in kept(store, "energy_j")] == joules


@settings(max_examples=40)
@given(
    values=st.lists(st.sampled_from([0.0, 0.25, 1.0]), min_size=1, max_size=30),
    gap=st.integers(0, 28),
    metric=st.sampled_from(["power_w", "utilisation"]),
)
def test_every_reading_can_be_restored(values: list[float], gap: int, metric: str) -> None:
    spans = ((ZERO + gap * 0.1, ZERO + (gap + 1) * 0.1),)
    with tempfile.TemporaryDirectory() as folder:
        store = SeriesStore(Path(folder), "0123456789ab", "01_training")
        one = series(metric, values, gaps=spans)
        store.put({("gpu0", metric): one}, scale="smoke", key="a", pass_number=1, zero=ZERO)
        rows = kept(store, metric)
    for n, value in enumerate(values):
        earlier = [v for t, v in rows if t <= n * 0.1 + 1e-6]
        later = [v for t, v in rows if t >= n * 0.1 - 1e-6 and not math.isnan(v)]
        assert (earlier[-1] if metric == "power_w" else later[0]) == value
    between = gap * 0.1 + 0.05  # inside the gap, if the gap lies within the readings
    in_it = [v for t, v in rows if t <= between][-1:]
    assert [math.isnan(v) for v in in_it] == [gap + 1 < len(values)]


# ---- the file -------------------------------------------------------------------------------------------------------


def test_a_second_attempt_replaces_only_the_first_of_the_same_trial_and_pass(store: SeriesStore) -> None:
    put(store, 1, key="a", pass_number=1)
    put(store, 2, key="a", pass_number=2)
    put(store, 3, key="b", pass_number=1)
    put(store, 4, key="a", pass_number=1, scale="quick")
    put(store, 5, 6, key="a", pass_number=1)
    rows = store.read()
    stored = {
        (row["scale"], row["key"], row["pass"], row["value"])
        for row in rows[["scale", "key", "pass", "value"]].to_dict("records")
    }
    a, b = short_hash("a"), short_hash("b")
    assert stored == {
        ("smoke", a, 2, 2.0),
        ("smoke", b, 1, 3.0),
        ("quick", a, 1, 4.0),
        ("smoke", a, 1, 5.0),
        ("smoke", a, 1, 6.0),
    }


def test_an_attempt_without_samples_also_replaces_the_earlier_one(store: SeriesStore) -> None:
    put(store, 1, 2, key="a")
    put(store, 3, key="b")
    types = store.read().dtypes.to_dict()
    store.put({}, scale="smoke", key="a", pass_number=1, zero=ZERO)
    store.put({GPU: Series("power_w", [], [])}, scale="smoke", key="c", pass_number=1, zero=ZERO)
    rows = store.read()
    assert set(rows["key"]) == {short_hash("b")}
    assert {name: kind for name, kind in rows.dtypes.items() if name in ("pass", "t_s", "value")} == {
        name: types[name] for name in ("pass", "t_s", "value")
    }


def test_a_study_without_series_has_an_empty_frame(store: SeriesStore) -> None:
    assert list(store.read().columns) == list(COLUMNS)
    assert len(store.read()) == 0
    store.put({}, scale="smoke", key="a", pass_number=1, zero=ZERO)
    assert list(store.read().columns) == list(COLUMNS)
    put(store, 1, 2)
    assert kept(store) == [(0, 1), (0.1, 2)]


def test_the_file_is_replaced_atomically(store: SeriesStore, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, 1, 2, 3)
    before = store.path.read_bytes()

    def half(frame: pd.DataFrame, path: Path, **_: object) -> None:
        path.write_bytes(b"PAR1half of it")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full_disk:
        full_disk.setattr(pd.DataFrame, "to_parquet", half)
        with pytest.raises(OSError, match="No space left"):
            put(store, 4, 5, 6, key="b")
    assert store.path.read_bytes() == before
    put(store, 4, 5, 6, key="b")
    assert [path.name for path in store.path.parent.iterdir()] == [store.path.name], "no temporary file is left"
    assert len(store.read()) == 6


ANOTHER_TABLE = pd.DataFrame({"colour": ["red"]}).to_parquet()
NO_SERIES = {"empty": b"", "text": b"<<<<<<< HEAD\n", "torn": b"PAR1" + bytes(50) + b"PAR1", "other": ANOTHER_TABLE}


@pytest.mark.parametrize("what", NO_SERIES)
def test_a_file_without_series_is_an_error_with_its_name_and_is_kept(store: SeriesStore, what: str) -> None:
    store.path.parent.mkdir(parents=True)
    store.path.write_bytes(NO_SERIES[what])
    before = store.path.read_bytes()
    for attempt in (store.read, lambda: put(store, 1)):
        with pytest.raises(OSError, match=rf"^{store.path} is no Parquet file of series .*; restore it .*control$"):
            attempt()
    assert store.path.read_bytes() == before
