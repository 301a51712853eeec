"""The artifact appendix of a report: the machines and records behind its verdicts, and how each is measured again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from labkit.errors import UserError
from labkit.files import replacing
from workbook.claims import Findings
from workbook.claims.reports import evidence, verdicts
from workbook.claims.rows import sources_of
from workbook.hardware.host import this_host
from workbook.hardware.profile import load_profile
from workbook.options import open_session
from workbook.records import Record
from workbook.registry import STUDIES
from workbook.report.fingerprint import properties_of_host
from workbook.report.plan import plan_studies
from workbook.results import reports_folder
from workbook.results.load import kept_records
from workbook.results.study_records import StudyRecords
from workbook.runner.progress import duration

_MACHINE = ("CPU", "Cores, threads", "Host memory", "Driver", "System", "Python")
Files = dict[str, tuple[StudyRecords, list[Record]]]  # path -> the records in a file that judge claims


@kept_records()
def write_appendix(hw: str) -> Path:
    """Write `reports/<hw>/appendix.md` from the records that judge the claims on a profile, and return its path."""
    if not hw:
        raise UserError("say which report the appendix is of, for example `make appendix HW=h200`.")
    profile = load_profile(hw)
    findings = verdicts(evidence(profile.name))
    files = _files(findings)
    parts = [
        f"# Artifact appendix: {profile.title}",
        "A verdict rests on the records of one or more machines, which are listed here first.",
        _table(["machine", "devices", *_MACHINE], _machines(files)),
        "Each file holds a record per configuration and run. Only records that judge a claim are counted here.",
        _table(["file", "`reports/`", "records", "days", "protocol", "PyTorch", "commit"], _rows_of_files(files)),
        "A command measures the studies of a claim by the present protocol, on a machine of its device file. The time "
        "is an estimate of the plan. A claim without records has no command, and `claims.html` gives the reason.",
        _table(["claim", "study", "verdict", "records", "files", "command", "time"], rows_of_claims(findings)),
    ]
    path = reports_folder() / profile.name / "appendix.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as new:
        new.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return path


def rows_of_claims(findings: Findings) -> list[list[str]]:
    """Return a row per claim: id, studies, verdict, its records with their files, the command and the plan's time."""
    numbers = {file: str(number) for number, file in enumerate(_files(findings), 1)}

    @cache
    def planned_s(hw: str, study: str) -> float:
        session = open_session(load_profile(hw), this_host(numbered=False), [study])
        return plan_studies([study], session=session, force=True)[0].seconds

    rows = []
    for of in findings.findings:
        lines = {(file, line) for case in of.cases for file, those in sources_of(case) for line in those}
        files = ", ".join(number for file, number in numbers.items() if file in {file for file, _ in lines})
        used = sorted({(results.profile.name, results.study.id) for case in of.cases for results, _ in case.sources})
        asked = {hw: _names(study for name, study in used if name == hw) for hw, _ in used}
        commands = "; ".join(f"`make report HW={hw} STUDY={studies}`" for hw, studies in asked.items())
        time = duration(sum(planned_s(*pair) for pair in used)) if used else ""
        rows.append([of.claim.id, _names(of.claim.studies), of.badge, str(len(lines)), files, commands, time])
    return [[cell or "–" for cell in row] for row in rows]


def _files(findings: Findings) -> Files:
    """Return the files of the records that judge claims."""
    sources = dict.fromkeys(source for of in findings.findings for case in of.cases for source in case.sources)
    files: Files = {}
    for results, trial in sources:
        for record in results.by_trial.get(trial, []):
            files.setdefault(results.file(record.study), (results, []))[1].append(record)
    return dict(sorted(files.items()))


def _machines(files: Files) -> list[list[str]]:
    hosts = {results.host_id: results for results, _ in files.values()}
    described = {str(host): (results.device_name, properties_of_host(results.host)) for host, results in hosts.items()}
    return [[host, device, *(of_host[name] for name in _MACHINE)] for host, (device, of_host) in described.items()]


def _rows_of_files(files: Files) -> list[list[str]]:
    rows = []
    for number, (file, (_, records)) in enumerate(files.items(), 1):
        facts = [(of.started_at[:10], str(of.protocol), *map(of.versions.get, ("torch", "commit"))) for of in records]
        distinct = [", ".join(sorted({*texts} - {None})) for texts in zip(*facts, strict=True)]
        rows.append([str(number), f"`{file}`", str(len(records)), *distinct])
    return rows


def _names(studies: Iterable[str]) -> str:
    return ",".join(STUDIES[study].name for study in studies)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
