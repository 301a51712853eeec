"""`then_and_now.html`: what became of each paper, as a paragraph and a figure of its GPUs beside today's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from markupsafe import Markup

from workbook.claims import Case, Findings
from workbook.claims.evidence import FEWEST_RUNS, select
from workbook.claims.papers import Paper
from workbook.claims.schema import Group, Test, Value
from workbook.claims.stories import StoryFigure
from workbook.claims.words import choice_words
from workbook.hardware.profile import load_profile
from workbook.registry import METRICS
from workbook.report.html import write_template
from workbook.results import as_in_report
from workbook.show import Figure, plots
from workbook.studies.values import told_span
from workbook.words import NAN, NOT_MEASURED, heading, label, phrase

PAGE = "then_and_now.html"
HERE = "here"


class Dot(NamedTuple):
    """A value (SI) of a device in a paper's figure, with its interval if it was measured here."""

    device: str
    network: str
    source: str
    value: float
    low: float = NAN
    high: float = NAN


class Told(NamedTuple):
    """A paper with its paragraph, figure and verdicts in a sentence; `changed` are outcomes unlike the stated ones."""

    paper: Paper
    paragraph: str
    figure: Markup
    sentence: str
    changed: list[tuple[str, Group]]


def write_then_and_now(folder: Path, findings: Findings, *, links: Sequence[tuple[str, str]]) -> None:
    """Write the page of all papers with a story from the verdicts of all devices; `links` are (address, text)."""
    with as_in_report():
        told = [_told(of_paper) for of_paper in findings.by_paper() if of_paper.findings[0].paper.story]
    write_template(folder / PAGE, "then_and_now.html.j2", told=told, links=links)


def where_told(folder: Path) -> str:
    """Return the address of the page from a site in `folder`; empty if it does not exist."""
    return f"../comparison/{PAGE}" if (folder.parent / "comparison" / PAGE).is_file() else ""


def paragraph(paper: Paper) -> str:
    """Return a paper's story with its printed values; empty for a source without a story."""
    if not paper.story:
        return ""
    text = " ".join(sentence.text for sentence in paper.story.sentences)
    return text.format(then=_span(_printed(paper), paper.figure_test))


def _told(findings: Findings) -> Told:
    paper = findings.findings[0].paper
    assert paper.story
    groups = {finding.claim.id: finding.group for finding in findings.findings}
    changed = [(claim, groups[claim]) for claim, group in paper.story.outcomes.items() if groups[claim] != group]
    tests = [judged for finding in findings.findings for judged in finding.tests]
    cases = [case for judged in tests if judged.test is paper.figure_test for case in judged.cases]
    page = _drawn(paper, paper.story.figure, cases)._repr_mimebundle_()["text/html"]
    return Told(paper, paragraph(paper), Markup(page), findings.sentence(), changed)  # noqa: S704 - figures escape


def _drawn(paper: Paper, about: StoryFigure, cases: Sequence[Case]) -> Figure:
    """Draw the printed values, and below them those of devices of the same kind."""
    test, printed = paper.figure_test, _printed(paper)
    here, metric = _measured(test, about.select, cases), "speedup" if test.shape == "ratio" else test.metric
    named = _measured(test, {**about.select, **about.title_of}, cases)
    return plots.dots(
        pd.DataFrame([*printed, *here]),
        y=["device", "network"],
        x=metric,
        hue="source",
        pair=False,
        title=about.title.format(now=_span(named, test)) if named else f"{heading(metric)}: {NOT_MEASURED}",
        caption=about.caption,
        name=f"then-and-now-{paper.id}",
    )


def _printed(paper: Paper) -> list[Dot]:
    """Return the printed values of the figure's test, one per device and end of a range."""
    return [
        Dot(load_profile(name).title, choice_words(one.select), f"{paper.name} paper", value)
        for one in paper.figure_test.published
        for name in one.hardware
        for value in one.ends
    ]


def _measured(test: Test, chosen: dict[str, Value | list[Value]], cases: Sequence[Case]) -> list[Dot]:
    """Return the selected effects, by default those that a printed value is about, of devices of the same kind."""
    kinds = {load_profile(name).device.kind for one in test.published for name in one.hardware}
    dots = []
    for case in cases:
        side, effect = case.sides[0], case.effect
        is_about = case.published or "model" in chosen
        if effect and is_about and select([side], chosen) and side.results.profile.device.kind in kinds:
            few = f", {case.n} run{'s' if case.n > 1 else ''}" if case.n < FEWEST_RUNS else ""
            network = f"{label('model', side.trial.model)}, {phrase('batch', side.trial.batch)}{few}"
            low, high = (NAN if end is None else end for end in (effect.low, effect.high))
            dots.append(Dot(side.results.profile.title, network, HERE, effect.point, low, high))
    return dots


def _span(dots: Sequence[Dot], test: Test) -> str:
    """Return the lowest and the highest value in the test's unit, with "about" where an interval is wide or missing."""
    of = METRICS[test.metric]
    unit, scale = ("times", 1.0) if test.shape == "ratio" else (of.unit, of.scale)
    values = pd.DataFrame(dots)
    return told_span(values if HERE in set(values["source"]) else values[["value"]], unit, scale)
