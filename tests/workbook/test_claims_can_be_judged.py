"""Each test of each claim can support the claim, contradict it and leave it open, and printed numbers support it.

The judge runs on made configurations. The value of some is half, equal, double or a hundredfold of the others', or of
the bounds. Their runs agree or scatter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import product
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest

from tests.workbook.made_telemetry import PAPERS
from tests.workbook.test_claims_can_be_tested import Planned, each_test
from workbook.claims import schema
from workbook.claims.cases import bounds_of
from workbook.claims.evidence import Evidence, Side
from workbook.claims.judge import judge
from workbook.claims.schema import ACROSS, FASTEST, LARGEST, OTHERS, SEVERAL, SMALLEST, Claim
from workbook.claims.verdict import VERDICTS, Verdict
from workbook.hardware.profile import Profile, load_profile
from workbook.registry import METRICS, STUDIES
from workbook.results import Results
from workbook.trials.trial import Trial

RUNS = 6
AGREE, SCATTER = 0.0005, 1.0  # standard deviation of a value's logarithm between runs
FACTORS = (0.5, 1.0, 2.0, 100.0)
HERE = "v100_sxm2"  # the profile of tests without a published magnitude
VALUES: dict[str, tuple[Any, ...]] = {  # of fields that tests compare without naming the values, in ascending order
    **{"batch": (4, 16, 64), "devices": (1, 2, 4), "nodes": (1, 2), "learning_rate": (0.01, 0.1)},
    **{"traced_iterations": (5, 200), "generation": (HERE, "h200"), "profile": ("h100", "h200")},
}
IN_FILES = {"form": "jpeg", "reader": "torch_pil", "epochs": 2}
Multiple = Callable[[float], float]  # factor -> the value of a configuration, as a multiple of the others'


@cache
def profile_of(name: str) -> Profile:
    return load_profile(name)


def of_word(name: str, word: Any) -> Any:
    """Return a value of a field for a word of the schema, and any other value as it is."""
    values = VALUES.get(name, (1, 2))
    fastest = values[-1] if name in ACROSS else getattr(Trial, name)
    return {SMALLEST: values[0], LARGEST: values[-1], SEVERAL: 2, FASTEST: fastest}.get(word, word)


def along(test: schema.Test, name: str) -> Sequence[Any]:
    """Return the values of a field that a test compares, in its order."""
    listed = test.select.get(name)
    return test.order or (listed if isinstance(listed, list) else VALUES[name])


def selected(test: schema.Test) -> dict[str, Any]:
    """Return the fields of the selected configurations that the test does not compare; of several values the first."""
    fields = {name: wanted[0] if isinstance(wanted, list) else wanted for name, wanted in test.select.items()}
    compared = {*test.over, *test.under, test.along, test.among}
    return {name: of_word(name, wanted) for name, wanted in fields.items() if name not in compared}


def compared(test: schema.Test) -> Iterator[tuple[dict[str, Any], Multiple]]:
    """Yield the fields in which the configurations of a test differ, with the multiple of each."""
    if test.over:
        for at, against, multiple in ((test.over, test.under, lambda f: f), (test.under, test.over, lambda _: 1.0)):
            same = {name: of_word(name, word) for name, word in at.items()}
            others = [name for name, word in at.items() if word == OTHERS]
            left = [[v for v in along(test, name) if v != of_word(name, against[name])] for name in others]
            yield from ((same | dict(zip(others, values, strict=True)), multiple) for values in product(*left))
    elif test.along:
        values, among = along(test, test.along), along(test, test.among) if test.among else ("",)
        places = [place / (len(values) - 1) for place in range(len(values))]
        places = [float(0 < place < 1) for place in places] if test.trend == "peaks" else places
        places = places[::-1] if test.order else places
        for (value, place), of in product(zip(values, places, strict=True), among):
            # "Alike" has another order if the factor of the first value of `among` is below 1.
            fixed = test.shape == "alike" and of != among[0]
            fields = {test.along: value} | ({test.among: of} if test.among else {})
            yield fields, partial(_power, place, fixed)
    else:
        yield {}, lambda f: f


def _power(place: float, fixed: bool, factor: float) -> float:
    return float((2.0 if fixed else factor) ** place)


def trial_of(given: dict[str, Any]) -> Trial:
    """Return a trial that is valid: images in files need a reader, and nodes need devices."""
    fields = {name: value for name, value in given.items() if name not in ACROSS}
    fields = fields if {"cache", "readers"}.isdisjoint(fields) else IN_FILES | fields
    least = 2 if fields.get("network", "any") != "any" else 1
    nodes = max(least, fields.get("nodes", 1))
    return Trial(**fields | {"nodes": nodes, "devices": max(nodes, fields.get("devices", 1))})


def made_sides(test: schema.Test, study: str, profile: str, factor: float, spread: float) -> Iterator[Side]:
    """Yield the configurations of a test with the rows of their runs."""
    is_share = test.metric in METRICS and METRICS[test.metric].share
    base = 0.4 if is_share and test.shape != "level" else 1.0
    for number, (fields, multiple) in enumerate(compared(test)):
        name = fields.get("profile", fields.get("generation", profile))
        trial = trial_of(selected(test) | fields)
        values = base * multiple(factor) * np.exp(spread * np.random.default_rng(number).normal(size=RUNS))
        texts = ["a kernel" if factor == 1 else f"kernel {number}"] * (RUNS - 1)
        columns = {
            **{"profile": name, "study": study, "host": "made", "process": "made", "pass_number": range(RUNS)},
            **{"planned_passes": RUNS, "protocol": 3, "status": "ok", "images_per_s": 1.0},
            **{"framework": trial.framework, "devices": trial.devices, test.metric_under or "": base},
            test.metric: np.minimum(values, 1.0) if is_share else values,
        }
        rows = pd.DataFrame(columns)
        side = Side(Results([cast(Any, Planned(profile_of(name), STUDIES[study]))]), trial)
        labels = [*texts, "another" if spread == SCATTER else texts[0]]
        vars(side).update(rows=rows, rows_on_hosts=lambda _, rows=rows: rows, labels=lambda _, labels=labels: labels)
        yield side


def verdict(claim: Claim, test: schema.Test, profile: str, factor: float, spread: float) -> Verdict:
    """Return the verdict on a claim that has this test alone."""
    (paper,) = [paper for paper in PAPERS if claim in paper.claims]
    by_place: dict[tuple[str, str], list[Side]] = {}
    for study in claim.studies_of(test):
        for side in made_sides(test, study, profile, factor, spread):
            by_place.setdefault((side.results.profile.name, study), []).append(side)
    names = tuple(sorted({name for name, _ in by_place}))
    nothing: dict[tuple[str, str], list[Side]] = {place: [] for place in product(names, claim.studies_of(test))}
    evidence = Evidence(profile if profile in names else names[0], names, cast(Any, None), _sides=nothing | by_place)
    alone = claim.model_copy(update={"tests": [test.model_copy(update={"beside": []})]})
    return judge(paper, alone, evidence).verdict


def with_each_magnitude(test: schema.Test) -> Iterator[tuple[schema.Test, str, list[float]]]:
    """Yield a test with each published magnitude alone, a profile that it was published for, and its ends."""
    for printed in test.published:
        ends = printed.value if isinstance(printed.value, tuple) else (printed.value,)
        alone = test.model_copy(update={"select": test.select | printed.select, "published": [printed]})
        yield from ((alone, profile, [*ends]) for profile in printed.hardware)
    if not test.published:
        yield test, HERE, []


@pytest.mark.parametrize(("claim", "place", "test"), each_test(), ids=lambda value: getattr(value, "id", ""))
def test_each_test_of_a_claim_reaches_each_verdict(claim: Claim, place: int, test: schema.Test) -> None:
    bounds = [test.at_least, test.at_most, *(test.between or ()), *(test.outside or ())]
    for alone, profile, printed in with_each_magnitude(test):
        around = {1.0, *printed, *(bound for bound in bounds if bound)}
        effects = [(end, SCATTER) for end in around] + [(end * f, AGREE) for end, f in product(around, FACTORS)]
        reached: set[Verdict] = set()
        while effects and not reached >= set(VERDICTS[:3]):
            reached.add(verdict(claim, alone, profile, *effects.pop()))
        assert reached >= set(VERDICTS[:3]), profile
        # A paper's own number supports its claim, within the margin of a tie too.
        assert {verdict(claim, alone, profile, value, AGREE) for value in printed} <= {"replicated"}, profile


def is_direction(test: schema.Test) -> bool:
    """Return whether a test asks for more or less than equal, as a ratio."""
    bounds = bounds_of(test) if test.shape in ("level", "ratio") else None
    return test.order != [] or test.trend in ("rises", "falls") or bool(bounds and bounds.strict)


@pytest.mark.parametrize(
    ("claim", "test"), [(claim, test) for claim, _, test in each_test() if is_direction(test)], ids=str
)
def test_equal_values_contradict_a_direction(claim: Claim, test: schema.Test) -> None:
    (alone, profile, _), *_ = with_each_magnitude(test)
    assert verdict(claim, alone, profile, 1.0, AGREE) == "not replicated"
