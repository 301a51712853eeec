"""Tests of a report's rounds: their order, the time limit, and studies that cannot be measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from labkit.errors import LabkitError, UserError
from tests.faulty.campaign import HOST, tiny_profile
from workbook.cli import _seconds
from workbook.records.store import Store
from workbook.report import rounds as module
from workbook.report.plan import NOTEBOOK_S, StudyPlan
from workbook.report.rounds import Rounds
from workbook.runner.plan import Missing
from workbook.session import Session

FIRST, SECOND = "01_training", "02_batch_size"
RENDER_S = 2 * NOTEBOOK_S
# Seconds of each study's passes: the second study has a pass less.
SECONDS = {FIRST: {1: 100.0, 2: 60.0, 3: 20.0}, SECOND: {1: 50.0, 2: 30.0}}


class Clock:
    """A clock on which each measurement takes `stretch` times its planned seconds."""

    def __init__(self, stretch: float = 1.0) -> None:
        self.now, self.stretch = 0.0, stretch
        self.measured: list[tuple[str, int]] = []
        self.broken: dict[str, LabkitError] = {}

    def monotonic(self) -> float:
        return self.now

    def measure(self, _trials: object, *, study: str, rounds: list[int], **_: Any) -> None:
        if study in self.broken:
            raise self.broken[study]
        self.now += self.stretch * SECONDS[study][rounds[0]]
        self.measured.append((study, rounds[0]))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    monkeypatch.setattr(module, "measure", made.measure)
    return made


def rounds_of(tmp_path: Path, *, ends_s: float | None = None, done: tuple[int, ...] = ()) -> Rounds:
    plans = [
        StudyPlan(study, [], 9, {n: Missing(0 if n in done else 4, seconds) for n, seconds in of.items()})
        for study, of in SECONDS.items()
    ]
    return Rounds(Session(profile=tiny_profile(), host=HOST, store=Store(tmp_path), scale="smoke"), plans, ends_s)


def test_each_round_measures_one_pass_of_every_study(clock: Clock, tmp_path: Path) -> None:
    waiting: list[dict[str, float]] = []
    rounds = rounds_of(tmp_path)
    ended = [(number, rounds.follows(number), list(clock.measured)) for number in rounds.measured(waiting.append)]
    assert clock.measured == [(FIRST, 1), (SECOND, 1), (FIRST, 2), (SECOND, 2), (FIRST, 3)]
    assert [(number, follows) for number, follows, _ in ended] == [(1, True), (2, True), (3, False)]
    assert ended[0][2] == [(FIRST, 1), (SECOND, 1)], "a complete site after the first round"
    assert waiting == [{FIRST: 100.0, SECOND: 50.0}, {SECOND: 50.0}], "the index says what waits in the first round"


def test_a_resumed_report_begins_with_the_round_that_is_missing(clock: Clock, tmp_path: Path) -> None:
    assert list(rounds_of(tmp_path, done=(1, 2)).measured(lambda _: None)) == [3]
    assert clock.measured == [(FIRST, 3)]


@pytest.mark.parametrize(("ends_s", "made"), [(None, 3), (400.0, 3), (270.0, 2), (240.0, 1), (170.0, 1)])
def test_no_round_begins_that_does_not_fit(
    clock: Clock, tmp_path: Path, capsys: pytest.CaptureFixture[str], ends_s: float | None, made: int
) -> None:
    rounds = rounds_of(tmp_path, ends_s=ends_s)
    rounds.check_time()
    assert list(rounds.measured(lambda _: None)) == [1, 2, 3][:made]
    assert ends_s is None or clock.now + RENDER_S <= ends_s
    said = capsys.readouterr().out
    assert (f"The time is up: {3 - made} of 3 rounds are left. The same command continues." in said) == (made < 3)


def test_the_time_that_rounds_really_take_decides_about_the_next(clock: Clock, tmp_path: Path) -> None:
    clock.stretch = 3.0
    assert list(rounds_of(tmp_path, ends_s=600.0).measured(lambda _: None)) == [1], "two rounds fit by the plan alone"


def test_a_time_too_short_for_the_first_round_is_refused_before_anything_is_measured(
    clock: Clock, tmp_path: Path
) -> None:
    rounds = rounds_of(tmp_path, ends_s=160.0)
    with pytest.raises(UserError, match="the first round takes about 2 min 46 s, longer than TIME= allows"):
        rounds.check_time()
    rounds_of(tmp_path, ends_s=60.0, done=(1, 2)).check_time()  # what is left fits


def test_a_study_that_cannot_be_measured_costs_only_itself(clock: Clock, tmp_path: Path) -> None:
    clock.broken = {FIRST: UserError("move this file away.")}
    rounds = rounds_of(tmp_path)
    assert list(rounds.measured(lambda _: None)) == [1, 2, 3]
    assert clock.measured == [(SECOND, 1), (SECOND, 2)]
    assert rounds.failed[FIRST].reason == "move this file away." and rounds.failed[FIRST].user_mistake


@pytest.mark.parametrize(("text", "seconds"), [("45m", 2700), ("1h30m", 5400), ("90s", 90), ("2h0m1s", 7201)])
def test_a_time_is_read(text: str, seconds: float) -> None:
    assert _seconds(text) == seconds


@pytest.mark.parametrize("text", ["45", "m", "1.5h", "-3m", "0s", "30m1h", "٣m", "1h 30m", "soon"])
def test_a_text_that_is_no_time_is_refused_with_what_is_valid(text: str) -> None:
    with pytest.raises(UserError, match="is no time; valid: hours, minutes and seconds, such as 45m, 1h30m or 90s"):
        _seconds(text)
