"""What each kernel of a piece does: by its name, by the operator that called it, and by the section of that call."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labkit.measure.trace.classes import Known, computes, of_convolutions_matrix_product, of_kernel, of_operator
from labkit.measure.trace.events import Events, Integers, Mask
from labkit.measure.trace.found import Label
from labkit.measure.trace.names import short_name
from labkit.measure.trace.pieces import Cut, Sections
from labkit.measure.trace.spans import innermost
from labkit.records.traced import Algorithm, KernelClass

# What a section says of kernels that alone say little: an addition in the optimiser's step is the optimiser's.
OF_SECTION: dict[str, KernelClass] = {"load": "loader", "loss": "loss", "optimiser": "optimiser"}
UNSPECIFIC: tuple[KernelClass | None, ...] = ("element_wise", "layout", "reduction", None)


@dataclass(frozen=True)
class Kernels:
    """The kernels of a piece, and for each of them what it does."""

    index: Integers  # among the events
    labels: list[Label]
    section: Integers  # in which it was launched; -1 outside of all
    collective: Mask
    max_pool_backward: Mask
    broadcast: Mask


def label_kernels(piece: Cut, sections: Sections) -> Kernels:
    """All kernels of a piece, in the order of its events."""
    events = piece.events
    index = np.flatnonzero(events.are("kernel"))
    calls = piece.launched_by[index]
    section = np.where(calls >= 0, sections.at(events.began_s[calls]), -1) if len(calls) else calls
    by_name = [of_kernel(name) for name in events.names]
    known = [by_name[number] for number in events.name[index].tolist()]
    _ask_operators(known, piece, index)
    labels: list[Label] = []
    for what, number, where in zip(known, events.name[index].tolist(), section.tolist(), strict=True):
        kind = of_section(what.kind, sections.names[where] if where >= 0 else "")
        labels.append((short_name(events.names[number]), kind, what.algorithm))
    return Kernels(
        index,
        labels,
        section,
        collective=np.array([one.kind == "collective" for one in known], dtype=bool),
        max_pool_backward=np.array([one.max_pool_backward for one in known], dtype=bool),
        broadcast=np.array([one.broadcast for one in known], dtype=bool),
    )


def of_section(kind: KernelClass | None, section: str) -> KernelClass:
    """The class of something in a section; `other` where nothing says what it does."""
    if kind in UNSPECIFIC and section in OF_SECTION:
        return OF_SECTION[section]
    return kind or "other"


def _ask_operators(known: list[Known], piece: Cut, index: Integers) -> None:
    """Ask the operators that called what no rule knows, and whether a matrix product is a convolution's."""
    events = piece.events
    unclear = [at for at, one in enumerate(known) if one.kind in (None, "matrix_product")]
    operators = computing(events)
    if not unclear or not len(operators):
        return
    calls = piece.launched_by[index]
    launched = np.flatnonzero(calls >= 0)
    callers = np.full(len(index), -1, dtype=np.int64)
    callers[launched] = innermost(
        events.began_s[operators],
        events.ended_s[operators],
        events.stream[operators],
        events.began_s[calls[launched]],
        events.stream[calls[launched]],
    )
    names = [events.names[number] for number in events.name[index].tolist()]
    siblings: dict[int, list[int]] = {}  # the kernels of a call of an operator, as they were launched
    for at in np.argsort(events.began_s[calls], kind="stable").tolist():
        siblings.setdefault(int(callers[at]), []).append(at)
    multiplies = [one.kind == "matrix_product" for one in known]
    for at in unclear:
        caller = int(callers[at])
        if caller < 0:
            continue
        said = of_operator(events.names[events.name[operators[caller]]])
        if said.kind == "convolution":
            algorithm: Algorithm = "library"
            if known[at].kind:
                sooner = siblings[caller][: siblings[caller].index(at)]
                before = next((names[one] for one in reversed(sooner) if not multiplies[one]), "")
                algorithm = of_convolutions_matrix_product(names[at], before)
            known[at] = Known("convolution", algorithm)
        elif known[at].kind is None:
            known[at] = said


def computing(events: Events) -> Integers:
    """The operators that compute; those of autograd and of groups of processes only have others do it."""
    fits = np.array([computes(name) for name in events.names], dtype=bool)
    return np.flatnonzero(events.are("operator") & fits[events.name]) if len(events) else np.zeros(0, dtype=np.int64)
