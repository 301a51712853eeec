"""The plan of a report: its studies and trials, how many are measured already, and how long the rest takes.

A report begins with round 0: one pass of small sizes of every study that lacks a complete first round.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from labkit.errors import UserError, unknown
from workbook.hardware.frameworks import missing_from, title_of
from workbook.paths import notebook_of
from workbook.records import Record
from workbook.records.selection import rounds_complete
from workbook.records.shared import read_together
from workbook.registry import OF_ALL, SMALL, STUDIES, YOUR_NETWORK, find_study
from workbook.report.execute import planned_trials
from workbook.report.pages import read_runs
from workbook.runner.plan import Missing, passes_by_key, what_is_missing
from workbook.runner.progress import duration
from workbook.session import Session
from workbook.trials.rules import refusal
from workbook.trials.trial import Trial
from workbook.words import configuration_name
from workbook.workloads import rules_of

NOTEBOOK_S = 8.0  # kernel, figures and page of a study, until this machine has rendered it


@dataclass(frozen=True)
class StudyPlan:
    """The plan of one study of a report."""

    study: str
    trials: list[Trial]
    pairs: int  # (trial, pass) pairs of all passes
    missing: dict[int, Missing]  # by round: 0, and the pass of each other round
    small: Sequence[Trial] = ()  # the trials of round 0
    page_s: float = NOTEBOOK_S

    @property
    def seconds(self) -> float:
        """The seconds that measuring and rendering should take."""
        return sum(of_pass.seconds for of_pass in self.missing.values()) + self.page_s

    def line(self) -> str:
        """Return the plan as a line of text, with the frameworks of its trials that this machine lacks."""
        missing = sum(of_pass.trials for number, of_pass in self.missing.items() if number)
        kept = f", {self.pairs - missing} of them measured before or by other studies" if missing < self.pairs else ""
        size = f"{len(self.trials)} configurations, {self.pairs} runs{kept}"
        lacking = sorted({title_of(trial.framework) for trial in self.trials if missing_from(trial.framework)})
        told = f"; not installed here: {', '.join(lacking)} (`make doctor`)" if lacking and missing else ""
        return f"  {self.study:<14} {size}: about {duration(self.seconds)}{told}"

    def lines_of_trials(self, *, elsewhere: bool) -> list[str]:
        """Return a line per trial, with the reason for an unsupported one: on any machine, or on this one."""
        refused = ((trial, refusal(rules_of(trial), trial, elsewhere=elsewhere)) for trial in self.trials)
        return [
            f"      {configuration_name(trial, beside=self.trials)}{f' — unsupported: {reason}' if reason else ''}"
            for trial, reason in refused
        ]


def seconds_of_rounds(plans: Sequence[StudyPlan]) -> dict[int, float]:
    """Return the seconds that each unfinished round should take, with the pages that it makes or replaces.

    Round 0 has one pass of small sizes, and round n has pass n of every study. Round 1 replaces the pages of round 0.
    """
    seconds: dict[int, float] = {}
    for plan in plans:
        for number, of_pass in plan.missing.items():
            if of_pass.trials:
                seconds[number] = seconds.get(number, 0.0) + of_pass.seconds
    small = [plan for plan in plans if plan.small]
    pages_s = {0: rendering_s(small), 1: sum(plan.page_s for plan in small)}
    return {number: of_round + pages_s.get(number, 0.0) for number, of_round in sorted(seconds.items())}


def rendering_s(plans: Sequence[StudyPlan]) -> float:
    """Return the seconds that the pages of all studies should take, several at once."""
    return sum(plan.page_s for plan in plans) / max(1, min(len(plans), os.cpu_count() or 1, 4))


def line_of_rounds(plans: Sequence[StudyPlan]) -> str:
    """Return the times until the site is complete and of all rounds as a sentence."""
    seconds, render_s = seconds_of_rounds(plans), rendering_s(plans)
    whole = f"Together about {duration(sum(seconds.values()) + render_s)}"
    if len(seconds) < 2 or min(seconds) > 1:
        return f"{whole}."
    if 0 in seconds:
        first = f"a complete site of small sizes after round 0, in about {duration(seconds[0])}"
    else:
        first = f"a complete site after the first, in about {duration(seconds[1] + render_s)}"
    return f"{whole} in {len(seconds)} rounds; {first}."


def chosen_studies(names: str, network: str = "") -> list[str]:
    """Return the ids of the studies in `names` (comma-separated; empty: all), in the order of a report.

    The study of the user's network is one of all with a `network` alone. Raise UserError for an unknown study.
    """
    available = [study for study in STUDIES if study not in OF_ALL]
    if not names.strip():
        return [study for study in available if study != YOUR_NETWORK or network]
    chosen = [find_study(name.strip()).id for name in names.split(",") if name.strip()]
    if not chosen:
        raise unknown("study", names, STUDIES)
    if both := [study for study in chosen if study in OF_ALL]:
        raise UserError(f"{both[0]} measures nothing: `make compare` makes it from the records of all profiles.")
    return [study for study in available if study in chosen]


def measured_studies(names: str, network: str) -> list[str]:
    """Return the studies that a report measures, as `chosen_studies`. Raise UserError for options that do not agree."""
    studies = chosen_studies(names, network)
    if (YOUR_NETWORK in studies) != bool(network):
        usage = "make report STUDY=your_network NETWORK=mine.py BATCH=32,256"
        raise UserError(
            f"NETWORK= and the study your_network belong together, and only one of them was given; valid: `{usage}`."
        )
    return studies


def plan_studies(studies: Sequence[str], *, session: Session, force: bool = False) -> list[StudyPlan]:
    """Return the plan of each study on this host. A configuration of several studies counts for the first of them."""
    small = replace(session, scale=SMALL)
    runs = read_runs(session.store.report)
    page_s = {name: run.duration_s for name, run in runs.items() if (run.host, run.status) == (session.host.id, "ok")}
    plans, earlier, earlier_small = [], set[str](), set[str]()
    for study in studies:
        trials = planned_trials(notebook_of(study), session.parameters("plan"))
        missing = what_is_missing(trials, study, session, anew=force, earlier=frozenset(earlier))
        earlier |= {trial.key for trial in trials}
        pairs = sum(passes_by_key(trials, session.profile, session.scale).values())
        plan = StudyPlan(study, trials, pairs, missing, page_s=page_s.get(study, NOTEBOOK_S))
        if _begins_small(plan, session, force=force):
            of_small = planned_trials(notebook_of(study), small.parameters("plan"))
            first = what_is_missing(of_small, study, small, anew=force, earlier=frozenset(earlier_small))[1]
            earlier_small |= {trial.key for trial in of_small}
            tried = {record.key for record in _records(of_small, study, small) if record.scale == SMALL}
            if not force and tried.issuperset(trial.key for trial in of_small):
                first = Missing(0, 0.0)  # also what failed: round 1 replaces it soon
            plan = replace(plan, small=of_small, missing={0: first, **missing})
        plans.append(plan)
    return plans


def _begins_small(plan: StudyPlan, session: Session, *, force: bool) -> bool:
    """Return whether the profile has small sizes of a study, and the study no complete first round of larger ones."""
    profile = session.profile
    if session.scale == SMALL or SMALL not in profile.timing or SMALL not in profile.sweeps.get(plan.study, {}):
        return False
    return force or rounds_complete(_records(plan.trials, plan.study, session), session.scale) == 0


def _records(trials: Sequence[Trial], study: str, session: Session) -> list[Record]:
    """Return this host's records of a study, with those that other studies measured for its trials."""
    planned = passes_by_key(trials, session.profile, session.scale)
    return read_together(session.store, study, session.host.id, scale=session.scale, planned=planned).records
