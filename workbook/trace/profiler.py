"""Trace a step in pieces: run PyTorch's profiler around a few steps, analyse and discard its file, repeat.

    start | a step that only warms the profiler up | steps, one synchronise | stop | file | analyse | next piece

A profiler keeps all events until it is stopped, and its file is read as a whole. Pieces of a few steps bound the
memory, whatever the network and the length of the trace. A profiler slows a step down, so no traced step is timed.
"""

from __future__ import annotations

import gc
import gzip
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Literal, Protocol

from labkit.files import temporary_folder
from labkit.timing.clocks import Clock, Step
from workbook.trace.events import SECTION, STEP, UntracedError

WARM_UP_STEPS = 1  # not recorded after the profiler's start: its first events cost milliseconds
TRACE_LIMIT_S = 30.0  # of a trace whose trial names no limit
# Steps of one piece. The first piece is small, since the length of a step under the profiler is not known yet. Later
# pieces spread the profiler's start and stop over more steps.
FIRST_STEPS, MOST_STEPS = 5, 20

OnShare = Callable[[float], None]


class Takes(Protocol):
    """Receiver of the files of a trace's pieces."""

    def add(self, path: Path, /, *, steps: int) -> object:
        """Analyse a piece of `steps` steps. Raise UntracedError if the file does not hold these steps."""
        ...


class Taken:
    """Progress of a trace: `steps` of `asked_for` steps were traced, in `elapsed_s` seconds under the profiler.

    `analysed_s` are the seconds that the analysis of all pieces took.
    """

    def __init__(self, asked_for: int) -> None:
        self.asked_for, self.steps, self.elapsed_s, self.analysed_s = asked_for, 0, 0.0, 0.0
        self.notes: list[str] = []


def take_trace(
    step: Step,
    clock: Clock,
    analysis: Takes,
    *,
    asked_for: int,
    limit_s: float = TRACE_LIMIT_S,
    step_s: float = 0.0,
    on_gpu: bool,
    after_piece: Callable[[], object] = lambda: None,
    on_share: OnShare = lambda _share: None,
    keep: Path | None = None,
) -> Taken:
    """Trace `asked_for` steps, fewer if a limit ends the trace, and give each piece to `analysis`. Return the progress.

    `limit_s` bounds both the profiler's time, from its start until its file is written, and the analysis time. `step_s`
    is the length of a step without a profiler, so that not even the first piece is much longer than the limit.
    `after_piece` is called between pieces (to read the losses, say). The last piece's file is kept as `keep`,
    compressed, even if it holds nothing. Raise UntracedError if the profiler fails or the first piece holds nothing. An
    error of a step stops the profiler and is raised.
    """
    from torch import profiler

    if lacking := [kind.name for kind in _activities(on_gpu=on_gpu) if kind not in profiler.supported_activities()]:
        raise UntracedError(f"this build of PyTorch traces no {lacking[0]} activity")
    taken = Taken(asked_for)
    with temporary_folder() as folder, _quiet_collector():
        file = folder / "piece.json"
        while taken.steps < asked_for:
            most = MOST_STEPS if taken.steps else FIRST_STEPS
            in_time = int((limit_s - taken.elapsed_s) / step_s) - WARM_UP_STEPS if step_s else most
            steps = max(1, min(most, asked_for - taken.steps, in_time))
            began = clock.now_s()
            step_s = _take_piece(step, clock, steps, file, on_gpu=on_gpu) / steps
            taken.elapsed_s += clock.now_s() - began
            after_piece()
            began = clock.now_s()
            try:
                analysis.add(file, steps=steps)
            except UntracedError as error:
                if keep is not None and file.exists():  # the kept file shows what is wrong
                    taken.notes += _keep(file, keep)
                if not taken.steps:
                    raise
                taken.notes.append(f"after {taken.steps} of {asked_for} steps the trace ended: {error}")
                break
            taken.steps += steps
            gc.collect(1)  # this piece's garbage only: older objects would take a tenth of a second
            taken.analysed_s += clock.now_s() - began
            longest_s = max(taken.elapsed_s, taken.analysed_s)
            over = longest_s >= limit_s
            if keep is not None and (over or taken.steps >= asked_for):
                taken.notes += _keep(file, keep)
            file.unlink()
            on_share(min(1.0, max(taken.steps / asked_for, longest_s / limit_s)))
            if over and taken.steps < asked_for:
                taken.notes.append(f"{taken.steps} of {asked_for} steps were traced, then {limit_s:g} s were over")
                break
    return taken


def _activities(*, on_gpu: bool) -> list[Any]:
    from torch.profiler import ProfilerActivity

    return [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]


def _take_piece(step: Step, clock: Clock, steps: int, file: Path, *, on_gpu: bool) -> float:
    """Trace `steps` steps, write the profiler's events to `file`, and return the seconds that the steps took."""
    from torch import profiler

    def marked() -> None:
        with profiler.record_function(STEP):
            step()

    tracer = profiler.profile(
        activities=_activities(on_gpu=on_gpu),
        schedule=profiler.schedule(wait=0, warmup=1, active=1, repeat=1),
    )
    try:
        with _told("start"):
            tracer.start()
        clock.time_block(marked, WARM_UP_STEPS)
        with _told("begin to record"):
            tracer.step()
        elapsed_s, _ = clock.time_block(marked, steps)
    except BaseException:
        with suppress(Exception):
            tracer.stop()
        raise
    with _told("stop"):
        tracer.stop()
    with _told("write what it saw"):
        tracer.export_chrome_trace(str(file))
    return elapsed_s


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Turn errors of the profiler into UntracedError, since they are no failure of the trial."""
    try:
        yield
    except Exception as error:
        raise UntracedError(f"the profiler did not {what}: {type(error).__name__}: {error}") from error


@contextmanager
def _quiet_collector() -> Iterator[None]:
    """Disable Python's collector, which a file's millions of small objects would start in the middle of a step."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _keep(file: Path, path: Path) -> list[str]:
    """Keep a compressed copy of `file` at `path`. Return a note if that fails, which is no failure of the trial."""
    half = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with file.open("rb") as plain, gzip.open(half, "wb", compresslevel=6) as packed:
            shutil.copyfileobj(plain, packed)
        half.replace(path)
    except OSError as error:
        with suppress(OSError):
            half.unlink()
        return [f"the trace's file could not be kept: {error.strerror}"]
    return []


Name = Literal[
    "load", "forward", "loss", "backward", "optimiser"
]  # as `workbook.records.traced.SECTIONS`: a test checks
_NOTHING: AbstractContextManager[Any] = nullcontext()
_marking = False


def section(name: Name) -> AbstractContextManager[Any]:
    """Return a context that assigns the host's work to that part of the step. A step may enter a part several times."""
    if not _marking:
        return _NOTHING
    from torch.profiler import record_function

    mark: AbstractContextManager[Any] = record_function(SECTION + name)
    return mark


@contextmanager
def marked() -> Iterator[None]:
    """Mark the sections of steps within this context."""
    global _marking
    before, _marking = _marking, True
    try:
        yield
    finally:
        _marking = before
