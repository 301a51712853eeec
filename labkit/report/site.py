"""The index of a report: which machine this is, what came out, what failed or is missing and why, then the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from markupsafe import Markup

from labkit.report.html import write_template

Status = Literal["ok", "failed", "running", "not rendered", "not measured", "not in this version"]

# In the order in which a reader wants to know; "ok" needs no word of its own.
_GAPS: dict[Status, str] = {
    "failed": "Failed",
    "running": "Running now",
    "not rendered": "Measured, page not made yet",
    "not measured": "Not measured",
    "not in this version": "Not in this version",
}


@dataclass(frozen=True)
class StudyRow:
    """How one study stands. `reason` says why when it is not ok; `page` is relative to the index, None without one."""

    id: str
    title: str
    question: str
    status: Status
    reason: str | None = None
    page: str | None = None
    duration_s: float | None = None
    scale: str | None = None
    command: str | None = None  # the one that measures this study (again)


@dataclass(frozen=True)
class Published:
    """A small table of published numbers, as printed, and where in which paper they stand."""

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    where: str


@dataclass(frozen=True)
class Headline:
    """What a study found: its title, page, few numbers (value, what of) and sentences; `of` is what they are of."""

    title: str
    page: str | None
    text: str
    numbers: Sequence[Sequence[str]] = ()
    of: str = ""


@dataclass(frozen=True)
class Site:
    """What the index of one profile says. All of it is text and gets escaped, except `roofline`, a Figure's HTML."""

    profile_name: str
    profile_title: str
    description: str
    runnable: bool
    reason: str  # why the profile is not runnable
    version: str
    commit: str | None
    generated: str
    command: str
    studies: Sequence[StudyRow]
    host: Sequence[tuple[str, str]] = ()  # (label, value); empty when no host has records
    between_hosts: str = ""  # what the headlines' intervals say of other hosts
    headline: Sequence[Headline] = ()
    hardware: Sequence[tuple[str, str, str]] = ()  # (label, value, source)
    roofline: str | None = None
    published: Sequence[Published] = ()
    links: Sequence[tuple[str, str]] = ()  # (address, text) of other pages
    verdicts: str = ""  # one sentence on all claims
    counts: Sequence[tuple[str, str, int]] = ()  # (mark, verdict, how many claims)
    judged: Sequence[tuple[str, str, str, str, str]] = ()  # (id, statement, mark, verdict, scope) of those tested
    downloads: Sequence[tuple[str, str]] = ()  # (address, what it holds)


@dataclass(frozen=True)
class Gap:
    """Studies without a result for one common reason."""

    status: Status
    reason: str
    studies: list[StudyRow] = field(default_factory=list)

    @property
    def label(self) -> str:
        """The status as a heading."""
        return _GAPS[self.status]

    @property
    def command(self) -> str | None:
        """The command that runs them again, when one does it for all."""
        commands = {study.command for study in self.studies}
        return commands.pop() if len(commands) == 1 else None

    @property
    def css(self) -> str:
        """The status as a class name."""
        return self.status.replace(" ", "-")


def gaps(studies: Sequence[StudyRow]) -> list[Gap]:
    """The studies that are not ok, failed ones first; those of one status and reason together."""
    found: dict[tuple[Status, str], Gap] = {}
    for study in sorted((one for one in studies if one.status != "ok"), key=lambda one: list(_GAPS).index(one.status)):
        key = (study.status, study.reason or "No reason is recorded.")
        found.setdefault(key, Gap(*key)).studies.append(study)
    return list(found.values())


def tally(studies: Sequence[StudyRow]) -> str:
    """One sentence on all studies: `3 of 13 studies have results; 1 failed, 9 not measured.`"""
    counts = {status: sum(study.status == status for study in studies) for status in _GAPS}
    rest = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    done = len(studies) - sum(counts.values())
    return f"{done} of {len(studies)} studies have results{f'; {rest}' if rest else ''}."


def write_index(page: Path, site: Site) -> None:
    """Write the index whole or not at all. LabkitError when it would load a URL from outside itself."""
    write_template(
        page,
        "site.html.j2",
        site=site,
        gaps=gaps(site.studies),
        tally=tally(site.studies),
        roofline=Markup(site.roofline) if site.roofline else None,  # noqa: S704 - a Figure has escaped its texts
    )
