"""The plan of a report: its studies and trials, how many are measured already, and how long the rest takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from labkit.errors import UserError
from labkit.hardware.host import Host
from labkit.hardware.profile import Profile
from labkit.places import notebook_of
from labkit.records.store import Store
from labkit.registry import COMPARISON, STUDIES, find_study
from labkit.report.execute import planned_trials
from labkit.run.progress import duration
from labkit.study import what_is_missing
from labkit.trial import Trial

NOTEBOOK_S = 8.0  # kernel, figures and page of a study


@dataclass(frozen=True)
class StudyPlan:
    """The plan of one study of a report."""

    study: str
    trials: list[Trial]
    passes: int
    missing: int
    seconds: float
    timeout_s: float

    def line(self) -> str:
        """Return the plan as a line of text."""
        pairs = len(self.trials) * self.passes
        kept = f", {pairs - self.missing} of them measured before" if self.missing < pairs else ""
        return (
            f"  {self.study:<14} {len(self.trials)} trials x {self.passes} passes{kept}: about {duration(self.seconds)}"
        )


def chosen_studies(names: str) -> list[str]:
    """Return the ids of the studies in `names` (comma-separated; empty: all). Raise UserError for an unknown study."""
    available = [study for study in STUDIES if study != COMPARISON and notebook_of(study).is_file()]
    if not names.strip():
        return available
    chosen = [find_study(name.strip()).id for name in names.split(",") if name.strip()]
    if COMPARISON in chosen:
        raise UserError("the comparison measures nothing: `make compare` makes it from the records of all profiles.")
    for study in chosen:
        if study not in available:
            raise UserError(f"study {study} has no notebook in this version; available: {', '.join(available)}.")
    return [study for study in available if study in chosen]


def plan_study(
    study: str, *, profile: Profile, host: Host, store: Store, parameters: dict[str, Any], force: bool = False
) -> StudyPlan:
    """Return the plan of one study on this host."""
    scale = parameters["scale"]
    trials = planned_trials(notebook_of(study), {**parameters, "mode": "plan"})
    missing = what_is_missing(trials, study, scale, profile, host, store, anew=force)
    return StudyPlan(
        study=study,
        trials=trials,
        passes=profile.passes(scale),
        missing=missing.pairs,
        seconds=missing.seconds + NOTEBOOK_S,
        # Each trial has a time limit of its own; the cell's limit only stops a runner that hangs.
        timeout_s=600 + missing.pairs * (profile.timing_at(scale, study).limit_s + 60),
    )
