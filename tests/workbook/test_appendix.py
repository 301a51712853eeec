"""The artifact appendix has a row per claim, with the verdicts and records of claims.csv, and commands that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from labkit.errors import UserError
from tests.workbook.test_site import make_reports, reporting
from workbook.registry import STUDIES
from workbook.report.appendix import write_appendix
from workbook.runner.progress import duration

MINUTE_AND_A_HALF = [SimpleNamespace(seconds=90.0)]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a rendered report with its appendix."""
    reports = tmp_path_factory.mktemp("reports")
    with reporting(reports) as patch:
        patch.setattr("workbook.report.appendix.plan_studies", lambda *_, **__: MINUTE_AND_A_HALF)
        make_reports(reports)
        assert write_appendix("h200") == reports / "h200" / "appendix.md"
        yield reports / "h200"


def tables(report: Path) -> list[list[list[str]]]:
    """Return the cells of each table of the appendix, without its heading."""
    blocks = (report / "appendix.md").read_text(encoding="utf-8").split("\n\n")
    rows = [[line.strip("| ").split(" | ") for line in block.splitlines()] for block in blocks if block[0] == "|"]
    return [table[2:] for table in rows]


def test_the_rows_are_the_claims_of_claims_csv_with_their_verdicts_and_records(report: Path) -> None:
    frame = pd.read_csv(report / "claims.csv", keep_default_na=False)
    expected = {}
    for claim, cases in frame.groupby("claim", sort=False):
        texts = [text for records in cases["records"] for text in records.split("; ") if text]
        lines = {
            (file, line) for file, _, those in (text.partition(":") for text in texts) for line in those.split(",")
        }
        direction = "direction " if cases["not_judged"].iloc[0] else ""
        expected[claim] = (direction + cases["verdict"].iloc[0], str(len(lines)), {file for file, _ in lines})
    *_, files, claims = tables(report)
    file_of = {number: path.strip("`") for number, path, *_ in files}
    rows = {
        claim: (verdict, records, {file_of[number] for number in numbers.split(", ") if number != "–"})
        for claim, _, verdict, records, numbers, *_ in claims
    }
    assert rows == expected and len(claims) == len(rows)
    assert {verdict for verdict, *_ in rows.values()} > {"not testable here", "replicated"}


def test_a_claim_with_records_has_a_command_and_its_time(report: Path) -> None:
    names = {study.name for study in STUDIES.values()}
    *_, claims = tables(report)
    for _, _, _, records, _, commands, time in claims:
        assert (commands == time == "–") == (records == "0")
        given = re.findall(r"`make report HW=h[12]00 STUDY=([a-z_,]+)`", commands)
        asked = [name for text in given for name in text.split(",")]
        assert set(asked) <= names and (not asked or time == duration(90.0 * len(asked)))


def test_the_appendix_names_the_machines_and_no_folder_of_this_one(report: Path) -> None:
    machines, files, _ = tables(report)
    assert {machine for machine, *_ in machines} == {path.split("/")[2] for _, path, *_ in files}
    assert str(report.parent) not in (report / "appendix.md").read_text(encoding="utf-8")


def test_an_appendix_needs_a_profile() -> None:
    with pytest.raises(UserError, match="make appendix HW=h200"):
        write_appendix("")
