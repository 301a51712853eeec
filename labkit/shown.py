"""What is there to show: notebooks, folders of reports, and which records of a study the pages of a profile show."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from labkit.analysis.verdicts import Evidence
from labkit.errors import LabkitError
from labkit.places import ROOT
from labkit.profile import load_profile, profile_names
from labkit.record_store import Store
from labkit.registry import STUDIES, find_study
from labkit.results import reports_folder, study_records
from labkit.results.study_records import StudyRecords as Results

NOTEBOOKS = ROOT / "notebooks"


def notebook_of(study: str) -> Path:
    """Where a study's notebook stands."""
    return NOTEBOOKS / f"{study}.ipynb"


def evidence(profile: str | None, here: str | None = None, known: Sequence[Results] = ()) -> Evidence:
    """The records by which claims are judged, from the view of a profile; None views all recorded profiles alike.

    `here` is this host's id: its records are shown before those of others. `known` are records read already.
    """
    given = {(results.profile.name, results.study.id): results for results in known}
    names = {path.parent.name for path in reports_folder().glob("*/records")} & set(profile_names())

    unreadable: dict[tuple[str, str], str] = {}

    def load(name: str, study: str) -> Results:
        if (name, study) in given:
            return given[name, study]
        about, owner = find_study(study), load_profile(name)
        try:
            return study_records(owner, about, store=Store(reports_folder() / name), here=here)
        except (LabkitError, OSError, ValueError) as error:  # a broken file costs its own study only
            unreadable[name, study] = str(error)
            return Results(study=about, profile=owner, scale="quick", host_id=None, host={}, records=[])

    profiles = tuple(sorted(names | ({profile} if profile else set())))
    available = frozenset(study for study in STUDIES if notebook_of(study).is_file())
    return Evidence(profile=profile, profiles=profiles, available=available, load=load, unreadable=unreadable)
