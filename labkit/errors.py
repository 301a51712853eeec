"""What labkit says when it cannot go on: one sentence on what is wrong, what is valid, and what to do next."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LabkitError(Exception):
    """Something went wrong that is not the user's mistake; `labkit` exits with code 1."""

    exit_code = 1


class UserError(LabkitError):
    """A mistake in what the user gave (a name, a path, a file); `labkit` exits with code 2 and shows no traceback."""

    exit_code = 2


class DataError(UserError):
    """An image archive or data folder that cannot be used as it is."""


class Unsupported(LabkitError):  # noqa: N818 - it is the name of a record's status
    """A trial that this device, build or package set cannot run; it becomes a row with this reason, never a number."""


class GateError(LabkitError):
    """A trial whose results are wrong (a non-finite loss, a wrong shape): it is not timed."""


def nearest_first(given: str, valid: Iterable[str]) -> list[str]:
    """All of `valid`, the names most like `given` first (ties alphabetically)."""
    return sorted(valid, key=lambda name: (-difflib.SequenceMatcher(None, given.lower(), name.lower()).ratio(), name))


def unknown(what: str, given: str, valid: Iterable[str], *, hint: str = "") -> UserError:
    """The error for a name that is not one of `valid`: it lists the valid ones, nearest first."""
    names = ", ".join(nearest_first(given, valid))
    return UserError(f"unknown {what} {given!r}; valid: {names}." + (f" {hint}" if hint else ""))


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether memory did not suffice. PyTorch has a type for it on CUDA, and only a message on the CPU; TensorFlow has
    a type, and XLA a word.

    One that breaks off the capture of a graph comes as that failure's context.
    """
    while error is not None:
        if type(error).__name__ in ("OutOfMemoryError", "ResourceExhaustedError"):
            return True
        if "can't allocate memory" in str(error) or "RESOURCE_EXHAUSTED" in str(error):
            return True
        error = error.__context__
    return False
