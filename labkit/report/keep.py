"""Pack the records and series of a profile for a commit (`make pack`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from labkit.errors import UserError
from labkit.hardware.profile import load_profile
from labkit.records.series_store import SeriesStore
from labkit.records.store import Store
from labkit.registry import STUDIES
from labkit.results import reports_folder
from labkit.run.lock import only_measurement


def pack_records(hw: str) -> Iterator[str]:
    """Compress a profile's records and rewrite its series; yield a sentence per change and one for the total size.

    Raise UserError without a profile, or while another measurement runs on this machine.
    """
    if not hw:
        raise UserError("say whose records to compress, for example `make pack HW=h200`.")
    report = reports_folder() / load_profile(hw).name
    store = Store(report)
    with only_measurement():
        for study in STUDIES:
            for host in store.hosts(study):
                plain, series = store.path(host, study), SeriesStore(report, host, study)
                before = _size(plain) + _size(series.path)
                packed = store.pack(host, study)
                series.rewrite()
                after = _size(packed) + _size(series.path)
                if after != before:
                    yield f"{study} of host {host}: {before / 1e6:.2f} MB before, {after / 1e6:.2f} MB now."
    kept = [path for room in ("records", "hosts", "telemetry") for path in (report / room).rglob("*")]
    yield f"Records, hosts and series of {report.name}: {sum(map(_size, kept)) / 1e6:.2f} MB."


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() and "aside" not in path.parts else 0
