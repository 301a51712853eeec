"""What counts as a finding: any error but the documented ones, a bad message, a hang, memory, and executed code."""

from __future__ import annotations

import resource
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from labkit.errors import LabkitError

LONGEST_MESSAGE = 2_200  # characters
CPU_S = 10.0  # of one input, of at most some kilobytes
GROWTH_BYTES = 400 << 20  # of the process's peak memory by one input
LIMIT_BYTES = 3 << 30  # of the address space that a process may add to that of its imports

# What a parser never does: start a program, connect, delete a file outside its folder.
_FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "subprocess.Popen", "socket.connect")
_DELETING = ("os.remove", "os.rename", "os.rmdir", "shutil.rmtree")


class Finding(BaseException):
    """An input that a parser does not handle. No `except Exception` of the parser catches it."""


@contextmanager
def documented(*, by_library: bool = False) -> Iterator[None]:
    """Accept labkit's errors, whose message must be one short printable sentence.

    An error that began as a MemoryError is a finding, unless a library asks the system for room that it never fills.
    """
    try:
        yield
    except LabkitError as error:
        if (cause := _memory(error)) and not by_library:
            raise Finding(f"asks for more memory than the process may have: {cause!r}") from error
        check_sentence(str(error))


def check_sentence(text: str) -> None:
    """Raise Finding for a message that no terminal shows as one short line."""
    if not text or not text.isprintable() or len(text) > LONGEST_MESSAGE:
        raise Finding(f"a message of {len(text)} characters that is no sentence: {text[:200]!r}")


def _memory(error: BaseException | None) -> MemoryError | None:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, MemoryError):
            return error
        error = error.__cause__ or error.__context__
    return None


@cache
def folder() -> Path:
    """Return a folder for the input files of this process, in memory where the system has such a place."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="labkit-fuzz-", dir=memory if memory.is_dir() else None))


def written(name: str, data: bytes) -> Path:
    """Return a file with this content, in the folder of this process."""
    path = folder() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@contextmanager
def limited_memory(limit_bytes: int = LIMIT_BYTES) -> Iterator[None]:
    """Limit the address space of this process to what it has plus `limit_bytes`."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + limit_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


_watching = False
_hooked: list[bool] = []


def watch_actions() -> None:
    """Make forbidden actions findings while `attempt` runs a parser. A hook can't be removed, so it is added once."""
    if not _hooked:
        _hooked.append(True)
        sys.addaudithook(_hook)


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watching:
        return
    if event in _FORBIDDEN:
        raise Finding(f"it calls {event} with {arguments!r:.200}")
    path = str(arguments[0]) if event in _DELETING else ""  # a relative one is within a folder that is deleted
    imports = "__pycache__" in path  # Python replaces its compiled files at the first import
    if path.startswith("/") and not path.startswith(str(folder())) and not imports:
        raise Finding(f"it calls {event} with {arguments!r:.200}")


def attempt(run: Callable[[bytes], None], data: bytes) -> str | None:
    """Run a parser on one input and return what is wrong, or None."""
    global _watching

    def hang(*_: Any) -> None:
        raise Finding(f"it takes more than {CPU_S:.0f} s")

    before = signal.signal(signal.SIGVTALRM, hang)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S)
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _watching = True
    try:
        run(data)
    except Finding as error:
        return f"{error}\n{_place(error)}"
    except Exception as error:  # noqa: BLE001 - the finding
        return f"{type(error).__name__}: {str(error)[:300]}\n{_place(error)}"
    finally:
        _watching = False
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_kib) << 10
    return f"it takes {grown >> 20} MiB of memory" if grown > GROWTH_BYTES else None


def _place(error: BaseException) -> str:
    """Return the lines of labkit that led to an error, the deepest last."""
    frames = traceback.extract_tb((error.__cause__ or error).__traceback__)
    own = [f for f in frames if "/labkit/" in f.filename] or list(frames)
    return " <- ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in reversed(own[-4:]))
