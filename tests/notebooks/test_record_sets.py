"""Tests that every notebook runs on any set of records, and shows no empty value.

The sets: none, failures only, and a single pass of an old GPU without GPM, energy counter and CUPTI. The records of a
CPU and of a new GPU are rendered in test_report.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bs4 import BeautifulSoup

from labkit.places import ROOT
from labkit.records import Record
from labkit.records.selection import host_to_show
from labkit.records.store import Store
from labkit.records.traced import Untraced
from labkit.registry import COMPARISON, STUDIES
from tests.committed import committed_reports

NOTEBOOKS = [path for path in sorted((ROOT / "notebooks").glob("*.ipynb")) if path.stem in STUDIES]
EMPTY = re.compile(r"\b(nan|None(?! of)|NaT|<NA>|inf)\b")  # a claim begins with "None of the GPUs"
CUT = re.compile(
    r"not measured (of|over|reaches|waiting|is)\b|After not measured|Batch –"
)  # a sentence that needs a value to be one


def of_first_pass(records: list[Record]) -> list[Record]:
    first = [record for record in records if record.pass_number == 1]
    return [
        record.model_copy(
            update={"planned": record.planned.model_copy(update={"passes": dict.fromkeys(record.planned.passes, 1)})}
        )
        for record in first
    ]


def as_failures(records: list[Record]) -> list[Record]:
    failure = {"status": "crashed", "reason": "worker died", "result": None, "telemetry": None, "facts": {}}
    return [record.model_copy(update=failure) for record in records]


OLD_SENSORS = ("power_w", "power_smi_w", "utilisation", "memory_utilisation", "memory_bytes", "sm_clock_hz")
NO_COUNTERS = {"*": "no GPM: the GPU is older than Hopper", "energy_j": "the driver says: Not Supported"}
NO_PROFILER = "the profiler saw no kernels: CUPTI does not know this GPU"


def of_old_gpu(records: list[Record]) -> list[Record]:
    """Return the records as a GPU of 2013 would give them: no GPM, no energy counter, no trace."""
    return [record.model_copy(update=_as_old(record)) for record in records]


def _as_old(record: Record) -> dict[str, Any]:
    facts = {name: value for name, value in record.facts.items() if name not in ("busy_step_s", "kernels_per_step")}
    update: dict[str, Any] = {"facts": {**facts, "untraced": NO_PROFILER}}
    if record.blocks and record.blocks.trace:
        update["result"] = record.blocks.model_copy(update={"trace": Untraced(reason=NO_PROFILER)})
    if seen := record.telemetry:
        windows = {
            name: window.model_copy(update={"sources": _old(window.sources)}) for name, window in seen.windows.items()
        }
        missing = {**seen.missing, "gpu0": NO_COUNTERS}
        lacking = {
            "windows": windows,
            "missing": missing,
            "energy": [],
            "energy_method": {},
            "polled": _old(seen.polled),
        }
        update["telemetry"] = seen.model_copy(update=lacking)
    return update


def _old(sources: dict[str, Any]) -> dict[str, Any]:
    return {
        source: {name: value for name, value in metrics.items() if source[:3] != "gpu" or name in OLD_SENSORS}
        for source, metrics in sources.items()
    }


RECORD_SETS: dict[str, tuple[str, Callable[[list[Record]], list[Record]]]] = {
    "none": ("h200", lambda _: []),
    "all failed": ("h200", as_failures),
    "one pass of an old GPU": ("h200", lambda records: of_old_gpu(of_first_pass(records))),
}


@pytest.fixture(scope="module", params=RECORD_SETS)
def record_set(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Return a profile's name and a folder with a set of its records."""
    hw, change = RECORD_SETS[request.param]
    folder = tmp_path_factory.mktemp("reports")
    for study in STUDIES if request.param != "none" else ():
        write_records(folder, hw, study, change)
    return hw, folder


def write_records(folder: Path, hw: str, study: str, change: Callable[[list[Record]], list[Record]]) -> None:
    """Write the records that a study's page shows, as `change` returns them, to another folder of reports."""
    source = committed_reports() / hw
    host = host_to_show(Store(source), study, None)
    records = change(Store(source).read(study, host)) if host is not None else []
    if records:
        path = Store(folder / hw).path(str(host), study)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(record.line() + "\n" for record in records), encoding="utf-8")
        (folder / hw / "hosts").mkdir(exist_ok=True)
        shutil.copy(source / "hosts" / f"{host}.json", folder / hw / "hosts")


def shown_by(
    notebook: Path, change: Callable[[str], str] = lambda source: source, **parameters: str
) -> dict[str, list[str]]:
    """Run a notebook's cells, as `change` returns them, and return what they show, as HTML or text, by tag or ""."""
    names: dict[str, Any] = {"__name__": "notebook"}
    outputs: dict[str, list[str]] = {}
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            continue
        tags = cell["metadata"].get("tags", [])
        tree = ast.parse(change("".join(cell["source"])))
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, notebook.name, "exec"), names)
        if "parameters" in tags:
            names |= parameters
        if last is not None:
            value = eval(compile(ast.Expression(last.value), notebook.name, "eval"), names)
            outputs.setdefault(tags[0] if tags else "", []).append(_text(value))
    return outputs


def _text(value: Any) -> str:
    if hasattr(value, "_repr_mimebundle_"):
        bundle = value._repr_mimebundle_()
        return str(bundle.get("text/html", bundle.get("text/plain", "")))
    return value.to_html() if hasattr(value, "to_html") else "" if value is None else str(value)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_no_empty_value(
    notebook: Path, record_set: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    hw, folder = record_set
    monkeypatch.setenv("LABKIT_REPORTS", str(folder))
    parameters = {"baseline": ""} if notebook.stem == COMPARISON else {"hw": hw, "mode": "render"}
    outputs = shown_by(notebook, **parameters)
    for part in ("setup", "answer", "figure", "table", "verdicts"):
        assert len(outputs.get(part, [])) == 1, part
    for part in ("setup", "answer", "figure", "table", "verdicts", "more"):
        for output in outputs.get(part, []):
            text = BeautifulSoup(output, "html.parser").get_text(" ")
            for wrong in (EMPTY, CUT):
                assert not wrong.search(text), f"{part}: {wrong.search(text)} in {text[:2000]}"


def test_a_page_names_the_networks_that_were_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_the_papers(records: list[Record]) -> list[Record]:
        trials = [(record, record.as_trial) for record in records]
        return [
            record for record, trial in trials if trial.workload != "train" or trial.model in ("resnet152", "vgg19")
        ]

    write_records(tmp_path, "h200", "01_training", without_the_papers)
    monkeypatch.setenv("LABKIT_REPORTS", str(tmp_path))
    outputs = shown_by(ROOT / "notebooks" / "01_training.ipynb", hw="h200", mode="render")
    text = BeautifulSoup(" ".join(outputs["answer"] + outputs["figure"] + outputs["more"]), "html.parser").get_text(" ")
    assert "ResNet-152" in text and "VGG-19" in text
    assert "ResNet-50" not in text and "VGG-16" not in text


def test_the_comparison_can_name_another_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for hw in ("h100", "h200"):
        write_records(tmp_path, hw, "01_training", lambda records: records)
    monkeypatch.setenv("LABKIT_REPORTS", str(tmp_path))

    def named(source: str) -> str:
        return source.replace('model, chosen = "resnet50"', 'model, chosen = "vgg16"')

    outputs = shown_by(ROOT / "notebooks" / "20_comparison.ipynb", named, baseline="h100")
    answer = BeautifulSoup(outputs["answer"][0], "html.parser").get_text(" ")
    assert "VGG-16 at 32 px, H200 SXM over H100 SXM" in answer
    assert "ResNet-50, not optimised: Tesla V100 SXM2" in re.sub(r"\s+", " ", answer)


def test_the_batch_size_page_can_name_another_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_records(tmp_path, "h200", "02_batch_size", lambda records: records)
    monkeypatch.setenv("LABKIT_REPORTS", str(tmp_path))

    def named(source: str) -> str:
        return source.replace('model = sweep["swept"][0]', 'model = "resnet152"')

    outputs = shown_by(ROOT / "notebooks" / "02_batch_size.ipynb", named, hw="h200", mode="render")
    answer = BeautifulSoup(outputs["answer"][0], "html.parser").get_text(" ")
    assert re.search(r"From 64 to 256\s+baseline throughput grows: ResNet-152 .* times, VGG-16 ", answer)
