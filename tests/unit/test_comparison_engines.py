"""What hosts add to a comparison: the same trainings launched and captured, on two profiles."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labkit.analysis import comparison_engines as engines
from labkit.analysis.figure import DARK, LIGHT, Figure
from labkit.analysis.table import Table, Text
from labkit.analysis.verdicts.evidence import Evidence
from labkit.profile import load_profile
from labkit.recipes import CAPTURED, COMPILED, on_devices
from labkit.registry import find_study
from labkit.results.study_records import StudyRecords as Results
from labkit.trial import Trial
from tests.unit.made_records import NOISE, PASSES, blocks, of_records

STUDY = engines.STUDY
LAUNCHED = Trial(batch=256, precision="bf16", optimizer="sgd_fused", memory_format="channels_last", loader="device")
GRAPH, COMPILE = (Trial(batch=256, **recipe) for recipe in (CAPTURED, COMPILED))
ALONE = replace(LAUNCHED, model="vgg19")  # of which there is no captured step
# Of which each is captured and has no launched one beside it: other sizes, precisions, batches, devices, workloads.
OTHERS = [
    replace(GRAPH, image_px=224),
    replace(GRAPH, precision="fp16", optimizer="sgd_fused"),
    replace(GRAPH, batch=64),
    replace(GRAPH, **on_devices(CAPTURED, 2)),
    replace(GRAPH, workload="infer", optimizer="sgd"),
]
RATE = {LAUNCHED: 10_000.0, GRAPH: 50_000.0, COMPILE: 90_000.0, ALONE: 5_000.0} | dict.fromkeys(OTHERS, 200_000.0)
# What the H200's host and chip make of it over the H100's.
GAIN = {LAUNCHED: 1.5, GRAPH: 1.04, COMPILE: 1.1, ALONE: 1.6} | dict.fromkeys(OTHERS, 3.0)
H100, H200 = "H100 SXM", "H200 SXM"


def measured(hw: str, *trials: Trial) -> Results:
    made = [
        blocks(STUDY, trial, n, RATE[trial] * (GAIN[trial] if hw == "h200" else 1) * NOISE[n - 1])
        for trial in trials
        for n in PASSES
    ]
    return of_records(STUDY, made, hw)


def seen(*parts: Results) -> Evidence:
    by_name = {part.profile.name: part for part in parts}

    def load(name: str, study: str) -> Results:
        if study == STUDY and name in by_name:
            return by_name[name]
        return Results(find_study(study), load_profile(name), "quick", None, {}, [])

    return Evidence(None, tuple(sorted(by_name)), frozenset({STUDY}), load)


BOTH = seen(measured("h100", *RATE), measured("h200", *RATE))


def test_only_trainings_that_both_profiles_ran_both_ways_are_compared() -> None:
    ((couple, settings),) = engines.rows(BOTH).items()
    assert couple == (H200, H100)
    ((_, known),) = settings.items()
    assert [side.trial.engine for side, _ in known] == ["eager", "graph", "compile+graph"]
    assert [effect.point for _, effect in known] == pytest.approx([GAIN[LAUNCHED], GAIN[GRAPH], GAIN[COMPILE]])


def test_the_sentence_has_the_captured_ends_and_the_training_whose_ratios_part_most() -> None:
    captured, furthest = engines.sentence(BOTH).body.split(" The two are furthest apart in ")
    assert captured.startswith(f"{H200} over {H100}, 1 training run both")
    assert "captured 1.04x" in captured and "to 1.10x" in captured and "1.50x" not in captured
    assert furthest.startswith("ResNet-50, 32 px, batch 256, BF16: fused 1.50x")


def test_a_baseline_is_what_all_others_are_compared_with() -> None:
    three = seen(measured("h100", *RATE), measured("h200", *RATE), measured("v100_sxm2", *RATE))
    assert list(engines.rows(three)) == [(H100, "Tesla V100 SXM2"), (H200, H100)]
    assert {older for _, older in engines.rows(three, "h200")} == {H200}
    table = engines.table(three, "h200")
    assert isinstance(table, Table) and list(table.frame["profile"]) == ["Tesla V100 SXM2", H100, H200]
    assert "BASELINE=h200" in engines.ratios(three, "h200").again  # type: ignore[union-attr]


def test_the_table_has_the_fastest_engine_of_each_profile() -> None:
    table = engines.table(BOTH)
    assert isinstance(table, Table)
    assert list(table.frame["profile"]) == [H100, H200]
    assert set(table.frame["engine"]) == {"compile+graph"}
    assert table.frame["W"].isna().all(), "no telemetry, no watts"


def test_the_picture_is_drawn_in_light_and_dark_with_its_numbers() -> None:
    drawn = engines.ratios(BOTH)
    assert isinstance(drawn, Figure)
    assert all("<svg" in drawn.svg(theme) for theme in (LIGHT, DARK))
    assert list(drawn.data["engine"]) == ["fused", "graph", "compile+graph"] and "n = 3" in drawn.caption
    assert drawn.again == "make compare"


@pytest.mark.parametrize(
    "records",
    [
        seen(),
        seen(measured("h200", *RATE)),
        seen(measured("h100", LAUNCHED, ALONE), measured("h200", LAUNCHED, ALONE)),
        seen(measured("h100", LAUNCHED), measured("h200", GRAPH)),
    ],
)
def test_where_nothing_was_run_both_ways_on_two_profiles_that_is_said(records: Evidence) -> None:
    for part in (engines.sentence(records), engines.ratios(records), engines.table(records)):
        assert isinstance(part, Text) and part.body
