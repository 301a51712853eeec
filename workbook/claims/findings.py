"""Judged claims: counted, as sentences, as a frame of cases and as a display of notebooks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from workbook.claims.rows import CHANGED, ClaimRow, claim_row, order_of, sources_of
from workbook.claims.schema import Group
from workbook.claims.verdict import GROUPS, MARKS, TESTED, Finding
from workbook.claims.words import shown_bound
from workbook.results import is_report
from workbook.show.templates import drawn
from workbook.words import listing

COLUMNS = [
    *("paper", "claim", "verdict", "not_judged", "mark", "why", "scope", "reason"),
    *("case", "metric", "kind", "effect", "low", "high"),
    *("n", "needs", "case_verdict", "case_reason", "published", "records"),
]
IN_SIGHT = 3  # tested claims that a study's page shows; the others are folded
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

    def of_papers(self, *, later: bool = False) -> Findings:
        """Return the claims of the five papers, or of the later sources, which are counted apart."""
        return Findings([finding for finding in self.findings if finding.paper.later == later])

    def sentence(self) -> str:
        """Return `Of 67 published claims 7 could be tested here: 4 replicated, 1 not replicated, 2 inconclusive.`

        Claims of later sources alone are called so.
        """
        counts = self.counts()
        tested = sum(counts[group] for group in TESTED)
        source = " of later sources" if self.findings and all(finding.paper.later for finding in self.findings) else ""
        one, several = f"Of one published claim{source}", f"Of {len(self.findings)} published claims{source}"
        whole = several if len(self.findings) != 1 else one
        if not tested:
            return f"{whole} none could be tested here."
        parts = listing([f"{counts[group]} {_IN_WORDS.get(group, group)}" for group in TESTED if counts[group]])
        more = counts["not counted"]
        verb = "is not counted," if more == 1 else "are not counted, each"
        rest = f" {more} more {verb} with its reason." if more else ""
        return f"{whole} {tested} could be tested here: {parts}.{rest}"

    def frame(self) -> pd.DataFrame:
        """Return a row per case, and per claim without cases: verdicts, effect with interval, place of the records."""
        frame = pd.DataFrame([row for finding in self.findings for row in _rows(finding)], columns=COLUMNS)
        return frame.astype({"n": "Int64"})

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        nothing = "No published claim is about this study."
        lines = [f"{MARKS[finding.verdict]} {finding.claim.id}: {finding.label}" for finding in self._sorted()]
        text = "\n".join([self.sentence(), *lines]) if lines else nothing
        home = "" if is_report() else None  # beside a notebook in JupyterLab there is no page of claims
        return {"text/plain": text, "text/html": drawn("claims", self.rows(), home, nothing=nothing, most=IN_SIGHT)}

    def rows(self) -> list[ClaimRow]:
        """Return the claims as rows of a page: not replicated, inconclusive, then the other GROUPS."""
        return [claim_row(finding) for finding in self._sorted()]

    def _sorted(self) -> list[Finding]:
        order = ["not replicated", "inconclusive", *GROUPS]  # GROUPS has both again; `index` returns the first
        return sorted(self.findings, key=lambda finding: order.index(finding.group))


def headline(groups: Sequence[Group]) -> str:
    """Return `4 of 8 testable claims are replicated, 2 more in direction only, 1 is not`."""
    counts = Counter(groups)
    if not (tested := sum(counts[group] for group in TESTED)):
        return f"none of {len(groups)} claims is tested here"
    directions, failed = counts["direction replicated"], counts["not replicated"]
    more = f", {directions} more in direction only" if directions else ""
    verb = "is" if failed == 1 else "are"
    return f"{counts['replicated']} of {tested} testable claims are replicated{more}, {failed} {verb} not"


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
            "records": "; ".join(f"{file}:{','.join(map(str, lines))}" for file, lines in sources_of(case)),
        }
        for judged in finding.tests
        for case in judged.cases
    ]
    return rows or [claim]


def newer_tests(findings: Sequence[Finding], committed: Mapping[str, str]) -> str:
    """Return how many counted verdicts have a test that changed after their first record, and where other rules are."""
    counted = [finding for finding in findings if finding.group in TESTED]
    newer = sum(order_of(finding, committed.get(finding.claim.id, "")) in CHANGED for finding in counted)
    text = f"The tests of {newer} of these {len(counted)} verdicts changed after the first record behind them. Other "
    text += "machines may have older records, which Machines and software lists."
    return f"{text} Rules of all claims are dated at the end of this page." if newer else ""
