"""`numbers.csv`, `numbers.parquet`, `claims.csv` of a report: the numbers of its pages, for other programs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from labkit.claims import Findings
from labkit.results import Results
from labkit.results.exchange import numbers
from labkit.results.study_records import StudyRecords

FILES = {
    "numbers.csv": "every metric of every trial with its interval (CSV, unrounded, SI units)",
    "numbers.parquet": "the same as Parquet",
    "claims.csv": "every claim with its verdict and effects (CSV)",
}


def write_exchange(folder: Path, shown: Sequence[StudyRecords], findings: Findings) -> None:
    """Write the three files, each whole or not at all."""
    frame = numbers(Results(shown))
    _write(folder / "numbers.csv", frame)
    _write(folder / "numbers.parquet", frame)
    _write(folder / "claims.csv", findings.frame())


def _write(path: Path, frame: pd.DataFrame) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if path.suffix == ".parquet":
            frame.to_parquet(temporary, index=False)
        else:
            frame.to_csv(temporary, index=False, lineterminator="\n")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
