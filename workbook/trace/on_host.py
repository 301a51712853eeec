"""Analysis of a piece of a CPU's trace: PyTorch's operators compute, each while no operator within it runs."""

from __future__ import annotations

from workbook.trace.classes import of_operator
from workbook.trace.kernels import computing, of_section
from workbook.trace.pieces import Cut, Sections
from workbook.trace.spans import Spans, own_s, repeated_s, within
from workbook.trace.sums import InSection, Sums

GLOO = "gloo:"  # prefix of ranges around Gloo's work in its own threads


def look(piece: Cut) -> Sums:
    """Return the sums of the operators of a piece."""
    events = piece.events
    sections = Sections.of(events)
    index = computing(events)
    begin, end = events.began_s[index], events.ended_s[index]
    parents = within(begin, end, events.stream[index])
    own = own_s(begin, end, parents)
    busy = Spans.union(begin, end)
    top = parents < 0
    exchanging = events.are("range") & events.named(GLOO)
    exchange = Spans.union(events.began_s[exchanging], events.ended_s[exchanging])
    sums = Sums(
        steps=piece.steps,
        elapsed_s=piece.elapsed_s,
        busy_s=busy.length_s,
        active_s=busy.length_s,
        overlapping_s=repeated_s(begin[top], end[top]),
        exchange_s=exchange.length_s,
        exposed_exchange_s=max(exchange.length_s - exchange.shared_s(busy), 0.0),
        devices=1,
        notes=dict.fromkeys(piece.notes),
    )
    where = sections.at(begin)
    classes = [of_operator(name) for name in events.names]
    for number, seconds, section in zip(events.name[index].tolist(), own.tolist(), where.tolist(), strict=True):
        kind = of_section(classes[number].kind, sections.names[section] if section >= 0 else "")
        sums.kernels.put((events.names[number], kind, classes[number].algorithm), seconds)
        sums.max_pool_backward_s += seconds * classes[number].max_pool_backward
    for number, name in enumerate(sections.names):
        inside = where == number
        sums.sections[name] = InSection(
            host_s=float((sections.end - sections.begin)[sections.number == number].sum()),
            kernel_s=float(own[inside].sum()),
            busy_s=Spans.union(begin[inside], end[inside]).length_s,
        )
    return sums
