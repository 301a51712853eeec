"""Selection of the records that a page shows, and of the (trial, pass) pairs that need no measuring.

A file holds all records of a study on a host. A page shows only records that belong together: the trials of the last
plan at a scale, of one protocol and one framework version. The plan is that of a report: trials that a user measured in
JupyterLab are shown there, and on a page only if no report has measured the study.
"""

from __future__ import annotations

from collections.abc import Iterable

from labkit.errors import LabkitError
from workbook.records import PROTOCOL, Record, short_hash
from workbook.records.after_traces import launched_slowly
from workbook.records.shared import read_together
from workbook.records.store import Store
from workbook.registry import PASSES, SCALES, SMALL


def latest(records: Iterable[Record], protocol: int = PROTOCOL) -> list[Record]:
    """Return the last record of each (scale, key, pass) of a protocol, in the order of writing.

    An attempt after a crash replaces the earlier attempt.
    """
    last: dict[tuple[str, str, int], Record] = {}
    for record in records:
        if record.protocol == protocol:
            pair = (record.scale, record.key, record.pass_number)
            last.pop(pair, None)
            last[pair] = record
    return list(last.values())


def at_scale(records: Iterable[Record], scale: str, keys: Iterable[str] | None = None) -> list[Record]:
    """Return the latest records of a scale that belong together: of one plan, each framework in its newest version.

    The plan is that of the report's record written last, or the trial `keys` if given (a plan without missing trials
    writes no record). Measurements on other data, by an older plan, or before an upgrade are never pooled with it. They
    are of the newest protocol with a complete first round; without one, of the newest protocol.
    """
    of_scale = [record for record in _readable(records) if record.scale == scale]
    wanted = None if keys is None else set(map(short_hash, keys))
    for with_round in (True, False):
        for protocol in sorted({record.protocol for record in of_scale}, reverse=True):
            together = _of_one_plan(latest(of_scale, protocol), wanted)
            if together and (not with_round or _has_round(together, 1, wanted)):
                return together
    return []


def _of_one_plan(candidates: list[Record], wanted: set[str] | None) -> list[Record]:
    if not candidates:
        return []
    planned = set(_of_reports(candidates)[-1].planned.passes) if wanted is None else wanted
    candidates = [record for record in candidates if short_hash(record.key) in planned]
    version = {record.framework: record.framework_version for record in candidates}  # the newest record's
    return [record for record in candidates if record.framework_version == version[record.framework]]


def done(
    records: Iterable[Record], *, scale: str, versions: dict[str, str], source: str | None = None
) -> set[tuple[str, int]]:
    """Return the (key, pass) pairs that need no further measuring at this scale with these framework versions.

    `versions` holds the present version of each framework (`Host.framework_versions`); a record counts only if its
    framework has the same version. A trial that a version cannot run is tried again by other code too (`source`), and
    so is a trial whose steps an earlier trace may have delayed.
    """
    pairs = set()
    for record in latest(records):
        same = record.framework_version == versions.get(record.framework)
        same &= record.cause != "version" or record.versions.get("source") == source
        same &= launched_slowly(record) is False
        if record.scale == scale and record.is_final and same:
            pairs.add((record.key, record.pass_number))
    return pairs


def rounds_complete(records: Iterable[Record], scale: str) -> int:
    """Return how many rounds of the last plan at this scale are complete. A failed trial counts as tried.

    Round n is pass n of all trials that have so many passes.
    """
    together = at_scale(records, scale)
    number = 0
    while together and number < _rounds(together) and _has_round(together, number + 1):
        number += 1
    return number


def rounds_planned(records: Iterable[Record], scale: str) -> int:
    """Return the number of rounds of the last plan at this scale; 0 without records."""
    together = at_scale(records, scale)
    return _rounds(together) if together else 0


def is_complete(records: Iterable[Record], scale: str) -> bool:
    """Return whether all rounds of the last plan at this scale are complete."""
    records = list(records)
    return 0 < rounds_planned(records, scale) == rounds_complete(records, scale)


def _rounds(together: list[Record]) -> int:
    return max(_of_reports(together)[-1].planned.passes.values())


def _has_round(together: list[Record], number: int, wanted: set[str] | None = None) -> bool:
    """Return whether each trial with at least `number` passes was tried in that pass: those planned, or `wanted`."""
    tried = {short_hash(record.key) for record in together if record.pass_number == number}
    passes = _of_reports(together)[-1].planned.passes
    return tried.issuperset(wanted or (key for key, of_trial in passes.items() if of_trial >= number))


def check_protocol(records: Iterable[Record]) -> None:
    """Raise LabkitError if there are records, and all are of a newer protocol."""
    protocols = {record.protocol for record in records}
    if protocols and min(protocols) > PROTOCOL:
        raise LabkitError(
            f"a newer labkit measured the records (protocol {min(protocols)}, this one shows up to {PROTOCOL}): "
            f"update this labkit."
        )


def scale_to_show(records: list[Record]) -> str | None:
    """Return the largest scale with a complete first round; without one, the largest begun; None without records."""
    begun = {record.scale for record in _of_reports(_readable(records))}
    reported = [scale for scale in SCALES if scale in begun]
    with_round = [scale for scale in reported if rounds_complete(records, scale)]
    return next(reversed(with_round or reported), None)


def host_to_show(store: Store, study: str, here: str | None) -> str | None:
    """Return `here` if a report measured there, else the best other host.

    Hosts with two complete rounds without delayed launches (`after_traces`) come first, because a single run has no
    interval and delayed steps have no time. Then come hosts with one such round, then hosts with two complete rounds of
    any launches, and then hosts with one. Round 0 does not count. Among equals the newest protocol decides, then more
    complete rounds without delayed launches, then more complete rounds, then the newest records, whose plan is the
    newest. Short rounds do not count: they repeat only what a host delays.
    """

    def rank(host: str) -> tuple[bool, bool, int, int, int, int, int, str]:
        records = read_together(store, study, host).records
        reported = any(not record.planned.extra for record in records)
        scale = scale_to_show(records)
        shown = at_scale(records, scale) if scale else []
        rounds = rounds_complete(records, scale) if scale else 0
        protocol = shown[0].protocol if shown else 0
        newest = max((record.started_at for record in records), default="")
        full = min(rounds, PASSES[scale]) if scale else 0
        prompt = [record for record in shown if launched_slowly(record) is False]
        whole = min(rounds_complete(prompt, scale), full) if scale else 0
        limit = 0 if scale == SMALL else 2
        return reported, host == here, min(whole, limit), min(full, limit), protocol, whole, full, newest

    hosts = store.hosts(study)
    return max(hosts, key=rank) if len(hosts) > 1 else next(iter(hosts), None)


def _readable(records: Iterable[Record]) -> list[Record]:
    """Return the records whose protocol this version knows: a newer one may measure something else."""
    return [record for record in records if record.protocol <= PROTOCOL]


def _of_reports(records: list[Record]) -> list[Record]:
    """Return the records that reports measured; without any, all."""
    return [record for record in records if not record.planned.extra] or records
