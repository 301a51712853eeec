"""Claims with their verdicts as HTML and as a table: the statement, the verdict and its scope.

A study's page and `claims.html` use the same markup. Links to the raw records are relative to a report's folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
from markupsafe import Markup

from workbook.claims.cases_table import cases_html, sources
from workbook.claims.schema import Mark
from workbook.claims.verdict import DECIDING, GROUPS, MARKS, TESTED, Case, Finding, Group, Judged, Verdict
from workbook.claims.words import metric_label, shown_bound, shown_value
from workbook.results import is_report
from workbook.show.table import table_html
from workbook.words import MISSING, NAN, digits_of, listing, sentence

USUAL = ("on synthetic32", "with PyTorch")  # of most records; claims.html says it above the claims
NOT_COUNTED: dict[Mark, str] = {
    "by definition": "Not counted: the test cannot fail.",
    "derived": "Not counted: the paper only implies it.",
    "other hardware or data": "Not counted: hardware or data differ.",
}
COLUMNS = [
    *(
        "paper",
        "claim",
        "verdict",
        "not_judged",
        "mark",
        "why",
        "scope",
        "reason",
        "case",
        "metric",
        "kind",
        "effect",
        "low",
        "high",
    ),
    *("n", "needs", "case_verdict", "case_reason", "published", "records"),
]
_DIFFERS: dict[Verdict, str] = {"replicated": "it changes", "not replicated": "it does not change"}  # without effect
_IN_WORDS: dict[Group, str] = {"direction replicated": "replicated in direction only"}


@dataclass(frozen=True)
class Findings:
    """Judged claims; a notebook displays them as a table, those that are not replicated first."""

    findings: Sequence[Finding]

    def counts(self) -> dict[Group, int]:
        """Return the number of claims in each group, in the order of GROUPS."""
        return {group: sum(finding.group == group for finding in self.findings) for group in GROUPS}

    def by_paper(self) -> list[Findings]:
        """Return the claims of each paper."""
        papers = dict.fromkeys(finding.paper.id for finding in self.findings)
        return [Findings([finding for finding in self.findings if finding.paper.id == paper]) for paper in papers]

    def headline(self) -> str:
        """Return `4 of 8 testable claims are replicated, 2 more in direction only, 1 is not`."""
        counts = self.counts()
        if not (tested := sum(counts[group] for group in TESTED)):
            return f"None of {len(self.findings)} claims is tested here"
        directions, failed = counts["direction replicated"], counts["not replicated"]
        more = f", {directions} more in direction only" if directions else ""
        verb = "is" if failed == 1 else "are"
        return f"{counts['replicated']} of {tested} testable claims are replicated{more}, {failed} {verb} not"

    def sentence(self) -> str:
        """Return `Of 67 published claims 7 could be tested here: 4 replicated, 1 not replicated, 2 inconclusive.`"""
        counts = self.counts()
        tested = sum(counts[group] for group in TESTED)
        whole = f"Of {len(self.findings)} published claims" if len(self.findings) != 1 else "Of one published claim"
        if not tested:
            return f"{whole} none could be tested here."
        parts = listing([f"{counts[group]} {_IN_WORDS.get(group, group)}" for group in TESTED if counts[group]])
        more = counts["not counted"]
        rest = f" {more} more {'is' if more == 1 else 'are'} not counted, each with its reason." if more else ""
        return f"{whole} {tested} could be tested here: {parts}.{rest}"

    def frame(self) -> pd.DataFrame:
        """Return a row per case, and per claim without cases: verdicts, effect with interval, place of the records."""
        frame = pd.DataFrame([row for finding in self.findings for row in _rows(finding)], columns=COLUMNS)
        return frame.astype({"n": "Int64"})

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        if not self.findings:
            text = "No published claim is about this study."
            return {"text/plain": text, "text/html": f'<div class="lk-text"><p>{text}</p></div>'}
        lines = [f"{MARKS[finding.verdict]} {finding.claim.id}: {finding.label}" for finding in self._sorted()]
        home = "" if is_report() else None  # beside a notebook in JupyterLab there is no page of claims
        return {"text/plain": "\n".join([self.sentence(), *lines]), "text/html": self.html(home=home)}

    def _sorted(self) -> list[Finding]:
        order = ["not replicated", "inconclusive", *GROUPS]  # GROUPS has both again; `index` returns the first
        return sorted(self.findings, key=lambda finding: order.index(finding.group))

    def html(self, *, home: str | None = "", places: bool = False) -> str:
        """Return a table of the claims, with links to their tests on the claims page in the folder `home`, if any.

        Claims that are not replicated come first; those that are not testable here are folded. Below a statement
        stands the paper's name, or with `places` the claim's place in the paper.
        """
        untested = self.counts()["not testable here"]
        shown = self._sorted()
        rows = [_summary(finding, home, finding.claim.where if places else finding.paper.name) for finding in shown]
        tables = [
            table_html(pd.DataFrame(part, dtype=object), name="Claims", kind="lk-verdicts") if part else ""
            for part in (rows[: len(rows) - untested], rows[len(rows) - untested :])
        ]
        if not untested:
            return tables[0]
        claims = "claim" if untested == 1 else "claims"
        summary = f"<summary>Not testable here: {untested} {claims}, with the reason</summary>"
        return f"{tables[0]}<details>{summary}{tables[1]}</details>"


def _summary(finding: Finding, home: str | None, small: str, more: str = "") -> dict[str, str]:
    """Return a claim's row, from the test that decides; `more` is a sentence for the cell of the verdict."""
    judged = min(finding.tests, key=_decides)
    link = Markup('<a href="{}claims.html#claim-{}">{}</a>')
    statement = (
        finding.claim.statement if home is None else link.format(home, finding.claim.id, finding.claim.statement)
    )
    here, verdict = _verdict_cells(finding, judged, more)
    return {
        "Claim": Markup("{} <small>{}</small>").format(statement, small),
        "Test": _printed(judged) if not judged.test.has_direction else shown_bound(judged.test),
        "Here": here,
        "Verdict": verdict,
    }


def _verdict_cells(finding: Finding, judged: Judged, more: str) -> tuple[Markup, Markup]:
    """Return the cells "Here" and "Verdict" of a finding, from the test that decides."""
    if finding.verdict == "not testable here":
        return Markup("{}").format(finding.reason), badge("not testable here", "not testable here")
    cases, effects = _shown(finding, judged)
    return verdict_cells(
        finding.verdict,
        finding.badge,
        quantity=metric_label(judged.test),
        value=effects or finding.reason or _DIFFERS[finding.verdict],
        n=_counted(cases),
        scope=finding.scope,
        remarks=(finding.why, NOT_COUNTED[finding.mark] if finding.mark else "", more),
    )


def verdict_cells(
    verdict: Verdict, text: str, *, quantity: str, value: str, n: str, scope: str, remarks: Sequence[str] = ()
) -> tuple[Markup, Markup]:
    """Return the cells "Here" and "Verdict", which all pages with verdicts show.

    `quantity` names what was measured, `value` is its effect, and `n` says of how many runs or images. `text` is the
    verdict in words. `scope` says how the records differ from the paper; its parts that hold for most claims are left
    out. `remarks` are sentences, or empty. Raise ValueError without a quantity, a value or a number of runs.
    """
    if not (quantity and value and n):
        raise ValueError(f"a verdict is shown with its quantity, value and runs, not {(quantity, value, n)}")
    here = Markup("{}: {} <small>{}</small>").format(quantity, value, n)
    parts = re.split(r", (?=(?:on|with|in|of|also|without|after|by) )", scope)
    limits = ", ".join(part for part in parts if part not in USUAL)
    extra = " ".join(filter(None, [sentence(limits), *map(sentence, remarks)]))
    small = Markup(" <small>{}</small>").format(extra) if extra else ""
    return here, badge(verdict, text) + small


def _decides(judged: Judged) -> int:
    """Return a sort key: tests with a contradicting case first, then with an open case, then with a supporting case."""
    verdicts = {case.verdict for case in judged.cases}
    return next((place for place, verdict in enumerate(DECIDING) if verdict in verdicts), len(DECIDING))


def _printed(judged: Judged) -> str:
    """Return the published magnitude of a test without a direction."""
    return next((case.published for case in judged.cases if case.published), "") or shown_bound(judged.test)


def _shown(finding: Finding, judged: Judged) -> tuple[list[Case], str]:
    """Return the cases that a claim's row shows, and their effects in words.

    They are the first open case with its interval, else the range of the cases that contradict, else that of all. The
    study is named where cases differ in it.
    """
    undecided = [case for case in judged.deciding if case.verdict == "inconclusive" and case.shown]
    against = [case for case in judged.deciding if case.verdict == "not replicated" and case.effect]
    if finding.verdict == "inconclusive" and undecided:
        shown = undecided[:1]
        effects = shown[0].shown
    elif against:
        shown, of = against, f" ({len(against)} of {len(judged.deciding)} cases)" if len(judged.deciding) > 1 else ""
        effects = f"{_span(shown)}{of}"
    else:
        shown = judged.deciding
        effects = _span(shown)
    of_cases = _studies(shown)
    if effects and len(of_cases) == 1 < len(_studies(case for each in finding.tests for case in each.cases)):
        effects = f"{effects} ({of_cases.pop()})"
    return shown, effects


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


def _rows(finding: Finding) -> list[dict[str, object]]:
    claim: dict[str, object] = {
        "paper": finding.paper.id,
        "claim": finding.claim.id,
        "verdict": finding.verdict,
        "not_judged": "; ".join(finding.not_judged) if finding.is_direction else "",
        "mark": finding.mark or "",
        "why": finding.why,
        "scope": finding.scope,
        "reason": finding.reason,
    }
    rows: list[dict[str, object]] = [
        {
            **claim,
            "case": case.label,
            "metric": case.metric,
            "kind": case.kind,
            "effect": case.effect.point if case.effect else None,
            "low": case.effect.low if case.effect else None,
            "high": case.effect.high if case.effect else None,
            "n": case.n,
            "needs": shown_bound(judged.test),
            "case_verdict": case.verdict,
            "case_reason": case.reason,
            "published": case.published,
            "records": "; ".join(f"{file}:{','.join(map(str, lines))}" for file, lines in sources(case)),
        }
        for judged in finding.tests
        for case in judged.cases
    ]
    return rows or [claim]


def badge(verdict: Verdict, text: str) -> Markup:
    """Return a verdict as HTML with a mark and its words, which is readable without colours."""
    kind: Group = "direction replicated" if text == "direction replicated" else verdict
    markup = Markup('<span class="lk-verdict lk-verdict-{}"><span aria-hidden="true">{}</span> {}</span>')
    return markup.format(kind.replace(" ", "-"), MARKS[kind], text)


def finding_html(finding: Finding, committed: str = "") -> Markup:
    """Return one claim as HTML: a line with its verdict, which opens its tests with their bounds, cases and records.

    `committed` is the time of the last commit to a line of its tests; empty if unknown.
    """
    claim, paper, verdict = finding.claim, finding.paper, finding.verdict
    tested, starts, order = verdict != "not testable here", _starts(finding), _order(finding, committed)
    changed = f"The test last changed at {committed} UTC" if committed else "It is not known here when the test changed"
    made = f"The records are of {' to '.join(dict.fromkeys(starts))} UTC." if starts else "There are no records."
    late = "Its test is newer." if order in (AMONG, AFTER) else ""
    line = _summary(finding, "", paper.name, late)
    parts = (paper.name, claim.statement, line["Test"], line["Here"] if tested else MISSING, line["Verdict"])
    summary = Markup("").join(Markup("<span>{}</span>").format(part) for part in parts)
    tests = Markup("").join(cases_html(judged) for judged in finding.tests if judged.cases)
    notes = [
        f"{paper.name}, {claim.where}. {changed}{f', {order}' if order else ''}. {made}",
        tested and finding.scope and f"The claim is judged {finding.scope}.",
        finding.is_direction and f"No test here judges: {listing(finding.not_judged)}.",
        sentence(finding.reason),
        claim.note,
    ]
    paragraphs = Markup("").join(Markup("<p>{}</p>").format(note) for note in notes if note)
    whole = Markup(
        '<details class="lk-claim" data-verdict="{}" data-paper="{}"><summary>{}</summary>'
        '<div id="claim-{}" class="lk-tests">{}{}</div></details>'
    )
    return whole.format(finding.group.replace(" ", "-"), paper.id, summary, claim.id, paragraphs, tests)


def newer_tests(findings: Sequence[Finding], committed: Mapping[str, str]) -> str:
    """Return how many counted verdicts have a test that changed after their first record; empty if none or unknown."""
    counted = [finding for finding in findings if finding.group in TESTED]
    newer = sum(_order(finding, committed.get(finding.claim.id, "")) in (AMONG, AFTER) for finding in counted)
    if not newer:
        return ""
    verb = "is" if newer == 1 else "are"
    return f"{newer} of these {len(counted)} tests {verb} newer than the first of their records."


BEFORE, AMONG, AFTER = "before these records", "between the first and the last of these records", "after these records"


def _starts(finding: Finding) -> list[str]:
    """Return when the first and the last record behind a verdict were begun; [] without records."""
    sources = [source for case in finding.cases for source in case.sources]
    starts = [record.started_at for results, trial in sources for record in results.by_trial.get(trial, [])]
    return [f"{moment[:10]} {moment[11:16]}" for moment in (min(starts), max(starts))] if starts else []


def _order(finding: Finding, committed: str) -> str:
    """Return whether a test last changed before or after the records that decide it; empty if that is unknown."""
    starts = _starts(finding)
    if not starts or not committed:
        return ""
    return BEFORE if committed < starts[0] else AFTER if committed > starts[1] else AMONG
