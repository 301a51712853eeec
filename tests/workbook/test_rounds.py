"""Tests of a report's rounds: their order, the time limit, and studies that cannot be measured."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from labkit.errors import LabkitError, UserError
from tests.faulty.campaign import HOST, sound, tiny_profile
from tests.workbook.made_records import blocks
from workbook.cli import _seconds
from workbook.records import Planned, short_hash
from workbook.records.store import Store
from workbook.report import make, plan
from workbook.report import rounds as module
from workbook.report.make import Request, make_report
from workbook.report.pages import StudyRun, write_run
from workbook.report.plan import NOTEBOOK_S, StudyPlan
from workbook.report.rounds import Rounds
from workbook.runner.plan import Missing
from workbook.session import Session
from workbook.trials.trial import Trial

FIRST, SECOND = "01_training", "02_batch_size"
RENDER_S = NOTEBOOK_S  # two pages on two processors
# Seconds of each study's rounds: the second study has a pass less.
SECONDS = {FIRST: {0: 10.0, 1: 100.0, 2: 60.0, 3: 20.0}, SECOND: {0: 5.0, 1: 50.0, 2: 30.0}}
SMALL_SIZES = [Trial()]


class Clock:
    """A clock on which each measurement takes `stretch` times its planned seconds."""

    def __init__(self, stretch: float = 1.0) -> None:
        self.now, self.stretch = 0.0, stretch
        self.measured: list[tuple[str, int]] = []
        self.broken: dict[str, LabkitError] = {}

    def monotonic(self) -> float:
        return self.now

    def measure(self, trials: list[Trial], *, study: str, session: Session, rounds: list[int]) -> None:
        if study in self.broken:
            raise self.broken[study]
        assert (session.scale, trials) == (("smoke", SMALL_SIZES) if trials else ("quick", []))
        number = 0 if trials else rounds[0]
        self.now += self.stretch * SECONDS[study][number]
        self.measured.append((study, number))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    monkeypatch.setattr(module, "measure", made.measure)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    return made


def plans_of(*, done: tuple[int, ...] = (0,), small: tuple[str, ...] = ()) -> list[StudyPlan]:
    return [
        StudyPlan(
            study,
            [],
            9,
            {n: Missing(0 if n in done else 4, seconds) for n, seconds in of.items()},
            SMALL_SIZES if study in small else (),
        )
        for study, of in SECONDS.items()
    ]


def rounds_of(tmp_path: Path, *, ends_s: float | None = None, **plans: Any) -> Rounds:
    session = Session(profile=tiny_profile(), host=HOST, store=Store(tmp_path), scale="quick")
    return Rounds(session, plans_of(**plans), ends_s)


def ignored(_number: int, _study: str, _waiting: dict[str, float]) -> None: ...


def test_each_round_measures_one_pass_of_every_study(clock: Clock, tmp_path: Path) -> None:
    told: list[Any] = []
    rounds = rounds_of(tmp_path)
    ended = [
        (number, rounds.follows(number), list(clock.measured))
        for number in rounds.measured(lambda *args: told.append(args))
    ]
    assert clock.measured == [(FIRST, 1), (SECOND, 1), (FIRST, 2), (SECOND, 2), (FIRST, 3)]
    assert [(number, follows) for number, follows, _ in ended] == [(1, True), (2, True), (3, False)]
    assert ended[0][2] == [(FIRST, 1), (SECOND, 1)], "a complete site after the first round"
    assert told == [(1, "", {FIRST: 100.0, SECOND: 50.0}), (1, FIRST, {SECOND: 50.0}), (1, SECOND, {})]


def test_round_0_measures_small_sizes_and_round_1_replaces_its_pages(clock: Clock, tmp_path: Path) -> None:
    told: list[Any] = []
    rounds = rounds_of(tmp_path, done=(), small=(FIRST, SECOND))
    assert list(rounds.measured(lambda *args: told.append(args))) == [0, 1, 2, 3]
    assert clock.measured[:3] == [(FIRST, 0), (SECOND, 0), (FIRST, 1)]
    assert told[:3] == [(0, "", {FIRST: 10.0, SECOND: 5.0}), (0, FIRST, {SECOND: 5.0}), (0, SECOND, {})]
    assert told[3:5] == [
        (1, "", {FIRST: 100 + NOTEBOOK_S, SECOND: 50 + NOTEBOOK_S}),
        (1, FIRST, {SECOND: 50 + NOTEBOOK_S}),
    ], "with the page that follows"


def test_the_time_counts_round_0_and_its_pages(clock: Clock, tmp_path: Path) -> None:
    first_s = 15 + RENDER_S
    for ends_s, made in ((first_s, [0]), (first_s + 150 + 2 * NOTEBOOK_S, [0, 1])):
        clock.now = 0.0
        rounds = rounds_of(tmp_path, ends_s=ends_s, done=(), small=(FIRST, SECOND))
        rounds.check_time()
        assert list(rounds.measured(ignored)) == made
    with pytest.raises(UserError, match="the first round takes about 23 s, longer than TIME= allows"):
        rounds_of(tmp_path, ends_s=clock.now + first_s - 1, done=(), small=(FIRST, SECOND)).check_time()
    rounds_of(tmp_path, ends_s=clock.now + 1, done=(0,), small=(FIRST, SECOND)).check_time()  # a complete site exists


def test_a_resumed_report_begins_with_the_round_that_is_missing(clock: Clock, tmp_path: Path) -> None:
    assert list(rounds_of(tmp_path, done=(0, 1, 2)).measured(ignored)) == [3]
    assert clock.measured == [(FIRST, 3)]


@pytest.mark.parametrize(("ends_s", "made"), [(None, 3), (400.0, 3), (265.0, 2), (240.0, 1), (170.0, 1)])
def test_no_round_begins_that_does_not_fit(
    clock: Clock, tmp_path: Path, capsys: pytest.CaptureFixture[str], ends_s: float | None, made: int
) -> None:
    rounds = rounds_of(tmp_path, ends_s=ends_s)
    rounds.check_time()
    assert list(rounds.measured(ignored)) == [1, 2, 3][:made]
    assert ends_s is None or clock.now + RENDER_S <= ends_s
    said = capsys.readouterr().out
    assert (f"The time is up: {3 - made} of 3 rounds are left. The same command continues." in said) == (made < 3)


def test_the_time_that_rounds_really_take_decides_about_the_next(clock: Clock, tmp_path: Path) -> None:
    clock.stretch = 3.0
    assert list(rounds_of(tmp_path, ends_s=600.0).measured(ignored)) == [1], "two rounds fit by the plan alone"


def test_a_time_too_short_for_the_first_round_is_refused_before_anything_is_measured(
    clock: Clock, tmp_path: Path
) -> None:
    rounds = rounds_of(tmp_path, ends_s=155.0)
    with pytest.raises(UserError, match="the first round takes about 2 min 38 s, longer than TIME= allows"):
        rounds.check_time()
    rounds_of(tmp_path, ends_s=60.0, done=(0, 1, 2)).check_time()  # what is left fits


def test_a_study_that_cannot_be_measured_costs_only_itself(clock: Clock, tmp_path: Path) -> None:
    clock.broken = {FIRST: UserError("move this file away.")}
    rounds = rounds_of(tmp_path)
    assert list(rounds.measured(ignored)) == [1, 2, 3]
    assert clock.measured == [(SECOND, 1), (SECOND, 2)]
    assert rounds.failed[FIRST].reason == "move this file away." and rounds.failed[FIRST].user_mistake


@pytest.mark.parametrize(("text", "seconds"), [("45m", 2700), ("1h30m", 5400), ("90s", 90), ("2h0m1s", 7201)])
def test_a_time_is_read(text: str, seconds: float) -> None:
    assert _seconds(text) == seconds


@pytest.mark.parametrize("text", ["45", "m", "1.5h", "-3m", "0s", "30m1h", "٣m", "1h 30m", "soon"])
def test_a_text_that_is_no_time_is_refused_with_what_is_valid(text: str) -> None:
    with pytest.raises(UserError, match="is no time; valid: hours, minutes and seconds, such as 45m, 1h30m or 90s"):
        _seconds(text)


# ---- the whole report, with made measurements -----------------------------------------------------------------------

TRIALS = {FIRST: sound(4)[:2], SECOND: sound(4)[2:]}


def trials_of(study: str, scale: str) -> list[Trial]:
    return TRIALS[study][: 1 if scale == "smoke" else 2]


@dataclass
class Reporting:
    """A report of two studies. `events` holds what it measures and renders; it is interrupted at the event `stop`."""

    store: Store
    events: list[str] = field(default_factory=list)
    stop: str = ""
    waits: list[str] = field(default_factory=list)  # the studies that wait, at each rendering
    judged: list[bool] = field(
        default_factory=list
    )  # whether claims were judged, each time the index was written alone

    def happens(self, event: str) -> None:
        if event == self.stop:
            raise KeyboardInterrupt
        self.events.append(event)

    def measure(self, trials: list[Trial], *, study: str, session: Session, rounds: list[int]) -> None:
        assert trials == trials_of(study, session.scale)
        self.happens(f"measure {study[:2]} {session.scale} {rounds[0]}")
        planned = Planned(passes={short_hash(trial.key): 3 for trial in trials}, order_seed=1)
        for trial in trials:
            about: dict[str, Any] = {"scale": session.scale, "host": HOST.id, "planned": planned, "versions": {}}
            self.store.append(blocks(study, trial, rounds[0], 100.0, **about))

    def write_pages(self, session: Session, _mode: str, studies: list[str], command: str, **options: Any) -> int:
        names = ",".join(study[:2] for study in studies)
        self.happens(f"render {names} {session.scale}{' last' * options['is_last']}")
        self.waits.append(",".join(study[:2] for study in options.get("waiting", ())))
        for study in studies:
            run = StudyRun("ok", None, 2.0, command, "measure", session.scale, HOST.id, None, "2026-01-01")
            write_run(self.store.report, study, run)
        return 0

    def report(self, **options: Any) -> list[str]:
        """Make the report and return its events."""
        self.events.clear()
        try:
            assert make_report(Request(hw="cpu", study=f"{FIRST},{SECOND}", **options)) == 0
        except KeyboardInterrupt:
            assert self.stop
        return list(self.events)


@pytest.fixture
def reporting(report: Path, monkeypatch: pytest.MonkeyPatch) -> Reporting:
    sweeps: dict[str, Any] = {study: {"smoke": {}, "quick": {}} for study in (FIRST, SECOND)}
    profile = tiny_profile(passes=2).model_copy(update={"sweeps": sweeps})
    monkeypatch.setattr(make, "choose_profile", lambda *_: profile)
    monkeypatch.setattr(make, "this_host", lambda: HOST)
    monkeypatch.setattr(plan, "planned_trials", lambda notebook, about: trials_of(notebook.stem, about["scale"]))
    made = Reporting(Store(report))
    monkeypatch.setattr(module, "measure", made.measure)
    monkeypatch.setattr(make, "write_pages", made.write_pages)
    monkeypatch.setattr(make, "write_site", lambda *_, judges: made.judged.append(judges))
    return made


def test_claims_are_judged_as_a_round_begins_and_not_after_each_of_its_studies(reporting: Reporting) -> None:
    reporting.report()
    assert reporting.judged == [True, False, True], "round 0, its first study, round 1, whose studies have pages"


ROUND_0 = ["measure 01 smoke 1", "measure 02 smoke 1", "render 01,02 smoke"]
ROUND_1 = ["measure 01 quick 1", "render 01 quick", "measure 02 quick 1", "render 02 quick"]
LATER = [f"measure {study} quick {number}" for number in (2, 3) for study in ("01", "02")]
LAST = "render 01,02 quick last"


def test_a_report_has_a_small_site_first_and_replaces_it_study_by_study(reporting: Reporting) -> None:
    assert reporting.report() == [*ROUND_0, *ROUND_1, *LATER, LAST]
    assert reporting.waits == ["", "02", "", ""]
    assert reporting.report() == [LAST], "nothing is left to measure"
    whole = [*ROUND_0, *ROUND_1, *LATER, LAST]
    assert reporting.report(force=True) == whole, "measured anew, at both scales"
    assert len(reporting.store.read(FIRST, HOST.id)) == 1 + 2 * 3, "earlier records are moved aside"


@pytest.mark.parametrize("stop", ["measure 02 smoke 1", "render 01,02 smoke", "measure 01 quick 1", "render 01 quick"])
def test_an_interrupted_report_continues_where_it_was(reporting: Reporting, stop: str) -> None:
    whole = [*ROUND_0, *ROUND_1, *LATER, LAST]
    reporting.stop = stop
    before = reporting.report()
    assert before == whole[: whole.index(stop)]
    reporting.stop = ""
    after = reporting.report()
    assert [event for event in [*before, *after] if event.startswith("measure")] == [
        event for event in whole if event.startswith("measure")
    ], "nothing is measured twice"
    rendered = [event for event in [*before, *after] if event.startswith("render")]
    assert rendered == [event for event in whole if event.startswith("render")], "and each page is made in its turn"


def test_a_report_of_smoke_sizes_has_no_round_0(reporting: Reporting) -> None:
    first = reporting.report(scale="smoke")
    assert first[:3] == ["measure 01 smoke 1", "measure 02 smoke 1", "render 01,02 smoke"]
    assert reporting.report()[:2] == ROUND_1[:2], "its records are round 0 of a larger report"


def test_a_report_whose_time_ends_with_round_0_has_its_pages_once(
    reporting: Reporting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Rounds, "_fits", lambda _, number: number == 0)
    assert reporting.report(time_s=60.0) == [*ROUND_0[:2], "render 01,02 smoke last"]
    assert reporting.report(time_s=60.0) == [], "they show what there is"
