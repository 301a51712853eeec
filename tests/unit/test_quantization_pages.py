"""The page of INT8: its tables and pictures from made records, whatever is missing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from labkit.analysis.figure import Figure
from labkit.analysis.studies import accuracy, by_precision, quantization, quantization_figures
from labkit.analysis.table import Table, Text
from labkit.analysis.verdicts import Evidence
from labkit.analysis.verdicts.judge import judge
from labkit.papers import load_papers
from labkit.recipes import engine_name, predicting, quantised
from labkit.records import Record
from labkit.results.study_records import StudyRecords as Results
from labkit.scored import Scored
from labkit.trial import Trial
from tests.unit.made_records import NOISE, PASSES, blocks, failed, of_records

STUDY = "08_quantization"
IMAGES = 20_000
PAPERS = load_papers()
PUBLISHED = by_precision.published_ratios(PAPERS, STUDY)
PLAIN = Trial(workload="infer", device="cpu", batch=16)
FP32 = replace(PLAIN, engine="openvino")
INT8 = replace(FP32, precision="int8")
LAYERS = {"Convolution": {"u8": 52, "i8": 1}, "FullyConnected": {"f32": 1}}
RATES = {PLAIN: 400.0, FP32: 500.0, INT8: 2000.0}


def timed() -> list[Record]:
    found = []
    for trial, rate in RATES.items():
        for batch, factor in ((1, 0.2), (16, 1.0), (64, 1.5)):
            one = replace(trial, batch=batch)
            for number, noise in zip(PASSES, NOISE, strict=True):
                made = blocks(STUDY, one, number, rate * factor * noise)
                facts = {
                    "layers": LAYERS,
                    "engine_versions": {"openvino": "1.2", "nncf": "3.4"},
                    "calibration": {"protocol": "50 batches"},
                }
                found.append(made.model_copy(update={"facts": {**made.facts, **facts}}))
    return found


def answered(model: str, lost: int) -> list[Record]:
    found = []
    for trial, gone, rate in ((FP32, 0, 500.0), (INT8, lost, 2000.0)):
        one = replace(trial, model=model, weights="trained", scored=IMAGES, batch=250)
        top1 = np.zeros(IMAGES, np.bool_)
        top1[:14_000] = True
        top1[:gone] = False
        for number in PASSES:
            made = blocks(STUDY, one, number, rate)
            assert made.blocks
            scored = Scored.of(top1, top1 | True, weights_sha256=model, images_sha256="i")
            weights = {"sha256": model * 9, "epochs": 15, "learning_rate": 0.01, "top1": 0.7, "took_s": 20.0}
            update = {"result": made.blocks.model_copy(update={"scored": scored})}
            found.append(made.model_copy(update={**update, "facts": {**made.facts, "weights": weights}}))
    return found


def refused(model: str = "resnet50") -> list[Record]:
    trial = replace(FP32, model=model, weights="trained", scored=IMAGES, batch=250)
    why = f"no trained weights for {model} at 32 px on synthetic32: a GPU trains them"
    return [failed(STUDY, replace(trial, precision=one), 1, "unsupported", why) for one in ("fp32", "int8")]


def on_imagenet(model: str, lost: int) -> list[Record]:
    """The answers of torchvision's network on ImageNet's own images."""
    found = []
    for one in answered(model, lost):
        trial = replace(one.as_trial, data="ilsvrc2012", image_px=224)
        weights = {"sha256": "f" * 64, "file": f"{model}-01234567.pth", "file_sha256": "0" * 64}
        facts = {**one.facts, "weights": weights, "data_description": "ImageNet's validation set, in a sentence."}
        found.append(one.model_copy(update={"trial": trial.as_dict(), "key": trial.key, "facts": facts}))
    return found


CASES: dict[str, list[Record]] = {
    "everything": [*timed(), *answered("resnet50", 20), *answered("googlenet", 60)],
    "no weights": [*timed(), *refused()],
    "only accuracy": answered("resnet18", 5),
    "on ImageNet": [*timed(), *on_imagenet("resnet50", 10)],
    "INT8 failed": [
        *[one for one in timed() if one.trial["precision"] == "fp32"],
        *[failed(STUDY, INT8, n, "unsupported", "OpenVINO in int8 needs nncf, not installed here") for n in PASSES],
    ],
    "nothing worked": [failed(STUDY, FP32, 1, "crashed", "it broke"), *refused()],
    "no records": [],
}


def case_of(name: str) -> Results:
    return of_records(STUDY, CASES[name], hw="cpu")


@pytest.mark.parametrize("name", CASES)
def test_every_table_and_picture_is_made_whatever_is_missing(name: str) -> None:
    results = case_of(name)
    shown = [
        quantization.headline(results, PAPERS),
        quantization.table(results, PUBLISHED),
        accuracy.table(results, PAPERS),
        quantization.layers_table(results),
        accuracy.weights(results),
        quantization.limitations(results),
        quantization_figures.throughput(results),
        quantization_figures.gain(results, PUBLISHED),
        quantization_figures.accuracy_lost(results, PAPERS),
    ]
    for one in shown:
        assert isinstance(one, Table | Text | Figure)
        if isinstance(one, Figure):
            assert "<svg" in one.svg() and one.alt.endswith(".")
    assert all(len(row) == 2 for row in quantization.key_numbers(results))


def test_the_answer_names_the_gain_over_the_fastest_fp32_and_the_loss() -> None:
    said = quantization.headline(case_of("everything"), PAPERS).body
    assert "INT8 4.00x [" in said and "(ResNet-50, 32 px, batch" in said, said
    assert "ResNet-50 0.100 points [" in said and "GoogLeNet 0.300 points [" in said, said
    assert f"{IMAGES:,} images" in said and "0.18 points" in said


def test_the_baseline_is_the_fastest_fp32_and_not_the_plain_loop() -> None:
    results = case_of("everything")
    assert accuracy.fastest_fp32(results, INT8) == FP32
    assert (PLAIN, FP32) not in quantization.over_fastest_fp32(results, [PLAIN, INT8])
    assert accuracy.fastest_fp32(results, replace(INT8, batch=7)) is None


def test_losses_are_paired_and_stand_beside_the_printed_ones() -> None:
    table = accuracy.table(case_of("everything"), PAPERS)
    assert isinstance(table, Table)
    rows = {row["model"]: row for row in table.frame.to_dict("records")}
    assert rows["GoogLeNet"]["published, top-1"] == "0.18" and rows["ResNet-50"]["published, top-1"] == "0.06"
    assert rows["GoogLeNet"]["images that change"] == "60 lost, 0 gained"
    assert rows["ResNet-50"]["top-5 lost (points)"].startswith("0.000 [")


def test_the_layers_that_did_not_run_in_bytes_are_named() -> None:
    table = quantization.layers_table(case_of("everything"))
    assert isinstance(table, Table)
    (row,) = table.frame.to_dict("records")
    assert row["multiply bytes"] == "53 of 53 Convolution, 0 of 1 FullyConnected" and row["others in"] == "f32"
    assert "openvino 1.2 and nncf 3.4" in table.caption


def test_without_weights_the_page_says_where_they_come_from() -> None:
    results = case_of("no weights")
    assert "no trained weights for resnet50" in accuracy.weights(results).body  # type: ignore[union-attr]
    assert "no trained weights" in quantization.headline(results, PAPERS).body


def test_the_page_says_which_images_and_whose_weights_an_accuracy_is_of() -> None:
    results = case_of("on ImageNet")
    assert f"paired over {IMAGES:,} images of ilsvrc2012" in quantization.headline(results, PAPERS).body
    table = accuracy.table(results, PAPERS)
    assert isinstance(table, Table)
    assert "224 px, batch 250, on ilsvrc2012" in table.caption and table.caption.count("in a sentence.") == 1
    weights = accuracy.weights(results)
    assert isinstance(weights, Table) and "torchvision's" in weights.caption and "epochs" not in weights.frame
    assert weights.frame["torchvision's file"].tolist() == ["resnet50-01234567.pth"]
    said = quantization.limitations(results).body
    assert "torchvision's networks on ilsvrc2012" in said and "trained for minutes" not in said
    assert "ImageNet's validation set, in a sentence." in said and "A made-up set." in said, "both sets are named"


def test_accuracy_on_the_synthetic_set_is_never_called_imagenets() -> None:
    results = case_of("everything")
    assert "images of synthetic32" in quantization.headline(results, PAPERS).body
    weights = accuracy.weights(results)
    assert isinstance(weights, Table) and "torchvision" not in weights.caption
    assert "torchvision's file" not in weights.frame and weights.frame["epochs"].tolist() == [15, 15]
    said = quantization.limitations(results).body
    assert "trained for minutes on synthetic32" in said and "torchvision" not in said


@pytest.mark.parametrize(("name", "on"), [("on ImageNet", ""), ("everything", "on synthetic32")])
def test_the_papers_claim_is_judged_on_either_and_its_scope_says_on_which(name: str, on: str) -> None:
    (paper, claim), *_ = [(p, c) for p in PAPERS for c in p.claims if c.id == "dell_v100-int8-accuracy"]
    seen = Evidence("cpu", ("cpu",), frozenset({STUDY}), lambda *_: case_of(name))
    finding = judge(paper, claim, seen)
    assert finding.verdict != "not testable here", finding.reason
    of = {side.trial.data for case in finding.cases for side in case.sides}
    assert of == {on.removeprefix("on ") or "ilsvrc2012"}
    assert ("on synthetic32" in finding.scope) == bool(on) and "ilsvrc2012" not in finding.scope


def test_the_published_gain_and_bound_come_from_the_papers() -> None:
    assert [(one.over, one.under, one.low) for one in PUBLISHED] == [("INT8", "FP32", 3.7)]
    assert accuracy.tolerated(PAPERS, "top1") == 0.0018
    assert accuracy.printed_loss(PAPERS, "googlenet", "top1") == pytest.approx(0.0018)
    assert accuracy.printed_loss(PAPERS, "resnet18", "top1") is None


def test_key_numbers_are_the_largest_gain_and_the_largest_loss() -> None:
    (gain, of_gain), (loss, of_loss) = quantization.key_numbers(case_of("everything"))
    assert gain.startswith("4.00x [") and of_gain.startswith("INT8 over the fastest FP32, the most: ResNet-50")
    assert loss.startswith("0.300 points [") and of_loss.endswith("the most: GoogLeNet")


def test_recipes_in_int8_are_of_engines_that_predict_only() -> None:
    for kind, engine in (("cpu", "openvino"), ("cuda", "triton+graph")):
        trial = Trial(workload="infer", **quantised(kind))  # type: ignore[arg-type]
        assert (engine_name(trial), trial.precision) == (engine, "int8")
    assert "openvino" in predicting("cpu")
