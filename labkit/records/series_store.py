"""The series of a study in one Parquet file: `telemetry/<host>/<study>.parquet`, changes only.

A run of equal readings is one row: its first, from which on it holds, or, of a metric that is an average over the time
before a reading, its last. The first and last reading of a trial stand in any case, and a NaN says that from there to
the next row nothing is known. `t_s` counts from the trial's first timed block.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from labkit.places import replacing
from labkit.records import short_hash
from labkit.records.series import Series

COLUMNS = ("scale", "key", "pass", "source", "metric", "t_s", "value")
# Times and values seldom repeat: their bytes compress side by side, first bytes first, and not as a dictionary.
_COMPACT: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": 9,
    "use_dictionary": ["scale", "key", "pass", "source", "metric"],
    "use_byte_stream_split": ["t_s", "value"],
}


class SeriesStore:
    """The series of one study on one host. `put` replaces what an earlier attempt of the same trial and pass left."""

    def __init__(self, report: Path, host: str, study: str) -> None:
        self.path = report / "telemetry" / host / f"{study}.parquet"

    def read(self) -> pd.DataFrame:
        """Everything kept; an empty frame when there is nothing. OSError for a file that is no Parquet."""
        if not self.path.is_file():
            return pd.DataFrame(columns=list(COLUMNS))
        try:
            return pd.read_parquet(self.path, columns=list(COLUMNS))
        except (ValueError, OSError) as error:  # pyarrow's ArrowInvalid is a ValueError
            why = str(error).strip().splitlines()[0]
            raise OSError(
                f"{self.path} is no Parquet file of series ({why}); restore it from version control"
            ) from error

    def put(
        self,
        series: Mapping[tuple[str, str], Series],
        *,
        scale: str,
        key: str,
        pass_number: int,
        zero: float,
    ) -> None:
        """Keep the series of a trial. The file is replaced whole or not at all. OSError when it cannot be written."""
        new = _rows(series, zero)
        new.insert(0, "pass", np.int16(pass_number))
        new.insert(0, "key", short_hash(key))
        new.insert(0, "scale", scale)
        kept = self.read()
        if len(kept):
            same = (kept["scale"] == scale) & (kept["key"] == short_hash(key)) & (kept["pass"] == pass_number)
            new = pd.concat([kept[~same], new], ignore_index=True)
        self._write(new)

    def rewrite(self) -> None:
        """Write what is kept anew, in the form of now. OSError when it cannot be read or written."""
        if self.path.is_file():
            self._write(self.read())

    def _write(self, rows: pd.DataFrame) -> None:
        rows = rows.astype(dict.fromkeys(("scale", "key", "source", "metric"), "category"))
        with replacing(self.path) as new:
            rows.to_parquet(new, index=False, **_COMPACT)


def _rows(series: Mapping[tuple[str, str], Series], zero: float) -> pd.DataFrame:
    """The changes of every series, in time order."""
    text, single = pd.Series(dtype=str), np.empty(0, np.float32)
    parts = [pd.DataFrame({"source": text, "metric": text, "t_s": single, "value": np.empty(0)})]  # types, if no more
    for (source, metric), one in sorted(series.items()):
        if not len(one):
            continue
        times, values = _changes(one)
        parts.append(
            pd.DataFrame(
                {
                    "source": source,
                    "metric": metric,
                    "t_s": (times - zero).astype(np.float32),
                    # Counters need their digits; everything else has fewer than four that mean something.
                    "value": values if one.kind == "counter" else values.astype(np.float32).astype(np.float64),
                }
            )
        )
    return pd.concat(parts, ignore_index=True)


def _changes(one: Series) -> tuple[np.ndarray, np.ndarray]:
    """Times and values at which the value changes, a NaN where a gap begins, and the last reading."""
    times, values = one.times_s, one.values
    gap_after = np.append([one.is_gap(a, b) for a, b in pairwise(times)], False).astype(bool)
    changes = values[1:] != values[:-1]
    # A level holds from its reading on, so the first of a run says all; an average is of the time before it: the last.
    keep = np.append(changes, True) if one.kind == "average" else np.append(True, changes)
    keep |= gap_after | np.roll(gap_after, 1)
    keep[0] = keep[-1] = True
    behind = np.flatnonzero(gap_after[keep]) + 1
    return (
        np.insert(times[keep], behind, times[gap_after] + 1e-3),
        np.insert(values[keep], behind, np.nan),
    )
