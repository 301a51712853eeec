"""Tests of verdicts on claims, on made-up records with known answers: shapes, bounds, scopes, pages and error rates."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from bs4 import BeautifulSoup
from scipy import stats

from labkit.telemetry.summary import Metrics, Statistic, Telemetry, Window
from tests.workbook.made_records import HOST, record_of
from tests.workbook.test_site import described
from workbook.claims import evidence as rooms
from workbook.claims import schema as claims
from workbook.claims.evidence import Evidence, Side
from workbook.claims.findings import COLUMNS, IN_SIGHT, Findings
from workbook.claims.judge import judge, judge_all
from workbook.claims.papers import Paper, PublishedTable, load_papers
from workbook.claims.reports import evidence as evidence_of_reports
from workbook.claims.rows import NOT_COUNTED, Measured, claim_row
from workbook.claims.schema import Claim
from workbook.claims.scope import ONE_HOST
from workbook.claims.verdict import GROUPS, MARKS, VERDICTS, Bounds, Case, Finding, Verdict
from workbook.claims.words import quantity_label
from workbook.hardware.profile import Profile, load_profile
from workbook.records import Blocks, Planned, Record, short_hash
from workbook.records.store import Store
from workbook.registry import find_study
from workbook.results import REPORT_VARIABLE, reports_folder
from workbook.results import Results as ResultsOfStudies
from workbook.results.study_records import StudyRecords as Results
from workbook.show.setup import setup_line
from workbook.show.templates import drawn
from workbook.statistics import log_interval
from workbook.trials.trial import NO_DATA, Trial

OTHER_HOST = "ba9876543210"
OOM = "CUDA out of memory"
EVIL = """<script>alert(1)</script>" onload="alert(2)' onclick='alert(3)"""
YES, NO, OPEN, UNTESTED = VERDICTS

R50, R152, V16, V19 = (Trial(model=name) for name in ("resnet50", "resnet152", "vgg16", "vgg19"))
B16, B32, B64, B128, B256, B512 = (Trial(batch=size) for size in (16, 32, 64, 128, 256, 512))

# The values of a trial per pass (None: the pass has no record), or the reason why the trial failed in every pass.
Values = Sequence[float | str | None] | str
Data = Mapping[Trial, Values]


# ---- made-up records ------------------------------------------------------------------------------------------------


@cache
def profile(hw: str) -> Profile:
    """Return a profile. It is cached, because simulations load profiles thousands of times."""
    return load_profile(hw)


def made(trial: Trial, number: int, metric: str, value: float | str, **other: Any) -> Record:
    """Return a record with this metric, from ten blocks of a step of 100 images or as a fact of the workload."""
    block_s = 100 / value if metric == "images_per_s" else 1.0  # type: ignore[operator]
    blocks = Blocks(
        steps_per_block=1,
        images_per_step=100,
        host_s=[block_s] * 10,
        warmup_s=[1.0],
        warmup_steps=[1],
        steady=True,
        stopped_by="time",
    )
    values: dict[str, Any] = {
        "devices_used": trial.devices,
        "facts": {} if metric == "images_per_s" else {metric: value},
        "result": blocks,
    }
    return record_of("01_training", trial, number, **(values | other))


def records(data: Data, metric: str, **other: Any) -> Iterator[Record]:
    """Yield the records of every trial and pass."""
    for trial, values in data.items():
        if isinstance(values, str):
            failed = {"status": "oom", "reason": values, "result": None, "facts": {}}
            yield from (made(trial, number, metric, 1.0, **(other | failed)) for number in (1, 2, 3))
        else:
            there = [(number, value) for number, value in enumerate(values, start=1) if value is not None]
            yield from (made(trial, number, metric, value, **other) for number, value in there)


def of_records(*found: Record, hw: str = "h200", study: str = "01_training", host: str = HOST) -> Results:
    return Results(
        study=find_study(study),
        profile=profile(hw),
        scale="quick",
        host_id=host if found else None,
        host={"cpu": "a CPU"} if found else {},
        records=list(found),
        lines={(one.key, one.pass_number): line for line, one in enumerate(found, start=1)},
    )


def shown(data: Data, metric: str = "images_per_s", **where: str) -> Results:
    """Return the records of a profile and study that a page shows. `where` may give `hw`, `study` and `host`."""
    of = {name: where[name] for name in ("study", "host") if name in where}
    return of_records(*records(data, metric, **of), **where)


def seen(
    *found: Results,
    view: str | None = "h200",
    others: Sequence[Results] = (),
) -> Evidence:
    """Return the evidence of these records, from the view of a profile; `others` are records of its other hosts."""
    by_place = {(results.profile.name, results.study.id): results for results in found}
    names = {name for name, _ in by_place} | ({view} if view else set())

    def load(name: str, study: str) -> Results:
        return by_place.get((name, study)) or of_records(hw=name, study=study)

    return Evidence(view, tuple(sorted(names)), load, lambda name, _: others if name == view else ())


# ---- made-up claims -------------------------------------------------------------------------------------------------


def a_test(**fields: Any) -> dict[str, Any]:
    bound = {"at_least", "at_most", "between", "outside"} & set(fields)
    return {"metric": "images_per_s", **({"because": "made up"} if bound else {}), **fields}


def a_claim(*tests: dict[str, Any], studies: Sequence[str] = ("01_training",), **other: Any) -> Claim:
    about = {"id": "made-up", "statement": "It holds.", "where": "table 1", "studies": list(studies)}
    return Claim.model_validate({**about, "tests": list(tests), **other})


def a_paper(*of: Claim, **setup: Any) -> Paper:
    usual: dict[str, Any] = {"framework": "PyTorch 0.4", "data": "made up", "models": ["resnet50"]}
    usual |= {"frameworks": ["torch"], "data_sets": ["synthetic32"]}
    return Paper.model_validate(
        {
            "id": "made",
            "name": "Made",
            "citation": {"title": "A paper", "authors": ["A. N. Other"], "institution": "None", "published": "2018"},
            "setup": usual | setup,
            "devices": [],
            "claims": [claim.model_dump(exclude_unset=True) for claim in of],
        }
    )


def found_by(test: dict[str, Any] | Claim, *found: Results, view: str | None = "h200", **setup: Any) -> Finding:
    """Return the finding of these records on a claim with this test."""
    claim = test if isinstance(test, Claim) else a_claim(test)
    return judge(a_paper(claim, **setup), claim, seen(*found, view=view))


def page_of(finding: Finding) -> BeautifulSoup:
    """Return the finding as the page of claims shows it."""
    return BeautifulSoup(drawn("claim", claim_row(finding)), "html.parser")


def only_case(finding: Finding) -> Case:
    (case,) = finding.cases
    return case


def near(value: float) -> tuple[float, float, float]:
    """Return values of three passes that agree within 1 %."""
    return (0.99 * value, value, 1.01 * value)


def tight(value: float) -> tuple[float, float, float]:
    """Return values of three passes that agree within 0.1 %."""
    return (0.9992 * value, value, 1.0008 * value)


def even(value: float) -> tuple[float, float, float]:
    """Return values of three passes that agree within 0.5 %, in another order than those of `near`."""
    return (1.005 * value, 0.995 * value, value)


def wide(value: float) -> tuple[float, float, float]:
    """Return values of three passes that are too far apart to decide anything."""
    return (0.5 * value, value, 2.0 * value)


# ---- every verdict of every shape -----------------------------------------------------------------------------------

OVER_64 = {"over": {"batch": 256}, "under": {"batch": 64}}
ALONG = {"shape": "trend", "along": "batch"}

# name -> test, and by verdict data that support, contradict or straddle the claim, or lack values
SHAPES: dict[str, tuple[dict[str, Any], dict[str, Data]]] = {
    "level at_least": (
        a_test(shape="level", at_least=100),
        {YES: {R50: near(110)}, NO: {R50: near(90)}, OPEN: {R50: near(100)}, UNTESTED: {R50: OOM}},
    ),
    "level at_most": (
        a_test(shape="level", at_most=100),
        {YES: {R50: near(90)}, NO: {R50: near(110)}, OPEN: {R50: near(100)}, UNTESTED: {R50: OOM}},
    ),
    "level between": (
        a_test(shape="level", between=(90, 110)),
        {YES: {R50: near(100)}, NO: {R50: near(130)}, OPEN: {R50: near(90)}, UNTESTED: {R50: OOM}},
    ),
    "level outside": (
        a_test(shape="level", outside=(90, 110)),
        {YES: {R50: near(130)}, NO: {R50: near(100)}, OPEN: {R50: near(110)}, UNTESTED: {R50: OOM}},
    ),
    "ratio": (
        a_test(shape="ratio", at_least=1.5, **OVER_64),
        {
            YES: {B64: even(100), B256: near(170)},
            NO: {B64: even(100), B256: near(130)},
            OPEN: {B64: even(100), B256: near(150)},
            UNTESTED: {B64: even(100), B256: OOM},
        },
    ),
    "ratio, the one below failed": (
        a_test(shape="ratio", at_most=1, **OVER_64),
        {
            YES: {B64: even(100), B256: near(90)},
            NO: {B64: even(100), B256: near(110)},
            OPEN: {B64: even(100), B256: wide(100)},
            UNTESTED: {B64: OOM, B256: near(100)},
        },
    ),
    "difference": (
        a_test(shape="difference", metric="top1", at_least=0.05, **OVER_64),
        {
            YES: {B64: even(0.6), B256: near(0.7)},
            NO: {B64: even(0.6), B256: near(0.61)},
            OPEN: {B64: even(0.6), B256: near(0.65)},
            UNTESTED: {B64: even(0.6), B256: OOM},
        },
    ),
    "trend rises": (
        a_test(**ALONG, trend="rises"),
        {
            YES: {B64: even(100), B128: near(110), B256: even(120)},
            NO: {B64: even(100), B128: near(90), B256: even(80)},
            OPEN: {B64: even(100), B128: near(100), B256: wide(100)},
            UNTESTED: {B64: even(100), B128: OOM},
        },
    ),
    "trend rises, and falls back on the way": (
        a_test(**ALONG, trend="rises"),
        {
            YES: {B64: even(100), B128: near(150), B256: even(145)},  # a fall by 3 % is tolerated
            NO: {B64: even(100), B128: near(150), B256: even(120)},
            OPEN: {B64: even(100), B128: even(150), B256: wide(120)},
            UNTESTED: {B64: OOM, B128: OOM},
        },
    ),
    "trend falls": (
        a_test(**ALONG, trend="falls"),
        {
            YES: {B64: even(120), B128: near(110), B256: even(100)},
            NO: {B64: even(80), B128: near(90), B256: even(100)},
            OPEN: {B64: even(100), B128: near(100), B256: wide(100)},
            UNTESTED: {B64: even(100), B128: OOM},
        },
    ),
    "trend falls, and rises on the way": (
        a_test(**ALONG, trend="falls"),
        {
            YES: {B64: even(150), B128: near(100), B256: even(103)},
            NO: {B64: even(150), B128: near(100), B256: even(120)},
            OPEN: {B64: even(150), B128: even(100), B256: wide(120)},
            UNTESTED: {B64: OOM, B128: OOM},
        },
    ),
    "trend constant": (
        a_test(**ALONG, trend="constant"),
        {
            YES: {B64: even(100), B128: near(105), B256: near(96)},
            NO: {B64: even(100), B128: near(103), B256: near(80)},
            OPEN: {B64: even(100), B128: near(103), B256: wide(100)},
            UNTESTED: {B64: even(100), B128: OOM},
        },
    ),
    "trend diminishing": (
        a_test(**ALONG, trend="diminishing"),
        {  # gains per unit of the field: 64 to 128 adds 64 units, 128 to 256 adds 128
            YES: {B64: even(100), B128: even(164), B256: even(228)},
            NO: {B64: even(100), B128: even(164), B256: even(428)},
            OPEN: {B64: even(100), B128: even(164), B256: near(292)},
            UNTESTED: {B64: even(100), B128: even(150), B256: OOM},
        },
    ),
    "trend peaks": (
        a_test(**ALONG, trend="peaks"),
        {
            YES: {B64: even(100), B128: near(150), B256: even(110)},
            NO: {B64: even(100), B128: near(150), B256: even(180)},
            OPEN: {B64: even(100), B128: near(150), B256: near(150)[::-1]},
            UNTESTED: {B64: even(100), B128: near(150), B256: OOM},
        },
    ),
    "order": (
        a_test(shape="order", along="model", order=["vgg16", "resnet50", "resnet152"]),
        {
            YES: {R50: even(50), R152: near(20), V16: near(90)},
            NO: {R50: even(50), R152: near(60), V16: near(90)},
            OPEN: {R50: even(50), R152: wide(50), V16: near(90)},
            UNTESTED: {R50: OOM, R152: near(50)},
        },
    ),
    "differs": (
        {"shape": "differs", "metric": "convolution_kernel", "along": "batch"},
        {
            YES: {B64: ("gemm",) * 3, B256: ("winograd",) * 3},
            NO: {B64: ("gemm",) * 3, B256: ("gemm",) * 3},
            OPEN: {B64: ("gemm",) * 3, B256: ("gemm", "winograd", "gemm")},
            UNTESTED: {B64: ("gemm",) * 3, B256: OOM},
        },
    ),
}
EACH = [(name, verdict) for name, (_, by_verdict) in SHAPES.items() for verdict in by_verdict]


def of_shape(name: str, verdict: str) -> Finding:
    test, by_verdict = SHAPES[name]
    return found_by(test, shown(by_verdict[verdict], test["metric"]), data_sets=["imagenet32"])


def test_every_shape_of_the_schema_is_tested() -> None:
    shapes = {test["shape"] for test, _ in SHAPES.values()} | {"alike"}  # tested below, since it needs two profiles
    assert shapes == set(claims._NEEDED)
    trends = {test["trend"] for test, _ in SHAPES.values() if "trend" in test}
    assert trends == {"rises", "falls", "constant", "diminishing", "peaks"}


@pytest.mark.parametrize(("name", "verdict"), EACH)
def test_each_shape_gives_each_verdict_with_its_scope_or_reason(name: str, verdict: str) -> None:
    finding = of_shape(name, verdict)
    assert finding.verdict == verdict, finding.reason
    if verdict in (OPEN, UNTESTED):
        assert finding.reason, "an undecided verdict has a reason"
    if verdict == UNTESTED:
        assert any(OOM in case.reason for case in finding.cases), "a failed trial is a case with its reason"
        assert OOM in finding.reason and all(case.effect is None for case in finding.cases)
    else:
        assert finding.label.startswith(f"{verdict}, on synthetic images")


@pytest.mark.parametrize(
    "test",
    [
        a_test(shape="ratio", at_least=1, **OVER_64),
        a_test(shape="ratio", at_most=1, **OVER_64),
        a_test(shape="ratio", between=(1.0, 1.05), **OVER_64),
        a_test(shape="difference", at_least=0, **OVER_64),
        a_test(shape="difference", at_most=0, **OVER_64),
        a_test(**ALONG, trend="rises"),
        a_test(**ALONG, trend="falls"),
        a_test(shape="order", along="batch", order=[256, 64]),
        a_test(shape="level", metric="first_device_utilisation_ratio", at_least=1),
    ],
)
def test_values_equal_in_every_pass_are_neither_more_nor_less(test: dict[str, Any]) -> None:
    # Counts and saturated sensors have no noise, so the interval has width 0 and lies at the bound.
    finding = found_by(test, shown({B64: (1.0,) * 3, B256: (1.0,) * 3}, test["metric"]))
    assert finding.cases
    assert finding.verdict in (NO, OPEN)


def test_a_bound_other_than_equality_may_be_met_exactly() -> None:
    exactly = found_by(
        a_test(shape="level", metric="reread_share", at_most=0.05), shown({R50: (0.05,) * 3}, "reread_share")
    )
    assert exactly.verdict == YES, "5 % is at most 5 %"
    data = {B64: (0.6877,) * 3, B256: (0.6895,) * 3}  # 0.0018 apart except for the last binary digit
    assert (
        found_by(a_test(shape="difference", metric="top1", at_most=0.0018, **OVER_64), shown(data, "top1")).verdict
        == YES
    )


@pytest.mark.parametrize("name", SHAPES)
def test_different_passes_give_no_pairs(name: str) -> None:
    test, by_verdict = SHAPES[name]
    data: dict[Trial, Values] = {
        trial: (*[None] * (3 * place), *values) for place, (trial, values) in enumerate(by_verdict[YES].items())
    }
    planned = Planned(passes={short_hash(trial.key): 3 * len(data) for trial in data}, order_seed=1)
    finding = found_by(test, of_records(*records(data, test["metric"], planned=planned)))
    if len(data) == 1 or test["shape"] == "differs":
        assert finding.verdict == YES, "this shape needs no pairs"
    else:
        assert finding.verdict in (OPEN, UNTESTED)
        assert finding.reason


# ---- numbers --------------------------------------------------------------------------------------------------------

SLOW, FAST = (101.0, 97.5, 100.25), (171.0, 166.5, 181.25)


def interval(case: Case) -> tuple[float, float, float]:
    assert case.effect is not None and case.effect.low is not None and case.effect.high is not None
    return case.effect.low, case.effect.point, case.effect.high


def test_a_ratio_within_a_host_has_students_t_interval_of_the_passes_log_ratios() -> None:
    case = only_case(found_by(a_test(shape="ratio", at_least=1.5, **OVER_64), shown({B64: SLOW, B256: FAST})))
    logs = np.log(np.array(FAST) / np.array(SLOW))
    ends = stats.ttest_1samp(logs, 0).confidence_interval(0.95)
    assert interval(case) == pytest.approx((math.exp(ends.low), math.exp(logs.mean()), math.exp(ends.high)))
    assert case.effect is not None and case.effect.n == 3


def test_a_level_is_a_geometric_mean_and_for_shares_an_arithmetic_mean() -> None:
    case = only_case(found_by(a_test(shape="level", at_least=1), shown({R50: FAST})))
    ends = stats.ttest_1samp(np.log(FAST), 0).confidence_interval(0.95)
    assert interval(case) == pytest.approx((math.exp(ends.low), stats.gmean(FAST), math.exp(ends.high)))
    shares = (0.0, 0.02, 0.01)
    case = only_case(
        found_by(a_test(shape="level", metric="reread_share", at_most=0.5), shown({R50: shares}, "reread_share"))
    )
    high = stats.ttest_1samp(shares, 0).confidence_interval(0.95).high
    assert interval(case) == pytest.approx((0.0, 0.01, high)), "the interval of a share ends at 0"


def test_two_metrics_of_a_trial_are_compared_within_each_pass() -> None:
    memory, cores = (0.30, 0.20, 0.40), (0.25, 0.16, 0.36)
    pair = [
        made(R50, number, "dram_activity", 0.0, facts={"dram_activity": a, "fp32_activity": b})
        for number, a, b in zip((1, 2, 3), memory, cores, strict=True)
    ]
    test = a_test(shape="difference", metric="dram_activity", metric_under="fp32_activity", at_least=0)
    finding = found_by(test, of_records(*pair))
    ends = stats.ttest_rel(memory, cores).confidence_interval(0.95)
    assert interval(only_case(finding)) == pytest.approx((ends.low, 0.13 / 3, ends.high))
    assert finding.verdict == YES, "an unpaired interval would be too wide"
    ratio = only_case(found_by(test | {"shape": "ratio", "at_least": 1}, of_records(*pair)))
    logs = np.log(np.array(memory) / np.array(cores))
    assert ratio.effect is not None and ratio.effect.point == pytest.approx(math.exp(logs.mean()))
    assert "DRAM activity over FP32 pipe activity" in ratio.label


# The passes differ far more than the two trials, so only a paired interval is narrow.
TROUBLED = (10.0, 100.0, 1000.0)
APART = [{"host": OTHER_HOST}, {"hw": "h100"}, {"study": "04_power"}, {"hw": "h100", "host": OTHER_HOST}]


@pytest.mark.parametrize("where", [{}, *APART])
@pytest.mark.parametrize(("form", "over"), [("ratio", (17.0, 171.0, 1690.0)), ("difference", (17.1, 107.0, 1006.9))])
def test_only_the_same_host_and_study_of_a_profile_share_passes(
    form: str, over: tuple[float, ...], where: dict[str, str]
) -> None:
    above, below = ResultsOfStudies([shown({B256: over})]), ResultsOfStudies([shown({B64: TROUBLED}, **where)])
    effect = rooms.compare(form, Side(above, B256), Side(below, B64), "images_per_s")
    assert effect is not None
    to = np.log if form == "ratio" else np.array
    independent = (
        stats.ttest_ind(to(over), to(TROUBLED), equal_var=False) if where else stats.ttest_rel(to(over), to(TROUBLED))
    )
    ends = independent.confidence_interval(0.95)
    back = math.exp if form == "ratio" else float
    assert (effect.low, effect.high) == pytest.approx((back(ends.low), back(ends.high)))
    assert (back(ends.low) <= (1 if form == "ratio" else 0)) == bool(where), "unpaired intervals include equality"


def test_the_gain_of_a_step_is_per_unit_of_the_field() -> None:
    data = {B64: near(100), B128: near(228), B512: near(612)}
    # 64 to 128 adds 128 over 64 units, 2 per unit. 128 to 512 adds 384 over 384 units, 1 per unit, which is half.
    case = only_case(found_by(a_test(**ALONG, trend="diminishing"), shown(data)))
    assert case.effect is not None and case.effect.point == pytest.approx(0.5)


def test_the_effect_of_a_trend_is_last_over_first_and_that_of_a_peak_its_smaller_lead() -> None:
    data = {B64: even(100), B128: near(150), B256: even(120)}
    rises = only_case(found_by(a_test(**ALONG, trend="rises"), shown(data)))
    assert rises.effect is not None and rises.effect.point == pytest.approx(1.2)
    assert "falls between 128 and 256: 0.80" in rises.reason
    peaks = only_case(found_by(a_test(**ALONG, trend="peaks"), shown(data)))
    assert peaks.effect is not None and peaks.effect.point == pytest.approx(1.25, rel=1e-3)


def test_the_values_that_decide_a_trend_are_named() -> None:
    constant = a_test(**ALONG, trend="constant")
    case = only_case(found_by(constant, shown({B64: even(100), B128: even(150), B256: even(100)})))
    assert case.label.endswith(", batch 64 to 256: 128 over 64")
    peak = only_case(
        found_by(a_test(**ALONG, trend="peaks"), shown({B64: even(100), B128: near(150), B256: even(120)}))
    )
    assert peak.label.endswith(", batch 64 to 256: 128 over 256")
    networks = {replace(B64, model=name): even(value) for name, value in (("vgg16", 60), ("resnet50", 100))}
    case = only_case(found_by({**constant, "along": "model"}, shown(networks)))
    assert case.label == "batch 64, model ResNet-50 to VGG-16: VGG-16 over ResNet-50", "the label names both networks"


def test_labels_count_their_passes_and_are_grouped_by_value() -> None:
    test = {"shape": "differs", "metric": "convolution_kernel", "along": "batch"}
    data: Data = {B64: ("gemm",) * 3, B128: ("winograd",) * 3, B256: ("gemm",) * 3}
    finding = found_by(test, shown(data, "convolution_kernel"))
    case = only_case(finding)
    assert case.effect is None and case.n == 3
    assert case.label.endswith("(64 and 256: gemm; 128: winograd)")
    assert '<td class="n">3</td>' in str(page_of(finding))
    assert only_case(of_shape("differs", UNTESTED)).n == 0
    data[B256] = ("gemm", None, None)
    assert only_case(found_by(test, shown(data, "convolution_kernel"))).n == 1, "missing passes do not count"


def test_one_network_whose_label_differs_is_enough_where_the_test_says_so() -> None:
    test = {"shape": "differs", "metric": "convolution_kernel", "along": "batch", "among": "model"}
    v64, v256 = (replace(trial, model="vgg16") for trial in (B64, B256))
    same: Data = {v64: ("gemm",) * 3, v256: ("gemm",) * 3}

    def found(data: Data) -> Finding:
        return found_by(test, shown({**same, **data}, "convolution_kernel"))

    differs = only_case(found({B64: ("gemm",) * 3, B256: ("winograd",) * 3}))
    assert differs.verdict == YES
    assert "winograd" in differs.label and "VGG" not in differs.label, "the label tells which network supports it"
    assert found({B64: ("gemm",) * 3, B256: ("gemm",) * 3}).verdict == NO
    assert found({B64: ("gemm",) * 3, B256: ("gemm", "winograd", "gemm")}).verdict == OPEN
    assert found({B64: ("gemm",) * 3, B256: OOM}).verdict == NO, "the networks that ran do not differ"


def test_a_peak_is_the_highest_value_within_the_sweep() -> None:
    test = a_test(**ALONG, trend="peaks")
    finding = found_by(test, shown({B32: near(100), B64: even(95), B128: near(150), B256: even(120)}))
    assert finding.verdict == YES
    case = only_case(finding)
    assert case.effect is not None and case.effect.point == pytest.approx(1.25, rel=1e-3)


def test_the_deciding_step_of_several_is_shown() -> None:
    # Gains per unit: 1, 0.2 and 0.1. The ratio 0.5 of the last two is the smallest decrease.
    data = {B64: near(100), B128: near(164), B256: near(189.6), B512: near(215.2)}
    case = only_case(found_by(a_test(**ALONG, trend="diminishing"), shown(data)))
    assert case.verdict == YES
    assert case.effect is not None and case.effect.point == pytest.approx(0.5)


def test_a_trend_sorts_sizes_as_numbers() -> None:
    sizes = [Trial(batch=size) for size in (8, 16, 64, 128, 1024)]
    data = {trial: near(100.0 + place * 10) for place, trial in enumerate(sizes)}
    assert found_by(a_test(**ALONG, trend="rises"), shown(data)).verdict == YES
    assert "8 to 1,024" in only_case(found_by(a_test(**ALONG, trend="rises"), shown(data))).label


def test_late_over_early_is_the_second_half_over_the_first_without_the_middle_block() -> None:
    def slowing(number: int) -> Record:
        blocks = made(R50, number, "images_per_s", 1.0).result
        assert blocks is not None
        return made(R50, number, "images_per_s", 1.0, result=blocks.model_copy(update={"host_s": [1, 1, 9, 2, 2]}))

    test = a_test(shape="level", metric="late_over_early", between=(0.9, 1.1))
    case = only_case(found_by(test, of_records(*(slowing(number) for number in (1, 2, 3)))))
    assert case.effect is not None and case.effect.point == pytest.approx(0.5), "twice the time means half the images/s"
    assert case.verdict == NO


def test_90_epochs_are_108_million_images() -> None:
    test = a_test(shape="level", metric="training_90_epochs_s", at_most=86_400)
    case = only_case(found_by(test, shown({R50: even(1500.0)})))
    assert case.effect is not None and case.effect.point == pytest.approx(108e6 / 1500, rel=1e-4)
    assert case.verdict == YES


# ---- telemetry ------------------------------------------------------------------------------------------------------


def watched(trial: Trial, number: int, **means: float) -> Record:
    read: Metrics = {name: Statistic(mean=value, low=value, high=value, n=9) for name, value in means.items()}
    window = Window(start_s=0.0, length_s=10.0, sources={f"gpu{index}": read for index in range(trial.devices)})
    return made(trial, number, "images_per_s", 100, telemetry=Telemetry(status="ok", windows={"timed": window}))


def test_utilisation_and_power_are_of_the_timed_part() -> None:
    results = of_records(
        *(watched(R50, number, utilisation=share, power_w=490) for number, share in enumerate((0.8, 0.9, 0.85), 1))
    )
    used = only_case(found_by(a_test(shape="level", metric="utilisation", at_most=0.95), results))
    ends = stats.ttest_1samp((0.8, 0.9, 0.85), 0).confidence_interval(0.95)
    assert interval(used) == pytest.approx((ends.low, 0.85, ends.high))
    drawn = only_case(found_by(a_test(shape="level", metric="power_fraction", at_most=0.8), results))
    assert drawn.effect is not None and drawn.effect.point == pytest.approx(490 / 700)


@pytest.mark.parametrize("devices", [1, 4, 8])
def test_power_is_relative_to_the_limit_of_the_boards_in_use(devices: int) -> None:
    trial = Trial(devices=devices)
    results = of_records(
        *(watched(trial, number, power_w=watts) for number, watts in enumerate((664, 665, 666), 1)), hw="h200_x8"
    )
    finding = found_by(a_test(shape="level", metric="power_fraction", at_most=0.8), results, view="h200_x8")
    case = only_case(finding)
    assert case.effect is not None and case.effect.point == pytest.approx(0.95)
    assert finding.verdict == NO, "idle boards do not lower the share"


def test_a_missing_sensor_is_the_reason() -> None:
    lacking = Telemetry(status="ok", windows={}, missing={"gpu0": {"dram_activity": "Hopper's counters only"}})
    results = of_records(*(made(R50, number, "images_per_s", 100, telemetry=lacking) for number in (1, 2, 3)))
    finding = found_by(a_test(shape="level", metric="dram_activity", at_most=0.5), results)
    assert (finding.verdict, only_case(finding).verdict) == (UNTESTED, UNTESTED)
    assert "DRAM activity: Hopper's counters only" in finding.reason


# ---- values given by words ------------------------------------------------------------------------------------------


def test_the_largest_number_of_epochs_is_never_0() -> None:
    """Timed blocks have 0 epochs and no accuracy. Without training runs beside them, 0 must not be the largest."""
    run = {"engine": "graph", "schedule": "one_cycle"}
    data = {
        **{Trial(batch=batch, epochs=n, **run): near(value) for batch, n, value in ((64, 5, 0.5), (256, 5, 0.7))},
        Trial(batch=64, epochs=1, **run): near(0.9),
        Trial(batch=64): near(0.1),
        Trial(batch=256): near(0.1),
    }
    test = a_test(shape="difference", metric="top1", at_least=0.05, select={"epochs": "largest"}, **OVER_64)
    case = only_case(found_by(test, shown(data, "top1")))
    assert case.verdict == YES and {side.trial.epochs for side in case.sides} == {5}
    finding = found_by(test, shown({Trial(batch=64): near(0.1), Trial(batch=256): near(0.1)}, "top1"))
    assert finding.verdict == UNTESTED and "no configuration of 01_training has the largest epochs" in finding.reason


def test_largest_and_smallest_are_among_the_selected_trials() -> None:
    data = {
        B16: near(900),
        B64: even(100),
        B128: near(110),
        B512: near(170),
        Trial(batch=512, precision="bf16"): near(10),
    }
    ends = a_test(shape="ratio", at_least=1.5, over={"batch": "largest"}, under={"batch": "smallest"})
    case = only_case(found_by({**ends, "select": {"precision": "fp32", "batch": [64, 128, 512]}}, shown(data)))
    assert [side.trial.batch for side in case.sides] == [512, 64]
    assert case.verdict == YES
    case = only_case(
        found_by(a_test(shape="level", at_least=1, select={"batch": "largest", "precision": "fp32"}), shown(data))
    )
    assert [side.trial for side in case.sides] == [B512]
    case = only_case(
        found_by(
            a_test(shape="level", at_least=1, select={"batch": "smallest", "model": "resnet50"}),
            shown({B16: near(1), B64: near(2)}),
        )
    )
    assert [side.trial for side in case.sides] == [B16]


def test_metrics_beside_a_trend_are_of_both_its_ends() -> None:
    data = {B16: near(100), B64: near(300), B128: near(250)}
    rises = a_test(shape="trend", along="batch", trend="rises", beside=["images_per_s"])
    ((_, beside),) = only_case(found_by(rises, shown(data))).beside
    assert beside == "100 images/s to 250 images/s"
    peaks = a_test(shape="trend", along="batch", trend="peaks", beside=["images_per_s"])
    ((_, beside),) = only_case(found_by(peaks, shown(data))).beside
    assert beside == "100 images/s to 250 images/s", "not of the peak"
    level = a_test(shape="level", at_least=1, select={"batch": 64}, beside=["images_per_s"])
    ((_, beside),) = only_case(found_by(level, shown(data))).beside
    assert beside == "300 images/s"


def test_an_early_or_late_trace_is_selected_by_its_steps_before() -> None:
    early, late = (Trial(batch=64, traced_iterations=5, steps_before=steps) for steps in (0, 300))
    for which, wanted in (("smallest", early), ("largest", late)):
        test = a_test(shape="level", at_least=1, select={"traced_iterations": 5, "steps_before": which})
        case = only_case(found_by(test, shown({early: near(100), late: near(100)})))
        assert [side.trial for side in case.sides] == [wanted]


def test_each_model_has_its_own_largest_batch() -> None:
    small, large = Trial(model="vgg16", batch=32), Trial(model="vgg16", batch=128)
    data = {B64: near(100), B512: near(200), small: near(100), large: near(50)}
    test = a_test(shape="ratio", at_least=1, over={"batch": "largest"}, under={"batch": "smallest"})
    finding = found_by(test, shown(data))
    assert [(case.sides[0].trial.batch, case.verdict) for case in finding.cases] == [(512, YES), (128, NO)]


def test_a_trial_is_never_compared_with_itself() -> None:
    test = a_test(shape="ratio", at_least=1, over={"batch": "largest"}, under={"batch": "smallest"})
    finding = found_by(test, shown({B64: near(100)}))
    assert (finding.verdict, finding.cases) == (UNTESTED, [])


def test_others_means_all_other_values_of_the_field() -> None:
    test = a_test(shape="ratio", at_most=1, over={"model": "resnet152"}, under={"model": "others"})
    data = {R50: even(50), R152: near(20), V16: near(90), V19: near(10)}
    finding = found_by(test, shown(data))
    assert {(case.sides[1].trial.model, case.verdict) for case in finding.cases} == {
        ("resnet50", YES),
        ("vgg16", YES),
        ("vgg19", NO),
    }
    assert finding.verdict == NO
    turned = a_test(shape="ratio", at_least=1, over={"model": "others"}, under={"model": "resnet152"})
    assert {case.sides[0].trial.model for case in found_by(turned, shown(data)).cases} == {"resnet50", "vgg16", "vgg19"}


def test_the_fastest_profile_has_the_most_images_per_second() -> None:
    def busy(rate: float, used: float, hw: str) -> Results:
        found = [
            watched(R50, n, utilisation=used + n / 1000).model_copy(
                update={"result": made(R50, n, "images_per_s", rate).result}
            )
            for n in (1, 2, 3)
        ]
        return of_records(*found, hw=hw)

    test = a_test(
        shape="ratio", metric="utilisation", at_most=1, over={"profile": "fastest"}, under={"profile": "others"}
    )
    three = [busy(300, 0.6, "h100"), busy(900, 0.5, "v100_sxm2"), busy(500, 0.4, "p100_16gb")]
    finding = found_by(test, *three, view=None)
    assert {case.sides[0].results.profile.name for case in finding.cases} == {"v100_sxm2"}
    assert {(case.sides[1].results.profile.name, case.verdict) for case in finding.cases} == {
        ("h100", YES),
        ("p100_16gb", NO),
    }


def test_inference_and_training_are_compared_also_at_the_same_batch() -> None:
    # `over` and `under` need not differ in every field: the largest batch of inference may equal that of training.
    # Fields of training only (the loader) or inference only (queries) do not prevent the comparison.
    infer = Trial(workload="infer", batch=256, queries=1000)
    train = Trial(workload="train", batch=256, loader="device")
    over, under = {"workload": "infer", "batch": "largest"}, {"workload": "train", "batch": 256}
    test = a_test(shape="ratio", metric="utilisation", between=(0.909, 1.1), over=over, under=under)
    finding = found_by(test, shown({infer: near(0.8), train: even(0.8)}, "utilisation"))
    assert finding.verdict == YES, finding.reason


# ---- comparable trials ----------------------------------------------------------------------------------------------


def test_trials_that_differ_in_another_field_are_not_compared() -> None:
    data = {B64: near(100), Trial(batch=256, precision="bf16"): near(200)}
    finding = found_by(a_test(shape="ratio", at_least=1.5, **OVER_64), shown(data))
    assert finding.verdict == UNTESTED
    assert "no configuration with batch 256 has a counterpart with batch 64 here" in finding.reason


def test_a_selection_without_trials_gives_a_reason() -> None:
    finding = found_by(a_test(shape="level", at_least=1, select={"model": ["vgg16", "vgg19"]}), shown({R50: near(1)}))
    assert finding.verdict == UNTESTED
    assert "no configuration of 01_training has VGG-16 or VGG-19" in finding.reason


def test_profiles_are_compared_despite_different_checksums_of_their_data() -> None:
    test = a_test(shape="ratio", at_least=1, over={"profile": "h200"}, under={"profile": "h100"})
    over, under = Trial(data_checksum="aa"), Trial(data_checksum="bb")
    found = shown({over: near(200)}), shown({under: near(100)}, hw="h100", host=OTHER_HOST)
    assert found_by(test, *found).verdict == YES


def test_a_trend_along_a_single_value_has_no_case_and_a_reason() -> None:
    finding = found_by(a_test(**ALONG, trend="rises"), shown({B64: near(100)}))
    assert (finding.verdict, finding.cases) == (UNTESTED, [])
    assert "several values of the batch" in finding.reason and "the records have 64" in finding.reason


@pytest.mark.parametrize("trend", ["diminishing", "peaks"])
def test_two_values_are_too_few_for_a_peak_or_diminishing_gains(trend: str) -> None:
    finding = found_by(a_test(**ALONG, trend=trend), shown({B64: near(100), B128: near(150)}))
    assert finding.verdict == UNTESTED
    assert finding.reason


def test_two_devices_of_the_same_generation_give_no_trend_along_generations() -> None:
    test = a_test(shape="trend", along="generation", trend="falls")
    assert load_profile("h100").device.compute_capability == load_profile("h200").device.compute_capability
    found = shown({R50: near(100)}), shown({R50: near(200)}, hw="h100", host=OTHER_HOST)
    finding = found_by(test, *found)
    assert finding.verdict == UNTESTED, "both are of compute capability 9.0"
    assert "generations" in finding.reason


def test_a_trend_along_generations_goes_from_older_to_newer() -> None:
    test = a_test(shape="trend", along="generation", trend="falls")
    found = shown({R50: near(100)}), shown({R50: near(200)}, hw="k40m", host=OTHER_HOST)
    finding = found_by(test, *found)
    assert finding.verdict == YES, finding.reason
    assert found_by(test | {"trend": "rises"}, *found).verdict == NO


def test_a_failed_size_is_named_beside_the_trend_without_it() -> None:
    data = {B64: even(100), B128: near(110), B256: OOM}
    finding = found_by(a_test(**ALONG, trend="rises"), shown(data))
    page = str(page_of(finding))
    assert OOM in page, "the page gives the reason of the failure"
    assert "64 to 256" not in page, "the trial at 256 failed"


@pytest.mark.parametrize("trend", ["constant", "diminishing", "peaks"])
def test_a_certain_contradiction_is_not_hidden_by_an_open_value(trend: str) -> None:
    data: dict[str, Data] = {
        "constant": {B64: (100.0,) * 3, B128: (130.0, 130.1, 129.9), B256: (60.0, 150.0, 400.0)},
        # gains per unit: 1, then certainly 1.5, then between a loss and three times as much
        "diminishing": {
            B64: (100.0,) * 3,
            B128: (164.0,) * 3,
            B256: (356.0, 356.1, 355.9),
            B512: (0.0 + 200, 900, 2500),
        },
        # certainly lower than the end, and perhaps lower than the beginning
        "peaks": {B64: (50.0, 150.0, 400.0), B128: (100.0,) * 3, B256: (110.0, 110.1, 109.9)},
    }
    finding = found_by(a_test(**ALONG, trend=trend), shown(data[trend]))
    assert finding.verdict == NO


def test_values_that_do_not_rise_have_no_diminishing_gains() -> None:
    finding = found_by(a_test(**ALONG, trend="diminishing"), shown({B64: near(100), B128: near(90), B256: near(80)}))
    assert finding.verdict == OPEN
    assert "does not rise" in finding.reason


def test_values_that_an_order_lacks_are_named() -> None:
    test = a_test(shape="order", along="profile", order=["h200", "v100_sxm2", "h100"])
    finding = found_by(test, *two_profiles({R50: near(3)}, {R50: near(1)}))
    assert only_case(finding).verdict == YES
    assert "V100" in finding.label or "v100_sxm2" in finding.label, "the label names the missing profile"


# ---- alike ----------------------------------------------------------------------------------------------------------

ALIKE = a_test(shape="alike", along="profile", among="model")


def two_profiles(here: Data, there: Data) -> tuple[Results, Results]:
    return shown(here), shown(there, hw="h100", host=OTHER_HOST)


@pytest.mark.parametrize(
    ("here", "there", "verdict"),
    [
        ({R50: near(200), V16: near(300)}, {R50: near(100), V16: near(100)}, YES),
        ({R50: near(50), V16: near(30)}, {R50: near(100), V16: near(100)}, YES),
        ({R50: near(100), V16: near(100)}, {R50: near(100), V16: near(100)}, YES),  # alike: no model differs
        ({R50: near(200), V16: near(50)}, {R50: near(100), V16: near(100)}, NO),
        ({R50: near(200), V16: near(100)}, {R50: near(100), V16: near(100)}, NO),  # one differs, one does not
        ({R50: near(200), V16: wide(50)}, {R50: near(100), V16: near(100)}, OPEN),
        ({R50: near(200), V16: (200.0,)}, {R50: near(100), V16: near(100)}, OPEN),
        ({R50: near(104), V16: near(97)}, {R50: near(100), V16: near(100)}, OPEN),  # up to 5 % counts as no difference
    ],
)
def test_the_order_of_profiles_is_the_same_for_every_model(here: Data, there: Data, verdict: str) -> None:
    finding = found_by(ALIKE, *two_profiles(here, there))
    assert finding.verdict == verdict, finding.reason
    case = only_case(finding)
    assert "ResNet-50" in case.label and "VGG-16" in case.label
    assert bool(case.reason) == (verdict == OPEN)


def test_a_single_model_gives_no_verdict_on_alike() -> None:
    finding = found_by(ALIKE, *two_profiles({R50: near(200)}, {R50: near(100)}))
    assert (finding.verdict, finding.cases) == (UNTESTED, [])
    assert "the network" in finding.reason


def test_an_order_without_values_gives_the_reason() -> None:
    finding = found_by(ALIKE, *two_profiles({R50: OOM, V16: near(1)}, {R50: near(100), V16: near(1)}))
    assert finding.verdict == UNTESTED
    assert OOM in finding.reason


# ---- magnitudes -----------------------------------------------------------------------------------------------------


def published(value: Any, **other: Any) -> dict[str, Any]:
    return {"value": value, "hardware": ["v100_sxm2"], **other}


@pytest.mark.parametrize(
    ("hw", "measured", "verdict"),
    [
        ("h200", 2.0, YES),  # on other hardware only the direction is judged
        ("h200", 3.0, YES),
        ("h200", 0.8, NO),
        ("v100_sxm2", 3.0, YES),
        ("v100_sxm2", 2.85, YES),  # 3.0x exceeds 1x by 2.0: the tolerance is ±0.2
        ("v100_sxm2", 2.75, NO),
        ("v100_sxm2", 3.25, NO),
        ("v100_sxm2", 2.8, OPEN),
        ("v100_sxm2", 0.8, NO),
    ],
)
def test_a_magnitude_decides_only_on_the_papers_hardware_and_is_shown_elsewhere(
    hw: str, measured: float, verdict: str
) -> None:
    test = a_test(shape="ratio", at_least=1, **OVER_64, published=[published(3.0)])
    finding = found_by(test, shown({B64: tight(100)[::-1], B256: tight(measured * 100)}, hw=hw), view=hw)
    assert finding.verdict == verdict
    assert only_case(finding).published == "3.00x on Tesla V100 SXM2"
    assert "Published: 3.00x on Tesla V100 SXM2" in str(page_of(finding))


def test_a_contradicted_direction_stays_so_with_an_open_magnitude() -> None:
    test = a_test(shape="ratio", at_least=1.5, **OVER_64, published=[published(1.3)])
    data = {B64: tight(100)[::-1], B256: tight(133)}  # certainly below 1.5x, and at the edge of 1.3x ± 0.03
    assert found_by(test, shown(data)).verdict == NO
    assert found_by(test, shown(data, hw="v100_sxm2"), view="v100_sxm2").verdict == NO


def test_the_reason_of_a_verdict_against_a_magnitude_names_the_magnitude() -> None:
    test = a_test(shape="ratio", at_least=1, **OVER_64, published=[published(3.0)])
    finding = found_by(test, shown({B64: even(100), B256: near(400)}, hw="v100_sxm2"), view="v100_sxm2")
    assert finding.verdict == NO
    assert "published" in only_case(finding).reason, "4x meets the bound of 1x, so the reason must name the magnitude"


def test_a_published_level_has_a_tolerance_of_10_percent() -> None:
    test = {"shape": "level", "metric": "throughput_variation", "published": [published(0.5)]}
    for measured, verdict in ((0.46, YES), (0.54, YES), (0.6, NO), (0.4, NO), (0.45, OPEN)):
        results = shown({R50: tight(measured)}, "throughput_variation", hw="v100_sxm2")
        assert found_by(test, results, view="v100_sxm2").verdict == verdict


def test_a_magnitude_without_a_direction_is_shown_but_not_testable_on_other_hardware() -> None:
    test = {"shape": "level", "metric": "throughput_variation", "published": [published(0.5)]}
    finding = found_by(test, shown({R50: near(0.5)}, "throughput_variation"))
    assert finding.verdict == UNTESTED
    assert "Tesla V100 SXM2" in finding.reason
    case = only_case(finding)
    assert case.effect is not None and case.effect.point == pytest.approx(0.5, rel=1e-3), "the figure is shown"
    assert case.published == "50.0 % on Tesla V100 SXM2"


def test_a_magnitude_of_other_hardware_does_not_prevent_a_verdict_on_a_direction() -> None:
    magnitude = {"shape": "level", "metric": "images_per_s", "published": [published(500)]}
    claim = a_claim(a_test(shape="level", at_least=100), magnitude)
    assert found_by(claim, shown({R50: near(110)})).verdict == YES
    assert found_by(claim, shown({R50: near(110)}, hw="v100_sxm2"), view="v100_sxm2").verdict == NO


def test_a_magnitude_applies_only_to_its_trials() -> None:
    test = a_test(shape="level", at_least=1, published=[published(100, select={"model": "vgg16"})])
    finding = found_by(test, shown({R50: near(500), V16: near(500)}, hw="v100_sxm2"), view="v100_sxm2")
    assert {case.sides[0].trial.model: (case.verdict, bool(case.published)) for case in finding.cases} == {
        "resnet50": (YES, False),
        "vgg16": (NO, True),
    }


def test_the_reason_for_a_magnitude_of_other_trials_does_not_name_the_hardware() -> None:
    test = {"shape": "level", "metric": "images_per_s", "published": [published(100, select={"image_px": 224})]}
    finding = found_by(test, shown({R50: near(100)}, hw="v100_sxm2"), view="v100_sxm2")
    assert finding.verdict == UNTESTED
    assert "a value of v100_sxm2" not in finding.reason, "the hardware is right; only the trials differ"


# ---- several cases and tests ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "verdict", "reason"),
    [
        ({R50: near(110), V16: near(110)}, YES, ""),
        ({R50: near(110), V16: near(90)}, NO, "1 of 2 cases contradicts it"),
        ({R50: near(100), V16: near(90)}, NO, "1 of 2 cases contradicts it"),
        ({R50: near(110), V16: near(100)}, OPEN, "1 of 2 cases is open"),
        ({R50: near(110), V16: OOM}, YES, ""),
        ({R50: near(90), V16: OOM}, NO, ""),
        ({R50: near(100), V16: OOM}, OPEN, "straddles"),
        ({R50: OOM, V16: OOM}, UNTESTED, OOM),
    ],
)
def test_a_claim_holds_when_all_of_its_cases_do(data: Data, verdict: str, reason: str) -> None:
    finding = found_by(a_test(shape="level", at_least=100), shown(data))
    assert finding.verdict == verdict
    assert len(finding.cases) == 2
    assert reason in finding.reason and bool(reason) == bool(finding.reason)


@pytest.mark.parametrize(
    ("data", "named", "has_interval"),
    [
        ({R50: near(110), V16: near(90)}, "3 runs; VGG-16, batch 64", True),
        ({R50: near(100), V16: near(110)}, "3 runs; ResNet-50, batch 64", True),
        ({R50: near(90), V16: near(90)}, "3 runs", False),  # the value is a range of both
        ({R50: near(90), V16: OOM}, "3 runs", True),  # the only case
    ],
)
def test_a_row_names_the_case_of_its_value_where_others_decide_too_and_gives_its_interval(
    data: Data, named: str, has_interval: bool
) -> None:
    row = claim_row(found_by(a_test(shape="level", at_least=100), shown(data)))
    table = BeautifulSoup(drawn("claims", [row]), "html.parser")
    assert named in [small.get_text() for small in table.select("td small")]
    assert row.here and bool(re.search(r" \[\d.+, \d.+\]", row.here.value)) == has_interval, row.here


@pytest.mark.parametrize(("bounds", "said"), [((100, 90), True), ((100,), False), ((100, 200), False)])
def test_a_row_says_that_the_tests_hold_which_it_does_not_show(bounds: tuple[int, ...], said: bool) -> None:
    claim = a_claim(*(a_test(shape="level", at_least=bound) for bound in bounds))
    row = claim_row(found_by(claim, shown({R50: near(110)})))
    assert ("Its other test holds too." in row.remarks) == said


@pytest.mark.parametrize(
    ("of_resnet", "of_vgg", "verdict"),
    [
        (near(110), near(110), YES),
        (near(110), near(90), NO),
        (near(100), near(90), NO),
        (near(110), near(100), OPEN),
        (near(110), OOM, UNTESTED),  # a claim with an untested part is not replicated
        (near(100), OOM, UNTESTED),
        (near(90), OOM, NO),  # a contradicted part is enough
        (OOM, OOM, UNTESTED),
    ],
)
def test_a_claim_holds_when_all_of_its_tests_do(of_resnet: Values, of_vgg: Values, verdict: str) -> None:
    tests = [a_test(shape="level", at_least=100, select={"model": model}) for model in ("resnet50", "vgg16")]
    finding = found_by(a_claim(*tests), shown({R50: of_resnet, V16: of_vgg}))
    assert finding.verdict == verdict, finding.reason
    if verdict == UNTESTED:
        assert OOM in finding.reason


# ---- missing evidence -----------------------------------------------------------------------------------------------


def test_a_single_study_is_enough_for_its_own_tests() -> None:
    one = a_claim(a_test(shape="level", at_least=1), studies=["01_training", "10_gan"])
    assert found_by(one, shown({R50: near(2)})).verdict == YES
    both = a_claim(
        a_test(shape="level", at_least=1),
        a_test(shape="level", at_least=1, study="10_gan"),
        studies=["01_training", "10_gan"],
    )
    finding = found_by(both, shown({R50: near(2)}))
    assert finding.verdict == UNTESTED and "no records of 10_gan" in finding.reason


def test_the_reason_for_missing_records_names_the_command() -> None:
    finding = found_by(a_test(shape="level", at_least=1))
    assert finding.verdict == UNTESTED
    assert "no records of 01_training on H200 SXM" in finding.reason
    assert "`make report HW=h200 STUDY=training`" in finding.reason
    assert "no device file has records of 01_training" in found_by(a_test(shape="level", at_least=1), view=None).reason


def test_no_command_is_named_for_hardware_that_cannot_run() -> None:
    assert not load_profile("k40m").runnable
    finding = found_by(a_test(shape="level", at_least=1), view="k40m")
    assert finding.verdict == UNTESTED
    assert "make report" not in finding.reason


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ("over", "it compares devices, and only H200 SXM has such records"),
        ("order", "it compares Tesla V100 SXM2 and Tesla K40m; such records are of H200 SXM"),
        ("along", "it compares GPUs of several generations; its records are of H200 SXM"),
        ("among", "it compares devices, and only H200 SXM has such records"),
    ],
)
def test_a_comparison_of_profiles_needs_two_profiles(field: str, reason: str) -> None:
    test = {
        "over": a_test(shape="ratio", at_least=1, over={"profile": "fastest"}, under={"profile": "others"}),
        "order": a_test(shape="order", along="profile", order=["v100_sxm2", "k40m"]),
        "along": a_test(shape="trend", along="generation", trend="falls"),
        "among": ALIKE,
    }[field]
    finding = found_by(test, shown({R50: near(1), V16: near(1)}))
    assert finding.verdict == UNTESTED
    assert finding.reason == reason


def test_a_comparison_of_named_devices_is_no_verdict_on_a_third() -> None:
    test = a_test(shape="ratio", at_least=1, over={"profile": "h200"}, under={"profile": "h100"})
    recorded = two_profiles({R50: near(2)}, {R50: near(1)})
    assert found_by(test, *recorded, view="h200").verdict != UNTESTED
    assert found_by(test, *recorded, view="cpu").verdict == UNTESTED
    assert "H100 SXM and H200 SXM; the CPU of this machine has no" in found_by(test, *recorded, view="cpu").reason


def test_an_order_of_absent_profiles_names_the_present_ones() -> None:
    test = a_test(shape="order", along="profile", order=["v100_sxm2", "k40m"])
    finding = found_by(test, *two_profiles({R50: near(1)}, {R50: near(1)}))
    assert finding.verdict == UNTESTED
    assert finding.reason == "it compares Tesla V100 SXM2 and Tesla K40m; such records are of H100 SXM and H200 SXM"


def test_a_value_of_0_has_no_ratio() -> None:
    data = {B64: (0.0, 0.1, 0.1), B256: near(0.2)}
    finding = found_by(a_test(shape="ratio", metric="reread_share", at_least=1, **OVER_64), shown(data, "reread_share"))
    assert finding.verdict == UNTESTED
    assert "a value of 0 or less has no ratio" in finding.reason
    assert (
        found_by(a_test(**ALONG, metric="reread_share", trend="rises"), shown(data, "reread_share")).verdict == UNTESTED
    )
    assert found_by(
        a_test(shape="difference", metric="reread_share", at_least=0, **OVER_64), shown(data, "reread_share")
    ).cases


def test_a_failure_without_a_reason_gives_its_status() -> None:
    hung = [made(R50, number, "images_per_s", 1, status="timeout", result=None) for number in (1, 2, 3)]
    reason = found_by(a_test(shape="level", at_least=1), of_records(*hung)).reason
    assert "timeout" in reason and "None" not in reason


def test_every_claim_can_be_judged_with_no_or_few_records() -> None:
    papers = load_papers()
    claims = sum(len(paper.claims) for paper in papers)
    sparse = shown({B64: near(100), B256: (120.0,), V16: OOM, R152: (1.0, None, 2.0)})
    for view in ("h200", "cpu", "k40m", None):
        for evidence in (seen(view=view), seen(sparse, view=view)):
            findings = Findings(judge_all(papers, evidence))
            assert len(findings.findings) == claims
            assert all(finding.reason for finding in findings.findings if finding.verdict == UNTESTED)
            assert findings._repr_mimebundle_()["text/html"]
            assert len(findings.frame()) >= claims


def test_a_study_shows_only_its_own_claims() -> None:
    papers = load_papers()
    findings = judge_all(papers, seen(), "04_power")
    assert {finding.claim.id for finding in findings} == {"wisconsin-power-below-limit", "wisconsin-bigger-more-power"}
    assert all("20_comparison" in finding.claim.studies for finding in judge_all(papers, seen(), "20_comparison"))


# ---- hosts and profiles ---------------------------------------------------------------------------------------------


def test_records_of_other_profiles_are_not_evidence() -> None:
    test = a_test(shape="level", at_least=100)
    here, there = two_profiles({R50: near(110)}, {R50: near(50)})
    assert found_by(test, here, there).verdict == YES
    assert found_by(test, here, there, view="h100").verdict == NO
    assert "no records" in found_by(test, here, there, view="v100_sxm2").reason


def test_without_a_view_each_profile_is_a_separate_case() -> None:
    finding = found_by(a_test(shape="level", at_least=100), *two_profiles({R50: near(110)}, {R50: near(50)}), view=None)
    assert finding.verdict == NO
    assert {(case.label, case.verdict) for case in finding.cases} == {
        ("ResNet-50, batch 64, H200 SXM", YES),
        ("ResNet-50, batch 64, H100 SXM", NO),
    }
    ratio = found_by(
        a_test(shape="ratio", at_least=1, **OVER_64), *two_profiles({B64: near(1)}, {B256: near(2)}), view=None
    )
    assert ratio.cases == [], "batches on different devices are not a pair"


def test_along_nodes_each_node_has_as_many_devices() -> None:
    one, two, apart = (Trial(devices=count, nodes=nodes) for count, nodes in ((4, 1), (8, 2), (4, 2)))
    over = a_test(shape="ratio", at_least=1.8, over={"nodes": 2}, under={"nodes": 1})
    case = only_case(found_by(over, shown({one: near(100), two: even(190), apart: near(50)})))
    assert [side.trial for side in case.sides] == [two, one] and case.verdict == YES
    (trend,) = found_by(a_test(shape="trend", along="nodes", trend="rises"), shown({one: near(1), two: near(2)})).cases
    assert trend.verdict == YES


def write(report: str, *found: Record) -> None:
    """Write records and the files of their hosts into a report."""
    store = Store(reports_folder() / report)
    for record in found:
        store.append(record)
        host = store.report / "hosts" / f"{record.host}.json"
        host.parent.mkdir(exist_ok=True)
        host.write_text(json.dumps(described(record.host)))


def of_plan(data: Data, **other: Any) -> list[Record]:
    planned = Planned(passes={short_hash(trial.key): 3 for trial in data}, order_seed=1)
    return sorted(records(data, "images_per_s", planned=planned, **other), key=lambda one: one.pass_number)


def test_hosts_are_never_pooled() -> None:
    write("h200", *of_plan({B64: even(100), B256: near(200)}, host=HOST))
    write("h200", *of_plan({B64: even(100), B256: near(120)}, host=OTHER_HOST, started_at="2026-02-01T00:00:00+00:00"))
    claim = a_claim(a_test(shape="ratio", at_least=1.5, **OVER_64))
    for here, verdict in ((HOST, YES), (OTHER_HOST, NO), (None, NO)):  # None: the newest complete host is used
        finding = judge(a_paper(claim), claim, evidence_of_reports("h200", here))
        case = only_case(finding)
        assert finding.verdict == verdict
        assert case.effect is not None and case.effect.n == 3
        assert {side.results.host_id for side in case.sides} == {here or OTHER_HOST}


# ---- several equal hosts --------------------------------------------------------------------------------------------

GRAPH64, GRAPH256 = (replace(trial, engine="graph") for trial in (B64, B256))


def hosts(*of_hosts: Data, metric: str = "images_per_s", **other: Any) -> list[Results]:
    """Return the records of several hosts. `other` are fields of their records."""
    names = [f"{place:012x}" for place in range(len(of_hosts))]
    return [
        of_records(*records(data, metric, host=name, **other), host=name)
        for name, data in zip(names, of_hosts, strict=True)
    ]


def judged_on(of_hosts: Sequence[Results], test: dict[str, Any]) -> Finding:
    claim = a_claim(test)
    return judge(a_paper(claim), claim, seen(of_hosts[0], others=of_hosts[1:]))


def test_an_eager_loop_is_judged_over_three_equal_hosts() -> None:
    # Each host alone is sure of its ratio; together they are not.
    of_hosts = hosts(*({B64: even(100), B256: even(rate)} for rate in (200, 100, 300)))
    test = a_test(shape="ratio", at_least=1.5, **OVER_64)
    finding = judged_on(of_hosts, test)
    case = only_case(finding)
    logs = np.log([2.0, 1.0, 3.0])
    low, high = stats.t.interval(0.95, 2, loc=logs.mean(), scale=stats.sem(logs))
    assert interval(case) == pytest.approx(tuple(np.exp([low, logs.mean(), high])), rel=1e-3)
    assert (finding.verdict, finding.scope, case.n) == (OPEN, "", 9)
    page = page_of(finding)
    assert "9 on 3 machines" in page.get_text() and len(page.select("td a")) == 3
    alone = judged_on(of_hosts[:2], test)
    assert (alone.verdict, alone.scope, only_case(alone).n) == (YES, ONE_HOST, 3)


@pytest.mark.parametrize(
    ("metric", "windows", "used"),
    [
        ("images_per_s", ([1], [3], [0]), {1, 3, 0}),
        ("images_per_s", ([0], [1], [12]), {0}),
        ("power_w", ([1], [0, 3], [1]), {1, 3}),
        ("power_w", ([1], [3], [0]), {1}),
    ],
)
def test_equal_hosts_may_have_other_energy_windows_if_these_leave_the_metric_as_it_is(
    metric: str, windows: Sequence[Sequence[int]], used: set[int]
) -> None:
    of_hosts = hosts(
        *(
            {replace(of, energy_windows=own): even(rate) for own in of_host for of, rate in ((B64, 100), (B256, over))}
            for over, of_host in zip((200, 202, 204), windows, strict=True)
        ),
        metric=metric,
    )
    case = only_case(judged_on(of_hosts, a_test(shape="ratio", metric=metric, at_least=1.5, **OVER_64)))
    assert case.effect is not None and case.effect.hosts == (1 if len(used) == 1 else 3)
    assert {trial.energy_windows for _, trial in case.sources} == used
    assert all(results.ok(trial) for results, trial in case.sources), "each host ran its trial"


def test_a_failed_trial_is_not_judged_by_its_runs_with_other_energy_windows() -> None:
    metered = {replace(B64, energy_windows=1): even(100), replace(B256, energy_windows=1): even(300)}
    for place in range(3):
        rates = ["out of memory" if number == place else even(rate) for number, rate in enumerate((200, 202, 204))]
        of_hosts = hosts(*({B64: even(100), B256: rate, **metered} for rate in rates))
        cases = judged_on(of_hosts, a_test(shape="ratio", at_least=1.5, **OVER_64)).cases
        by_windows = {case.sides[0].trial.energy_windows: case for case in cases}
        assert by_windows[1].verdict == YES
        assert by_windows[0].verdict == (YES if place else "not testable here")
        if place:
            assert by_windows[0].effect is not None and by_windows[0].effect.hosts == 1, "two hosts are too few"


def test_a_host_with_and_without_energy_windows_gives_the_runs_of_the_trial() -> None:
    metered = {replace(B64, energy_windows=1): even(100), replace(B256, energy_windows=1): even(300)}
    of_hosts = hosts(*({B64: even(100), B256: even(rate), **metered} for rate in (200, 202, 204)))
    found = judged_on(of_hosts, a_test(shape="ratio", at_least=1.5, **OVER_64))
    assert sorted(interval(case)[1] for case in found.cases) == pytest.approx([2.02, 3], rel=1e-3)


@pytest.mark.parametrize("passes", [1, 2])
def test_values_that_no_host_changes_are_judged_over_hosts_if_passes_are_too_few(passes: int) -> None:
    of_hosts = hosts(*({GRAPH64: even(100)[:passes], GRAPH256: even(rate)[:passes]} for rate in (200, 202, 204)))
    over = a_test(shape="ratio", at_least=1.5, over={"batch": 256}, under={"batch": 64})
    finding = judged_on(of_hosts, over)
    case = only_case(finding)
    assert (finding.verdict, finding.scope, case.n) == (YES, "", 3 * passes)
    logs = np.log([2.0, 2.02, 2.04])
    low, high = stats.t.interval(0.95, 2, loc=logs.mean(), scale=stats.sem(logs))
    assert interval(case) == pytest.approx(tuple(np.exp([low, logs.mean(), high])), rel=1e-3)
    assert judged_on(of_hosts[:2], over).verdict == OPEN


def test_few_passes_of_a_profile_are_those_of_its_hosts_beside_the_passes_of_one_host_of_another_profile() -> None:
    of_hosts = hosts(*({GRAPH64: even(rate)[:2]} for rate in (200, 202, 204)))
    other = shown({GRAPH64: even(100)}, hw="h100", host=OTHER_HOST)
    claim = a_claim(a_test(shape="ratio", at_least=1.5, over={"profile": "h200"}, under={"profile": "h100"}))
    finding = judge(a_paper(claim), claim, seen(of_hosts[0], other, others=of_hosts[1:]))
    case = only_case(finding)
    assert (finding.verdict, case.n) == (YES, 3)
    expected = stats.ttest_ind(np.log([200, 202, 204]), np.log(even(100)), equal_var=False).confidence_interval(0.95)
    assert (interval(case)[0], interval(case)[2]) == pytest.approx(tuple(np.exp(expected)), rel=1e-3)
    assert len(page_of(finding).select("td a")) == 4, "a file of each host of the values"


def test_levels_and_gains_of_eager_loops_are_over_hosts_too() -> None:
    of_hosts = hosts(*({B64: even(100 * f), B128: even(200 * f), B256: even(250 * f)} for f in (1, 2, 4)))
    level = judged_on(of_hosts, a_test(shape="level", at_least=300, select={"batch": 64}))
    assert interval(only_case(level))[1] == pytest.approx(200, rel=1e-3) and level.verdict == OPEN
    gains = judged_on(of_hosts, a_test(**ALONG, trend="diminishing"))
    assert (gains.verdict, gains.scope) == (YES, "")


@pytest.mark.parametrize(
    "changed",
    [{"protocol": 2}, {"scale": "smoke"}, {"versions": {"torch": "2.12"}}],
)
def test_hosts_of_another_protocol_scale_or_version_are_not_pooled(changed: dict[str, Any]) -> None:
    data = {B64: even(100), B256: even(200)}
    of_hosts = [*hosts(data, data), hosts(data, data, data, **changed)[2]]
    assert judged_on(of_hosts, a_test(shape="ratio", at_least=1.5, **OVER_64)).scope == ONE_HOST


def test_a_host_with_another_processor_is_not_pooled() -> None:
    of_hosts = hosts(*[{B64: even(100), B256: even(200)}] * 3)
    test = a_test(shape="ratio", at_least=1.5, **OVER_64)
    assert judged_on(of_hosts, test).scope == ""
    other = replace(of_hosts[2], host={"cpu": "another CPU"})
    assert judged_on([*of_hosts[:2], other], test).scope == ONE_HOST


def test_a_verdict_says_that_only_some_of_its_cases_are_of_one_machine() -> None:
    rates = {B64: even(100), B256: even(200)}
    other = {replace(trial, model="vgg16"): values for trial, values in rates.items()}
    test = a_test(shape="ratio", at_least=1.5, **OVER_64)
    scope = judged_on(hosts({**rates, **other}, rates, rates), test).scope
    assert scope == f"also of VGG-16, in part {ONE_HOST}"


def test_hosts_of_protocol_2_are_judged_alone() -> None:
    of_hosts = hosts(*[{B64: even(100), B256: even(200)}] * 3, protocol=2)
    assert judged_on(of_hosts, a_test(shape="ratio", at_least=1.5, **OVER_64)).scope == ONE_HOST


def test_what_the_host_does_not_change_is_judged_over_passes_without_a_word() -> None:
    captured = judged_on(
        hosts(*({GRAPH64: even(100), GRAPH256: even(rate)} for rate in (200, 100, 300))),
        a_test(shape="ratio", at_least=1.5, **OVER_64),
    )
    memory = judged_on(
        hosts(*({B64: even(100), B256: even(rate)} for rate in (200, 100, 300)), metric="memory_bytes"),
        {"shape": "ratio", "at_least": 1.5, "because": "made up", "metric": "memory_bytes", **OVER_64},
    )
    for finding in (captured, memory):
        assert (finding.verdict, finding.scope, only_case(finding).n) == (YES, "", 3)


def test_a_captured_step_over_an_eager_loop_with_more_passes_is_unpaired() -> None:
    eager = [100.0, 120.0, 110.0, 105.0, 125.0, 115.0]
    planned = Planned(passes={short_hash(GRAPH64.key): 3, short_hash(B64.key): 6}, order_seed=1)
    of_host = of_records(*records({GRAPH64: even(200), B64: eager}, "images_per_s", planned=planned))
    test = a_test(shape="ratio", at_least=1.5, over={"engine": "graph"}, under={"engine": "eager"})
    case = only_case(found_by(test, of_host))
    expected = stats.ttest_ind(np.log(even(200)), np.log(eager), equal_var=False).confidence_interval(0.95)
    assert (interval(case)[0], interval(case)[2]) == pytest.approx(tuple(np.exp(expected)), rel=1e-3)


def test_other_hosts_are_read_from_the_reports() -> None:
    for place, rate in enumerate((150, 200, 300), start=1):
        started = f"2026-02-0{place}T00:00:00+00:00"
        write("h200", *of_plan({B64: even(100), B256: even(rate)}, host=f"{place:012x}", started_at=started))
    claim = a_claim(a_test(shape="ratio", at_least=1.2, **OVER_64))
    case = only_case(judge(a_paper(claim), claim, evidence_of_reports("h200")))
    assert case.effect is not None and (case.effect.hosts, case.n) == (3, 9)
    (reports_folder() / "h200" / "hosts" / f"{1:012x}.json").write_text("no description")  # does not hide the others
    assert judge(a_paper(claim), claim, evidence_of_reports("h200")).scope == ONE_HOST


def test_an_effect_across_hosts_links_the_files_of_both() -> None:
    test = a_test(shape="ratio", at_least=1.5, over={"profile": "h200"}, under={"profile": "h100"})
    page = page_of(found_by(test, *two_profiles({R50: near(2)}, {R50: near(1)})))
    assert [link["href"] for link in page.select("td a")] == [
        f"../h200/records/{HOST}/01_training.jsonl",
        f"../h100/records/{OTHER_HOST}/01_training.jsonl",
    ]


# ---- differences between records and paper --------------------------------------------------------------------------


LEVEL = a_test(shape="level", at_least=1)
BF16, FP16 = (Trial(precision=precision) for precision in ("bf16", "fp16"))
TWO, FOUR = Trial(devices=2), Trial(devices=4)
COPY = Trial(workload="memory_copy", size=2**20, data=NO_DATA)
TWO_MODELS = a_test(shape="level", at_least=1, select={"model": ["resnet50", "vgg16"]})
TWO_PRECISIONS = a_test(shape="level", at_least=1, select={"precision": ["fp32", "fp16"]})
OVER_FP32 = a_test(shape="ratio", at_least=1, over={"precision": "bf16"}, under={"precision": "fp32"})
OVER_JAX = a_test(shape="ratio", at_least=1, over={"framework": "torch"}, under={"framework": "keras-jax"})
OVER_OTHERS = a_test(shape="ratio", at_most=1, over={"model": "resnet152"}, under={"model": "others"})


def level_of(*hardware: str) -> dict[str, Any]:
    return a_test(shape="level", at_least=1, published=[{"value": 2, "hardware": [*hardware]}])


@pytest.mark.parametrize(
    ("test", "data", "setup", "label"),
    [
        (LEVEL, {R50: near(2)}, {}, "replicated"),
        (LEVEL, {R50: near(2)}, {"data_sets": ["imagenet32"]}, "replicated, on synthetic images"),
        (LEVEL, {R50: near(2)}, {"frameworks": ["tensorflow"]}, "replicated, with PyTorch"),
        (LEVEL, {BF16: near(2)}, {}, "replicated, in BF16"),
        (LEVEL, {R50: near(2)}, {"models": ["resnet50", "vgg16"]}, "replicated, without VGG-16"),
        (LEVEL, {R50: near(2)}, {"models": ["googlenet"]}, "replicated, of ResNet-50 instead of the paper's networks"),
        (LEVEL, {R50: near(2), V19: near(2)}, {}, "replicated, also of VGG-19"),
        (
            LEVEL,
            {R50: near(0.5)},
            {"data_sets": ["imagenet32"], "frameworks": ["caffe"]},
            "not replicated, on synthetic images, with PyTorch",
        ),
        (LEVEL, {R50: near(2), TWO: near(2)}, {}, "replicated, on 2 GPUs"),
        (LEVEL, {R50: near(2), TWO: near(2), FOUR: near(2)}, {}, "replicated, on 2 and 4 GPUs"),
        (LEVEL, {replace(TWO, device="cpu"): near(2)}, {}, "replicated, on 2 processes"),
        (
            LEVEL,
            {replace(FOUR, placement="together", epochs=3): near(2)},
            {},
            "replicated, by 4 workers that share one device, after 3 epochs",
        ),
        (LEVEL, {COPY: near(2)}, {}, "replicated"),  # a trial without data and network differs in neither
        (TWO_PRECISIONS, {R50: near(2)}, {}, "replicated, without FP16"),
        (TWO_PRECISIONS, {R50: near(2), FP16: near(2)}, {"precisions": ["fp32", "fp16"]}, "replicated"),
        # A field that the claim compares is not a difference.
        (OVER_FP32, {R50: near(2), BF16: near(3)}, {}, "replicated"),
        (OVER_JAX, {R50: near(2), Trial(framework="keras-jax"): near(1)}, {}, "replicated"),
        (
            TWO_MODELS,
            {R50: near(2), V16: OOM},
            {"models": ["resnet50", "vgg16", "vgg19"]},
            "replicated, without VGG-16",
        ),
        (OVER_OTHERS, {R50: near(2), R152: near(1)}, {"models": ["resnet50", "resnet152"]}, "replicated"),
        (level_of("v100_sxm2"), {R50: near(2)}, {}, "replicated"),
    ],
)
def test_a_verdict_names_the_differences_between_records_and_paper(
    test: dict[str, Any], data: Data, setup: dict[str, Any], label: str
) -> None:
    here = f", {ONE_HOST}" if any(trial.is_host_bound for trial in data) else ""
    assert found_by(test, shown(data), **setup).label == label + here


@pytest.mark.parametrize(
    ("statement", "test", "data", "missing"),
    [
        ("It trains 2 images/s.", LEVEL, {R50: near(2)}, ("2",)),
        ("It trains 1 image/s or more.", LEVEL, {R50: near(2)}, ()),
        ("ResNet-50 in FP16 loses 8-bit top-1.", LEVEL, {R50: near(2)}, ()),
        ("It trains 100 % or more.", LEVEL, {R50: near(2)}, ()),
        ("It trains 1.5-2 images/s.", LEVEL, {R50: near(2)}, ("1.5", "2")),
        ("On four GPUs it trains.", LEVEL, {R50: near(2)}, ("four GPUs",)),
        ("On two and four GPUs it trains.", LEVEL, {TWO: near(2), FOUR: near(2)}, ()),
        ("On 1 and 8 GPUs over eight nodes it trains.", LEVEL, {R50: near(2)}, ("1 and 8 GPUs", "eight nodes")),
        ("At batch 64 it trains, at batch 1,024 not.", LEVEL, {B64: near(2)}, ("batch 1,024",)),
        ("Except at batch 1,024 it trains.", LEVEL, {B64: near(2)}, ()),
        ("A P100 trains.", LEVEL, {R50: near(2)}, ("P100",)),
        ("An H200 trains over NVLink.", LEVEL, {R50: near(2)}, ()),
        ("It trains about 2 images/s.", level_of("h200"), {R50: near(2)}, ()),
        ("It trains about 2 images/s.", level_of("v100_sxm2"), {R50: near(2)}, ("2",)),
    ],
)
def test_a_verdict_is_on_the_direction_where_no_test_has_a_number_or_hardware_of_the_sentence(
    statement: str, test: dict[str, Any], data: Data, missing: tuple[str, ...]
) -> None:
    finding = found_by(a_claim(test, statement=statement), shown(data))
    assert (finding.verdict, finding.not_judged) == (YES, missing)
    group = "direction replicated" if missing else YES
    assert finding.group == finding.badge == group
    findings = Findings([finding])
    assert findings.counts()[group] == sum(findings.counts().values()) == 1
    assert group in BeautifulSoup(findings._repr_mimebundle_()["text/html"], "html.parser").get_text()
    assert ("No test here judges" in str(page_of(finding))) == bool(missing)


@pytest.mark.parametrize("verdict", (NO, OPEN))
def test_a_direction_that_is_not_replicated_says_so_and_counts_as_such(verdict: Verdict) -> None:
    data = {R50: near(0.5) if verdict == NO else near(1)}
    finding = found_by(a_claim(LEVEL, statement="A K80 trains."), shown(data))
    assert (finding.badge, finding.group) == (f"direction {verdict}", verdict)


@pytest.mark.parametrize("verdict", [YES, NO])
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("runs", [1, 2])
def test_fewer_than_three_runs_give_no_verdict(runs: int, name: str, verdict: str) -> None:
    test, by_verdict = SHAPES[name]
    data = {trial: values[:runs] for trial, values in by_verdict[verdict].items()}
    finding = found_by(test, shown(data, test["metric"]))
    assert finding.verdict == OPEN and all(case.verdict == OPEN and case.n <= runs for case in finding.cases)
    assert finding.why == "fewer than three runs"


def test_a_case_of_fewer_than_three_runs_does_not_block_another_and_the_scope_says_so() -> None:
    finding = found_by(TWO_MODELS, shown({R50: near(2), V16: near(2)[:2]}), models=["resnet50", "vgg16"])
    assert finding.label == f"replicated, without VGG-16, without 1 case of fewer than 3 runs, {ONE_HOST}"
    on_four = a_claim(LEVEL, statement="On 1 and 4 GPUs it trains.")
    assert found_by(on_four, shown({R50: near(2), FOUR: near(2)[:2]})).not_judged == ("1 and 4 GPUs",)
    of_two_tests = a_claim(
        *(a_test(shape="level", at_least=1, select={"model": name}) for name in ("resnet50", "vgg16"))
    )
    finding = found_by(of_two_tests, shown({R50: near(2), V16: near(2)[:2]}))
    assert finding.verdict == OPEN, "every test must be decided"


def test_a_machine_without_a_gpu_decides_only_where_no_other_does() -> None:
    claim = a_claim(a_test(shape="level", at_least=1, select={"model": "resnet50"}))
    on_gpu, on_cpu = (shown({R50: near(rate)}, hw=hw) for hw, rate in (("h200", 2), ("cpu", 0.5)))
    both = judge(a_paper(claim), claim, seen(on_gpu, on_cpu, view=None))
    assert both.verdict == "replicated" and "without 1 case of machines without a GPU" in both.label
    assert judge(a_paper(claim), claim, seen(on_cpu, view=None)).verdict == "not replicated"


@pytest.mark.parametrize("lacking", ["value", "n"])
def test_no_verdict_is_drawn_without_its_value_and_runs(lacking: str) -> None:
    given = {"value": "2.00x", "n": "3 runs"}
    assert BeautifulSoup(drawn("measured", Measured(**given)), "html.parser").get_text() == "2.00x 3 runs"
    with pytest.raises(ValueError, match="value and runs"):
        Measured(**given | {lacking: ""})


def test_a_users_own_images_are_in_the_scope_with_their_size_and_decide_no_claim_on_imagenet() -> None:
    facts = {"set_images": 9_469, "set_classes": 10}
    own = of_records(*records({replace(R50, data="own_jpegs"): near(2)}, "images_per_s", facts=facts))
    test = a_test(shape="level", at_least=1)
    finding = found_by(test, own, data_sets=["ilsvrc2012"])
    assert finding.scope == f"on own JPEG images (10 classes, 9,469 images), {ONE_HOST}"
    assert found_by(a_claim(test, only={"data": ["ilsvrc2012"]}), own).mark == "other hardware or data"
    assert setup_line(ResultsOfStudies([own]).frame()).text.split(" · ")[2] == (
        "32 px own JPEG images (10 classes, 9,469 images)"
    )


def test_an_untestable_claim_has_no_scope_in_its_label() -> None:
    finding = found_by(
        {"shape": "level", "metric": "images_per_s", "published": [published(2)]}, shown({R50: near(2)}), data_sets=[]
    )
    assert finding.scope == f"on synthetic images, {ONE_HOST}"
    assert finding.label == UNTESTED


# ---- findings as text, frame and page -------------------------------------------------------------------------------


def four_findings() -> Findings:
    select = [{"model": model} for model in ("resnet50", "vgg16", "resnet152", "vgg19")]
    of = [
        a_claim(a_test(shape="level", at_least=100, select=fields), id=f"made-{place}")
        for place, fields in enumerate(select)
    ]
    data = {R50: near(110), V16: near(90), R152: near(100), V19: OOM}
    return Findings(judge_all([a_paper(*of)], seen(shown(data))))


def test_findings_are_counted_by_verdict_in_a_sentence() -> None:
    findings = four_findings()
    counts = {YES: 1, "direction replicated": 0, NO: 1, OPEN: 1, "not counted": 0, UNTESTED: 1}
    assert findings.counts() == counts
    assert list(findings.counts()) == list(GROUPS)
    assert findings.sentence() == (
        "Of 4 published claims 3 could be tested here: 1 replicated, 1 not replicated and 1 inconclusive."
    )
    assert Findings(findings.findings[3:]).sentence() == "Of one published claim none could be tested here."
    assert Findings([])._repr_mimebundle_()["text/plain"] == "No published claim is about this study."


@pytest.mark.parametrize(
    ("fields", "mark", "said"),
    [
        ({}, None, ""),
        ({"mark": "by definition"}, "by definition", NOT_COUNTED["by definition"]),
        ({"only": {"model": ["resnet50"], "profile": ["h200"]}}, None, ""),
        ({"only": {"model": ["vgg16"]}}, "other hardware or data", "the paper speaks of VGG-16."),
        ({"only": {"profile": ["k80"]}}, "other hardware or data", "the paper speaks of Tesla K80"),
    ],
)
def test_a_marked_verdict_is_shown_with_its_reason_and_not_counted(
    fields: dict[str, Any], mark: str | None, said: str
) -> None:
    claim = a_claim(a_test(shape="level", at_least=100, select={"model": "resnet50"}), **fields)
    finding = judge(a_paper(claim), claim, seen(shown({R50: near(110)})))
    assert (finding.verdict, finding.mark) == (YES, mark)
    assert Findings([finding]).counts()[YES] == (mark is None)
    assert Findings([finding]).frame()["mark"].tolist() == [mark or ""]
    page = Findings([finding])._repr_mimebundle_()["text/html"]
    assert "replicated" in page and ("Not counted: " in page) == (mark is not None) and said in page


@pytest.mark.parametrize(
    ("verdict", "host", "shown_why"), [(NO, HOST, True), (OPEN, HOST, False), (NO, OTHER_HOST, False)]
)
def test_a_reason_is_shown_for_its_verdict_and_records_only(verdict: str, host: str, shown_why: bool) -> None:
    why = {"profile": "h200", "host": host, "verdict": verdict, "why": "waits for kernel launches"}
    claim = a_claim(a_test(shape="level", at_least=100, select={"model": "resnet50"}), because_not=[why])
    finding = judge(a_paper(claim), claim, seen(shown({R50: near(50)})))
    assert finding.verdict == NO
    assert (finding.why == "waits for kernel launches") == shown_why
    page = Findings([finding])._repr_mimebundle_()["text/html"]
    assert ("Waits for kernel launches." in page) == shown_why


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ({"shape": "level", "at_least": 1}, "Throughput"),
        ({"shape": "ratio", "at_least": 1, "over": {"device": "cuda"}, "under": {"device": "cpu"}}, "GPU over CPU"),
        (
            {
                **{"shape": "ratio", "at_least": 1},
                "over": {"precision": "int8", "engine": "fastest"},
                "under": {"precision": "fp32", "engine": "fastest"},
            },
            "INT8 over FP32",
        ),
        (
            {"shape": "ratio", "at_least": 1, "over": {"batch": "largest"}, "under": {"batch": "others"}},
            "the largest batch over another batch",
        ),
        ({"shape": "trend", "along": "batch", "trend": "rises"}, "highest over lowest batch"),
        ({"shape": "trend", "along": "batch", "trend": "peaks"}, "highest over first and last batch"),
        ({"shape": "alike", "along": "profile", "among": "model"}, "one device over another"),
    ],
)
def test_a_test_says_what_its_ratio_is_of(test: dict[str, Any], said: str) -> None:
    assert quantity_label(a_claim(a_test(**test)).tests[0]) in (said, f"Throughput, {said}")


def test_a_claim_without_records_has_no_group_but_its_verdict() -> None:
    claim = a_claim(a_test(shape="level", at_least=1), mark="derived")
    assert judge(a_paper(claim), claim, seen()).group == UNTESTED


def test_the_frame_has_a_row_per_case_or_per_claim_without_cases() -> None:
    findings = Findings([*four_findings().findings, found_by(a_test(shape="level", at_least=1))])
    frame = findings.frame()
    assert list(frame.columns) == COLUMNS
    assert frame["verdict"].tolist() == [YES, NO, OPEN, UNTESTED, UNTESTED]
    assert frame["case_verdict"].tolist()[:4] == [YES, NO, OPEN, UNTESTED]
    first, failed, absent = frame.iloc[0], frame.iloc[3], frame.iloc[4]
    logs = np.log(near(110))
    ends = stats.ttest_1samp(logs, 0).confidence_interval(0.95)
    assert (first["effect"], first["low"], first["high"], first["n"]) == pytest.approx(
        (math.exp(logs.mean()), math.exp(ends.low), math.exp(ends.high), 3)
    )
    assert (first["metric"], first["kind"], first["needs"]) == ("images_per_s", "level", "at least 100 images/s")
    assert math.isnan(failed["effect"]) and failed["n"] == 0 and OOM in failed["case_reason"]
    assert math.isnan(absent["effect"]) and "no records" in absent["reason"]


def test_a_study_shows_a_row_per_claim_with_a_link_to_its_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    in_jupyterlab = four_findings()._repr_mimebundle_()["text/html"]
    monkeypatch.setenv(REPORT_VARIABLE, "1")
    page = BeautifulSoup(four_findings()._repr_mimebundle_()["text/html"], "html.parser")
    rows = page.select("tbody tr")
    verdicts = [row.select_one(".lk-verdict").get_text() for row in rows]  # type: ignore[union-attr]
    assert verdicts == [f"{MARKS[verdict]} {verdict}" for verdict in (NO, OPEN, YES, UNTESTED)]
    links = [row.select_one("a")["href"] for row in rows]  # type: ignore[index]
    assert links == [f"claims.html#claim-made-{VERDICTS.index(verdict)}" for verdict in (NO, OPEN, YES, UNTESTED)]
    assert "at least 100 images/s" in rows[2].get_text(" ") and "110 images/s" in rows[2].get_text(" ")
    assert OOM in rows[3].get_text(" ")
    assert page.select("details tbody tr") == rows[3:], "untestable claims are folded with their number"
    assert "Not testable here: 1 claim," in page.select_one("details > summary").get_text()  # type: ignore[union-attr]
    text = BeautifulSoup(in_jupyterlab, "html.parser").get_text(" ")
    assert "href" not in in_jupyterlab and text.split() == page.get_text(" ").split(), "beside a notebook is no page"


@pytest.mark.parametrize("further", [0, 1])
def test_further_tested_claims_are_folded(further: int) -> None:
    findings = Findings([four_findings().findings[0]] * (IN_SIGHT + further))
    page = BeautifulSoup(findings._repr_mimebundle_()["text/html"], "html.parser")
    assert len(page.select("tbody tr")) == IN_SIGHT + further
    assert len(page.select("details tbody tr")) == further


def test_bounds_and_effects_are_written_in_the_units_of_the_page() -> None:
    def caption(test: dict[str, Any], data: Data, metric: str) -> str:
        page = page_of(found_by(test, shown(data, metric)))
        return " ".join(page.get_text(" ").split())

    text = caption(a_test(shape="level", metric="utilisation", at_most=0.95), {R50: near(0.9)}, "utilisation")
    assert "at most 95 %" in text and "90.0 % [" in text
    text = caption(
        a_test(shape="difference", metric="top1", at_least=0.05, **OVER_64), {B64: even(0.5), B256: near(0.6)}, "top1"
    )
    assert "at least 5 points" in text and "+10 points [" in text
    text = caption(
        a_test(shape="ratio", between=(0.9, 1.1), **OVER_64), {B64: even(50), B256: near(50)}, "images_per_s"
    )
    assert "between 0.9x and 1.1x" in text and "ResNet-50: batch 256 over batch 64" in text
    text = caption(
        a_test(shape="level", metric="training_90_epochs_s", at_most=86_400), {R50: even(2500)}, "images_per_s"
    )
    assert "at most 1 day" in text and "0.500 days [" in text


def test_texts_of_papers_and_records_are_escaped() -> None:
    evil_trial = Trial(model=EVIL, data=EVIL)
    evil_batch = replace(evil_trial, batch=256)
    magnitude = {"value": 2.0, "hardware": ["h100"]}
    tests = [
        a_test(shape="ratio", at_least=1, because=EVIL, published=[magnitude], beside=["top1"], **OVER_64),
        a_test(shape="level", at_least=1, because=EVIL, select={"model": "resnet50"}),
        a_test(shape="order", along="data", order=[EVIL, "b"]),
        {"shape": "differs", "metric": "convolution_kernel", "along": "batch", "select": {"model": EVIL}},
    ]
    claim = a_claim(*tests, statement=EVIL, where=EVIL, note=EVIL)
    paper = a_paper().model_copy(update={"id": EVIL, "name": EVIL})
    facts = {"convolution_kernel": EVIL, "top1": 0.5}
    evil_records = [
        *records({evil_trial: even(1), evil_batch: near(2)}, "images_per_s", host=EVIL, facts=facts),
        *records({R50: EVIL}, "images_per_s", host=EVIL),
    ]
    results = of_records(*evil_records, host=EVIL)
    results = replace(results, profile=results.profile.model_copy(update={"title": EVIL}))
    finding = judge(paper, claim, seen(results))
    failed = judge(paper, a_claim(tests[1]), seen(results))
    assert EVIL in failed.reason and EVIL in finding.scope
    claims = "".join(drawn("claim", claim_row(each)) for each in (finding, failed))
    pages = {claims: 12, Findings([finding])._repr_mimebundle_()["text/html"]: 2}
    for page, least in pages.items():
        elements = BeautifulSoup(page, "html.parser").find_all(True)
        assert page.count("&lt;script&gt;") >= least
        assert not [element for element in elements if element.name == "script"]
        assert not {name for element in elements for name in element.attrs} & {"onload", "onclick"}
        assert all(re.match(r"\.\./|claims", str(element["href"])) for element in elements if element.has_attr("href"))


def test_metrics_beside_a_verdict_do_not_affect_it() -> None:
    test = a_test(shape="level", at_least=100, beside=["top1", "top5"])
    finding = found_by(test, of_records(*records({R50: near(110)}, "images_per_s", facts={"top1": 0.25})))
    case = only_case(finding)
    assert case.beside == (("Top-1 accuracy", "25.0 %"),), "a missing metric is left out"
    assert "Also measured: Top-1 accuracy 25.0 %." in str(page_of(finding))
    assert finding.verdict == YES


# ---- claims of the papers -------------------------------------------------------------------------------------------


def claim_of(name: str) -> tuple[Paper, Claim]:
    return next((paper, claim) for paper in load_papers() for claim in paper.claims if claim.id == name)


def table_of(paper: Paper, metric: str) -> PublishedTable:
    return next(table for table in paper.tables if table.metric == metric)


def utilised(shares: Mapping[str, float]) -> Finding:
    """Return the finding of these utilisations on the claim that the fastest device, here the V100, has the lowest."""

    def of(hw: str, share: float) -> Results:
        rate = 900 if hw == "v100_sxm2" else 300
        read = [watched(R50, n, utilisation=share) for n in (1, 2, 3)]
        return of_records(
            *(one.model_copy(update={"result": made(R50, 1, "images_per_s", rate).result}) for one in read), hw=hw
        )

    paper, claim = claim_of("wisconsin-v100-least")
    evidence = seen(*(of(*item) for item in shares.items()), view=None)
    return judge(paper, claim, evidence)


def test_the_printed_utilisations_support_that_the_fastest_device_has_the_lowest() -> None:
    table = table_of(claim_of("wisconsin-v100-least")[0], "utilisation")
    printed = {hw: table.si("mean", hw) for hw in table.columns}
    assert utilised(printed).verdict == NO, "71.7 % against the K40m's 75.2 % is no difference: within 5 %"
    assert utilised({hw: share for hw, share in printed.items() if hw != "k40m"}).verdict == YES
    assert utilised({"v100_sxm2": 0.9, "k40m": 0.8}).verdict == NO


def test_equal_utilisation_is_not_lower() -> None:
    # nvidia-smi reads 100 % on both, without noise, so the interval has width 0 and lies at the bound.
    assert utilised({"v100_sxm2": 1.0, "k40m": 1.0}).verdict != YES


# ---- error rates of verdicts ----------------------------------------------------------------------------------------

MANY, NOISE = 800, 0.03
ALLOWED = 0.025 + 3 * math.sqrt(0.025 * 0.975 / MANY)  # 2.5 % on each side plus three standard errors
# Six passes say what three do, and take twice as long.
THREE_OR_SIX = [3, pytest.param(6, marks=pytest.mark.slow)]


def verdicts_of(samples: Mapping[Trial, np.ndarray], test: dict[str, Any]) -> dict[str, float]:
    """Return the share of each verdict over the simulated data sets, which are the rows of `samples`.

    Each data set is a case, at an image size of its own. A table of 50 of them takes as long as one of two or three.
    """
    outcomes: list[Verdict] = []
    many = len(next(iter(samples.values())))
    for start in range(0, many, 50):
        places = enumerate(range(start, min(start + 50, many)), start=32)
        data = {replace(t, image_px=px): of[row].tolist() for px, row in places for t, of in samples.items()}
        outcomes += [case.verdict for case in found_by(test, shown(data)).cases]
    assert len(outcomes) == many
    return {verdict: outcomes.count(verdict) / many for verdict in VERDICTS}


def simulated(true_ratio: float, passes: int, many: int) -> dict[Trial, np.ndarray]:
    """Return values with log-normal noise, of which a part is common to both trials of a pass."""
    draw = np.random.default_rng(20_261_101 + passes)
    trouble = draw.lognormal(sigma=0.3, size=(many, passes))
    return {
        trial: 100 * factor * trouble * draw.lognormal(sigma=NOISE, size=(many, passes))
        for trial, factor in ((B64, 1.0), (B256, true_ratio))
    }


@pytest.mark.parametrize("passes", THREE_OR_SIX)
def test_a_true_ratio_at_the_bound_is_rarely_called_replicated_or_not(passes: int) -> None:
    share = verdicts_of(simulated(1.5, passes, MANY), a_test(shape="ratio", at_least=1.5, **OVER_64))
    assert 0 < share[YES] <= ALLOWED
    assert 0 < share[NO] <= ALLOWED
    assert share[YES] + share[NO] + share[OPEN] == pytest.approx(1)


@pytest.mark.parametrize("passes", THREE_OR_SIX)
def test_a_ratio_far_above_the_bound_is_nearly_always_called_replicated(passes: int) -> None:
    test = a_test(shape="ratio", at_least=1.5, **OVER_64)
    assert verdicts_of(simulated(2.0, passes, 100), test)[YES] >= 0.99
    assert verdicts_of(simulated(1.1, passes, 100), test)[NO] >= 0.99


def test_across_hosts_a_true_ratio_at_the_bound_is_rarely_called_replicated() -> None:
    draw = np.random.default_rng(7)
    test = a_test(shape="ratio", at_least=1.5, over={"profile": "h200"}, under={"profile": "h100"})
    claim = a_claim(test)
    paper = a_paper(claim)
    outcomes = []
    for _ in range(200):
        fast, slow = 150 * draw.lognormal(sigma=0.02, size=3), 100 * draw.lognormal(sigma=0.04, size=6)
        evidence = seen(shown({R50: fast.tolist()}), shown({R50: slow.tolist()}, hw="h100", host=OTHER_HOST))
        outcomes.append(judge(paper, claim, evidence).verdict)
    limit = 0.025 + 3 * math.sqrt(0.025 * 0.975 / 200)
    assert 0 < outcomes.count(YES) / 200 <= limit
    assert 0 < outcomes.count(NO) / 200 <= limit


@pytest.mark.parametrize("passes", THREE_OR_SIX)
def test_over_three_hosts_a_true_ratio_at_the_bound_is_rarely_called_replicated_or_not(passes: int) -> None:
    draw, many = np.random.default_rng(20_270_101), 120
    outcomes = []
    for _ in range(many):
        of_hosts = []
        for _ in range(3):
            rates = draw.lognormal(sigma=0.31) * draw.lognormal(sigma=0.15, size=passes)
            of_hosts.append({GRAPH64: even(150 * draw.lognormal(sigma=0.005)), B64: (100 * rates).tolist()})
        test = a_test(shape="ratio", at_least=1.5, over={"engine": "graph"}, under={"engine": "eager"})
        outcomes.append(judged_on(hosts(*of_hosts), test).verdict)
    limit = 0.025 + 3 * math.sqrt(0.025 * 0.975 / many)
    assert outcomes.count(YES) / many <= limit and outcomes.count(NO) / many <= limit
    assert {YES, NO} & set(outcomes), "the limit means nothing if no verdict is ever reached"


@pytest.mark.parametrize(
    ("trend", "truth"),
    [("rises", [100, 100, 100, 100, 105]), ("falls", [105, 105, 105, 105, 100]), ("peaks", [100, 100, 105, 100, 100])],
)
def test_a_trend_of_a_tie_is_rarely_called_a_trend(trend: str, truth: list[float]) -> None:
    # The data choose the top of a peak, which could raise its error rate above 2.5 %.
    draw = np.random.default_rng(20_261_102)
    trials = zip((B16, B32, B64, B128, B256), truth, strict=True)
    samples = {trial: mean * draw.lognormal(sigma=NOISE, size=(200, 3)) for trial, mean in trials}
    share = verdicts_of(samples, a_test(**ALONG, trend=trend))
    assert share[YES] <= 0.025 + 3 * math.sqrt(0.025 * 0.975 / 200)
    assert share[YES] or trend == "peaks", "two effects at the bound are hardly ever both beyond it"


@pytest.mark.parametrize("passes", THREE_OR_SIX)
def test_many_cases_do_not_contradict_a_claim_by_chance(passes: int) -> None:
    # Ten pairs, each with its truth at the lower end of a tie: uncorrected, a fifth of such claims would fall.
    draw = np.random.default_rng(20_261_124)
    claim = a_claim(a_test(shape="ratio", at_least=1, **OVER_64))
    outcomes = []
    for _ in range(100):
        pairs: Data = {}
        for image_px in range(32, 42):
            for batch, mean in ((64, 105.0), (256, 100.0)):
                values = mean * draw.lognormal(sigma=NOISE, size=passes)
                pairs[Trial(batch=batch, image_px=image_px)] = tuple(values.tolist())
        outcomes.append(judge(a_paper(claim), claim, seen(shown(pairs))).verdict)
    assert outcomes.count(NO) / 100 <= 0.025 + 3 * math.sqrt(0.025 * 0.975 / 100)
    assert YES not in outcomes


def test_a_clear_contradiction_stands_among_many_cases() -> None:
    claim = a_claim(a_test(shape="ratio", at_least=1, **OVER_64))
    pairs = {Trial(batch=64, image_px=px): even(100) for px in range(32, 42)}
    pairs |= {Trial(batch=256, image_px=px): near(50 if px == 32 else 200) for px in range(32, 42)}
    finding = judge(a_paper(claim), claim, seen(shown(pairs)))
    assert (finding.verdict, finding.reason) == (NO, "1 of 10 cases contradicts it")


def test_many_cases_do_not_contradict_a_range_by_chance() -> None:
    # A range has a near and a far end: the p value is that of the end which the effect has crossed.
    claim = a_claim(a_test(shape="ratio", between=(0.909, 1.1), **OVER_64))
    draw, outcomes = np.random.default_rng(20_261_125), []
    for _ in range(100):
        pairs: dict[Trial, Values] = {}
        for image_px in range(32, 42):
            for batch, mean in ((64, 100.0), (256, 110.0)):
                pairs[Trial(batch=batch, image_px=image_px)] = tuple(
                    (mean * draw.lognormal(sigma=NOISE, size=3)).tolist()
                )
        outcomes.append(judge(a_paper(claim), claim, seen(shown(pairs))).verdict)
    assert outcomes.count(NO) / 100 <= 0.025 + 3 * math.sqrt(0.025 * 0.975 / 100)


@pytest.mark.parametrize(
    ("bounds", "point"),
    [
        (Bounds(low=0.909, high=1.1), 1.15),
        (Bounds(low=0.909, high=1.1), 0.87),
        (Bounds(low=1.0, tie=0.05), 0.9),
        (Bounds(low=1.0, tie=0.05), 1.0),
        (Bounds(high=1.0, strict=True, tie=0.05), 1.01),
        (Bounds(low=0.9, high=1.1, outside=True), 1.0),
    ],
)
def test_a_contradiction_has_a_p_value_of_the_side_that_it_crossed(bounds: Bounds, point: float) -> None:
    for spread in np.linspace(0.001, 0.2, 40):
        effect = log_interval([point * (1 - spread), point, point / (1 - spread)])
        assert (bounds.verdict(effect) == NO) == (bounds.chance_against(effect) <= 0.025)


@pytest.mark.parametrize(
    ("rates", "verdict"),
    [
        (even(104), NO),
        (even(106.5), YES),
        (even(96), NO),
        (even(94), NO),
        ((99.0, 104.0, 109.0), OPEN),
        ((95.0, 100.0, 105.5), OPEN),
    ],
)
def test_no_difference_contradicts_a_direction_and_a_wider_interval_decides_nothing(
    rates: Values, verdict: str
) -> None:
    for bound in ({"at_least": 1}, {"at_most": 1}):
        expected = {YES: NO, NO: YES}.get(verdict, verdict) if bound == {"at_most": 1} else verdict
        finding = found_by(a_test(shape="ratio", **bound, **OVER_64), shown({B64: even(100), B256: rates}))
        within = min(rates) > 95.3 and max(rates) < 104.9
        assert finding.verdict == (NO if within else expected)
        assert ("no difference" in finding.cases[0].reason) == within


def test_records_of_two_protocols_are_never_divided() -> None:
    made_by = [
        record.model_copy(update={"protocol": 2}) if record.as_trial == B64 else record
        for record in records({B64: even(100), B256: even(200)}, "images_per_s")
    ]
    finding = found_by(a_test(shape="ratio", at_least=1, **OVER_64), of_records(*made_by))
    assert finding.verdict == UNTESTED and "protocols 2 and 3" in finding.cases[0].reason


def test_constant_compares_all_pairs() -> None:
    # Each is within 10 % of the first; the last two are 19 % apart.
    spread = {B64: even(100), B128: even(92), B256: even(109.5)}
    assert found_by(a_test(**ALONG, trend="constant"), shown(spread)).verdict == NO


def test_a_recorded_loop_with_a_host_setting_meets_a_claim_only_if_its_test_names_it() -> None:
    plain, bound = Trial(), Trial(host_setting="two_cores")
    sides = [Side(ResultsOfStudies([]), trial) for trial in (plain, bound)]

    def met(**wanted: Any) -> list[Trial]:
        return [side.trial for side in rooms.select(sides, wanted)]

    assert met() == met(engine="eager") == met(host_setting="default") == [plain]
    assert met(host_setting="two_cores") == [bound]
