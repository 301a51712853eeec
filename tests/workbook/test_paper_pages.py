"""The page of a paper: every claim, every table and figure with its counterpart or the reason, every printed table."""

from __future__ import annotations

from pathlib import Path

import pytest
from bs4 import BeautifulSoup

from tests.workbook.made_telemetry import PAPERS
from tests.workbook.test_site import passes_of, put, reporting, said_in
from workbook.claims.papers import Exhibit, Paper
from workbook.claims.reports import evidence, verdicts
from workbook.registry import STUDIES
from workbook.report.paper_pages import write_papers


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    reports = tmp_path_factory.mktemp("papers")
    with reporting(reports, PAPERS):
        put(reports, "h200", passes_of())
        (reports / "h200" / "01_training.html").write_text("<title>Training</title>")
        write_papers(reports / "h200", verdicts(evidence("h200")), title="H200", links=[("claims.html", "Claims")])
    return reports / "h200" / "papers"


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.id)
def test_a_page_has_every_claim_exhibit_and_printed_table_of_its_paper(folder: Path, paper: Paper) -> None:
    page = BeautifulSoup((folder / f"{paper.id}.html").read_text(encoding="utf-8"), "html.parser")
    links = [str(link["href"]) for link in page.select(".lk-verdicts th a")]
    assert sorted(links) == sorted(f"../claims.html#claim-{claim.id}" for claim in paper.claims)
    groups = [verdict.get_text() for verdict in page.select("main > .lk-scroll .lk-verdict")]
    assert groups == sorted(groups, key=lambda text: ["✗", "~", "✓"].index(text[0])), "what fails comes first"
    rows = page.select('[aria-label="Tables and figures"] tbody tr')
    assert len(rows) == len(paper.exhibits) > 2
    for row, exhibit in zip(rows, paper.exhibits, strict=True):
        here = said_in(row.td)
        assert said_in(row.th) == f"{exhibit.title} {exhibit.where}"
        assert all(STUDIES[study].title in here for study in exhibit.studies) and exhibit.missing in here
        assert {str(link["href"]) for link in row.select("a")} <= {"../01_training.html"}, "only pages that exist"
    tables = page.select(".lk-fold .lk-table")
    assert len(tables) == len(paper.printed) + len(paper.tables)
    texts = said_in(page.main)
    for printed in paper.printed:
        assert all(str(cell) in texts for row in printed.rows.values() for cell in row if cell is not None)


def test_an_exhibit_needs_a_counterpart_or_a_reason() -> None:
    with pytest.raises(ValueError, match="give the `studies` with a counterpart, or the reason"):
        Exhibit(title="Images/s", where="figure 1")
    with pytest.raises(ValueError, match="unknown study"):
        Exhibit(title="Images/s", where="figure 1", studies=["99_none"])
