"""Claims are tests fixed before measuring: the schema refuses invalid tests, and the papers' claims follow rules."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from labkit.errors import UserError
from workbook.claims.papers import Paper, load_papers
from workbook.claims.schema import FASTEST, LARGEST, OTHERS, SMALLEST, Claim, Published, Test
from workbook.hardware.profile import load_profile, profile_names
from workbook.registry import COMPARISON, METRICS, STUDIES

Test.__test__ = False  # type: ignore[attr-defined] # it is a claim's test, not pytest's

CLAIMS = {"cern": 6, "dell_p100": 9, "dell_v100": 22, "nyu": 15, "wisconsin": 32}  # of each paper
LATER = {"convnext": 1, "gpt_fast": 2, "inceptionnext": 2, "milabench": 1, "nanogpt": 1, "pytorch2": 2}
PAPERS = load_papers()
ALL = [(paper, claim, test) for paper in PAPERS for claim in paper.claims for test in claim.tests]


def each_test() -> Iterator[Any]:
    """Yield a parameter for each test of each claim. Its id is the claim's id and the test's index."""
    for paper, claim, test in ALL:
        yield pytest.param(paper, claim, test, id=f"{claim.id}.{claim.tests.index(test)}")


# ---- the schema -----------------------------------------------------------------------------------------------------

LEVEL: dict[str, Any] = {"shape": "level", "metric": "utilisation", "at_most": 0.95, "because": "'not fully'"}
RATIO: dict[str, Any] = {
    "shape": "ratio",
    "metric": "images_per_s",
    "over": {"batch": 256},
    "under": {"batch": 64},
    "at_least": 1,
    "because": "'more'",
}
TREND: dict[str, Any] = {"shape": "trend", "metric": "images_per_s", "along": "batch", "trend": "rises"}
ORDER: dict[str, Any] = {"shape": "order", "metric": "power_w", "along": "model", "order": ["resnet152", "resnet50"]}
ALIKE: dict[str, Any] = {"shape": "alike", "metric": "utilisation", "along": "profile", "among": "model"}
DIFFERS: dict[str, Any] = {"shape": "differs", "metric": "convolution_kernel", "along": "batch"}
TWO: dict[str, Any] = {
    "shape": "difference",
    "metric": "dram_activity",
    "metric_under": "fp32_activity",
    "at_least": 0,
    "because": "'memory-bound'",
}
VALID = {"level": LEVEL, "ratio": RATIO, "trend": TREND, "order": ORDER, "alike": ALIKE, "differs": DIFFERS, "two": TWO}
HALF = {"value": 0.5, "hardware": ["v100_sxm2"]}


def complaint(error: ValidationError) -> str:
    """Return the messages and their locations, without the input that pydantic repeats."""
    return "; ".join(f"{'.'.join(map(str, details['loc']))}: {details['msg']}" for details in error.errors())


def without(test: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in test.items() if name not in names}


@pytest.mark.parametrize("name", VALID)
def test_a_consistent_test_is_accepted(name: str) -> None:
    test = Test.model_validate(VALID[name])
    assert test.shape == VALID[name]["shape"]
    assert test.has_direction
    difference = {**RATIO, "shape": "difference", "metric": "top1"}
    assert Test.model_validate(difference).over == {"batch": 256}


@pytest.mark.parametrize(
    ("test", "said"),
    [
        # names, nearest valid ones first
        ({**LEVEL, "metric": "utilization"}, "unknown metric 'utilization'; valid: utilisation,"),
        ({**LEVEL, "beside": ["sm_activty"]}, "unknown metric 'sm_activty'; valid: sm_activity,"),
        ({**TWO, "metric_under": "fp32_activty"}, "unknown metric 'fp32_activty'; valid: fp32_activity,"),
        ({**DIFFERS, "metric": "images_per_s"}, "unknown label 'images_per_s'; valid: convolution_kernel"),
        ({**LEVEL, "select": {"batches": 64}}, "unknown trial field 'batches'; valid: batch,"),
        ({**TREND, "along": "devics"}, "unknown trial field 'devics'; valid: devices,"),
        ({**ALIKE, "among": "modell"}, "unknown trial field 'modell'; valid: model,"),
        ({**LEVEL, "published": [{**HALF, "select": {"pixels": 224}}]}, "unknown trial field 'pixels'"),
        ({**LEVEL, "select": {"precision": "fp4"}}, "unknown trial precision 'fp4'; valid: fp"),
        ({**LEVEL, "select": {"precision": ["fp32", "half"]}}, "unknown trial precision 'half'"),
        ({**LEVEL, "at_mosst": 1}, "Extra inputs are not permitted"),
        # bounds
        ({**LEVEL, "at_least": 0.5}, "a test has one bound: at_least, at_most, between or outside"),
        ({**RATIO, "outside": (0.909, 1.1)}, "a test has one bound"),
        (without(LEVEL, "at_most"), "a test of shape 'level' needs a bound: at_least, at_most, between or outside"),
        (without(LEVEL, "because"), "a bound needs `because`: the word of the paper that it stands for"),
        ({**without(LEVEL, "at_most"), "between": (0.6, 0.4)}, "the lower end comes first"),
        ({**without(LEVEL, "at_most"), "outside": (0.5, 0.5)}, "the lower end comes first"),
        (
            {**TREND, "at_least": 1, "because": "'rises'"},
            "a test of shape 'trend' has built-in bounds and takes no other",
        ),
        ({**LEVEL, "at_most": math.inf}, "finite"),
        # fields that a shape needs, and fields that it must not have
        (without(RATIO, "over"), "a test of shape 'ratio' needs `over`"),
        (without(RATIO, "under"), "a test of shape 'ratio' needs `under`"),
        ({**RATIO, "under": {"devices": 1}}, "`over` and `under` must give the same fields different values"),
        ({**RATIO, "under": {"batch": 256}}, "`over` and `under` must give the same fields different values"),
        (
            {**RATIO, "metric_under": "step_s"},
            "`metric_under` is for a ratio or difference of two metrics of one configuration",
        ),
        ({**LEVEL, "metric_under": "sm_activity"}, "`metric_under` is for a ratio or difference"),
        (without(TREND, "along"), "a test of shape 'trend' needs `along`"),
        (without(TREND, "trend"), "a test of shape 'trend' needs `trend`"),
        (without(ORDER, "order"), "a test of shape 'order' needs `order`"),
        (without(ALIKE, "among"), "a test of shape 'alike' needs `among`"),
        ({**LEVEL, "over": {"batch": 64}}, "a test of shape 'level' has no `over`"),
        ({**LEVEL, "trend": "rises"}, "a test of shape 'level' has no `trend`"),
        ({**TREND, "order": [64, 256]}, "a test of shape 'trend' has no `order`"),
        ({**ORDER, "among": "model"}, "a test of shape 'order' has no `among`"),
        # published magnitudes
        ({**TREND, "published": [HALF]}, "a test of shape 'trend' takes no `published` magnitude"),
        ({**LEVEL, "published": [{"value": 0.5, "hardware": []}]}, "at least 1 item"),
        ({**LEVEL, "published": [{**HALF, "value": (0.6, 0.4)}]}, "the lower end comes first"),
        # fields without sizes, and orders without two distinct values
        ({**TREND, "along": "model", "trend": "diminishing"}, "`along`"),
        ({**TREND, "along": "precision", "trend": "diminishing"}, "`along`"),
        ({**ORDER, "order": ["resnet50"]}, "`order`"),
        ({**ORDER, "order": ["resnet50", "vgg16", "resnet50"]}, "`order`"),
    ],
)
def test_an_inconsistent_test_is_refused_with_a_sentence_that_says_what_is_valid(
    test: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        Test.model_validate(test)
    assert said in complaint(caught.value)


def test_metrics_may_stand_beside_a_label() -> None:
    assert Test.model_validate({**DIFFERS, "beside": ["images_per_s"]}).beside == ["images_per_s"]


def test_a_magnitude_alone_gives_no_direction() -> None:
    test = Test.model_validate({"shape": "level", "metric": "utilisation", "published": [HALF]})
    assert not test.has_direction
    assert Test.model_validate({**LEVEL, "published": [HALF]}).has_direction


@pytest.mark.parametrize(
    ("value", "of_ratio", "low", "high"),
    [
        (0.5, False, 0.45, 0.55),
        (3.0, True, 2.8, 3.2),  # 2.0 beyond 1x, so ±0.2
        (0.5, True, 0.45, 0.55),  # 0.5 short of 1x, so ±0.05
        (1.0, True, 1.0, 1.0),
        ((1.036, 1.069), True, 1.0324, 1.0759),
        ((3.2, 3.7), False, 2.88, 4.07),
    ],
)
def test_bounds_of_a_published_value_are_within_a_tenth(value: Any, of_ratio: bool, low: float, high: float) -> None:
    assert Published(value=value, hardware=["h200"]).bounds(of_ratio=of_ratio) == pytest.approx((low, high))


WHY = {"profile": "h200", "host": "0123456789ab", "verdict": "inconclusive", "why": "too few runs"}


def a_claim(**other: Any) -> dict[str, Any]:
    return {
        "id": "small-one",
        "statement": "It is.",
        "where": "table 1",
        "studies": ["01_training"],
        "tests": [LEVEL],
    } | other


@pytest.mark.parametrize(
    ("claim", "said"),
    [
        (a_claim(studies=["01_trainig"]), "unknown study '01_trainig'; valid: 01_training,"),
        (a_claim(studies=[]), "at least 1 item"),
        (a_claim(tests=[]), "at least 1 item"),
        (a_claim(tests=[{**LEVEL, "study": "05_inferense"}]), "unknown study '05_inferense'; valid: 05_inference,"),
        (
            a_claim(studies=[COMPARISON]),
            "20_comparison has no records of its own: name the study to compare in `study`",
        ),
        (a_claim(studies=[COMPARISON], tests=[{**LEVEL, "study": "01_training"}, LEVEL]), "has no records of its own"),
        (a_claim(id="small"), "id"),
        (a_claim(statement=""), "statement"),
        (a_claim(verdict="replicated"), "Extra inputs are not permitted"),
        (a_claim(because_not=[{**WHY, "why": "one two three four five six seven eight nine"}]), "at most 8 words"),
        (a_claim(because_not=[{**WHY, "verdict": "replicated"}]), "verdict"),
    ],
)
def test_an_inconsistent_claim_is_refused_with_a_sentence_that_says_what_is_valid(
    claim: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        Claim.model_validate(claim)
    assert said in complaint(caught.value)


def test_a_test_looks_at_the_first_study_of_its_claim_unless_it_names_another() -> None:
    own = {**LEVEL, "study": "05_inference"}
    claim = Claim.model_validate(a_claim(studies=["01_training", COMPARISON], tests=[LEVEL, own]))
    assert [claim.studies_of(test) for test in claim.tests] == [["01_training"], ["05_inference"]]


def test_a_test_may_look_at_the_records_of_several_studies() -> None:
    both = {**LEVEL, "study": ["05_inference", "01_training"]}
    claim = Claim.model_validate(a_claim(studies=["01_training"], tests=[LEVEL, both]))
    assert [claim.studies_of(test) for test in claim.tests] == [["01_training"], ["05_inference", "01_training"]]
    with pytest.raises(ValidationError, match="unknown study '01_trainin'"):
        Claim.model_validate(a_claim(studies=["01_training"], tests=[{**LEVEL, "study": ["01_trainin"]}]))


SMALL = """
name: Small
citation: {title: A paper, authors: [Somebody], institution: Somewhere, published: "2018"}
setup: {framework: TensorFlow, data: ImageNet32, models: [resnet50]}
devices: []
claims:
  - id: small-order
    statement: The V100 is faster.
    where: table 1
    studies: [20_comparison]
    tests: [{shape: order, metric: images_per_s, study: 01_training, along: profile, order: [v100_sxm2, k40m]}]
  - id: small-ratio
    statement: The V100 is faster.
    where: table 1
    studies: [20_comparison]
    tests:
      - {shape: ratio, metric: images_per_s, study: 01_training, over: {profile: v100_pcie}, under: {profile: k40c},
         at_least: 1, because: more, published: [{value: 3, hardware: [p40]}]}
  - id: small-fastest
    statement: The fastest is used least.
    where: table 1
    studies: [20_comparison]
    tests:
      - {shape: ratio, metric: utilisation, study: 01_training, over: {profile: fastest}, under: {profile: others},
         at_most: 1, because: least}
"""


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("small-ratio", "small-order", "the id 'small-order' is given twice"),
        ("small-ratio", "other-ratio", "the id 'other-ratio' does not begin with small-"),
        ("order: [v100_sxm2, k40m]", "order: [v100_sxm, k40m]", "unknown profile 'v100_sxm'; valid: v100_sxm2,"),
        ("profile: v100_pcie", "profile: v100_pci", "unknown profile 'v100_pci'; valid: v100_pcie,"),
        ("profile: k40c", "profile: k40", "unknown profile 'k40'; valid: k40"),
        ("hardware: [p40]", "hardware: [p41]", "unknown profile 'p41'; valid: p40,"),
        (
            "study: 01_training, along",
            "select: {profile: h20}, study: 01_training, along",
            "unknown profile 'h20'; valid: h20",
        ),
    ],
)
def test_an_error_in_a_papers_claims_names_the_file(tmp_path: Path, before: str, after: str, said: str) -> None:
    assert SMALL.count(before) == 1
    (tmp_path / "small.yaml").write_text(SMALL.replace(before, after))
    with pytest.raises(UserError, match=r"papers/small\.yaml") as caught:
        load_papers(tmp_path)
    assert said in str(caught.value)


# ---- the claims of the five papers ----------------------------------------------------------------------------------


def test_every_claim_of_the_five_papers_and_of_later_sources_is_there_and_no_other() -> None:
    assert {paper.id: len(paper.claims) for paper in PAPERS} == CLAIMS | LATER


@pytest.mark.parametrize("claim", [pytest.param(claim, id=claim.id) for paper in PAPERS for claim in paper.claims])
def test_a_claim_is_shown_with_the_studies_that_test_it(claim: Claim) -> None:
    looked_at = {claim.studies_of(test)[0] for test in claim.tests}
    if COMPARISON not in claim.studies:
        assert looked_at <= set(claim.studies)
    assert claim.statement.endswith(".") and claim.note == claim.note.strip()


@pytest.mark.parametrize(("paper", "claim", "test"), each_test())
def test_a_test_compares_only_values_that_it_selects(paper: Paper, claim: Claim, test: Test) -> None:
    words = {LARGEST, SMALLEST, OTHERS, FASTEST}
    compared = [*test.over.items(), *test.under.items(), *((test.along, value) for value in test.order)]
    for name, value in compared:
        chosen = test.select.get(name or "")
        if chosen is not None and value not in words:
            assert value in (chosen if isinstance(chosen, list) else [chosen]), f"{name} {value} is never selected"
    for name in (test.along, test.among):
        assert name is None or isinstance(test.select.get(name, []), list), f"{name} has one value only"
    assert test.over != test.under or not test.over


@pytest.mark.parametrize(("paper", "claim", "test"), each_test())
def test_words_for_values_are_used_only_where_they_are_valid(paper: Paper, claim: Claim, test: Test) -> None:
    for choice in (test.over, test.under):
        may_be_fastest = {"profile", "engine", "memory_format", "optimizer"}
        assert {name for name, value in choice.items() if value == FASTEST} <= may_be_fastest
    selected = [
        value for values in test.select.values() for value in (values if isinstance(values, list) else [values])
    ]
    assert OTHERS not in selected and FASTEST not in selected
    assert not any(
        {LARGEST, SMALLEST} & set(map(str, values)) for values in test.select.values() if isinstance(values, list)
    )
    for magnitude in test.published:
        assert not {LARGEST, SMALLEST, OTHERS, FASTEST} & set(magnitude.select.values())


@pytest.mark.parametrize(("paper", "claim", "test"), each_test())
def test_a_test_names_the_workload_of_its_trials(paper: Paper, claim: Claim, test: Test) -> None:
    """Without a workload, the trials would include the ceilings and idle runs of the same study."""
    one_kind = STUDIES[claim.studies_of(test)[0]].name in ("data_pipeline",)  # nothing but training
    assert one_kind or "workload" in {**test.select, **test.over}


# ---- bounds follow fixed rules --------------------------------------------------------------------------------------

NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?"
# Words in `because` -> the bound for them. They are in quotes only if they are the paper's. The first match counts.
# None: 0.9 of the number of devices (or 2).
RULES: tuple[tuple[str, str, Any], ...] = (
    (r"not alike, more than ±10 %", "outside", (0.909, 1.1)),
    (r"19 of 20 pieces within ±10 % of the rest", "at_most", 0.1),
    (r"within ±10 %", "between", (0.909, 1.1)),
    (r"alike within 10 %", "at_most", 1.1),
    (r"about half( is|,) 40-60 %", "between", (0.4, 0.6)),
    (r"well below: at most 80 %", "at_most", 0.8),
    (r"almost.* at least 0\.9 (n|x 2)", "at_least", None),
    (r"as for almost linear, at least (90 %|0\.9 per GPU)", "at_least", 0.9),
    # the lowest speed-up that a paper praises, per GPU: 21.95 of 32, 13.5 of 16, 3.0 of 4
    (r"'scales well', of 21\.95x on 32 GPUs: at least 0\.685 per GPU", "at_least", 0.685),
    (r"'close to the ideal speedup', of 13\.5x on 16 GPUs: at least 0\.84 per GPU", "at_least", 0.84),
    (r"'good scalability', of 3\.0x on 4 GPUs: at least 0\.75 per GPU", "at_least", 0.75),
    (r"read as little, at most 5 %", "at_most", 1.05),
    (r"(?<!no )more than hardly, 5 %", "at_least", 0.05),
    (r"hardly,? \(?(at most )?5 %", "at_most", 0.05),
    (r"significant.* at least 1\.5x", "at_least", 1.5),
    (r"at least 1x|at least as (many|much|slow)|more at 16 than at the smallest", "at_least", 1),
    (r"at most 1x|no more than any other", "at_most", 1),
    (r"at most 0\.18 points", "at_most", 0.0018),
    (r"at most 0\.12 points", "at_most", 0.0012),
    (r"'less than a day': 86,400 s", "at_most", 24 * 3600),
    (r"'>1 week': 604,800 s", "at_least", 7 * 24 * 3600),
)
# Bounds without a rule. Each is chosen for one claim, with the reason in `because`.
CHOSEN = {
    "wisconsin-underused": 0.95,
    "wisconsin-half-utilised": 0.95,
    "wisconsin-memory-bound": 0,
    "wisconsin-infer-io": 0,
    "wisconsin-batch-accuracy": 0.05,
    "wisconsin-int8": 0.99,
    "nyu-memory-bound": 0,
    "nyu-backward-launch": 0,
    "dell_v100-int8-batch": 0.5,
    "gpt_fast-bandwidth": 0.74,
}


@pytest.mark.parametrize(("paper", "claim", "test"), each_test())
def test_each_bound_follows_its_fixed_rule(paper: Paper, claim: Claim, test: Test) -> None:
    kinds = ("at_least", "at_most", "between", "outside")
    given = [(kind, getattr(test, kind)) for kind in kinds if getattr(test, kind) is not None]
    if not given:
        assert test.shape in ("trend", "order", "alike", "differs") or test.published
        return
    ((kind, value),) = given
    if claim.id in CHOSEN and value == CHOSEN[claim.id]:
        return
    rules = [(needed, bound) for said, needed, bound in RULES if re.search(said, test.because)]
    assert rules, f"no rule gives {kind} {value}: {test.because}"
    needed, bound = rules[0]
    assert kind == needed
    assert value == pytest.approx(0.9 * float(str(test.over.get("devices", 2))) if bound is None else bound)


def test_every_rule_and_every_choice_is_used() -> None:
    quoted = [test.because for _, _, test in ALL]
    assert all(any(re.search(said, because) for because in quoted) for said, _, _ in RULES)
    for name, value in CHOSEN.items():
        tests = next(claim.tests for _, claim, _ in ALL if claim.id == name)
        assert any(value in (test.at_least, test.at_most) for test in tests), name


def test_trends_quote_the_papers_words() -> None:
    for _, claim, test in ALL:
        if test.trend == "constant":
            assert re.search("constant|±10 %", test.because), claim.id
        assert test.because or not test.has_direction, claim.id


# ---- published magnitudes -------------------------------------------------------------------------------------------


def printed_as(value: float, *, of_ratio: bool) -> list[str]:
    """Return the ways in which a paper may print a magnitude: 29.43, 85.7 %, 26 % more."""
    shares = [value * 100, (value - 1) * 100] if of_ratio else [value * 100]
    return [f"{value:g}", f"{value:.1f}", *(f"{share:.4g}" for share in shares)]


@pytest.mark.parametrize(("paper", "claim", "test"), [case for case in each_test() if case.values[2].published])
def test_a_published_magnitude_is_in_the_papers_table_or_in_the_claims_words(
    paper: Paper, claim: Claim, test: Test
) -> None:
    tables = [table for table in paper.tables if table.metric == test.metric and test.shape == "level"]
    text = " ".join((claim.statement, test.because, claim.note))
    for one in test.published:
        columns = [(table, hw) for table in tables for hw in one.hardware if hw in table.columns]
        if columns:
            means = [table.si("mean", hw) for table, hw in columns]
            assert means == pytest.approx([one.value] * len(means), rel=1e-9)
            continue
        ends = one.value if isinstance(one.value, tuple) else (one.value,)
        for end in ends:
            ways = printed_as(end, of_ratio=test.shape == "ratio")
            numbers = re.findall(NUMBER, text) + (["50"] if "half" in text else [])
            quotients = [f"{550 / 430:.3g}"] if "550 over 430" in text else []
            assert set(ways) & {*numbers, *quotients}, f"{end} is not in the claim's words"
        assert all(hw in profile_names() for hw in one.hardware)
        assert set(one.hardware) <= {device.profile for device in paper.devices}, "the hardware is in this paper"


def test_every_mean_utilisation_that_is_printed_is_a_published_magnitude() -> None:
    (wisconsin,) = [paper for paper in PAPERS if paper.id == "wisconsin"]
    table = next(table for table in wisconsin.tables if table.metric == "utilisation")
    (test,) = next(claim.tests for claim in wisconsin.claims if claim.id == "wisconsin-underused")
    assert {hw: one.value for one in test.published for hw in one.hardware} == pytest.approx(
        {hw: table.si("mean", hw) for hw in table.columns}
    )
    assert max(table.si("mean", hw) for hw in table.columns) <= (test.at_most or 0), (
        "the paper's own numbers support it"
    )


def test_the_bounds_on_scaling_are_met_by_the_speed_ups_that_the_papers_praise() -> None:
    praised = {"dell_v100-scaling": 21.95 / 32, "dell_p100-speedup16": 13.5 / 16, "dell_p100-speedup4": 3.0 / 4}
    for name, of_each in praised.items():
        bound = next(claim.tests[0].at_least for _, claim, _ in ALL if claim.id == name)
        assert bound is not None and 0 <= of_each - bound < 0.005, name


def test_the_bounds_on_int8_accuracy_are_the_upper_ends_of_the_printed_differences() -> None:
    (dell,) = [paper for paper in PAPERS if paper.id == "dell_v100"]
    lost = {
        table.metric: [table.si(model, "fp32") - table.si(model, "int8") for model in table.rows]
        for table in dell.tables
        if table.metric in ("top1", "top5")
    }
    assert (min(lost["top1"]), max(lost["top1"])) == pytest.approx((0.0002, 0.0018))
    assert (min(lost["top5"]), max(lost["top5"])) == pytest.approx((0.0003, 0.0012))
    claim = next(claim for claim in dell.claims if claim.id == "dell_v100-int8-accuracy")
    assert [test.metric for test in claim.tests] == ["top1", "top5"]
    for test in claim.tests:
        assert test.at_most == pytest.approx(max(lost[test.metric])), "to the last printed digit"
        assert test.select["model"] == list(dell.tables[0].rows)


def test_the_printed_mean_powers_are_well_below_the_boards_limits() -> None:
    (wisconsin,) = [paper for paper in PAPERS if paper.id == "wisconsin"]
    table = next(table for table in wisconsin.tables if table.metric == "power_w")
    (test,) = next(claim.tests for claim in wisconsin.claims if claim.id == "wisconsin-power-below-limit")
    for hw in table.columns:
        limit = load_profile(hw).power_limit_w
        assert limit is not None and table.si("mean", hw) / limit <= (test.at_most or 0)


def test_each_bound_fits_the_unit_of_its_metric() -> None:
    """Bounds of shares lie between -1 and 1. A percentage in place of a fraction would otherwise go unnoticed."""
    for _, claim, test in ALL:
        ends = [test.at_least, test.at_most, *(test.between or ()), *(test.outside or ())]
        ends += [end for one in test.published for end in (one.value if isinstance(one.value, tuple) else (one.value,))]
        for end in ends:
            if end is not None and METRICS[test.metric].unit == "%" and test.shape in ("level", "difference"):
                assert -1 <= end <= 1, claim.id
