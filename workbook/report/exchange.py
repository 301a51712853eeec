"""Write `numbers.csv`, `numbers.parquet` and `claims.csv`: the numbers of a report's pages, for other programs."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from labkit.files import replacing
from workbook.claims import Findings
from workbook.results import Results
from workbook.results.exchange import numbers

FILES = {
    "numbers.csv": "every metric of every configuration with its interval (CSV, unrounded, SI units)",
    "numbers.parquet": "the same as Parquet",
    "claims.csv": "every claim with its verdict and effects (CSV)",
}


def write_exchange(folder: Path, results: Results, findings: Findings) -> None:
    """Write the three files, each atomically."""
    frame = numbers(results)
    _write(folder / "numbers.csv", frame)
    _write(folder / "numbers.parquet", frame)
    _write(folder / "claims.csv", findings.frame())


def _write(path: Path, frame: pd.DataFrame) -> None:
    with replacing(path) as new:
        if path.suffix == ".parquet":
            frame.to_parquet(new, index=False)
        else:
            frame.to_csv(new, index=False, lineterminator="\n")
