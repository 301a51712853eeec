"""A report on a machine that lacks something: it ends, says when it tried, and measures the rest once that is here."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import nbformat

from tests.faults.project import Project, copy, report_of
from tests.faulty import COMPILER
from workbook.records.selection import is_complete

STUDY = "05_inference"
FURTHER = """
trials += [Trial(**{**about, "workload": "tests.faulty.needs_compiler"}, size=20)]
trials += [Trial(**{**about, "workload": "tests.faulty.impossible"}, size=21)]"""


def with_refused_trials(folder: Path, cache: Path) -> Project:
    """Return a short project one of whose studies has two trials more: one needs a program, one can never run."""
    project = copy(folder, cache)
    path = project.root / "notebooks" / f"{STUDY}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    (cell,) = (cell for cell in notebook.cells if cell.metadata.get("tags") == ["trials"])
    cell.source += FURTHER
    nbformat.write(notebook, path)
    return project


def test_the_same_report_measures_what_an_installed_program_makes_possible(tmp_path: Path, shared_cache: Path) -> None:
    project = with_refused_trials(tmp_path / "machine", shared_cache)

    def report() -> Counter[str]:
        """Run the report and return how often each workload has been tried."""
        ended = project.run(*report_of(STUDY))
        assert ended.code == 0, ended.output
        assert is_complete(project.records(), "smoke"), "a refused trial hides no round"
        return Counter(record.trial["workload"].removeprefix("tests.faulty.") for record in project.records())

    def plan() -> str:
        return project.run("plan", *report_of(STUDY)[1:]).output

    def page() -> str:
        return (project.report / f"{STUDY}.html").read_text(encoding="utf-8")

    first = report()
    runs = first.total()
    day = project.records()[-1].started_at[:10]
    assert f"Triton finds no C compiler (tried on {day})" in page()
    assert f"a CPU has no such engine (tried on {day})" not in page()
    assert f"{runs} runs, {runs - first['needs_compiler']} of them measured before" in plan()

    second = report()
    assert second == first + Counter(needs_compiler=first["needs_compiler"]), "nothing else is tried again"

    program = tmp_path / "bin" / COMPILER
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    project.environment["PATH"] += f":{program.parent}"
    report()
    assert {record.status for record in project.records()[second.total() :]} == {"ok"}
    assert "(tried on " not in page()
    assert f"{runs} runs, {runs} of them measured before" in plan()
