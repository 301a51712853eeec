"""Claims with their verdicts as HTML: the statement, the verdict with its scope, every effect beside its bound.

The same markup stands on a study's page and in `claims.html`. Links lead to the raw records, relative to a report's
folder.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd

from labkit.claims.verdict import VERDICTS, Case, Finding, Judged, Verdict
from labkit.claims.words import MISSING, listing, metric_label, shown_bound, shown_value

MARKS: dict[Verdict, str] = {"replicated": "✓", "not replicated": "✗", "inconclusive": "~", "not testable here": "–"}
BAR_PX = (110, 16)


@dataclass(frozen=True)
class Findings:
    """Claims judged; in a notebook they show themselves as a list."""

    findings: Sequence[Finding]

    def counts(self) -> dict[Verdict, int]:
        """How many claims have each verdict, in the order of VERDICTS."""
        return {verdict: sum(one.verdict == verdict for one in self.findings) for verdict in VERDICTS}

    def tested(self) -> list[Finding]:
        """The claims that the records could test, in the order of VERDICTS."""
        judged = [one for one in self.findings if one.verdict != "not testable here"]
        return sorted(judged, key=lambda one: VERDICTS.index(one.verdict))

    def sentence(self) -> str:
        """`Of 67 published claims 7 could be tested here: 4 replicated, 1 not replicated, 2 inconclusive.`"""
        counts = self.counts()
        tested = len(self.findings) - counts["not testable here"]
        whole = f"Of {len(self.findings)} published claims" if len(self.findings) != 1 else "Of one published claim"
        if not tested:
            return f"{whole} none could be tested here."
        told = listing([f"{counts[verdict]} {verdict}" for verdict in VERDICTS[:3] if counts[verdict]])
        return f"{whole} {tested} could be tested here: {told}."

    def frame(self) -> pd.DataFrame:
        """One row a case, or one for a claim without any: verdicts, effect with interval, where the records are."""
        frame = pd.DataFrame([row for finding in self.findings for row in _rows(finding)], columns=COLUMNS)
        return frame.astype({"n": "Int64"})

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        if not self.findings:
            said = "No published claim is about this study."
            return {"text/plain": said, "text/html": f'<div class="lk-text"><p>{said}</p></div>'}
        first = sorted(self.findings, key=lambda one: one.verdict == "not testable here")
        lines = [f"{MARKS[one.verdict]} {one.claim.id}: {one.label}" for one in first]
        body = "".join(_summary_html(one) for one in first)
        head = "".join(f'<th scope="col">{name}</th>' for name in ("Claim", "The paper", "Here", "Verdict"))
        return {
            "text/plain": "\n".join([self.sentence(), *lines]),
            "text/html": (
                '<div class="lk-scroll" role="region" tabindex="0" aria-label="What the papers said">'
                f'<table class="lk-table lk-verdicts"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
            ),
        }


def _summary_html(finding: Finding) -> str:
    """One claim in a line, with a link to its tests on the claims page; of its tests the one that decides."""
    judged = min(finding.tests, key=_decides)
    paper = next((case.published for case in judged.cases if case.published), "") or shown_bound(judged.test)
    here = _span(judged) or finding.reason
    return (
        f'<tr><th scope="row"><a href="claims.html#claim-{html.escape(finding.claim.id)}">'
        f"{html.escape(finding.claim.statement)}</a> <small>{html.escape(finding.paper.name)}</small></th>"
        f'<td class="lk-words">{html.escape(paper)}</td><td class="lk-words">{html.escape(here)}</td>'
        f'<td class="lk-short">{badge(finding.verdict)}</td></tr>'
    )


def _decides(judged: Judged) -> int:
    """Tests with a case against the claim come first, then those with an open case, then those with any."""
    verdicts = {case.verdict for case in judged.cases}
    return next((place for place, one in enumerate(_DECIDING) if one in verdicts), len(_DECIDING))


_DECIDING: tuple[Verdict, ...] = ("not replicated", "inconclusive", "replicated")


def _span(judged: Judged) -> str:
    """The effects of a test from the least to the largest: `1.6x to 4.0x`."""
    effects = sorted(((case.effect.point, case) for case in judged.cases if case.effect), key=lambda pair: pair[0])
    ends = [shown_value(point, case.metric, case.kind) for point, case in (*effects[:1], *effects[-1:])]
    return " to ".join(dict.fromkeys(ends))


COLUMNS = [
    *("paper", "claim", "verdict", "scope", "reason", "case", "metric", "kind", "effect", "low", "high", "n"),
    *("needs", "case_verdict", "case_reason", "published", "records"),
]


def _rows(finding: Finding) -> list[dict[str, object]]:
    claim: dict[str, object] = {
        "paper": finding.paper.id,
        "claim": finding.claim.id,
        "verdict": finding.verdict,
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
            "records": "; ".join(f"{file}:{','.join(map(str, lines))}" for file, lines in _sources(case)),
        }
        for judged in finding.tests
        for case in judged.cases
    ]
    return rows or [claim]


def badge(verdict: Verdict) -> str:
    """The verdict as a mark and a word, so that no colour is needed."""
    kind = verdict.replace(" ", "-")
    return (
        f'<span class="lk-verdict lk-verdict-{kind}"><span aria-hidden="true">{MARKS[verdict]}</span> {verdict}</span>'
    )


def finding_html(finding: Finding) -> str:
    """One claim with its verdict and effects."""
    claim, paper = finding.claim, finding.paper
    attributes = {
        "id": f"claim-{claim.id}",
        "data-verdict": finding.verdict.replace(" ", "-"),
        "data-paper": paper.id,
        "data-study": " ".join(claim.studies),
    }
    given = " ".join(f'{name}="{html.escape(value)}"' for name, value in attributes.items())
    about = f"<code>{html.escape(claim.id)}</code> · {html.escape(paper.name)}: {html.escape(claim.where)}"
    why = f" {html.escape(_sentence(finding.reason))}" if finding.reason else ""
    scope = f" {html.escape(finding.scope)}." if finding.scope and finding.verdict != "not testable here" else ""
    note = f'<p class="lk-soft">{html.escape(claim.note)}</p>' if claim.note else ""
    tests = "".join(_test_html(judged, finding) for judged in finding.tests if judged.cases)
    return (
        f'<article class="lk-claim" {given}><h3>{html.escape(claim.statement)}</h3>'
        f'<p class="lk-soft">{about}</p><p>{badge(finding.verdict)}{scope}{why}</p>{tests}{note}</article>'
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


def _test_html(judged: Judged, finding: Finding) -> str:
    """The cases of one test as a table, each effect drawn against the bound."""
    because = f" ({judged.test.because})" if judged.test.because else ""
    caption = f"{metric_label(judged.test)}: {shown_bound(judged.test)}{because}"
    scale = _Scale.of(judged.cases)
    printed = {case.published for case in judged.cases}
    once = next(iter(printed)) if len(printed) == 1 else ""  # the same for all cases: said once
    caption += f". Published: {once}" if once else ""
    body = "".join(_case_html(replace(case, published="") if once else case, scale) for case in judged.cases)
    label = f"{finding.claim.id}: {caption}"
    drawn = '<th scope="col" class="lk-bar-head"><span class="lk-hidden">drawn</span></th>' if scale else ""
    return (
        f'<div class="lk-scroll" role="region" tabindex="0" aria-label="{html.escape(label)}">'
        f'<table class="lk-table lk-cases"><caption>{html.escape(caption)}</caption><thead><tr>'
        f'<th scope="col">Case</th><th scope="col">Effect [95 % interval]</th>{drawn}<th scope="col">n</th>'
        f'<th scope="col">Verdict</th><th scope="col">Records</th></tr></thead><tbody>{body}</tbody></table></div>'
    )


def _case_html(case: Case, scale: _Scale | None) -> str:
    extra = [case.reason and _sentence(case.reason), case.published and f"Published: {case.published}."]
    beside = "; ".join(f"{name} {value}" for name, value in case.beside)
    extra.append(f"Beside: {beside}." if beside else "")
    said = html.escape(" ".join(one for one in extra if one))
    soft = f'<span class="lk-soft">{said}</span>' if said else ""
    bar = f"<td>{scale.bar(case)}</td>" if scale else ""
    return (
        f'<tr><th scope="row">{html.escape(case.label)}{soft}</th><td>{html.escape(case.shown) or MISSING}</td>{bar}'
        f'<td class="n">{case.n}</td><td class="lk-short">{MARKS[case.verdict]} {case.verdict}</td>'
        f"<td>{_links(case)}</td></tr>"
    )


def _sources(case: Case) -> list[tuple[str, list[int]]]:
    """(file relative to the reports' folder, its lines) behind a case."""
    found: dict[str, set[int]] = {}
    for side in case.sides:
        found.setdefault(side.results.file(), set()).update(side.results.lines_of(side.trial))
    return [(file, sorted(lines)) for file, lines in found.items()]


def _links(case: Case) -> str:
    """Links to the files of records, with the lines that hold the trials; of several hosts, which is which."""
    sources = _sources(case)
    hosts = {file: file.split("/")[-2] for file, _ in sources}  # <profile>/records/<host>/<study>.jsonl
    several = len(set(hosts.values())) > 1
    return "; ".join(
        (f"<code>{html.escape(hosts[file])}</code> " if several else "")
        + f'<a href="../{html.escape(file)}">lines {html.escape(", ".join(map(str, lines)))}</a>'
        for file, lines in sources
    )


@dataclass(frozen=True)
class _Scale:
    """The axis on which the effects of one test are drawn, with the bound; logarithmic for ratios and levels."""

    low: float
    high: float
    logarithmic: bool

    @staticmethod
    def of(cases: Sequence[Case]) -> _Scale | None:
        """An axis that holds every effect and bound; None where nothing can be drawn."""
        drawn = [case for case in cases if case.effect and case.bounds]
        values = [
            value
            for case in drawn
            if case.effect and case.bounds
            for value in (case.effect.low, case.effect.point, case.effect.high, case.bounds.low, case.bounds.high)
            if value is not None
        ]
        if not values:
            return None
        logarithmic = min(values) > 0
        low, high = min(values), max(values)
        if logarithmic:
            margin = max((high / low) ** 0.08, 1.01)
            return _Scale(low / margin, high * margin, True)
        margin = max((high - low) * 0.08, 1e-12)
        return _Scale(low - margin, high + margin, False)

    def x(self, value: float) -> float:
        """Pixels from the left."""
        place = (
            math.log(value / self.low) / math.log(self.high / self.low)
            if self.logarithmic
            else (value - self.low) / (self.high - self.low)
        )
        return round(place * BAR_PX[0], 1)

    def bar(self, case: Case) -> str:
        """The interval as a line, the point as a dot, the bounds as upright lines; for the eye only."""
        if not case.effect or not case.bounds:
            return ""
        width, height = BAR_PX
        middle = height / 2
        parts = [
            f'<line class="lk-bound" x1="{self.x(bound)}" x2="{self.x(bound)}" y1="0" y2="{height}"/>'
            for bound in (case.bounds.low, case.bounds.high)
            if bound is not None
        ]
        if case.effect.low is not None and case.effect.high is not None:
            ends = f'x1="{self.x(case.effect.low)}" x2="{self.x(case.effect.high)}"'
            parts.append(f'<line class="lk-range" {ends} y1="{middle}" y2="{middle}"/>')
        parts.append(f'<circle class="lk-point" cx="{self.x(case.effect.point)}" cy="{middle}" r="3.5"/>')
        kind = case.verdict.replace(" ", "-")
        return (
            f'<svg class="lk-bar lk-bar-{kind}" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            f'aria-hidden="true" focusable="false">{"".join(parts)}</svg>'
        )
