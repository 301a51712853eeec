"""Tests of the introductory notebook, which runs without a GPU and is not a study."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.committed import committed_reports
from tests.processes import PATIENCE_S
from workbook.paths import ROOT
from workbook.registry import STUDIES
from workbook.report.execute import execute
from workbook.report.plan import chosen_studies

START = ROOT / "notebooks" / "00_start_here.ipynb"
HELPERS = ("build", "loader", "time_step", "sample")


def cells_of(notebook: Path) -> list[dict[str, Any]]:
    return json.loads(notebook.read_text(encoding="utf-8"))["cells"]  # type: ignore[no-any-return]


def code_of(notebook: Path) -> list[str]:
    return ["".join(cell["source"]) for cell in cells_of(notebook) if cell["cell_type"] == "code"]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Run the notebook on the committed records and return the outputs of each code cell as JSON."""
    executed = tmp_path_factory.mktemp("start") / "executed.ipynb"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_REPORTS", str(committed_reports()))
        outcome = execute(START, executed, {}, timeout_s=PATIENCE_S)
    assert outcome.reason is None
    return [json.dumps(cell["outputs"]) for cell in cells_of(executed) if cell["cell_type"] == "code"]


def test_the_notebook_is_not_a_study_and_no_report_runs_it() -> None:
    assert START.stem not in STUDIES
    assert START.stem not in chosen_studies("")


def test_the_notebook_shows_the_helpers_in_short_cells_without_outputs() -> None:
    sources = code_of(START)
    assert all(f"labkit.{name}(" in "\n".join(sources) for name in HELPERS)
    assert all(len(source.splitlines()) <= 8 for source in sources)
    assert not any(cell.get("outputs") for cell in cells_of(START))


def test_the_outputs_hold_a_timed_step_sensors_recorded_results_and_plots(outputs: list[str]) -> None:
    everything = "\n".join(outputs)
    for shown in ("StepTiming: ", "per step (median)", "time_s", "NVIDIA H200", "<svg", "image/png"):
        assert shown in everything, shown


def test_the_raw_record_line_gives_the_value_of_the_table(outputs: list[str]) -> None:
    """The last cell recomputes images/s from the block times and prints it beside the table's value."""
    recomputed, shown = map(float, re.findall(r"\d+\.\d+", outputs[-1]))
    assert recomputed == pytest.approx(shown)
