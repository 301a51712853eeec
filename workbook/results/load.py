"""Load recorded results from `reports/`. Nothing is measured or written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from labkit.errors import UserError
from workbook.hardware.host import read_host
from workbook.hardware.profile import Profile, load_profile
from workbook.paths import reports_folder
from workbook.records.selection import at_scale, host_to_show, rounds_complete, rounds_planned, scale_to_show
from workbook.records.shared import read_together
from workbook.records.store import Store
from workbook.registry import STUDIES, Study, find_study
from workbook.results.study_records import StudyRecords
from workbook.results.table import Results

REPORT_VARIABLE = "LABKIT_REPORT"  # environment variable of the kernels of `make report` and `make render`


Kept = TypeVar("Kept")
_KEPT: dict[tuple[Any, ...], Any] | None = None  # what `kept` has made; None outside of `kept_records`


@contextmanager
def kept_records() -> Iterator[None]:
    """Make what is `kept` once within this context, also for the processes that are forked there.

    Records that are added meanwhile do not count.
    """
    global _KEPT
    _KEPT = {}
    try:
        yield
    finally:
        _KEPT = None


def kept(make: Callable[[], Kept], *place: Any) -> Kept:
    """Return what `make` returns; within `kept_records` it is made once for each `place`."""
    if _KEPT is None:
        return make()
    if place not in _KEPT:
        _KEPT[place] = make()
    found: Kept = _KEPT[place]
    return found


def is_report() -> bool:
    """Return whether a report executes this notebook; else a person runs it in JupyterLab."""
    return bool(os.environ.get(REPORT_VARIABLE))


@contextmanager
def as_in_report() -> Iterator[None]:
    """Draw figures as the notebooks of a report do, within this context."""
    before = os.environ.get(REPORT_VARIABLE, "")
    os.environ[REPORT_VARIABLE] = "1"
    try:
        yield
    finally:
        os.environ[REPORT_VARIABLE] = before


def load(hw: str = "", study: str = "") -> Results:
    """Return the recorded results of a profile (empty: all) and a study (empty: all), without measuring.

    Each study has the machine with the most complete rounds, at its largest complete scale. Records at `smoke` are
    among them only without larger ones. `lab.measure` in a notebook prefers the records of this machine.

    Raise UserError for a profile or study that does not exist or has no records.

    >>> import workbook
    >>> workbook.load("h200", "training")  # doctest: +SKIP
    >>> workbook.load()  # all profiles and studies  # doctest: +SKIP
    """
    profiles = [load_profile(name) for name in ([hw] if hw else profiles_with_records(list(STUDIES)))]
    studies = [find_study(study)] if study else list(STUDIES.values())
    pairs = [(profile, about, Store(reports_folder() / profile.name)) for profile in profiles for about in studies]
    selected = [study_records(profile, about, store=store) for profile, about, store in pairs if store.hosts(about.id)]
    if not selected:
        raise UserError(without_records(hw, [about.id for about in studies] if study else []))
    return Results(selected, partial(other_hosts, selected))


def profiles_with_records(studies: Sequence[str]) -> list[str]:
    """Return the names of the profiles that have records of one of the studies, sorted."""
    reports = sorted(path.parent for path in reports_folder().glob("*/records"))
    return [report.name for report in reports if any(map(Store(report).hosts, studies))]


def without_records(hw: str, studies: Sequence[str]) -> str:
    """Return a sentence: what has no records, and which profiles and studies of the profile have some."""
    there = [name for name in STUDIES if hw and Store(reports_folder() / hw).hosts(name)]
    what = f"{', '.join(studies)} of " if studies else ""
    profiles = ", ".join(profiles_with_records(studies or list(STUDIES))) or "none"
    return (
        f"there are no records of {what}{hw or 'any profile'}. "
        f"Profiles with {'them' if studies else 'records'}: {profiles}."
        + (f" Studies with records of {hw}: {', '.join(there)}." if there else "")
    )


def other_hosts(shown: Sequence[StudyRecords]) -> list[StudyRecords]:
    """Return the records of the same profiles, studies and scales on their other hosts."""
    return [
        records_of_host(of.profile, of.study, store=of.store, host_id=host, scale=of.scale)
        for of in shown
        if of.store
        for host in of.store.hosts(of.study.id)
        if host != of.host_id
    ]


def study_records(
    profile: Profile,
    study: Study,
    *,
    store: Store,
    here: str | None = None,
    asked: str = "quick",
) -> StudyRecords:
    """Return the records of a study that pages of a profile show.

    They are those of this host (`here`), else of the best host (`host_to_show`), at the largest complete scale.
    Without records the scale is the one that was `asked` for.
    """
    host_id = host_to_show(store, study.id, here)
    if host_id is None:
        about: dict[str, Any] = {"study": study, "profile": profile, "scale": asked, "store": store}
        return StudyRecords(**about, host_id=None, host={}, records=[])
    return records_of_host(profile, study, store=store, host_id=host_id)


def records_of_host(
    profile: Profile,
    study: Study,
    *,
    store: Store,
    host_id: str,
    asked: tuple[str, Mapping[str, int] | None] = ("quick", None),
    scale: str | None = None,
) -> StudyRecords:
    """Return the records of a study on one host that belong together, at `scale` or the largest complete scale.

    `asked` is the scale of this call with the keys of its trials and their passes: at that scale only their records
    are returned.
    """
    planned = None if asked[1] is None else dict(asked[1])
    records, places = read_together(store, study.id, host_id, scale=asked[0], planned=planned)
    scale = scale or scale_to_show(records) or asked[0]
    keys = planned if scale == asked[0] else None

    def selected() -> StudyRecords:
        shown = at_scale(records, scale, keys)
        return StudyRecords(
            study=study,
            profile=profile,
            scale=scale,
            host_id=host_id,
            host=read_host(store.report, host_id),
            records=shown,
            lines={(record.key, record.pass_number): places[id(record)][1] for record in shown},
            files={name: store.path(host_id, name).name for name in {study.id, *(record.study for record in shown)}},
            rounds=(rounds_complete(records, scale), rounds_planned(records, scale)),
            store=store,
        )

    place = (store.report, profile.name, study.id, host_id, scale, None if keys is None else frozenset(keys))
    return kept(selected, *place)
