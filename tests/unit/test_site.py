"""The index: the machine, the numbers and the gaps come first, and nothing that data says becomes markup."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from labkit.analysis import method, printed, speed, summary
from labkit.analysis.verdicts.verdict import VERDICTS
from labkit.errors import LabkitError
from labkit.host import Host
from labkit.papers import Paper
from labkit.profile import Profile, load_profile
from labkit.records import Blocks, Planned, Record, short_hash
from labkit.registry import COMPARISON, STUDIES
from labkit.report import pages
from labkit.report.html import duration_text, external_urls
from labkit.report.plan import chosen_studies
from labkit.report.site import Headline, Published, Site, StudyRow, gaps, tally, write_index
from labkit.report.status import StudyRun, write_run
from labkit.shown import evidence
from labkit.trial import NO_DATA, Trial
from tests.unit.test_telemetry_pages import PAPERS, hopper, made

# ---- reports made by hand, for the tests of every page --------------------------------------------------------------

TRAINING, POWER = "01_training", "04_power"
A, B, C = "a" * 12, "b" * 12, "c" * 12
HERE = Host(
    id="0" * 12,
    gpus=(),
    driver=None,
    cpu="a small CPU",
    cpu_cores=2,
    cpu_threads=2,
    cpu_features=(),
    memory_bytes=2**33,
    os="Linux 6.1",
    python="3.12.0",
    packages={"labkit": "0.1.0"},
    commit="c0ffee123456",
    source="5eed5eed5eed",
)
GPUS = {"h100": "NVIDIA H100 80GB HBM3", "h200": "NVIDIA H200"}
R50, R50_LARGE = Trial(model="resnet50", batch=64), Trial(model="resnet50", batch=256)
VGG, VGG_LARGE = Trial(model="vgg16", batch=64), Trial(model="vgg16", batch=256)
MATMUL = Trial(workload="matmul", size=8192, data=NO_DATA)
COPY = Trial(workload="memory_copy", size=2**32, data=NO_DATA)
TRIALS = (R50, R50_LARGE, VGG, VGG_LARGE, MATMUL, COPY)
POWERED = tuple(replace(trial, energy_windows=3) for trial in (R50, VGG, Trial(workload="idle", data=NO_DATA)))
BLOCK_S = {R50: 0.25, R50_LARGE: 0.5, VGG: 0.5, VGG_LARGE: 1.0}  # of the others half a second
JITTER = (1.0, 1.01, 0.98)  # of each pass


def taken(trial: Trial, number: int, trials: Sequence[Trial] = TRIALS, passes: int = 3, **other: Any) -> Record:
    """One trial in one pass: ten blocks of ten steps."""
    speed_up = other.pop("speed", 1.0)
    plain = replace(trial, energy_windows=0, device="cuda", data_checksum="")
    work = {"matmul": {"flop_per_step": 10**12}, "memory_copy": {"bytes_per_step": 10**9}, "idle": {}}
    blocks = Blocks(
        steps_per_block=10,
        host_s=[BLOCK_S.get(plain, 0.5) * JITTER[number % 3] / speed_up] * 10,
        warmup_s=[1.0],
        warmup_steps=[10],
        steady=True,
        stopped_by="time",
        **work.get(trial.workload, {"images_per_step": trial.batch}),
    )
    values: dict[str, Any] = {
        "study": TRAINING,
        "host": A,
        "planned": Planned(keys=[short_hash(one.key) for one in trials], passes=passes, order_seed=1),
        "versions": {"torch": "2.11", "torch_build": "2.11+cu130", "commit": "0123456789ab", "source": "fedcba987654"},
        "result": blocks,
    }
    telemetry = hopper(trial) if trial.workload in ("train", "idle") else None
    return made(trial, number, telemetry, **(values | other))


def images_per_s(trial: Trial, number: int, speed: float = 1.0) -> float:
    """What a training trial of these records reaches in a pass."""
    return trial.batch * 10 / (BLOCK_S[trial] * JITTER[number % 3]) * speed


def failed(trial: Trial, number: int, reason: str, trials: Sequence[Trial] = TRIALS, **other: Any) -> Record:
    """One trial that ran out of memory."""
    record = taken(trial, number, trials, **other)
    return record.model_copy(update={"result": None, "telemetry": None, "status": "oom", "reason": reason})


def described(host: str = A, gpu: str = "NVIDIA H200", **other: Any) -> dict[str, Any]:
    """What a host's file says."""
    board = {
        "name": gpu,
        "uuid_hash": host[::-1],
        "memory_bytes": 150 * 2**30,
        "compute_capability": "9.0",
        "power_limit_w": 700.0,
        "max_sm_clock_hz": 1.98e9,
        "max_memory_clock_hz": 3.2e9,
    }
    values: dict[str, Any] = {
        "id": host,
        "gpus": [board],
        "driver": "580.159",
        "cpu": "a large CPU",
        "cpu_cores": 16,
        "cpu_threads": 32,
        "cpu_features": ["avx2"],
        "memory_bytes": 2**37,
        "os": "Linux 6.18",
        "python": "3.12.3",
        "packages": {"labkit": "0.1.0", "torch": "2.11.0"},
        "notes": [],
    }
    return values | other


def passes_of(trials: Sequence[Trial] = TRIALS, passes: int = 3, **other: Any) -> list[Record]:
    """Every trial in every pass."""
    return [taken(trial, number, trials, passes, **other) for number in range(1, passes + 1) for trial in trials]


def put(reports: Path, hw: str, records: Sequence[Record], host: dict[str, Any] | None = None) -> None:
    """Append records (of one study and host) to a report's store, and describe their host."""
    study, host_id = records[0].study, records[0].host
    path = reports / hw / "records" / host_id / f"{study}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(record.line() + "\n" for record in records)
    about = reports / hw / "hosts" / f"{host_id}.json"
    about.parent.mkdir(exist_ok=True)
    about.write_text(json.dumps(host or described(host_id, GPUS[hw])), encoding="utf-8")


def ran(study: str, **other: Any) -> StudyRun:
    values: dict[str, Any] = {
        "status": "ok",
        "reason": None,
        "duration_s": 63.4,
        "command": f"make report HW=h200 STUDY={STUDIES[study].name}" if study in STUDIES else "make report",
        "mode": "measure",
        "scale": "quick",
        "host": A,
        "commit": "c0ffee123456",
        "finished_at": "2026-11-21T01:40:00+00:00",
    }
    return StudyRun(**(values | other))


def executed(path: Path, *shown: Any, **scraps: Any) -> None:
    """A notebook that ran: what its cells showed, and what it published."""
    outputs = [new_output("display_data", data=thing._repr_mimebundle_()) for thing in shown]
    for name, value in scraps.items():
        kind = "text" if isinstance(value, str) else "json"
        scrap = {"name": f"labkit.{name}", "data": value, "encoder": kind, "version": 1}
        about = {"scrapbook": {"name": f"labkit.{name}", "data": True, "display": False}}
        data = {f"application/scrapbook.scrap.{kind}+json": scrap}
        outputs.append(new_output("display_data", data=data, metadata=about))
    cells = [new_markdown_cell("# A study"), new_code_cell("1", outputs=outputs, execution_count=1)]
    path.write_text(json.dumps(new_notebook(cells=cells)), encoding="utf-8")


@contextmanager
def reporting(reports: Path, papers: Sequence[Paper] = PAPERS) -> Iterator[pytest.MonkeyPatch]:
    """Reports lie in this folder; papers are read once and pictures stay empty, which is what takes the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_REPORTS", str(reports))
        patch.setattr("labkit.report.pages.load_papers", lambda: list(papers))
        patch.setattr("labkit.analysis.figure.Figure.svg", lambda *_: "<svg/>")
        yield patch


# ---- what a page says -----------------------------------------------------------------------------------------------


class _Reader(HTMLParser):
    """The elements, attributes and text of a page, as a browser's parser sees them."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read_page(page: str) -> tuple[list[tuple[str, dict[str, str]]], str]:
    """(tag, attributes) of each element, and the text with single spaces."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    return reader.elements, " ".join("".join(reader.text).split())


EVIL = """<script>alert(1)</script><img src=x onerror=a(2)></style></table>" onload="a(3)' onclick='a(4) &amp;"""


def assert_harmless(page: str, *said: str) -> None:
    """Texts of others stand on the page as texts: no element, no attribute comes of them."""
    elements, text = read_page(page)
    assert "script" not in {tag for tag, _ in elements}
    assert not [name for _, attributes in elements for name in attributes if name.startswith("on")]
    assert all(about.get("src", "").startswith("data:") for tag, about in elements if tag == "img")
    assert page.count("</style>") == page.count("<style>"), "no style ends before its own end"
    for one in said:
        assert " ".join(one.split()) in text


def local_links(page: str) -> list[str]:
    """The addresses that a page links to, those in other places of the net left out."""
    elements, _ = read_page(page)
    hrefs = [about["href"] for tag, about in elements if tag == "a" and "href" in about]
    return [href for href in hrefs if not re.match(r"[a-z]+:", href)]


def assert_links_lead_somewhere(path: Path) -> None:
    """Every link is relative, its file exists and so does the place in it; ids are unique."""
    page = path.read_text(encoding="utf-8")
    elements, _ = read_page(page)
    ids = [about["id"] for _, about in elements if "id" in about]
    assert [one for one, number in Counter(ids).items() if number > 1] == []
    for href in local_links(page):
        assert not href.startswith("/")
        address, _, place = href.partition("#")
        target = path.parent / unquote(address) if address else path
        assert target.is_file(), href
        if place:
            there, _ = read_page(target.read_text(encoding="utf-8"))
            assert unquote(place) in {about.get("id") for _, about in there}, href


# ---- the index from what it is given --------------------------------------------------------------------------------

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
    headline=[
        Headline("Training", "01_training.html", "ResNet-50 is fastest.", [["19,170 images/s", "fastest: ResNet-50"]])
    ],
    hardware=[("Memory bandwidth", "4,800 GB/s", "NVIDIA H200 datasheet (2024)")],
    roofline='<figure class="lk-figure" id="figure-roofline"></figure>',
    published=[Published("P100 against K40", ["statistic", "K40"], [["mean", "12.3"], ["worst", "–"]], "Table 3")],
    links=[("claims.html", "Claims")],
    verdicts="Of 5 published claims 3 could be tested here.",
    counts=[
        ("✓", "replicated", 1),
        ("✗", "not replicated", 2),
        ("~", "inconclusive", 0),
        ("–", "not testable here", 2),
    ],
    judged=[
        ("nyu-size", "Deeper is slower.", "✓", "replicated", "on synthetic32"),
        ("nyu-power", "Power is constant.", "✗", "not replicated", ""),
    ],
    downloads=[("numbers.csv", "every number")],
)


@pytest.fixture
def index(tmp_path):
    def page_of(site):
        write_index(tmp_path / "index.html", site)
        return (tmp_path / "index.html").read_text(encoding="utf-8")

    return page_of


def said_in(element):
    """An element's text with single spaces."""
    return " ".join(element.get_text(" ").split())


def texts(page, selector):
    return [said_in(element) for element in BeautifulSoup(page, "html.parser").select(selector)]


def test_the_index_answers_in_the_readers_order(index):
    page = index(SITE)
    assert texts(page, "main h2") == [
        "The machine",
        "What was found",
        "Published claims",
        "What failed or is missing",
        "All studies",
        "The numbers for other programs",
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
    for said in ("H200 SXM", "Hopper with HBM3e.", "1 x NVIDIA H200", "Of 5 published claims 3 could be tested here."):
        assert said in text
    assert texts(page, "#headline + section") == ["Training 19,170 images/s fastest: ResNet-50 ResNet-50 is fastest."]
    assert "NVIDIA H200 datasheet (2024)" in text
    assert "P100 against K40 Table 3 statistic K40 mean 12.3 worst –" in text
    assert 'id="figure-roofline"' in page
    assert texts(page, "footer") == [
        "labkit 0.1.0, commit 8d1c2ab . Written 2026-11-21T01:40:00Z by make report HW=h200 . "
        "This site loads nothing from a network."
    ]
    assert 'href="claims.html"' in page
    assert texts(page, "#downloads + ul > li") == ["numbers.csv : every number"]


def test_each_claim_tested_has_its_verdict_its_scope_and_a_way_to_its_effects(index):
    page = index(SITE)
    assert texts(page, ".lk-counts li") == [
        "1 ✓ replicated",
        "2 ✗ not replicated",
        "0 ~ inconclusive",
        "2 – not testable here",
    ]
    assert texts(page, ".lk-judged li") == [
        "✓ replicated Deeper is slower. on synthetic32",
        "✗ not replicated Power is constant.",
    ]
    links = [link["href"] for link in BeautifulSoup(page, "html.parser").select(".lk-judged a")]
    assert links == ["claims.html#claim-nyu-size", "claims.html#claim-nyu-power"]
    assert texts(index(replace(SITE, judged=[])), ".lk-judged") == []


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
    study_links = BeautifulSoup(page, "html.parser").select("#studies ~ div:nth-of-type(1) a")
    assert [link["href"] for link in study_links] == ["01_training.html", "02_batch_size.html"]


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
    empty = {"hardware": [], "roofline": None, "published": [], "commit": None, "links": [], "downloads": []}
    page = index(replace(SITE, studies=[OK], **empty))
    assert texts(page, "main h2") == ["The machine", "What was found", "Published claims", "All studies"]
    assert texts(page, ".lk-contents a") == texts(page, "main h2")
    assert "commit" not in texts(page, "footer")[0]


def test_nothing_that_data_says_becomes_markup(index):
    study = StudyRow(EVIL, EVIL, EVIL, "failed", reason=EVIL, page=EVIL, scale=EVIL, command=EVIL)
    given = {field.name: EVIL for field in fields(Site) if field.type in ("str", "str | None")}
    evil = Site(
        **{**given, "roofline": None},
        runnable=False,
        studies=[study, replace(study, status="ok")],
        host=[(EVIL, EVIL)],
        headline=[Headline(EVIL, EVIL, EVIL, [[EVIL, EVIL]])],
        hardware=[(EVIL, EVIL, EVIL)],
        published=[Published(EVIL, [EVIL], [[EVIL, EVIL]], EVIL)],
        links=[(EVIL, EVIL)],
        counts=[(EVIL, EVIL, 1)],
        judged=[(EVIL, EVIL, EVIL, EVIL, EVIL)],
        downloads=[(EVIL, EVIL)],
    )
    page = index(evil)
    assert {field.name for field in fields(Site)} == {*given, "runnable", "studies", "host", "headline", "hardware",
        "published", "links", "counts", "judged", "downloads"}  # fmt: skip
    assert page.count("&lt;script&gt;") > 40
    assert_harmless(page, EVIL)


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


# ---- the index of records -------------------------------------------------------------------------------------------


REPORTS = ("h100", "h200")


def make_reports(reports: Path) -> None:
    """Two profiles with records, one of them of two hosts; one study rendered, one that failed."""
    put(reports, "h100", passes_of(host=C, speed=0.8))
    h200 = reports / "h200"
    put(reports, "h200", passes_of())
    put(reports, "h200", passes_of(POWERED, host=B, study=POWER))
    (h200 / "telemetry" / B).mkdir(parents=True)
    (h200 / "telemetry" / B / f"{POWER}.parquet").write_bytes(b"series")
    profile, seen = load_profile("h200"), evidence("h200")
    results = seen.results("h200", TRAINING)
    executed(
        h200 / f"{TRAINING}.ipynb",
        speed.throughput(results, results.trials(workload="train")),
        headline="ResNet-50 is fastest.\n\nMore on the page.",
        key_numbers=[["2,600 images/s", "fastest"]],
    )
    executed(h200 / f"{POWER}.ipynb")
    runs = {TRAINING: ran(TRAINING), POWER: ran(POWER, status="failed", reason="ValueError: no power")}
    for study, run in runs.items():
        write_run(h200, study, run)
        pages.write_page(h200, study, profile, run)
    pages.write_site(h200, profile, HERE)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a report of two hosts."""
    reports = tmp_path_factory.mktemp("reports")
    with reporting(reports):
        make_reports(reports)
    yield reports / "h200"


def page_of(report: Path, name: str) -> str:
    return (report / name).read_text(encoding="utf-8")


def claims_by_verdict(page: str) -> Counter[str]:
    elements, _ = read_page(page)
    return Counter(about["data-verdict"].replace("-", " ") for _, about in elements if "data-verdict" in about)


def counts_on(page: str) -> dict[str, int]:
    """Verdict -> the number that a page puts before it."""
    said = [text.split(maxsplit=2) for text in texts(page, ".lk-counts li")]
    return {verdict: int(number) for number, _, verdict in said}


def test_the_counts_of_verdicts_add_up_to_the_claims_and_are_those_of_the_claims_page(site: Path) -> None:
    index, claims = page_of(site, "index.html"), page_of(site, "claims.html")
    published = sum(len(paper.claims) for paper in PAPERS)
    assert list(counts_on(index)) == list(VERDICTS)
    assert sum(counts_on(index).values()) == published
    assert counts_on(index) == counts_on(claims)
    assert +Counter(counts_on(index)) == claims_by_verdict(claims)
    tested = published - counts_on(index)["not testable here"]
    assert 0 < tested < published, "these records test some claims and not others"
    assert f"Of {published} published claims {tested} could be tested here" in texts(index, "#claims + p")[0]


def test_the_index_lists_just_the_claims_that_were_tested_each_with_its_verdict(site: Path) -> None:
    index, claims = page_of(site, "index.html"), BeautifulSoup(page_of(site, "claims.html"), "html.parser")
    listed = {
        item.select_one("a")["href"].removeprefix("claims.html#"): item.select_one(".lk-verdict")
        .get_text()
        .split(" ", 1)[1]
        for item in BeautifulSoup(index, "html.parser").select(".lk-judged li")
    }
    judged = {article["id"]: article["data-verdict"].replace("-", " ") for article in claims.select("article.lk-claim")}
    assert listed == {place: verdict for place, verdict in judged.items() if verdict != "not testable here"}
    assert list(listed.values()) == sorted(listed.values(), key=VERDICTS.index)


@pytest.mark.parametrize("name", ["index.html", "claims.html", "fingerprint.html", "01_training.html", "04_power.html"])
def test_every_link_of_a_page_is_relative_and_leads_to_something(site: Path, name: str) -> None:
    assert_links_lead_somewhere(site / name)
    assert external_urls(page_of(site, name)) == []


@pytest.mark.parametrize(("name", "figures"), [("index.html", 1), ("01_training.html", 1)])
def test_each_figure_has_the_command_that_makes_it_again(site: Path, name: str, figures: int) -> None:
    found = BeautifulSoup(page_of(site, name), "html.parser").select("figure")
    assert len(found) == figures
    for figure in found:
        words = figure.select_one(".lk-again code").get_text().split()
        assert words[:3] == ["make", "render", "HW=h200"]
        study = dict(word.split("=") for word in words[2:]).get("STUDY", "")
        assert name in [f"{one}.html" for one in chosen_studies(study)] or not study


def test_the_index_names_every_host_whose_records_it_shows(site: Path) -> None:
    machine = texts(page_of(site, "index.html"), "#machine + dl")[0]
    assert f"Host {A}" in machine
    assert f"{POWER} on {B}" in machine


def test_the_first_paragraph_of_a_studys_answer_stands_on_the_index_with_its_key_numbers(site: Path) -> None:
    (found,) = texts(page_of(site, "index.html"), "section.lk-found")
    said, of = found.split(" Of: ")
    assert said == "Training 2,600 images/s fastest ResNet-50 is fastest."
    assert of.startswith("plain in FP32, contiguous, sgd; 32 px, batch 64 and 256, on synthetic32; NVIDIA H200, host ")


def test_each_study_stands_as_its_last_run_left_it(site: Path) -> None:
    rows = texts(page_of(site, "index.html"), "#studies ~ div:nth-of-type(1) tbody tr")
    assert len(rows) == len(STUDIES)
    status = dict(zip(STUDIES, rows, strict=True))
    assert " ok quick 1 min 3 s make report HW=h200 STUDY=training" in status[TRAINING]
    assert " failed quick " in status[POWER]
    assert " not in this version " in status["12_data_pipeline"]
    assert status[COMPARISON].endswith("not measured – – make compare")
    gap = texts(page_of(site, "index.html"), "#gaps + ul > li")[0]
    assert gap == "Failed Power and energy ValueError: no power Again: make report HW=h200 STUDY=power"


@pytest.fixture
def report(tmp_path: Path) -> Iterator[Path]:
    """The folder of an h200's report without anything in it, and no papers."""
    (tmp_path / "h200").mkdir()
    with reporting(tmp_path, []):
        yield tmp_path / "h200"


def test_the_index_leads_to_the_comparison_once_there_is_one(site: Path, report: Path) -> None:
    (report.parent / "comparison").mkdir()
    (report.parent / "comparison" / "index.html").write_text("<title>Comparison</title>")
    assert " ok – – make compare" in row_of(report, COMPARISON)
    assert local_links(page_of(report, "index.html")).count("../comparison/index.html") == 2, (
        "in the head and the table"
    )
    assert_links_lead_somewhere(report / "index.html")
    assert "../comparison/index.html" not in local_links(page_of(site, "index.html"))


def row_of(report: Path, study: str) -> str:
    pages.write_site(report, load_profile("h200"), HERE)
    rows = texts(page_of(report, "index.html"), "#studies ~ div:nth-of-type(1) tbody tr")
    return dict(zip(STUDIES, rows, strict=True))[study]


def test_a_study_without_records_is_not_measured_also_after_its_page_was_rendered(report: Path) -> None:
    assert " not measured – – –" in row_of(report, TRAINING)
    write_run(report, TRAINING, ran(TRAINING, mode="render", command="make render HW=h200"))
    assert " not measured – 1 min 3 s make render HW=h200" in row_of(report, TRAINING)


def test_a_study_with_records_that_was_not_rendered_yet_is_not_called_not_measured(report: Path) -> None:
    """Its records are in the claims and in the numbers of this very site."""
    put(report.parent, "h200", passes_of())
    row = row_of(report, TRAINING)
    assert "not measured" not in row
    gaps_said = " ".join(texts(page_of(report, "index.html"), "#gaps + ul > li"))
    assert "Training" not in gaps_said or "render" in gaps_said, "what is missing is the page, and how to get it"


def test_what_an_older_version_left_behind_does_not_stop_the_index(report: Path) -> None:
    put(report.parent, "h200", passes_of())
    executed(report / "14_former.ipynb", headline="A study that this version does not have.")
    write_run(report, "14_former", ran("14_former"))
    write_run(report, TRAINING, ran(TRAINING))
    assert " ok quick " in row_of(report, TRAINING)


def test_a_host_without_a_framework_has_no_dangling_comma(report: Path) -> None:
    put(report.parent, "h200", passes_of(), described(packages={"labkit": "0.1.0"}))
    row_of(report, TRAINING)
    assert "Software Python 3.12.3" in texts(page_of(report, "index.html"), "#machine + dl")[0]
    assert "3.12.3," not in page_of(report, "index.html")


# ---- what others wrote stays text, on every page --------------------------------------------------------------------


def evil(what: str) -> str:
    return f"{what} {EVIL}"


def evil_profile(profile: Profile) -> Profile:
    device = profile.device.model_copy(update={"pattern": "H200"})
    return profile.model_copy(update={"title": evil("profile"), "description": evil("description"), "device": device})


def evil_paper(paper: Paper) -> Paper:
    """The paper with every text that a page could show replaced."""
    citation = {
        "title": evil("title"),
        "authors": [evil("author")],
        "institution": evil("institution"),
        "published": evil("published"),
    }
    claims = [
        claim.model_copy(
            update={
                "statement": evil("statement"),
                "where": evil("where"),
                "note": evil("note"),
                "tests": [test.model_copy(update={"because": evil("because")}) for test in claim.tests],
            }
        )
        for claim in paper.claims
    ]
    return paper.model_copy(
        update={
            "name": evil("paper"),
            "citation": paper.citation.model_copy(update=citation),
            "setup": paper.setup.model_copy(update={"framework": evil("framework"), "data": evil("data")}),
            "devices": [device.model_copy(update={"printed": evil("printed")}) for device in paper.devices],
            "tables": [
                table.model_copy(update={"where": evil("table"), "note": evil("remark")}) for table in paper.tables
            ],
            "claims": claims,
        }
    )


def evil_host() -> dict[str, Any]:
    texts_of = {name: evil(name) for name in ("cpu", "os", "driver", "python")}
    packages = {"torch": evil("version"), evil("package"): "1.0"}
    return described(B, f"NVIDIA H200 {EVIL}", notes=[evil("remark of the host")], packages=packages, **texts_of)


EVIL_VERSIONS = {name: evil(name) for name in ("torch", "torch_build", "cuda", "cudnn", "commit", "source")}


def evil_records() -> list[Record]:
    """One network out of memory in every pass, and whatever a worker may say of itself."""
    facts = {"data_description": evil("images"), "memory_method": evil("method")}
    other = {"facts": facts, "host": B, "versions": EVIL_VERSIONS}
    return [
        failed(trial, number, evil("out of memory"), **other) if trial == VGG_LARGE else taken(trial, number, **other)
        for number in (1, 2, 3)
        for trial in TRIALS
    ]


@pytest.fixture(scope="module")
def evil_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    reports = tmp_path_factory.mktemp("evil")
    report, profile = reports / "h200", evil_profile(load_profile("h200"))
    papers = [evil_paper(paper) for paper in PAPERS]
    with reporting(reports, papers) as patch:
        patch.setattr("labkit.shown.load_profile", lambda name: profile)
        patch.setattr("labkit.analysis.summary.load_papers", lambda: papers)
        put(reports, "h200", evil_records(), evil_host())
        seen = evidence("h200")
        results = seen.results("h200", TRAINING)
        trials = results.trials(workload="train")
        shown = [
            summary.throughput_summary(results, trials),
            summary.failures_table(results),
            method.sentence(results, evil("did")),
            summary.limitations(results, trials),
            speed.throughput(results, trials),
            *printed.of_metric(papers, TRAINING, metric="utilisation"),
            pages.Findings(pages.judge_all(papers, seen, TRAINING)),
        ]
        executed(
            report / f"{TRAINING}.ipynb", *shown, headline=evil("headline"), key_numbers=[[evil("value"), evil("of")]]
        )
        failure = {"status": "failed", "reason": evil("failure"), "command": evil("command"), "commit": evil("commit")}
        run = ran(TRAINING, **failure)
        write_run(report, TRAINING, run)
        pages.write_page(report, TRAINING, profile, run)
        pages.write_site(report, profile, replace(HERE, cpu=evil("rendered on"), commit=evil("rendered by")))
    yield report


SAID_BY_OTHERS = {
    "index.html": (
        *("profile", "description", "NVIDIA H200", "cpu", "os", "driver", "version", "headline", "value", "of"),
        *("failure", "command", "statement", "rendered by"),
    ),
    "claims.html": (
        *("profile", "paper", "title", "author", "institution", "published", "framework", "data", "statement"),
        *("where", "note", "because"),
    ),
    "fingerprint.html": (
        *("profile", "NVIDIA H200", "cpu", "os", "driver", "python", "package", "version", "remark of the host"),
        *("torch_build", "cuda", "cudnn", "commit", "source", "rendered on", "rendered by", "command"),
    ),
    "01_training.html": (
        *("profile", "NVIDIA H200", "did", "out of memory", "images", "method", "title", "table", "printed", "remark"),
        *("paper", "statement", "where", "command", "commit"),
    ),
}


@pytest.mark.parametrize("name", SAID_BY_OTHERS)
def test_what_a_device_a_host_an_error_a_profile_or_a_paper_says_stays_text(evil_site: Path, name: str) -> None:
    page = page_of(evil_site, name)
    assert_harmless(page, *map(evil, SAID_BY_OTHERS[name]))
    assert external_urls(page) == []
    assert_links_lead_somewhere(evil_site / name)
