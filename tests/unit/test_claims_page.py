"""The claims' page: every claim once, each filter hides just what it should, every link leads to the records meant."""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from bs4 import BeautifulSoup, Tag

from labkit.claims.findings import Findings
from labkit.claims.judge import judge_all
from labkit.claims.papers import Paper
from labkit.claims.shown import evidence
from labkit.claims.verdict import VERDICTS, Finding
from labkit.errors import LabkitError
from labkit.records import Record, parse_line
from labkit.records.observed import Statistic
from labkit.records.store import content_of
from labkit.registry import STUDIES
from labkit.report.claims_page import write_claims
from labkit.report.html import TEMPLATE, external_urls
from tests.committed import committed_reports
from tests.unit.made_telemetry import PAPERS
from tests.unit.test_site import (
    EVIL,
    POWER,
    POWERED,
    TRAINING,
    TRIALS,
    VGG,
    VGG_LARGE,
    B,
    C,
    assert_harmless,
    assert_links_lead_somewhere,
    evil,
    evil_paper,
    failed,
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


@pytest.fixture(scope="module", params=["made by hand", "committed"])
def reports(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reports")
    if request.param == "made by hand":
        make_records(folder)
    else:
        shutil.copytree(committed_reports(), folder, dirs_exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def made(reports: Path) -> Made:
    """The page of the h200."""
    return page_for(reports, "h200", PAPERS)


@pytest.fixture(scope="module")
def soup(made: Made) -> BeautifulSoup:
    return BeautifulSoup(made[0].read_text(encoding="utf-8"), "html.parser")


def articles(soup: BeautifulSoup) -> dict[str, Tag]:
    """Claim -> its part of the page."""
    return {str(article["id"]).removeprefix("claim-"): article for article in soup.select("article.lk-claim")}


# ---- every claim with its verdict -----------------------------------------------------------------------------------


def test_the_records_made_by_hand_give_every_verdict(tmp_path: Path) -> None:
    make_records(tmp_path)
    _, findings = page_for(tmp_path, "h200", PAPERS)
    assert {finding.verdict for finding in findings} == set(VERDICTS)


def test_every_claim_of_every_paper_stands_there_once_with_its_words_and_its_verdict(
    made: Made, soup: BeautifulSoup
) -> None:
    published = [claim.id for paper in PAPERS for claim in paper.claims]
    assert len(soup.select("article")) == len(published)
    found = articles(soup)
    assert sorted(found) == sorted(published)
    for finding in made[1]:
        article = found[finding.claim.id]
        assert said_in(article.h3) == " ".join(finding.claim.statement.split())
        assert article["data-verdict"] == finding.verdict.replace(" ", "-")
        assert said_in(article.select_one(".lk-verdict")).split(" ", 1)[1] == finding.verdict
        assert f"{finding.paper.name}: {' '.join(finding.claim.where.split())}" in said_in(article)


def test_a_verdict_is_followed_by_its_scope_or_by_the_reason_for_which_there_is_none(
    made: Made, soup: BeautifulSoup
) -> None:
    found = articles(soup)
    for finding in made[1]:
        line = said_in(found[finding.claim.id].select_one("p:has(> .lk-verdict)")).split(finding.verdict, 1)[1]
        if finding.verdict == "not testable here":
            assert finding.reason and line.strip().lower() == f"{finding.reason}.".lower()
        elif finding.scope:
            assert line.strip().startswith(f"{finding.scope}.")


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
    page = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
    assert len(articles(page)) == len(findings)
    assert {article["data-verdict"] for article in articles(page).values()} == {"not-testable-here"}
    assert f"Of {len(findings)} published claims none could be tested here." in said_in(page.header)
    for article in articles(page).values():
        assert len(said_in(article.select_one("p:has(> .lk-verdict)"))) > len("– not testable here"), "it says why"


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
    lines = [line for line in own.splitlines() if line.strip()]
    found = [RULE.fullmatch(line) for line in lines]
    assert all(found), "every line is such a rule"
    assert ":checked)" not in re.sub(r"label:has\(input:checked\)", "", (TEMPLATE / "style.css").read_text())
    return [one.groupdict() for one in found if one]


def hides(rule: dict[str, str], element: Tag) -> bool:
    """Whether the rule's selector fits the element, as CSS has it."""
    value = element.get(rule["name"])
    assert value is None or isinstance(value, str)
    has = value is not None and (rule["value"] in value.split() if rule["how"] == "~=" else value == rule["value"])
    return rule["kind"] in element["class"] and not has


def visible(soup: BeautifulSoup, rules: list[dict[str, str]], *checked: str) -> set[str]:
    """The claims that are in sight when these radio buttons are on."""
    active = [rule for rule in rules if rule["choice"] in checked]
    return {
        name
        for name, article in articles(soup).items()
        if not any(hides(rule, element) for rule in active for element in (article, *article.find_parents("section")))
    }


def fitting(findings: list[Finding], name: str, value: str) -> set[str]:
    """The claims that a choice is about, from what was judged."""
    tells = {
        "verdict": lambda one: one.verdict.replace(" ", "-") == value,
        "paper": lambda one: one.paper.id == value,
        "study": lambda one: value in one.claim.studies,
    }
    return {one.claim.id for one in findings if tells[name](one)}


@pytest.fixture(scope="module")
def choices(soup: BeautifulSoup) -> list[tuple[str, str, Tag]]:
    """(filter, value, its label) of each radio button but those that show all."""
    buttons = [button for button in soup.select("form input") if button.get("id")]
    found = [re.fullmatch(r"filter-([a-z]+)-(.+)", str(button["id"])) for button in buttons]
    return [(one[1], one[2], button.parent) for one, button in zip(found, buttons, strict=True) if one]


def test_every_choice_leaves_just_its_own_claims_in_sight(
    made: Made, soup: BeautifulSoup, rules: list[dict[str, str]], choices: list[tuple[str, str, Tag]]
) -> None:
    everything = set(articles(soup))
    for name, value, label in choices:
        left = visible(soup, rules, f"filter-{name}-{value}")
        assert left == fitting(made[1], name, value), (name, value)
        assert said_in(label).endswith(f"({len(left)})"), "and its label says how many they are"
    assert visible(soup, rules) == everything


def test_two_choices_leave_what_fits_both(
    made: Made, soup: BeautifulSoup, rules: list[dict[str, str]], choices: list[tuple[str, str, Tag]]
) -> None:
    for (name, value, _), (other, second, _) in itertools.combinations(choices, 2):
        if name != other:
            left = visible(soup, rules, f"filter-{name}-{value}", f"filter-{other}-{second}")
            assert left == fitting(made[1], name, value) & fitting(made[1], other, second)


def test_choosing_a_paper_hides_the_other_papers_headings_too(soup: BeautifulSoup, rules: list[dict[str, str]]) -> None:
    for paper in PAPERS:
        active = [rule for rule in rules if rule["choice"] == f"filter-paper-{paper.id}"]
        left = [
            section["data-paper"]
            for section in soup.select("section.lk-paper")
            if not any(hides(rule, section) for rule in active)
        ]
        assert left == [paper.id]


def test_every_radio_button_has_its_rule_and_every_rule_its_radio_button(
    soup: BeautifulSoup, rules: list[dict[str, str]], choices: list[tuple[str, str, Tag]]
) -> None:
    assert {rule["choice"] for rule in rules} == {f"filter-{name}-{value}" for name, value, _ in choices}
    values = {(rule["name"], rule["value"]) for rule in rules if rule["kind"] == "lk-claim"}
    assert values == {(f"data-{name}", value) for name, value, _ in choices}


def test_the_filters_offer_every_verdict_every_paper_and_every_study_with_a_claim(
    made: Made, choices: list[tuple[str, str, Tag]]
) -> None:
    offered = {name: [value for one, value, _ in choices if one == name] for name in ("verdict", "paper", "study")}
    assert offered["verdict"] == [verdict.replace(" ", "-") for verdict in VERDICTS]
    assert sorted(offered["paper"]) == sorted(paper.id for paper in PAPERS)
    with_claims = {study for finding in made[1] for study in finding.claim.studies}
    assert offered["study"] == [study for study in STUDIES if study in with_claims]


def test_each_filter_is_a_group_with_a_legend_whose_buttons_have_labels_and_where_all_is_chosen(
    soup: BeautifulSoup,
) -> None:
    assert soup.form["aria-label"]
    groups = soup.select("form > fieldset")
    assert [said_in(group.legend) for group in groups] == ["Verdict", "Paper", "Study"]
    names = set()
    for group in groups:
        first, *_ = group.find_all(True, recursive=False)
        assert first.name == "legend"
        buttons = group.select("input")
        assert {button["type"] for button in buttons} == {"radio"}
        assert len({button["name"] for button in buttons}) == 1, "choosing one leaves the others"
        names.add(buttons[0]["name"])
        assert [button.has_attr("checked") for button in buttons] == [True] + [False] * (len(buttons) - 1)
        assert all(button.parent.name == "label" and said_in(button.parent) for button in buttons)
        assert said_in(buttons[0].parent) == "all" and not buttons[0].get("id"), "no rule can be about it"
    assert len(names) == len(groups), "each filter is chosen on its own"


# ---- addresses ------------------------------------------------------------------------------------------------------


def test_ids_are_unique_and_every_link_is_relative_and_leads_to_something(made: Made) -> None:
    path, _ = made
    (path.parent / "index.html").write_text("")
    (path.parent / "fingerprint.html").write_text("")
    assert_links_lead_somewhere(path)
    assert external_urls(path.read_text(encoding="utf-8")) == []


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


def test_the_study_a_claim_belongs_to_is_that_of_its_records(made: Made, soup: BeautifulSoup) -> None:
    for name, article in articles(soup).items():
        files = {str(link["href"]).rsplit("/", 1)[-1].split(".")[0] for link in article.select("tbody a")}
        finding = next(one for one in made[1] if one.claim.id == name)
        assert files <= {finding.claim.study_of(test) for test in finding.claim.tests}
    assert {TRAINING, POWER} <= {str(link["href"]).rsplit("/", 1)[-1].split(".")[0] for link in soup.select("tbody a")}
    assert any(str(link["href"]).startswith("../h200/records/") for link in soup.select("tbody a"))


# ---- the picture of an interval -------------------------------------------------------------------------------------


class _Bars(HTMLParser):
    """The svgs of a page: (class, width, the places of bounds, the ends of the interval, the point)."""

    def __init__(self) -> None:
        super().__init__()
        self.bars: list[dict[str, list[float]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        about = {name: value or "" for name, value in attrs}
        if tag == "svg":
            self.bars.append({"bound": [], "range": [], "point": [], "width": [float(about["width"])]})
        elif tag == "line":
            self.bars[-1][about["class"].removeprefix("lk-")] += [float(about["x1"]), float(about["x2"])]
        elif tag == "circle":
            self.bars[-1]["point"].append(float(about["cx"]))


def bars_of(row: Tag) -> list[dict[str, list[float]]]:
    reader = _Bars()
    reader.feed(str(row))
    return reader.bars


def test_the_picture_of_an_effect_lies_to_its_bound_as_the_numbers_do(made: Made, soup: BeautifulSoup) -> None:
    found, drawn = articles(soup), 0
    for finding in made[1]:
        for row, case in zip(found[finding.claim.id].select("tbody tr"), finding.cases, strict=True):
            if not (case.effect and case.bounds):
                assert bars_of(row) == []
                continue
            (bar,) = bars_of(row)
            (point,) = bar["point"]
            bounds = [end for end in (case.bounds.low, case.bounds.high) if end is not None]
            assert all(0 <= place <= bar["width"][0] for place in (*bar["bound"], *bar["range"], point))
            assert len(bar["bound"]) == 2 * len(bounds)
            for place, bound in zip(bar["bound"][::2], bounds, strict=True):
                for there, value in zip(
                    (*bar["range"], point), (case.effect.low, case.effect.high, case.effect.point), strict=True
                ):
                    assert value is not None
                    assert abs(there - place) < 0.11 or (there > place) == (value > bound)
            assert row.select_one("svg")["aria-hidden"] == "true", "the numbers say the same"
            drawn += 1
    assert drawn > 5


# ---- what papers and machines say stays text ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def evil_page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Evil papers, an evil title, and a network that failed for an evil reason in every pass."""
    folder = tmp_path_factory.mktemp("evil")
    records = [
        failed(trial, number, evil("out of memory")) if trial == VGG_LARGE else taken(trial, number)
        for number in (1, 2, 3)
        for trial in TRIALS
    ]
    put(folder, "h200", records)
    with reporting(folder):
        findings = judge_all([evil_paper(paper) for paper in PAPERS], evidence("h200"))
    path = folder / "claims.html"
    write_claims(path, Findings(findings), title=evil("profile"), links=[("fingerprint.html", evil("link"))])
    yield path.read_text(encoding="utf-8")


def test_what_a_paper_a_record_or_a_profile_says_stays_text(evil_page: str) -> None:
    of_papers = ("paper", "title", "author", "institution", "published", "framework", "data")
    of_claims = ("statement", "where", "note", "because")
    assert_harmless(evil_page, *map(evil, (*of_papers, *of_claims, "out of memory", "profile", "link")))
    assert EVIL not in evil_page


def test_a_page_that_would_load_something_is_not_written(tmp_path: Path, made: Made) -> None:
    path = tmp_path / "claims.html"
    write_claims(path, Findings(made[1]), title="before", links=[])
    before = path.read_text(encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(LabkitError, match=r"example\.org"):
        patch.setattr("labkit.report.claims_page.finding_html", lambda _: '<img src="https://example.org/x.png">')
        write_claims(path, Findings(made[1]), title="after", links=[])
    assert path.read_text(encoding="utf-8") == before
    assert [one.name for one in tmp_path.iterdir()] == ["claims.html"]


def test_no_claims_at_all_are_said_and_not_a_crash(tmp_path: Path) -> None:
    write_claims(tmp_path / "claims.html", Findings([]), title="H200", links=[])
    assert "Of 0 published claims none could be tested here." in (tmp_path / "claims.html").read_text(encoding="utf-8")
