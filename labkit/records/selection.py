"""Selection of the records that a page shows, and of the (trial, pass) pairs that need no measuring.

A file holds all records of a study on a host. A page shows only records that belong together: the trials of the last
plan at a scale, of one protocol and one framework version. The plan is that of a report: trials that a user measured in
JupyterLab are shown there, and on a page only if no report has measured the study.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from labkit.records import PROTOCOL, Record, short_hash
from labkit.records.store import Store
from labkit.registry import PASSES, SCALES


def latest(records: Iterable[Record]) -> list[Record]:
    """Return the last record of each (scale, key, pass) of this protocol, in the order of writing.

    An attempt after a crash replaces the earlier attempt.
    """
    last: dict[tuple[str, str, int], Record] = {}
    for record in records:
        if record.protocol == PROTOCOL:
            pair = (record.scale, record.key, record.pass_number)
            last.pop(pair, None)
            last[pair] = record
    return list(last.values())


def at_scale(records: Iterable[Record], scale: str, keys: Iterable[str] | None = None) -> list[Record]:
    """Return the latest records of a scale that belong together: of one plan, each framework in its newest version.

    The plan is that of the report's record written last, or the trial `keys` if given (a plan without missing trials
    writes no record). Measurements on other data, by an older plan, or before an upgrade are never pooled with it.
    """
    candidates = [record for record in latest(records) if record.scale == scale]
    if not candidates:
        return []
    planned = set(_of_reports(candidates)[-1].planned.keys) if keys is None else set(map(short_hash, keys))
    candidates = [record for record in candidates if short_hash(record.key) in planned]
    version = {record.framework: record.framework_version for record in candidates}  # the newest record's
    return [record for record in candidates if record.framework_version == version[record.framework]]


def done(
    records: Iterable[Record],
    *,
    scale: str,
    versions: dict[str, str],
    again: Callable[[Record], bool] = lambda _: False,
) -> set[tuple[str, int]]:
    """Return the (key, pass) pairs that need no further measuring at this scale with these framework versions.

    `versions` holds the present version of each framework (`Host.framework_versions`); a record counts only if its
    framework has the same version. `again` returns whether the host now has what an unsupported trial lacked.
    """
    pairs = set()
    for record in latest(records):
        same = record.framework_version == versions.get(record.framework)
        if record.status == "unsupported" and again(record):
            continue
        if record.scale == scale and record.is_final and same:
            pairs.add((record.key, record.pass_number))
    return pairs


def is_complete(records: Iterable[Record], scale: str) -> bool:
    """Return whether every trial of every pass of the last plan at this scale was tried. A failure counts as tried."""
    together = at_scale(records, scale)
    if not together:
        return False
    planned = _of_reports(together)[-1].planned
    tried = {(short_hash(record.key), record.pass_number) for record in together}
    return all((key, number) in tried for key in planned.keys for number in range(1, planned.passes + 1))


def scale_to_show(records: list[Record]) -> str | None:
    """Return the largest complete scale; without one, the largest begun; None without records."""
    reported = {record.scale for record in _of_reports(latest(records))}
    for scale in reversed(SCALES):
        if scale in reported and is_complete(records, scale):
            return scale
    return max(reported, key=lambda scale: PASSES[scale], default=None)


def host_to_show(store: Store, study: str, here: str | None) -> str | None:
    """Return `here` if a report measured there, else the host with the newest complete, else the newest records."""

    def rank(host: str) -> tuple[bool, bool, bool, str]:
        records = store.read(study, host)
        reported = any(not record.planned.extra for record in records)
        whole = any(is_complete(records, scale) for scale in SCALES)
        return reported, host == here, whole, max((record.started_at for record in records), default="")

    hosts = store.hosts(study)
    return max(hosts, key=rank) if len(hosts) > 1 else next(iter(hosts), None)


def _of_reports(records: list[Record]) -> list[Record]:
    """Return the records that reports measured; without any, all."""
    return [record for record in records if not record.planned.extra] or records
