"""The claims' page: every claim once, each filter hides just what it should, every link leads to the records meant."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from bs4 import BeautifulSoup, Tag

from labkit.claims.findings import Findings
from labkit.claims.judge import judge_all
from labkit.claims.papers import Paper
from labkit.claims.shown import evidence
from labkit.claims.verdict import VERDICTS, Finding
from labkit.records import Record, parse_line
from labkit.records.observed import Statistic
from labkit.records.store import content_of
from labkit.registry import STUDIES
from labkit.report.claims_page import write_claims
from tests.unit.made_telemetry import PAPERS
from tests.unit.test_site import (
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

# ---- a page of records that show some claims and not others ---------------------------------------------------------


def slowing(record: Record) -> Record:
    """The same, with the second half of its blocks twice as slow."""
    assert record.result is not None
    half = record.result.host_s[:5]
    blocks = record.result.model_copy(update={"host_s": [*half, *(2 * block_s for block_s in half)]})
    return record.model_copy(update={"result": blocks})


def wavering(record: Record) -> Record:
    """The same, with a utilisation of its own in each pass."""
    assert record.telemetry is not None
    timed = record.telemetry.windows["timed"]
    used = {"utilisation": Statistic(mean=0.3 * record.pass_number, low=0.1, high=1.0, n=10)}
    sources = {**timed.sources, "gpu0": timed.sources["gpu0"] | used}
    windows = {**record.telemetry.windows, "timed": timed.model_copy(update={"sources": sources})}
    return record.model_copy(update={"telemetry": record.telemetry.model_copy(update={"windows": windows})})


def make_records(reports: Path) -> None:
    """Two hosts and two profiles; before what is shown stand an older plan, another scale and a first attempt.

    On the h200 one network slows down; on the h100 one is used more in each pass, and one has no memory.
    """
    older = [taken(trial, 1, TRIALS[:1], passes=1) for trial in TRIALS[:1]]
    smoke = passes_of(passes=1, scale="smoke")
    crashed = failed(TRIALS[0], 1, "no memory").model_copy(update={"status": "crashed"})
    shown = [slowing(record) if record.as_trial == VGG_LARGE else record for record in passes_of()]
    put(reports, "h200", [*older, *smoke, crashed, *reversed(shown)])
    put(reports, "h200", passes_of(POWERED, host=B, study=POWER))
    changes = {
        VGG: wavering,
        VGG_LARGE: lambda one: failed(one.as_trial, one.pass_number, "CUDA out of memory", host=C),
    }
    h100 = [changes.get(record.as_trial, lambda one: one)(record) for record in passes_of(host=C, speed=0.8)]
    put(reports, "h100", h100)


def page_for(folder: Path, hw: str, papers: list[Paper]) -> tuple[Path, list[Finding]]:
    """The claims' page of a profile beside its records, and what it was made of."""
    with reporting(folder):
        findings = judge_all(papers, evidence(hw))
    path = folder / hw / "claims.html"
    path.parent.mkdir(exist_ok=True)
    write_claims(path, Findings(findings), title="H200 SXM", links=[("fingerprint.html", "Fingerprint")])
    return path, findings


Made = tuple[Path, list[Finding]]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reports")
    make_records(folder)
    return folder


@pytest.fixture(scope="module")
def made(reports: Path) -> Made:
    """The page of the h200."""
    return page_for(reports, "h200", PAPERS)


@pytest.fixture(scope="module")
def soup(made: Made) -> BeautifulSoup:
    return parsed(made[0])


def articles(soup: BeautifulSoup) -> dict[str, Tag]:
    """Claim -> its part of the page."""
    return {str(article["id"]).removeprefix("claim-"): article for article in soup.select("article.lk-claim")}


# ---- every claim with its verdict -----------------------------------------------------------------------------------


def test_every_claim_stands_there_once_with_its_words_its_verdict_and_its_scope_or_reason(
    made: Made, soup: BeautifulSoup
) -> None:
    published, found = [claim.id for paper in PAPERS for claim in paper.claims], articles(soup)
    assert len(soup.select("article")) == len(published) and sorted(found) == sorted(published)
    assert {finding.verdict for finding in made[1]} == set(VERDICTS), "these records give every verdict"
    for finding in made[1]:
        article = found[finding.claim.id]
        assert said_in(article.h3) == " ".join(finding.claim.statement.split())
        assert article["data-verdict"] == finding.verdict.replace(" ", "-")
        assert f"{finding.paper.name}: {' '.join(finding.claim.where.split())}" in said_in(article)
        line = said_in(article.select_one("p:has(> .lk-verdict)")).split(finding.verdict, 1)[1].strip()
        if finding.verdict == "not testable here":
            assert finding.reason and line.lower() == f"{finding.reason}.".lower()
        elif finding.scope:
            assert line.startswith(f"{finding.scope}.")


def test_every_effect_stands_beside_its_bound_its_n_and_its_verdict(made: Made, soup: BeautifulSoup) -> None:
    found, effects = articles(soup), 0
    for finding in made[1]:
        rows = found[finding.claim.id].select("tbody tr")
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
        captions = [said_in(caption) for caption in found[finding.claim.id].select("caption")]
        for caption, judged in zip(captions, [one for one in finding.tests if one.cases], strict=True):
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
    assert [article["data-verdict"] for article in articles(page).values()] == ["not-testable-here"] * len(findings)
    assert f"Of {len(findings)} published claims none could be tested here." in said_in(page.header)


def test_what_could_be_tested_comes_first(made: Made, soup: BeautifulSoup) -> None:
    shares = []
    for section in soup.select("section.lk-paper"):
        untested = [article["data-verdict"] == "not-testable-here" for article in section.select("article")]
        assert untested == sorted(untested)
        shares.append(untested.count(False))
        whole, tested = len(untested), untested.count(False)
        count = f"Of {whole} published claims {tested or 'none'} could be tested here"
        assert count in said_in(section.select_one("h2 + p"))
    assert shares == sorted(shares, reverse=True) and shares[0] > 0
    assert len(shares) == len(PAPERS)


# ---- filters --------------------------------------------------------------------------------------------------------

RULE = re.compile(
    r"body:has\(#(?P<choice>[\w-]+):checked\) \.(?P<kind>lk-[a-z]+)"
    r':not\(\[(?P<name>data-[a-z]+)(?P<how>~?=)"(?P<value>[^"]+)"\]\) \{ display: none; \}'
)


@pytest.fixture(scope="module")
def rules(made: Made) -> list[dict[str, str]]:
    """The page's own rules. Each is one selector: a browser that does not know :has() drops it and hides nothing."""
    _, own = re.findall(r"<style>(.*?)</style>", made[0].read_text(encoding="utf-8"), re.DOTALL)
    found = [RULE.fullmatch(line) for line in own.splitlines() if line.strip()]
    assert all(found), "every line is such a rule"
    return [one.groupdict() for one in found if one]


def hides(rule: dict[str, str], element: Tag) -> bool:
    """Whether the rule's selector fits the element, as CSS has it."""
    value = str(element.get(rule["name"], ""))
    has = rule["value"] in value.split() if rule["how"] == "~=" else value == rule["value"]
    return rule["kind"] in element["class"] and not has


def fitting(findings: list[Finding], name: str, value: str) -> set[str]:
    """The claims that a choice is about, from what was judged."""
    tells = {
        "verdict": lambda one: one.verdict.replace(" ", "-") == value,
        "paper": lambda one: one.paper.id == value,
        "study": lambda one: value in one.claim.studies,
    }
    return {one.claim.id for one in findings if tells[name](one)}


def test_every_choice_leaves_just_its_own_claims_and_papers_in_sight(
    made: Made, soup: BeautifulSoup, rules: list[dict[str, str]]
) -> None:
    offered: dict[str, list[str]] = {}
    for button in soup.select("form input[id]"):
        _, name, value = str(button["id"]).split("-", 2)
        offered.setdefault(name, []).append(value)
        active = [rule for rule in rules if rule["choice"] == button["id"]]
        hidden = {
            id(element) for rule in active for element in soup.select(".lk-claim, .lk-paper") if hides(rule, element)
        }
        left = {claim for claim, article in articles(soup).items() if id(article) not in hidden}
        assert left == fitting(made[1], name, value), (name, value)
        assert said_in(button.parent).endswith(f"({len(left)})"), "and its label says how many they are"
        if name == "paper":
            sections = [
                section["data-paper"] for section in soup.select("section.lk-paper") if id(section) not in hidden
            ]
            assert sections == [value]
    with_claims = {study for finding in made[1] for study in finding.claim.studies}
    assert offered == {
        "verdict": [verdict.replace(" ", "-") for verdict in VERDICTS],
        "paper": list(dict.fromkeys(finding.paper.id for finding in made[1])),
        "study": [study for study in STUDIES if study in with_claims],
    }


def test_each_filter_is_a_group_with_a_legend_where_all_is_chosen(soup: BeautifulSoup) -> None:
    assert soup.form is not None and soup.form["aria-label"]
    groups = soup.select("form > fieldset")
    assert [said_in(group.legend) for group in groups] == ["Verdict", "Paper", "Study"]
    for group in groups:
        buttons = group.select("label > input")
        assert {button["type"] for button in buttons} == {"radio"}
        assert {button["name"] for button in buttons} == {said_in(group.legend).lower()}
        assert [button.has_attr("checked") for button in buttons] == [True] + [False] * (len(buttons) - 1)
        assert said_in(buttons[0].parent) == "all" and not buttons[0].get("id"), "no rule can be about it"


# ---- addresses ------------------------------------------------------------------------------------------------------


def test_every_link_to_records_names_the_lines_of_just_those_trials_that_are_shown(
    made: Made, soup: BeautifulSoup, reports: Path
) -> None:
    found, looked_at = articles(soup), 0
    for finding in made[1]:
        for row, case in zip(found[finding.claim.id].select("tbody tr"), finding.cases, strict=True):
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
                    assert record.status != "crashed" and len(record.planned.keys) > 1, "nothing that was replaced"
                    read.add((file.resolve().relative_to(reports.resolve()).as_posix(), record.key, record.pass_number))
            assert read == passes
            looked_at += len(read)
    assert looked_at > 30


def test_no_claims_at_all_are_said_and_not_a_crash(tmp_path: Path) -> None:
    write_claims(tmp_path / "claims.html", Findings([]), title="H200", links=[])
    assert "Of 0 published claims none could be tested here." in (tmp_path / "claims.html").read_text(encoding="utf-8")
