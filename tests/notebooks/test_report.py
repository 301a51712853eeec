"""The whole way, as a user goes it: `labkit report` at smoke scale, resumed, killed, on the user's own images."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from bs4 import BeautifulSoup
from IPython.display import HTML

from labkit.engines.openvino_on_cpu import why_unsupported
from labkit.places import ROOT
from labkit.recipes import engine_name
from labkit.records import Record, parse_line
from labkit.records.traced import Traced
from labkit.registry import STUDIES
from labkit.report import make
from labkit.report.execute import Execution
from labkit.report.html import external_urls
from labkit.report.make import Request, make_render
from labkit.report.status import read_runs
from tests.archives import write_npz, write_pickled
from tests.commands import SMOKE, UNRECORDED, Site, apart, finish, start
from tests.unit.made_telemetry import PAPERS
from tests.unit.test_site import (
    HERE,
    POWER,
    POWERED,
    TRAINING,
    B,
    assert_links_lead_somewhere,
    executed,
    passes_of,
    put,
    reporting,
)

pytestmark = pytest.mark.timeout(900)

STUDIES_GONE_THROUGH = (
    *("03_multi_gpu", "05_inference", "06_cpu_vs_gpu", "07_precision"),
    *("08_quantization", "09_profile"),
)


def lines(report: Path, study: str = "*") -> list[str]:
    return [line for path in report.glob(f"records/*/{study}.jsonl") for line in path.read_text().splitlines()]


def assert_complete(page: Path, figures: int) -> None:
    """A page that works from disk, with at least so many figures, each with the command that makes it again."""
    text = page.read_text(encoding="utf-8")
    assert external_urls(text) == [] and len(text) < 2_000_000
    assert_links_lead_somewhere(page)
    shown = BeautifulSoup(text, "html.parser").select("figure.lk-figure")
    assert len(shown) >= figures
    for figure in shown:
        assert re.match(r"make (render HW=\w+|compare)", figure.select_one(".lk-again code").get_text())


def test_a_users_imagenet32_in_both_forms_gives_one_report(tmp_path: Path, report: Path) -> None:
    write_pickled(tmp_path / "pickled", per_batch=16, val=16, seed=1)
    write_npz(tmp_path / "npz", per_batch=16, val=16, seed=1)
    said = finish(start(*SMOKE, TRAINING, "--data", str(tmp_path / "pickled")))
    assert "Plan at scale smoke" in said and "subset" in said
    measured = lines(report)
    assert {parse_line(line).status for line in measured} == {"ok"}
    training = [parse_line(line) for line in measured if parse_line(line).trial["workload"] == "train"]
    assert {record.trial["data"] for record in training} == {"imagenet32"}
    assert all(str(tmp_path) not in line for line in measured), "no path of the user's in a record"

    for page in ("index.html", "01_training.html"):
        text = (report / page).read_text(encoding="utf-8")
        assert external_urls(text) == []
        assert "<script src" not in text
        assert len(text) < 2_000_000
    assert_complete(report / "01_training.html", figures=3)
    assert_complete(report / "index.html", figures=0)
    run = json.loads((report / "run.json").read_text())["studies"]["01_training"]
    assert run["status"] == "ok" and run["command"].startswith("make report HW=cpu")

    # The other form holds the same images, so it has the same checksum, and nothing is left to measure.
    again = finish(start(*SMOKE, TRAINING, "--data", str(tmp_path / "npz")))
    assert f"{len(measured)} of them measured before" in again
    assert lines(report) == measured


# ---- one report of many studies, killed in the middle of the first --------------------------------------------------


@dataclass(frozen=True)
class Report:
    """Where it is, what stood in it when it was killed, and how the same command ended."""

    folder: Path
    kept: list[str]
    said: str
    code: int

    def made(self, study: str) -> list[Record]:
        return [parse_line(line) for line in lines(self.folder, study)]

    def page(self, study: str, figures: int) -> str:
        """The page of a study that has gone well."""
        assert read_runs(self.folder)[study].status == "ok"
        assert_complete(self.folder / f"{study}.html", figures=figures)
        text = (self.folder / f"{study}.html").read_text(encoding="utf-8")
        assert "Traceback" not in text
        return text


@pytest.fixture(scope="module")
def smoke(shared_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Report:
    own = tmp_path_factory.mktemp("smoke")
    environment, folder = apart(own, shared_cache), own / "reports" / "cpu"
    command = (*SMOKE, ",".join(STUDIES_GONE_THROUGH))
    first = start(*command, environment=environment)
    deadline = time.monotonic() + 200
    while len(lines(folder)) < 2 and time.monotonic() < deadline:
        assert first.poll() is None, first.communicate()[0]
        time.sleep(0.2)
    tree = [psutil.Process(first.pid), *psutil.Process(first.pid).children(recursive=True)]
    for process in tree:
        process.send_signal(signal.SIGKILL)
    first.wait()
    kept = lines(folder)
    _, alive = psutil.wait_procs(tree, timeout=10)
    assert not alive
    second = start(*command, environment=environment)
    said, _ = second.communicate(timeout=500)
    return Report(folder, kept, said, second.returncode)


def test_killed_in_the_middle_the_same_command_goes_on(smoke: Report) -> None:
    assert smoke.code == 0, smoke.said
    after = lines(smoke.folder, STUDIES_GONE_THROUGH[0])
    assert 2 <= len(smoke.kept) < len(after)
    assert after[: len(smoke.kept)] == smoke.kept, "what was written before is kept byte for byte"
    assert f"{len(smoke.kept)} of them measured before" in smoke.said
    pairs = [(parse_line(line).key, parse_line(line).pass_number) for line in after]
    assert len(set(pairs)) == len(pairs), "nothing is measured twice"


def test_a_study_with_training_runs_goes_the_whole_way(smoke: Report) -> None:
    """Timed blocks and whole epochs, in FP32 and otherwise, as far as a CPU has them."""
    made = smoke.made("07_precision")
    assert {record.status for record in made} == {"ok"}, [record.reason for record in made]
    timed, runs = [one for one in made if one.blocks], [one for one in made if one.epochs]
    assert len(timed) == len(runs) == 2, smoke.said
    assert {one.trial["data"] for one in runs} == {"digits"} and {one.trial["data"] for one in timed} == {"synthetic32"}
    assert any("reference" in one.phases_s and one.facts["gate"]["steps"] for one in runs)
    smoke.page("07_precision", figures=4)


def test_inference_goes_the_whole_way(smoke: Report) -> None:
    """Blocks and single queries on a CPU; training stands beside them."""
    made = smoke.made("05_inference")
    assert [record.status for record in made] == ["ok"] * 3, [record.reason for record in made]
    answered = [one.blocks.queries for one in made if one.blocks and one.blocks.queries]
    assert sorted(queries.images for queries in answered) == [1, 4]
    assert all(min(queries.latency_ns) > 0 for queries in answered)
    assert "SingleStream" in smoke.page("05_inference", figures=3)


def test_quantization_goes_the_whole_way(smoke: Report) -> None:
    """FP32 and INT8 of one engine beside the plain loop; without trained weights accuracy is refused in words."""
    made = smoke.made("08_quantization")
    timed = [one for one in made if one.trial["weights"] == "initial"]
    assert len(made) == 5 and len(timed) == 3
    if why_unsupported() is None:
        assert {one.status for one in timed} == {"ok"}, [one.reason for one in timed]
        (int8,) = (one for one in timed if one.trial["precision"] == "int8")
        assert int8.facts["layers"]["Convolution"].keys() <= {"u8", "i8"} and int8.phases_s["calibrate"] > 0
    refused = [one for one in made if one.trial["weights"] == "trained"]
    assert {one.status for one in refused} == {"unsupported"}
    assert all("no trained weights" in (one.reason or "") for one in refused)
    assert "no trained weights" in smoke.page("08_quantization", figures=3)


def test_cpu_against_gpu_goes_the_whole_way_without_a_gpu(smoke: Report) -> None:
    """The CPU's side alone, with its threads swept; the claims say plainly what they lack."""
    made = smoke.made("06_cpu_vs_gpu")
    assert {record.status for record in made} == {"ok"}, [record.reason for record in made]
    assert {record.trial["device"] for record in made} == {"cpu"}
    swept = [record for record in made if record.trial["threads"]]
    assert swept and all(record.facts["threads"] == record.trial["threads"] for record in swept)
    assert {"plain", "openvino"} == {engine_name(record.as_trial) for record in made}
    text = smoke.page("06_cpu_vs_gpu", figures=2)
    assert "This profile has no GPU" in text and "the profile cpu has none" in text


def test_several_devices_go_the_whole_way_as_two_processes(smoke: Report) -> None:
    """Scaling, two jobs and messages between two Gloo ranks; the page says what they cannot show."""
    made = smoke.made("03_multi_gpu")
    assert {record.status for record in made} == {"ok"}, [record.reason for record in made]
    two = [record for record in made if record.trial["devices"] == 2]
    assert {record.trial["workload"] for record in two} == {"train", "all_reduce", "peer_copy"}
    trained = [record for record in two if record.trial["model"] == "resnet18" and record.trial["workload"] == "train"]
    assert all(record.facts["gate"]["steps"] and record.facts["exchanged_bytes_per_step"] > 0 for record in trained)
    text = smoke.page("03_multi_gpu", figures=3)
    assert "This profile has no GPU" in text and "the profile cpu has none" in text


def test_tracing_goes_the_whole_way(smoke: Report) -> None:
    """Operators, sections and memory of a CPU's steps; few steps beside many; what a CPU has not is said."""
    made = smoke.made("09_profile")
    assert {record.status for record in made} == {"ok"}, [record.reason for record in made]
    traces = [one.blocks.trace for one in made if one.blocks and one.trial["workload"] == "train"]
    assert traces and all(isinstance(one, Traced) and one.of == "operators" and one.busy_s > 0 for one in traces)
    text = smoke.page("09_profile", figures=5)
    assert "PyTorch's operators" in text and "an operator calls the library itself" in text


# ---- reports that are rendered --------------------------------------------------------------------------------------


def test_a_profile_without_records_still_renders_what_is_known(site: Site) -> None:
    report, said = site.folder / UNRECORDED, site.said[UNRECORDED]
    runs = read_runs(report)
    assert {TRAINING, POWER} <= set(runs), "side by side, each in a process of its own"
    assert {(run.status, run.command) for run in runs.values()} == {("ok", "make render HW=k40m")}
    assert said.count(" done in ") == len(runs) and f"[{len(runs)}/{len(runs)}]" in said
    assert not [path for path in report.iterdir() if path.name.startswith(".")], "nothing half written"
    for name in ("index", "claims", "fingerprint", *runs):
        assert_complete(report / f"{name}.html", figures=name in ("index", TRAINING))
    index = (report / "index.html").read_text(encoding="utf-8")
    assert "Kepler" in index or "kepler" in index
    assert "4.29" in index and "288" in index, "nominal peaks"
    assert "75.24019258" in index, "what the paper printed of it"
    assert "figure-nominal-roofline" in index
    assert external_urls(index) == []
    page = (report / "01_training.html").read_text(encoding="utf-8")
    assert "Nothing was measured on Tesla K40m" in page


def test_profiles_are_compared_from_their_records_alone(site: Site) -> None:
    assert "Comparing cpu, h100, h200, h200_x2." in site.said["comparison"]
    page = site.folder / "comparison" / "index.html"
    assert_complete(page, figures=5)
    text = " ".join(BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser").get_text(" ").split())
    assert "This study failed" not in text and "Traceback" not in text
    assert "H100 SXM over H200 SXM" in text and "H200 SXM over H100 SXM, the same trials" not in text, "as asked for"
    assert "make compare BASELINE=h200" in text


# ---- rendering several studies side by side -------------------------------------------------------------------------


class Inline:
    """A pool of no processes: each call is done at once, and what it raises is kept, as a real pool keeps it."""

    def __init__(self, *_: object, **__: object) -> None:
        self.futures: list[Future[Any]] = []

    def __enter__(self) -> Inline:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:  # noqa: BLE001 - whatever it is
            future.set_exception(error)
        return future


def ended(study: str) -> Execution:
    """How the stub's notebooks end, unless a test says otherwise."""
    return Execution(None)


@pytest.fixture
def reports(tmp_path: Path) -> Iterator[tuple[Path, pytest.MonkeyPatch]]:
    """Records of two studies on two hosts; no kernel and no clock, and the studies end in the other order."""
    with reporting(tmp_path, [paper for paper in PAPERS if paper.id == "wisconsin"]) as patch:

        def execute(notebook: Path, output: Path, parameters: dict[str, Any], **_: Any) -> Execution:
            outcome = ended(notebook.stem)
            executed(output, HTML(f"{notebook.stem} of {parameters['hw']}"), headline=f"{notebook.stem} was rendered.")
            return outcome

        patch.setattr(make, "execute", execute)
        patch.setattr(make, "ProcessPoolExecutor", Inline)
        patch.setattr(make, "as_completed", lambda futures: reversed(list(futures)))
        patch.setattr(make, "this_host", lambda: HERE)
        patch.setattr(make, "time", SimpleNamespace(monotonic=lambda: 0.0))
        patch.setattr(make, "utc_now", lambda: "2026-11-21T01:40:00+00:00")
        patch.setattr("labkit.report.pages.utc_now", lambda: "2026-11-21T01:40:00+00:00")
        yield tmp_path, patch


def with_records(folder: Path, patch: pytest.MonkeyPatch) -> Path:
    """A report's folder with records of both studies."""
    patch.setenv("LABKIT_REPORTS", str(folder))
    put(folder, "h200", passes_of())
    put(folder, "h200", passes_of(POWERED, host=B, study=POWER))
    return folder / "h200"


def files_in(report: Path) -> dict[str, bytes]:
    """Every file, without the names of studies in commands, and without one that studies share only if it is alike."""
    found = {str(path.relative_to(report)): path for path in sorted(report.rglob("*")) if path.is_file()}
    shared = rb'<p class="lk-soft">Again: .*</p>| STUDY=[a-z_,0-9]+'
    return {
        name: re.sub(rb"\n+", b"\n", re.sub(shared, b"", path.read_bytes()))
        if path.suffix in (".html", ".json")
        else path.read_bytes()
        for name, path in found.items()
        if not name.endswith(".ipynb")  # cells have random ids
    }


def test_side_by_side_gives_the_same_files_as_one_after_the_other(
    reports: tuple[Path, pytest.MonkeyPatch],
) -> None:
    folder, patch = reports
    together = with_records(folder / "together", patch)
    assert make_render(Request(hw="h200")) == 0
    alone = with_records(folder / "alone", patch)
    for study in STUDIES:
        if (ROOT / "notebooks" / f"{study}.ipynb").is_file() and study != "20_comparison":
            assert make_render(Request(hw="h200", study=study)) == 0
    assert {TRAINING, POWER} <= set(read_runs(together))
    assert files_in(together) == files_in(alone)
    assert len(files_in(together)) >= 10


def test_a_notebook_that_fails_among_others_stops_none_of_them(
    reports: tuple[Path, pytest.MonkeyPatch], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, patch = reports
    report = with_records(folder, patch)
    for broken, whole in ((TRAINING, POWER), (POWER, TRAINING)):  # whichever ends first
        monkeypatch.setitem(
            globals(), "ended", lambda study, bad=broken: Execution("ValueError: it broke" if study == bad else None)
        )
        assert make_render(Request(hw="h200", study=f"{TRAINING},{POWER}")) == 1
        runs = read_runs(report)
        assert (runs[broken].status, runs[broken].reason) == ("failed", "ValueError: it broke")
        assert (runs[whole].status, runs[whole].reason) == ("ok", None)
        assert f"1 of 2 studies failed: {broken}." in capsys.readouterr().err
        index = (report / "index.html").read_text(encoding="utf-8")
        assert "ValueError: it broke" in index and f"{whole} was rendered." in index


def test_a_users_mistake_in_every_notebook_is_a_users_mistake(
    reports: tuple[Path, pytest.MonkeyPatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, patch = reports
    with_records(folder, patch)
    monkeypatch.setitem(globals(), "ended", lambda study: Execution("UserError: so not", user_mistake=True))
    assert make_render(Request(hw="h200")) == 2
    monkeypatch.setitem(globals(), "ended", lambda study: Execution("no", user_mistake=study == TRAINING))
    assert make_render(Request(hw="h200")) == 1, "one of them is not the user's"


def test_a_process_that_dies_costs_its_own_study_only(
    reports: tuple[Path, pytest.MonkeyPatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Out of memory beside its neighbours, say: run.json says so, and the others have their pages."""
    folder, patch = reports
    report = with_records(folder, patch)

    def dies(study: str) -> Execution:
        if study == POWER:
            raise BrokenProcessPool("a process in the process pool was terminated abruptly")
        return Execution(None)

    monkeypatch.setitem(globals(), "ended", dies)
    assert make_render(Request(hw="h200", study=f"{TRAINING},{POWER}")) == 1
    runs = read_runs(report)
    assert runs[TRAINING].status == "ok" and runs[POWER].status == "failed"
    assert "terminated abruptly" in str(runs[POWER].reason)
    assert f"{TRAINING} was rendered." in (report / "index.html").read_text(encoding="utf-8")


def test_records_that_cannot_be_read_cost_their_own_study_only(reports: tuple[Path, pytest.MonkeyPatch]) -> None:
    folder, patch = reports
    report = with_records(folder, patch)
    broken = report / "records" / B / f"{POWER}.jsonl"
    broken.write_text("<<<<<<< HEAD\n" + broken.read_text(encoding="utf-8"), encoding="utf-8")
    assert make_render(Request(hw="h200", study=f"{TRAINING},{POWER}")) == 1
    runs = read_runs(report)
    assert runs[TRAINING].status == "ok" and runs[POWER].status == "failed"
    index = (report / "index.html").read_text(encoding="utf-8")
    assert f"{TRAINING} was rendered." in index and "line 1 is not a record" in index
