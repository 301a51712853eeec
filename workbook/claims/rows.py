"""Claims and their tests as rows in words and numbers, from which the macros of `workbook.show` draw pages."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from workbook.claims.schema import Group, Mark
from workbook.claims.verdict import DECIDING, MARKS, Case, Finding, Judged, Verdict
from workbook.claims.words import choice_words, quantity_label, shown_bound, shown_value
from workbook.words import NAN, digits_of, label, listing, sentence

USUAL = (f"on {label('data', 'synthetic32')}", "with PyTorch")  # of most records; claims.html says it above the claims
NOT_COUNTED: dict[Mark, str] = {
    "by definition": "Not counted: the test cannot fail.",
    "derived": "Not counted: the paper only implies it.",
    "other hardware or data": "Not counted: hardware or data differ.",
}
_DIFFERS: dict[Verdict, str] = {"replicated": "it changes", "not replicated": "it does not change"}  # without effect
BEFORE, AMONG, AFTER = "before these records", "between the first and the last of these records", "after these records"
CHANGED = {AMONG: "Rule changed after the first of the records.", AFTER: "Rule changed after the records."}


@dataclass(frozen=True)
class Measured:
    """The effect of a claim in words, and of how many runs or images it is; ValueError without one.

    `case` names the case that has the effect, if other cases of the test decide too.
    """

    value: str
    n: str
    case: str = ""

    def __post_init__(self) -> None:
        if not (self.value and self.n):
            raise ValueError(f"a verdict is shown with its value and runs, not {self}")


@dataclass(frozen=True)
class ClaimRow:
    """A claim with its verdict, from the test that decides.

    `test` names the quantity and its bound. `here` is None where the claim could not be tested. `remarks` say how the
    records differ from the paper, beyond the USUAL, and why the verdict is so or does not count. `changed` is when its
    rule last changed, empty if unknown, and `starts` when the first and the last of its records were begun; `order`
    compares both.
    """

    finding: Finding
    test: str
    here: Measured | None
    remarks: str
    changed: str
    order: str
    starts: list[str]

    @property
    def kind(self) -> Group:
        """The verdict that gives the badge its colour and its mark."""
        is_direction = self.finding.badge == "direction replicated"
        return "direction replicated" if is_direction else self.finding.verdict

    @property
    def mark(self) -> str:
        """The mark of the badge."""
        return MARKS[self.kind]

    @property
    def tables(self) -> list[CaseTable]:
        """The tests that have cases."""
        return [case_table(judged) for judged in self.finding.tests if judged.cases]

    @property
    def notes(self) -> list[str]:
        """What the page of claims says of the verdict, as sentences."""
        notes = [
            f"The claim is judged {self.finding.scope}." if self.here and self.finding.scope else "",
            f"No test here judges: {listing(self.finding.not_judged)}." if self.finding.is_direction else "",
            sentence(self.finding.reason),
            self.finding.claim.note,
        ]
        return [note for note in notes if note]


class CaseRow(NamedTuple):
    """A case, what stands below its label, and its records: the host if there are several, the file, the lines."""

    case: Case
    mark: str
    notes: str
    records: list[tuple[str, str, list[int]]]


class CaseTable(NamedTuple):
    """The cases of a test on one axis: `place` returns the share of its width at a value; None without an axis."""

    caption: str
    place: Callable[[float], float] | None
    rows: list[CaseRow]


def claim_row(finding: Finding, changed: str = "") -> ClaimRow:
    """Return a claim's row; `changed` is the time of the commit that last changed its rule, empty if unknown."""

    def deciding(judged: Judged) -> int:
        verdicts = {case.verdict for case in judged.cases}
        return next((place for place, verdict in enumerate(DECIDING) if verdict in verdicts), len(DECIDING))

    judged = min(finding.tests, key=deciding)
    order = order_of(finding, changed)
    bound, printed = shown_bound(judged.test), [case.published for case in judged.cases if case.published]
    here, remarks = None, ""
    if finding.verdict != "not testable here":
        here = _measured(finding, judged)
        parts = re.split(r", (?=(?:on|with|in|of|also|without|after|by) )", finding.scope)
        limits = ", ".join(part for part in parts if part not in USUAL)
        newer = CHANGED.get(order, "")
        others = sum(any(case.is_judged for case in each.cases) for each in finding.tests if each is not judged)
        text = {0: "", 1: "Its other test holds too."}.get(others, f"Its {others} other tests hold too.")
        also = text if finding.verdict == "replicated" else ""
        remarks = " ".join(filter(None, [also, sentence(limits), sentence(finding.why), _not_counted(finding), newer]))
    test = printed[0] if printed and not judged.test.has_direction else bound
    return ClaimRow(
        finding, f"{quantity_label(judged.test)}: {test}", here, remarks, changed, order, starts_of(finding)
    )


def _not_counted(finding: Finding) -> str:
    """Return why a verdict does not count: its mark in words, or of what the paper speaks; empty if it counts."""
    if finding.mark and finding.mark != finding.claim.mark:
        return f"Not counted: the paper speaks of {choice_words(finding.claim.only)}."
    return NOT_COUNTED[finding.mark] if finding.mark else ""


def case_table(judged: Judged) -> CaseTable:
    """Return the cases of a test. The caption has the published value if all of them have the same."""
    because = f" ({judged.test.because})" if judged.test.because else ""
    caption = f"{quantity_label(judged.test)}: {shown_bound(judged.test)}{because}"
    printed = {case.published for case in judged.cases}
    if len(printed) == 1 and all(printed):
        caption += f". Published: {printed.pop()}"
    rows = []
    for case in judged.cases:
        beside = "; ".join(f"{name} {value}" for name, value in case.beside)
        notes = [
            sentence(case.reason),
            f"Published: {case.published}." if case.published and printed else "",
            f"Also measured: {beside}." if beside else "",
        ]
        sources = [(file.split("/")[-2], file, lines) for file, lines in sources_of(case)]
        has_hosts = len({host for host, _, _ in sources}) > 1
        records = [(host if has_hosts else "", file, lines) for host, file, lines in sources]
        rows.append(CaseRow(case, MARKS[case.verdict], " ".join(filter(None, notes)), records))
    return CaseTable(caption, _axis(judged.cases), rows)


def starts_of(finding: Finding) -> list[str]:
    """Return when the first and the last record behind a verdict were begun; [] without records."""
    sources = [source for case in finding.cases for source in case.sources]
    starts = [record.started_at for results, trial in sources for record in results.by_trial.get(trial, [])]
    return [f"{moment[:10]} {moment[11:16]}" for moment in (min(starts), max(starts))] if starts else []


def order_of(finding: Finding, changed: str) -> str:
    """Return whether a rule last changed before or after the records that it judges; empty if that is unknown."""
    starts = starts_of(finding)
    if not starts or not changed:
        return ""
    return BEFORE if changed < starts[0] else AFTER if changed > starts[1] else AMONG


def sources_of(case: Case) -> list[tuple[str, list[int]]]:
    """Return (file `<profile>/records/<host>/<study>.jsonl`, line numbers) of the records behind a case."""
    lines_of_file: dict[str, set[int]] = {}
    for results, trial in case.sources:
        for file, lines in results.lines_of(trial).items():
            lines_of_file.setdefault(file, set()).update(lines)
    return [(file, sorted(lines)) for file, lines in lines_of_file.items()]


def _measured(finding: Finding, judged: Judged) -> Measured:
    """Return what a claim's row shows of the cases of a test.

    They are the first open case, else the range of the cases that contradict, else that of all. A single case has its
    interval. The study is named where cases differ in it.
    """
    undecided = [case for case in judged.deciding if case.verdict == "inconclusive" and case.shown]
    against = [case for case in judged.deciding if case.verdict == "not replicated" and case.effect]
    is_open = finding.verdict == "inconclusive" and undecided
    shown = undecided[:1] if is_open else against or judged.deciding
    of = f" ({len(against)} of {len(judged.deciding)} cases)" if shown is against and len(judged.deciding) > 1 else ""
    effects = f"{shown[0].shown if len(shown) == 1 else _span(shown)}{of}"
    studies = _studies(shown)
    if effects and len(studies) == 1 < len(_studies(finding.cases)):
        effects = f"{effects} ({studies.pop()})"
    value = effects or finding.reason or _DIFFERS[finding.verdict]
    return Measured(value, _counted(shown), shown[0].label if len(shown) == 1 < len(judged.deciding) else "")


def _counted(cases: Iterable[Case]) -> str:
    """Return of how many runs, or of how many images that were compared one by one, the values of cases are."""
    by_unit: dict[str, set[int]] = {}
    for case in cases:
        by_unit.setdefault("images" if case.is_by_image else "runs", set()).add(case.n)
    texts = [
        f"{' to '.join(dict.fromkeys(f'{end:,}' for end in (min(of), max(of))))} {unit if max(of) != 1 else unit[:-1]}"
        for unit, of in by_unit.items()
    ]
    return ", ".join(texts)


def _studies(cases: Iterable[Case]) -> set[str]:
    return {side.results.study.title for case in cases for side in case.sides}


def _span(cases: Sequence[Case]) -> str:
    """Return the smallest and the largest effect of cases: `1.6x to 4.0x`; `at least 6.45x` of a lower bound."""
    effects = sorted(((case.effect, case) for case in cases if case.effect), key=lambda pair: pair[0].point)
    ends = []
    for effect, case in (*effects[:1], *effects[-1:]):
        digits = digits_of(effect.point, *(NAN if end is None else end for end in (effect.low, effect.high)))
        ends.append(shown_value(effect.point, case.metric, case.kind, digits))
    least = "at least " if any(case.is_least for case in cases) else ""
    return least + " to ".join(dict.fromkeys(ends))


def _axis(cases: Sequence[Case]) -> Callable[[float], float] | None:
    """Return the axis of all effects and bounds, logarithmic if all are above 0; None without an effect and a bound."""
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
    return lambda value: (form(value) - low + margin) / (high - low + 2 * margin)
