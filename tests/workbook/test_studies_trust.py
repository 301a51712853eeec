"""Checks of a study, on committed records."""

from __future__ import annotations

import pandas as pd

from labkit.telemetry.summary import Flagged
from tests.workbook.made_telemetry import R50, VGG, hopper, made, shown
from workbook.results import Results, load
from workbook.studies import trust
from workbook.studies.values import text_of


def test_the_share_that_the_power_limit_slowed_is_that_of_the_list_of_throttled_blocks(committed: None) -> None:
    results = load("h200", "inference")
    frame = results.frame().query("model == 'vgg16'")
    (listed,) = trust.throttled(results).query("why == 'throttled: power cap' and model == 'vgg16'").to_dict("records")
    of_listed = frame[(frame["batch"] == listed["batch"]) & (frame["mode"] == listed["mode"])]
    said = " The power limit slowed these shares of timed blocks: "
    assert trust.power_capped(results, of_listed, ["model"]) == f"{said}VGG-16 {text_of(100 * listed['share'], '%')}."
    both = pd.concat([of_listed, frame.query("mode == 'strict FP32' and batch == 1")])
    assert trust.power_capped(results, both, ["mode"]).endswith("%, strict FP32 0 %.")
    several = trust.power_capped(results, pd.concat([of_listed, frame.query("batch == 1")]), ["mode", "batch"])
    assert several.endswith(" %; others: 0 %.")
    assert trust.power_capped(results, frame.query("batch == 1"), ["mode"]) == ""
    assert trust.power_capped(results, frame.iloc[:0], ["mode"]) == "", "nothing measured is not 0 %"


def test_a_device_that_always_throttles_keeps_its_numbers_and_its_clock_is_told() -> None:
    brake = Flagged(why="throttled: power brake", source="gpu0", blocks=list(range(10)))
    records = [
        made(trial, number, hopper(trial).model_copy(update={"flagged": [brake] if trial is VGG else []}))
        for trial in (R50, VGG)
        for number in (1, 2)
    ]
    results = Results([shown(*records)], list)
    assert results.frame()["images_per_s"].notna().all() and results.frame()["power_w"].notna().all()
    (row,) = trust.throttled(results).to_dict("records")
    assert row["model"] == "vgg16" and row["why"] == "throttled: power brake"
    assert (row["blocks"], row["of"], row["share"], row["sm_clock_mhz"]) == (20, 20, 1.0, 1_500)


def test_runs_with_uneven_times_are_counted() -> None:
    steady, falling = [0.5] * 10, [0.5] * 5 + [0.3] * 5
    records = [made(VGG, number, None) for number in (1, 2, 3)]
    records[1] = records[1].model_copy(update={"result": records[1].blocks.model_copy(update={"host_s": falling})})
    assert records[0].blocks.host_s == steady
    checks = trust.summary(Results([shown(*records)], list)).set_index("check")["result"]
    assert checks["Runs with an unsteady warm-up or uneven blocks"] == "1 of 3"
