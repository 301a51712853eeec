"""Where the project lies, and how a file is replaced so that nobody reads half of it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def notebook_of(study: str) -> Path:
    """The notebook of a study."""
    return ROOT / "notebooks" / f"{study}.ipynb"


def as_typed(path: Path) -> str:
    """A path as a person would type it in the project's folder."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A place for the new content of `path`, which it gets whole when the block ends well, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
