"""Write `fingerprint.html`: the machines, software and code behind the numbers of a report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from workbook.hardware.environment import settings_of
from workbook.hardware.frameworks import is_keras, title_of
from workbook.hardware.identity import fingerprint
from workbook.hardware.profile import Profile
from workbook.records import Record
from workbook.report.html import write_template
from workbook.results import Results
from workbook.results.study_records import StudyRecords
from workbook.words import MISSING, NAN, number, quantity

_SETTINGS = ("scale", "runs", "protocol", "PyTorch", "CUDA", "cuDNN")  # columns of a study's records
_DETAILS = ("CPU features", "Package", "Python of", "Notes")  # properties that few readers look for
LIBRARIES = {"torch_build": "PyTorch", "cuda": "CUDA", "cudnn": "cuDNN"}  # their names in records and on pages


def write_fingerprint(
    page: Path, profile: Profile, results: Results, *, rendered: dict[str, str], links: Sequence[tuple[str, str]]
) -> None:
    """Write the page atomically. `rendered` maps labels to facts about this rendering: time, code and machine."""
    listed = sorted([*results.selected, *results.others()], key=lambda records: records.study.id)  # keeps the order
    hosts: dict[str, dict[str, Any]] = {str(records.host_id): records.host for records in listed}
    described = [properties_of_host(host) for host in hosts.values()]
    for name, machine in zip(hosts, described, strict=True):
        records = (record for part in listed if str(part.host_id) == name for record in part.records)
        settings = settings_of(record.environment for record in records)
        machine["Environment variables"] = settings or "none recorded"
    names = dict.fromkeys(name for of_host in described for name in of_host)
    properties = [(name, [of_host.get(name, MISSING) for of_host in described]) for name in names]
    common = [(name, values[0]) for name, values in properties if len(set(values)) == 1]
    studies = [_study(records) | {"shown": records in results.selected} for records in listed]
    differing = [column for column in _SETTINGS if len({row[column] for row in studies}) > 1]
    write_template(
        page,
        "fingerprint.html.j2",
        title=profile.title,
        links=links,
        studies=[(row, (page.parent.parent / row["series"]).is_file()) for row in studies],
        columns=differing + (["other frameworks"] if any(row["other frameworks"] for row in studies) else []),
        settings=[f"{column} {studies[0][column]}" for column in _SETTINGS if studies and column not in differing],
        hosts=list(hosts),
        differing=[(name, values) for name, values in properties if len(set(values)) > 1],
        common=[item for item in common if not item[0].startswith(_DETAILS)],
        details=[item for item in common if item[0].startswith(_DETAILS)],
        rendered=rendered,
    )


def properties_of_host(host: dict[str, Any]) -> dict[str, str]:
    """Return all properties in a host's file as text, by title."""
    properties = {"Driver": host.get("driver") or "none"}
    for place, gpu in enumerate(host.get("gpus") or []):
        name = f"GPU {place}"
        properties |= {
            name: gpu["name"],
            f"{name} identity hash": gpu.get("uuid_hash") or MISSING,
            f"{name} memory": _gib(gpu.get("memory_bytes")),
            f"{name} compute capability": gpu.get("compute_capability") or MISSING,
            f"{name} enforced power limit": quantity(gpu.get("power_limit_w") or NAN, "power_w"),
            f"{name} highest SM clock": quantity(gpu.get("max_sm_clock_hz") or NAN, "sm_clock_hz", 4),
            f"{name} highest memory clock": quantity(gpu.get("max_memory_clock_hz") or NAN, "memory_clock_hz", 4),
        }
    quota = MISSING
    if "cpu_quota" in host:
        quota = "none" if host["cpu_quota"] is None else f"{host['cpu_quota']:g} processors"
    properties |= {
        "Recognised by": host.get("recognised_by") or MISSING,
        "Hardware fingerprint": fingerprint(host),
        "CPU": ", ".join(filter(None, [host["cpu"], host.get("cpu_family")])),
        "Cores, threads": f"{host['cpu_cores']}, {host['cpu_threads']}",
        "Usable threads": str(host.get("usable_threads") or host["cpu_threads"]),
        "CPU quota": quota,
        "CPU features": ", ".join(host.get("cpu_features") or []) or MISSING,
        "Host memory": _gib(host["memory_bytes"]),
        "System": host["os"],
        "Python": host["python"],
    }
    properties |= {f"Package {name}": version for name, version in sorted(host.get("packages", {}).items())}
    for framework, packages in sorted((host.get("elsewhere") or {}).items()):
        where = f"Python of {title_of(framework)}"
        properties[where] = packages.get("python") or MISSING
        properties |= {f"{where}: {name}": packages[name] for name in sorted(packages) if name != "python"}
    return {**properties, "Notes": "; ".join(host.get("notes") or []) or "none"}


def _study(shown: StudyRecords) -> dict[str, Any]:
    """Return the page's row for the records of a study: host, times, settings, code and files."""
    records, versions = shown.records, [record.versions for record in shown.records]
    of_torch = [record.versions for record in records if not is_keras(record.framework)]
    started = sorted(record.started_at for record in records)
    first, last = (moment[:16].replace("T", " ") for moment in (started[0], started[-1]))
    return {
        "study": shown.study.id,
        "host": shown.host_id,
        "scale": shown.scale,
        "runs": len(shown.passes()),
        "records": len(records),
        "measured": f"{' to '.join(dict.fromkeys([first, last]))} UTC",
        "commit": _each(version.get("commit", "unknown") for version in versions),
        "without_commit": [record.study for record in shown.without_clean_commit].count(shown.study.id),
        "code": _each(version.get("source", "unknown") for version in versions),
        "protocol": _each(str(record.protocol) for record in records),
        "PyTorch": _each(version.get("torch_build", "unknown") for version in of_torch),
        "CUDA": _each(version.get("cuda", "unknown") for version in of_torch),
        "cuDNN": _each(version.get("cudnn", "unknown") for version in of_torch),
        "other frameworks": "; ".join(sorted({_keras(record) for record in records if is_keras(record.framework)})),
        "file": shown.file(),
        "series": f"{shown.profile.name}/telemetry/{shown.host_id}/{shown.study.id}.parquet",
    }


def _each(texts: Iterable[str]) -> str:
    """Return the different texts, joined; `unknown` without any."""
    return ", ".join(sorted(set(texts))) or "unknown"


def _keras(record: Record) -> str:
    """Return the Keras framework of a record as text: its version, and its CUDA and cuDNN."""
    libraries = [f"{LIBRARIES[name]} {record.versions[name]}" for name in ("cuda", "cudnn") if name in record.versions]
    return f"{title_of(record.framework)}: {', '.join([record.framework_version or 'not installed', *libraries])}"


def _gib(size: float | None) -> str:
    return f"{number(size / 2**30)} GiB" if size else MISSING
