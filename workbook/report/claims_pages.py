"""The pages of claims: `claims.html` with all claims of a profile, and `papers/<id>.html` with a paper then and now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from workbook.claims import MARKS, Findings, claim_row, newer_tests
from workbook.claims.papers import PrintedTable, PublishedTable
from workbook.hardware.profile import load_profile
from workbook.registry import METRICS, STUDIES
from workbook.report.html import write_template
from workbook.report.then_and_now import where_told
from workbook.words import number

FOLDER = "papers"


def write_claims(
    page: Path, findings: Findings, *, title: str, links: Sequence[tuple[str, str]], days: Mapping[str, str]
) -> None:
    """Write the page of claims atomically. `title` names the hardware; `links` are (address, text) of other pages.

    `days` are the times at which rules of claims last changed, of `workbook.claims.papers.committed`.
    """
    tested = Counter(finding.paper.id for finding in findings.findings if finding.verdict != "not testable here")
    claims = sorted(
        findings.findings,  # tested claims first, and papers with most tested claims first
        key=lambda of: (of.paper.later, of.verdict == "not testable here", -tested[of.paper.id], of.paper.id),
    )
    by_paper = [(of_paper.findings[0].paper, of_paper) for of_paper in Findings(claims).by_paper()]
    groups = [("", "all sources", findings), *((paper.id, paper.name, of_paper) for paper, of_paper in by_paper)]
    five = findings.of_papers()
    later = [of for of in [findings.of_papers(later=True)] if of.findings]
    write_template(
        page,
        "claims.html.j2",
        title=title,
        links=links,
        sentence=" ".join(
            filter(None, [five.sentence(), newer_tests(five.findings, days), *(of.sentence() for of in later)])
        ),
        marks=MARKS,
        filters=[(paper, name, [*of.counts().items(), ("claims", len(of.findings))]) for paper, name, of in groups],
        claims=[claim_row(finding, days.get(finding.claim.id, "")) for finding in claims],
        papers=[paper for paper, _ in by_paper],
    )


def write_papers(folder: Path, findings: Findings, *, title: str, links: Sequence[tuple[str, str]]) -> None:
    """Write a page for each paper into `folder/papers`. `title` names the hardware; `links` are (address, text)."""
    (folder / FOLDER).mkdir(exist_ok=True)
    addresses = {study: f"../{study}.html" for study in STUDIES if (folder / f"{study}.html").is_file()}
    for of_paper in findings.by_paper():
        paper = of_paper.findings[0].paper
        write_template(
            folder / FOLDER / f"{paper.id}.html",
            "paper.html.j2",
            title=title,
            paper=paper,
            devices=", ".join(dict.fromkeys(device.printed for device in paper.devices)),
            told=where_told(folder) if paper.story else "",
            sentence=of_paper.sentence(),
            failed=of_paper.counts()["not replicated"],
            rows=of_paper.rows(),
            studies={study: (addresses.get(study, ""), about.title) for study, about in STUDIES.items()},
            tables=[*map(_printed, paper.printed), *map(_published, paper.tables)],
            links=[(f"../{address}", text) for address, text in links],
        )


def _printed(table: PrintedTable) -> tuple[str, list[str], list[list[str]]]:
    """Return the caption, the columns and the rows of a printed table as texts."""
    rows = [[name, *("" if value is None else str(value) for value in values)] for name, values in table.rows.items()]
    return f"{table.title} ({table.where}). {table.note}".strip(), ["", *table.columns], rows


def _published(table: PublishedTable) -> tuple[str, list[str], list[list[str]]]:
    titles = [load_profile(name).title if table.columns_are == "profile" else name.upper() for name in table.columns]
    rows = [[name, *map(number, values)] for name, values in table.rows.items()]
    model = f": {table.model}" if table.model else ""
    caption = f"{METRICS[table.metric].label}, {table.unit}{model} ({table.where}). {table.note}".strip()
    return caption, ["", *titles], rows
