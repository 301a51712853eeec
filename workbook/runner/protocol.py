"""The protocol between the runner and the processes that it starts: the settings of a pass, and events."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from workbook.hardware.profile import Timing
from workbook.paths import ROOT
from workbook.trials.trial import OF_NETWORKS, Trial

# A matrix product, a copy or a message is steady at once, so a share of the timed seconds of image trials is enough.
CEILING_SHARE = 0.25
SHORT_TRACE_PASSES = 3  # with a short trace of trials that ask for no other: passes agree within a percent
BY_PYTORCH = ("torch", "keras-torch")  # frameworks whose steps PyTorch's profiler sees


class Pass(BaseModel, frozen=True):
    """The settings that all processes of a pass share."""

    number: int
    timing: Timing
    gap_seed: int = 0
    short: bool = False  # the trials run without what they ask for beside their timed blocks
    weights: Path | None = None  # the folder of trained weights; None for the one in the cache
    network: str | None = None  # the file or name of the network that the user brings
    traces: Path | None = None  # the folder for traces; None if no traces are kept

    def has_short_trace(self, trial: Trial) -> bool:
        """Return whether a few steps are traced for the device's own time: of a network on one GPU, under PyTorch."""
        on_one_gpu = trial.device == "cuda" and trial.devices == 1
        of_network = trial.workload in OF_NETWORKS and trial.framework in BY_PYTORCH
        return on_one_gpu and of_network and not self.short and self.number <= SHORT_TRACE_PASSES

    def traces_gpu(self, trial: Trial) -> bool:
        """Return whether a trial's process traces a GPU, and launches kernels more slowly ever after."""
        is_asked_for = trial.device == "cuda" and bool(trial.traced_iterations) and not self.short
        return is_asked_for or self.has_short_trace(trial)


class Events:
    """The events of a process, written to a copy of its stdout as lines of JSON. All other output goes to stderr."""

    _last_s = 0.0

    def __init__(self) -> None:
        self._fd = os.dup(1)
        os.dup2(2, 1)

    def send(self, **event: Any) -> None:
        """Send an event to the runner."""
        data = (json.dumps(event, allow_nan=False) + "\n").encode()
        while data:
            data = data[os.write(self._fd, data) :]

    def progress(self, phase: str, share: float) -> None:
        """Send a trial's phase and the share of it that is done, 0 to 1, at most twice a second."""
        now = time.monotonic()
        if now - self._last_s >= 0.5:
            self._last_s = now
            self.send(event="progress", phase=phase, share=share)


def startup_s(job: dict[str, Any]) -> float:
    """Return the seconds since the runner spawned this process. Processes of a machine share the monotonic clock."""
    return time.monotonic() - float(job["spawned_s"])


def without_paths(text: str) -> str:
    """Return a text without this machine's folders, because records are published."""
    for folder, name in ((str(ROOT), "."), (sys.prefix, "(environment)"), (str(Path.home()), "~")):
        text = text.replace(folder, name)
    return text.encode(errors="replace").decode()  # a file name may hold bytes that are no text
