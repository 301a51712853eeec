"""Records that several studies of a host show: a configuration is measured once, by the first study that plans it.

The record stays in that study's file. Other studies that plan the same key read it from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from workbook.records import PROTOCOL, TRIED, Record, short_hash
from workbook.records.store import Store


class Together(NamedTuple):
    """The records that a study shows: those of other studies first, then its own.

    `places` maps the id of each record object to its study and its line in that study's file.
    """

    records: list[Record]
    places: dict[int, tuple[str, int]]


def read_together(
    store: Store, study: str, host: str, *, scale: str = "", planned: Mapping[str, int] | None = None
) -> Together:
    """Return the records of a study on a host with those that other studies measured for it.

    They are those of the plans in the study's own records, and of the plan of a call: `planned` maps the keys of its
    trials at `scale` to their numbers of passes. A pass that the study measured itself is never replaced. What it only
    tried is, in its place and plan, by a measurement of another study with the same version. Raise LabkitError as
    `Store.read`.
    """
    own = store.read(study, host)
    plans = {record.scale: record.planned.passes for record in own if record.protocol == PROTOCOL}
    if planned is not None:
        plans[scale] = {**plans.get(scale, {}), **{short_hash(key): number for key, number in planned.items()}}
    wanted = {
        (of_scale, key, number)
        for of_scale, passes in plans.items()
        for key, last in passes.items()
        for number in range(1, last + 1)
    }
    lacking = wanted - {_identity(record) for record in own if record.protocol == PROTOCOL and record.is_final}
    places = {id(record): (study, line) for line, record in enumerate(own, start=1)}
    shared: list[Record] = []
    measured: dict[tuple[object, ...], Record] = {}
    for other in store.studies(host) if lacking else []:
        for line, record in enumerate(store.read(other, host) if other != study else [], start=1):
            if record.protocol == PROTOCOL and record.status in TRIED and _identity(record) in lacking:
                shared.append(record)
                places[id(record)] = (other, line)
                if record.is_final:
                    measured[(*_identity(record), record.framework_version)] = record
    for index, record in enumerate(own):
        better = measured.get((*_identity(record), record.framework_version))
        if better and record.protocol == PROTOCOL and not record.is_final:
            own[index] = better.model_copy(update={"planned": record.planned})
            places[id(own[index])] = places[id(better)]
    return Together([*shared, *own], places)


def _identity(record: Record) -> tuple[str, str, int]:
    return record.scale, short_hash(record.key), record.pass_number
