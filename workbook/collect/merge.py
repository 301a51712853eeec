"""`make collect`: merge the records of a folder or an archive into `reports/`, after all of them were checked."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from labkit.errors import LabkitError, UserError
from labkit.files import temporary_folder, users_path
from workbook.collect.archive import stage
from workbook.collect.checks import Examined, examine, why_other_hardware
from workbook.hardware.host import host_of, read_host, write_host
from workbook.hardware.identity import fingerprint
from workbook.hardware.profile import Profile, load_profile
from workbook.paths import reports_folder
from workbook.records.series_store import SeriesStore
from workbook.records.store import PACKED, PLAIN, Store
from workbook.runner.lock import only_measurement
from workbook.words import listing, plural


def collect(source: str, hw: str = "") -> Iterator[str]:
    """Merge the records of a folder or an archive; yield a sentence for all that was taken, skipped or refused.

    Everything is checked and written beside the reports first, and then moved: machines before their records. Raise
    UserError for an unsafe source before anything is written, and at the end if records were refused and none taken.
    """
    if not source:
        raise UserError(
            "say what to collect: `make collect FROM=h100.tar.gz`, or a folder, such as FROM=/copy/reports."
        )
    reports = reports_folder()
    reports.mkdir(parents=True, exist_ok=True)
    said: list[str] = []
    changed: dict[str, None] = {}
    with only_measurement(), temporary_folder(within=str(reports)) as folder:
        sent, merged = folder / "sent", folder / "merged"
        for name in stage(users_path(source), sent, hw):
            staged, here = Store(sent / name), Store(reports / name)
            try:
                profile = load_profile(name)
            except UserError as error:
                said.append(f"Refused: all records for {name}. {error} HW= names the profile of one profile's records.")
                continue
            for host in staged.hosts():
                for study, examined in _examined(staged, here, host, profile).items():
                    about = f"{study} of machine {host} for {name}"
                    if examined.taken:
                        changed[name] = None
                        said.append(f"Taken: {about}, {_merged(staged, here, merged / name, host, study, examined)}.")
                    said += [f"Skipped: {about}, {what}." for what in examined.skipped]
                    said += [f"Refused: {about}. {why}" for why in examined.refused]
        for path in sorted(path for path in merged.rglob("*") if path.is_file()):  # hosts, records, telemetry
            target = reports / path.relative_to(merged)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
            if target.name.endswith(PACKED):
                target.with_suffix("").unlink(missing_ok=True)
    yield from said
    if changed:
        yield f"See them by {listing(f'`make render HW={name}`' for name in changed)}, beside others by `make compare`."
    elif any(line.startswith("Refused") for line in said) or not any("here already" in line for line in said):
        raise UserError("nothing was taken, for the reasons above; the reports here are as they were.")


def _examined(staged: Store, here: Store, host: str, profile: Profile) -> dict[str, Examined]:
    """Return what may be taken of each study of a machine, or why nothing of the machine may be."""
    studies = staged.studies(host)
    try:
        described = read_host(staged.report, host)
    except LabkitError:
        why = f"hosts/{host}.json is missing or describes no machine: ask for it beside the records."
        return {", ".join(studies): Examined(refused=[why])}
    why = why_other_hardware(profile, described)
    known = read_host(here.report, host) if (here.report / "hosts" / f"{host}.json").exists() else described
    if described["id"] != host or fingerprint(known) != fingerprint(described):
        why = f"hosts/{host}.json describes another machine than its name, or than the one that is here."
    if why:
        return {", ".join(studies): Examined(refused=[why])}
    return {study: examine(staged, here, described, study, profile) for study in studies}


def _merged(staged: Store, here: Store, report: Path, host: str, study: str, examined: Examined) -> str:
    """Write the taken records among those that are here, with host and series, to `report`; return what was taken."""
    records = f"records/{host}/{study}"
    for name in (f"hosts/{host}.json", f"telemetry/{host}/{study}.parquet", f"{records}{PLAIN}", f"{records}{PACKED}"):
        if (here.report / name).is_file() and not (report / name).exists():
            (report / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(here.report / name, report / name)
    write_host(replace(host_of(staged.report, host), unknown_commits=tuple(examined.unknown_commits)), report)
    Store(report).merge(host, study, examined.taken)
    what = plural(len(examined.taken), "record")
    try:
        series = SeriesStore(staged.report, host, study).read()
        SeriesStore(report, host, study).merge(series, of=examined.taken)
    except OSError:
        what += ", without telemetry over time, whose file can't be read"
    if number := examined.of_unknown_code:
        what += f"; {number:,} of uncommitted or unknown code, which are never pooled with other machines'"
    return what
