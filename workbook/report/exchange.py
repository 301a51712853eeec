"""Write `numbers.csv`, `numbers.parquet` and `claims.csv`: the numbers of a report's pages, for other programs."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pandas as pd

from labkit.files import replacing
from workbook.claims import Findings, Group
from workbook.claims.verdict import group_of
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


def groups_of(folder: Path, papers: Collection[str]) -> list[Group]:
    """Return the group of each claim of some papers, as `write_exchange` has written their verdicts."""
    claims = pd.read_csv(folder / "claims.csv", keep_default_na=False).drop_duplicates("claim")
    of_papers = claims[claims["paper"].isin(papers)]
    return [group_of(*row) for row in of_papers[["verdict", "mark", "not_judged"]].itertuples(index=False)]


def _write(path: Path, frame: pd.DataFrame) -> None:
    with replacing(path) as new:
        if path.suffix == ".parquet":
            frame.to_parquet(new, index=False)
        else:
            frame.to_csv(new, index=False, lineterminator="\n")
