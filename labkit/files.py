"""Paths that a user gave, temporary folders, and the atomic replacement of a file, so that nobody reads half of it."""

import os
import platform
import shutil
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from labkit.errors import UserError

_PACKAGES = str(Path(__file__).resolve().parent.parent)  # the folder that holds this package
LEFT_OVER_S = 3600.0  # a temporary file without a write for so long belongs to a process that was killed


def users_path(given: str | Path) -> Path:
    """Return the path that a user gave, with the home folder for `~`. Raise UserError for the home of nobody here."""
    try:
        return Path(given).expanduser()
    except RuntimeError as error:
        raise UserError(f"{given} begins with the home folder of a user who is not known here.") from error


def python_path() -> str:
    """Return the PYTHONPATH with which any Python imports this package, and those beside it, from any folder."""
    return os.pathsep.join([_PACKAGES, *filter(None, [os.environ.get("PYTHONPATH")])])


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


@contextmanager
def rewriting(path: Path) -> Iterator[BinaryIO]:
    """Yield a file for `path`'s new content, as `replacing` does. The content is on the disk before it replaces."""
    with replacing(path) as new, new.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def temporary_folder(within: str | None = None) -> Iterator[Path]:
    """Yield a private folder that exists within this context. Remove those that killed processes have left beside it.

    Its name tells the host, the numbering of its processes (a container may have its own) and the process, because
    hosts and containers may share the place. It is short: a socket in it has a path of at most about 100 characters.
    """
    import psutil

    numbering = Path("/proc/self/ns/pid")
    place = f"{platform.node()} {numbering.readlink() if numbering.is_symlink() else ''}"
    own = f"labkit-{zlib.crc32(place.encode()):08x}-"
    for left in Path(within or tempfile.gettempdir()).glob(f"{own}*"):
        # Processes are listed after the folder was found, because another process may have just begun with it.
        if left.name.removeprefix(own).partition("-")[0] not in map(str, psutil.pids()):
            shutil.rmtree(left, ignore_errors=True)  # another user's folder stays
    with tempfile.TemporaryDirectory(prefix=f"{own}{os.getpid()}-", dir=within, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of `replacing` in `folder` and below that killed processes have left.

    The process must not run here. Processes of other machines and containers cannot be seen, so the file's age counts
    too; alone it does not, because somebody may set the clock.
    """
    import psutil

    for path in folder.rglob(".*"):
        try:
            process = path.suffix[1:]
            if not process.isdigit() or psutil.pid_exists(int(process)):
                continue
            if time.time() - path.stat().st_mtime > LEFT_OVER_S:
                path.unlink()
        except OSError:
            continue  # another process has removed it
