"""What stands on the pages: gathers profile, host, records, runs and scraps for the study pages and the index."""

from __future__ import annotations

from pathlib import Path

from labkit import __version__
from labkit.analysis.format import MISSING, number, quantity
from labkit.analysis.results import measured_gpus
from labkit.analysis.rooflines import nominal_roofline
from labkit.analysis.summary import published_tables
from labkit.errors import LabkitError
from labkit.host import Host, read_host
from labkit.papers import load_papers
from labkit.profile import Profile, Sourced
from labkit.records import Store, utc_now
from labkit.registry import STUDIES
from labkit.report import scraps
from labkit.report.html import render_notebook
from labkit.report.plan import notebook_of
from labkit.report.site import Published, Site, StudyRow, write_index
from labkit.report.status import StudyRun, read_runs
from labkit.selection import at_scale, host_to_show, scale_to_show


def write_page(report: Path, study: str, profile: Profile, run: StudyRun) -> None:
    """Render a study's executed notebook, with the strip that says whose numbers these are."""
    notebook = report / f"{study}.ipynb"
    if not notebook.is_file():
        return
    store = Store(report)
    shown = host_to_show(store, study, run.host)
    records = store.read(study, shown) if shown else []
    scale = scale_to_show(records)
    shown_records = at_scale(records, scale) if scale else []
    commits = sorted({record.versions.get("commit", "unknown") for record in shown_records})
    strip = {
        "Profile": profile.title,
        "Host": _host_line(report, profile, shown),
        "Scale": scale or "no records",
        "Measured": max((record.started_at[:10] for record in shown_records), default=MISSING),
        "By commit": ", ".join(commits) or MISSING,
        "Rendered": f"{run.finished_at[:10]}, commit {run.commit or 'unknown'}",
        "Again": run.command,
    }
    title = f"{STUDIES[study].title} — {profile.title}"
    render_notebook(notebook, report / f"{study}.html", title=title, strip=strip, links=[("index.html", "Report")])


def write_site(report: Path, profile: Profile, host: Host) -> None:
    """Write `index.html` from what there is now."""
    runs = read_runs(report)
    store = Store(report)
    shown = next((found for study in STUDIES if (found := host_to_show(store, study, host.id))), None)
    roofline = nominal_roofline(profile)
    newest = max(runs.values(), key=lambda run: run.finished_at, default=None)
    site = Site(
        profile_name=profile.name,
        profile_title=profile.title,
        description=profile.description,
        runnable=profile.runnable,
        reason=profile.reason,
        hardware=hardware_rows(profile),
        published=[
            Published(title=title, headers=list(frame.columns), rows=frame.astype(str).values.tolist(), where=where)
            for study in STUDIES
            for title, frame, where in published_tables(load_papers(), study, device=profile.name)
        ],
        host=_host_rows(report, profile, shown) if shown else [],
        headline=[(STUDIES[study].title, text) for study in runs if (text := _headline(report, study))],
        studies=[_study_row(study, report, store, host, runs.get(study)) for study in STUDIES],
        roofline=roofline._repr_mimebundle_()["text/html"] if roofline else None,
        version=__version__,
        commit=host.commit or MISSING,
        generated=utc_now(),
        command=newest.command if newest else f"make render HW={profile.name}",
    )
    write_index(report / "index.html", site)


def hardware_rows(profile: Profile) -> list[tuple[str, str, str]]:
    """What the profile says of the hardware, each number with its source."""
    device, peaks = profile.device, profile.peaks
    kind = "CPU" if device.kind == "cpu" else "GPU"
    rows = [("Devices", f"{device.count} {kind}{'s' if device.count > 1 else ''}", "")]
    if device.compute_capability:
        capability = f"{device.compute_capability} ({device.architecture})" if device.architecture else None
        rows.append(("Compute capability", capability or device.compute_capability, ""))

    def add(label: str, sourced: Sourced | None, shown: str) -> None:
        if sourced:
            rows.append((label, shown, sourced.source))

    def si(sourced: Sourced | None) -> float:
        return sourced.value if sourced else 0.0

    add("Memory", device.memory_bytes, f"{number(si(device.memory_bytes) / 2**30)} GiB")
    add("Multiprocessors", device.multiprocessors, f"{si(device.multiprocessors):.0f}")
    add("Board power limit", device.board_power_w, f"{number(si(device.board_power_w))} W")
    add("Memory bandwidth", peaks.memory_bytes_per_s, quantity(si(peaks.memory_bytes_per_s), "bytes_per_s"))
    for precision, peak in peaks.flop_per_s.items():
        add(f"Peak {precision.upper()}", peak, quantity(peak.value, "flop_per_s"))
    return rows


def _host_line(report: Path, profile: Profile, host_id: str | None) -> str:
    if host_id is None:
        return "none: no records"
    host = read_host(report, host_id)
    gpus = measured_gpus(profile, host)
    device = f"{len(gpus)} x {gpus[0]}" if gpus else host["cpu"]
    return f"{host_id} ({device})"


def _host_rows(report: Path, profile: Profile, host_id: str) -> list[tuple[str, str]]:
    host = read_host(report, host_id)
    gpus = measured_gpus(profile, host)
    rows = [("Host", host_id)]
    if gpus:
        rows.append(("GPUs", f"{len(gpus)} x {gpus[0]}"))
        rows.append(("Driver", host.get("driver") or MISSING))
    cores = f"{host['cpu']}, {host['cpu_cores']} cores"
    rows += [("CPU", cores), ("Memory", f"{number(host['memory_bytes'] / 2**30)} GiB"), ("System", host["os"])]
    packages = host.get("packages", {})
    named = [f"{name} {packages[name]}" for name in ("torch", "tensorflow", "jax", "numpy") if name in packages]
    return [*rows, ("Software", f"Python {host['python']}, {', '.join(named)}")]


def _headline(report: Path, study: str) -> str | None:
    notebook = report / f"{study}.ipynb"
    if not notebook.is_file():
        return None
    try:
        text = scraps.read(notebook).get("headline")
    except (ValueError, KeyError, OSError) as error:
        raise LabkitError(f"{notebook} can't be read back: {error}") from error
    return str(text) if text else None


def _study_row(study: str, report: Path, store: Store, host: Host, run: StudyRun | None) -> StudyRow:
    about = STUDIES[study]
    page = f"{study}.html" if (report / f"{study}.html").is_file() else None
    shown = host_to_show(store, study, host.id)
    scale = scale_to_show(store.read(study, shown)) if shown else None
    status, reason = "not measured", "not measured on this profile yet"
    if not notebook_of(study).is_file():
        status, reason = "not in this version", "this version of the workbook has no notebook for it"
    elif run and run.status == "failed":
        status, reason = "failed", run.reason or "unknown"
    elif run and scale:
        status, reason = "ok", ""
    return StudyRow(
        id=study,
        title=about.title,
        question=about.question,
        status=status,  # type: ignore[arg-type]
        reason=reason,
        page=page,
        duration_s=run.duration_s if run else None,
        scale=scale,
        command=run.command if run else "",
    )
