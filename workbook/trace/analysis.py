"""Analysis of a trace in pieces: each piece is analysed, added to sums, and can be discarded. The result is a `Traced`.

The memory needed is that of one piece, whatever the number of pieces.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

from workbook.records.traced import RULES, SECTIONS, Memory, Piece, Traced
from workbook.trace.activity import activity_on_device, activity_on_host
from workbook.trace.classes import class_of_call
from workbook.trace.events import Events, UntracedError
from workbook.trace.files import read_trace
from workbook.trace.kernels import computing
from workbook.trace.pieces import Cut, cut
from workbook.trace.sums import LONGEST, NUMBERS, Sums

Of = Literal["kernels", "operators"]
GAPS = ("launch_gap_s", "queue_gap_s", "edge_gap_s")  # of a GPU, which waits for the host


class Analysis:
    """Sums over the pieces of a trace. `of` names what computes; without `of`, the first piece decides."""

    def __init__(self, of: Of | None = None) -> None:
        self._of: Of | None = of
        self._sums = Sums()
        self._pieces: list[Piece] = []

    @property
    def steps(self) -> int:
        """Number of steps analysed so far."""
        return self._sums.steps

    def add(self, trace: Events | Path | str, *, steps: int | None = None) -> None:
        """Analyse one more piece, given as a file or as events, and add it to the sums.

        Raise UntracedError, with the sums unchanged, if it holds nothing to analyse or not `steps` steps (if given).
        """
        piece = cut(trace if isinstance(trace, Events) else read_trace(trace), steps)
        of = self._of or what_computes(piece)
        if of == "kernels" and not piece.events.are("kernel").any():
            raise UntracedError("the profiler saw no kernels in the steps: the driver may not let users trace kernels")
        if of == "operators" and not len(computing(piece.events)):
            raise UntracedError("the profiler saw no operator of PyTorch in the steps")
        sums = activity_on_device(piece) if of == "kernels" else activity_on_host(piece)
        self._of = of
        self._sums.add(sums)
        self._pieces.append(
            Piece(
                steps=sums.steps,
                elapsed_s=sums.elapsed_s,
                busy_s=sums.busy_s,
                kernel_s={kind: total.seconds for kind, total in sums.kernel_classes().items()},
            )
        )

    def traced(self, *, asked_for: int | None = None, steps_before: int = 0, memory: Memory | None = None) -> Traced:
        """Return the sums of all pieces as a record's `Traced`. Raise UntracedError if no piece was added."""
        if self._of is None or not self._pieces:
            raise UntracedError("no step was traced")
        sums, on_gpu = self._sums, self._of == "kernels"
        order = {name: number for number, name in enumerate(SECTIONS)}
        sections = sorted(sums.sections.items(), key=lambda item: order.get(item[0], len(order)))
        numbers = {name: getattr(sums, name) for name in NUMBERS}
        if not on_gpu:
            numbers |= dict.fromkeys(GAPS)
        return Traced(
            **numbers,
            of=self._of,
            rules=RULES,
            asked_for=asked_for or sums.steps,
            steps_before=steps_before,
            devices=max(sums.devices, 1),
            pieces=self._pieces,
            kernels=sums.kernel_classes(),
            algorithms=sums.algorithms(),
            longest=sums.longest(),
            convolution_kernel=sums.convolution_kernel(),
            copies=sums.copies_by_direction(),
            fills=sums.fills.totals().get("fill"),
            calls=sums.calls.totals_by(class_of_call),
            calls_by_name=dict(sums.calls.items()[:LONGEST]),
            sections={name: section.section() for name, section in sections},
            memory=memory,
            notes=list(sums.notes),
        )


def analyse(file: Path | str) -> Traced:
    """Return the analysis of a file. Raise UntracedError, with the file's name, if it holds nothing to analyse."""
    analysis = Analysis()
    try:
        analysis.add(file)
    except UntracedError as error:
        name = Path(file).name
        raise UntracedError(str(error) if name in str(error) else f"{name} can't be analysed: {error}.") from None
    return analysis.traced()


def what_computes(piece: Cut) -> Of:
    """Return "kernels" if a piece holds any, else "operators". Raise UntracedError for launches without kernels."""
    events = piece.events
    if events.are("kernel").any():
        return "kernels"
    calls = np.unique(events.name[events.are("call")]).tolist()
    if any(class_of_call(events.names[number]) == "launch" for number in calls):
        raise UntracedError(
            "the trace holds launches of kernels but no kernels: it was cut off before them, or the driver may not let "
            "users trace kernels; take the trace again"
        )
    return "operators"
