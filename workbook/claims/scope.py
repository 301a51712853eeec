"""What a verdict covers: how its records differ from the paper's, and what of the claim's sentence is not judged.

A sentence such as "On 32 GPUs ResNet-50 trains 29.43 times as fast" is judged whole only where a test has all of its
numbers and its records are of its hardware. Elsewhere the verdict is on the direction.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator

from workbook.claims.evidence import FEWEST_RUNS, Side
from workbook.claims.papers import Paper
from workbook.claims.schema import OTHERS, Test
from workbook.claims.verdict import Case, Judged
from workbook.registry import find_metric
from workbook.results.from_trace import OF_PIECES, trace_of
from workbook.results.study_records import image_set
from workbook.trials.trial import NO_DATA, OF_NETWORKS
from workbook.words import label, listing

ONE_HOST = "on one machine"  # an eager loop's speed differs between equal machines
_WORDS = {"one": 1, "two": 2, "three": 3, "four": 4, "eight": 8, "twelve": 12, "sixteen": 16}
_FIGURE = r"\d[\d,]*(?:\.\d+)?"
_COUNT = rf"({_FIGURE}|{'|'.join(_WORDS)})"
_GPU = r"[KPVATHLB]\d{2,3}[A-Za-z]*(?:-(?:SXM|PCIe)\d?)?"
_HARDWARE = re.compile(rf"\b(?:{_GPU}|Xeon(?: E5-\d+)?|Broadwell|NVLink)\b")
# Counts of GPUs, nodes or epochs, and sizes of a batch: the trial's field that must have the value.
_SIZES = {
    "devices": re.compile(rf"\b{_COUNT}(?: (?:and|or) {_COUNT})? (?:GPUs?|{_GPU})\b", re.I),
    "nodes": re.compile(rf"\b{_COUNT}(?: (?:and|or) {_COUNT})? nodes?\b", re.I),
    "epochs": re.compile(rf"\b{_COUNT} epochs?\b", re.I),
    "batch": re.compile(rf"\bbatch {_COUNT}\b", re.I),
}
_RANGE = re.compile(rf"(?<![\w.-])({_FIGURE})-({_FIGURE})(?![\w-])")
_EXCEPTION = re.compile(r"\bexcept .*?(?=, |\. |$)", re.I)  # a test leaves such trials out
_NUMBER = re.compile(rf"(?<![\w.-])({_FIGURE})(?!-?\w)")  # no digit of a name such as ResNet-50, FP16 or 8-bit


def not_judged(statement: str, tests: tuple[Judged, ...]) -> tuple[str, ...]:
    """Return the numbers and the hardware of a claim's sentence that none of its deciding cases contains.

    A test contains its bound, the published values of the hardware at hand, and the sizes of its trials. A percentage
    stands for a share or for a change.

    >>> not_judged("Training in FP16 is 60 % faster on a V100.", ())
    ('V100', '60')
    """
    judged = [(of_test.test, case) for of_test in tests for case in of_test.deciding]
    cases = [case for _, case in judged]
    text, missing = _EXCEPTION.sub("", statement), []
    for field, pattern in _SIZES.items():
        values = {value for case in cases for value in _sizes(case, field)}
        for match in pattern.finditer(text):
            counts = [count for count in match.groups() if count]
            if not {_value(count) for count in counts} <= values and not _in_metrics(counts, judged):
                missing.append(match[0])
        text = pattern.sub(lambda match: " ".join(_HARDWARE.findall(match[0])), text)
    described = " ".join(dict.fromkeys(_described(case) for case in cases))
    missing += [name for name in _HARDWARE.findall(text) if not all(part in described for part in name.split("-"))]
    bounds = [bound for test, case in judged for bound in _bounds(test, case)]
    numbers = [number for ends in _RANGE.findall(text) for number in ends]
    numbers += _NUMBER.findall(_RANGE.sub("", _HARDWARE.sub("", text)))
    missing += [text for text in numbers if not _is_bound(text, bounds) and not _in_metrics([text], judged)]
    return tuple(dict.fromkeys(missing))


def _value(count: str) -> float:
    return float(_WORDS.get(count.lower()) or count.replace(",", ""))


def _sizes(case: Case, field: str) -> Iterator[float]:
    for side in case.sides:
        yield side.trial.devices_taken if field == "devices" else getattr(side.trial, field)


def _described(case: Case) -> str:
    """Return the names of the devices, processors and links behind a case."""
    about = [(side.results.profile, side.results.host.get("cpu")) for side in case.sides]
    return " ".join(f"{profile.title} {profile.device.interconnect} {cpu}" for profile, cpu in about)


def _bounds(test: Test, case: Case) -> Iterator[float]:
    """Yield the numbers that decide a case: the test's bound, and the values published for its hardware."""
    ends = (test.at_least, test.at_most, *(test.between or ()), *(test.outside or ()))
    yield from (end for end in ends if end is not None)
    here = {side.results.profile.name for side in case.sides}
    for published in test.published:
        if here & set(published.hardware):
            yield from published.ends


def _is_bound(text: str, bounds: Iterable[float]) -> bool:
    """Return whether a number of a sentence is one of these values, also as a percentage or a change in percent."""
    value = _value(text)
    forms = (value, value / 100, 1 + value / 100, 1 - value / 100)
    return any(math.isclose(form, bound, rel_tol=1e-6) for form in forms for bound in bounds)


def _in_metrics(texts: Iterable[str], judged: Iterable[tuple[Test, Case]]) -> bool:
    """Return whether a judged metric has these numbers in its name: `90 epochs of 1.2 million images`."""
    labels = [find_metric(case.metric).label for _, case in judged if case.effect]
    return set(texts) <= {number for label in labels for number in _NUMBER.findall(label)}


def _models_of(test: Test) -> list[object]:
    """Return the models that a test names."""
    named: list[object] = [*test.order] if test.along == "model" else []
    for choice in (test.select, test.over, test.under):
        value = choice.get("model", [])
        named += value if isinstance(value, list) else [value]
    return [name for name in named if name != OTHERS]


def _data_of(side: Side) -> str:
    """Return the name of a trial's images, with the size of a user's own set."""
    sizes = sorted({image_set(record) for record in side.results.by_trial.get(side.trial, [])} - {""})
    title = label("data", side.trial.data)
    return f"{title} ({'; '.join(sizes)})" if sizes else title


def scope(paper: Paper, tests: tuple[Judged, ...]) -> str:
    """Return how the trials behind a verdict differ from the paper's, and how many of its tests are judged."""
    shown = [
        [*judged.deciding, *(case for case in judged.cases if case.effect and not case.is_judged)] for judged in tests
    ]
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
        ("on {}", "", sorted({_data_of(side) for side in sides if side.trial.data not in (*setup.data_sets, NO_DATA)})),
        ("with {}", "framework", frameworks if "framework" not in compared else []),
        ("in {}", "precision", sorted(precisions - set(setup.precisions)) if "precision" not in compared else []),
        ("without {}", "precision", sorted(listed - precisions)),
        ("of {} instead of the paper's networks", "model", measured if is_other else []),
        ("without {}", "model", [] if is_other else [model for model in wanted if model not in measured]),
        ("also of {}", "model", [] if is_other else [m for m in measured if m not in (*wanted, *setup.models)]),
        ("without {}", "", [name for name in dict.fromkeys(ordered) if name not in profiles]),
    ]
    of_pieces = (side for case in cases if case.metric in OF_PIECES for side in case.sides)
    traces = filter(None, (trace_of(record) for side in of_pieces for record in side.results.ok(side.trial)))
    sizes = sorted({piece.steps for trace in traces for piece in trace.pieces})
    pieces = [f"in pieces of {sizes[0]} to {sizes[-1]} traced steps"] if sizes else []
    labelled = [(text, [label(field, value) for value in values]) for text, field, values in differences]
    enough = [case for case in cases if case.n >= FEWEST_RUNS] or cases
    on_one = [case.holds_for_one_host for case in enough]
    here = [ONE_HOST] if all(on_one) else [f"in part {ONE_HOST}"] if any(on_one) else []
    done = sum(any(case.is_judged for case in of_test) for of_test in shown)
    tested = [f"by {done} of its {len(tests)} tests"] if 0 < done < len(tests) else []
    judged_cases = [(case, judged.deciding) for judged in tests for case in judged.cases if case.is_judged]
    aside = [(case, deciding) for case, deciding in judged_cases if case not in deciding]
    on_cpus = sum(not case.has_gpu and deciding[0].has_gpu for case, deciding in aside)
    few = len(aside) - on_cpus
    left_out = [f"without {few} case{'s' if few > 1 else ''} of fewer than {FEWEST_RUNS} runs"] if few else []
    left_out += [f"without {on_cpus} case{'s' if on_cpus > 1 else ''} of machines without a GPU"] if on_cpus else []
    ends = [*pieces, *left_out, *here]
    return ", ".join([*tested, *(text.format(listing(names)) for text, names in labelled if names), *ends])
