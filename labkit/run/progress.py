"""What, how far, how long still: a bar in JupyterLab, a state file for `labkit report` when a notebook runs headless.

A headless notebook's output is seen only when its cell ends, so the runner writes its state to the file that
LABKIT_PROGRESS names, and the command line, which reads it, shows the bar.
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
    """Where a study stands. `remaining_s` is an estimate."""

    study: str
    done: int
    total: int
    what: str
    remaining_s: float


class Progress:
    """Told by the runner; shows nothing when there is nobody to show it to."""

    def __init__(self, study: str, total: int, done: int) -> None:
        self._study, self._total, self._done = study, total, done
        self._file = Path(path) if (path := os.environ.get(VARIABLE)) else None
        self._bar: Any = None
        if self._file is None and (sys.stderr.isatty() or _in_jupyterlab()):
            from tqdm import tqdm  # plain text: the widget needs ipywidgets, and shows nothing in a page

            self._bar = tqdm(total=total, initial=done, desc=study, unit="trial")

    def show(self, what: str, remaining_s: float) -> None:
        """The trial that runs now and how far it is."""
        if self._file is not None:
            write_state(self._file, State(self._study, self._done, self._total, what, remaining_s))
        elif self._bar is not None:
            self._bar.set_postfix_str(f"{what}, about {duration(remaining_s)} left")

    def finished_one(self) -> None:
        """One (trial, pass) pair is recorded."""
        self._done += 1
        if self._bar is not None:
            self._bar.update()

    def close(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.close()


def write_state(path: Path, state: State) -> None:
    """Replace the state file whole."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(asdict(state)), encoding="utf-8")
        temporary.replace(path)
    except OSError:
        pass  # progress is a courtesy: a full disk must not end a measurement here


def read_state(path: Path) -> State | None:
    """The state last written; None before the first."""
    try:
        return State(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def duration(seconds: float) -> str:
    """Seconds for people: `40 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _in_jupyterlab() -> bool:
    """In a kernel that a person watches: one that `labkit report` did not start."""
    return "ipykernel" in sys.modules and VARIABLE not in os.environ


DOUBT_S = 60.0  # what the plan weighs beside the trials done: one slow compilation says little of those to come


class Stopwatch:
    """How much longer the estimates should be than they were, from the trials done so far."""

    def __init__(self) -> None:
        self._expected_s = self._actual_s = 0.0
        self._began = time.monotonic()

    def add(self, expected_s: float, actual_s: float) -> None:
        """A trial that was expected to take this long took that long."""
        self._expected_s += expected_s
        self._actual_s += actual_s

    def correct(self, expected_s: float) -> float:
        """An expectation, corrected by what the finished trials taught."""
        return expected_s * (self._actual_s + DOUBT_S) / (self._expected_s + DOUBT_S)
