"""`claims.html`: every claim of every paper for one profile, with its verdict. Filters are radio buttons and CSS."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from labkit.claims import MARKS, VERDICTS, Finding, Findings, finding_html
from labkit.claims.papers import Paper
from labkit.registry import STUDIES
from labkit.report.html import write_template


class Choice(NamedTuple):
    """One radio button of a filter; `value` stands in the data attribute of the claims that it leaves in sight."""

    value: str
    label: str
    number: int


class PaperSection(NamedTuple):
    """A paper with its claims as HTML."""

    paper: Paper
    sentence: str
    claims: list[Markup]


def write_claims(page: Path, findings: Findings, *, title: str, links: Sequence[tuple[str, str]]) -> None:
    """Write the page whole or not at all. `title` names the hardware; `links` are (address, text) of other pages."""
    write_template(
        page,
        "claims.html.j2",
        title=title,
        links=links,
        sentence=findings.sentence(),
        counts=[(MARKS[verdict], verdict, count) for verdict, count in findings.counts().items()],
        filters=_filters(findings.findings),
        papers=_sections(findings.findings),
    )


def _sections(findings: Sequence[Finding]) -> list[PaperSection]:
    """A section a paper: first those of which most claims could be tested, in each of them first the tested claims."""

    def untested(finding: Finding) -> bool:
        return finding.verdict == "not testable here"

    papers = [sorted(group, key=untested) for _, group in groupby(findings, key=lambda finding: finding.paper.id)]
    papers.sort(key=lambda claims: sum(map(untested, claims)) - len(claims))
    return [
        PaperSection(claims[0].paper, Findings(claims).sentence(), list(map(finding_html, claims))) for claims in papers
    ]


def _filters(findings: Sequence[Finding]) -> dict[str, list[Choice]]:
    """The choices of each filter, by its name."""
    names = {finding.paper.id: finding.paper.name for finding in findings}
    of_verdict = Counter(finding.verdict for finding in findings)
    of_paper = Counter(finding.paper.id for finding in findings)
    of_study = Counter(study for finding in findings for study in finding.claim.studies)
    return {
        "verdict": [
            Choice(verdict.replace(" ", "-"), f"{MARKS[verdict]} {verdict}", of_verdict[verdict])
            for verdict in VERDICTS
        ],
        "paper": [Choice(paper, names[paper], number) for paper, number in of_paper.items()],
        "study": [Choice(study, study, of_study[study]) for study in STUDIES if study in of_study],
    }
