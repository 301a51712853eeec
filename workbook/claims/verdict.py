"""Verdicts and their basis: bounds, cases with their effects, judged tests, and findings on whole claims."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from workbook.claims.effects import is_by_image
from workbook.claims.evidence import FEWEST_RUNS, Side, samples
from workbook.claims.papers import Paper
from workbook.claims.schema import Claim, Group, Mark, Test
from workbook.claims.words import Kind, shown_effect
from workbook.results.intervals import HOSTS
from workbook.results.study_records import StudyRecords
from workbook.statistics import Interval
from workbook.trials.trial import Trial

Verdict = Literal["replicated", "not replicated", "inconclusive", "not testable here"]
VERDICTS: tuple[Verdict, ...] = ("replicated", "not replicated", "inconclusive", "not testable here")
DECIDING: tuple[Verdict, ...] = ("not replicated", "inconclusive", "replicated")  # the first one present decides
MARKS: dict[Group, str] = {
    "replicated": "✓",
    "direction replicated": "◧",
    "not replicated": "✗",
    "inconclusive": "~",
    "not counted": "○",
    "not testable here": "–",
}
GROUPS: tuple[Group, ...] = tuple(MARKS)
TESTED: tuple[Group, ...] = GROUPS[:4]  # the groups of verdicts that count


@dataclass(frozen=True)
class Bounds:
    """The range in which an effect supports a claim: `low` to `high` (None: open); with `outside`, everywhere else.

    `tie` is the relative margin of a direction: an effect within it of the bound is neither more nor less. An interval
    that lies wholly within the margin shows no difference, which contradicts a direction (rule of 27 November 2026).
    """

    low: float | None = None
    high: float | None = None
    outside: bool = False
    strict: bool = False  # "more" and "less" are not "the same"; a bound such as "at most 5 %" may be met exactly
    tie: float = 0.0

    def _above(self, upper: float, lower: float) -> bool:
        # A bound that is met exactly must not fail by the last binary digit.
        close = math.isclose(upper, lower, rel_tol=1e-9, abs_tol=1e-12)
        return (upper > lower and not close) if self.strict else (upper >= lower or close)

    def shows_no_difference(self, effect: Interval) -> bool:
        """Return whether an effect's interval lies wholly within the margin of a direction's bound."""
        if not self.tie or effect.low is None or effect.high is None:
            return False
        margin = 1 + self.tie
        return any(end / margin <= effect.low and effect.high <= end * margin for end in self._ends)

    @property
    def _ends(self) -> list[float]:
        return [end for end in (self.low, self.high) if end is not None]

    def verdict(self, effect: Interval) -> Verdict:
        """Return the verdict of an effect's interval; "inconclusive" without an interval."""
        if effect.low is None or effect.high is None:
            return "inconclusive"
        if self.shows_no_difference(effect):
            return "not replicated"
        margin = 1 + self.tie
        inside = (self.low is None or self._above(effect.low, self.low * margin)) and (
            self.high is None or self._above(self.high / margin, effect.high)
        )
        apart = (self.low is not None and effect.high < self.low / margin) or (
            self.high is not None and effect.low > self.high * margin
        )
        if self.outside:
            inside, apart = apart, inside
        return "replicated" if inside else "not replicated" if apart else "inconclusive"

    def verdict_stands(self, effect: Interval, *, up: bool) -> bool:
        """Return whether moving the effect up (or down) leaves its verdict unchanged."""
        verdict = self.verdict(effect)
        if self.outside or verdict == "inconclusive":
            return False
        if verdict == "replicated":
            return (self.high if up else self.low) is None  # the bound is open on that side
        ends = (effect.low, self.high) if up else (self.low, effect.high)
        return None not in ends and ends[0] > ends[1]  # type: ignore[operator]

    def chance_against(self, effect: Interval) -> float:
        """Return the p value of an effect against these bounds: how often chance takes it so far; 1 if within them."""
        low, high, margin = self.low, self.high, 1 + self.tie
        if self.shows_no_difference(effect):  # both one-sided tests must reject a difference (TOST)
            beyond = (max(effect.chance_beyond(end / margin), effect.chance_beyond(end * margin)) for end in self._ends)
            return min(beyond)
        if self.outside:
            assert low is not None and high is not None
            within = low < effect.point < high
            return max(effect.chance_beyond(low), effect.chance_beyond(high)) if within else 1.0
        if low is not None and effect.point < low / margin:
            return effect.chance_beyond(low / margin)
        if high is not None and effect.point > high * margin:
            return effect.chance_beyond(high * margin)
        return 1.0


@dataclass(frozen=True)
class Case:
    """One effect of a test. `reason` says why it is inconclusive or not testable; `sides` are the trials behind it."""

    label: str
    verdict: Verdict
    metric: str
    kind: Kind
    sides: tuple[Side, ...]
    effect: Interval | None = None
    bounds: Bounds | None = None
    reason: str = ""
    published: str = ""
    beside: tuple[tuple[str, str], ...] = ()
    passes: int = 0  # of a case of labels, which has no effect
    is_least: bool = False  # the effect is a lower bound
    corrected_chance: float | None = None  # p value of the clearest of several effects, corrected for their number

    @property
    def is_judged(self) -> bool:
        """Whether the case has a verdict."""
        return self.verdict != "not testable here"

    @property
    def has_gpu(self) -> bool:
        """Whether all its records are of machines with a GPU."""
        return all(side.results.profile.device.kind == "cuda" for side in self.sides)

    @property
    def n(self) -> int:
        """The number of values behind the case: passes, or images compared one by one; 0 without any."""
        return self.effect.n if self.effect else self.passes

    @property
    def is_by_image(self) -> bool:
        """Whether the effect compares two accuracies image by image, so that `n` is the number of images."""
        return len(self.sides) == 2 and self.kind != "level" and is_by_image(*self.sides, self.metric)

    @property
    def holds_for_one_host(self) -> bool:
        """Whether the effect depends on the host, and the interval is over the passes of a single one."""
        depends = any(side.depends_on_host(self.metric) for side in self.sides)
        return self.effect is not None and depends and self.effect.hosts < HOSTS

    @property
    def sources(self) -> list[tuple[StudyRecords, Trial]]:
        """The records behind the case, with the trial that they are of.

        An effect of two sides names the hosts of its values. Of more sides it names those of each side.
        """
        wanted, is_pair = [(side, self.metric) for side in self.sides], len(self.sides) == 2
        of_shown = self.effect is None or self.is_by_image or self.is_least
        if of_shown or (self.holds_for_one_host and not is_pair):
            return [(side.results, side.trial) for side in self.sides]
        rows = samples(*wanted) if is_pair else [samples(of_side)[0] for of_side in wanted]
        return [
            source
            for side, of_side in zip(self.sides, rows, strict=True)
            for source in side.equal_hosts(self.metric)
            if source[0].host_id in set(of_side["host"])
        ]

    @property
    def chance(self) -> float:
        """The p value of a contradiction; 0 for labels, and for orders, which need two contrary intervals."""
        if self.corrected_chance is not None:
            return self.corrected_chance
        return self.bounds.chance_against(self.effect) if self.bounds and self.effect else 0.0

    @property
    def shown(self) -> str:
        """The effect with its interval, in the metric's printed unit; empty without an effect."""
        least = "at least " if self.is_least else ""
        return f"{least}{shown_effect(self.effect, self.metric, self.kind)}" if self.effect else ""


@dataclass(frozen=True)
class Judged:
    """One test with its cases; `reason` says why there are none."""

    test: Test
    cases: tuple[Case, ...]
    reason: str = ""

    @property
    def deciding(self) -> list[Case]:
        """The judged cases of enough runs, or all if each has too few; of these those of machines with GPUs.

        The papers measured such machines, so a machine without a GPU contradicts none (rule of 28 November 2026).
        """
        judged = [case for case in self.cases if case.is_judged]
        enough = [case for case in judged if case.n >= FEWEST_RUNS] or judged
        return [case for case in enough if case.has_gpu] or enough


@dataclass(frozen=True)
class Finding:
    """The verdict on one claim.

    `scope` says how the trials differ from the paper's set-up. `not_judged` are the numbers and the hardware of the
    claim's sentence that no test contains: with them, the verdict is on the direction.
    """

    paper: Paper
    claim: Claim
    verdict: Verdict
    reason: str
    scope: str
    tests: tuple[Judged, ...]
    not_judged: tuple[str, ...] = ()

    @property
    def cases(self) -> list[Case]:
        """The cases of all tests."""
        return [case for judged in self.tests for case in judged.cases]

    @property
    def devices(self) -> list[str]:
        """The titles of the devices whose records tested the claim."""
        sides = [side for case in self.cases if case.verdict != "not testable here" for side in case.sides]
        return sorted({side.results.profile.title for side in sides})

    @property
    def mark(self) -> Mark | None:
        """Why the verdict does not count; None where it does."""
        if self.claim.mark:
            return self.claim.mark
        sides = [side for case in self.cases for side in case.sides]
        foreign = any(side.field(name) not in values for name, values in self.claim.only.items() for side in sides)
        return "other hardware or data" if foreign else None

    @property
    def why(self) -> str:
        """The reason for this verdict on these records in a few words; empty without one."""
        places = {(side.results.profile.name, side.results.host_id) for case in self.cases for side in case.sides}
        fitting = [
            reason.why
            for reason in self.claim.because_not
            if reason.verdict == self.verdict and (reason.profile, reason.host) in places
        ]
        few = self.verdict == "inconclusive" and any(case.n < FEWEST_RUNS for case in self.cases if case.is_judged)
        return fitting[0] if fitting else "fewer than three runs" if few else ""

    @property
    def is_direction(self) -> bool:
        """Whether the verdict is on the claim's direction, and not on its whole sentence."""
        return bool(self.not_judged) and self.verdict != "not testable here"

    @property
    def group(self) -> Group:
        """The group of the verdict."""
        return group_of(self.verdict, self.mark, self.is_direction)

    @property
    def badge(self) -> str:
        """The verdict in words, with "direction" where it is on the direction only."""
        return f"direction {self.verdict}" if self.is_direction else self.verdict

    @property
    def label(self) -> str:
        """The verdict with its scope: `replicated, on synthetic32 with torch`."""
        judged = self.verdict != "not testable here"
        return f"{self.badge}, {self.scope}" if judged and self.scope else self.badge


def group_of(verdict: Verdict, mark: object, direction: object) -> Group:
    """Return the verdict where it counts, else "not counted"; a replicated direction has a group of its own."""
    if verdict == "not testable here":
        return verdict
    if mark:
        return "not counted"
    return "direction replicated" if direction and verdict == "replicated" else verdict
