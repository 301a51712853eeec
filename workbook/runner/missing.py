"""The (trial, pass) pairs of a study that a host has not measured, and the seconds that they should take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from workbook.hardware.host import Host
from workbook.hardware.matching import mismatch
from workbook.records import Record
from workbook.records.selection import done, host_to_show
from workbook.records.shared import read_together
from workbook.runner.plan import estimate_s, pass_at, passes_by_key
from workbook.session import Session
from workbook.trials.trial import Trial


class Missing(NamedTuple):
    """The number of trials of a pass left to measure, and the seconds that they should take."""

    trials: int
    seconds: float


def what_is_missing(
    trials: Sequence[Trial],
    study: str,
    session: Session,
    *,
    anew: bool = False,
    earlier: frozenset[str] = frozenset(),
) -> dict[int, Missing]:
    """Return what this host has not measured yet of the trials, by pass.

    With `anew`, count the study's own records as missing. `earlier` are the keys that earlier studies of a report
    measure. On a host without the profile's hardware, the seconds are those of the host whose records pages show.
    """
    profile, host, store, scale = session.profile, session.host, session.store, session.scale
    passes = passes_by_key(trials, profile, scale)
    records = read_together(store, study, host.id, scale=scale, planned=passes).records
    records = [record for record in records if not (anew and record.study == study)]
    finished = finished_pairs(records, scale, host)
    if mismatch(profile, host) and (shown := host_to_show(store, study, None)):
        records = read_together(store, study, shown).records
    own = [trial for trial in trials if trial.key not in earlier]
    missing = {}
    for number in range(1, max(passes.values(), default=0) + 1):
        of_pass = [trial for trial in own if number <= passes[trial.key] and (trial.key, number) not in finished]
        seconds = estimate_s(of_pass, pass_at(session, study, number), records, scale)
        missing[number] = Missing(len(of_pass), seconds)
    return missing


def finished_pairs(records: Iterable[Record], scale: str, host: Host) -> set[tuple[str, int]]:
    """Return the (key, pass) pairs that this host measured, or that it cannot run in any state."""
    return done(records, scale=scale, versions=host.framework_versions(), source=host.source)
