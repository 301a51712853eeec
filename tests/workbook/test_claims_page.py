"""The pages of claims: every claim, exhibit and printed table appears, filters and links lead to the right claims."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
from bs4 import BeautifulSoup, Tag

from labkit.telemetry.summary import Statistic
from tests.workbook.made_telemetry import PAPERS
from tests.workbook.test_site import (
    POWER,
    POWERED,
    TRIALS,
    VGG,
    VGG_LARGE,
    B,
    C,
    failed,
    parsed,
    passes_of,
    put,
    reporting,
    said_in,
    taken,
    texts,
)
from workbook.claims.findings import Findings, newer_tests
from workbook.claims.judge import judge_all
from workbook.claims.papers import Exhibit, Paper, committed
from workbook.claims.reports import evidence, verdicts
from workbook.claims.rows import AFTER, AMONG, BEFORE, claim_row
from workbook.claims.verdict import GROUPS, VERDICTS, Finding
from workbook.records import Record, parse_line
from workbook.records.store import content_of
from workbook.registry import STUDIES
from workbook.report.claims_pages import write_claims, write_papers
from workbook.report.then_and_now import paragraph
from workbook.show.templates import drawn
from workbook.trials.trial import Trial

# ---- a page whose records replicate some claims and not others ------------------------------------------------------

GOOGLENET = Trial(model="googlenet", image_px=224)


def slowing(record: Record) -> Record:
    """Return the record with the second half of its blocks twice as slow."""
    assert record.result is not None
    half = record.result.host_s[:5]
    blocks = record.result.model_copy(update={"host_s": [*half, *(2 * block_s for block_s in half)]})
    return record.model_copy(update={"result": blocks})


def wavering(record: Record) -> Record:
    """Return the record with a utilisation that depends on the pass."""
    assert record.telemetry is not None
    timed = record.telemetry.windows["timed"]
    used = {"utilisation": Statistic(mean=0.3 * record.pass_number, low=0.1, high=1.0, n=10)}
    sources = {**timed.sources, "gpu0": timed.sources["gpu0"] | used}
    windows = {**record.telemetry.windows, "timed": timed.model_copy(update={"sources": sources})}
    return record.model_copy(update={"telemetry": record.telemetry.model_copy(update={"windows": windows})})


def make_records(reports: Path) -> None:
    """Write records of two hosts and two profiles, after those of an older plan, another scale and a failed attempt.

    On the h200, GoogLeNet slows down. On the h100, one network's utilisation rises in each pass, and one network runs
    out of memory.
    """
    older = [taken(trial, 1, TRIALS[:1], passes=1) for trial in TRIALS[:1]]
    smoke = passes_of(passes=1, scale="smoke")
    crashed = failed(TRIALS[0], 1, "no memory").model_copy(update={"status": "crashed"})
    put(reports, "h200", [*older, *smoke, crashed, *reversed(passes_of())])
    put(reports, "h200", passes_of(POWERED, host=B, study=POWER))
    put(reports, "h200", [slowing(record) for record in passes_of((GOOGLENET, VGG), host=B, study="06_cpu_vs_gpu")])
    changes = {
        VGG: wavering,
        VGG_LARGE: lambda record: failed(record.as_trial, record.pass_number, "CUDA out of memory", host=C),
    }
    h100 = [changes.get(record.as_trial, lambda same: same)(record) for record in passes_of(host=C, speed=0.8)]
    put(reports, "h100", h100)


rule_days = cache(committed)


def page_for(folder: Path, hw: str, papers: list[Paper]) -> tuple[Path, list[Finding]]:
    """Write the claims' page of a profile beside its records. Return the page's path and the findings."""
    with reporting(folder):
        findings = judge_all(papers, evidence(hw))
    path = folder / hw / "claims.html"
    path.parent.mkdir(exist_ok=True)
    write_claims(
        path, Findings(findings), title="H200 SXM", links=[("fingerprint.html", "Fingerprint")], days=rule_days()
    )
    return path, findings


Made = tuple[Path, list[Finding]]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reports")
    make_records(folder)
    return folder


@pytest.fixture(scope="module")
def made(reports: Path) -> Made:
    """Return the page of the h200 and its findings."""
    return page_for(reports, "h200", PAPERS)


@pytest.fixture(scope="module")
def soup(made: Made) -> BeautifulSoup:
    return parsed(made[0])


def shown(soup: BeautifulSoup) -> dict[str, Tag]:
    """Return the part of the page for each claim, by the claim's id."""
    return {str(claim.div["id"]).removeprefix("claim-"): claim for claim in soup.select(".lk-claim") if claim.div}


# ---- every claim with its verdict -----------------------------------------------------------------------------------


def test_every_claim_appears_once_with_its_words_verdict_and_scope_or_reason(made: Made, soup: BeautifulSoup) -> None:
    published, parts = [claim.id for paper in PAPERS for claim in paper.claims], shown(soup)
    assert len(soup.select(".lk-claim")) == len(published) and sorted(parts) == sorted(published)
    assert {finding.verdict for finding in made[1]} == set(VERDICTS), "these records give every verdict"
    for finding in made[1]:
        claim = parts[finding.claim.id]
        paper, statement, _, here, verdict = [said_in(part) for part in claim.summary.find_all("span", recursive=False)]
        assert (paper, statement) == (finding.paper.name, " ".join(finding.claim.statement.split()))
        assert claim["data-verdict"] == finding.group.replace(" ", "-") and finding.verdict in verdict
        assert " ".join(finding.claim.where.split()) in said_in(claim.div)
        if finding.verdict == "not testable here":
            assert here == "–" and finding.reason and finding.reason[1:] in said_in(claim.div)
        else:
            assert here != "–" and finding.scope in said_in(claim.div)
            assert "synthetic32" not in verdict and "PyTorch" not in verdict, "the page says it once"


def test_records_of_round_0_judge_no_claim_and_the_reason_says_so(tmp_path: Path) -> None:
    put(tmp_path, "h200", passes_of(passes=1, scale="smoke"))
    put(tmp_path, "h200", passes_of(POWERED, host=B, study=POWER))
    _, findings = page_for(tmp_path, "h200", PAPERS)
    judged = {
        side for finding in findings for of in finding.tests if of.cases for side in finding.claim.studies_of(of.test)
    }
    assert POWER in judged and "01_training" not in judged
    (reason,) = {
        of.reason
        for finding in findings
        for of in finding.tests
        if finding.claim.studies_of(of.test) == ["01_training"]
    }
    assert "but one run of small sizes, which judges no claim" in reason and "make report HW=h200" in reason


def test_a_claim_says_when_its_test_was_changed_and_when_its_records_were_made(
    made: Made, soup: BeautifulSoup, tmp_path: Path
) -> None:
    for finding in made[1]:
        details = said_in(shown(soup)[finding.claim.id].div)
        times = {
            record.started_at[:16].replace("T", " ")
            for case in finding.cases
            for side in case.sides
            for record in side.results.by_trial.get(side.trial, [])
        }
        assert claim_row(finding).starts == ([min(times), max(times)] if times else [])
        assert (f"{max(times)} UTC" if times else "no records") in details
    if shutil.which("git") is None:
        pytest.skip("needs git to know when a rule was committed")
    git = ("git", "-c", "user.name=n", "-c", "user.email=e", "-C", str(tmp_path))
    test = "  - id: a-{}\n    tests:\n      - select: {{batch: [1, {}]}}\n        because: x\n"
    names = ("kept", "selection", "mark", "no-only", "study")
    first = "claims:\n" + "".join(map(test.format, names, range(5))) + "    studies: [s, t]\n"
    first = first.replace("a-no-only\n", "a-no-only\n    only: {data: [d]}\n")
    later = first.replace("[1, 1]", "[1, 7]").replace("a-mark\n", "a-mark\n    mark: derived\n")
    later = later.replace("    only: {data: [d]}\n", "").replace("[s, t]", "[t]")
    reworded = later.replace("because: x", "because: y")
    days = ("2026-01-02", "2026-03-04", "2026-05-06", "2026-05-07", "2026-05-08")
    for day, text in zip(days, (first, later, "no paper", "", reworded), strict=True):
        (tmp_path / "a.yaml").write_text(text, encoding="utf-8")
        for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "m"]):
            environment = {**os.environ, "GIT_COMMITTER_DATE": f"{day}T12:00:00Z"}
            subprocess.run([*git, *command], check=True, env=environment)
    changed = {f"a-{name}": "2026-03-04 12:00" for name in names[1:]}
    assert committed(tmp_path) == {"a-kept": "2026-01-02 12:00"} | changed, "and not with the words of `because`"
    (tmp_path / "a.yaml").write_text(text.replace("because: y", "because: z").replace("[1, 0]", "[1, 8]"))
    assert committed(tmp_path) == changed, "a selection that is not committed has no date"
    tested = next(finding for finding in made[1] if finding.group == "replicated")
    first = claim_row(tested).starts[0]
    for changed, order in (("2020-01-01 00:00", BEFORE), (first, AMONG), ("2099-01-01 00:00", AFTER)):
        row = claim_row(tested, changed)
        assert (row.changed, row.order) == (changed, order) and f"{changed} UTC, {order}" in drawn("claim", row)
        assert ("Rule changed after" in row.remarks) == (order != BEFORE)
        assert bool(newer_tests([tested], {tested.claim.id: changed})) == (order != BEFORE)
    shutil.rmtree(tmp_path / ".git")
    assert committed(tmp_path) == {}


def test_every_effect_stands_beside_its_bound_its_n_and_its_verdict(made: Made, soup: BeautifulSoup) -> None:
    parts, effects = shown(soup), 0
    for finding in made[1]:
        rows = parts[finding.claim.id].select("tbody tr")
        assert len(rows) == len(finding.cases)
        for row, case in zip(rows, finding.cases, strict=True):
            assert said_in(row.th).startswith(" ".join(case.label.split()))
            cells = [said_in(cell) for cell in row.select("td")]
            assert cells[0] == (case.shown or "–")
            assert cells[-3] == str(case.n) and (not case.effect or case.n == case.effect.n)
            assert cells[-2].split(" ", 1)[1] == case.verdict
            if case.verdict in ("inconclusive", "not testable here"):
                assert case.reason and case.reason[1:] in said_in(row.th)
            effects += case.effect is not None
        captions = [said_in(caption) for caption in parts[finding.claim.id].select("caption")]
        for caption, judged in zip(captions, [test for test in finding.tests if test.cases], strict=True):
            assert " ".join(judged.test.because.split()) in caption
    assert effects > 5


def test_a_network_that_ran_out_of_memory_is_a_row_with_its_reason(tmp_path: Path) -> None:
    make_records(tmp_path)
    path, _ = page_for(tmp_path, "h100", PAPERS)
    rows = texts(path.read_text(encoding="utf-8"), ".lk-cases tbody tr")
    assert any("CUDA out of memory" in row and "– not testable here" in row for row in rows)


def test_a_profile_without_records_has_every_claim_and_tests_none(tmp_path: Path) -> None:
    path, findings = page_for(tmp_path, "k40m", PAPERS)
    page = parsed(path)
    assert [claim["data-verdict"] for claim in shown(page).values()] == ["not-testable-here"] * len(findings)
    for later, what in ((False, "published claims"), (True, "published claims of later sources")):
        number = sum(len(paper.claims) for paper in PAPERS if paper.later == later)
        assert f"Of {number} {what} none could be tested here." in said_in(page.header)


def test_claims_that_could_be_tested_come_first(made: Made, soup: BeautifulSoup) -> None:
    untested = [claim["data-verdict"] == "not-testable-here" for claim in soup.select(".lk-claim")]
    assert untested == sorted(untested) and not untested[0]


# ---- filters --------------------------------------------------------------------------------------------------------

RULE = re.compile(r"#(?P<id>[\w-]+):target ~ \.lk-claims \.lk-claim:not\((?P<kept>[^)]*)\) \{ display: none; \}")


def fits(finding: Finding, choice: str) -> bool:
    """Return whether the filter at the address `choice` includes the claim."""
    paper, verdict = choice.split("-", 1)
    return paper in ("all", finding.paper.id) and verdict in ("claims", finding.group.replace(" ", "-"))


def test_every_filter_is_a_link_that_shows_only_its_claims_and_their_number(made: Made, soup: BeautifulSoup) -> None:
    _, own = re.findall(r"<style>(.*?)</style>", made[0].read_text(encoding="utf-8"), re.DOTALL)
    rules = {rule["id"]: rule["kept"] for rule in RULE.finditer(own)}
    offered = {str(link["href"])[1:]: said_in(link) for link in soup.select(".lk-choose a")}
    verdicts = [group.replace(" ", "-") for group in (*GROUPS, "claims")]
    papers = ["all", *(paper.id for paper in PAPERS)]
    wanted = {f"{paper}-{verdict}" for paper in papers for verdict in verdicts}
    assert set(offered) == set(rules) == {name for name in wanted if any(fits(finding, name) for finding in made[1])}
    claims = soup.select(".lk-claim")
    for choice, kept in rules.items():
        left = {str(claim.div["id"]) for claim in claims if claim.div and claim.css.match(kept)}
        assert left == {f"claim-{finding.claim.id}" for finding in made[1] if fits(finding, choice)}
        assert re.search(r"\d+", offered[choice])[0] == str(len(left))  # type: ignore[index]
        (notice,) = soup.find_all(id=choice)
        assert said_in(notice).startswith(f"{len(left)} of {len(made[1])} shown")


# ---- addresses ------------------------------------------------------------------------------------------------------


def test_every_link_to_records_names_only_the_lines_of_the_trials_shown(
    made: Made, soup: BeautifulSoup, reports: Path
) -> None:
    parts, looked_at = shown(soup), 0
    for finding in made[1]:
        for row, case in zip(parts[finding.claim.id].select("tbody tr"), finding.cases, strict=True):
            passes = {
                (side.results.file(), side.trial.key, record.pass_number)
                for side in case.sides
                for record in side.results.by_trial[side.trial]
            }
            read = set()
            for link in row.select("td:last-child a"):
                file = made[0].parent / str(link["href"])
                lines = content_of(file).decode().splitlines()
                for number in re.findall(r"\d+", said_in(link)):
                    record = parse_line(lines[int(number) - 1])
                    assert record.scale == case.sides[0].results.scale
                    assert record.status != "crashed" and len(record.planned.passes) > 1, "no link to a replaced record"
                    read.add((file.resolve().relative_to(reports.resolve()).as_posix(), record.key, record.pass_number))
            assert read == passes
            looked_at += len(read)
    assert looked_at > 30


def test_a_page_without_claims_says_so(tmp_path: Path) -> None:
    write_claims(tmp_path / "claims.html", Findings([]), title="H200", links=[], days={})
    assert "Of 0 published claims none could be tested here." in (tmp_path / "claims.html").read_text(encoding="utf-8")


# ---- pages of papers ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    reports = tmp_path_factory.mktemp("papers")
    with reporting(reports, PAPERS):
        put(reports, "h200", passes_of())
        (reports / "h200" / "01_training.html").write_text("<title>Training</title>")
        write_papers(reports / "h200", verdicts(evidence("h200")), title="H200", links=[("claims.html", "Claims")])
    return reports / "h200" / "papers"


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.id)
def test_a_page_has_every_claim_exhibit_and_printed_table_of_its_paper(papers: Path, paper: Paper) -> None:
    page = BeautifulSoup((papers / f"{paper.id}.html").read_text(encoding="utf-8"), "html.parser")
    links = [str(link["href"]) for link in page.select(".lk-verdicts th a")]
    assert sorted(links) == sorted(f"../claims.html#claim-{claim.id}" for claim in paper.claims)
    groups = [verdict.get_text() for verdict in page.select("main > .lk-scroll .lk-verdict")]
    assert groups == sorted(groups, key=lambda text: ["✗", "~", "✓"].index(text[0])), "what fails comes first"
    first = said_in(page.select_one("main > *"))
    assert first.startswith("H200: Of "), "a page begins with what its device shows"
    assert paragraph(paper) == "" or paragraph(paper) not in said_in(page), "then_and_now.html tells the story"
    rows = page.select('[aria-label="Tables and figures"] tbody tr')
    assert len(rows) == len(paper.exhibits) > (0 if paper.later else 2)
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
