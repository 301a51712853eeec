"""Pack the records and series of a profile for a commit (`make pack`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from labkit.errors import UserError
from workbook.hardware.profile import load_profile
from workbook.records.selection import host_to_show
from workbook.records.series_store import SeriesStore
from workbook.records.store import Store
from workbook.registry import SMALL, STUDIES
from workbook.results import reports_folder
from workbook.results.load import without_records
from workbook.runner.lock import only_measurement

LIMIT_BYTES = 10_000_000  # of a profile's committed records, hosts and series


def pack_records(hw: str) -> Iterator[str]:
    """Compress a profile's records and rewrite its series; yield a sentence per study and host, and the total size.

    Records of round 0 are moved aside, and their series dropped: nobody else needs them. Records that were measured in
    JupyterLab are packed, because they are lines of the same files. If the total exceeds
    `LIMIT_BYTES`, series of hosts that no page shows are deleted, with a sentence each. Raise UserError without a
    profile, or while another measurement runs on this machine.
    """
    if not hw:
        raise UserError("say whose records to compress, for example `make pack HW=h200`.")
    report = reports_folder() / load_profile(hw).name
    store, extra = Store(report), 0
    if not any(map(store.hosts, STUDIES)):
        raise UserError(without_records(report.name, []))
    with only_measurement():
        for study in STUDIES:
            for host in store.hosts(study):
                plain, series = store.path(host, study), SeriesStore(report, host, study)
                before = _size(plain) + _size(series.path)
                if moved := store.move_aside(study, host, SMALL):
                    yield f"Records of {study} on machine {host} at small sizes, moved into aside/: {moved:,}."
                series.rewrite(without=SMALL)
                if not (records := store.read(study, host)):
                    store.path(host, study).unlink()
                    continue
                after = _size(store.pack(host, study)) + _size(series.path)
                extra += sum(record.planned.extra for record in records)
                was = f" ({before / 1e6:.2f} MB before)" if after != before else ""
                yield f"Records of {study} on machine {host}: {len(records):,}; {after / 1e6:.2f} MB{was}."
        yield from _dropped_series(store)
    if extra:
        yield f"Records measured in JupyterLab: {extra:,}. A page shows them only if no report measured the study."
    total = f"Records, machines and series of {report.name}: {_total(report) / 1e6:.2f} MB"
    yield f"{total}, more than {LIMIT_BYTES / 1e6:.0f} MB." if _total(report) > LIMIT_BYTES else f"{total}."


def _dropped_series(store: Store) -> Iterator[str]:
    """Delete series until the profile is within its limit, those of the host with the oldest records first.

    Series of a host and study that a page shows are kept. All records are kept.
    """
    if _total(store.report) <= LIMIT_BYTES:
        return
    hosts = {study: store.hosts(study) for study in STUDIES}
    newest: dict[str, str] = {}
    for study, of_study in hosts.items():
        for host in of_study:
            started = max(record.started_at for record in store.read(study, host))
            newest[host] = max(started, newest.get(host, ""))
    for host in sorted(newest, key=newest.__getitem__):
        for study in [study for study, of_study in hosts.items() if host in of_study]:
            path = SeriesStore(store.report, host, study).path
            if _total(store.report) <= LIMIT_BYTES or not path.is_file() or host == host_to_show(store, study, None):
                continue
            size = _size(path)
            path.unlink()
            yield f"Telemetry of {study} of machine {host} is deleted ({size / 1e6:.2f} MB): no page shows it."


def _total(report: Path) -> int:
    return sum(_size(path) for room in ("records", "hosts", "telemetry") for path in (report / room).rglob("*"))


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() and "aside" not in path.parts else 0
