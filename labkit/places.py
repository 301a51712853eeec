"""Paths of the project, and the atomic replacement of a file, so that nobody reads half of it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from labkit.errors import UserError

ROOT = Path(__file__).resolve().parent.parent


def notebook_of(study: str) -> Path:
    """Return the path of a study's notebook."""
    return ROOT / "notebooks" / f"{study}.ipynb"


def users_path(given: str | Path) -> Path:
    """Return the path that a user gave, with the home folder for `~`. Raise UserError for the home of nobody here."""
    try:
        return Path(given).expanduser()
    except RuntimeError as error:
        raise UserError(f"{str(given)[:200]} begins with the home folder of a user who is not known here.") from error


def as_typed(path: Path) -> str:
    """Return a path relative to the project's folder; a path outside it stays as it is."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path for `path`'s new content, and replace `path` atomically if the block raises nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
