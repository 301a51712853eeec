"""Judge claims by records: every test of a claim gives cases, each with an effect, its interval and a verdict.

A verdict comes from the interval, never from the point. An interval wholly on the supporting side of the bound is
`replicated`, wholly on the other side `not replicated`, and anything else `inconclusive`. A claim is replicated when
all its cases are. It is not replicated when a case contradicts it by more than chance among its cases allows (Holm
1979, Scandinavian Journal of Statistics 6:65-70).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from labkit.claims.evidence import Evidence, Side, select
from labkit.claims.papers import Paper
from labkit.claims.schema import ACROSS, FASTEST, OTHERS, Claim, Test
from labkit.claims.shapes import SHAPES
from labkit.claims.verdict import Case, Finding, Judged, Verdict
from labkit.claims.words import choice_words, device_titles, field_name, listing
from labkit.registry import STUDIES
from labkit.show.labels import label
from labkit.trial import NO_DATA, OF_NETWORKS


def judge(paper: Paper, claim: Claim, evidence: Evidence) -> Finding:
    """Judge one claim by the available records."""
    tests = tuple(_judge_test(claim, test, evidence) for test in claim.tests)
    verdict, reason = _together(tests)
    return Finding(paper, claim, verdict, reason, _scope(paper, tests), tests)


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
    cases = [case for judged in tests for case in judged.cases if case.verdict != "not testable here"]
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
        testable = [case for case in judged.cases if case.verdict != "not testable here"]
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


ONE_HOST = "on one machine"  # an eager loop's speed differs between equal machines
ALPHA = 0.025  # of each side of a 95 % interval


def _judge_test(claim: Claim, test: Test, evidence: Evidence) -> Judged:
    across = bool({*test.over, *test.under, test.along, test.among} & set(ACROSS))
    studies = claim.studies_of(test)
    sides = [side for study in studies for side in evidence.sides(study, across=across)]
    study = " or ".join(studies)
    if not sides:
        if evidence.profile is None:
            return Judged(test, (), f"no device file has records of {study}")
        no_records = f"no records of {study} on {device_titles([evidence.profile])}"
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
    if across and not _names_devices(test):
        there = _profiles(chosen)
        if len(there) < 2:
            return Judged(test, (), f"it compares devices, and only {device_titles(there)} has such records")
        if evidence.profile is not None and evidence.profile not in there:
            own = device_titles([evidence.profile])
            return Judged(test, (), f"it compares {device_titles(there)}; {own} has no such records")
    cases = tuple(SHAPES[test.shape](test, chosen))
    return Judged(test, cases, "" if cases else _why_no_case(test, chosen))


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


def _names_devices(test: Test) -> bool:
    """Return whether a test names the devices or generations that it compares, so that others cannot stand in."""
    named = {str(value) for choice in (test.over, test.under) for name, value in choice.items() if name == "profile"}
    return test.along == "generation" or bool(test.along == "profile" and test.order) or bool(named - {FASTEST, OTHERS})


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


def _models_of(test: Test) -> list[object]:
    """Return the models that a test names."""
    named: list[object] = [*test.order] if test.along == "model" else []
    for choice in (test.select, test.over, test.under):
        value = choice.get("model", [])
        named += value if isinstance(value, list) else [value]
    return [name for name in named if name != OTHERS]


def _only(tests: tuple[Judged, ...], told: list[list[Case]]) -> list[str]:
    """Return notes on what was not judged: the claim's magnitudes, and tests without testable cases."""
    parts = []
    decided = [[case for case in cases if case.verdict != "not testable here"] for cases in told]
    magnitudes = [judged.test.published for judged, cases in zip(tests, decided, strict=True) if cases]
    printed = {name for of_test in magnitudes for published in of_test for name in published.hardware}
    profiles = {side.results.profile.name for cases in decided for case in cases for side in case.sides}
    if printed and not printed & profiles:
        parts.append("by direction only")
    done = sum(map(bool, decided))
    if 0 < done < len(tests):
        parts.append(f"by {done} of its {len(tests)} tests")
    return parts


def _scope(paper: Paper, tests: tuple[Judged, ...]) -> str:
    """Return how the trials behind the verdict differ from the paper's, and which parts of the claim are not judged."""
    shown = [[case for case in judged.cases if case.effect or case.verdict != "not testable here"] for judged in tests]
    cases = [case for of_test in shown for case in of_test]
    sides = [side for case in cases for side in case.sides]
    trials = [side.trial for side in sides]
    if not trials:
        return ""
    setup = paper.setup
    cuda, cpu = ([trial for trial in trials if trial.device == kind] for kind in ("cuda", "cpu"))
    compared = {name for judged in tests for name in (*judged.test.over, judged.test.along or "")}
    frameworks = sorted({trial.framework for trial in trials} - set(setup.frameworks))
    precisions = {trial.precision for trial in trials}
    asked = [judged.test.select.get("precision") for judged in tests]
    listed = {str(name) for value in asked if isinstance(value, list) for name in value}
    measured = list(dict.fromkeys(trial.model for trial in trials if trial.workload in OF_NETWORKS))
    named = list(dict.fromkeys(str(model) for judged in tests for model in _models_of(judged.test)))
    wanted = named or setup.models
    is_other = not set(measured) & set(wanted)
    profiles = {side.results.profile.name for side in sides}
    ordered = [str(name) for judged in tests if judged.test.along == "profile" for name in judged.test.order]
    differences: list[tuple[str, str, Iterable[object]]] = [
        ("on {} GPUs", "", sorted({trial.devices_taken for trial in cuda} - {1})),
        ("on {} processes", "", sorted({trial.devices_taken for trial in cpu} - {1})),
        ("by {} workers that share one device", "", sorted({t.devices for t in trials if t.placement == "together"})),
        ("after {} epochs", "", sorted({trial.epochs for trial in trials} - {0})),
        ("on {}", "data", sorted({trial.data for trial in trials} - {*setup.data_sets, NO_DATA})),
        ("with {}", "framework", frameworks if "framework" not in compared else []),
        ("in {}", "precision", sorted(precisions - set(setup.precisions)) if "precision" not in compared else []),
        ("without {}", "precision", sorted(listed - precisions)),
        ("of {} instead of the paper's networks", "model", measured if is_other else []),
        ("without {}", "model", [] if is_other else [model for model in wanted if model not in measured]),
        ("also of {}", "model", [] if is_other else [m for m in measured if m not in (*wanted, *setup.models)]),
        ("without {}", "", [name for name in dict.fromkeys(ordered) if name not in profiles]),
    ]
    labelled = [(text, [label(field, value) for value in values]) for text, field, values in differences]
    here = [ONE_HOST] if any(case.holds_for_one_host for case in cases) else []
    return ", ".join([*_only(tests, shown), *(text.format(listing(names)) for text, names in labelled if names), *here])
