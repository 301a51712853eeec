"""The plan of a report: its studies and trials, how many are measured already, and how long the rest takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from labkit.errors import UserError
from workbook.paths import notebook_of
from workbook.registry import COMPARISON, STUDIES, find_study
from workbook.report.execute import planned_trials
from workbook.runner.plan import Missing, passes_by_key, what_is_missing
from workbook.runner.progress import duration
from workbook.session import Session
from workbook.trials.rules import refusal
from workbook.trials.trial import Trial
from workbook.words import configuration_name
from workbook.workloads import rules_of

NOTEBOOK_S = 8.0  # kernel, figures and page of a study


@dataclass(frozen=True)
class StudyPlan:
    """The plan of one study of a report."""

    study: str
    trials: list[Trial]
    pairs: int  # (trial, pass) pairs of all passes
    missing: dict[int, Missing]  # by pass

    @property
    def seconds(self) -> float:
        """The seconds that measuring and rendering should take."""
        return sum(of_pass.seconds for of_pass in self.missing.values()) + NOTEBOOK_S

    def line(self) -> str:
        """Return the plan as a line of text."""
        missing = sum(of_pass.trials for of_pass in self.missing.values())
        kept = f", {self.pairs - missing} of them measured before or by other studies" if missing < self.pairs else ""
        size = f"{len(self.trials)} configurations, {self.pairs} runs{kept}"
        return f"  {self.study:<14} {size}: about {duration(self.seconds)}"

    def lines_of_trials(self, *, elsewhere: bool) -> list[str]:
        """Return a line per trial, with the reason for an unsupported one: on any machine, or on this one."""
        refused = ((trial, refusal(rules_of(trial), trial, elsewhere=elsewhere)) for trial in self.trials)
        return [
            f"      {configuration_name(trial, beside=self.trials)}{f' — unsupported: {reason}' if reason else ''}"
            for trial, reason in refused
        ]


def seconds_of_rounds(plans: Sequence[StudyPlan]) -> dict[int, float]:
    """Return the seconds that measuring each unfinished round should take. Round n is pass n of every study."""
    seconds: dict[int, float] = {}
    for plan in plans:
        for number, of_pass in plan.missing.items():
            if of_pass.trials:
                seconds[number] = seconds.get(number, 0.0) + of_pass.seconds
    return dict(sorted(seconds.items()))


def line_of_rounds(plans: Sequence[StudyPlan]) -> str:
    """Return the times of the first round, after which the site is complete, and of all rounds as a sentence."""
    seconds, render_s = seconds_of_rounds(plans), NOTEBOOK_S * len(plans)
    whole = f"Together about {duration(sum(seconds.values()) + render_s)}"
    if 1 not in seconds or len(seconds) == 1:
        return f"{whole}."
    first = duration(seconds[1] + render_s)
    return f"{whole} in {len(seconds)} rounds; a complete site after the first, in about {first}."


def chosen_studies(names: str) -> list[str]:
    """Return the ids of the studies in `names` (comma-separated; empty: all). Raise UserError for an unknown study."""
    available = [study for study in STUDIES if study != COMPARISON]
    if not names.strip():
        return available
    chosen = [find_study(name.strip()).id for name in names.split(",") if name.strip()]
    if COMPARISON in chosen:
        raise UserError("the comparison measures nothing: `make compare` makes it from the records of all profiles.")
    return [study for study in available if study in chosen]


def plan_studies(
    studies: Sequence[str],
    *,
    session: Session,
    force: bool = False,
) -> list[StudyPlan]:
    """Return the plan of each study on this host. A configuration of several studies counts for the first of them."""
    plans, earlier = [], set[str]()
    for study in studies:
        trials = planned_trials(notebook_of(study), session.parameters("plan"))
        missing = what_is_missing(trials, study, session, anew=force, earlier=frozenset(earlier))
        earlier |= {trial.key for trial in trials}
        pairs = sum(passes_by_key(trials, session.profile, session.scale).values())
        plans.append(StudyPlan(study, trials, pairs, missing))
    return plans
