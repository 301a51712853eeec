"""Tests of the index and of all pages: answers and missing results, links, and escaping of texts from data."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pytest
from bs4 import BeautifulSoup, Tag
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tests.workbook.made_telemetry import PAPERS, hopper, made
from workbook.claims.papers import Paper
from workbook.claims.reports import evidence, recorded
from workbook.hardware.host import Host
from workbook.hardware.profile import load_profile
from workbook.records import PROTOCOL, Blocks, Planned, Record, short_hash
from workbook.registry import COMPARISON, STUDIES
from workbook.report import pages, scraps
from workbook.report.headlines import FILE as FINDINGS
from workbook.report.html import external_urls
from workbook.report.pages import StudyRun, read_runs, write_run
from workbook.results import Results, load
from workbook.show import table
from workbook.trials.trial import NO_DATA, Trial

# ---- made-up reports, for the tests of every page -------------------------------------------------------------------

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
BLOCK_S = {R50: 0.25, R50_LARGE: 0.5, VGG: 0.5, VGG_LARGE: 1.0}  # 0.5 s for the other trials
JITTER = (1.0, 1.01, 0.98)  # factor of the block time in each pass


def taken(trial: Trial, number: int, trials: Sequence[Trial] = TRIALS, passes: int = 3, **other: Any) -> Record:
    """Return the record of a trial in a pass, with ten blocks of ten steps."""
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
        "planned": Planned(passes={short_hash(item.key): passes for item in trials}, order_seed=1),
        "versions": {"torch": "2.11", "torch_build": "2.11+cu130", "commit": "0123456789ab", "source": "fedcba987654"},
        "result": blocks,
    }
    telemetry = hopper(trial) if trial.workload in ("train", "idle") else None
    return made(trial, number, telemetry, **(values | other))


def images_per_s(trial: Trial, number: int, speed: float = 1.0) -> float:
    """Return the throughput of a training trial of these records in a pass."""
    return trial.batch * 10 / (BLOCK_S[trial] * JITTER[number % 3]) * speed


def failed(trial: Trial, number: int, reason: str, trials: Sequence[Trial] = TRIALS, **other: Any) -> Record:
    """Return the record of a trial that ran out of memory."""
    record = taken(trial, number, trials, **other)
    return record.model_copy(update={"result": None, "telemetry": None, "status": "oom", "reason": reason})


def described(host: str = A, gpu: str = "NVIDIA H200", **other: Any) -> dict[str, Any]:
    """Return the content of a host's file."""
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
    """Return the records of every trial in every pass."""
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
    """Write a notebook that ran, with a cell that shows `shown` and publishes `scraps`."""
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
    """Use this folder for reports. Take papers that are already read and draw no pictures, which saves time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_REPORTS", str(reports))
        patch.setattr("workbook.claims.reports.load_papers", lambda: list(papers))
        patch.setattr("workbook.show.figure.Figure.svg", lambda *_: "<svg/>")
        yield patch


# ---- contents of a page ---------------------------------------------------------------------------------------------


def parsed(path: Path) -> BeautifulSoup:
    return BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")


def read_page(page: str) -> tuple[list[tuple[str, dict[str, str]]], str]:
    """Return (tag, attributes) of each element of a page, and its text with single spaces."""
    soup = BeautifulSoup(page, "html.parser")
    return [(element.name, dict(element.attrs)) for element in soup.find_all(True)], " ".join(soup.get_text().split())


def said_in(element: Tag | None) -> str:
    """Return an element's text with single spaces."""
    assert element is not None
    return " ".join(element.get_text(" ").split())


def texts(page: str, selector: str) -> list[str]:
    return [said_in(element) for element in BeautifulSoup(page, "html.parser").select(selector)]


def assert_sound(path: Path) -> None:
    """Assert that a page runs and loads nothing, that its ids are unique and that its links have targets."""
    page, soup = path.read_text(encoding="utf-8"), parsed(path)
    assert external_urls(page) == [] and len(page) < 2_000_000
    assert page.count("</style>") == len(re.findall(r"<style\b", page)), "no text ends a style early"
    assert not soup.find("script")
    assert not [name for element in soup.find_all(True) for name in element.attrs if name.startswith("on")]
    assert all(str(image.get("src")).startswith("data:") for image in soup.find_all("img"))
    ids = Counter(str(element["id"]) for element in soup.select("[id]"))
    assert [name for name, number in ids.items() if number > 1] == []
    ids_of = {path: set(ids)}
    for link in soup.select("a[href]"):
        address, _, place = str(link["href"]).partition("#")
        if re.match(r"[a-z]+:", address):  # an address on the net
            continue
        target = path.parent / unquote(address) if address else path
        assert not address.startswith("/") and target.is_file(), link
        if place:
            if target not in ids_of:
                ids_of[target] = {str(element["id"]) for element in parsed(target).select("[id]")}
            assert unquote(place) in ids_of[target], link


# ---- the index ------------------------------------------------------------------------------------------------------

PAGES = ("index.html", "claims.html", "fingerprint.html", "glossary.html", "01_training.html", "04_power.html")


def make_reports(reports: Path) -> None:
    """Make reports of two profiles, one with records of two hosts, a rendered study and a failed study."""
    put(reports, "h100", passes_of(host=C, speed=0.8))
    h200 = reports / "h200"
    put(reports, "h200", passes_of())
    put(reports, "h200", passes_of(POWERED, host=B, study=POWER))
    (h200 / "telemetry" / B).mkdir(parents=True)
    (h200 / "telemetry" / B / f"{POWER}.parquet").write_bytes(b"series")
    profile, seen = load_profile("h200"), evidence("h200")
    frame = Results([seen.results("h200", TRAINING)]).frame()
    shown = table(frame.query("workload == 'train'"), ["model", "batch"], ["images_per_s"])
    published = {"headline": "ResNet-50 is fastest.\n\nMore on the page.", "number": "2,600 images/s"}
    executed(h200 / f"{TRAINING}.ipynb", shown, **published)
    executed(h200 / f"{POWER}.ipynb")
    for study, run in (
        (TRAINING, ran(TRAINING)),
        (POWER, ran(POWER, status="failed", reason="ValueError: no power")),
    ):
        write_run(h200, study, run)
        pages.write_page(h200, study, profile, run)
    pages.write_site(h200, profile, HERE)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Make the reports and yield the folder of the report with two hosts."""
    reports = tmp_path_factory.mktemp("reports")
    with reporting(reports):
        make_reports(reports)
    yield reports / "h200"


def page_of(report: Path, name: str) -> str:
    return (report / name).read_text(encoding="utf-8")


def test_every_page_is_sound(site: Path) -> None:
    for name in PAGES:
        assert_sound(site / name)


def test_the_index_counts_the_verdicts_and_links_each_paper(site: Path) -> None:
    soup = parsed(site / "index.html")
    links = [link["href"] for link in soup.select("#papers + p + p a")]
    assert links == [f"papers/{paper.id}.html" for paper in PAPERS]
    assert re.search(r"\d+ of \d+ testable claims are replicated", said_in(soup.main))


def test_the_index_begins_with_the_findings_of_all_machines_and_then_offers_the_devices(report: Path) -> None:
    (report.parent / "comparison").mkdir()
    (report.parent / FINDINGS).write_text(json.dumps({"one": "<p>First.</p>", "two": "<p>Second.</p>"}))
    pages.write_site(report, load_profile("h200"), HERE, sites=["h100", "h200"])
    soup = parsed(report / "index.html")
    assert soup.main is not None
    first, heading, devices = soup.main.find_all(recursive=False)[:3]
    assert said_in(first) == "First. Second."
    assert said_in(heading) == "Choose a device"
    assert [link["href"] for link in devices.select("a")] == ["../h100/index.html"]
    assert said_in(devices) == "H200 SXM H100 SXM"


def rows_of(report: Path) -> dict[str, str]:
    """Return the text of each study's row of the index, by study."""
    return dict(zip(STUDIES, texts(page_of(report, "index.html"), "#questions + p + div tbody tr"), strict=True))


def test_the_index_shows_each_studys_answer_or_the_reason_and_the_next_command(site: Path) -> None:
    rows = rows_of(site)
    assert rows[TRAINING] == f"{STUDIES[TRAINING].question} ResNet-50 is fastest. 2,600 images/s"
    assert rows[POWER].endswith(" failed ValueError: no power make report HW=h200 STUDY=power –")
    assert rows["12_data_pipeline"].endswith(" not measured make report HW=h200 STUDY=data_pipeline –")
    assert "make compare" in rows[COMPARISON]


@pytest.fixture
def report(tmp_path: Path) -> Iterator[Path]:
    """Yield the empty folder of a report of h200, without papers."""
    (tmp_path / "h200").mkdir()
    with reporting(tmp_path, []):
        yield tmp_path / "h200"


def row_of(report: Path, study: str, waiting: dict[str, float] | None = None) -> str:
    pages.write_site(report, load_profile("h200"), HERE, waiting or {})
    return rows_of(report)[study]


def test_the_index_of_a_profile_that_cannot_run_gives_the_reason(report: Path) -> None:
    unrunnable = load_profile("k40m")
    pages.write_site(report, unrunnable, HERE)
    (notice,) = texts(page_of(report, "index.html"), ".lk-notice")
    assert notice == f"This device can't be measured: {unrunnable.reason}"


def test_the_index_links_the_comparison_once_it_exists(report: Path) -> None:
    assert "Only one device file has records here." in row_of(report, COMPARISON)
    put(report.parent, "h200", passes_of())
    put(report.parent, "h100", passes_of())
    assert "make compare" in row_of(report, COMPARISON)
    (report.parent / "comparison").mkdir()
    (report.parent / "comparison" / "index.html").write_text("<title>Comparison</title>")
    executed(report.parent / "comparison" / f"{COMPARISON}.ipynb", headline="Twice as fast.")
    assert "Twice as fast." in row_of(report, COMPARISON)
    assert "then_and_now.html" not in page_of(report, "index.html"), "a comparison of an earlier version lacks it"
    (report.parent / "comparison" / "then_and_now.html").write_text("<title>Then and now</title>")
    row_of(report, COMPARISON)
    assert 'href="../comparison/then_and_now.html"' in page_of(report, "index.html")
    assert_sound(report / "index.html")


def test_profiles_with_round_0_alone_are_not_compared(report: Path) -> None:
    put(report.parent, "h200", passes_of())
    put(report.parent, "h200", passes_of(passes=1, scale="smoke", host=C))
    put(report.parent, "h100", passes_of(passes=1, scale="smoke"))
    assert "Only one device file has records here." in row_of(report, COMPARISON)
    seen = evidence(None)
    assert {records.profile.name for records in recorded(seen).selected} == {"h200"}
    assert [side.results.profile.name for side in seen.sides(TRAINING, across=True)] == ["h200"] * len(TRIALS)
    everywhere = load("h200").frame(hosts="all")
    assert set(everywhere["scale"]) == {"quick"}, "nor are hosts pooled with round 0 of another host"


def test_the_index_asks_to_measure_then_to_render_a_study(report: Path) -> None:
    assert " not measured make report HW=h200 STUDY=training" in row_of(report, TRAINING)
    write_run(report, TRAINING, ran(TRAINING, mode="render", command="make render HW=h200"))
    assert " not measured " in row_of(report, TRAINING), "the study was rendered without records"
    (report / "run.json").unlink()
    put(report.parent, "h200", passes_of())
    executed(report / "14_former.ipynb", headline="A study that this version does not have.")
    write_run(report, "14_former", ran("14_former"))
    assert " not rendered It has records. make render HW=h200 STUDY=training" in row_of(report, TRAINING)


def test_the_index_marks_the_numbers_of_round_0_until_a_larger_scale_replaces_them(report: Path) -> None:
    assert "waiting Expected at about" in row_of(report, TRAINING, {TRAINING: 60.0})
    put(report.parent, "h200", passes_of(passes=1, scale="smoke"))
    executed(report / f"{TRAINING}.ipynb", headline="VGG-16 is fastest.")
    write_run(report, TRAINING, ran(TRAINING, scale="smoke"))
    pages.write_page(report, TRAINING, load_profile("h200"), ran(TRAINING, scale="smoke"))
    small = row_of(report, TRAINING, {POWER: 1.0, TRAINING: 60.0})
    assert re.search(
        r"VGG-16 is fastest. Small sizes, one run; this report replaces it until about \d\d:\d\d UTC.", small
    )
    assert "VGG-16 is fastest. Small sizes, one run. make report HW=h200 STUDY=training" in row_of(report, TRAINING)
    assert "Exceptions: 1 study at small sizes." in page_of(report, "index.html")
    put(report.parent, "h200", passes_of(passes=1))
    assert "Small sizes" not in row_of(report, TRAINING)


@pytest.mark.parametrize("content", ["{", "[]", '{"studies": 3}', '{"studies": {"01_training": {"status": 1}}}'])
def test_a_damaged_file_of_runs_counts_as_none(content: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(content)
    assert read_runs(tmp_path) == {}


@pytest.mark.parametrize(
    ("measured", "shown"),
    [
        ([(PROTOCOL, 6)] * 2, []),
        ([(2, 6)] * 2, ["all studies by the older protocol 2"]),
        ([(2, 6)], ["1 study by the older protocol 2"]),
        ([(2, 6), (PROTOCOL, 6), (2, 6)], ["2 studies by the older protocol 2"]),
        (
            [(PROTOCOL, 1), (PROTOCOL, 5), (2, 6)],
            ["1 study by the older protocol 2", "2 studies with fewer rounds than planned so far"],
        ),
        ([(PROTOCOL, 0), (PROTOCOL, 6)], ["1 study with fewer rounds than planned so far", "1 study at small sizes"]),
    ],
)
def test_the_index_counts_the_studies_that_an_exception_concerns(
    measured: list[tuple[int, int]], shown: list[str]
) -> None:
    studies: Any = [
        SimpleNamespace(protocol=protocol, rounds=(complete, 6), is_small=not complete)
        for protocol, complete in measured
    ]
    assert pages._exceptions(studies) == shown


def test_an_answer_leaves_out_bullets_without_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    published: dict[str, Any] = {}
    monkeypatch.setattr("scrapbook.glue", published.__setitem__)
    power, price = "**Power at 5 W:** not measured (no sensor 2).", "**Price:** not measured. The paper: 5 times."
    assert scraps.answer("**Speed:** 3 images/s.", power, price).bullets == ("**Speed:** 3 images/s.", price)
    assert published["labkit.headline"] == f"**Speed:** 3 images/s.\n\n{price}"
    assert scraps.answer(power, power).bullets == (scraps.NO_VALUE,)
    assert scraps.answer(power, reason="**Power:** no sensor.", short=power).bullets == ("**Power:** no sensor.",)
    assert published["labkit.short"] == "Power: no sensor."
    scraps.answer("**It takes 3.2 to 3.6 mJ.** The paper: 5 mJ.")
    assert published["labkit.short"] == "It takes 3.2 to 3.6 mJ."


@pytest.mark.parametrize(
    ("bullet", "is_shown"),
    [
        ("**From 8 to 32 images:** VGG-16 not measured, ResNet-50 not measured.", False),
        ("**Busy (FP32):** not measured at batch 8, not measured at batch 32.", False),
        ("**Busy (FP32):** not measured at batch 8, 40 % at batch 32.", True),
        ("**BF16:** not measured. Over FP16: no clear difference.", True),
        ("**Next:** VGG-16, −0.2 points, ResNet-50 not measured.", True),
    ],
)
def test_settings_and_names_are_no_values_of_an_answer(
    bullet: str, *, is_shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    published: dict[str, Any] = {}
    monkeypatch.setattr("scrapbook.glue", published.__setitem__)
    speed = "**Speed:** 3 images/s."
    assert scraps.answer(bullet, speed, short=bullet).bullets == ((bullet, speed) if is_shown else (speed,))
    assert published["labkit.short"] == (bullet if is_shown else "Speed: 3 images/s.")
