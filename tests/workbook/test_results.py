"""Tests of the table of results and of estimates, ratios and differences from it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from IPython.core.interactiveshell import InteractiveShell

from labkit.errors import UserError
from labkit.telemetry.summary import Telemetry
from tests.committed import committed_reports
from tests.workbook.made_records import blocks, failed, of_records, run
from workbook.records.record import Queries
from workbook.records.traced import Untraced
from workbook.registry import METRICS
from workbook.results import Results, describe, difference, estimate, load, ratio
from workbook.results.columns import QUANTITY
from workbook.results.estimates import ESTIMATED
from workbook.results.exchange import numbers
from workbook.results.metrics import metric_of, why_missing
from workbook.results.missing import Missing
from workbook.show import plots
from workbook.show import table as shown_table
from workbook.trials.trial import WORDS, Trial

pytestmark = pytest.mark.usefixtures("committed")
INFERENCE = "05_inference"
NOT_PRODUCED = str(Missing())


@pytest.fixture(scope="module")
def h200() -> Results:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_REPORTS", str(committed_reports()))
        return load("h200")


@pytest.fixture(scope="module")
def frame(h200: Results) -> pd.DataFrame:
    return h200.frame()


def made(values: dict[tuple[str, int], list[float]], *, status: str = "ok", host: str = "a") -> pd.DataFrame:
    """Return a frame of configurations (mode, batch), each with a value per pass."""
    rows = [
        {"mode": mode, "batch": batch, "host": host, "profile": "p", "study": "s", "pass_number": n, "status": status,
         "images_per_s": value, "utilisation": value}
        for (mode, batch), of_passes in values.items()
        for n, value in enumerate(of_passes, start=1)
    ]  # fmt: skip
    return pd.DataFrame(rows)


# ---- the frame ------------------------------------------------------------------------------------------------------


def test_each_record_has_a_single_row_in_each_study_that_shows_it(h200: Results, frame: pd.DataFrame) -> None:
    assert len(frame) == sum(len(records.records) for records in h200.selected)
    assert not frame.duplicated(["study", "record"]).any()


def test_an_estimate_counts_no_record_of_two_studies_twice() -> None:
    frame = load("cpu").frame()  # one host measured all its studies
    shared = frame[frame.duplicated("record", keep=False)]
    assert len(shared)
    with pytest.raises(UserError, match="study"):
        estimate(shared, "images_per_s", by=["key_hash", "image_px"])


def test_a_failure_is_a_row_with_its_reason_and_without_values(frame: pd.DataFrame) -> None:
    failed = frame[frame["status"] != "ok"]
    assert len(failed) and (failed["reason"] != "").all()
    assert failed[list(METRICS)].isna().all(axis=None)


def test_a_missing_value_has_a_reason_and_a_value_has_none(h200: Results, frame: pd.DataFrame) -> None:
    some = Results(h200.selected[:2])
    values, reasons = some.frame(), some.reasons()
    assert list(reasons.columns) == list(values.columns) and len(reasons) == len(values)
    for metric in METRICS:
        assert ((reasons[metric] != "") == values[metric].isna()).all(), metric


@pytest.mark.parametrize("hw", ["cpu", "h200"])
def test_only_what_a_sensor_reads_is_missing_for_lack_of_a_sensor(hw: str) -> None:
    reasons = load(hw, "12_data_pipeline").reasons().query("status == 'ok'")
    trained = reasons.query("workload == 'train'")
    for metric in ("written_bytes", "latency_s", "top1", "bytes_per_s", "speedup"):
        assert set(trained[metric]) - {""} == {NOT_PRODUCED}, metric
    assert not reasons["stall_share"].str.contains("sensor|read").any()
    if hw == "cpu":
        assert trained["sm_activity"].str.contains("no such sensor").all()


@pytest.mark.parametrize(
    ("study", "of", "metric", "fact"),
    [
        ("04_power", "workload in ['matmul', 'idle']", "energy_per_image_j", "no images"),
        ("04_power", "workload in ['matmul', 'idle']", "images_per_s_per_w", "no images"),
        ("02_batch_size", "epochs > 0", "power_w", "no telemetry"),
        ("01_training", "energy_windows > 0", "net_energy_per_image_j", "idle device|withdrawn"),
    ],
)
def test_a_sensor_that_was_read_is_not_the_reason(study: str, of: str, metric: str, fact: str) -> None:
    reasons = load("h200", study).reasons().query(f"status == 'ok' and device == 'cuda' and {of}")[metric]
    assert len(reasons) and reasons.str.contains(fact).all()


def test_a_value_that_the_record_withholds_says_why() -> None:
    asked, compiled = Trial(workload="infer", batch=1, queries=9), Trial(engine="compile")
    plain = blocks(INFERENCE, asked, 1, 400.0)
    assert plain.blocks
    queries = Queries(images=1, latency_ns=list(range(1, 10)), asked_for=9)
    timed = plain.model_copy(update={"result": plain.blocks.model_copy(update={"queries": queries})})
    cached = blocks(INFERENCE, compiled, 1, 400.0, facts={"compiled_regions": {"from the cache": 2}})
    cached = cached.model_copy(update={"phases_s": {"compile": 2.0}})
    calibrated = blocks(INFERENCE, replace(asked, batch=2), 1, 400.0, facts={"calibration": {"shared": True}})
    for record, metric, fact in (
        (plain, "latency_s", NOT_PRODUCED),
        (timed, "latency_p99_s", "too few"),
        (cached, "compile_s", "cached_compile_s"),
        (cached, "first_prediction_s", NOT_PRODUCED),
        (calibrated, "first_prediction_s", "earlier configuration"),
    ):
        assert fact in why_missing(of_records(INFERENCE, [record]), record, metric)


def test_every_metric_has_either_a_value_or_a_reason() -> None:
    trained, asked = Trial(epochs=2, target_top1=0.9), Trial(workload="infer", device="cpu", batch=1)
    short = blocks(INFERENCE, asked, 2, 390.0, short=True)
    records = [
        *(blocks(INFERENCE, Trial(), 1, 400.0), blocks(INFERENCE, asked, 1, 400.0), short),
        *(run(INFERENCE, trained, 1, [2.0, 1.0], 0.5), failed(INFERENCE, Trial(batch=8), 1)),
    ]
    results = of_records(INFERENCE, records)
    for record in records:
        for metric in METRICS:
            assert (metric_of(results, record, metric) is None) == bool(why_missing(results, record, metric)), metric


def test_a_metric_lacks_a_value_for_the_reason_of_the_metric_that_it_is_made_of() -> None:
    plain = blocks(INFERENCE, Trial(), 1, 400.0)
    assert plain.blocks
    untraced = plain.blocks.model_copy(update={"trace": Untraced(reason="the profiler is in use")})
    hidden = Telemetry(status="ok", missing={"gpu0": {"power_w": "the driver hides it"}})
    record = plain.model_copy(update={"result": untraced, "telemetry": hidden})
    results = of_records(INFERENCE, [record])
    for metrics, reason in (
        (("busy_step_s", "host_share", "device_images_per_s"), "the profiler is in use"),
        (("power_w", "power_fraction", "images_per_s_per_w"), "the driver hides it"),
    ):
        assert {why_missing(results, record, metric) for metric in metrics} == {reason}


def test_a_row_of_a_ceiling_has_no_network(frame: pd.DataFrame) -> None:
    ceilings = frame[frame["workload"].isin(["matmul", "memory_copy", "idle"])]
    assert len(ceilings) and ceilings[["model", "batch", "optimizer"]].isna().all(axis=None)


def test_the_share_of_copies_is_the_time_that_the_same_pass_saves_without_them() -> None:
    without = Trial(workload="infer", batch=1)
    with_copies = replace(without, copies="included")
    rates = {(without, 1): 400.0, (with_copies, 1): 300.0, (with_copies, 2): 300.0, (without, 3): 290.0}
    rates[with_copies, 3] = 300.0
    results = of_records("05_inference", [blocks("05_inference", *of, rate) for of, rate in rates.items()])
    shares = [metric_of(results, record, "host_copy_share") for record in results.ok(with_copies)]
    assert shares == [pytest.approx(0.25), None, 0.0], "alone in its pass there is none; noise gives none below 0"
    assert metric_of(results, results.ok(without)[0], "host_copy_share") is None


def test_the_long_tables_have_the_record_keys_of_the_frame(h200: Results, frame: pd.DataFrame) -> None:
    for table in (h200.blocks(), h200.epochs(), h200.queries(), h200.labels()):
        assert len(table) and set(table["record"]) <= set(frame["record"])
        assert not {"nan", "None"} & set(map(str, table.columns))
    blocks = h200.blocks()
    per_trial = blocks.groupby("record")["step_s"].mean()
    step_s = frame.drop_duplicates("record").set_index("record")["step_s"][per_trial.index]
    assert np.allclose(per_trial, step_s, rtol=1e-9, equal_nan=True), "a record's blocks have equally many steps"


def test_the_mean_of_hits_is_the_accuracy_of_the_frame(h200: Results) -> None:
    quantization = Results([selection for selection in h200.selected if selection.study.id == "08_quantization"])
    hits, frame = quantization.hits(), quantization.frame().set_index("record")
    shares = hits.groupby("record")[["top1", "top5"]].mean()
    assert np.allclose(shares, frame.loc[shares.index, ["top1", "top5"]])
    lost = difference(hits.query("model == 'vgg16'"), "top1", over={"precision": "fp32"}, by=["model", "precision"])
    shown = plots.dots(lost.drop(columns="precision").assign(value=100 * lost["value"]), y="model", x="points")
    assert shown.caption.startswith("Whiskers are 95 % intervals over images")


def test_series_belong_to_rows_of_the_frame(h200: Results, frame: pd.DataFrame) -> None:
    power = Results([selection for selection in h200.selected if selection.study.id == "04_power"]).series()
    assert {"power_w", "sm_clock_hz"} <= set(power["metric"])
    assert set(power["record"]) <= set(frame["record"])


def test_frame_can_include_records_of_all_hosts() -> None:
    cpu = load("cpu")
    assert len(cpu.frame(hosts="all")) >= len(cpu.frame())
    with pytest.raises(UserError, match="'selected' or 'all'"):
        cpu.frame(hosts="every")


def test_an_unknown_profile_or_a_study_without_records_is_refused() -> None:
    for asked, fact in (
        (("h2000",), "valid: h200"),
        (("k40m",), r"k40m\. .*: cpu, h100, .*h200_x4\.$"),
        (("h100", "data_pipeline"), r"12_data_pipeline of h100\. .*: cpu, h200\. .*h100: 01_tr"),
    ):
        with pytest.raises(UserError, match=fact):
            load(*asked)


def test_a_summary_is_short(h200: Results) -> None:
    assert len(repr(h200)) < 5_000 and "frame()" in repr(h200)


# ---- estimates ------------------------------------------------------------------------------------------------------

VALUES = st.lists(st.floats(0.001, 1e9), min_size=1, max_size=6)


@given(
    st.dictionaries(st.tuples(st.sampled_from(["strict FP32", "CUDA graph"]), st.integers(1, 4)), VALUES, min_size=1)
)
def test_the_interval_contains_the_value_and_one_pass_has_none(
    values: dict[tuple[str, int], list[float]],
) -> None:
    estimates = estimate(made(values), "images_per_s", by=["mode", "batch"])
    assert len(estimates) == len(values)
    for row in estimates.itertuples():
        passes = values[row.mode, row.batch]
        assert row.passes == len(passes) and row.hosts == 1
        assert min(passes) * (1 - 1e-9) <= row.value <= max(passes) * (1 + 1e-9)
        if len(passes) == 1:
            assert math.isnan(row.low) and math.isnan(row.high)
        else:
            assert row.low <= row.value * (1 + 1e-9) and row.value <= row.high * (1 + 1e-9)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=6))
def test_an_interval_of_shares_stays_between_0_and_1(shares: list[float]) -> None:
    (row,) = estimate(made({("strict FP32", 1): shares}), "utilisation", by=["mode"]).itertuples()
    assert 0 <= row.low <= row.high <= 1


def test_missing_values_are_left_out_and_never_0() -> None:
    nothing = made({("strict FP32", 1): [math.nan, math.nan], ("CUDA graph", 1): [2.0, math.nan]})
    estimates = estimate(nothing, "images_per_s", by=["mode"])
    assert list(estimates["mode"]) == ["CUDA graph"] and list(estimates["passes"]) == [1]
    empty = estimate(nothing[:0], "images_per_s", by=["mode"])
    assert empty.empty and list(empty.columns) == ["mode", *ESTIMATED, QUANTITY]


def test_a_missing_column_is_named_with_the_five_nearest(frame: pd.DataFrame) -> None:
    for draw, fact in (
        (
            lambda: estimate(frame, "image_per_s", by=["mode"]),
            r"image_per_s: images_per_s, (\w+, ){3}\w+\. `workbook.desc",
        ),
        (lambda: shown_table(frame, rows="modes", values="images_per_s"), "modes: mode, "),
        (lambda: estimate(frame, "step_s", ["modes"]), "modes: mode, "),
        (
            lambda: ratio(frame, "images_per_s", over={"batches": 64}, by=["modes"]),
            "modes, batches; .* batches: batch, ",
        ),
    ):
        with pytest.raises(UserError, match=fact):
            draw()


def test_results_in_place_of_their_table_are_refused(h200: Results) -> None:
    for ask in (
        lambda: estimate(h200, "images_per_s"),  # type: ignore[arg-type]
        lambda: describe(h200),  # type: ignore[arg-type]
        lambda: shown_table(h200, rows="mode", values="images_per_s"),  # type: ignore[arg-type]
        lambda: plots.dots(h200, y="mode", x="images_per_s"),  # type: ignore[arg-type]
    ):
        with pytest.raises(UserError, match=r"`results\.frame\(\)`"):
            ask()


def test_one_column_may_be_given_as_a_text() -> None:
    data = made({("strict FP32", 1): [1.0], ("CUDA graph", 1): [2.0]})
    assert estimate(data, "images_per_s", by="mode").equals(estimate(data, "images_per_s", by=["mode"]))
    assert ratio(data, "images_per_s", over={"mode": "strict FP32"}, by="mode")["value"].tolist() == [2]


def test_a_column_of_texts_is_no_metric(frame: pd.DataFrame) -> None:
    for refused in (
        lambda: estimate(frame, "engine"),
        lambda: ratio(frame, "engine", over={"mode": "strict FP32"}, by="mode"),
    ):
        with pytest.raises(UserError, match=r"column engine .*`workbook.describe"):
            refused()


@pytest.mark.parametrize(
    ("over", "said"),
    [
        ({"mode": "Strict FP32"}, "mode .*'Strict FP32'; nearest: 'strict FP32', .* has 'CUDA graph', 'strict"),
        ({"mode": "compile"}, "'compile'; nearest: 'compiled', "),
        ({"precision": "FP32"}, "'FP32'; nearest: 'fp32', "),
        ({"model": ["vgg16"]}, r"\['vgg16'\]; nearest: 'vgg16', "),
        ("strict FP32", "`over` .* 'strict FP32'"),
        ({}, "`over`"),
    ],
)
def test_a_comparison_with_what_cannot_be_is_refused(over: Any, said: str) -> None:
    data = made({("strict FP32", 1): [1.0], ("CUDA graph", 1): [2.0]}).assign(model="vgg16", precision="fp32")
    with pytest.raises(UserError, match=said):
        ratio(data, "images_per_s", over=over, by="mode")


@pytest.mark.filterwarnings("ignore:the ratio has no row")
def test_a_comparison_with_what_did_not_run_here_is_empty() -> None:
    data = made({("strict FP32", 1): [1.0], ("CUDA graph", 1): [2.0]}).assign(model="vgg16")
    own = data.assign(mode=["as usual", "faster"])
    for rows, over in [
        (data, {"mode": "compiled, fused SGD"}),
        (data, {"mode": "not measured"}),
        (data, {"model": "resnet50"}),
        (data, {"batch": 64}),
        (data[:0], {"mode": "Baseline"}),
        (own, {"mode": "fastest"}),
    ]:
        assert ratio(rows, "images_per_s", over=over, by="mode").empty, over


def test_a_mean_over_configurations_is_refused_naming_their_columns(frame: pd.DataFrame) -> None:
    with pytest.raises(UserError, match=r"\(batch: 1, 2\).*`by`"):
        estimate(made({("strict FP32", 1): [1.0], ("strict FP32", 2): [2.0]}), "images_per_s", by=["mode"])
    resnet = frame.query("model == 'resnet50' and workload == 'train' and batch == 256 and image_px == 32")
    with pytest.raises(UserError, match="study"):
        estimate(resnet.query("framework == 'torch'"), "images_per_s", by=["mode"])


def test_rows_that_differ_in_size_or_framework_say_so(frame: pd.DataFrame) -> None:
    trained = frame.query("workload == 'train' and study == '07_precision' and epochs == 0")
    with pytest.raises(UserError, match=r"\(image_px: .*\)"):
        estimate(trained, "images_per_s", by=["model", "mode", "batch", "precision"])
    own = trained.assign(setting=trained["model"] + trained["image_px"].astype(str))
    assert len(estimate(own, "images_per_s", by=["setting", "mode", "batch", "precision"])), (
        "the caller's column says it"
    )


@pytest.mark.parametrize(
    ("interrupted", "passes"),
    [
        pytest.param([], 4, id="no pass was interrupted"),
        pytest.param([4], 3, id="three whole passes are left"),
        pytest.param([3, 4], 4, id="two whole passes are left"),
        pytest.param([1, 2, 3, 4], 4, id="two frameworks never share a process"),
    ],
)
def test_an_interrupted_pass_counts_if_fewer_than_three_are_whole(interrupted: list[int], passes: int) -> None:
    sides = {("strict FP32", 1): [1.0, 2.0, 4.0, 8.0], ("CUDA graph", 1): [2.0, 4.0, 8.0, 16.0]}
    data = made(sides).assign(framework="torch", devices=1)
    data["process"] = data["pass_number"].astype(str)
    data.loc[data["pass_number"].isin(interrupted) & (data["mode"] == "strict FP32"), "process"] = "another"
    paired = ratio(data, "images_per_s", over={"mode": "strict FP32"}, by=["mode"])
    assert paired["passes"].tolist() == [passes] and paired["value"].tolist() == pytest.approx([2.0])


def test_values_that_the_records_cannot_support_are_missing_with_the_reason(h200: Results, frame: pd.DataFrame) -> None:
    reasons = h200.reasons()

    def chosen(query: str) -> tuple[pd.DataFrame, pd.DataFrame]:
        return frame.query(query), reasons.query(query)

    quantized, why = chosen("study == '08_quantization' and workload == 'infer' and status == 'ok'")
    withdrawn = quantized["framework_peak_bytes"].isna()
    assert withdrawn.any()
    assert (why["framework_peak_bytes"].str.startswith("withdrawn: ") == withdrawn).all()
    decoded, why = chosen("study == '14_today' and model == 'llama_8b' and engine == 'eager'")
    assert why["framework_peak_bytes"].str.contains("what the correctness check had left").all() and len(decoded)
    decoded, _ = chosen("study == '14_today' and model == 'llama_8b' and mode == 'compiled + CUDA graph'")
    weights = 2 * 7.5e9  # in BF16
    assert ((decoded["framework_peak_bytes"] > weights) & (decoded["framework_peak_bytes"] < 1.1 * weights)).all()
    trained, why = chosen("workload == 'own_training' and model == 'convnext_tiny'")
    assert trained["flop_per_s"].isna().all() and why["flop_per_s"].str.contains("grouped convolution").all()
    trained, why = chosen("study == '04_power' and workload == 'train'")
    assert trained["framework_peak_bytes"].notna().all()
    assert (trained["roofline_fraction"].notna() == (trained["precision"] == "fp32")).all()
    assert (why["roofline_fraction"].str.contains("BF16") == (trained["precision"] == "bf16")).all()
    trained, why = chosen("study == '02_batch_size' and workload == 'train'")
    slowed = why["step_s"].str.contains("an earlier trace slowed it")
    assert slowed.any() and trained["busy_step_s"][slowed].notna().all()
    assert trained["roofline_fraction"][slowed].isna().all()
    assert frame["cpu_clock_hz"].isna().all(), "the virtual machine's clock never changes"
    assert (reasons.query("status == 'ok'")["cpu_clock_hz"] != "").all()


def test_cold_and_cached_compile_times_are_never_one_mean(frame: pd.DataFrame) -> None:
    compiled = frame.query("mode == 'compiled + CUDA graph' and study == '02_batch_size' and workload == 'train'")
    assert compiled["compile_s"].notna().any() and compiled["cached_compile_s"].notna().any()
    assert (compiled["compile_s"].notna() != compiled["cached_compile_s"].notna()).all()
    of_model = compiled.groupby("model")
    cold_s = of_model["compile_s"].min().dropna()  # a cold compilation may have been interrupted
    assert len(cold_s) >= 2 and (cold_s > of_model["cached_compile_s"].max()[cold_s.index]).all()


def test_power_from_few_readings_is_marked(frame: pd.DataFrame) -> None:
    short, long = (numbers(load("h200", study)).query("metric == 'power_w'") for study in ("precision", "power"))
    assert short["reason"].str.contains("20 readings").any()
    assert long["reason"].isna().all()
    assert frame.query("study == '04_power'")["power_readings"].min() >= 20


def test_the_time_between_blocks_is_stated_and_small(frame: pd.DataFrame) -> None:
    shares = frame.query("energy_windows == 0")["between_blocks_share"].dropna()
    assert len(shares) > 100 and shares.between(0, 0.03).all()


def test_columns_are_described_by_the_texts_of_trials(frame: pd.DataFrame) -> None:
    meanings = describe(frame)["meaning"]
    assert all(word in meanings["precision"] for word in WORDS["precision"])
    assert meanings["energy_windows"].startswith("long windows") and meanings["mode"].startswith("execution mode")


def test_a_mistake_in_a_notebook_shows_the_readers_line_and_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    InteractiveShell().run_cell('import workbook\nworkbook.load("h2000")')
    line, message = capsys.readouterr().out.strip().splitlines()
    assert 'load("h2000")' in line and message.startswith("UserError: ")
