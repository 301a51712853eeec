"""Stories of the papers: each sentence rests on verdicts of the committed records, and a page shows all of them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from labkit.errors import UserError
from tests.committed import committed_reports
from tests.workbook.made_telemetry import PAPERS
from tests.workbook.test_site import parsed, passes_of, put, said_in
from workbook.claims.findings import Findings
from workbook.claims.judge import judge_all
from workbook.claims.papers import Paper, load_papers
from workbook.claims.reports import evidence
from workbook.hardware.profile import load_profile
from workbook.report.then_and_now import PAGE, paragraph, where_told, write_then_and_now

FIVE = [paper for paper in PAPERS if not paper.later]
VERDICT = re.compile(r"\b(still|holds?|no longer|open|tested|here|neither)\b", re.I)
each_paper = pytest.mark.parametrize("paper", FIVE, ids=lambda paper: paper.id)


def told(paper: Paper) -> Paper:
    """Return a paper with only those claims that its story needs."""
    assert paper.story
    needed = {*paper.story.outcomes, paper.story.figure.claim}
    return paper.model_copy(update={"claims": [claim for claim in paper.claims if claim.id in needed]})


def judged(reports: Path) -> Findings:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_REPORTS", str(reports))
        return Findings(judge_all([told(paper) for paper in FIVE], evidence(None)))


@cache
def findings() -> Findings:
    """Return the verdicts of the committed records of all devices."""
    return judged(committed_reports())


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("comparison")
    write_then_and_now(folder, findings(), links=[("claims.html", "Claims")])
    return folder / PAGE


# ---- the stories ----------------------------------------------------------------------------------------------------


@each_paper
def test_each_sentence_rests_on_the_stated_outcomes_over_all_devices(paper: Paper) -> None:
    assert paper.story and len(paper.story.outcomes) > 3
    groups = {finding.claim.id: finding.group for finding in findings().findings}
    assert {claim: groups[claim] for claim in paper.story.outcomes} == paper.story.outcomes
    stated = [claim for sentence in paper.story.sentences for claim in sentence.rests_on]
    assert len(stated) == len(set(stated)), "a claim has one outcome"


@each_paper
def test_a_sentence_with_a_verdict_names_its_claims(paper: Paper) -> None:
    assert paper.story
    assert [one.text for one in paper.story.sentences if VERDICT.search(one.text) and not one.rests_on] == []


@each_paper
def test_a_story_is_short_and_has_no_typed_number(paper: Paper) -> None:
    assert paper.story
    assert 60 <= len(paragraph(paper).split()) <= 110
    for text in (*(sentence.text for sentence in paper.story.sentences), paper.story.figure.title):
        assert not re.search(r"(?<![\w-])\d", text), text
    longest = max(re.split(r"(?<=[.:]) ", paragraph(paper)), key=lambda part: len(part.split()))
    assert len(longest.split()) < 25, longest
    assert len(paper.story.figure.caption.split()) <= 30


def test_int8_gains_more_than_in_the_paper_and_has_more_than_four_times_the_peak() -> None:
    """What the story of the V100 paper says of hardware stands in no claim."""
    (int8,) = [finding for finding in findings().findings if finding.claim.id == "dell_v100-int8"]
    lows = [case.effect.low for case in int8.cases if case.effect and case.published]
    assert len(lows) == 2 and all(low and low > 2 * 3.7 for low in lows)
    peaks = load_profile("h100").peaks.flop_per_s
    assert peaks["int8"].value > 4 * 4 * peaks["fp32"].value


def test_both_generations_of_gpus_that_the_story_of_cern_calls_ours_are_one() -> None:
    assert load_profile("h100").device.compute_capability == load_profile("h200").device.compute_capability


# ---- the page -------------------------------------------------------------------------------------------------------


def test_the_page_has_a_paragraph_and_a_figure_for_each_of_the_five_papers(page: Path) -> None:
    soup = parsed(page)
    assert [section["id"] for section in soup.select("main > section")] == [paper.id for paper in FIVE]
    for section, paper in zip(soup.select("main > section"), FIVE, strict=True):
        assert paragraph(paper) in said_in(section)
        assert [link["href"] for link in section.select("h2 a")] == [f"papers/{paper.id}.html"]
        (title,), (svg,) = section.select(".lk-title"), section.select("svg")
        words = re.findall(r"\S*[A-Za-z]\S*", said_in(title))
        assert len(words) <= 9 and re.search(r"\d", said_in(title)), "a title is a finding with its value"
        assert said_in(title) in str(svg["aria-label"])
        names = said_in(svg)
        assert f"{paper.name} paper" in names and "here" in names
        assert paper.figure_test.published
        for name in (name for one in paper.figure_test.published for name in one.hardware):
            assert load_profile(name).title in names, "each GPU of the paper has a dot"
        assert "H200 SXM" in names
    assert not soup.select(".lk-notice, script")


def test_other_verdicts_than_the_stated_ones_are_named(tmp_path: Path) -> None:
    put(tmp_path, "h200", passes_of())
    write_then_and_now(tmp_path, judged(tmp_path), links=[])
    soup = parsed(tmp_path / PAGE)
    notices = [said_in(notice) for notice in soup.select(".lk-notice")]
    assert len(notices) == len(FIVE) and "cern-sampling is not testable here" in notices[0]
    titles = [said_in(title) for title in soup.select(".lk-title")]
    assert "FP32 FLOP over peak and elapsed time: not measured" in titles


def test_a_site_links_the_page_only_if_it_exists(tmp_path: Path) -> None:
    assert where_told(tmp_path / "h200") == ""
    (tmp_path / "comparison").mkdir()
    (tmp_path / "comparison" / PAGE).write_text("")
    assert where_told(tmp_path / "h200") == "../comparison/then_and_now.html"


# ---- the entry of a paper -------------------------------------------------------------------------------------------

SMALL = """
name: Small
citation: {title: A, authors: [B], institution: C, published: D}
setup: {framework: E, data: F, models: [G]}
devices: []
claims:
  - id: small-rate
    statement: It is fast.
    where: page 1
    studies: [01_training]
    tests:
      - {shape: level, metric: utilisation, published: [{value: 0.5, hardware: [k40m]}]}
      - {shape: level, metric: utilisation, at_least: 0.5, because: half}
story:
  sentences: [{text: It holds., rests_on: {small-rate: replicated}}]
  figure: {claim: small-rate, title: T, caption: U}
"""


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("rests_on: {small-rate", "rests_on: {small-rat", "story: unknown claim 'small-rat'; valid: small-rate"),
        ("claim: small-rate", "claim: small-rat", "story: unknown claim 'small-rat'; valid: small-rate"),
        ("title: T", "test: 1, title: T", "story: test 1 of its figure has no `published` magnitude"),
        ("title: T", "test: 2, title: T", "story: test 2 of its figure has no `published` magnitude"),
        ("replicated", "repeated", "story.sentences.0.rests_on.small-rate"),
    ],
)
def test_a_story_of_claims_that_the_paper_lacks_is_an_error(tmp_path: Path, before: str, after: str, said: str) -> None:
    (tmp_path / "small.yaml").write_text(SMALL)
    assert paragraph(load_papers(tmp_path)[0]) == "It holds."
    assert SMALL.count(before) == 1
    (tmp_path / "small.yaml").write_text(SMALL.replace(before, after))
    with pytest.raises(UserError, match=r"papers/small\.yaml") as caught:
        load_papers(tmp_path)
    assert said in str(caught.value)


def test_later_sources_have_no_story() -> None:
    assert {paragraph(paper) for paper in PAPERS if paper.later} == {""}
