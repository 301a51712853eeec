"""Which records of a store stand on a page, and which (trial, pass) pairs need no measuring.

A file holds everything that was ever measured of a study on a host. What is shown is what belongs together: the trials
of the last plan at a scale, of one protocol and one framework version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from labkit.records import PROTOCOL, Record, short_hash
from labkit.records.store import Store
from labkit.registry import PASSES, SCALES


def latest(records: Iterable[Record]) -> list[Record]:
    """The last record of each (scale, key, pass), in the order they were written.

    An attempt after a crash stands for the earlier one.
    """
    last: dict[tuple[str, str, int], Record] = {}
    for record in records:
        if record.protocol == PROTOCOL:
            pair = (record.scale, record.key, record.pass_number)
            last.pop(pair, None)
            last[pair] = record
    return list(last.values())


def at_scale(records: Iterable[Record], scale: str, keys: Iterable[str] | None = None) -> list[Record]:
    """The latest records of a scale that belong together: trials of one plan, framework versions of its newest records.

    The plan is that of the record written last, or the trial `keys` given (a plan of which nothing was missing writes
    no record). What was measured on other data, by an older plan, or before an upgrade is never pooled with it.
    """
    candidates = [record for record in latest(records) if record.scale == scale]
    if not candidates:
        return []
    planned = set(candidates[-1].planned.keys) if keys is None else set(map(short_hash, keys))
    candidates = [record for record in candidates if short_hash(record.key) in planned]
    version = {record.framework: record.framework_version for record in candidates}  # the newest, written last
    return [record for record in candidates if record.framework_version == version[record.framework]]


def done(
    records: Iterable[Record],
    *,
    scale: str,
    versions: dict[str, str],
    again: Callable[[Record], bool] = lambda _: False,
) -> set[tuple[str, int]]:
    """The (key, pass) pairs that need no further measuring at this scale with these framework versions.

    `versions` holds the version that each framework has now (`Host.framework_versions`); a record counts only if its
    own framework's is the same.
    `again` says of an unsupported trial whether what it lacked is here now.
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
    """Whether every trial of every pass planned last at this scale was tried: a failure is a row like any other."""
    together = at_scale(records, scale)
    if not together:
        return False
    planned = together[-1].planned
    tried = {(short_hash(record.key), record.pass_number) for record in together}
    return all((key, number) in tried for key in planned.keys for number in range(1, planned.passes + 1))


def scale_to_show(records: list[Record]) -> str | None:
    """The largest complete scale; without one, the largest begun. None without records."""
    for scale in reversed(SCALES):
        if is_complete(records, scale):
            return scale
    present = {record.scale for record in latest(records)}
    return max(present, key=lambda scale: PASSES[scale], default=None)


def host_to_show(store: Store, study: str, here: str | None) -> str | None:
    """This host if it has records, else the one with the newest complete records, else the newest; None without any."""
    hosts = store.hosts(study)
    if here in hosts:
        return here

    def rank(host: str) -> tuple[bool, str]:
        records = store.read(study, host)
        whole = any(is_complete(records, scale) for scale in SCALES)
        return whole, max((record.started_at for record in records), default="")

    return max(hosts, key=rank, default=None)
