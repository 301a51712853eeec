"""What is there to show: notebooks, folders of reports, and which records of a study the pages of a profile show."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from labkit.analysis.results import Results
from labkit.analysis.verdicts import Evidence
from labkit.errors import LabkitError
from labkit.host import read_host
from labkit.places import ROOT
from labkit.profile import Profile, load_profile, profile_names
from labkit.record_store import Store
from labkit.registry import STUDIES, Study, find_study
from labkit.selection import at_scale, host_to_show, scale_to_show

NOTEBOOKS = ROOT / "notebooks"


def notebook_of(study: str) -> Path:
    """Where a study's notebook stands."""
    return NOTEBOOKS / f"{study}.ipynb"


def reports_folder() -> Path:
    """Where reports stand: `reports/` beside the package, or LABKIT_REPORTS."""
    return Path(os.environ.get("LABKIT_REPORTS") or ROOT / "reports")


def shown_results(
    profile: Profile,
    study: Study,
    *,
    store: Store,
    here: str | None = None,
    asked: tuple[str, Sequence[str] | None] = ("quick", None),
) -> Results:
    """The records of a study that pages of a profile show.

    This host's (`here`), else the newest complete host's; at the largest complete scale. `asked` is the scale of this
    call with the keys of its trials: at that scale the records are those of these trials.
    """
    host_id = host_to_show(store, study.id, here)
    if host_id is None:
        return Results(study=study, profile=profile, scale=asked[0], host_id=None, host={}, records=[])
    records = store.read(study.id, host_id)
    scale = scale_to_show(records) or asked[0]
    shown = at_scale(records, scale, asked[1] if scale == asked[0] else None)
    number = {id(record): line for line, record in enumerate(records, start=1)}
    return Results(
        study=study,
        profile=profile,
        scale=scale,
        host_id=host_id,
        host=read_host(store.report, host_id),
        records=shown,
        measured_here=host_id == here,
        lines={(record.key, record.pass_number): number[id(record)] for record in shown},
        file_name=store.path(host_id, study.id).name,
    )


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
            return shown_results(owner, about, store=Store(reports_folder() / name), here=here)
        except (LabkitError, OSError, ValueError) as error:  # a broken file costs its own study only
            unreadable[name, study] = str(error)
            return Results(study=about, profile=owner, scale="quick", host_id=None, host={}, records=[])

    profiles = tuple(sorted(names | ({profile} if profile else set())))
    available = frozenset(study for study in STUDIES if notebook_of(study).is_file())
    return Evidence(profile=profile, profiles=profiles, available=available, load=load, unreadable=unreadable)
