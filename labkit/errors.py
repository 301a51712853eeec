"""The exceptions of labkit. A message says what is wrong, what is valid, and what to do next."""

from __future__ import annotations

import difflib
import signal
from collections.abc import Collection, Iterable
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

PACKAGES = [str(Path(__file__).parent)]  # IPython shows no line of these folders; a package on top adds its own
LONGEST = 2_000  # characters of a message
LARGEST_WHOLE = 2**53 - 1  # of what a user asks for: floats hold it exactly, and the 64 bits of records leave room


class LabkitError(Exception):
    """A failure that is not the user's mistake. A command ends with `exit_code`.

    A message may quote a file of somebody else. So it is one line, printable and not long.
    """

    exit_code = 1

    def __str__(self) -> str:
        text = "".join(sign if sign.isprintable() else " " for sign in super().__str__())
        return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"


class UserError(LabkitError):
    """A mistake in the user's input (a name, a path, a file). A command shows the message and no traceback."""

    exit_code = 2

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows of the error: the reader's line that failed, and the message."""
        import traceback

        frames = traceback.extract_tb(self.__traceback__)
        own = [*takewhile(lambda frame: not frame.filename.startswith(tuple(PACKAGES)), frames)][-1:]
        return [*(f"line {frame.lineno}: {frame.line}" for frame in own), f"{type(self).__name__}: {self}"]


class DataError(UserError):
    """An image archive or data folder that cannot be used in its present form."""


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


def check_whole(name: str, value: Any, least: int = 1) -> None:
    """Raise UserError for a value that is no whole number from `least` to `LARGEST_WHOLE`."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
        raise UserError(f"{name} is {value!r}; use a whole number of at least {least}.")
    if value > LARGEST_WHOLE:
        raise UserError(f"{name} is {value!r}; use a whole number of at most {LARGEST_WHOLE:,}.")


def check_above(name: str, value: Any, bound: float, *, or_equal: bool = False) -> None:
    """Raise UserError for a value that is no finite number above `bound`, or equal to it."""
    number = float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else float("nan")
    if not (bound < number < float("inf") or (or_equal and number == bound)):
        raise UserError(f"{name} is {value!r}; use a number {'of at least' if or_equal else 'above'} {bound:g}.")


def signal_name(number: int) -> str:
    """Return the name of a signal that ended a process; real-time signals have none, and keep their number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
