"""Failures of trials, which become the status of their records."""

from __future__ import annotations

from typing import Literal

from labkit.errors import LabkitError

# Why a trial is unsupported. `never`: this device can never run it; `version`: these versions of the framework or of
# this code cannot; `here`: this machine in its present state cannot, so that every report tries it again.
Cause = Literal["never", "version", "here"]


class Unsupported(LabkitError):  # noqa: N818 - it is the name of a record's status
    """A trial that cannot run: its record has the reason, its cause and no number."""

    def __init__(self, reason: str, cause: Cause = "here") -> None:
        super().__init__(reason)
        self.cause = cause


class GateError(LabkitError):
    """A trial that fails the correctness check (a non-finite loss, a wrong shape), so that it is not timed."""


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
