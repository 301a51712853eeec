"""Pack the records and series of a profile for a commit (`make pack`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from labkit.errors import UserError
from labkit.hardware.profile import load_profile
from labkit.records import Record
from labkit.records.series_store import SeriesStore
from labkit.records.store import Store
from labkit.registry import SCALES, STUDIES
from labkit.results import reports_folder
from labkit.run.lock import only_measurement


def pack_records(hw: str) -> Iterator[str]:
    """Compress a profile's records and rewrite its series; yield a sentence per study and host, and the total size.

    Records that were measured in JupyterLab are packed too: they are lines of the same files. Raise UserError without a
    profile, or while another measurement runs on this machine.
    """
    if not hw:
        raise UserError("say whose records to compress, for example `make pack HW=h200`.")
    report = reports_folder() / load_profile(hw).name
    store, extra = Store(report), 0
    with only_measurement():
        for study in STUDIES:
            for host in store.hosts(study):
                plain, series = store.path(host, study), SeriesStore(report, host, study)
                before = _size(plain) + _size(series.path)
                packed = store.pack(host, study)
                series.rewrite()
                after = _size(packed) + _size(series.path)
                records = store.read(study, host)
                extra += sum(record.planned.extra for record in records)
                was = f" ({before / 1e6:.2f} MB before)" if after != before else ""
                yield f"{study} of host {host}: {_counts(records)}; {after / 1e6:.2f} MB{was}."
    if extra:
        yield "Records measured in JupyterLab are packed too. A page shows them only if no report measured the study."
    kept = [path for room in ("records", "hosts", "telemetry") for path in (report / room).rglob("*")]
    yield f"Records, hosts and series of {report.name}: {sum(map(_size, kept)) / 1e6:.2f} MB."


def _counts(records: Sequence[Record]) -> str:
    """Return the number of records of each scale, and how many of them were measured in JupyterLab."""
    parts = []
    for scale in SCALES:
        extra = [record.planned.extra for record in records if record.scale == scale]
        beside = f", {sum(extra)} of them measured in JupyterLab" if any(extra) else ""
        parts += [f"scale {scale}, {len(extra)} record{'s' if len(extra) > 1 else ''}{beside}"] if extra else []
    return "; ".join(parts)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() and "aside" not in path.parts else 0
