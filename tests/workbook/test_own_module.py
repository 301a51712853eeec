"""Tests of workloads of the user's own: numbers of an earlier text of the code never come back for a later one."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest

from labkit.errors import LabkitError, UserError
from tests.notebooks.test_notebooks import write_notebook
from workbook.errors import Unsupported
from workbook.report.execute import planned_trials
from workbook.runner.preparing import Data, prepared_workload
from workbook.study import open_study
from workbook.trials.own_module import source_hash_of
from workbook.trials.trial import NO_DATA, Trial, as_on_disk
from workbook.workloads import build_workload

STEPS = """
import time
from .shape import IMAGES

class Steps:
    images_per_step, flop_per_step, bytes_per_step, read_loss, facts = IMAGES, None, None, None, {}
    def check(self): self.step()
    def step(self): time.sleep(0.001)

def build(trial, data): return Steps()
"""
ABLE = """
from workbook import Workload

class Steps({base}):
    epoch_images, images_per_step = 10, 4
    def step(self): return "a step"
    def query(self): return self.step()

def build(trial, data): return Steps()
"""
TRIAL = Trial(workload="mine.steps", framework="none", device="cpu", data=NO_DATA)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a user's module and its helper, which is the current one, as a notebook's folder is."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/steps.py").write_text(STEPS)
    (tmp_path / "mine/shape.py").write_text("IMAGES = 4\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("mine", "mine.steps", "mine.shape"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def test_the_hash_is_of_the_module_and_of_all_that_the_user_wrote_for_it(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "mine/deep/__init__.py": "def lazily():\n    import width\n",
        "width.py": "import broken",
        "broken.py": "def (",
        "edited/package/src.py": "",
        "site-packages/foreign.py": "",
        "unrelated.py": "",
    }
    for name, text in files.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(text)
    monkeypatch.syspath_prepend(str(here / "site-packages"))
    imports = "import torch, workbook.trials.trial, foreign, mine.deep\nfrom edited.package import src\n"
    (here / "mine/steps.py").write_text(imports + STEPS)

    def counts(name: str) -> bool:
        before = source_hash_of("mine.steps")
        (here / name).write_text((here / name).read_text() + "\n# changed\n")
        return source_hash_of("mine.steps") != before

    counted = {name for name in ("mine/steps.py", "mine/shape.py", *files) if counts(name)}
    assert counted == {"mine/steps.py", "mine/shape.py", *list(files)[:4]}
    assert not {"mine", "mine.steps", "width", "edited"} & set(sys.modules), "nothing is imported"
    assert source_hash_of("mine.absent.module") == ""


def test_a_changed_helper_is_measured_anew_and_its_old_numbers_do_not_return(here: Path) -> None:
    build_workload(TRIAL, None)  # this process keeps the old text, as a notebook's kernel does
    lab = open_study("training", hw="cpu", scale="smoke")

    def images() -> list[int | None]:
        (of_study,) = lab.measure([TRIAL]).selected
        return [record.blocks.images_per_step for record in of_study.records]

    assert images() == images() == [4], "an unchanged module is measured once"
    (here / "mine/shape.py").write_text("IMAGES = 8\n")
    assert "about 0 s" not in lab.plan([TRIAL]).caption
    assert images() == [8]
    (here / "mine/shape.py").write_text("IMAGES = 16\n")
    (shown,) = open_study("training", hw="cpu", scale="smoke", mode="render").measure([TRIAL]).selected
    assert shown.records == []
    (here / "mine/shape.py").write_text("IMAGES = 4\n")
    assert images() == [4] and len(lab.store.read(lab.study.id, lab.host.id)) == 2, "the text of these records is back"


@pytest.mark.parametrize("base", ["", "Workload"])
def test_a_class_of_the_user_need_not_inherit_and_is_told_what_it_lacks(here: Path, base: str) -> None:
    (here / "mine/steps.py").write_text(ABLE.format(base=base))
    workload = build_workload(TRIAL, None)
    assert workload.query() == workload.step() == "a step"
    assert [workload.steps_of_epoch(epoch) for epoch in range(3)] == [3, 2, 3], "from the class's own numbers"
    assert list(workload.preparations()) == [] and workload.evaluate is None
    with pytest.raises(AttributeError, match="'Steps' object has no attribute 'facts'"):
        _ = workload.facts
    with pytest.raises(Unsupported, match=r"the mine\.steps workload scores no images"):
        prepared_workload(replace(TRIAL, scored=4), 1, Data(), print, print)


def test_a_report_plans_the_module_as_it_is_on_the_disk(here: Path) -> None:
    cells = "from workbook.trials.trial import Trial", f"trials = [Trial(**{TRIAL.as_dict()})]"
    notebook = write_notebook(here / "own.ipynb", "hw = ''", *cells)
    tagged = nbformat.read(notebook, 4)
    tagged.cells[1].metadata["tags"], tagged.cells[2].metadata["tags"] = ["imports"], ["trials"]
    nbformat.write(tagged, notebook)
    (before,) = planned_trials(notebook, {})
    (here / "mine/shape.py").write_text("IMAGES = 8\n")
    (after,) = planned_trials(notebook, {})
    assert before.key != after.key and replace(after, workload_source="") == TRIAL


def test_a_module_that_changes_while_it_is_measured_gives_no_number(here: Path) -> None:
    planned = as_on_disk(TRIAL)
    assert build_workload(planned, None).images_per_step == 4
    (here / "mine/shape.py").write_text("IMAGES = 8\n")
    with pytest.raises(LabkitError, match=r"mine\.steps, or a module that it imports, has changed meanwhile"):
        build_workload(planned, None)


def test_an_unknown_workload_says_how_a_module_of_the_user_is_named() -> None:
    with pytest.raises(UserError, match=r"'mymodel'; valid: .* `folder/module.py` is workload='folder\.module'"):
        build_workload(Trial(workload="mymodel"), None)
