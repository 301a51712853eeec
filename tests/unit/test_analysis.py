"""Pages say what the records say: rates, bounds, intervals and missing values, on records whose answers are known."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from labkit.analysis import method, quality, speed, summary
from labkit.analysis.figure import DARK, LIGHT, PALETTE, PALETTE_ON_DARK, Figure
from labkit.analysis.format import counted, least_to_most, number, percent, quantity, with_interval
from labkit.analysis.rooflines import nominal_roofline
from labkit.analysis.table import Table, Text, table_html
from labkit.papers import load_papers
from labkit.profile import load_profile
from labkit.records import Blocks, Planned, Process, Record, short_hash
from labkit.registry import find_study
from labkit.results import roofline
from labkit.results.from_result import value_of
from labkit.results.study_records import StudyRecords as Results
from labkit.statistics import Interval
from labkit.trial import NO_DATA, Trial

TRAIN = Trial(model="resnet50", batch=64)
MATMUL = Trial(workload="matmul", size=8192, data=NO_DATA)
COPY = Trial(workload="memory_copy", size=2**32, data=NO_DATA)


def made(trial: Trial, number_: int, block_s: float, **other: Any) -> Record:
    """Ten blocks of five steps; the work of a step is 64 images of 1 GFLOP, or 1 TFLOP, or 1 GB."""
    per_step: dict[str, Any] = {"matmul": {"flop_per_step": 10**12}, "memory_copy": {"bytes_per_step": 10**9}}.get(
        trial.workload, {"images_per_step": 64, "flop_per_step": 64 * 10**9}
    )
    blocks = Blocks(
        steps_per_block=5,
        host_s=[block_s] * 10,
        warmup_s=[2 * block_s],
        warmup_steps=[5],
        steady=True,
        stopped_by="time",
        loss=[2.0] * 10 if trial == TRAIN else [],
        warmup_loss=[6.0] if trial == TRAIN else [],
        **per_step,
    )
    facts = {
        "flop_training": 10**9,
        "weight_traffic_bytes_per_step": 10**9,
        "image_bytes": 3072,
        "parameters": 10**6,
        "memory_bytes": 2**30,
        "memory_method": "made up",
        "data_description": "A made-up set.",
        "threads": 1,
    }
    values: dict[str, Any] = {
        "study": "01_training",
        "scale": "quick",
        "key": trial.key,
        "trial": trial.as_dict(),
        "pass_number": number_,
        "planned": Planned(keys=[short_hash(t.key) for t in (TRAIN, MATMUL, COPY)], passes=3, order_seed=1),
        "process": Process(id=f"p{number_}", position=0, startup_s=2.0),
        "host": "0123456789ab",
        "devices_used": 1,
        "versions": {"torch": "2.11"},
        "status": "ok",
        "started_at": "2026-01-01T00:00:00+00:00",
        "wall_s": 20 * block_s,
        "phases_s": {"build": block_s, "first_step": block_s, "warmup": 2 * block_s, "timed": 10 * block_s},
        "facts": facts if trial == TRAIN else {},
        "result": blocks,
    }
    return Record(**(values | other))


def results(*records: Record, hw: str = "h200") -> Results:
    host = {"gpus": [{"name": "NVIDIA H200"}], "cpu": "a CPU"}
    return Results(
        study=find_study("training"),
        profile=load_profile(hw),
        scale="quick",
        host_id="0123456789ab" if records else None,
        host=host if records else {},
        records=list(records),
    )


def three_passes() -> Results:
    return results(
        *[made(TRAIN, n, s) for n, s in ((1, 0.5), (2, 0.5), (3, 0.5))],
        *[made(MATMUL, n, 0.1) for n in (1, 2, 3)],
        *[made(COPY, n, 0.005) for n in (1, 2, 3)],
    )


def test_images_per_second_are_images_over_the_whole_timed_time() -> None:
    interval = three_passes().interval(TRAIN, "images_per_s")
    assert interval is not None and interval.n == 3
    assert interval.point == pytest.approx(64 * 5 / 0.5)
    assert three_passes().interval(TRAIN, "step_s").point == pytest.approx(0.1)  # type: ignore[union-attr]


def test_the_measured_ceilings_are_those_of_the_ceiling_trials() -> None:
    ceilings = roofline.measured(three_passes())
    assert ceilings.flop_per_s == pytest.approx(5e12 / 0.1)
    assert ceilings.bytes_per_s == pytest.approx(5e9 / 0.005)
    assert roofline.measured(results(made(TRAIN, 1, 0.5))).flop_per_s is None, "missing, not zero"


def test_the_bound_is_the_slower_of_arithmetic_and_memory() -> None:
    work = roofline.Work(images=64, flop=64 * 10**9, unavoidable_bytes=10**9)
    fast_memory = roofline.bound(work, roofline.Ceilings(1e12, 1e15, "made up"))
    assert fast_memory is not None and fast_memory.limited_by == "arithmetic"
    assert fast_memory.images_per_s == pytest.approx(1e12 / 1e9)
    slow_memory = roofline.bound(work, roofline.Ceilings(1e12, 1e9, "made up"))
    assert slow_memory is not None and slow_memory.limited_by == "memory"
    assert slow_memory.images_per_s == pytest.approx(64)
    assert roofline.bound(work, roofline.Ceilings(None, None, "made up")) is None


def test_the_table_sets_each_rate_beside_its_bounds() -> None:
    frame = speed.throughput_table(three_passes(), [TRAIN])
    row = frame.iloc[0]
    assert row["images/s"] == pytest.approx(640)
    assert row["measured bound"] == pytest.approx(50e12 / 1e9)
    assert row["nominal bound"] == pytest.approx(67e12 / 1e9)
    assert row["limited by"] == "arithmetic"
    assert row["of measured"] == percent(640 / 50_000)


def test_a_failure_is_a_row_with_its_reason_and_never_a_number() -> None:
    failed = made(TRAIN, 1, 0.5, status="oom", reason="out of memory: 3 <b>TB</b>", result=None, facts={})
    shown = results(failed)
    assert shown.interval(TRAIN, "images_per_s") is None
    page = summary.failures_table(shown)._repr_mimebundle_()["text/html"]
    assert "oom" in page and "3 &lt;b&gt;TB" in page
    table = summary.throughput_summary(shown, [TRAIN])._repr_mimebundle_()["text/html"]
    assert table.count("–") >= 4, "images/s, interval, step and memory are missing, not zero"
    assert "No training trial gave a result. The first reason: out of memory" in summary.headline(shown, [TRAIN]).body
    speed.throughput(shown, [TRAIN])._repr_mimebundle_()  # draws, with a gap


def test_a_trial_that_fails_alike_in_every_pass_is_one_row() -> None:
    lost = [made(TRAIN, n, 0.5, status="oom", reason="no memory", result=None, facts={}) for n in (2, 1)]
    other = made(TRAIN, 3, 0.5, status="crashed", reason="killed", result=None, facts={})
    table = summary.failures_table(results(*lost, other))
    assert isinstance(table, Table)
    assert table.frame[["passes", "status", "reason"]].to_dict("records") == [
        {"passes": "1, 2", "status": "oom", "reason": "no memory"},
        {"passes": "3", "status": "crashed", "reason": "killed"},
    ]


def test_an_interval_among_texts_is_not_broken() -> None:
    import pandas as pd

    cells = ["105,100 [103,600, 106,600]", "19,660 (one pass, no interval)", "a text of many words that may be broken"]
    page = Table(pd.DataFrame({"trial": ["a", "b", "c"], "images/s": cells}), "")._repr_mimebundle_()["text/html"]
    assert "<td class=lk-short>105,100 [103,600, 106,600]</td>" in page
    assert page.count("lk-short") == 1


def test_the_head_of_a_row_is_broken_where_it_is_long() -> None:
    import pandas as pd

    frame = pd.DataFrame({"trial": ["short", "resnet50 batch 256 32 bf16 function sgd contiguous keras-tensorflow"]})
    page = Table(frame, "")._repr_mimebundle_()["text/html"]
    assert page.count("lk-long") == 1 and '<th scope="row">short</th>' in page


def test_one_pass_has_no_interval_and_says_so() -> None:
    one = results(made(TRAIN, 1, 0.5))
    assert "one pass, no interval" in summary.headline(one, [TRAIN]).body
    assert "no intervals" in summary.limitations(one, [TRAIN]).body


def test_without_records_every_part_says_so_and_none_fails() -> None:
    empty = results()
    for part in (
        summary.headline(empty, []),
        summary.throughput_summary(empty, []),
        summary.failures_table(empty),
        method.sentence(empty, "Nothing was done."),
        summary.limitations(empty, []),
        speed.throughput(empty, []),
        quality.loss_curve(empty, []),
        quality.steadiness(empty, []),
        quality.pass_time(empty),
        speed.device_order(empty, load_papers(), batch=64),
    ):
        assert part._repr_mimebundle_()["text/html"]


def test_the_share_of_a_pass_that_measures_counts_first_step_warm_up_and_blocks() -> None:
    parts = quality.pass_parts(results(made(TRAIN, 1, 0.5)))
    assert parts["share measuring"].tolist() == [pytest.approx((0.5 + 1 + 5) / (10 + 2))]


def test_a_pass_of_traced_trials_shows_the_untimed_steps_and_the_profiler_apart() -> None:
    plain = made(TRAIN, 1, 0.5)
    traced = plain.model_copy(
        update={"wall_s": 20.0, "phases_s": {**plain.phases_s, "steps_before": 6.0, "traced_steps": 2.0, "trace": 1.0}}
    )
    parts = quality.pass_parts(results(traced)).iloc[0]
    assert (parts["untimed steps (s)"], parts["profiler (s)"], parts["prepare (s)"]) == (6.0, 2.0, 1.0)
    assert parts["total (s)"] == pytest.approx(20.0 + 2)
    drawn = quality.pass_time(results(traced))
    assert isinstance(drawn, Figure) and "Hatched: untimed steps lead" in drawn.caption
    assert "Hatched" not in quality.pass_time(results(plain)).caption, "a page without traces says nothing of them"


def test_the_profilers_time_is_no_part_of_the_time_to_the_first_step() -> None:
    plain = made(TRAIN, 1, 0.5)
    phases = {**plain.phases_s, "build": 0.25, "first_step": 0.5}
    profiled = plain.model_copy(update={"phases_s": {**phases, "traced_steps": 30.0}})
    assert value_of(profiled, "time_to_first_step_s") == pytest.approx(0.75)
    assert value_of(profiled, "trace_s") is None


def test_trials_that_a_pass_did_not_come_to_are_named_and_n_is_not_said_to_be_the_same_for_all() -> None:
    whole, other = three_passes(), made(replace(TRAIN, batch=256), 1, 0.5)
    assert whole.describe().endswith("n = 3") and "has no record" not in method.sentence(whole, "").body
    second = other.model_copy(update={"pass_number": 2})
    cut = results(*whole.records, other, second)
    assert cut.describe().endswith("n = 2 to 3")
    said = method.sentence(cut, "").body
    assert "Pass 3 has no record of" in said and "batch 256: their numbers are of fewer passes." in said
    failed = second.model_copy(update={"pass_number": 3, "status": "oom", "result": None})
    assert "has no record" not in method.sentence(results(*cut.records, failed), "").body, "it was tried"


def test_a_loss_that_did_not_stay_finite_is_said() -> None:
    record = made(TRAIN, 1, 0.5)
    assert record.result is not None
    diverged = record.model_copy(update={"result": record.result.model_copy(update={"loss": [None] * 10})})
    assert "did not stay finite" in method.sentence(results(diverged), "").body
    assert "did not stay finite" not in method.sentence(results(record), "").body


def test_the_published_order_shows_bounds_and_no_published_images_per_second() -> None:
    figure = speed.device_order(three_passes(), load_papers(), batch=64)
    assert isinstance(figure, Figure)
    paper = figure.data[figure.data["device"] != "H200 SXM"]
    assert set(paper["kind"]) == {"nominal bound"}
    assert list(dict.fromkeys(paper["device"])) == ["V100", "P100 (16GB)", "P100 (12GB)", "K40M"]
    assert "not measurements" in figure.caption


def test_a_figure_has_alt_text_caption_data_and_both_schemes() -> None:
    figure = speed.throughput(three_passes(), [TRAIN])
    assert isinstance(figure, Figure)
    page = figure._repr_mimebundle_()["text/html"]
    assert 'alt="' in page and "<figcaption>" in page and "<details>" in page and "prefers-color-scheme:dark" in page
    for said in ("FP32", "eager", "batch 64", "synthetic32", "NVIDIA H200", "n = 3"):
        assert said in figure.caption
    assert figure.svg(LIGHT) == figure.svg(LIGHT), "the same records give the same bytes"
    assert figure.svg(LIGHT) != figure.svg(DARK)
    assert len(PALETTE) == len(PALETTE_ON_DARK)


def test_peaks_of_memory_that_hold_what_others_left_are_said_to() -> None:
    def told(**facts: Any) -> str:
        one = made(TRAIN, 1, 0.5)
        known = one.model_copy(update={"facts": {**one.facts, "memory_reserved_bytes": 2**32, **facts}})
        return summary.limitations(results(known), [TRAIN]).body

    assert "Peaks of memory may be too high" in told() and "may be too high" in told(memory_left_bytes=None)
    assert "Peaks of memory are up to 2.00 GiB too high" in told(memory_left_bytes=2**31)
    assert "Peaks of memory" not in told(memory_left_bytes=0)
    one = made(TRAIN, 1, 0.5)
    assert "Peaks of memory" not in summary.limitations(results(one), [TRAIN]).body, "no CUDA allocator was asked"


def test_a_profile_without_peaks_has_no_roofline_and_no_nominal_bound() -> None:
    assert nominal_roofline(load_profile("cpu")) is None
    assert nominal_roofline(load_profile("h200")) is not None
    prediction = summary.prediction_table(load_profile("cpu"), [TRAIN])
    assert isinstance(prediction, Table) and "images/s at most" not in prediction.frame


def test_predictions_of_a_network_stand_together_by_batch() -> None:
    planned = [
        replace(TRAIN, model=model, batch=batch)
        for model, batch in (("vgg16", 64), ("alexnet", 8), ("vgg16", 16), ("alexnet", 256))
    ]
    frame = summary.prediction_table(load_profile("h200"), planned).frame  # type: ignore[union-attr]
    assert list(zip(frame["model"], frame["batch"], strict=True)) == [
        *(("VGG-16", 16), ("VGG-16", 64), ("AlexNet", 8), ("AlexNet", 256))
    ]


@pytest.mark.parametrize(
    ("told", "words"),
    [([], ""), ([(2.0, "b")], "b"), ([(2.0, "b"), (1.0, "a"), (3.0, "c")], "a to c"), ([(1.0, "a"), (1.0, "a")], "a")],
)
def test_of_several_values_the_least_and_the_largest_are_told(told: list[tuple[float, str]], words: str) -> None:
    assert least_to_most(told) == words


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (1234.5, "1,230"),
        (0.0, "0"),
        (None, "–"),
        (0.01234, "0.0123"),
        (12.0, "12.0"),
        (999.9, "1,000"),
        (1e-9, "1.00e-09"),
    ],
)
def test_numbers_are_rounded_to_three_digits_for_people(value: float | None, said: str) -> None:
    assert number(value) == said


def test_a_missing_value_is_a_dash_and_never_zero() -> None:
    assert quantity(None, "images_per_s") == percent(None) == with_interval(None, "images_per_s") == "–"
    import pandas as pd

    page = table_html(pd.DataFrame({"a": ["x"], "b": [math.nan], "c": [None]}))
    assert page.count("–") == 2 and ">0<" not in page


def test_a_column_is_set_to_one_side_as_a_whole_and_short_texts_stay_on_a_line() -> None:
    import pandas as pd

    frame = pd.DataFrame(
        {
            "run": ["a", "b", "c"],
            "on": ["1 GPU", "2 GPUs, weak", "2 GPUs, strong"],
            "images/s": ["1,234 [1,200, 1,270]", None, "not measured on this device"],
            "network": ["ResNet-50", None, None],
        }
    )
    page = table_html(frame)
    assert "<td class=lk-short>1 GPU</td>" in page, "most of its column are no numbers"
    assert "<td class=n>1,234 [1,200, 1,270]</td><td class=lk-short>ResNet-50</td>" in page
    assert "<td class=n>–</td><td class=lk-short>–</td>" in page, "a missing value stands where its column does"
    assert "<td class=lk-words>not measured on this device</td>" in page, "a long text may be broken"
    batches = "4, 8, 16, 32, 64, 256".replace(" ", "\N{NO-BREAK SPACE}")
    page = table_html(pd.DataFrame({"run": ["a"], "batch": [batches], "kernel": ["of<one, long, name>, whole"]}))
    assert f"<td class=lk-short>{batches}</td>" in page, "what holds together is not broken before a comma"


def test_a_mean_of_counts_that_are_alike_has_no_decimals() -> None:
    import pandas as pd

    assert [counted(value) for value in (2.0, 2.5, None)] == [2, 2.5, None]
    page = table_html(pd.DataFrame({"run": ["a", "b"], "pieces": [counted(2.0), counted(2.5)]}, dtype=object))
    assert "<td class=n>2</td>" in page and "<td class=n>2.500</td>" in page


def test_a_share_too_small_to_tell_is_no_power_of_ten() -> None:
    assert [percent(share) for share in (0.0, 4.8e-6, 1e-5, 0.5)] == ["0 %", "< 0.001 %", "0.001 %", "50 %"]
    assert percent(-4.8e-6).startswith("-4.8"), "a difference below 0 is none of them"


def test_an_interval_is_printed_in_the_metrics_unit() -> None:
    assert with_interval(Interval(0.01, 0.009, 0.011, 3), "step_s") == "10.00 ms [9.000, 11.00]"


def test_text_from_data_cannot_inject_html() -> None:
    page = Text("<script>alert(1)</script> `<script>`")._repr_mimebundle_()["text/html"]
    assert "<script>" not in page


def test_a_command_in_a_sentence_a_cell_or_a_caption_is_set_as_one() -> None:
    import pandas as pd

    said = "not installed. `make setup-tf` adds it"
    set_as_code = "not installed. <code>make setup-tf</code> adds it"
    table = Table(pd.DataFrame({"a": ["x"], "why": [said]}), said)._repr_mimebundle_()["text/html"]
    assert Text(said)._repr_mimebundle_()["text/html"].count(set_as_code) == 1
    assert table.count(set_as_code) == 2
    assert "a ` alone" in Text("a ` alone")._repr_mimebundle_()["text/html"]


def test_the_loss_curve_says_which_networks_learned_and_which_did_not() -> None:
    learned = quality.loss_curve(three_passes(), [TRAIN])
    assert isinstance(learned, Figure) and "Below that of guessing at the end: ResNet-50, 64." in learned.caption
    record = made(TRAIN, 1, 0.5)
    assert record.result is not None
    flat = record.result.model_copy(update={"loss": [math.log(1000)] * 10})
    stuck = quality.loss_curve(results(record.model_copy(update={"result": flat})), [TRAIN])
    assert isinstance(stuck, Figure) and "Not below it in so few images: ResNet-50, 64" in stuck.caption
