"""A copy of this project whose reports are short: real code and real kernels, and trials that take a tenth of a second.

Two notebooks are replaced by short ones. Their trials run `tests.faulty.ok`, which imports no framework.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import nbformat
import yaml

from tests.commands import apart
from workbook.paths import ROOT
from workbook.records import Record, parse_line

COPIED = (
    *("labkit", "workbook", "params", "papers", "notebooks", "docs"),
    *("constraints.txt", "constraints-cu126.txt", "pyproject.toml", "Makefile"),
)
STUDIES = ("05_inference", "07_precision")
SIZES = {"05_inference": (1, 2, 3, 4, 5, 6), "07_precision": (7, 8, 9, 10)}  # of the trials of each study
TIMING = {"warmup_s": 0.02, "timed_s": 0.05, "block_s": 0.01, "limit_s": 60.0}

IMPORTS = """import workbook
from workbook import report, table
from workbook.trials.trial import Trial"""
PARAMETERS = """hw = ""
scale = "quick"
mode = "auto"
data = \"\""""
TRIALS = """lab = workbook.open_study({study!r}, hw=hw, scale=scale, mode=mode, data=data)
about = dict(workload="tests.faulty.ok", framework="none", device="cpu", data="none")
trials = [Trial(**about, size=size) for size in {sizes}]"""
MEASURE = """results = lab.measure(trials)
frame = results.frame()"""
ANSWER = """report.answer(f"{len(frame)} runs have records.", short=f"{len(frame)} runs have records.")"""
TABLE = """table(frame, rows=["size"], values=["images_per_s"], caption="Rate of each trial")"""


@dataclass(frozen=True)
class Project:
    """A project in `root`, a folder for what its reports make, and the environment of its commands."""

    folder: Path
    environment: dict[str, str]
    root: Path

    @property
    def report(self) -> Path:
        return Path(self.environment["LABKIT_REPORTS"]) / "cpu"

    def start(self, *arguments: str, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start a command of labkit, such as `report`, in a process group of its own."""
        # A shell ignores SIGINT in what it starts with `&`, and a process inherits that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return subprocess.Popen(
            [sys.executable, "-m", "workbook.cli", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.root,
            env={**self.environment, **(environment or {})},
            start_new_session=True,
        )

    def run(self, *arguments: str, timeout_s: float = 200, environment: Mapping[str, str] | None = None) -> Ended:
        """Run a command of labkit to its end."""
        process = self.start(*arguments, environment=environment)
        output, _ = process.communicate(timeout=timeout_s)
        return Ended(process.returncode, output)

    def files(self) -> dict[Path, bytes]:
        """Return the content of the files of records, by path."""
        return {path: path.read_bytes() for path in sorted(self.report.glob("records/*/*.jsonl"))}

    def records(self) -> list[Record]:
        return [parse_line(line.decode()) for text in self.files().values() for line in whole_lines(text)]


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code and its output."""

    code: int
    output: str


def whole_lines(text: bytes) -> list[bytes]:
    """Return the lines that end in a newline. What follows the last one was cut short."""
    return [line for line in text.splitlines(keepends=True) if line.endswith(b"\n")]


def report_of(*studies: str) -> tuple[str, ...]:
    """Return the arguments of the report of some studies, by default of both."""
    return ("report", "--hw", "cpu", "--scale", "smoke", "--study", ",".join(studies or STUDIES))


def apart_from(folder: Path, cache: Path, root: Path) -> dict[str, str]:
    """Return the environment of commands whose reports, lock and state are in `folder` and whose code is in `root`."""
    return {**apart(folder, cache), "PYTHONPATH": str(root)}


def copy(folder: Path, cache: Path) -> Project:
    """Make a copy of the project in `folder`."""
    root = folder / "project"
    root.mkdir(parents=True)
    unwanted = shutil.ignore_patterns("__pycache__", ".*")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, root / name, ignore=unwanted)
        else:
            shutil.copy(ROOT / name, root / name)
    shutil.copytree(ROOT / "tests" / "faulty", root / "tests" / "faulty", ignore=unwanted)
    (root / "tests" / "__init__.py").touch()
    profile = root / "params" / "cpu.yaml"
    values = yaml.safe_load(profile.read_text(encoding="utf-8"))
    values["timing"]["smoke"] = TIMING
    profile.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    for study in STUDIES:
        nbformat.write(_notebook(study), root / "notebooks" / f"{study}.ipynb")
    return Project(folder, apart_from(folder, cache, root), root)


def _notebook(study: str) -> nbformat.NotebookNode:
    cells = {
        "imports": IMPORTS,
        "parameters": PARAMETERS,
        "trials": TRIALS.format(study=study, sizes=SIZES[study]),
        "measure": MEASURE,
        "answer": ANSWER,
        "table": TABLE,
    }
    title = nbformat.v4.new_markdown_cell("# Does a short report survive?\n\nIt runs trials that only sleep.")
    made = [nbformat.v4.new_code_cell(text, metadata={"tags": [tag]}) for tag, text in cells.items()]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return nbformat.v4.new_notebook(cells=[title, *made], metadata=kernel)
