"""Accuracies compared image by image: intervals contain the truth, and impossible comparisons give a reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.workbook.made_records import blocks, failed, of_records
from workbook.claims import schema as claims
from workbook.claims.effects import compare_images, is_by_image
from workbook.claims.evidence import Side, pairs
from workbook.claims.shapes import SHAPES
from workbook.records import Record
from workbook.records.scored import Scored
from workbook.results import Results
from workbook.results.columns import IMAGES, OVER
from workbook.show.frames import numbers
from workbook.statistics import paired_share_difference, paired_share_ratio
from workbook.trials.trial import Trial

STUDY = "08_quantization"
FP32 = Trial(workload="infer", batch=250, device="cpu", engine="openvino", weights="trained", scored=1000)
INT8 = replace(FP32, precision="int8")
DIFFERENCE = claims.Test(
    shape="difference",
    metric="top1",
    over={"precision": "fp32", "engine": "fastest"},
    under={"precision": "int8", "engine": "fastest"},
    at_most=0.0018,
    because="a test",
)


def scored(trial: Trial, number: int, top1: np.ndarray, *, weights: str = "w", images: str = "i") -> Record:
    made = blocks(STUDY, trial, number, 100.0 if trial.precision == "fp32" else 300.0)
    assert made.blocks
    hits = Scored.of(top1, top1, weights_sha256=weights, images_sha256=images)
    return made.model_copy(update={"result": made.blocks.model_copy(update={"scored": hits})})


def answers(right: int, *, images: int = 1000, lost: int = 0) -> np.ndarray:
    hits = np.zeros(images, np.bool_)
    hits[:right] = True
    hits[:lost] = False
    return hits


def sides(records: list[Record]) -> list[Side]:
    results = of_records(STUDY, records, hw="cpu")
    return [Side(Results([results]), trial) for trial in results.by_trial]


def judged(records: list[Record], test: claims.Test = DIFFERENCE) -> Any:
    (case,) = SHAPES[test.shape](test, sides(records))
    return case


CELLS = [  # shares of images that both, only the first, only the second, or neither network gets right
    (0.70, 0.003, 0.002, 0.295),
    (0.50, 0.02, 0.01, 0.47),
    (0.90, 0.001, 0.0, 0.099),  # the hardest case: few images differ, all in favour of the first
    (0.20, 0.10, 0.05, 0.65),
]


@pytest.mark.parametrize("cells", CELLS)
@pytest.mark.parametrize("images", [500, 10_000])
def test_paired_intervals_hold_the_truth_in_about_95_of_100_samples(
    cells: tuple[float, float, float, float], images: int
) -> None:
    rng = np.random.default_rng(7)
    difference, ratio = cells[1] - cells[2], (cells[0] + cells[1]) / (cells[0] + cells[2])
    held = [0, 0]
    for drawn in rng.multinomial(images, cells, size=2000):
        first = np.repeat([True, True, False, False], drawn)
        second = np.repeat([True, False, True, False], drawn)
        of_difference, of_ratio = paired_share_difference(first, second), paired_share_ratio(first, second)
        assert of_ratio is not None and of_difference.low is not None and of_difference.high is not None
        held[0] += of_difference.low <= difference <= of_difference.high
        held[1] += of_ratio.low <= ratio <= of_ratio.high  # type: ignore[operator]
    assert all(count / 2000 >= 0.925 for count in held), held


def test_a_paired_interval_is_far_narrower_than_that_of_two_samples() -> None:
    first = answers(700)
    second = answers(700, lost=2)
    paired = paired_share_difference(first, second)
    assert paired.point == 0.002 and paired.n == 1000
    assert paired.low is not None and paired.high is not None and paired.high - paired.low < 0.008, "unpaired: 0.08"


def test_networks_that_answer_alike_may_still_differ_on_other_images() -> None:
    interval = paired_share_difference(answers(700), answers(700))
    assert interval.point == 0 and interval.low == -interval.high != 0  # type: ignore[operator]


def test_paired_answers_must_be_to_the_same_questions() -> None:
    for form in (paired_share_difference, paired_share_ratio):
        with pytest.raises(ValueError, match="same questions"):
            form(answers(1, images=2), answers(1, images=3))
        with pytest.raises(ValueError, match="same questions"):
            form(answers(0, images=0), answers(0, images=0))
    assert paired_share_ratio(answers(0, images=5), answers(1, images=5)) is None


def test_the_interval_comes_from_the_images_and_not_from_the_passes() -> None:
    records = [scored(trial, n, answers(700, lost=lost)) for trial, lost in ((FP32, 0), (INT8, 1)) for n in (1, 2, 3)]
    case = judged(records)
    assert case.effect.n == 1000 and case.effect.point == pytest.approx(0.001)
    assert case.verdict == "inconclusive", "1,000 images cannot tell 0.1 points from 0.18"


def test_enough_images_lead_to_a_verdict() -> None:
    def of(lost: int) -> list[Record]:
        return [
            scored(trial, 1, answers(35_000, images=50_000, lost=gone)) for trial, gone in ((FP32, 0), (INT8, lost))
        ]

    assert judged(of(10)).verdict == "replicated"
    assert judged(of(500)).verdict == "not replicated"


def test_a_ratio_is_also_compared_by_image() -> None:
    test = DIFFERENCE.model_copy(
        update={"shape": "ratio", "over": DIFFERENCE.under, "under": DIFFERENCE.over, "at_most": 0.99}
    )
    lossy = [scored(trial, 1, answers(35_000, images=50_000, lost=gone)) for trial, gone in ((FP32, 0), (INT8, 2000))]
    case = judged(lossy, test)
    assert case.verdict == "replicated" and case.effect.point == pytest.approx(33 / 35)


@pytest.mark.parametrize(
    ("other", "why"), [({"weights": "v"}, "the same weights"), ({"images": "j"}, "the same images")]
)
def test_networks_with_different_weights_or_images_are_not_compared(other: dict[str, str], why: str) -> None:
    case = judged([scored(FP32, 1, answers(700)), scored(INT8, 1, answers(700), **other)])
    assert case.verdict == "not testable here" and why in case.reason
    passes = [scored(FP32, 1, answers(700)), scored(FP32, 2, answers(700), **other), scored(INT8, 1, answers(700))]
    assert why in judged(passes).reason


def test_a_network_that_has_learned_nothing_is_not_testable() -> None:
    case = judged([scored(trial, 1, answers(5)) for trial in (FP32, INT8)])
    assert case.verdict == "not testable here" and "too few to measure a loss" in case.reason


def test_passes_that_disagree_are_reported() -> None:
    case = judged([scored(FP32, 1, answers(700)), scored(FP32, 2, answers(703)), scored(INT8, 1, answers(700))])
    assert "runs differ in up to 3 images" in case.reason


def test_without_trained_weights_the_claim_is_not_testable_and_gives_the_reason() -> None:
    why = "no trained weights for resnet50 at 32 px on synthetic32: a GPU trains them"
    case = judged([failed(STUDY, trial, 1, "unsupported", why) for trial in (FP32, INT8)])
    assert case.verdict == "not testable here" and why in case.reason


def test_only_scored_trials_are_compared_by_image() -> None:
    fp32, int8 = sides([scored(trial, 1, answers(700)) for trial in (FP32, INT8)])
    assert is_by_image(fp32, int8, "top1") and not is_by_image(fp32, int8, "images_per_s")
    runs = Trial(epochs=2)
    first, second = (Side(fp32.study, replace(runs, batch=batch)) for batch in (32, 64))
    assert not is_by_image(first, second, "top1"), "passes of training runs have different seeds"
    unscored = sides([blocks(STUDY, trial, 1, 100.0) for trial in (FP32, INT8)])
    assert "no run scored" in compare_images(*unscored, "top1", "difference").reason


def test_the_fastest_engine_of_each_precision_is_compared() -> None:
    eager = replace(FP32, engine="eager")
    slow = blocks(STUDY, eager, 1, 10.0)
    family = sides([slow, *(scored(trial, 1, answers(700)) for trial in (FP32, INT8))])
    ((over, under),) = pairs(family, DIFFERENCE.over, DIFFERENCE.under)
    assert (over.trial, under.trial) == (FP32, INT8)
    refused = sides([failed(STUDY, trial, 1, "unsupported", "no") for trial in (eager, FP32, INT8)])
    assert len(pairs(refused, DIFFERENCE.over, DIFFERENCE.under)) == 1, "one row gives the reason"


def test_the_numbers_behind_a_figure_name_what_an_interval_counts() -> None:
    frame = pd.DataFrame({"model": "vgg16", "value": [0.01], "low": [0.005], "high": [0.015], "passes": [500]})
    assert "runs" in numbers(frame, "top1")
    frame.attrs[OVER] = IMAGES
    assert numbers(frame, "top1")["images"].tolist() == ["500"]
