"""Tests of launch rates and peaks: which trials have bursts, their metrics, and what the rates explain."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import chain
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from labkit.telemetry.summary import Statistic, Telemetry, Window
from labkit.timing import HostClock
from tests.traces import ADDITION, CONVOLUTION, columns, launched, step
from tests.workbook.made_records import blocks, of_records
from workbook.hardware.profile import Timing, load_profile
from workbook.records import Record
from workbook.results import Results
from workbook.results.from_result import NO_BURSTS
from workbook.results.metrics import metric_of, why_missing
from workbook.runner import afterwards
from workbook.runner.execution import has_bursts, run
from workbook.runner.preparing import Data
from workbook.runner.protocol import Pass
from workbook.show import plots
from workbook.studies import launches, rooflines
from workbook.trials.trial import NO_DATA, WORDS, Trial

STUDY = "09_profile"
TIMING = Timing(warmup_s=0.2, timed_s=0.5, block_s=0.1, limit_s=120)
EAGER = Trial(batch=64)
CEILING = Trial(workload="launch_rate", size=3000, data=NO_DATA)
FLOP = 10**12
KERNELS = ((CONVOLUTION, 1), (ADDITION, 2), (ADDITION, 5))  # name and launch, in two steps


def with_result(trial: Trial, number: int, images_per_s: float, **of_blocks: Any) -> Record:
    made = blocks(STUDY, trial, number, images_per_s)
    assert made.blocks is not None
    return made.model_copy(update={"result": made.blocks.model_copy(update=of_blocks)})


def with_facts(record: Record, **facts: Any) -> Record:
    return record.model_copy(update={"facts": record.facts | facts})


# ---- bursts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        {"engine": "graph", "loader": "device"},
        {"engine": "compile"},
        {"device": "cpu"},
        {"devices": 2},
        {"framework": "keras-torch"},
        {"epochs": 2},
        {"arrangement": "at_once"},
        {"form": "jpeg", "reader": "torch_pil"},  # whose buffers would fill during a burst
    ],
)
def test_only_short_passes_of_eager_pytorch_on_one_gpu_have_bursts(other: dict[str, Any]) -> None:
    short = Pass(number=4, timing=TIMING, short=True)
    assert has_bursts(EAGER, short) and not has_bursts(EAGER, short.model_copy(update={"short": False}))
    assert not has_bursts(replace(EAGER, **other), short)


@pytest.mark.usefixtures("_torch_is_left_as_it_was")
def test_the_launches_of_a_step_reach_its_blocks() -> None:
    """Workloads of users need not count launches."""
    job = Pass(number=4, timing=Timing(warmup_s=0.01, timed_s=0.04, block_s=0.002, limit_s=60), short=True)
    events: Any = SimpleNamespace(progress=lambda _phase, _share: None)
    for trial, launched_ in ((replace(CEILING, size=50), 50), (Trial(workload="tests.faulty.ok", data=NO_DATA), None)):
        outcome = run(replace(trial, device="cpu"), job, Data(), events)
        assert (outcome["status"], outcome["reason"]) == ("ok", None)
        assert outcome["result"]["launches_per_step"] == launched_
        assert outcome["result"]["launches_per_s"] == []


def test_the_metrics_of_launches_are_rates_or_missing_with_a_reason() -> None:
    ceiling = with_result(CEILING, 1, 1.0, images_per_step=None, launches_per_step=3000, host_s=[0.1] * 10)
    beside, long = with_result(EAGER, 4, 6400.0, launches_per_s=[1e5, 2e5, 6e5]), blocks(STUDY, EAGER, 1, 6400.0)
    results = of_records(STUDY, [ceiling, beside, long])
    assert metric_of(results, ceiling, "launches_per_s") == pytest.approx(5 * 3000 / 0.1)
    assert metric_of(results, beside, "launch_rate_beside") == pytest.approx(3e5)
    assert metric_of(results, long, "launch_rate_beside") is None
    assert why_missing(results, long, "launch_rate_beside") == NO_BURSTS
    assert metric_of(results, long, "launches_per_s") is None


def test_telemetry_of_the_timed_part_of_a_short_pass_is_withdrawn() -> None:
    power = Window(
        start_s=0, length_s=1, sources={"gpu0": {"power_w": Statistic(mean=300, low=1, high=400, n=9)}}, gap_s={}
    )
    seen = Telemetry(status="ok", windows={"timed": power, "warmup": power}, missing={"gpu0": {}})
    at_s = {"at_s": [0.06 * number for number in range(10)]}  # blocks of 0.05 s
    steady, burst = (
        with_result(EAGER, number, 6400.0, launches_per_s=rates, **at_s).model_copy(
            update={"telemetry": seen, "short": bool(rates)}
        )
        for number, rates in ((1, []), (4, [1e5] * 11))
    )
    results = of_records(STUDY, [steady, burst])
    for metric, value in {"power_w": 300, "images_per_s_per_w": 6400 / 300}.items():
        assert metric_of(results, steady, metric) == pytest.approx(value)
        assert metric_of(results, burst, metric) is None
        assert why_missing(results, burst, metric).startswith("a short run only times")
    assert (metric_of(results, steady, "between_blocks_share") or 0) > 0.1
    assert metric_of(results, burst, "between_blocks_share") is None
    assert why_missing(results, burst, "dram_activity") != why_missing(results, burst, "power_w")
    readings = Results([results]).readings()
    assert set(zip(readings["pass_number"], readings["window"], strict=True)) == {
        (1, "timed"),
        (1, "warmup"),
        (4, "warmup"),
    }


def test_a_short_trace_counts_the_kernels_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = [launched(name, at, at + 0.25, at + 0.5, number) for number, (name, at) in enumerate(KERNELS, start=1)]
    events = columns([step(0, 4), *chain(*kernels), step(4, 8)])

    def take(_step: object, _clock: object, analysis: Any, **_options: Any) -> None:
        analysis.add(events, steps=2)

    monkeypatch.setattr(afterwards, "take_trace", take)
    workload: Any = SimpleNamespace(step=None, read_loss=None)
    made = blocks(STUDY, EAGER, 1, 6400.0).blocks
    assert made is not None
    facts = afterwards._device_time(workload, HostClock(), made)
    assert (facts["kernels_per_step"], facts["busy_step_s"]) == (1.5, pytest.approx(3 * 0.25 / 2))
    assert facts["kernel_step_s"] == {"convolution": pytest.approx(0.125), "element_wise": pytest.approx(0.25)}
    assert sum(facts["kernel_step_s"].values()) == pytest.approx(facts["busy_step_s"])


# ---- peaks ----------------------------------------------------------------------------------------------------------


def test_each_measured_precision_and_only_a_measured_launch_rate_have_a_peak() -> None:
    frame = pd.DataFrame({"workload": "matmul", "precision": ["bf16", "fp32"], "flop_per_s": [6e14, 5e13]})
    peaks = rooflines.peaks(frame.assign(bytes_per_s=math.nan), load_profile("h200"))
    assert peaks[["measured", "nominal"]].to_numpy().tolist() == [[50, 67], [600, 989.5]], "FP32 first"
    ceiling = frame[:1].assign(workload="launch_rate", launches_per_s=1.5e5)
    listed = rooflines.peaks(pd.concat([frame, ceiling]), load_profile("h200"))
    assert listed.iloc[-1, :2].tolist() == ["launch rate, thousand launches/s", 150.0]


def test_a_roofline_bounds_strict_fp32_alone() -> None:
    about = {"profile": "p", "study": "s", "host": "a", "status": "ok", "model": "vgg16"}
    rates = {"images_per_s": 8000.0, "roofline_fraction": 0.1}
    frame = pd.DataFrame(
        [{**about, **rates, "precision": kind, "pass_number": n} for n in (1, 2) for kind in WORDS["precision"]]
    )
    bounds = rooflines.measured(frame, by=["model"])
    assert bounds[["label", "passes"]].to_numpy().tolist() == [["FP32 roofline", 2]]
    assert bounds["value"].item() == pytest.approx(8e4)


# ---- what the launch rate explains ----------------------------------------------------------------------------------


def made(logs: pd.DataFrame) -> pd.DataFrame:
    """Return results whose rates have these logs: `host`, `key_hash`, `throughput`, `launches`."""
    rates = {"images_per_s": 1e4 * np.exp(logs["throughput"]), "launch_rate_beside": 1e5 * np.exp(logs["launches"])}
    about = {"profile": "p", "scale": "quick", "protocol": 3, "study": STUDY}
    return logs[["host", "key_hash"]].assign(pass_number=4, **rates, **about)


def explained(logs: pd.DataFrame) -> pd.DataFrame:
    return launches.explained(launches.points(made(logs))).set_index("level")


def simulated(hosts: int, *, seed: int = 0) -> pd.DataFrame:
    """Return logs of five configurations, ten runs on each host.

    Within a host, half of the variance of throughput is that of the launch rate (slope 1). Between hosts, throughput
    is 0.5 times the launch rate's log.
    """
    chance, rows = np.random.default_rng(seed), []
    for host, base in enumerate(chance.normal(0, 0.3, hosts)):
        for key in range(5):
            launch, noise = chance.normal(0, 0.1, 10), chance.normal(0, 0.1, 10)
            launch, noise = launch - launch.mean(), noise - noise.mean()
            rows.append(
                pd.DataFrame({"launches": base + launch, "throughput": key + base / 2 + launch + noise}).assign(
                    host=f"h{host}", key_hash=f"k{key}"
                )
            )
    return pd.concat(rows, ignore_index=True)


def test_the_explained_share_is_the_true_one_within_and_between_hosts() -> None:
    shares = explained(simulated(20))
    assert shares.loc["within", "value"] == pytest.approx(0.5, abs=0.05)
    assert shares.loc["within", "slope"] == pytest.approx(1.0, abs=0.05)
    assert shares.loc["between", ["value", "slope"]].tolist() == pytest.approx([1.0, 0.5])
    assert shares["points"].tolist() == [20 * 5 * 10, 20 * 5] and shares["hosts"].tolist() == [20, 20]


def test_a_rate_that_explains_nothing_has_a_share_near_0() -> None:
    logs = simulated(20)
    shuffled = logs.assign(launches=np.random.default_rng(1).permutation(logs["launches"]))
    assert explained(shuffled).loc["within", "value"] < 0.02


def test_points_are_relative_to_the_mean_of_hosts_with_equal_weights() -> None:
    logs = pd.DataFrame({"host": list("aaab"), "key_hash": "k", "launches": 0.0, "throughput": [0.0, 0.0, 0.0, 2.0]})
    points = launches.points(made(logs))
    assert points["relative_images_per_s"].tolist() == pytest.approx([math.exp(-1)] * 3 + [math.e])
    assert points["relative_launch_rate"].tolist() == pytest.approx([1.0] * 4)


def test_a_configuration_with_one_run_is_left_out() -> None:
    """Two such runs of a host would have the same launch rate, 1, and a line cannot average their throughput."""
    logs = pd.DataFrame({"host": "a", "key_hash": ["k", "l", "m", "m"], "launches": [0.0, 0.1, 0.2, 0.3]})
    points = launches.points(made(logs.assign(throughput=0.0)))
    assert points["key_hash"].tolist() == ["m", "m"]
    assert launches.points(made(logs.head(2).assign(throughput=0.0))).attrs["reason"] == launches.TOO_FEW


def test_too_few_points_or_hosts_give_no_share() -> None:
    two_hosts = explained(simulated(2))
    assert math.isnan(two_hosts.loc["between", "value"]) and two_hosts.loc["between", "reason"] == launches.TOO_FEW
    assert two_hosts.loc["within", "value"] > 0
    few = explained(simulated(1).head(2))
    assert few["value"].isna().all() and few["points"].tolist() == [2, 0]
    constant = simulated(3).assign(launches=0.0)
    assert explained(constant)["value"].isna().all(), "a constant rate explains nothing that could be measured"


def test_records_without_bursts_give_an_empty_table_with_the_reason() -> None:
    frame = Results([of_records(STUDY, [blocks(STUDY, EAGER, 1, 6400.0)])]).frame(hosts="all")
    points = launches.points(frame)
    assert points.empty and points.attrs["reason"] == NO_BURSTS
    shares = launches.explained(points)
    assert shares["value"].isna().all() and set(shares["reason"]) == {NO_BURSTS} and not shares["points"].any()
    figure = plots.lines(points, x="relative_launch_rate", y="relative_images_per_s", hue="host")
    assert "no bursts" in figure.svg()


@pytest.mark.filterwarnings("error")
def test_every_run_is_a_marker_of_the_figure() -> None:
    points = launches.points(made(simulated(2)))
    figure = plots.lines(points, x="relative_launch_rate", y="relative_images_per_s", hue="host", join=len(points) + 1)
    drawn = [line for line in figure.axes[0].lines if len(line.get_xdata()) == 50]
    assert len(drawn) == 2 and all(line.get_marker() not in ("", "None") for line in drawn)
