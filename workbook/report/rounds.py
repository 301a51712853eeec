"""Measure a report by rounds: first one pass of small sizes, so that a complete site exists early, then the others.

Round 0 is the pass of the scale `smoke`. Round n is pass n of every trial that has so many passes. With a time limit,
no round begins that is not expected to end in time. The number of rounds never depends on what was measured.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from labkit.errors import LabkitError, UserError
from workbook.registry import SMALL, STUDIES
from workbook.report.execute import Execution
from workbook.report.plan import StudyPlan, rendering_s, seconds_of_rounds
from workbook.runner import measure
from workbook.runner.progress import Stopwatch, duration
from workbook.session import Session

Waiting = dict[str, float]  # study -> seconds until it is measured, in the order of the studies
AfterStudy = Callable[[int, str, Waiting], None]


@dataclass
class Rounds:
    """The unfinished rounds of a report. `ends_s` is the end of its time on the monotonic clock; None without a limit.

    `failed` collects the studies that could not be measured, with the reason. `plans` may be replaced by plans of the
    same studies that know more of the machine's pace.
    """

    session: Session
    plans: Sequence[StudyPlan]
    ends_s: float | None = None
    failed: dict[str, Execution] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._clock = Stopwatch()

    @property
    def expected_s(self) -> dict[int, float]:
        """The seconds of each round that the plans have not measured."""
        return seconds_of_rounds(self.plans)

    def check_time(self) -> None:
        """Raise UserError if the time is too short for the first round, without which there is no complete site."""
        first = 1 if any(plan.small for plan in self.plans) else 2  # after round 0 there is a complete site
        number = min(self.expected_s, default=first)
        if number < first and not self._fits(number):
            assert self.ends_s is not None
            needed = self.expected_s[number] + self._last_pages_s(number)
            raise UserError(
                f"the first round takes about {duration(needed)}, longer than TIME= allows. Give more time, fewer "
                f"studies with STUDY=, or SCALE=smoke. Nothing was measured."
            )

    def follows(self, number: int) -> bool:
        """Return whether another round will begin after round `number`."""
        later = [after for after in self.expected_s if after > number]
        return bool(later) and self._fits(later[0])

    def measured(self, after_study: AfterStudy) -> Iterator[int]:
        """Measure round after round and yield the number of each that has ended.

        In rounds 0 and 1, `after_study` is called with the number of the round, the study and the studies that wait:
        at the beginning, then without a study, and after each study.
        """
        numbers = list(self.expected_s)
        for number in numbers:
            if not self._fits(number):
                rest = f"{len(numbers) - numbers.index(number)} of {len(numbers)} rounds are left"
                print(f"The time is up: {rest}. The same command continues.", flush=True)
                return
            began = time.monotonic()
            self._measure(number, after_study)
            if number:  # after round 0 the plans themselves are renewed
                self._clock.add(self.expected_s[number], time.monotonic() - began)
            print(f"Round {number} took {duration(time.monotonic() - began)}.", flush=True)
            yield number

    def _last_pages_s(self, number: int) -> float:
        """Return the seconds of rendering after a round: if the report ends with round 0, its pages are the last."""
        return rendering_s([plan for plan in self.plans if number or not plan.small])

    def _fits(self, number: int) -> bool:
        if self.ends_s is None:
            return True
        needed_s = self._clock.correct(self.expected_s[number]) + self._last_pages_s(number)
        return time.monotonic() + needed_s <= self.ends_s

    def _measure(self, number: int, after_study: AfterStudy) -> None:
        left = [plan for plan in self.plans if number in plan.missing and plan.missing[number].trials]

        def tell(study: str) -> None:
            # Round 1 renders a page of round 0 anew when its study has ended.
            seconds = {of.study: of.missing[number].seconds + (of.page_s if of.small and number else 0) for of in left}
            if number <= 1:
                after_study(number, study, {name: self._clock.correct(of_study) for name, of_study in seconds.items()})

        tell("")
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
                    plan.trials if number else plan.small,
                    study=plan.study,
                    session=self.session if number else replace(self.session, scale=SMALL),
                    rounds=[number or 1],
                )
            except LabkitError as error:
                self.failed[plan.study] = Execution(str(error), isinstance(error, UserError))
                print(f"      failed: {error}", file=sys.stderr, flush=True)
            else:
                print(f"      measured in {duration(time.monotonic() - began)}", flush=True)
            tell(plan.study)
