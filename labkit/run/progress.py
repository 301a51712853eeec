"""Progress of a measurement: a bar in JupyterLab or a terminal, and a state file for `labkit report`.

A headless notebook's output appears only when its cell ends. So the runner writes its state to the file that
LABKIT_PROGRESS names, and the command line reads the file and shows the bar.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

VARIABLE = "LABKIT_PROGRESS"


@dataclass(frozen=True)
class State:
    """The state of a study: (trial, pass) pairs done and in total, the present step, and an estimate of the rest."""

    study: str
    done: int
    total: int
    what: str
    remaining_s: float


class Progress:
    """Progress of the runner: a state file if LABKIT_PROGRESS names one, else a bar in JupyterLab or a terminal."""

    def __init__(self, study: str, total: int, done: int) -> None:
        self._study, self._total, self._done = study, total, done
        self._file = Path(path) if (path := os.environ.get(VARIABLE)) else None
        self._bar: Any = None
        if self._file is None and (sys.stderr.isatty() or _in_jupyterlab()):
            from tqdm import tqdm  # the text bar: the widget needs ipywidgets, and shows nothing in a page

            self._bar = tqdm(total=total, initial=done, desc=study, unit="trial")

    def show(self, what: str, remaining_s: float) -> None:
        """Show the present step (`what`) and the estimated seconds that remain."""
        if self._file is not None:
            write_state(self._file, State(self._study, self._done, self._total, what, remaining_s))
        elif self._bar is not None:
            self._bar.set_postfix_str(f"{what}, about {duration(remaining_s)} left")

    def finished_one(self) -> None:
        """Count a recorded (trial, pass) pair."""
        self._done += 1
        if self._bar is not None:
            self._bar.update()

    def close(self) -> None:
        """Close the bar and leave it on the screen."""
        if self._bar is not None:
            self._bar.close()


def write_state(path: Path, state: State) -> None:
    """Replace the state file atomically. A failure to write is ignored."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(asdict(state)), encoding="utf-8")
        temporary.replace(path)
    except OSError:
        pass  # a full disk must not end a measurement


def read_state(path: Path) -> State | None:
    """Return the state last written; None if there is none or it is unreadable."""
    try:
        return State(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def duration(seconds: float) -> str:
    """Return seconds as text: `40 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _in_jupyterlab() -> bool:
    """Return whether this is an interactive kernel, which `labkit report` did not start."""
    return "ipykernel" in sys.modules and VARIABLE not in os.environ


DOUBT_S = 60.0  # weight of the plan beside the finished trials: a slow compilation says little about later trials


class Stopwatch:
    """A correction of the estimates by the trials finished so far."""

    def __init__(self) -> None:
        self._expected_s = self._actual_s = 0.0
        self._began = time.monotonic()

    def add(self, expected_s: float, actual_s: float) -> None:
        """Add a finished trial's expected and actual seconds."""
        self._expected_s += expected_s
        self._actual_s += actual_s

    def correct(self, expected_s: float) -> float:
        """Return `expected_s`, scaled by the ratio of actual to expected seconds so far."""
        return expected_s * (self._actual_s + DOUBT_S) / (self._expected_s + DOUBT_S)
