"""Judge claims by records: every test of a claim gives cases, each with an effect, its interval and a verdict.

A verdict comes from the interval, never from the point. An interval wholly on the supporting side of the bound is
`replicated`, wholly on the other side `not replicated`, and anything else `inconclusive`. A claim is replicated when
all its cases are. It is not replicated when a case contradicts it by more than chance among its cases allows (Holm
1979, Scandinavian Journal of Statistics 6:65-70).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from workbook.claims.evidence import FEWEST_RUNS, Evidence, Side, select
from workbook.claims.papers import Paper
from workbook.claims.schema import ACROSS, FASTEST, OTHERS, Claim, Test
from workbook.claims.scope import not_judged, scope
from workbook.claims.shapes import SHAPES
from workbook.claims.verdict import Case, Finding, Judged, Verdict
from workbook.claims.words import choice_words, device_titles, field_name
from workbook.registry import STUDIES
from workbook.words import listing


def judge(paper: Paper, claim: Claim, evidence: Evidence) -> Finding:
    """Judge one claim by the available records, once for the same evidence."""
    found = evidence.findings.get(claim.id)
    if found is None or (found.paper, found.claim) != (paper, claim):
        tests = tuple(_judge_test(claim, test, evidence) for test in claim.tests)
        found = Finding(paper, claim, *_together(tests), scope(paper, tests), tests, not_judged(claim.statement, tests))
        evidence.findings[claim.id] = found
    return found


def judge_all(papers: list[Paper], evidence: Evidence, study: str | None = None) -> list[Finding]:
    """Return the findings on every claim of every paper (or on those of one study), in the papers' order."""
    return [
        judge(paper, claim, evidence)
        for paper in papers
        for claim in paper.claims
        if study is None or study in claim.studies
    ]


def _together(tests: tuple[Judged, ...]) -> tuple[Verdict, str]:
    """Return the verdict on a claim from those of its cases, with the reason where the verdict does not suffice."""
    cases = [case for judged in tests for case in judged.deciding]
    against = [case for case in cases if case.verdict == "not replicated"]
    unclear = [case for case in cases if case.verdict == "inconclusive"]
    # Holm's first step: the clearest of the contradicting cases must be one among all cases too.
    verb = "contradicts" if len(against) == 1 else "contradict"
    contrary = f"{len(against)} of {len(cases)} cases {verb} it"
    if against and min(case.chance for case in against) > ALPHA / len(cases):
        return "inconclusive", f"{contrary}, as chance could among so many"
    if against:
        return "not replicated", contrary if len(cases) > 1 else ""
    # A magnitude of other hardware must not block a direction.
    for judged in [judged for judged in tests if judged.test.has_direction] or tests:
        testable = [case for case in judged.cases if case.is_judged]
        if not testable:
            reasons = list(dict.fromkeys(case.reason for case in judged.cases if case.reason))
            return "not testable here", judged.reason or "; ".join(reasons)
    if unclear:
        reasons = list(dict.fromkeys(case.reason for case in unclear))
        if len(cases) == 1:
            return "inconclusive", reasons[0]
        verb = "is" if len(unclear) == 1 else "are"
        return "inconclusive", f"{len(unclear)} of {len(cases)} cases {verb} open, because {listing(reasons)}"
    return "replicated", ""


ALPHA = 0.025  # of each side of a 95 % interval


def _judge_test(claim: Claim, test: Test, evidence: Evidence) -> Judged:
    across = bool({*test.over, *test.under, test.along, test.among} & set(ACROSS))
    studies = claim.studies_of(test)
    sides = [side for study in studies for side in evidence.sides(study, across=across)]
    study = " or ".join(studies)
    if not sides:
        if evidence.profile is None:
            return Judged(test, (), f"no device file has records of {study}")
        small = any(evidence.results(evidence.profile, name).is_small for name in studies)
        no_records = f"no records of {study} on {device_titles([evidence.profile])}"
        no_records += " but one run of small sizes, which judges no claim" if small else ""
        unreadable = [why for name in studies if (why := evidence.unreadable.get((evidence.profile, name)))]
        if unreadable:
            return Judged(test, (), "; ".join(unreadable))
        if not evidence.results(evidence.profile, studies[0]).profile.runnable:
            return Judged(test, (), f"{no_records}, which no current framework runs on")
        names = ",".join(STUDIES[name].name for name in studies)
        again = f"`make report HW={evidence.profile} STUDY={names}`"
        return Judged(test, (), f"{no_records}; with the hardware: {again}")
    wants_gpu = "cuda" in (test.select.get("device"), test.over.get("device"), test.under.get("device"))
    if wants_gpu and all(side.results.profile.device.kind == "cpu" for side in sides):
        return Judged(test, (), f"it needs a GPU, and {device_titles(_profiles(sides))} has none")
    chosen = select(sides, test.select)
    if not chosen:
        return Judged(test, (), f"no configuration of {study} has {choice_words(_lacking(sides, test.select))}")
    named = {str(value) for choice in (test.over, test.under) for name, value in choice.items() if name == "profile"}
    names_devices = test.along == "generation" or (test.along == "profile" and test.order) or named - {FASTEST, OTHERS}
    if across and not names_devices:  # others cannot stand in for devices that the test names
        there = _profiles(chosen)
        if len(there) < 2:
            return Judged(test, (), f"it compares devices, and only {device_titles(there)} has such records")
    cases = tuple(map(_of_enough_runs, SHAPES[test.shape](test, chosen)))
    there = _profiles([side for case in cases for side in case.sides])
    if there and evidence.profile is not None and evidence.profile not in there:
        lacks = "nothing to compare with them" if evidence.profile in _profiles(chosen) else "no such records"
        own = device_titles([evidence.profile])
        return Judged(test, (), f"it compares {device_titles(there)}; {own} has {lacks}")
    return Judged(test, cases, "" if cases else _why_no_case(test, chosen))


def _of_enough_runs(case: Case) -> Case:
    """Return a case whose verdict is inconclusive if fewer than FEWEST_RUNS runs decide it."""
    if case.n >= FEWEST_RUNS or case.verdict not in ("replicated", "not replicated"):
        return case
    return replace(
        case, verdict="inconclusive", reason=f"there are {case.n} of the {FEWEST_RUNS} runs that a verdict needs"
    )


def _lacking(sides: list[Side], choice: dict[str, Any]) -> dict[str, Any]:
    """Return a smallest part of a choice that no side fits."""
    lacking = dict(choice)
    for name in choice:
        without = {field: value for field, value in lacking.items() if field != name}
        if without and not select(sides, without):
            lacking = without
    return lacking


def _profiles(sides: list[Side]) -> list[str]:
    return sorted({side.results.profile.name for side in sides})


def _why_no_case(test: Test, chosen: list[Side]) -> str:
    profiles = device_titles(_profiles(chosen))
    if test.along == "profile" and test.order:
        return f"it compares {device_titles(test.order)}; such records are of {profiles}"
    if "profile" in test.over:
        both = (device_titles([side["profile"]]) for side in (test.over, test.under))
        return f"it compares {' with '.join(both)}; such records are of {profiles}"
    if test.along == "generation":
        gpus = [side for side in chosen if side.results.profile.device.kind == "cuda"]
        return f"it compares GPUs of several generations; its records are of {device_titles(_profiles(gpus))}"
    if test.over:
        return f"no configuration with {choice_words(test.over)} has a counterpart with {choice_words(test.under)} here"
    if test.among and len({str(side.field(test.among)) for side in chosen}) < 2:
        return f"it compares several values of {field_name(test.among)}, and there is one"
    if test.along:
        there = sorted({str(side.field(test.along)) for side in chosen})
        wanted = f" of {listing([str(value) for value in test.order])}" if test.order else ""
        several = "three values or more" if test.trend in ("diminishing", "peaks") else "several values"
        alike = f"it needs {several}{wanted} of {field_name(test.along)} in otherwise equal configurations"
        return f"{alike}; the records have {listing(there)}"
    return "no configuration fits the test"
