"""Measure a report by rounds: first one pass of every study, so that a complete site exists early, then the others.

Round n is pass n of every trial that has so many passes. With a time limit, no round begins that is not expected to end
in time. The number of rounds never depends on what was measured.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from labkit.errors import LabkitError, UserError
from workbook.registry import STUDIES
from workbook.report.execute import Execution
from workbook.report.plan import NOTEBOOK_S, StudyPlan, seconds_of_rounds
from workbook.runner import measure
from workbook.runner.progress import Stopwatch, duration
from workbook.session import Session

Waiting = dict[str, float]  # study -> seconds until it is measured, in the order of the studies


@dataclass
class Rounds:
    """The unfinished rounds of a report. `ends_s` is the end of its time on the monotonic clock; None without a limit.

    `failed` collects the studies that could not be measured, with the reason.
    """

    session: Session
    plans: Sequence[StudyPlan]
    ends_s: float | None = None
    failed: dict[str, Execution] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.expected_s = seconds_of_rounds(self.plans)
        self._clock = Stopwatch()

    def check_time(self) -> None:
        """Raise UserError if the time is too short for the first round, without which there is no complete site."""
        if 1 in self.expected_s and not self._fits(1):
            assert self.ends_s is not None
            needed = self.expected_s[1] + NOTEBOOK_S * len(self.plans)
            raise UserError(
                f"the first round takes about {duration(needed)}, longer than TIME= allows. Give more time, fewer "
                f"studies with STUDY=, or SCALE=smoke. Nothing was measured."
            )

    def follows(self, number: int) -> bool:
        """Return whether another round will begin after round `number`."""
        later = [after for after in self.expected_s if after > number]
        return bool(later) and self._fits(later[0])

    def measured(self, after_study: Callable[[Waiting], None]) -> Iterator[int]:
        """Measure round after round and yield the number of each that has ended.

        In the first round, `after_study` is called at the beginning and after each study, with the studies that wait.
        """
        numbers = list(self.expected_s)
        for number in numbers:
            if not self._fits(number):
                rest = f"{len(numbers) - numbers.index(number)} of {len(numbers)} rounds are left"
                print(f"The time is up: {rest}. The same command continues.", flush=True)
                return
            began = time.monotonic()
            self._measure(number, after_study if number == 1 else None)
            self._clock.add(self.expected_s[number], time.monotonic() - began)
            print(f"Round {number} took {duration(time.monotonic() - began)}.", flush=True)
            yield number

    def _fits(self, number: int) -> bool:
        if self.ends_s is None:
            return True
        render_s = NOTEBOOK_S * len(self.plans)
        return time.monotonic() + self._clock.correct(self.expected_s[number]) + render_s <= self.ends_s

    def _measure(self, number: int, after_study: Callable[[Waiting], None] | None) -> None:
        left = [plan for plan in self.plans if number in plan.missing and plan.missing[number].trials]
        if after_study is not None:
            after_study({waiting.study: waiting.missing[number].seconds for waiting in left})
        while left:
            plan = left.pop(0)
            if plan.study in self.failed:
                continue
            of_pass = plan.missing[number]
            about = f"{of_pass.trials} configurations, about {duration(of_pass.seconds)}"
            later_s = sum(later.missing[number].seconds for later in left)
            later_s += sum(seconds for later, seconds in self.expected_s.items() if later > number)
            after = f"; after it {duration(self._clock.correct(later_s))}" if later_s else ""
            print(f"[round {number}] {plan.study}: {STUDIES[plan.study].question} {about}{after}", flush=True)
            began = time.monotonic()
            try:
                measure(
                    plan.trials,
                    study=plan.study,
                    session=self.session,
                    rounds=[number],
                )
            except LabkitError as error:
                self.failed[plan.study] = Execution(str(error), isinstance(error, UserError))
                print(f"      failed: {error}", file=sys.stderr, flush=True)
            else:
                print(f"      measured in {duration(time.monotonic() - began)}", flush=True)
            if after_study is not None and left:
                after_study({waiting.study: waiting.missing[number].seconds for waiting in left})
