"""The index: the machine, the numbers and the gaps come first, and nothing that data says becomes markup."""

import re
from dataclasses import fields, replace

import pytest
from bs4 import BeautifulSoup

from labkit.errors import LabkitError
from labkit.report.html import external_urls
from labkit.report.html import duration_text
from labkit.report.site import Published, Site, StudyRow, gaps, tally, write_index

EVIL = """<script>alert(1)</script>" onload="alert(2)' onclick='alert(3)"""

OK = StudyRow("01_training", "Training", "How fast?", "ok", page="01_training.html", duration_s=63.4, scale="quick")
FAILED = StudyRow(
    "02_batch_size",
    "Batch size",
    "What does it buy?",
    "failed",
    reason="ValueError: no such batch",
    page="02_batch_size.html",
    command="make report STUDY=batch_size",
)
RUNNING = StudyRow("03_multi_gpu", "Several GPUs", "What do more buy?", "running", reason="pass 2 of 3")
UNMEASURED = StudyRow("04_power", "Power", "What does it cost?", "not measured", reason="no records")
UNMEASURED_TOO = StudyRow("05_inference", "Inference", "How fast?", "not measured", reason="no records")
LATER = StudyRow("10_gan", "WGAN", "How well?", "not in this version", reason="no notebook")

SITE = Site(
    profile_name="h200",
    profile_title="H200 SXM",
    description="Hopper with HBM3e.",
    runnable=True,
    reason="",
    version="0.1.0",
    commit="8d1c2ab",
    generated="2026-11-21T01:40:00Z",
    command="make report HW=h200",
    studies=[OK, LATER, UNMEASURED, RUNNING, UNMEASURED_TOO, FAILED],
    host=[("GPUs", "1 x NVIDIA H200"), ("Host", "3fa9c1")],
    headline=[("Training", "ResNet-50 trains at 19,170 images/s.")],
    hardware=[("Memory bandwidth", "4,800 GB/s", "NVIDIA H200 datasheet (2024)")],
    roofline='<figure class="lk-figure" id="figure-roofline"></figure>',
    published=[Published("P100 against K40", ["statistic", "K40"], [["mean", "12.3"], ["worst", "–"]], "Table 3")],
    links=[("claims.html", "Claims")],
)


@pytest.fixture
def index(tmp_path):
    def page_of(site):
        write_index(tmp_path / "index.html", site)
        return (tmp_path / "index.html").read_text(encoding="utf-8")

    return page_of


def texts(page, selector):
    found = BeautifulSoup(page, "html.parser").select(selector)
    return [" ".join(element.get_text(" ").split()) for element in found]


def test_the_index_answers_in_the_readers_order(index):
    page = index(SITE)
    assert texts(page, "main h2") == [
        "The machine",
        "What was found",
        "What failed or is missing",
        "All studies",
        "Hardware and nominal peaks",
        "Nominal roofline",
        "Published numbers",
    ]
    assert texts(page, ".lk-contents a") == texts(page, "main h2")
    linked = {link["href"] for link in BeautifulSoup(page, "html.parser").select(".lk-contents a")}
    assert linked == {f"#{heading['id']}" for heading in BeautifulSoup(page, "html.parser").select("main h2")}


def test_the_index_holds_what_it_was_given(index):
    page = index(SITE)
    text = texts(page, "body")[0]
    for said in ("H200 SXM", "Hopper with HBM3e.", "1 x NVIDIA H200", "ResNet-50 trains at 19,170 images/s."):
        assert said in text
    assert "NVIDIA H200 datasheet (2024)" in text
    assert "P100 against K40 Table 3 statistic K40 mean 12.3 worst –" in text
    assert 'id="figure-roofline"' in page
    assert texts(page, "footer") == [
        "labkit 0.1.0, commit 8d1c2ab . Written 2026-11-21T01:40:00Z by make report HW=h200 . "
        "This site loads nothing from a network."
    ]
    assert 'href="claims.html"' in page


def test_every_study_has_a_row_with_its_status_and_its_page(index):
    page = index(SITE)
    rows = texts(page, "#studies ~ div:nth-of-type(1) tbody tr")
    assert rows == [
        "Training How fast? ok quick 1 min 3 s –",
        "WGAN How well? not in this version – – –",
        "Power What does it cost? not measured – – –",
        "Several GPUs What do more buy? running – – –",
        "Inference How fast? not measured – – –",
        "Batch size What does it buy? failed – – make report STUDY=batch_size",
    ]
    assert page.count('href="01_training.html"') == 1


def test_failures_come_first_each_with_its_reason_and_like_gaps_together(index):
    assert texts(index(SITE), "#gaps + ul > li") == [
        "Failed Batch size ValueError: no such batch Again: make report STUDY=batch_size",
        "Running now Several GPUs pass 2 of 3",
        "Not measured Power, Inference no records",
        "Not in this version WGAN no notebook",
    ]


def test_a_gap_without_a_reason_says_that_none_is_recorded():
    assert [gap.reason for gap in gaps([replace(FAILED, reason=None)])] == ["No reason is recorded."]


def test_gaps_offer_a_command_only_if_it_serves_all():
    same = [replace(UNMEASURED, command="make report"), replace(UNMEASURED_TOO, command="make report")]
    assert [gap.command for gap in gaps(same)] == ["make report"]
    assert [gap.command for gap in gaps([same[0], UNMEASURED_TOO])] == [None]


def test_the_tally_counts_each_status():
    assert tally(SITE.studies) == (
        "1 of 6 studies have results; 1 failed, 1 running, 2 not measured, 1 not in this version."
    )
    assert tally([OK]) == "1 of 1 studies have results."


def test_a_report_without_records_still_shows_hardware_and_papers(index):
    page = index(replace(SITE, host=[], headline=[], studies=[UNMEASURED, LATER]))
    assert "No host has records for this profile yet" in page
    assert "No study has a result yet." in page
    assert "4,800 GB/s" in page
    assert "P100 against K40" in page


def test_a_profile_that_cannot_run_says_why(index):
    page = index(replace(SITE, runnable=False, reason="PyTorch dropped Kepler."))
    assert texts(page, ".lk-notice") == ["This profile can't be measured. PyTorch dropped Kepler."]
    assert "lk-notice" not in re.sub(r"<style>.*?</style>", "", index(SITE), flags=re.DOTALL)


def test_sections_without_content_are_left_out(index):
    page = index(replace(SITE, hardware=[], roofline=None, published=[], studies=[OK], commit=None, links=[]))
    assert texts(page, "main h2") == ["The machine", "What was found", "All studies"]
    assert "commit" not in texts(page, "footer")[0]


def test_nothing_that_data_says_becomes_markup(index):
    study = StudyRow(EVIL, EVIL, EVIL, "failed", reason=EVIL, page=EVIL, scale=EVIL, command=EVIL)
    given = {field.name: EVIL for field in fields(Site) if field.type in ("str", "str | None")}
    evil = Site(
        **{**given, "roofline": None},
        runnable=False,
        studies=[study, replace(study, status="ok")],
        host=[(EVIL, EVIL)],
        headline=[(EVIL, EVIL)],
        hardware=[(EVIL, EVIL, EVIL)],
        published=[Published(EVIL, [EVIL], [[EVIL, EVIL]], EVIL)],
        links=[(EVIL, EVIL)],
    )
    page = index(evil)
    elements = BeautifulSoup(page, "html.parser").find_all(True)
    assert len(given) >= 8
    assert page.count("&lt;script&gt;") > 25
    assert not [element for element in elements if element.name == "script"]
    assert not {name for element in elements for name in element.attrs} & {"onload", "onclick"}


def test_the_index_loads_nothing(index, tmp_path):
    assert external_urls(index(SITE)) == []
    with pytest.raises(LabkitError, match=r"example\.org"):
        index(replace(SITE, roofline='<img src="https://example.org/x.png">'))
    assert [path.name for path in tmp_path.iterdir()] == ["index.html"]
    assert "figure-roofline" in (tmp_path / "index.html").read_text(encoding="utf-8")  # the former page


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "–"), (0, "0.0 s"), (4.21, "4.2 s"), (59.96, "1 min 0 s"), (412, "6 min 52 s"), (8123, "2 h 15 min")],
)
def test_a_duration_has_its_two_largest_units(seconds, text):
    assert duration_text(seconds) == text
