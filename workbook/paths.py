"""Paths of the project."""

import os
from pathlib import Path

from labkit import errors

ROOT = Path(__file__).resolve().parent.parent
errors.PACKAGES.append(str(ROOT / "workbook"))


def reports_folder() -> Path:
    """Return the folder of reports: LABKIT_REPORTS, else `reports/` beside the package."""
    return Path(os.environ.get("LABKIT_REPORTS") or ROOT / "reports")


def notebook_of(study: str) -> Path:
    """Return the path of a study's notebook."""
    return ROOT / "notebooks" / f"{study}.ipynb"


def as_typed(path: Path) -> str:
    """Return a path relative to the project's folder; a path outside it stays as it is."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
