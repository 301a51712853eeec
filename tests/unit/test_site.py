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

import pandas as pd
import pytest
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from labkit.claims.papers import Paper
from labkit.claims.shown import evidence
from labkit.hardware.host import Host
from labkit.hardware.profile import Profile, load_profile
from labkit.records import Blocks, Planned, Record, short_hash
from labkit.registry import COMPARISON, STUDIES
from labkit.report import pages
from labkit.report.html import duration_text, external_urls
from labkit.report.site import PaperRow, Site, StudyRow, write_index
from labkit.report.status import StudyRun, write_run
from labkit.results import Results
from labkit.show import plots, setup_line, table
from labkit.trial import NO_DATA, Trial
from tests.unit.made_telemetry import PAPERS, hopper, made

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
        patch.setattr("labkit.show.figure.Figure.svg", lambda *_: "<svg/>")
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

OK = StudyRow("How fast?", "ok", page="01_training.html", answer="Very.", number="19,170 images/s")
FAILED = StudyRow("What does it buy?", "failed", "ValueError: no such batch", "make report STUDY=batch_size")
LATER = StudyRow("How well?", "not in this version")
SITE = Site(
    title="Five papers",
    setup="1 x NVIDIA H200.",
    device="H200 SXM",
    devices=[("../h100/index.html", "H100")],
    figures=[plots.dots(pd.DataFrame({"model": ["vgg16"], "value": [1.0], "low": [0.9], "high": [1.1]}), y="model",
                        x="images_per_s")],
    verdicts="1 of 3 testable claims is replicated",
    papers=[PaperRow("A paper", "NYU", [("replicated", 1), ("not replicated", 2)])],
    studies=[OK, FAILED, LATER],
    links=[("claims.html", "Claims")],
    downloads=[("numbers.csv", "every number")],
    reason="",
    version="0.1.0",
    commit="8d1c2ab",
    generated="2026-11-21T01:40:00Z",
    command="make report HW=h200",
)  # fmt: skip


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


def test_the_index_answers_each_question_or_says_why_not_and_what_to_do(index):
    assert texts(index(SITE), "#questions + div tbody tr") == [
        "How fast? Very. 19,170 images/s",
        "What does it buy? failed ValueError: no such batch make report STUDY=batch_size –",
        "How well? not in this version –",
    ]


def test_the_index_shows_a_square_per_claim_and_each_papers_counts(index):
    page = index(SITE)
    assert texts(page, ".lk-units tr") == ["NYU ■ ■■"]
    assert texts(page, "#papers + div tbody tr") == ["A paper NYU 1 2"]


def test_a_profile_that_cannot_run_says_why(index):
    page = index(replace(SITE, reason="PyTorch dropped Kepler."))
    assert texts(page, ".lk-notice") == ["This device can't be measured: PyTorch dropped Kepler."]
    assert not texts(index(SITE), ".lk-notice")


def test_nothing_that_data_says_becomes_markup(index):
    given = {field.name: EVIL for field in fields(Site) if field.type == "str"}
    study = StudyRow(EVIL, "failed", EVIL, EVIL, EVIL, EVIL, EVIL)
    evil = Site(
        **given,
        devices=[(EVIL, EVIL)],
        figures=[],
        papers=[PaperRow(EVIL, EVIL, [(EVIL, 1)])],
        studies=[study, replace(study, status="ok")],
        links=[(EVIL, EVIL)],
        downloads=[(EVIL, EVIL)],
    )
    page = index(evil)
    assert page.count("&lt;script&gt;") > 20
    assert_harmless(page, EVIL)


def test_the_index_loads_nothing(index):
    assert external_urls(index(SITE)) == []


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
        table(Results([results]).frame().query("workload == 'train'"), ["model", "batch"], ["images_per_s"]),
        headline="ResNet-50 is fastest.\n\nMore on the page.",
        number="2,600 images/s",
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


def test_the_counts_of_verdicts_add_up_to_the_claims(site: Path) -> None:
    squares = texts(page_of(site, "index.html"), ".lk-unit")
    assert sum(map(len, squares)) == sum(len(paper.claims) for paper in PAPERS)
    assert re.search(r"\d+ of \d+ testable claims are replicated", page_of(site, "index.html"))


@pytest.mark.parametrize("name", ["index.html", "claims.html", "fingerprint.html", "01_training.html", "04_power.html"])
def test_every_link_of_a_page_is_relative_and_leads_to_something(site: Path, name: str) -> None:
    assert_links_lead_somewhere(site / name)
    assert external_urls(page_of(site, name)) == []


def test_a_studys_answer_and_number_stand_on_the_index(site: Path) -> None:
    (row,) = [row for row in texts(page_of(site, "index.html"), "#questions + div tbody tr") if "fastest" in row]
    assert row.endswith("ResNet-50 is fastest. 2,600 images/s")


def test_each_study_stands_as_its_last_run_left_it(site: Path) -> None:
    rows = texts(page_of(site, "index.html"), "#questions + div tbody tr")
    assert len(rows) == len(STUDIES)
    status = dict(zip(STUDIES, rows, strict=True))
    assert " failed ValueError: no power make report HW=h200 STUDY=power" in status[POWER]
    assert " not in this version " in status["12_data_pipeline"]
    assert "make compare" in status[COMPARISON]


@pytest.fixture
def report(tmp_path: Path) -> Iterator[Path]:
    """The folder of an h200's report without anything in it, and no papers."""
    (tmp_path / "h200").mkdir()
    with reporting(tmp_path, []):
        yield tmp_path / "h200"


def row_of(report: Path, study: str) -> str:
    pages.write_site(report, load_profile("h200"), HERE)
    rows = texts(page_of(report, "index.html"), "#questions + div tbody tr")
    return dict(zip(STUDIES, rows, strict=True))[study]


def test_the_index_leads_to_the_comparison_once_there_is_one(site: Path, report: Path) -> None:
    (report.parent / "comparison").mkdir()
    (report.parent / "comparison" / "index.html").write_text("<title>Comparison</title>")
    assert "All recorded devices" in row_of(report, COMPARISON)
    assert_links_lead_somewhere(report / "index.html")
    assert "../comparison/index.html" not in local_links(page_of(site, "index.html"))


def test_a_study_without_records_is_not_measured_also_after_its_page_was_rendered(report: Path) -> None:
    assert " not measured make report HW=h200 STUDY=training" in row_of(report, TRAINING)
    write_run(report, TRAINING, ran(TRAINING, mode="render", command="make render HW=h200"))
    assert " not measured " in row_of(report, TRAINING)


def test_a_study_with_records_that_was_not_rendered_yet_says_how_to_render_it(report: Path) -> None:
    put(report.parent, "h200", passes_of())
    assert " not rendered It has records. make render HW=h200 STUDY=training" in row_of(report, TRAINING)


def test_what_an_older_version_left_behind_does_not_stop_the_index(report: Path) -> None:
    put(report.parent, "h200", passes_of())
    executed(report / "14_former.ipynb", headline="A study that this version does not have.")
    write_run(report, "14_former", ran("14_former"))
    assert " not rendered " in row_of(report, TRAINING)


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
        patch.setattr("labkit.claims.shown.load_profile", lambda name: profile)
        put(reports, "h200", evil_records(), evil_host())
        seen = evidence("h200")
        results = Results([seen.results("h200", TRAINING)])
        frame = results.frame()
        shown = [
            setup_line(frame),
            table(frame, ["model", "batch"], ["images_per_s"]),
            plots.dots(frame.query("workload == 'train'"), y=["model", "batch"], x="images_per_s"),
            pages.Findings(pages.judge_all(papers, seen, TRAINING)),
        ]
        executed(report / f"{TRAINING}.ipynb", *shown, headline=evil("headline"), number=evil("value"))
        failure = {"status": "failed", "reason": evil("failure"), "command": evil("command"), "commit": evil("commit")}
        run = ran(TRAINING, **failure)
        write_run(report, TRAINING, run)
        pages.write_page(report, TRAINING, profile, run)
        pages.write_site(report, profile, replace(HERE, cpu=evil("rendered on"), commit=evil("rendered by")))
    yield report


SAID_BY_OTHERS = {
    "index.html": ("profile", "NVIDIA H200", "torch", "failure", "command", "title", "paper", "rendered by"),
    "claims.html": (
        *("profile", "paper", "title", "author", "institution", "published", "framework", "data", "statement"),
        *("where", "note", "because"),
    ),
    "fingerprint.html": (
        *("profile", "NVIDIA H200", "cpu", "os", "driver", "python", "package", "version", "remark of the host"),
        *("torch_build", "cuda", "cudnn", "commit", "source", "rendered on", "rendered by", "command"),
    ),
    "01_training.html": (*("profile", "NVIDIA H200", "out of memory", "paper", "statement", "command", "commit"),),
}


@pytest.mark.parametrize("name", SAID_BY_OTHERS)
def test_what_a_device_a_host_an_error_a_profile_or_a_paper_says_stays_text(evil_site: Path, name: str) -> None:
    page = page_of(evil_site, name)
    assert_harmless(page, *map(evil, SAID_BY_OTHERS[name]))
    assert external_urls(page) == []
    assert_links_lead_somewhere(evil_site / name)
