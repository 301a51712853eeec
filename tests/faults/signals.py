"""Signals at random moments of a report: one point is a report that gets a signal, and the same command again.

A point counts what went wrong: a record that was lost or counted twice, a process that stayed, a command that hung, an
exit code or last words that do not fit the signal, and a page or file that the second command did not mend.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.commands import MADE_BY_MAKE
from tests.faults.project import Project, apart_from, whole_lines
from tests.processes import processes_with_lock
from workbook.records import Record

SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
TARGETS = ("group", "labkit", "any")  # the process group, labkit's own process, or any process below make
ENDS_S = 30.0  # in which a signal to the group or to labkit ends all; 3 s on an idle machine
ORPHANS_END_S = 20.0  # a kernel looks for its parent once a second; a worker ends as soon as its stdin closes
WORDS = "labkit: interrupted. Finished measurements are kept; the same command"
KINDS = {
    "workbook.runner.worker": "worker",
    "workbook.forkserver": "worker",  # or the parent of workers
    "labkit.telemetry.sampler": "sampler",
    "workbook.report.kernel": "kernel",
    "workbook.cli": "labkit",
}


@dataclass
class Point:
    """One report that got a signal, and what followed. Times are in seconds."""

    number: int
    seed: int
    signal: str
    target: str
    at_s: float
    studies: int
    kept: int = 0  # records on the disk when the signal was sent
    code: int | None = None
    ended_s: float = 0.0  # from the signal until no process was left
    resume_s: float = 0.0
    problems: list[str] = field(default_factory=list)

    def row(self) -> str:
        """Return the point as a row of a Markdown table."""
        cells = (
            self.number,
            self.seed,
            self.studies,
            self.signal,
            self.target,
            f"{self.at_s:.1f}",
            self.kept,
            self.code,
        )
        said = "; ".join(self.problems) or "none"
        return "| " + " | ".join(map(str, (*cells, f"{self.ended_s:.1f}", f"{self.resume_s:.1f}", said))) + " |"


COLUMNS = (
    *("point", "seed", "studies", "signal", "to", "at s", "records then"),
    *("exit code", "ended after s", "resumed in s"),
)
HEAD = f"| {' | '.join((*COLUMNS, 'problems'))} |\n{'|---' * (len(COLUMNS) + 1)}|"


@dataclass(frozen=True)
class Campaign:
    """Reports of some studies of a project that get signals. `full_s` and `pairs` are those of a whole report."""

    project: Project
    studies: tuple[str, ...]
    full_s: float
    pairs: frozenset[tuple[str, int]]

    @property
    def command(self) -> tuple[str, ...]:
        """The command of the report, as a user types it."""
        studies = ",".join(self.studies)
        return ("make", "report", f"PYTHON={sys.executable}", "HW=cpu", "SCALE=smoke", f"STUDY={studies}")

    @property
    def limit_s(self) -> float:
        """The seconds after which a command counts as hung."""
        return 120.0 + 6 * self.full_s

    def point(self, number: int, seed: int) -> Point:
        """Start a report, send a signal, check what is left, and run the same command to its end."""
        chance = random.Random(seed)
        sent, target = chance.choice(SIGNALS), chance.choice(TARGETS)
        at_s = chance.uniform(0.0, 0.9 * self.full_s)  # the load of the machine varies
        point = Point(number, seed, sent.name, target, at_s, len(self.studies))
        project = fresh(self.project, f"point{number}")
        before: dict[Path, bytes] = {}
        process, said = started(project, self.command)
        try:
            self._signalled(project, process, point, sent, chance, before)
            self._check_end(point, sent, said.read_text(errors="replace"))
            kept = self._check_kept(project, point, before)
            began = time.monotonic()
            again, said = started(project, self.command)
            try:
                again.wait(timeout=self.limit_s)
            except subprocess.TimeoutExpired:
                point.problems.append(f"the second command hung for {self.limit_s:.0f} s")
                return point
            point.resume_s = time.monotonic() - began
            if again.returncode:
                point.problems.append(f"the second command ended with {again.returncode}: {said.read_text()[-300:]!r}")
            self._check_whole(project, point, kept)
            return point
        finally:
            for left in processes_with_lock(project.environment["LABKIT_LOCK"]):
                left.kill()
            if not point.problems:
                shutil.rmtree(Path(project.environment["LABKIT_LOCK"]).parent, ignore_errors=True)

    def _signalled(
        self,
        project: Project,
        process: subprocess.Popen[bytes],
        point: Point,
        sent: signal.Signals,
        chance: random.Random,
        before: dict[Path, bytes],
    ) -> None:
        """Send the signal at its time and wait until all processes have ended. Fill `before` with the files then."""
        deadline = time.monotonic() + point.at_s
        while time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.01)
        if process.poll() is None:
            reached = _reached(process, point, chance)
            before.update(project.files())
            for one in reached:
                _send(one, sent, group=point.target == "group")
        else:
            point.target = "nobody: it had ended"
        point.kept = sum(len(whole_lines(text)) for text in before.values())
        began = time.monotonic()
        try:
            process.wait(timeout=self.limit_s)
        except subprocess.TimeoutExpired:
            point.problems.append(f"the command hung for {self.limit_s:.0f} s after the signal")
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        point.code = process.returncode
        lock = project.environment["LABKIT_LOCK"]
        deadline = time.monotonic() + ORPHANS_END_S
        while (left := processes_with_lock(lock)) and time.monotonic() < deadline:
            time.sleep(0.05)
        point.ended_s = time.monotonic() - began
        for one in left:
            point.problems.append(f"orphan: {kind(one)}")
            one.kill()

    def _check_end(self, point: Point, sent: signal.Signals, output: str) -> None:
        """Check exit code and last words of a command that was interrupted."""
        if output.startswith(("Traceback", "Fatal Python error: init_import_site")) and "cli.py" not in output:
            return  # Python was starting, and had not read a line of labkit's
        if "Traceback" in output:
            point.problems.append(f"a traceback: {output[-600:]!r}")
        complete = "The report: " in output
        reached = point.target.startswith(("group", "labkit"))
        if not reached or sent == signal.SIGKILL or complete:
            return
        if point.code == 0:
            point.problems.append("exit code 0 after an interruption")
        if point.ended_s > ENDS_S:
            point.problems.append(f"hung: all ended {point.ended_s:.0f} s after the signal")
        of_labkit = [line for line in output.splitlines() if not line.startswith(("make:", "Terminated", "Hangup"))]
        if of_labkit and output.count(WORDS) != 1:  # without a word, Python was starting and nothing was begun
            point.problems.append(f"last words: {output[-300:]!r}")

    def _check_kept(self, project: Project, point: Point, before: dict[Path, bytes]) -> dict[Path, bytes]:
        """Check that each line that was whole at the signal is still there. Return the whole lines after it."""
        after = project.files()
        for path, text in before.items():
            lines = b"".join(whole_lines(text))
            if not after.get(path, b"").startswith(lines):
                point.problems.append(f"lost: records of {path.stem} before the signal")
        return {path: b"".join(whole_lines(text)) for path, text in after.items()}

    def _check_whole(self, project: Project, point: Point, kept: dict[Path, bytes]) -> None:
        """Check records, pages and files after the second command."""
        after = project.files()
        for path, lines in kept.items():
            if not after.get(path, b"").startswith(lines):
                point.problems.append(f"lost: records of {path.stem} between the two commands")
        counted = pairs_of(project.records())
        if twice := [pair for pair, number in counted.items() if number > 1]:
            point.problems.append(f"doubled: {len(twice)} pairs")
        if lacking := self.pairs - set(counted):
            point.problems.append(f"lost: {len(lacking)} pairs are not measured")
        for page in ("index", *self.studies):
            if not (project.report / f"{page}.html").is_file():
                point.problems.append(f"no page {page}")
        runs = json.loads((project.report / "run.json").read_text(encoding="utf-8"))["studies"]
        for study in self.studies:
            if (status := runs.get(study, {}).get("status")) != "ok":
                point.problems.append(f"{study} is {status}")
        for leftover in project.report.rglob(".*"):
            point.problems.append(f"left over: {leftover.relative_to(project.report)}")
        for leftover in Path(project.environment.get("TMPDIR", project.folder)).glob("labkit-*"):
            point.problems.append(f"left over: {leftover}")


def campaign(project: Project, studies: tuple[str, ...]) -> Campaign:
    """Return a campaign after a report without a signal, which gives the whole time and the planned pairs."""
    whole = fresh(project, "whole")
    began = time.monotonic()
    process, said = started(whole, Campaign(project, studies, 0.0, frozenset()).command)
    if process.wait(timeout=600):
        raise RuntimeError(f"the report without a signal failed: {said.read_text()}")
    return Campaign(project, studies, time.monotonic() - began, frozenset(pairs_of(whole.records())))


def fresh(project: Project, name: str) -> Project:
    """Return the project with new folders of its own: reports, lock, state, cache and temporary files."""
    own = project.folder / name
    shutil.rmtree(own, ignore_errors=True)
    (own / "tmp").mkdir(parents=True)
    environment = {**apart_from(own, own / "cache", project.root), "TMPDIR": str(own / "tmp")}
    kept = {name: value for name, value in environment.items() if name not in MADE_BY_MAKE}
    return Project(project.folder, kept, project.root)


def started(project: Project, command: tuple[str, ...]) -> tuple[subprocess.Popen[bytes], Path]:
    """Start a command in a process group of its own. Return it and the file of its output, a new one each time."""
    folder = Path(project.environment["LABKIT_LOCK"]).parent
    # A shell ignores SIGINT in what it starts with `&`, and a process inherits that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    said = folder / f"said{len(list(folder.glob('said*')))}"
    with said.open("wb") as file:  # not a pipe, which a process that stays would hold open
        process = subprocess.Popen(
            command,
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=project.root,
            env=project.environment,
            start_new_session=True,
        )
    return process, said


def pairs_of(records: list[Record]) -> Counter[tuple[str, int]]:
    """Return how often each (key, pass) pair has a record that counts."""
    return Counter((record.key, record.pass_number) for record in records if record.is_final)


def kind(process: psutil.Process) -> str:
    """Return what a process of a report is."""
    try:
        words = " ".join(process.cmdline())
        if Path(words.partition(" ")[0]).name in ("make", "sh", "bash", "dash"):
            return "make"
    except psutil.Error:
        return "ended"
    name = next((name for part, name in KINDS.items() if part in words), words[:60])
    above = process.parent() if name == "labkit" else None  # forked processes have its command line
    return {"labkit": "pool", "pool": "kernel"}.get(kind(above), name) if above else name


def _reached(process: subprocess.Popen[bytes], point: Point, chance: random.Random) -> list[psutil.Process]:
    """Return the processes that get the signal, and note what they are."""
    try:
        top = psutil.Process(process.pid)
        below = top.children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    own = [one for one in below if kind(one) == "labkit"]
    if point.target == "group" or not own:  # make has not started labkit yet
        point.target = "group"
        return [top]
    if point.target == "labkit":
        return own[:1]
    one = chance.choice(sorted((each for each in below if kind(each) != "make"), key=lambda each: each.pid))
    point.target = kind(one) if kind(one) == "labkit" else f"any: {kind(one)}"
    return [one]


def _send(process: psutil.Process, sent: signal.Signals, *, group: bool) -> None:
    try:
        if group:
            os.killpg(process.pid, sent)
        else:
            process.send_signal(sent)
    except (psutil.NoSuchProcess, ProcessLookupError):
        pass
