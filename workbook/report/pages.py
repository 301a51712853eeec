"""Write the study pages and the index of a report from its profile, hosts, records, runs and scraps.

`run.json` keeps how each study of a report ended, and its command. It is written after every study.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from pydantic import TypeAdapter

from labkit import __version__
from labkit.errors import LabkitError
from labkit.files import replacing
from workbook.claims import Evidence, headline
from workbook.claims.papers import committed
from workbook.claims.reports import evidence, papers, verdicts
from workbook.hardware.environment import settings_of
from workbook.hardware.host import Host
from workbook.hardware.profile import Profile, load_profile, profile_names
from workbook.records import PROTOCOL, utc_now
from workbook.records.selection import host_to_show
from workbook.records.store import Store
from workbook.registry import OF_ALL, STUDIES, YOUR_NETWORK
from workbook.report import scraps
from workbook.report.claims_pages import write_claims, write_papers
from workbook.report.compare import is_comparable
from workbook.report.documents import DOCUMENTS, OWN_NETWORK, documents, title_and_text
from workbook.report.exchange import FILES, groups_of, write_exchange
from workbook.report.fingerprint import LIBRARIES, write_fingerprint
from workbook.report.glossary import PAGE, glossary
from workbook.report.headlines import read_findings
from workbook.report.html import render_notebook, write_template
from workbook.report.then_and_now import where_told
from workbook.results import Results, records_of_host, study_records
from workbook.results.study_records import StudyRecords


@dataclass(frozen=True)
class StudyRun:
    """How the latest run of one study ended."""

    status: str  # "ok" or "failed"
    reason: str | None
    duration_s: float
    command: str
    mode: str
    scale: str
    host: str
    commit: str | None
    finished_at: str


@dataclass(frozen=True)
class StudyRow:
    """A study on the index. `reason` says what it lacks, and `command` mends that; `page` is a relative link."""

    question: str
    status: Literal["ok", "waiting", "failed", "not rendered", "not measured"]
    reason: str = ""
    command: str = ""
    page: str = ""
    answer: str = ""
    number: str = ""


def read_runs(report: Path) -> dict[str, StudyRun]:
    """Return the latest run by study id; {} without a file, or for a damaged file or one of an older version."""
    try:
        values = json.loads((report / "run.json").read_text(encoding="utf-8"))
        return TypeAdapter(dict[str, StudyRun]).validate_python(values["studies"])
    except (OSError, ValueError, TypeError, KeyError):
        return {}


def write_run(report: Path, study: str, run: StudyRun) -> None:
    """Add or replace one study's entry in `run.json`."""
    runs = {**read_runs(report), study: run}
    text = json.dumps({"studies": {name: asdict(runs[name]) for name in sorted(runs)}}, indent=1, ensure_ascii=False)
    with replacing(report / "run.json") as new:
        new.write_text(text + "\n", encoding="utf-8")


def write_page(report: Path, study: str, profile: Profile, run: StudyRun, beside: Collection[str] = ()) -> None:
    """Render a study's executed notebook, if it exists, with a strip of the provenance of its numbers.

    The page links to the studies before and after it, of those that have pages or are made with it (`beside`).

    Raise LabkitError if the notebook held fewer records than the report's folder has for it, as with another folder.
    """
    notebook = report / f"{study}.ipynb"
    if not notebook.is_file():
        return
    _check_shown(notebook, report, study, profile, run)
    shown = study_records(profile, STUDIES[study], store=Store(report), here=run.host)
    days = {record.started_at[:10] for record in shown.records}
    commits = sorted({record.versions.get("commit", "unknown") for record in shown.records})
    versions = max(shown.records, key=lambda record: record.started_at).versions if shown else {}
    software = [f"{title} {versions[name]}" for name, title in LIBRARIES.items() if name in versions]
    variables = settings_of(record.environment for record in shown.records)
    strip = {
        "Profile": profile.title,
        "Machine": f"{shown.host_id} ({shown.device_name})" if shown.host_id else "none: no records",
        "Software": ", ".join([f"driver {shown.host.get('driver') or 'none'}", *software]) if shown else "no records",
        **({"Environment variables": variables} if variables else {}),
        "Scale": shown.scale if shown else "no records",
        "Measured": ", ".join(filter(None, [max(days, default="–"), shown.how_measured])),
        "By commit": ", ".join(commits) or "–",
        "Rendered": f"{run.finished_at[:10]}, commit {run.commit or 'unknown'}",
        "Reproduce": run.command,
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
        records=f"../{shown.file()}" if shown else "",
        shown=f"the records of machine {shown.host_id}, {shown.file()}" if shown else "no records",
        around=_around(report, study, beside),
        named={STUDIES[name].title: f"{name}.html" for name in _on_site(report, {study, *beside})},
    )


def _around(report: Path, study: str, beside: Collection[str]) -> list[tuple[str, str]]:
    """Return links to the studies before and after a study on the site."""
    names = _on_site(report, {study, *beside})
    place = names.index(study)
    links = [(f"{name}.html", f"Previous: {STUDIES[name].title}") for name in names[max(0, place - 1) : place]]
    return links + [(f"{name}.html", f"Next: {STUDIES[name].title}") for name in names[place + 1 : place + 2]]


def _on_site(report: Path, beside: Collection[str]) -> list[str]:
    return [name for name in STUDIES if name not in OF_ALL and (name in beside or (report / f"{name}.html").is_file())]


def _check_shown(notebook: Path, report: Path, study: str, profile: Profile, run: StudyRun) -> None:
    shown = scraps.read(notebook).get("shown")
    if run.status == "failed" or not shown:
        return
    store = Store(report)
    host = shown["host"] if shown["host"] in store.hosts(study) else host_to_show(store, study, run.host)
    asked = (run.scale, shown["passes"])
    own = records_of_host(profile, STUDIES[study], store=store, host_id=host, asked=asked).records if host else []
    if shown["records"] < len(own):
        raise LabkitError(
            f"its notebook read {shown['records']} of the {len(own)} records in {report}. Does a cell, or a "
            f"start-up file of Python, set LABKIT_REPORTS? If another report measures now, render after it."
        )


LINKS = [
    ("index.html#papers", "Papers"),
    ("claims.html", "Claims"),
    ("fingerprint.html", "Machines and software"),
    (PAGE, "Glossary"),
    *documents(),
]


class Shown(NamedTuple):
    """What a site shows of a profile: the evidence, and the results of the profile's studies."""

    seen: Evidence
    results: Results


def shown_of(profile: Profile, host: Host) -> Shown:
    """Return what the current records show."""
    seen = evidence(profile.name, host.id)
    selected = [records for study in STUDIES if (records := seen.results(profile.name, study))]
    results = Results(
        selected,
        lambda: [other for shown in selected for other in seen.others(profile.name, shown.study.id) if other],
    )
    return Shown(seen, results)


def write_site(
    report: Path,
    profile: Profile,
    host: Host,
    waiting: Mapping[str, float] = MappingProxyType({}),
    shown: Shown | None = None,
    sites: Collection[str] = (),
    *,
    judges: bool = True,
) -> None:
    """Write the index, the claims, the fingerprint and the files for other programs from the current records.

    `waiting` maps the studies that this report has yet to measure, in their order, to the expected seconds of each.
    `shown` is what `shown_of` has returned for the same records. `sites` are profiles whose sites are made too. Unless
    it `judges`, claims and files for other programs stay as they are.
    """
    runs = read_runs(report)
    seen, results = shown or shown_of(profile, host)
    if judges:
        findings, title = verdicts(seen), _in_sentence(profile.title)
        write_exchange(report, results, findings)
        links = [LINKS[0], *LINKS[2:]]
        write_claims(report / "claims.html", findings, title=title, links=links, days=committed())
        write_papers(report, findings, title=profile.title, links=LINKS)
    newest = max(runs.values(), key=lambda run: run.finished_at, default=None)
    command = newest.command if newest else f"make render HW={profile.name}"
    rendered = {
        "Written": utc_now(),
        "By": f"labkit {__version__}, commit {host.commit or 'unknown'}, code {host.source}",
        "On": host.summary(),
        "Reproduce": command,
    }
    write_fingerprint(report / "fingerprint.html", profile, results, rendered=rendered, links=[*LINKS[:2], *LINKS[3:]])
    beside = {page: [link for link in LINKS if link[0] != page] for page in (PAGE, *DOCUMENTS)}
    write_template(report / PAGE, "glossary.html.j2", title=profile.title, links=beside[PAGE], words=glossary())
    for page, (_, name) in DOCUMENTS.items():
        heading, text = title_and_text(page)
        about: dict[str, Any] = {"title": profile.title, "links": beside[page], "name": name}
        write_template(report / page, "document.html.j2", heading=heading, text=text, **about)
    write_template(
        report / "index.html",
        "site.html.j2",
        on=_in_sentence(profile.title),
        setup=_setup(results.selected) if results.selected else None,
        device=profile.title,
        devices=_devices(report, sites),
        findings=read_findings(report.parent),
        verdicts=headline(groups_of(report, [paper.id for paper in papers() if not paper.later])),
        papers=[paper for paper in papers() if paper.claims],
        told=where_told(report),
        studies=[
            _study_row(study, report, seen, runs.get(study), waiting, runnable=profile.runnable) for study in STUDIES
        ],
        links=LINKS,
        downloads=FILES,
        reason="" if profile.runnable else profile.reason,
        version=__version__,
        commit=host.commit or "",
        generated=utc_now(),
        command=command,
    )


def _setup(shown: Sequence[StudyRecords]) -> dict[str, Any]:
    """Return the device, framework, days, runs and machines of the records, and what some of them lack."""
    records = [record for results in shown for record in results.records]
    days = sorted({record.started_at[:10] for record in records})
    counts = [len(passes) for results in shown for passes in results.by_trial.values()]
    return {
        "device": shown[0].device_name,
        "torch": sorted({record.versions["torch"] for record in records if "torch" in record.versions}),
        "days": list(dict.fromkeys([days[0], days[-1]])),
        "runs": list(dict.fromkeys([min(counts), max(counts)])),
        "machines": len({results.host_id for results in shown}),
        "exceptions": _exceptions(shown),
    }


def _exceptions(shown: Sequence[StudyRecords]) -> list[str]:
    """Return what records lack, with the number of studies that it concerns."""
    older = Counter(results.protocol for results in shown if results.protocol < PROTOCOL)
    counts = {f"by the older protocol {protocol}": count for protocol, count in sorted(older.items())}
    counts["with fewer rounds than planned so far"] = sum(
        complete < planned for complete, planned in (results.rounds for results in shown)
    )
    counts["at small sizes"] = sum(results.is_small for results in shown)
    return [
        f"{'all' if count == len(shown) > 1 else count} stud{'y' if count == 1 else 'ies'} {text}"
        for text, count in counts.items()
        if count
    ]


def _in_sentence(title: str) -> str:
    """Return a profile's title with a small letter where it begins with an article."""
    return f"the {title.removeprefix('The ')}" if title.startswith("The ") else title


def _devices(report: Path, sites: Collection[str]) -> list[tuple[str, str]]:
    """Return (address, title) of the indexes of other profiles and of the comparison."""
    found = {page.parent.name for page in report.parent.glob("*/index.html")}
    folders = sorted({*found, *sites} - {report.name})
    titles = {name: load_profile(name).title for name in folders if name in profile_names()}
    of_all = [
        (f"../comparison/{page}", word) for page, word in zip(OF_ALL.values(), ("compare", "choose"), strict=True)
    ]
    compared = [link for link in of_all if (report / link[0]).is_file()]
    return [*((f"../{name}/index.html", title) for name, title in titles.items()), *compared]


def _until(study: str, waiting: Mapping[str, float]) -> str:
    """Return when a running report should have measured a waiting study. It stays true if the report is interrupted."""
    place = list(waiting).index(study) + 1
    ready = datetime.now(UTC) + timedelta(seconds=sum(list(waiting.values())[:place]))
    return f"{ready:%H:%M} UTC on {ready:%d %B}"


def _study_row(
    study: str,
    report: Path,
    seen: Evidence,
    run: StudyRun | None,
    waiting: Mapping[str, float],
    *,
    runnable: bool = True,
) -> StudyRow:
    question = STUDIES[study].question
    if study in OF_ALL:
        if (report.parent / "comparison" / OF_ALL[study]).is_file():
            notebook = report.parent / "comparison" / f"{study}.ipynb"
            return _answered(question, notebook, f"../comparison/{OF_ALL[study]}")
        if not is_comparable():
            return StudyRow(question, "not measured", "Only one device file has records here.")
        return StudyRow(question, "not rendered", "", "make compare")
    page = f"{study}.html" if (report / f"{study}.html").is_file() else ""
    again = f"HW={report.name} STUDY={STUDIES[study].name}"
    measured = seen.results(report.name, study)
    is_small = measured.is_small and run is not None and run.status == "ok" and page
    if study in waiting and not is_small:
        reason = f"Expected at about {_until(study, waiting)}. If that has passed, repeat the report's command."
        return StudyRow(question, "waiting", reason)
    if unreadable := seen.unreadable.get((report.name, study)):
        return StudyRow(question, "failed", unreadable, page=page)
    if run and run.status == "failed":
        return StudyRow(question, "failed", run.reason or "The reason is unknown.", run.command, page)
    if not measured:
        asked = " NETWORK=mine.py" if study == YOUR_NETWORK else ""
        page = page or (OWN_NETWORK if study == YOUR_NETWORK else "")
        return StudyRow(question, "not measured", "", f"make report {again}{asked}" if runnable else "", page)
    if not run or not page:
        return StudyRow(question, "not rendered", "It has records.", f"make render {again}")
    row = _answered(question, report / f"{study}.ipynb", page)
    if not is_small or row.status != "ok":
        return row
    if study not in waiting:
        return replace(row, reason="Small sizes, one run.", command=f"make report {again}")
    return replace(row, reason=f"Small sizes, one run; this report replaces it until about {_until(study, waiting)}.")


def _answered(question: str, notebook: Path, page: str) -> StudyRow:
    """Return the row of a study that has a page, with the answer that its notebook published."""
    try:
        published = scraps.read(notebook)
    except Exception as error:  # noqa: BLE001 - any error of nbformat; the other answers stand
        return StudyRow(question, "failed", f"Its notebook can't be read back: {error}", page=page)
    answer = str(published.get("short") or str(published.get("headline") or "").split("\n\n")[0])
    return StudyRow(question, "ok", page=page, answer=answer, number=str(published.get("number") or ""))
