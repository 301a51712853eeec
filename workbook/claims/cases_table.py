"""The cases of a test as an HTML table: each effect as a bar beside its bound, with links to its records."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pandas as pd
from markupsafe import Markup

from workbook.claims.verdict import MARKS, Case, Judged
from workbook.claims.words import metric_label, shown_bound
from workbook.show.table import table_html
from workbook.words import MISSING, sentence

BAR_PX = (110, 16)
Place = Callable[[float], float]  # a value -> pixels from the left


def cases_html(judged: Judged) -> Markup:
    """Return the cases of one test as an HTML table that draws each effect beside the bound."""
    test, cases, place = judged.test, judged.cases, _axis(judged.cases)
    because = f" ({test.because})" if test.because else ""
    caption = f"{metric_label(test)}: {shown_bound(test)}{because}"
    printed = {case.published for case in cases}
    same = next(iter(printed)) if len(printed) == 1 else ""  # for all cases: the caption shows it
    caption += f". Published: {same}" if same else ""
    frame = pd.DataFrame(
        {
            "Case": [_described(case, "" if same else case.published) for case in cases],
            "Effect [95 % interval]": [case.shown or MISSING for case in cases],
            "Interval and bound": [_bar(case, place) if place else "" for case in cases],
            "n": [_counted(case) for case in cases],
            "Verdict": [f"{MARKS[case.verdict]} {case.verdict}" for case in cases],
            "Records": [_links(case) for case in cases],
        },
        dtype=object,
    )
    shown = frame if place else frame.drop(columns="Interval and bound")
    return Markup(table_html(shown, caption, kind="lk-cases"))  # noqa: S704 - table_html escapes every text


def _counted(case: Case) -> str:
    """Return the number of values behind a case, and of the machines if the interval is over these."""
    return f"{case.n} on {case.effect.hosts} machines" if case.effect and case.is_over_hosts else str(case.n)


def _described(case: Case, published: str) -> Markup:
    """Return the label of a case with its reason, the published value and the metrics beside it."""
    beside = "; ".join(f"{name} {value}" for name, value in case.beside)
    extra = [
        case.reason and sentence(case.reason),
        published and f"Published: {published}.",
        beside and f"Also measured: {beside}.",
    ]
    soft = " ".join(filter(None, extra))
    return Markup("{}{}").format(case.label, Markup('<span class="lk-soft">{}</span>').format(soft) if soft else "")


def sources(case: Case) -> list[tuple[str, list[int]]]:
    """Return (file relative to the reports' folder, line numbers) of the records behind a case."""
    lines_of_file: dict[str, set[int]] = {}
    for results, trial in case.sources:
        for file, lines in results.lines_of(trial).items():
            lines_of_file.setdefault(file, set()).update(lines)
    return [(file, sorted(lines)) for file, lines in lines_of_file.items()]


def _links(case: Case) -> Markup:
    """Return links to the files of records with the lines of the trials; with several machines, also their hosts."""
    files = sources(case)
    hosts = [file.split("/")[-2] for file, _ in files]  # <profile>/records/<host>/<study>.jsonl
    names = [Markup("<code>{}</code> ").format(host) if len(set(hosts)) > 1 else "" for host in hosts]
    link = Markup('{}<a href="../{}">lines {}</a>')
    return Markup("; ").join(
        link.format(name, file, ", ".join(map(str, lines))) for name, (file, lines) in zip(names, files, strict=True)
    )


def _axis(cases: Sequence[Case]) -> Place | None:
    """Return the axis (value -> pixels) of all effects and bounds of a test, logarithmic if all are above 0.

    Return None if no case has an effect and a bound.
    """
    ends = [
        (case.effect.low, case.effect.point, case.effect.high, case.bounds.low, case.bounds.high)
        for case in cases
        if case.effect and case.bounds
    ]
    values = [value for of_case in ends for value in of_case if value is not None]
    if not values:
        return None
    form: Callable[[float], float] = math.log if min(values) > 0 else float
    low, high = form(min(values)), form(max(values))
    margin = 0.08 * (high - low) or 1.0
    return lambda value: round((form(value) - low + margin) / (high - low + 2 * margin) * BAR_PX[0], 1)


def _bar(case: Case, place: Place) -> Markup:
    """Draw the interval as a line, the point as a dot and the bounds as vertical lines; screen readers skip it."""
    effect, bounds, (width, height) = case.effect, case.bounds, BAR_PX
    if not effect or not bounds:
        return Markup("")
    line = Markup('<line class="lk-{}" x1="{}" x2="{}" y1="{}" y2="{}"/>')
    ends = [place(bound) for bound in (bounds.low, bounds.high) if bound is not None]
    parts = [line.format("bound", end, end, 0, height) for end in ends]
    if effect.low is not None and effect.high is not None:
        parts.append(line.format("range", place(effect.low), place(effect.high), height / 2, height / 2))
    dot = Markup('<circle class="lk-point" cx="{}" cy="{}" r="3.5"/>').format(place(effect.point), height / 2)
    svg = Markup('<svg class="lk-bar lk-bar-{}" width="{}" height="{}" viewBox="0 0 {} {}" aria-hidden="true">{}</svg>')
    kind = case.verdict.replace(" ", "-")
    return svg.format(kind, width, height, width, height, Markup("").join([*parts, dot]))
