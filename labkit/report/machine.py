"""What a report's pages say of the machines that were measured, and of how their records were made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labkit.hardware.frameworks import is_keras, title_of
from labkit.hardware.profile import Profile
from labkit.records import Record
from labkit.results.study_records import StudyRecords as Results
from labkit.results.study_records import measured_gpus
from labkit.show.quantities import MISSING, NAN, number, quantity


def device_name(profile: Profile, host: dict[str, Any]) -> str:
    """The devices of a host that a profile measures: `1 x NVIDIA H200`, or its CPU."""
    gpus = measured_gpus(profile, host)
    return f"{len(gpus)} x {gpus[0]}" if gpus else str(host.get("cpu", "unknown CPU"))


def fingerprint_rows(host: dict[str, Any]) -> list[tuple[str, str]]:
    """Everything that a host's file says, for the fingerprint page."""
    rows = [("Driver", host.get("driver") or "none")]
    for place, gpu in enumerate(host.get("gpus") or []):
        names = ("power_limit_w", "max_sm_clock_hz", "max_memory_clock_hz")
        limit, sm, memory = (gpu.get(name) or NAN for name in names)
        rows.append((f"GPU {place}", f"{gpu['name']}, identity hash {gpu.get('uuid_hash') or MISSING}"))
        rows += [
            (f"GPU {place} memory", _gib(gpu.get("memory_bytes"))),
            (f"GPU {place} compute capability", gpu.get("compute_capability") or MISSING),
            (f"GPU {place} enforced power limit", quantity(limit, "power_w")),
            (f"GPU {place} highest SM clock", quantity(sm, "sm_clock_hz", 4)),
            (f"GPU {place} highest memory clock", quantity(memory, "memory_clock_hz", 4)),
        ]
    rows += [
        ("CPU", str(host["cpu"])),
        ("Cores, threads", f"{host['cpu_cores']}, {host['cpu_threads']}"),
        ("CPU features", ", ".join(host.get("cpu_features") or []) or MISSING),
        ("Host memory", _gib(host["memory_bytes"])),
        ("System", host["os"]),
        ("Python", host["python"]),
    ]
    rows += [(f"Package {name}", version) for name, version in sorted(host.get("packages", {}).items())]
    for framework, packages in sorted((host.get("elsewhere") or {}).items()):
        where = f"Python of {title_of(framework)}"
        rows.append((where, packages.get("python") or MISSING))
        rows += [(f"{where}: {name}", version) for name, version in sorted(packages.items()) if name != "python"]
    rows += [("Notes", "; ".join(host.get("notes") or []) or "none")]
    return rows


def versions_rows(shown: Sequence[Results]) -> list[dict[str, str]]:
    """Of each study's records shown: host, scale, passes, when, by which commit, code and framework build."""
    rows = []
    for results in shown:
        versions = [record.versions for record in results.records]
        of_torch = [record.versions for record in results.records if not is_keras(record.framework)]
        started = sorted(record.started_at for record in results.records)

        def said(name: str, of: list[dict[str, str]] = versions) -> str:
            return ", ".join(sorted({one.get(name, "unknown") for one in of})) or "unknown"

        rows.append(
            {
                "study": results.study.id,
                "host": str(results.host_id),
                "scale": results.scale,
                "passes": str(len(results.passes())),
                "records": str(len(results.records)),
                "measured": f"{_moment(started[0])} to {_moment(started[-1])} UTC",
                "commit": said("commit"),
                "code": said("source"),
                "protocol": ", ".join(sorted({str(record.protocol) for record in results.records})),
                "torch": said("torch_build", of_torch),
                "CUDA": said("cuda", of_torch),
                "cuDNN": said("cudnn", of_torch),
                "keras": "; ".join(sorted({_keras(one) for one in results.records if is_keras(one.framework)})),
                "file": results.file(),
                "series": f"{results.profile.name}/telemetry/{results.host_id}/{results.study.id}.parquet",
            }
        )
    return rows


def _keras(record: Record) -> str:
    """A framework of Keras as it made this record: its packages, and CUDA and cuDNN as it has them."""
    names = {"cuda": "CUDA", "cudnn": "cuDNN"}
    found = [f"{names[name]} {record.versions[name]}" for name in names if name in record.versions]
    return f"{title_of(record.framework)}: {', '.join([record.framework_version or 'not installed', *found])}"


def _moment(text: str) -> str:
    """`2026-11-21 06:33` of an ISO time."""
    return text[:16].replace("T", " ")


def _gib(size: float | None) -> str:
    return f"{number(size / 2**30)} GiB" if size else MISSING
