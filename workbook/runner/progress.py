"""Progress of a measurement: a bar in JupyterLab or on a terminal, and a line every half minute elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any

LINE_EVERY_S = 30.0


class Progress:
    """Progress over `total` (trial, pass) pairs, of which `done` were recorded before. `heading` begins each line."""

    def __init__(self, heading: str, total: int, done: int) -> None:
        self._total, self._done = total, done
        self._printed_s = time.monotonic()
        self._shown: tuple[str, float, float] | None = None  # the step, the seconds that remained, and when
        self._bar: Any = None
        # A closed stderr is None. A report imports ipykernel to render pages, so only the stream tells a notebook.
        in_notebook = type(sys.stderr).__module__ == "ipykernel.iostream"
        if in_notebook or (sys.stderr and sys.stderr.isatty()):
            from tqdm import tqdm  # the text bar: the widget needs ipywidgets, and shows nothing in a page

            form = "{desc}: {n_fmt}/{total_fmt} |{bar:20}| {postfix}"
            self._bar = tqdm(total=total, initial=done, desc=heading, unit="trial", leave=False, bar_format=form)

    def show(self, what: str, remaining_s: float) -> None:
        """Show the present step (`what`) and the estimated seconds that remain."""
        self._shown = what, remaining_s, time.monotonic()
        self._write(f"{what}, about {duration(remaining_s)} left")

    def go_on(self) -> None:
        """Show how long the present step takes, if nothing else was shown: a compilation tells no share of its own."""
        if self._shown and (since_s := time.monotonic() - self._shown[2]) > LINE_EVERY_S:
            what, left_s = self._shown[0], self._shown[1] - since_s
            left = f"about {duration(left_s)} left" if left_s > 0 else "longer than planned"
            self._write(f"{what} for {duration(since_s)}, {left}")

    def _write(self, left: str) -> None:
        if self._bar is not None:
            self._bar.set_postfix_str(left)
        elif time.monotonic() - self._printed_s > LINE_EVERY_S:
            self._printed_s = time.monotonic()
            print(f"      {self._done}/{self._total} configurations, {left}", flush=True)  # noqa: T201 - for a log

    def say(self, text: str) -> None:
        """Print a line of text, above a bar."""
        if self._bar is not None:
            self._bar.write(text)
        else:
            print(f"      {text}", flush=True)  # noqa: T201 - for a log

    def repeat(self, number: int) -> None:
        """Count further runs of recorded (trial, pass) pairs."""
        self._total += number
        if self._bar is not None:
            self._bar.total = self._total

    def finished_one(self) -> None:
        """Count a recorded (trial, pass) pair."""
        self._shown = None
        self._done += 1
        if self._bar is not None:
            self._bar.update()

    def close(self) -> None:
        """End the bar."""
        if self._bar is not None:
            self._bar.close()


def duration(seconds: float) -> str:
    """Return seconds as text: `40 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


DOUBT_S = 60.0  # weight of the plan beside the finished trials: a slow compilation says little about later trials


class Stopwatch:
    """A correction of the estimates by the trials finished so far."""

    def __init__(self) -> None:
        self._expected_s = self._actual_s = 0.0

    def add(self, expected_s: float, actual_s: float) -> None:
        """Add a finished trial's expected and actual seconds."""
        self._expected_s += expected_s
        self._actual_s += actual_s

    def correct(self, expected_s: float) -> float:
        """Return `expected_s`, scaled by the ratio of actual to expected seconds so far."""
        return expected_s * (self._actual_s + DOUBT_S) / (self._expected_s + DOUBT_S)
