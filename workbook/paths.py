"""Paths of the project."""

import os
import warnings
from pathlib import Path

from labkit import errors

ROOT = Path(__file__).resolve().parent.parent
errors.PACKAGES.append(str(ROOT / "workbook"))


def reports_folder() -> Path:
    """Return the folder of reports: LABKIT_REPORTS, else `reports/` beside the package."""
    return Path(os.environ.get("LABKIT_REPORTS") or ROOT / "reports")


def warn_of_other_checkout() -> None:
    """Warn if the working folder is that of another checkout's notebooks: their kernel imports this one's code."""
    other = Path.cwd().parent
    if Path.cwd().name == "notebooks" and other != ROOT and (other / "workbook" / "__init__.py").is_file():
        warnings.warn(
            f"this notebook belongs to {other}, and workbook is imported from {ROOT}, where it also reads and writes "
            f"reports. `make lab` in {other} opens it with its own code.",
            stacklevel=3,
        )


def notebook_of(study: str) -> Path:
    """Return the path of a study's notebook."""
    return ROOT / "notebooks" / f"{study}.ipynb"


def as_typed(path: Path) -> str:
    """Return a path relative to the project's folder; a path outside it stays as it is."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
