"""Tests of commands that run at the same time, and of records that another version of labkit wrote."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.faults.project import Project, report_of
from tests.faults.signals import HEAD, WORDS, Campaign, Point, kind, pairs_of
from tests.faulty.campaign import run, sound
from tests.processes import eventually, processes_with_lock
from workbook.records.record import SCHEMA

pytestmark = pytest.mark.timeout(900)


def gone(of: Project) -> bool:
    return eventually(lambda: not processes_with_lock(of.environment["LABKIT_LOCK"]))


@pytest.mark.slow
def test_a_signal_at_a_random_moment_of_a_report_loses_and_doubles_nothing(short_project: Project) -> None:
    """One point of the campaign that `make test-faults` runs. Its seed is in the message of a failure."""
    studies = ("07_precision",)
    seed = time.time_ns() % 2**32
    of = Campaign(short_project, studies, full_s=8.0, pairs=frozenset())
    point = of.point(0, seed)
    assert not point.problems, f"\n{HEAD}\n{point.row()}"


def test_a_point_counts_lost_and_doubled_records(short_project: Project, report: Path) -> None:
    run(sound(3), report)
    (path,) = report.glob("records/*/*.jsonl")
    of = replace(short_project, environment={**short_project.environment, "LABKIT_REPORTS": str(report.parent)})
    (report / "index.html").touch()
    (report / "run.json").write_text('{"studies": {}}')
    text, pairs = path.read_bytes(), frozenset(pairs_of(of.records()))
    first, *rest = text.splitlines(keepends=True)

    def problems(now: bytes) -> list[str]:
        path.write_bytes(now)
        point = Point(0, 0, "SIGKILL", "group", 0.0, 0)
        campaign = Campaign(of, (), full_s=1.0, pairs=pairs)
        campaign._check_kept(of, point, {path: text})
        campaign._check_whole(of, point, {path: text})
        return [problem.partition(":")[0] for problem in point.problems]

    assert problems(text) == []
    assert problems(text + b"{") == [], "the start of a line is no record"
    assert problems(text + first) == ["doubled"]
    assert problems(b"".join(rest)) == ["lost"] * 3, "before the signal, after it, and at the end"
    (report / ".index.html.12").touch()
    assert problems(text) == ["left over"]


@pytest.mark.slow
def test_of_two_reports_at_once_one_measures_and_the_other_is_refused(project: Callable[..., Project]) -> None:
    of = project()
    first = of.start(*report_of())
    assert eventually(lambda: bool(of.records()))
    second = of.run(*report_of())
    assert second.code == 2
    assert "another labkit measurement is running on this machine" in second.output.splitlines()[-1]
    assert first.wait(timeout=250) == 0
    assert set(pairs_of(of.records()).values()) == {1} and len(of.records()) == 10
    assert of.run(*report_of()).code == 0 and len(of.records()) == 10
    assert gone(of)


@pytest.mark.slow
def test_rendering_beside_a_report_disturbs_neither(project: Callable[..., Project]) -> None:
    of = project()
    report = of.start(*report_of())
    assert eventually(lambda: bool(of.records()))
    rendered = 0
    while report.poll() is None:
        ended = of.run("render", "--hw", "cpu", "--study", "05_inference,07_precision")
        assert ended.code == 0, ended.output
        rendered += 1
    assert rendered and report.returncode == 0
    assert [record.status for record in of.records()] == ["ok"] * 10
    assert not list(of.report.rglob(".*")), "nothing half written"
    assert gone(of)


@pytest.mark.slow
def test_a_record_of_a_newer_version_stops_its_study_and_the_others_are_measured(
    project: Callable[..., Project],
) -> None:
    of = project()
    assert of.run(*report_of("05_inference")).code == 0
    (path,) = of.files()
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'{"schema":%d,' % SCHEMA, b'{"schema":99,', 1))
    edited = path.read_bytes()
    ended = of.run(*report_of())
    assert ended.code and "line 1 is not a record" in ended.output and "Traceback" not in ended.output
    assert path.read_bytes() == edited, "a file that cannot be read is left as it is"
    path.write_bytes(whole)
    assert of.run(*report_of()).code == 0
    assert path.read_bytes() == whole and len(of.records()) == 10


@pytest.mark.slow
def test_a_kill_of_labkits_own_process_ends_the_notebooks_that_it_renders(project: Callable[..., Project]) -> None:
    of = project()
    assert of.run(*report_of()).code == 0
    for number in (signal.SIGTERM, signal.SIGKILL):
        again = of.start(*report_of())
        assert eventually(partial(has, of, "kernel", 2))
        os.kill(again.pid, number)
        began = time.monotonic()
        assert gone(of)
        assert time.monotonic() - began < 60
        assert again.wait() == (130 if number == signal.SIGTERM else -number)
    runs = json.loads((of.report / "run.json").read_text())["studies"]
    assert {run["status"] for run in runs.values()} == {"ok"}


@pytest.mark.slow
def test_ctrl_c_while_the_pool_starts_ends_in_one_sentence(project: Callable[..., Project]) -> None:
    of = project()
    assert of.run(*report_of()).code == 0
    for what, number in (("pool", 1), ("pool", 2), ("kernel", 1), ("kernel", 2)):
        again = of.start(*report_of())
        assert eventually(partial(has, of, what, number))
        os.killpg(again.pid, signal.SIGINT)
        said, _ = again.communicate(timeout=100)
        assert (again.returncode, said.count(WORDS)) == (130, 1)
        assert "Traceback" not in said and "Error" not in said and "Warning" not in said, said
        assert gone(of)


def has(of: Project, what: str, number: int) -> bool:
    """Return whether `number` processes of a kind or more run."""
    return [kind(one) for one in processes_with_lock(of.environment["LABKIT_LOCK"])].count(what) >= number
