"""End-to-end tests of `labkit report` at smoke scale, killed and resumed, on a user's images, and of rendering."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from bs4 import BeautifulSoup

from labkit.errors import UserError
from tests.archives import write_npz, write_pickled
from tests.commands import SMOKE, UNRECORDED, Site, apart, finish, start
from tests.notebooks.test_notebooks import write_notebook
from tests.notebooks.test_record_sets import EMPTY, STUDY_WORDS, words_in_sight
from tests.processes import PATIENCE_S, eventually
from tests.workbook.made_telemetry import PAPERS
from tests.workbook.test_site import (
    HERE,
    POWER,
    POWERED,
    TRAINING,
    B,
    assert_sound,
    executed,
    failed,
    parsed,
    passes_of,
    put,
    reporting,
    said_in,
    texts,
)
from workbook.engines.openvino_on_cpu import missing
from workbook.hardware.host import this_host
from workbook.paths import ROOT
from workbook.records import Record, parse_line
from workbook.records.traced import Traced
from workbook.registry import STUDIES
from workbook.report import make
from workbook.report import rendering as pages
from workbook.report.execute import Execution
from workbook.report.make import Request, make_render
from workbook.report.pages import read_runs
from workbook.report.scraps import Answer
from workbook.trials import recipes

PRECISION = "07_precision"
# Python runs it at the start of each process of the report. A processor without BF16 needs 0.07 s for an image.
FEWER_DIGITS = "from labkit.data import digits\ndigits.TRAIN_IMAGES, digits.VAL_IMAGES = 64, 32\n"


def lines(report: Path, study: str = "*") -> list[str]:
    return [line for path in report.glob(f"records/*/{study}.jsonl") for line in path.read_text().splitlines()]


def assert_has_figures(page: Path) -> None:
    """Assert that a page works from disk and has a figure."""
    assert_sound(page)
    assert parsed(page).select("figure.lk-figure svg")


# ---- a report on a user's images, killed during its first study, and reports of further studies ----------------------


@dataclass(frozen=True)
class Report:
    """A report that was killed and resumed, the records `kept` at the kill, and what the resumed command printed."""

    folder: Path
    environment: dict[str, str]
    data: Path
    kept: list[str]
    said: str

    def made(self, study: str) -> list[Record]:
        """Return the records of a study, which is measured now if no test has asked for it."""
        if not lines(self.folder, study):
            finish(start(*SMOKE, study, "--data", str(self.data), environment=self.environment))
        return [parse_line(line) for line in lines(self.folder, study)]

    def page(self, study: str) -> str:
        """Assert that a study succeeded and return its page."""
        assert read_runs(self.folder)[study].status == "ok"
        assert_has_figures(self.folder / f"{study}.html")
        text = (self.folder / f"{study}.html").read_text(encoding="utf-8")
        assert "Traceback" not in text
        return text


@pytest.fixture(scope="module")
def smoke(shared_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Report:
    base = tmp_path_factory.mktemp("smoke")
    environment, folder = apart(base, shared_cache), base / "reports" / "cpu"
    (base / "sitecustomize.py").write_text(FEWER_DIGITS)
    environment["PYTHONPATH"] = f"{base}{os.pathsep}{ROOT}"
    data = base / "pickled"
    write_pickled(data, per_batch=16, val=16, seed=1)
    command = (*SMOKE, PRECISION, "--data", str(data))
    first = start(*command, environment=environment)
    assert eventually(lambda: len(lines(folder)) >= 2 or first.poll() is not None)
    assert first.poll() is None, first.communicate()[0]
    tree = [psutil.Process(first.pid), *psutil.Process(first.pid).children(recursive=True)]
    for process in tree:
        process.send_signal(signal.SIGKILL)
    first.wait()
    kept = lines(folder)
    _, alive = psutil.wait_procs(tree, timeout=PATIENCE_S)
    assert not alive
    return Report(folder, environment, data, kept, finish(start(*command, environment=environment)))


def test_the_command_of_a_killed_report_resumes_it(smoke: Report) -> None:
    after = lines(smoke.folder, PRECISION)
    assert 2 <= len(smoke.kept) < len(after)
    assert after[: len(smoke.kept)] == smoke.kept, "what was written before is kept byte for byte"
    assert f"{len(smoke.kept)} of them measured before" in smoke.said
    pairs = [(parse_line(line).key, parse_line(line).pass_number) for line in after]
    assert len(set(pairs)) == len(pairs), "nothing is measured twice"


def test_a_users_imagenet32_in_both_forms_gives_one_report(smoke: Report, tmp_path: Path) -> None:
    assert "Plan at scale smoke" in smoke.said and "subset" in smoke.said
    measured = lines(smoke.folder, PRECISION)
    assert all(str(smoke.folder.parents[1]) not in line for line in measured), "no path of the user's in a record"
    assert_sound(smoke.folder / "index.html")
    assert read_runs(smoke.folder)[PRECISION].command.startswith("make report HW=cpu")

    # The npz form holds the same images, so it has the same checksum, and nothing is left to measure.
    write_npz(tmp_path / "npz", per_batch=16, val=16, seed=1)
    asked = ("plan", *SMOKE[1:], PRECISION, "--data", str(tmp_path / "npz"))
    assert f"{len(measured)} of them measured before" in finish(start(*asked, environment=smoke.environment))


def test_a_report_of_a_study_with_training_runs_is_complete(smoke: Report) -> None:
    """The study times blocks in FP32 and BF16, and trains whole epochs in each precision that the CPU has."""
    made = smoke.made(PRECISION)
    assert {record.status for record in made} == {"ok"}, [record.reason for record in made]
    timed, runs = [record for record in made if record.blocks], [record for record in made if record.epochs]
    has_bf16 = recipes.has_bf16(this_host().cpu_features)
    assert (len(timed), len(runs)) == (2, 1 + has_bf16), smoke.said
    assert {record.trial["data"] for record in runs} == {"digits"} and {record.trial["data"] for record in timed} == {
        "imagenet32"
    }
    assert any("reference" in record.phases_s and record.facts["gate"]["steps"] for record in runs)
    smoke.page(PRECISION)


@pytest.mark.slow
def test_a_report_of_quantization_is_complete(smoke: Report) -> None:
    """The study times FP32 and INT8 of OpenVINO and the baseline. Without trained weights it says so for accuracy."""
    made = smoke.made("08_quantization")
    timed = [one for one in made if one.trial["weights"] == "initial"]
    assert len(made) == 5 and len(timed) == 3
    why_not = missing()
    if why_not is None:
        assert {one.status for one in timed} == {"ok"}, [one.reason for one in timed]
        (int8,) = (one for one in timed if one.trial["precision"] == "int8")
        assert int8.facts["layers"]["Convolution"].keys() <= {"u8", "i8"} and int8.phases_s["calibrate"] > 0
    refused = [one for one in made if one.trial["weights"] == "trained"]
    assert {one.status for one in refused} == {"unsupported"}
    said = "needs openvino" if why_not else "no trained weights"
    assert all(said in (one.reason or "") for one in refused)
    assert said in smoke.page("08_quantization")


@pytest.mark.thorough
def test_a_report_of_tracing_is_complete(smoke: Report) -> None:
    """The study traces the operators of a CPU's training steps."""
    made = smoke.made("09_profile")
    assert {record.status for record in made} == {"ok"}, [record.reason for record in made]
    traces = [trace.blocks.trace for trace in made if trace.blocks and trace.trial["workload"] == "train"]
    assert traces and all(
        isinstance(trace, Traced) and trace.of == "operators" and trace.busy_s > 0 for trace in traces
    )
    smoke.page("09_profile")


# ---- rendered reports -----------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_profile_without_records_is_rendered(site: Site) -> None:
    report, said = site.report(UNRECORDED), site.said(UNRECORDED)
    runs = read_runs(report)
    assert f"warning: there are no records of {TRAINING}, 03_multi_gpu of {UNRECORDED}. " in said
    assert set(runs) == {TRAINING, "03_multi_gpu"}, "rendered side by side, each in its own process"
    assert {run.status for run in runs.values()} == {"ok"}
    assert said.count(" done in ") == len(runs) and f"[{len(runs)}/{len(runs)}]" in said
    assert not [path for path in report.iterdir() if path.name.startswith(".")], "nothing half written"
    for name in ("index", "claims", "fingerprint", *runs):
        assert_sound(report / f"{name}.html")
    index = said_in(parsed(report / "index.html"))
    assert "This device can't be measured" in index and "CUDA 11.8" in index


OTHERS = [pytest.param(name, marks=pytest.mark.thorough) for name in ("cpu", UNRECORDED)]


@pytest.mark.parametrize("name", ["h200", OTHERS[0]])
def test_no_page_shows_an_empty_value(site: Site, name: str) -> None:
    for page in site.pages(name):
        main = parsed(page).main
        assert main is not None
        for code in main.select("pre, code"):
            code.extract()
        text = said_in(main)
        assert not EMPTY.search(text), f"{page.name}: {EMPTY.search(text)} in {text[:2000]}"


@pytest.mark.parametrize("name", ["h200", *OTHERS])
def test_pages_are_short(site: Site, name: str) -> None:
    too_long = {}
    for page in site.pages(name):
        kind, read = "study" if page.stem[:2].isdigit() else page.stem, parsed(page)
        most = {"index": 780, "study": STUDY_WORDS, "claims": 240 + 47 * len(read.select(".lk-claim"))}.get(kind)
        if most is not None and read.main is not None and (words := words_in_sight(read.main)) > most:
            too_long[page.name] = words, most
    assert not too_long, "page: words, and how many it may have"


@pytest.mark.thorough
def test_the_comparison_page_needs_only_records(site: Site) -> None:
    assert "Comparing cpu, h100, h100_x2, h100_x4, h200, h200_x2, h200_x4." in site.said("comparison")
    page = site.report("comparison") / "index.html"
    assert_has_figures(page)
    text = " ".join(BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser").get_text(" ").split())
    assert "failed:" not in text and "Traceback" not in text
    assert "make compare BASELINE=h200" in text
    assert_has_figures(page.with_name("which_device.html"))


# ---- rendering several studies side by side -------------------------------------------------------------------------


@dataclass
class Rendering:
    """A report of two studies with records. A test sets the outcomes of the notebooks, each in its own process."""

    report: Path
    patch: pytest.MonkeyPatch

    def ends(self, outcome: Callable[[str], Execution]) -> int:
        """Render both studies and return the exit code."""

        def execute(notebook: Path, output: Path, parameters: dict[str, Any], **_: Any) -> Execution:
            ended = outcome(notebook.stem)
            executed(output, Answer((notebook.stem, parameters["hw"])), headline=f"{notebook.stem} was rendered.")
            return ended

        self.patch.setattr(pages, "execute", execute)
        return make_render(Request(hw="h200", study=f"{TRAINING},{POWER}"))

    @property
    def index(self) -> str:
        return (self.report / "index.html").read_text(encoding="utf-8")


@pytest.fixture
def rendering(tmp_path: Path) -> Iterator[Rendering]:
    with reporting(tmp_path, [paper for paper in PAPERS if paper.id == "wisconsin"]) as patch:
        patch.setattr(make, "this_host", lambda **_: HERE)
        put(tmp_path, "h200", passes_of())
        put(tmp_path, "h200", passes_of(POWERED, host=B, study=POWER))
        yield Rendering(tmp_path / "h200", patch)


def test_pages_link_the_studies_before_and_after_them_on_the_site(rendering: Rendering) -> None:
    assert rendering.ends(lambda _: Execution(None)) == 0
    first, second = ((rendering.report / f"{study}.html").read_text(encoding="utf-8") for study in (TRAINING, POWER))
    assert f'<a href="{POWER}.html">Next: {STUDIES[POWER].title}</a>' in first and "Previous:" not in first
    assert f'<a href="{TRAINING}.html">Previous: {STUDIES[TRAINING].title}</a>' in second and "Next:" not in second


def test_rendering_without_a_profile_makes_all_recorded_sites(
    rendering: Rendering, capsys: pytest.CaptureFixture[str]
) -> None:
    put(rendering.report.parent, "h100", passes_of())

    def execute(notebook: Path, output: Path, parameters: dict[str, Any], **_: Any) -> Execution:
        executed(output, Answer((notebook.stem, parameters["hw"])), headline="It was rendered.")
        return Execution(None)

    rendering.patch.setattr(pages, "execute", execute)
    assert make_render(Request(study=TRAINING)) == 0
    assert "Site 1 of 2: h100." in capsys.readouterr().out
    for name in ("h100", "h200"):
        assert "It was rendered." in (rendering.report.parent / name / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(("commit", "warns"), [(None, True), ("c0ffee123456+", True), ("c0ffee123456", False)])
def test_a_plan_says_whether_its_records_will_be_pooled(
    rendering: Rendering, capsys: pytest.CaptureFixture[str], commit: str | None, warns: bool
) -> None:
    rendering.patch.setattr(make, "this_host", lambda **_: replace(HERE, commit=commit))
    make.make_plan(Request(hw="cpu", study="gan", scale="smoke"))
    assert ("never pooled" in capsys.readouterr().out) is warns


def test_rendering_without_any_records_gets_one_sentence(tmp_path: Path) -> None:
    with reporting(tmp_path, []), pytest.raises(UserError, match="no profile has records"):
        make_render(Request())


@pytest.mark.parametrize(("broken", "whole"), [(TRAINING, POWER), (POWER, TRAINING)])
def test_a_failing_notebook_does_not_stop_the_other(
    rendering: Rendering, capsys: pytest.CaptureFixture[str], broken: str, whole: str
) -> None:
    def outcome(study: str) -> Execution:
        if study == broken == POWER:
            raise ValueError("it broke")
        return Execution("ValueError: it broke" if study == broken else None)

    assert rendering.ends(outcome) == 1
    runs = read_runs(rendering.report)
    assert (runs[broken].status, runs[broken].reason) == ("failed", "ValueError: it broke")
    assert (runs[whole].status, runs[whole].reason) == ("ok", None)
    said = capsys.readouterr().err
    assert f"1 of 2 studies failed: {broken}." in said
    assert f"`make render HW=h200 STUDY={STUDIES[broken].name}` makes these pages again" in said
    assert "ValueError: it broke" in rendering.index and f"{whole} was rendered." in rendering.index
    assert rendering.ends(lambda _: Execution(None)) == 0
    said = capsys.readouterr().out
    assert said.count("its page had failed before, and is repaired") == 1


@pytest.mark.parametrize("scale", ["smoke", "quick"])
def test_a_study_without_a_result_here_fails_when_it_is_rendered_too(rendering: Rendering, scale: str) -> None:
    about: dict[str, Any] = {"host": HERE.id, "study": POWER}
    put(rendering.report.parent, "h200", [failed(POWERED[0], 1, "no memory", POWERED, scale=scale, **about)])
    assert rendering.ends(lambda _: Execution(None)) == 1
    run = read_runs(rendering.report)[POWER]
    assert run.status == "failed" and "not one of 1 trials gave a result; the first: no memory" in str(run.reason)
    put(rendering.report.parent, "h200", passes_of(POWERED, scale="full", **about))
    assert rendering.ends(lambda _: Execution(None)) == 0, "the page shows the largest scale"


def test_the_page_of_a_failed_study_names_the_cell_and_the_records(rendering: Rendering) -> None:
    def failing(_: Path, output: Path, *__: Any, **___: Any) -> Execution:
        from nbformat.v4 import new_code_cell, new_notebook, new_output

        error = new_output("error", ename="TypeError", evalue="no float", traceback=["TypeError"])
        cells = [new_code_cell("1", execution_count=1), new_code_cell("2", execution_count=2, outputs=[error])]
        nbformat.write(new_notebook(cells=cells), output)
        return Execution("TypeError: no float")

    rendering.patch.setattr(pages, "execute", failing)
    assert make_render(Request(hw="h200", study=POWER)) == 1
    page = said_in(parsed(rendering.report / f"{POWER}.html"))
    records = f"the records of machine {B}, h200/records/{B}/{POWER}.jsonl"
    assert f"Cell [2] failed with {records}: TypeError: no float" in page


def test_the_exit_code_is_2_only_if_every_notebook_has_a_user_mistake(rendering: Rendering) -> None:
    assert rendering.ends(lambda _: Execution("UserError: so not", user_mistake=True)) == 2
    assert rendering.ends(lambda study: Execution("no", user_mistake=study == TRAINING)) == 1, "one is not the user's"


def test_a_process_that_is_killed_fails_only_its_page(rendering: Rendering) -> None:
    def outcome(study: str) -> Execution:
        if study == POWER:
            os.kill(os.getpid(), signal.SIGKILL)
        return Execution(None)

    assert rendering.ends(outcome) == 1
    runs = read_runs(rendering.report)
    assert (runs[TRAINING].status, runs[POWER].status) == ("ok", "failed")
    assert "killed" in str(runs[POWER].reason)


def test_unreadable_records_fail_only_their_own_study(rendering: Rendering) -> None:
    broken = rendering.report / "records" / B / f"{POWER}.jsonl"
    broken.write_text("<<<<<<< HEAD\n" + broken.read_text(encoding="utf-8"), encoding="utf-8")
    assert rendering.ends(lambda _: Execution(None)) == 1
    runs = read_runs(rendering.report)
    assert runs[TRAINING].status == "ok" and runs[POWER].status == "failed"
    assert f"{TRAINING} was rendered." in rendering.index and "line 1 is not a record" in rendering.index


ELSEWHERE = """
import os
import workbook as wb
from workbook import report
os.environ["LABKIT_REPORTS"] = {folder!r}
lab = wb.open_study("04_power", hw=hw, scale=scale, mode=mode, data=data)
results = lab.measure(lab.trials())
import matplotlib, pandas
wide = pandas.get_option("display.max_columns")
report.answer(f"{{len(results.frame())}} runs, {{wide}} columns, {{matplotlib.get_backend()}}")
"""


def test_a_page_with_fewer_records_than_the_store_fails(
    rendering: Rendering, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = passes_of(POWERED, host=B, study=POWER)
    put(tmp_path / "elsewhere", "h200", records[:1])
    notebook = tmp_path / f"{POWER}.ipynb"

    def renders(folder: Path) -> int:
        write_notebook(notebook, 'hw = ""\nscale = ""\nmode = ""\ndata = ""', ELSEWHERE.format(folder=str(folder)))
        return make_render(Request(hw="h200", study=POWER))

    rendering.patch.setattr(pages, "notebook_of", lambda _: notebook)
    assert renders(tmp_path / "elsewhere") == 1
    said = capsys.readouterr().err
    assert f"its notebook read 1 of the {len(records)} records in {rendering.report}" in said
    assert read_runs(rendering.report)[POWER].status == "failed" and "read 1 of the" in rendering.index
    assert renders(tmp_path) == 0
    assert "runs, 20 columns, module://matplotlib_inline.backend_inline" in rendering.index, "as in JupyterLab"


# ---- pages whose inputs are unchanged --------------------------------------------------------------------------------


@dataclass
class Inputs:
    """A small copy of what pages are made from, and two rendered pages."""

    rendering: Rendering
    root: Path

    def rendered(self, **options: Any) -> set[str]:
        """Render again and return the pages that were made."""
        self.made = self.root / "made"
        self.made.mkdir(exist_ok=True)
        for old in self.made.iterdir():
            old.unlink()

        def execute(notebook: Path, output: Path, _: dict[str, Any], **__: Any) -> Execution:
            (self.made / notebook.stem).touch()
            executed(output, Answer((notebook.stem, "")), headline="rendered")
            return Execution(None)

        self.rendering.patch.setattr(pages, "execute", execute)
        before = self._written()
        assert make_render(Request(hw="h200", study=f"{TRAINING},{POWER}", **options)) == 0
        again = {page for page, written in self._written().items() if written != before.get(page)}
        return {path.name for path in self.made.iterdir()} | again

    def _written(self) -> dict[str, int]:
        """Return when the index and the page of claims were written."""
        pages = (self.rendering.report / "index.html", self.rendering.report / "claims.html")
        return {page.stem: page.stat().st_mtime_ns for page in pages if page.exists()}


EVERYTHING = {TRAINING, POWER, "index", "claims"}
INPUTS = ("papers/x.yaml", "params/base/gpu.yaml", "workbook/show/look.j2", "mine/network.py", "docs/glossary.md")


@pytest.fixture
def inputs(rendering: Rendering, tmp_path: Path) -> Inputs:
    root = tmp_path / "project"
    for folder in ("notebooks", "papers", "params/base", "workbook/show", "mine", "docs"):
        (root / folder).mkdir(parents=True)
    for path in INPUTS:
        (root / path).write_text("a: 1\n")
    for study in (TRAINING, POWER):
        (root / "notebooks" / f"{study}.ipynb").write_text((ROOT / "notebooks" / f"{study}.ipynb").read_text())
    rendering.patch.setattr("workbook.report.inputs.ROOT", root)
    rendering.patch.setattr("workbook.report.inputs.notebook_of", lambda study: root / "notebooks" / f"{study}.ipynb")
    made = Inputs(rendering, root)
    assert made.rendered() == EVERYTHING
    return made


def test_pages_whose_inputs_are_unchanged_stay(inputs: Inputs, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert inputs.rendered() == set()
    assert f"Unchanged: {TRAINING}, {POWER}." in capsys.readouterr().out
    assert inputs.rendered(force=True) == EVERYTHING


def test_a_change_of_code_papers_profiles_or_glossary_makes_every_page_again(inputs: Inputs) -> None:
    for path in INPUTS:
        changed = inputs.root / path
        times = changed.stat()
        changed.write_text("a: 2\n")
        os.utime(changed, ns=(times.st_atime_ns, times.st_mtime_ns))  # of equal size and time
        assert inputs.rendered() == EVERYTHING, path
    assert inputs.rendered() == set()


def test_another_cell_in_a_notebook_makes_its_page_again(inputs: Inputs) -> None:
    notebook = inputs.root / "notebooks" / f"{POWER}.ipynb"
    index = texts(inputs.rendering.index, "#papers + p")
    notebook.write_text(notebook.read_text().replace("power", "Power", 1))
    assert inputs.rendered() == {POWER, "index"}, "no claim was judged again"
    assert texts(inputs.rendering.index, "#papers + p") == index


def test_a_record_more_of_any_profile_makes_every_page_again(inputs: Inputs) -> None:
    for hw in ("h200", "h100"):
        put(inputs.rendering.report.parent, hw, passes_of(POWERED, passes=1, host=B, study=POWER)[:1])
        assert inputs.rendered() == EVERYTHING, hw


def test_other_parameters_and_packages_make_every_page_again(inputs: Inputs) -> None:
    assert inputs.rendered(scale="full") == EVERYTHING
    inputs.rendering.patch.syspath_prepend(str(inputs.root / "packages"))
    (inputs.root / "packages" / "seaborn-9.0.dist-info").mkdir(parents=True)
    assert inputs.rendered(scale="full") == EVERYTHING


def test_a_page_that_was_replaced_or_failed_is_made_again(inputs: Inputs) -> None:
    page = inputs.rendering.report / f"{POWER}.html"
    page.write_text(page.read_text() + "<!-- older -->")
    assert inputs.rendered() == {POWER, "index"}
    for name in ("claims.html", "claims.csv", "papers/wisconsin.html"):
        (inputs.rendering.report / name).unlink()
        assert inputs.rendered() == {"index", "claims"}, name
    assert inputs.rendering.ends(lambda _: Execution(None)) == 0, "nothing was to be made"
    notebook = inputs.root / "notebooks" / f"{POWER}.ipynb"
    notebook.write_text(notebook.read_text() + " ")
    assert inputs.rendering.ends(lambda _: Execution("no")) == 1
    notebook.write_text(notebook.read_text()[:-1])
    assert inputs.rendered() == {POWER, "index"}
