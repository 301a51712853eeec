"""The exceptions of labkit. A message says what is wrong, what is valid, and what to do next."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from itertools import takewhile
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

PACKAGES = [str(Path(__file__).parent)]  # folders whose lines an error does not show; others on top of labkit join
LONGEST = 2_000  # characters of a message


class LabkitError(Exception):
    """A failure that is not the user's mistake; `labkit` exits with code 1.

    A message may quote a record of somebody else. So it is one line, printable and not long.
    """

    exit_code = 1

    def __str__(self) -> str:
        text = "".join(sign if sign.isprintable() else " " for sign in super().__str__())
        return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"


class UserError(LabkitError):
    """A mistake in the user's input (a name, a path, a file); `labkit` exits with code 2 and shows no traceback."""

    exit_code = 2

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows of the error: the reader's line that failed, and the message."""
        import traceback

        frames = traceback.extract_tb(self.__traceback__)
        own = [*takewhile(lambda frame: not frame.filename.startswith(tuple(PACKAGES)), frames)][-1:]
        return [*(f"line {frame.lineno}: {frame.line}" for frame in own), f"{type(self).__name__}: {self}"]


class DataError(UserError):
    """An image archive or data folder that cannot be used in its present form."""


class Unsupported(LabkitError):  # noqa: N818 - it is the name of a record's status
    """A trial that this device, build or package set cannot run: its record has the reason and no number."""


class GateError(LabkitError):
    """A trial that fails the correctness check (a non-finite loss, a wrong shape), so that it is not timed."""


def nearest_first(given: str, valid: Iterable[str]) -> list[str]:
    """Return all of `valid`, sorted by their similarity to `given`, ties alphabetically."""
    return sorted(valid, key=lambda name: (-difflib.SequenceMatcher(None, given.lower(), name.lower()).ratio(), name))


def unknown(what: str, given: object, valid: Iterable[str], *, hint: str = "") -> UserError:
    """Return the error for a name that is not in `valid`. It lists the valid names, nearest first."""
    names = ", ".join(nearest_first(str(given), valid))
    return UserError(f"unknown {what} {str(given)!r}; valid: {names}." + (f" {hint}" if hint else ""))


def one_of(what: str, given: T, valid: Collection[str], *, hint: str = "") -> T:
    """Return `given` if it is in `valid`. Raise the error `unknown` otherwise."""
    if given not in valid:
        raise unknown(what, given, valid, hint=hint)
    return given


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether an error, or an error in its chain of contexts, means that memory was exhausted.

    PyTorch has a type for it on CUDA, and only a message on the CPU. TensorFlow has a type, and XLA a word. A failure
    during the capture of a CUDA graph has the memory error as its context.
    """
    while error is not None:
        if type(error).__name__ in ("OutOfMemoryError", "ResourceExhaustedError"):
            return True
        if "can't allocate memory" in str(error) or "RESOURCE_EXHAUSTED" in str(error):
            return True
        error = error.__context__
    return False
