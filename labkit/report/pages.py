"""What stands on the pages: gathers profile, host, records, runs and scraps for the study pages and the index."""

from __future__ import annotations

from pathlib import Path

from labkit import __version__
from labkit.analysis import between_hosts, printed
from labkit.analysis.engines import conditions
from labkit.analysis.format import MISSING, listing
from labkit.analysis.rooflines import nominal_roofline
from labkit.analysis.verdicts import MARKS, Findings, judge_all
from labkit.errors import LabkitError
from labkit.host import Host, read_host
from labkit.papers import load_papers
from labkit.profile import Profile
from labkit.record_store import Store
from labkit.records import utc_now
from labkit.registry import COMPARISON, STUDIES
from labkit.report import scraps
from labkit.report.claims_page import write_claims
from labkit.report.exchange import FILES, write_exchange
from labkit.report.fingerprint import write_fingerprint
from labkit.report.html import render_notebook
from labkit.report.machine import device_name, hardware_rows, host_rows
from labkit.report.site import Headline, Published, Site, StudyRow, write_index
from labkit.report.status import StudyRun, read_runs
from labkit.results.study_records import StudyRecords as Results
from labkit.selection import at_scale, host_to_show, scale_to_show
from labkit.shown import evidence, notebook_of
from labkit.trial import OF_NETWORKS


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
        "Host": f"{shown} ({device_name(profile, read_host(report, shown))})" if shown else "none: no records",
        "Scale": scale or "no records",
        "Measured": max((record.started_at[:10] for record in shown_records), default=MISSING),
        "By commit": ", ".join(commits) or MISSING,
        "Rendered": f"{run.finished_at[:10]}, commit {run.commit or 'unknown'}",
        "Again": run.command,
    }
    title = f"{STUDIES[study].title} — {profile.title}"
    render_notebook(
        notebook,
        report / f"{study}.html",
        title=title,
        device=profile.title,
        profile=profile.name,
        strip=strip,
        links=[("index.html", "Results"), *LINKS],
    )


LINKS = [("claims.html", "Published claims"), ("fingerprint.html", "Fingerprint")]


def write_site(report: Path, profile: Profile, host: Host) -> None:
    """Write the index, the claims, the fingerprint and the files for other programs from what there is now."""
    runs = read_runs(report)
    store = Store(report)
    seen = evidence(profile.name, host.id)
    shown = [results for study in STUDIES if (results := seen.results(profile.name, study))]
    papers = load_papers()
    findings = Findings(judge_all(papers, seen))
    newest = max(runs.values(), key=lambda run: run.finished_at, default=None)
    command = newest.command if newest else f"make render HW={profile.name}"
    write_exchange(report, shown, findings)
    write_claims(report / "claims.html", findings, title=profile.title, links=LINKS[1:])
    rendered = {
        "Written": utc_now(),
        "By": f"labkit {__version__}, commit {host.commit or 'unknown'}, code {host.source}",
        "On": host.summary(),
        "Again": command,
    }
    write_fingerprint(report / "fingerprint.html", profile, shown, rendered=rendered, links=LINKS[:1])
    roofline = nominal_roofline(profile)
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
            for title, frame, where in printed.tables(papers, study, device=profile.name)
        ],
        host=_hosts(profile, shown),
        between_hosts=between_hosts.sentence(shown),
        headline=[
            found
            for study in runs
            if study in STUDIES
            and (found := _headline(report, study, next((one for one in shown if one.study.id == study), None)))
        ],
        verdicts=findings.sentence(),
        counts=[(MARKS[verdict], verdict, count) for verdict, count in findings.counts().items()],
        judged=[
            (one.claim.id, one.claim.statement, MARKS[one.verdict], one.verdict, one.scope) for one in findings.tested()
        ],
        studies=[_study_row(study, report, store, host, runs.get(study)) for study in STUDIES],
        roofline=roofline._repr_mimebundle_()["text/html"] if roofline else None,
        links=_links(report),
        downloads=list(FILES.items()),
        version=__version__,
        commit=host.commit or MISSING,
        generated=utc_now(),
        command=command,
    )
    write_index(report / "index.html", site)


def _hosts(profile: Profile, shown: list[Results]) -> list[tuple[str, str]]:
    """The first host in a few lines, and which studies are of others."""
    if not shown:
        return []
    others = other_hosts(shown)
    return [*host_rows(profile, shown[0].host), *([("Other hosts", listing(others))] if others else [])]


def other_hosts(shown: list[Results]) -> list[str]:
    """Which studies are of other hosts than the first one's, with the device where that is another too."""
    first = shown[0]
    return [
        f"{one.study.id} on {one.host_id}" + (f" ({one.device_name})" if one.device_name != first.device_name else "")
        for one in shown
        if one.host_id != first.host_id
    ]


def _links(report: Path) -> list[tuple[str, str]]:
    """The other pages of the site; the comparison when there is one."""
    comparison = report.parent / "comparison" / "index.html"
    return [*LINKS, *([("../comparison/index.html", "Comparison")] if comparison.is_file() else [])]


def _headline(report: Path, study: str, results: Results | None) -> Headline | None:
    notebook = report / f"{study}.ipynb"
    if not notebook.is_file():
        return None
    try:
        said = scraps.read(notebook)
    except Exception as error:  # noqa: BLE001 - whatever nbformat raises; the other studies' headlines stand
        return Headline(STUDIES[study].title, None, f"Its notebook can't be read back: {error}")
    if not said.get("headline"):
        return None
    page = f"{study}.html" if (report / f"{study}.html").is_file() else None
    trials = [trial for trial in results.by_trial if trial.workload in OF_NETWORKS] if results else []
    of = f"Of: {conditions(results, trials)}." if results and trials else ""
    return Headline(STUDIES[study].title, page, scraps.first_answer(said), said.get("key_numbers") or [], of)


def _study_row(study: str, report: Path, store: Store, host: Host, run: StudyRun | None) -> StudyRow:
    about = STUDIES[study]
    page = f"{study}.html" if (report / f"{study}.html").is_file() else None
    status, reason = "not measured", "not measured on this profile yet"
    scale, broken = None, ""
    try:
        shown = host_to_show(store, study, host.id)
        scale = scale_to_show(store.read(study, shown)) if shown else None
    except (LabkitError, OSError) as error:
        broken = str(error)
    if study == COMPARISON:
        compared = (report.parent / "comparison" / "index.html").is_file()
        page = "../comparison/index.html" if compared else None
        status, reason = ("ok", "") if compared else ("not measured", "made from the records of all profiles together")
    elif not notebook_of(study).is_file():
        status, reason = "not in this version", "this version of the workbook has no notebook for it"
    elif broken:
        status, reason = "failed", broken
    elif run and run.status == "failed":
        status, reason = "failed", run.reason or "unknown"
    elif run and scale:
        status, reason = "ok", ""
    elif scale:
        status, reason = "not rendered", f"it has records; `make render HW={report.name}` makes its page"
    return StudyRow(
        id=study,
        title=about.title,
        question=about.question,
        status=status,  # type: ignore[arg-type]
        reason=reason,
        page=page,
        duration_s=run.duration_s if run else None,
        scale=scale,
        command=run.command if run else "make compare" if study == COMPARISON else "",
    )
