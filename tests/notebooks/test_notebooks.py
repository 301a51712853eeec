"""Tests of the notebooks' form (short cells, no outputs, no definitions), of their plans and of running them."""

from __future__ import annotations

import ast
import asyncio
import gc
import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from labkit.errors import UserError
from tests.processes import PATIENCE_S
from workbook.paths import ROOT
from workbook.registry import COMPARISON, OF_ALL, STUDIES, WHICH_DEVICE, YOUR_NETWORK
from workbook.report.execute import execute, parameters_of, planned_trials

START = "00_start_here"  # not a study: see test_start_here
NOTEBOOKS = [path for path in sorted((ROOT / "notebooks").glob("*.ipynb")) if path.stem != START]
STUDIES_THAT_MEASURE = [path for path in NOTEBOOKS if path.stem not in OF_ALL]
each_notebook = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
each_study_that_measures = pytest.mark.parametrize("notebook", STUDIES_THAT_MEASURE, ids=lambda path: path.stem)


def cells(notebook: Path) -> list[dict[str, Any]]:
    return json.loads(notebook.read_text(encoding="utf-8"))["cells"]  # type: ignore[no-any-return]


def code_cells(notebook: Path) -> list[dict[str, Any]]:
    return [cell for cell in cells(notebook) if cell["cell_type"] == "code"]


def source(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


@each_notebook
def test_a_notebook_is_a_registered_study_with_its_question_at_the_top(notebook: Path) -> None:
    assert STUDIES[notebook.stem].question in source(cells(notebook)[0])


@each_notebook
def test_a_notebook_has_short_cells_without_outputs_def_or_class(notebook: Path) -> None:
    lines = [len(source(cell).splitlines()) for cell in code_cells(notebook)]
    assert max(lines) <= 20 and sum(lines) / len(lines) <= 10, "a call with an argument in each line is long at once"
    for cell in code_cells(notebook):
        assert cell["outputs"] == [] and cell["execution_count"] is None
        assert not re.search(r"^\s*(def|class|%)", source(cell), re.MULTILINE)


@each_notebook
def test_the_parameters_are_literals(notebook: Path) -> None:
    tagged = [cell for cell in code_cells(notebook) if "parameters" in cell["metadata"].get("tags", [])]
    assert len(tagged) == 1
    for statement in ast.parse(source(tagged[0])).body:
        assert isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant)


@each_study_that_measures
def test_a_study_takes_the_parameters_of_a_report(notebook: Path) -> None:
    assert {"hw", "scale", "mode", "data"} <= set(parameters_of(notebook))


def test_pages_of_all_profiles_take_parameters_of_their_own_and_measure_nothing() -> None:
    of_all = {path.stem: path for path in NOTEBOOKS if path.stem in OF_ALL}
    assert set(parameters_of(of_all[COMPARISON])) == {"baseline"}
    assert {"task", "model", "images", "budget", "deadline_h"} <= set(parameters_of(of_all[WHICH_DEVICE]))
    for cell in [cell for path in of_all.values() for cell in code_cells(path)]:
        assert "lab.measure" not in source(cell) and "trials" not in cell["metadata"].get("tags", [])


@each_notebook
def test_no_measured_number_is_typed_into_the_prose(notebook: Path) -> None:
    """Percentages and milliseconds are allowed: they may come from a paper or from the method."""
    for cell in cells(notebook):
        if cell["cell_type"] == "markdown":
            text = re.sub(r"\d+x\d+", "", source(cell))
            assert not re.search(r"\d\s*(images/s|W\b|GB|x\b)", text), source(cell)


@each_study_that_measures
def test_the_plan_lists_trials_without_measuring_or_importing_a_framework(notebook: Path) -> None:
    of_user = {"network": str(ROOT / "examples/small_cnn.py")} if notebook.stem == YOUR_NETWORK else {}
    trials = planned_trials(notebook, {"hw": "cpu", "scale": "smoke", "mode": "plan", "data": "", **of_user})
    assert len({trial.key for trial in trials}) == len(trials) > 0


def test_an_unknown_parameter_is_an_error_and_nothing_runs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"unknown parameter of 01_training\.ipynb 'scael'; valid: scale"):
        execute(ROOT / "notebooks/01_training.ipynb", tmp_path / "out.ipynb", {"scael": "smoke"}, timeout_s=60)
    assert not (tmp_path / "out.ipynb").exists()


def write_notebook(path: Path, *sources: str) -> Path:
    import nbformat
    from nbformat.v4 import new_code_cell, new_notebook

    made = [new_code_cell(text) for text in sources]
    made[0].metadata["tags"] = ["parameters"]
    nbformat.write(
        new_notebook(
            cells=made, metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
        ),
        path,
    )
    return path


@pytest.mark.parametrize(
    ("cell", "said", "timeout_s"),
    [
        (
            "raise ValueError('it broke')",
            "begins with `raise ValueError('it broke')`: ValueError: it broke",
            PATIENCE_S,
        ),
        ("import os; os.kill(os.getpid(), 9)", "kernel died", PATIENCE_S),
        ("import time; time.sleep(600)", "longer than", 10),
        ("from labkit.errors import UserError\nraise UserError('do this')", "do this", PATIENCE_S),
    ],
    ids=["raises", "kernel killed", "hangs", "a mistake of the user"],
)
def test_a_notebook_that_fails_is_never_called_ok(tmp_path: Path, cell: str, said: str, timeout_s: float) -> None:
    broken = write_notebook(tmp_path / "broken.ipynb", "x = 1", cell, "y = 2")
    outcome = execute(broken, tmp_path / "out.ipynb", {"x": 2}, timeout_s=timeout_s)
    assert outcome.reason is not None and said in outcome.reason
    assert outcome.user_mistake == ("UserError" in cell)
    saved = json.loads((tmp_path / "out.ipynb").read_text(encoding="utf-8"))["cells"]
    assert [cell["execution_count"] for cell in saved if cell["source"] == ["x = 1"]] == [1], "what ran before is kept"


def test_an_interruption_logs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import papermill

    waiting: list[asyncio.Task[None]] = []

    async def lost() -> None:
        raise RuntimeError("the kernel died")

    def interrupted(*_: Any, **__: Any) -> None:
        async def begin() -> None:
            waiting.append(asyncio.get_running_loop().create_task(lost()))
            await asyncio.sleep(0)

        asyncio.run(begin())  # nobody awaits the task, so asyncio logs its error when the task is deleted
        logging.getLogger("papermill").error("Kernel died while waiting for execute reply.")
        raise KeyboardInterrupt

    monkeypatch.setattr(papermill, "execute_notebook", interrupted)
    level = logging.getLogger("asyncio").level
    try:
        with pytest.raises(KeyboardInterrupt):
            execute(write_notebook(tmp_path / "n.ipynb", "x = 1"), tmp_path / "out.ipynb", {}, timeout_s=5)
        waiting.clear()
        gc.collect()
    finally:
        logging.getLogger("asyncio").setLevel(level)
    assert [record.getMessage() for record in caplog.records] == []
