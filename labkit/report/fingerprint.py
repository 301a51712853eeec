"""`fingerprint.html`: on which machines, with which software and code, the numbers of a report were made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from labkit.hardware.frameworks import is_keras, title_of
from labkit.hardware.profile import Profile
from labkit.records import Record
from labkit.report.html import write_template
from labkit.results import Results
from labkit.results.study_records import StudyRecords
from labkit.show.quantities import MISSING, NAN, number, quantity
from labkit.show.table import table_html
from labkit.studies import machines


def write_fingerprint(
    page: Path,
    profile: Profile,
    results: Results,
    *,
    rendered: dict[str, str],
    links: Sequence[tuple[str, str]],
) -> None:
    """Write the page whole or not at all. `rendered` says where, when and by what this page was made."""
    hosts: dict[str, dict[str, Any]] = {str(records.host_id): records.host for records in results.selected}
    properties = _side_by_side(list(hosts.values()))
    listed = machines.listed(results).drop(columns="device file")
    write_template(
        page,
        "fingerprint.html.j2",
        title=profile.title,
        links=links,
        studies=[(row, (page.parent.parent / row["series"]).is_file()) for row in map(_study, results.selected)],
        differing=[(name, values) for name, values in properties if len(set(values)) > 1],
        alike=[(name, values[0]) for name, values in properties if len(set(values)) == 1],
        hosts=list(hosts),
        machines=Markup(table_html(listed, name="Machines")),  # noqa: S704 - it escapes its cells
        rendered=rendered,
    )


def _side_by_side(hosts: list[dict[str, Any]]) -> list[tuple[str, list[str]]]:
    """(property, its value on each host)."""
    described = [_host(host) for host in hosts]
    names = list(dict.fromkeys(name for properties in described for name in properties))
    return [(name, [properties.get(name, MISSING) for properties in described]) for name in names]


def _host(host: dict[str, Any]) -> dict[str, str]:
    """Everything that a host's file says."""
    properties = {"Driver": host.get("driver") or "none"}
    for place, gpu in enumerate(host.get("gpus") or []):
        name = f"GPU {place}"
        properties |= {
            name: f"{gpu['name']}, identity hash {gpu.get('uuid_hash') or MISSING}",
            f"{name} memory": _gib(gpu.get("memory_bytes")),
            f"{name} compute capability": gpu.get("compute_capability") or MISSING,
            f"{name} enforced power limit": quantity(gpu.get("power_limit_w") or NAN, "power_w"),
            f"{name} highest SM clock": quantity(gpu.get("max_sm_clock_hz") or NAN, "sm_clock_hz", 4),
            f"{name} highest memory clock": quantity(gpu.get("max_memory_clock_hz") or NAN, "memory_clock_hz", 4),
        }
    properties |= {
        "CPU": str(host["cpu"]),
        "Cores, threads": f"{host['cpu_cores']}, {host['cpu_threads']}",
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
    """Of a study's records: host, scale, passes, when, by which commit, code and framework build."""
    records, versions = shown.records, [record.versions for record in shown.records]
    of_torch = [record.versions for record in records if not is_keras(record.framework)]
    started = sorted(record.started_at for record in records)
    moments = [moment[:16].replace("T", " ") for moment in (started[0], started[-1])]
    return {
        "study": shown.study.id,
        "host": shown.host_id,
        "scale": shown.scale,
        "passes": len(shown.passes()),
        "records": len(records),
        "measured": f"{' to '.join(moments)} UTC",
        "commit": _each(one.get("commit", "unknown") for one in versions),
        "code": _each(one.get("source", "unknown") for one in versions),
        "protocol": _each(str(record.protocol) for record in records),
        "torch": _each(one.get("torch_build", "unknown") for one in of_torch),
        "CUDA": _each(one.get("cuda", "unknown") for one in of_torch),
        "cuDNN": _each(one.get("cudnn", "unknown") for one in of_torch),
        "keras": "; ".join(sorted({_keras(record) for record in records if is_keras(record.framework)})),
        "file": shown.file(),
        "series": f"{shown.profile.name}/telemetry/{shown.host_id}/{shown.study.id}.parquet",
    }


def _each(texts: Iterable[str]) -> str:
    """The different texts; `unknown` without any."""
    return ", ".join(sorted(set(texts))) or "unknown"


def _keras(record: Record) -> str:
    """A framework of Keras as it made this record: its packages, and CUDA and cuDNN as it has them."""
    names = {"cuda": "CUDA", "cudnn": "cuDNN"}
    libraries = [f"{names[name]} {record.versions[name]}" for name in names if name in record.versions]
    return f"{title_of(record.framework)}: {', '.join([record.framework_version or 'not installed', *libraries])}"


def _gib(size: float | None) -> str:
    return f"{number(size / 2**30)} GiB" if size else MISSING
