"""Take a trace of a step in pieces: PyTorch's profiler around a few steps, its file analysed and forgotten, again.

    start | a step that only warms the profiler up | steps, one synchronise | stop | file | analyse | next piece

A profiler keeps all that it saw until it is stopped, and its file is read as a whole: a few steps at a time bound the
memory whatever the network and however long the trace. A profiler slows a step down, so no traced step is a timed one.
"""

from __future__ import annotations

import gc
import gzip
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from labkit.measure.clocks import Clock, Step
from labkit.measure.trace.events import STEP, UntracedError

WARM_UP_STEPS = 1  # between starting the profiler and believing it: its first events cost milliseconds
TRACE_LIMIT_S = 30.0  # of a trace whose trial names no other
# Of one piece. The first is small, as nobody knows yet how long a step under the profiler takes; later ones spread the
# profiler's start and stop over more steps.
FIRST_STEPS, MOST_STEPS = 5, 20

OnShare = Callable[[float], None]


class Takes(Protocol):
    """What the files of a trace's pieces are given to."""

    def add(self, path: Path, /, *, steps: int) -> object:
        """Take in a piece of so many steps; UntracedError where the file says nothing of them."""
        ...


class Taken:
    """How far a trace got: `steps` that were traced, of those `asked_for`, in `elapsed_s` under the profiler.

    `analysed_s` is what the analysis took of all pieces.
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
    """Trace `asked_for` steps, fewer where the pieces have taken `limit_s`, and give each piece to `analysis`.

    The limit is of the time that the profiler runs, from its start until its file is written, and of the analysis:
    whichever of the two comes to it first. `step_s` is how long a step lasts without a profiler, so that not even the
    first piece is much longer than the limit. `after_piece` is called between pieces (to read the losses, say). The
    last piece's file is kept as `keep`, compressed, also one that says nothing. UntracedError where the profiler can't
    do it; what a step raises is raised, and the profiler is stopped.
    """
    _check_activities(on_gpu=on_gpu)
    taken = Taken(asked_for)
    with tempfile.TemporaryDirectory(prefix="labkit-trace-") as folder, _quiet_collector():
        file = Path(folder) / "piece.json"
        while taken.steps < asked_for:
            left_s = limit_s - taken.elapsed_s
            steps = _steps_of_piece(taken, left_s, step_s)
            began = clock.now_s()
            step_s = _take_piece(step, clock, steps, file, on_gpu=on_gpu) / steps
            taken.elapsed_s += clock.now_s() - began
            after_piece()
            began = clock.now_s()
            try:
                analysis.add(file, steps=steps)
            except UntracedError as error:
                if keep is not None and file.exists():  # whoever asked for it can see what is wrong with it
                    taken.notes += _keep(file, keep)
                if not taken.steps:
                    raise
                taken.notes.append(f"after {taken.steps} of {asked_for} steps the trace ended: {error}")
                break
            taken.steps += steps
            gc.collect(1)  # what this piece has left; all older objects would take a tenth of a second
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


def _steps_of_piece(taken: Taken, left_s: float, step_s: float) -> int:
    """How many steps the next piece has: no more than are asked for, nor than there is time for, but one."""
    most = MOST_STEPS if taken.steps else FIRST_STEPS
    in_time = int(left_s / step_s) - WARM_UP_STEPS if step_s else most
    return max(1, min(most, taken.asked_for - taken.steps, in_time))


def _check_activities(*, on_gpu: bool) -> None:
    from torch import profiler

    if lacking := [one.name for one in _activities(on_gpu=on_gpu) if one not in profiler.supported_activities()]:
        raise UntracedError(f"this build of PyTorch traces no {lacking[0]} activity")


def _activities(*, on_gpu: bool) -> list[Any]:
    from torch.profiler import ProfilerActivity

    return [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]


def _take_piece(step: Step, clock: Clock, steps: int, file: Path, *, on_gpu: bool) -> float:
    """Write what the profiler saw of so many steps into `file`: seconds that these took."""
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
    """Whatever the profiler raises is no failure of the trial."""
    try:
        yield
    except Exception as error:
        raise UntracedError(f"the profiler did not {what}: {type(error).__name__}: {error}") from error


@contextmanager
def _quiet_collector() -> Iterator[None]:
    """Without Python's collector, which a file's millions of small objects would wake in the middle of a step."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _keep(file: Path, path: Path) -> list[str]:
    """Keep a compressed copy; a sentence where it can't be kept, which is no failure of the trial."""
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
