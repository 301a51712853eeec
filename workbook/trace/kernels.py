"""Classes of the kernels of a piece, by the kernel's name, the calling operator, and the section of the launch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workbook.records.traced import Algorithm, KernelClass
from workbook.trace.classes import COMPUTING, Class, of_convolutions_matrix_product, of_kernel, of_operator, short_name
from workbook.trace.events import Events, Integers, Mask
from workbook.trace.pieces import Cut, Sections
from workbook.trace.spans import innermost
from workbook.trace.sums import Label

# Classes that a section gives to kernels with unspecific names: an addition in the optimiser's step is `optimiser`.
OF_SECTION: dict[str, KernelClass] = {"load": "loader", "loss": "loss", "optimiser": "optimiser"}
UNSPECIFIC: tuple[KernelClass | None, ...] = ("element_wise", "layout", "reduction", None)


@dataclass(frozen=True)
class Kernels:
    """The kernels of a piece, with the label and the section of each."""

    index: Integers  # of the kernels among the events
    labels: list[Label]
    section: Integers  # number of the section of each kernel's launch, -1 outside all sections
    collective: Mask
    max_pool_backward: Mask
    broadcast: Mask


def label_kernels(piece: Cut, sections: Sections) -> Kernels:
    """Return all kernels of a piece with their labels, in the order of the events."""
    events = piece.events
    index = np.flatnonzero(events.are("kernel"))
    calls = piece.launched_by[index]
    section = np.where(calls >= 0, sections.at(events.began_s[calls]), -1) if len(calls) else calls
    by_name = [of_kernel(name) for name in events.names]
    classes = [by_name[number] for number in events.name[index].tolist()]
    _ask_operators(classes, piece, index)
    labels: list[Label] = []
    for kernel, number, where in zip(classes, events.name[index].tolist(), section.tolist(), strict=True):
        kind = of_section(kernel.kind, sections.names[where] if where >= 0 else "")
        labels.append((short_name(events.names[number]), kind, kernel.algorithm))
    return Kernels(
        index,
        labels,
        section,
        collective=np.array([kernel.kind == "collective" for kernel in classes], dtype=bool),
        max_pool_backward=np.array([kernel.max_pool_backward for kernel in classes], dtype=bool),
        broadcast=np.array([kernel.broadcast for kernel in classes], dtype=bool),
    )


def of_section(kind: KernelClass | None, section: str) -> KernelClass:
    """Return the class of a kernel or operator in a section, `other` if neither its name nor the section tells."""
    if kind in UNSPECIFIC and section in OF_SECTION:
        return OF_SECTION[section]
    return kind or "other"


def _ask_operators(classes: list[Class], piece: Cut, index: Integers) -> None:
    """Replace in place, by the calling operators, unknown classes and matrix products that belong to convolutions."""
    events = piece.events
    unclear = [at for at, kernel in enumerate(classes) if kernel.kind in (None, "matrix_product")]
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
    siblings: dict[int, list[int]] = {}  # kernels of each operator call, in order of launch
    for at in np.argsort(events.began_s[calls], kind="stable").tolist():
        siblings.setdefault(int(callers[at]), []).append(at)
    multiplies = [kernel.kind == "matrix_product" for kernel in classes]
    for at in unclear:
        caller = int(callers[at])
        if caller < 0:
            continue
        operator = of_operator(events.names[events.name[operators[caller]]])
        if operator.kind == "convolution":
            algorithm: Algorithm = "library"
            if classes[at].kind:
                sooner = siblings[caller][: siblings[caller].index(at)]
                before = next((names[sibling] for sibling in reversed(sooner) if not multiplies[sibling]), "")
                algorithm = of_convolutions_matrix_product(names[at], before)
            classes[at] = Class("convolution", algorithm)
        elif classes[at].kind is None:
            classes[at] = operator


def computing(events: Events) -> Integers:
    """Return the indices of operators that compute. Autograd's and process groups' only start other work."""
    fits = np.array([name.startswith(COMPUTING) for name in events.names], dtype=bool)
    return np.flatnonzero(events.are("operator") & fits[events.name]) if len(events) else np.zeros(0, dtype=np.int64)
