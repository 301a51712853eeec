"""The series of a study in one Parquet file: `telemetry/<host>/<study>.parquet`, changes only.

A run of equal readings is one row: its first reading, which holds from then on, or its last, if the metric is an
average over the time before a reading. The first and last readings of a trial are always kept. A NaN means that nothing
is known until the next row. `t_s` counts from the trial's first timed block, in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from pyarrow.parquet import read_metadata

from labkit.files import replacing
from labkit.telemetry.series import Series
from workbook.records import Record, short_hash

MOST_ROWS = 2**24  # a report's series have some 100,000
NUMBERS = ("pass", "t_s", "value")
Pass: TypeAlias = tuple[str, str, int]  # scale, short hash of the key and number
COLUMNS = ("scale", "key", "pass", "source", "metric", "t_s", "value")
# Times and values seldom repeat, so they compress well as split byte streams, and not as a dictionary.
_COMPACT: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": 9,
    "use_dictionary": ["scale", "key", "pass", "source", "metric"],
    "use_byte_stream_split": ["t_s", "value"],
}


class SeriesStore:
    """The series of one study on one host. `put` replaces series of an earlier attempt of the same trial and pass."""

    def __init__(self, report: Path, host: str, study: str) -> None:
        self.path = report / "telemetry" / host / f"{study}.parquet"

    def read(self) -> pd.DataFrame:
        """Return all kept series, an empty frame without any. Raise OSError if the file is no Parquet of series."""
        if not self.path.is_file():
            return pd.DataFrame(columns=list(COLUMNS))
        try:
            rows = read_metadata(self.path).num_rows
            if rows > MOST_ROWS:
                raise ValueError(f"it has {rows:,} rows")
            frame = pd.read_parquet(self.path, columns=list(COLUMNS))
            if list(frame.columns) != list(COLUMNS):
                raise ValueError("its columns have other names")
            if not all(pd.api.types.is_numeric_dtype(frame[name]) for name in NUMBERS):
                raise ValueError(f"{', '.join(NUMBERS)} are not numbers")
        except Exception as error:  # pyarrow and pandas raise nearly anything for a damaged file
            why = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise OSError(
                f"{self.path} is no Parquet file of series ({why}); restore it from version control"
            ) from error
        return frame

    def put(
        self, series: Mapping[tuple[str, str], Series], *, scale: str, key: str, pass_number: int, zero: float
    ) -> None:
        """Store a trial's series; replace the file whole or not at all. Raise OSError if reading or writing fails."""
        new = _rows(series, zero)
        new.insert(0, "pass", np.int16(pass_number))
        new.insert(0, "key", short_hash(key))
        new.insert(0, "scale", scale)
        self._replace(new, {(scale, short_hash(key), pass_number)})

    def merge(self, series: pd.DataFrame, *, of: Iterable[Record]) -> None:
        """Add the series of records that another store holds. Raise OSError as `put` does."""
        passes = {(record.scale, short_hash(record.key), record.pass_number) for record in of}
        if len(series := series[_belongs(series, passes)]):
            self._replace(series, passes)

    def _replace(self, new: pd.DataFrame, passes: set[Pass]) -> None:
        kept = self.read()
        self._write(pd.concat([kept[~_belongs(kept, passes)], new], ignore_index=True) if len(kept) else new)

    def rewrite(self, *, without: str) -> None:
        """Rewrite the file, if it exists, in the present format, `without` the series of a scale; delete an empty one.

        Raise OSError if it cannot be read or written.
        """
        kept = self.read()
        kept = kept[kept["scale"] != without]
        if len(kept):
            self._write(kept)
        else:
            self.path.unlink(missing_ok=True)

    def _write(self, rows: pd.DataFrame) -> None:
        rows = rows.astype(dict.fromkeys(("scale", "key", "source", "metric"), "category"))
        with replacing(self.path) as new:
            rows.to_parquet(new, index=False, **_COMPACT)


def _belongs(rows: pd.DataFrame, passes: set[Pass]) -> np.ndarray:
    """Return which rows are of one of the passes."""
    index = pd.MultiIndex.from_frame(rows[["scale", "key", "pass"]])
    return np.asarray(index.isin(list(passes)))


def _rows(series: Mapping[tuple[str, str], Series], zero: float) -> pd.DataFrame:
    """Return the changes of every series, each in time order."""
    text, single = pd.Series(dtype=str), np.empty(0, np.float32)
    parts = [pd.DataFrame({"source": text, "metric": text, "t_s": single, "value": np.empty(0)})]  # for the types
    for (source, metric), readings in sorted(series.items()):
        if not len(readings):
            continue
        times, values = _changes(readings)
        parts.append(
            pd.DataFrame(
                {
                    "source": source,
                    "metric": metric,
                    "t_s": (times - zero).astype(np.float32),
                    # Counters need all digits; other metrics have fewer than four significant ones.
                    "value": values if readings.kind == "counter" else values.astype(np.float32).astype(np.float64),
                }
            )
        )
    return pd.concat(parts, ignore_index=True)


def _changes(readings: Series) -> tuple[np.ndarray, np.ndarray]:
    """Return times and values at which the value changes, with a NaN where a gap begins, and the last reading."""
    times, values = readings.times_s, readings.values
    gap_after = np.append([readings.is_gap(a, b) for a, b in pairwise(times)], False).astype(bool)
    changes = values[1:] != values[:-1]
    # A level holds from its reading on: keep a run's first. An average is of the time before a reading: keep the last.
    keep = np.append(changes, True) if readings.kind == "average" else np.append(True, changes)
    keep |= gap_after | np.roll(gap_after, 1)
    keep[0] = keep[-1] = True
    behind = np.flatnonzero(gap_after[keep]) + 1
    return (
        np.insert(times[keep], behind, times[gap_after] + 1e-3),
        np.insert(values[keep], behind, np.nan),
    )
