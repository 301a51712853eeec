"""`claims.html`: every claim of every paper for one profile, with its verdict. Filters are radio buttons and CSS."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from markupsafe import Markup

from labkit.claims import MARKS, VERDICTS, Finding, Findings, finding_html
from labkit.claims.papers import Paper
from labkit.registry import STUDIES
from labkit.report.html import write_template


@dataclass(frozen=True)
class Choice:
    """One value of a filter: `id` is unique on the page, `value` stands in the claims' data attribute."""

    id: str
    value: str
    label: str
    count: int


@dataclass(frozen=True)
class Filter:
    """A group of radio buttons; `attribute` is the data attribute it looks at."""

    name: str
    legend: str
    attribute: str
    choices: list[Choice]


@dataclass(frozen=True)
class PaperSection:
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

    groups = [list(group) for _, group in groupby(findings, key=lambda one: one.paper.id)]
    groups.sort(key=lambda group: sum(map(untested, group)) - len(group))
    return [_section(sorted(group, key=untested)) for group in groups]


def _section(findings: list[Finding]) -> PaperSection:
    # finding_html has escaped every text that it holds.
    claims = [Markup(finding_html(one)) for one in findings]  # noqa: S704
    return PaperSection(findings[0].paper, Findings(findings).sentence(), claims)


def _filters(findings: Sequence[Finding]) -> list[Filter]:
    papers = list(dict.fromkeys((one.paper.id, one.paper.name) for one in findings))
    studies = [study for study in STUDIES if any(study in one.claim.studies for one in findings)]
    verdicts = [
        (verdict.replace(" ", "-"), f"{MARKS[verdict]} {verdict}", sum(one.verdict == verdict for one in findings))
        for verdict in VERDICTS
    ]
    of_papers = [(key, name, sum(one.paper.id == key for one in findings)) for key, name in papers]
    of_studies = [(study, study, sum(study in one.claim.studies for one in findings)) for study in studies]
    return [
        _filter("verdict", "Verdict", verdicts),
        _filter("paper", "Paper", of_papers),
        _filter("study", "Study", of_studies),
    ]


def _filter(name: str, legend: str, values: list[tuple[str, str, int]]) -> Filter:
    choices = [Choice(f"filter-{name}-{value}", value, label, count) for value, label, count in values]
    return Filter(name, legend, f"data-{name}", choices)
