"""Pieces of a trace in, `Traced` out: each piece is looked at, added to what is known, and can be forgotten.

Memory is that of one piece, whatever number of them there is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

from labkit.measure.trace import on_device, on_host
from labkit.measure.trace.calls import class_of_call
from labkit.measure.trace.events import Events, UntracedError
from labkit.measure.trace.found import LONGEST, NUMBERS, Found
from labkit.measure.trace.kernels import computing
from labkit.measure.trace.pieces import Cut, cut
from labkit.measure.trace.reading import read_trace
from labkit.records.traced import RULES, SECTIONS, Memory, Piece, Traced

Of = Literal["kernels", "operators"]
GAPS = ("launch_gap_s", "queue_gap_s", "edge_gap_s")  # of a device, which waits for a host


class Analysis:
    """What pieces of a trace say together. `of` is what computes; without it the first piece says so."""

    def __init__(self, of: Of | None = None) -> None:
        self._of: Of | None = of
        self._found = Found()
        self._pieces: list[Piece] = []

    @property
    def steps(self) -> int:
        """Steps that were looked at."""
        return self._found.steps

    def add(self, trace: Events | Path | str, *, steps: int | None = None) -> None:
        """Look at one more piece, a file or its events, which holds `steps` steps where that is given.

        UntracedError where it says nothing, or holds other steps; what was known before is still known then.
        """
        piece = cut(trace if isinstance(trace, Events) else read_trace(trace), steps)
        of = self._of or what_computes(piece)
        if of == "kernels" and not piece.events.are("kernel").any():
            raise UntracedError("the profiler saw no kernels in the steps: the driver may keep its tracing from users")
        if of == "operators" and not len(computing(piece.events)):
            raise UntracedError("the profiler saw no operator of PyTorch in the steps")
        found = on_device.look(piece) if of == "kernels" else on_host.look(piece)
        self._of = of
        self._found.add(found)
        self._pieces.append(
            Piece(
                steps=found.steps,
                elapsed_s=found.elapsed_s,
                busy_s=found.busy_s,
                kernel_s={kind: total.seconds for kind, total in found.kernel_classes().items()},
            )
        )

    def traced(self, *, asked_for: int | None = None, steps_before: int = 0, memory: Memory | None = None) -> Traced:
        """All pieces together; UntracedError without any."""
        if self._of is None or not self._pieces:
            raise UntracedError("no step was traced")
        found, on_gpu = self._found, self._of == "kernels"
        order = {name: number for number, name in enumerate(SECTIONS)}
        sections = sorted(found.sections.items(), key=lambda one: order.get(one[0], len(order)))
        numbers = {name: getattr(found, name) for name in NUMBERS}
        if not on_gpu:
            numbers |= dict.fromkeys(GAPS)
        return Traced(
            **numbers,
            of=self._of,
            rules=RULES,
            asked_for=asked_for or found.steps,
            steps_before=steps_before,
            devices=max(found.devices, 1),
            pieces=self._pieces,
            kernels=found.kernel_classes(),
            algorithms=found.algorithms(),
            longest=found.longest(),
            convolution_kernel=found.convolution_kernel(),
            copies=found.copies_by_direction(),
            fills=found.fills.totals().get("fill"),
            calls=found.calls.totals_by(class_of_call),
            calls_by_name=dict(found.calls.items()[:LONGEST]),
            sections={name: section.section() for name, section in sections},
            memory=memory,
            notes=list(found.notes),
        )


def analyse(file: Path | str) -> Traced:
    """What a file says. UntracedError where it says nothing, in a sentence that names it."""
    analysis = Analysis()
    try:
        analysis.add(file)
    except UntracedError as error:
        name = Path(file).name
        raise UntracedError(str(error) if name in str(error) else f"{name} says nothing of steps: {error}.") from None
    return analysis.traced()


def what_computes(piece: Cut) -> Of:
    """Whether a trace is of a GPU or of a CPU alone; UntracedError where it launches kernels and holds none."""
    events = piece.events
    if events.are("kernel").any():
        return "kernels"
    calls = np.unique(events.name[events.are("call")]).tolist()
    if any(class_of_call(events.names[number]) == "launch" for number in calls):
        raise UntracedError(
            "kernels were launched in it and none stands in it: it was cut off before them, or the driver keeps its "
            "tracing from users; take it again"
        )
    return "operators"
