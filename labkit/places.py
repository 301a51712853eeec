"""Where the project lies: its folder, from which workers import it, and its notebooks."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def notebook_of(study: str) -> Path:
    """The notebook of a study."""
    return ROOT / "notebooks" / f"{study}.ipynb"
