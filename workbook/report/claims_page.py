"""Write `claims.html`: one line per claim of all papers, for one profile. Filters are links and CSS's `:target`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from workbook.claims import GROUPS, MARKS, Finding, Findings, finding_html, newer_tests
from workbook.report.html import write_template


class Filter(NamedTuple):
    """A filter of claims, which an address selects: `claims.html#wisconsin-not-replicated`."""

    id: str
    label: str
    selector: str  # of its claims, in CSS
    number: int


def write_claims(
    page: Path, findings: Findings, *, title: str, links: Sequence[tuple[str, str]], days: Mapping[str, str]
) -> None:
    """Write the page atomically. `title` names the hardware; `links` are (address, text) of other pages.

    `days` are the times at which tests of claims last changed, of `workbook.claims.papers.committed`.
    """
    claims = sorted(findings.findings, key=_place(findings.findings))
    papers = {finding.paper.id: finding.paper for finding in claims}
    rows = [
        ("All papers", _filters(claims, "")),
        *((paper.name, _filters(claims, paper.id)) for paper in papers.values()),
    ]
    write_template(
        page,
        "claims.html.j2",
        title=title,
        links=links,
        sentence=" ".join(filter(None, [findings.sentence(), newer_tests(claims, days)])),
        groups=[(MARKS[group], group) for group in GROUPS],
        rows=rows,
        filters=[entry for _, row in rows for entry in row if entry.number],
        claims=[finding_html(finding, days.get(finding.claim.id, "")) for finding in claims],
        papers=list(papers.values()),
    )


def _place(findings: Sequence[Finding]) -> Callable[[Finding], tuple[bool, int, str]]:
    """Return the sort key of a claim: tested claims first, and papers with most tested claims first."""

    def untested(finding: Finding) -> bool:
        return finding.verdict == "not testable here"

    tested = {finding.paper.id: 0 for finding in findings}
    for finding in findings:
        tested[finding.paper.id] += not untested(finding)
    return lambda finding: (untested(finding), -tested[finding.paper.id], finding.paper.id)


def _filters(findings: Sequence[Finding], paper: str) -> list[Filter]:
    """Return a filter per verdict and one for all verdicts, of the paper with id `paper` or (empty) of all papers."""
    of_paper = [finding for finding in findings if paper in ("", finding.paper.id)]
    name = of_paper[0].paper.name if paper and of_paper else "all papers"
    chosen = f'[data-paper="{paper}"]' if paper else ""
    filters = []
    for group in GROUPS:
        slug = group.replace(" ", "-")
        count = sum(finding.group == group for finding in of_paper)
        selector = f'{chosen}[data-verdict="{slug}"]'
        filters.append(Filter(f"{paper or 'all'}-{slug}", f"{name}, {group}", selector, count))
    return [*filters, Filter(f"{paper or 'all'}-claims", name, chosen, len(of_paper))]
