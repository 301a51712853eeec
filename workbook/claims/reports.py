"""Evidence, results and verdicts from the records in `reports/` that the pages of a profile show."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cache, partial

from labkit.errors import LabkitError
from workbook.claims import Evidence, Findings, judge_all
from workbook.claims.papers import Paper, load_papers
from workbook.hardware.profile import load_profile, profile_names
from workbook.records.selection import check_protocol
from workbook.records.store import Store
from workbook.registry import STUDIES, find_study
from workbook.results import Results as Recorded
from workbook.results import records_of_host, reports_folder, study_records
from workbook.results.load import kept
from workbook.results.study_records import StudyRecords as Results


def evidence(profile: str | None, here: str | None = None, known: Sequence[Results] = ()) -> Evidence:
    """Return the records that judge the claims, seen from `profile`; with None, all recorded profiles count alike.

    `here` is this host's id: its records come before those of other hosts. `known` are records that were already read.
    Within `kept_records` the evidence is one with its tables and findings, unless `known` are other records.
    """
    here = here if here and any(reports_folder().glob(f"*/records/{here}")) else None
    seen = kept(partial(_evidence, profile, here, ()), "evidence", profile, here)
    same = all(seen.results(of.profile.name, of.study.id).records == of.records for of in known)
    return seen if same else _evidence(profile, here, known)


def _evidence(profile: str | None, here: str | None, known: Sequence[Results]) -> Evidence:
    given = {(results.profile.name, results.study.id): results for results in known}
    names = {path.parent.name for path in reports_folder().glob("*/records")} & set(profile_names())
    unreadable: dict[tuple[str, str], str] = {}

    @cache
    def load(name: str, study: str) -> Results:
        if (name, study) in given:
            return given[name, study]
        about, owner, store = find_study(study), load_profile(name), Store(reports_folder() / name)
        try:
            results = study_records(owner, about, store=store, here=here)
            if not results and results.host_id:
                check_protocol(store.read(study, results.host_id))
            return results
        except (LabkitError, OSError, ValueError) as error:  # a broken file must not hide other studies
            unreadable[name, study] = str(error)
            return Results(study=about, profile=owner, scale="quick", host_id=None, host={}, records=[])

    @cache
    def load_others(name: str, study: str) -> list[Results]:
        """Return the records of the profile's other hosts at the scale of the shown one."""
        shown, store, others = load(name, study), Store(reports_folder() / name), list[Results]()
        for host in sorted({*store.hosts(study)} - {shown.host_id}):
            with suppress(LabkitError, OSError, ValueError):  # a broken file must not hide other hosts
                of = records_of_host(shown.profile, shown.study, store=store, host_id=host, scale=shown.scale)
                others.append(of)
        return others

    profiles = tuple(sorted(names | ({profile} if profile else set())))
    return Evidence(profile, profiles, load, load_others, unreadable)


def recorded(seen: Evidence) -> Recorded:
    """Return the results that the pages of these profiles show; what is without records or from round 0 is left out."""
    found = [records for name in seen.profiles for study in STUDIES if (records := seen.results(name, study))]
    shown = [records for records in found if not records.is_small]
    return Recorded(
        shown, lambda: [other for of in shown for other in seen.others(of.profile.name, of.study.id) if other]
    )


def papers() -> list[Paper]:
    """Return every paper; within `kept_records` they are read once."""
    return kept(load_papers, "papers")


def verdicts(seen: Evidence, study: str | None = None) -> Findings:
    """Return the findings on the claims of a study, or on all claims."""
    return Findings(judge_all(papers(), seen, study))
