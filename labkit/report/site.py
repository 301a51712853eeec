"""The index of a report: what was found, question by question and paper by paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from markupsafe import Markup

from labkit.report.html import write_template
from labkit.show import Figure

Status = Literal["ok", "failed", "not rendered", "not measured", "not in this version"]


@dataclass(frozen=True)
class StudyRow:
    """A study in a line. `reason` says why it is not ok, `command` what mends that; `page` is relative to the index."""

    question: str
    status: Status
    reason: str = ""
    command: str = ""
    page: str | None = None
    answer: str = ""
    number: str = ""


@dataclass(frozen=True)
class PaperRow:
    """A paper with the number of its claims by verdict."""

    title: str
    name: str
    counts: Sequence[tuple[str, int]]


@dataclass(frozen=True)
class Site:
    """What the index of a profile says. All of it is text and gets escaped; figures are ready HTML."""

    title: str
    setup: str
    device: str
    devices: Sequence[tuple[str, str]]  # (address, name) of other profiles with a report
    figures: Sequence[Figure]
    verdicts: str
    papers: Sequence[PaperRow]
    studies: Sequence[StudyRow]
    links: Sequence[tuple[str, str]]
    downloads: Sequence[tuple[str, str]]  # (address, what it holds)
    reason: str  # why the profile cannot be measured; empty where it can
    version: str
    commit: str
    generated: str
    command: str


def write_index(page: Path, site: Site) -> None:
    """Write the index whole or not at all. LabkitError when it would load a URL from outside itself."""
    figures = [Markup(figure._repr_mimebundle_()["text/html"]) for figure in site.figures]  # noqa: S704 - they escape
    write_template(page, "site.html.j2", site=site, figures=figures)
