"""Tests of traffic between devices, from byte counters and traces, and of the reasons for missing values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from labkit.sensors import rate_name
from labkit.telemetry.summary import Metrics, Statistic, Telemetry, Window
from tests.workbook.made_records import blocks, of_records, run
from workbook.claims.evidence import Side
from workbook.hardware.profile import load_profile
from workbook.records import Blocks, Record
from workbook.records.traced import Piece, Total, Trace, Traced, Untraced
from workbook.results.metrics import metric_of, why_missing
from workbook.results.table import Results
from workbook.show import table
from workbook.studies import multi_gpu
from workbook.study import open_study
from workbook.trials.trial import NO_DATA, Trial

FOUR = Trial(model="resnet50", devices=4)
STEPS, LENGTH_S = 50, 4.0  # of `blocks`: ten blocks of five steps
MB = 1_000_000


def grown(counter: str, by: float, *, n: int = 20) -> Metrics:
    """Return the metrics of a counter that grew by `by` in the timed part."""
    rate = by / LENGTH_S
    return {rate_name(counter): Statistic(mean=rate, low=rate, high=rate, n=n)}


def nvlink(*megabytes: float, n: int = 20) -> dict[str, Metrics]:
    """Return the metrics of devices that sent these megabytes over NVLink."""
    return {f"gpu{place}": grown("nvlink_sent_bytes", mb * MB, n=n) for place, mb in enumerate(megabytes)}


def host(n: int = 20, **megabytes: float) -> dict[str, Metrics]:
    """Return the metrics of the host's counters that grew by these megabytes."""
    metrics: Metrics = {}
    for counter, mb in megabytes.items():
        metrics |= grown(f"{counter}_bytes", mb * MB, n=n)
    return {"host": metrics}


def busy(**shares: float) -> dict[str, Metrics]:
    return {gpu: {"utilisation": Statistic(mean=x, low=x, high=x, n=9)} for gpu, x in shares.items()}


def told(sources: dict[str, Metrics], missing: dict[str, dict[str, str]] | None = None) -> Telemetry:
    window = Window(start_s=0, length_s=LENGTH_S, sources=sources)
    return Telemetry(status="ok", windows={"timed": window}, missing=missing or {})


def made(trial: Trial, telemetry: Telemetry | None, **fields: Any) -> Record:
    """Return the record of a pass, with `fields` set in its trial even if this version of Trial lacks them."""
    record = blocks("multi_gpu", trial, 1, 1000.0, telemetry=telemetry, devices_used=trial.devices)
    return record.model_copy(update={"trial": {**record.trial, **fields}})


def value(record: Record, metric: str) -> float | None:
    return metric_of(of_records("multi_gpu", [record]), record, metric)


def reason_of(record: Record, metric: str) -> str:
    return why_missing(of_records("multi_gpu", [record]), record, metric)


def test_gradient_bytes_over_nvlink_are_the_mean_over_devices() -> None:
    record = made(FOUR, told(nvlink(0, 100, 200, 300) | host(loopback_sent=7777)))
    assert value(record, "gradient_bytes") == pytest.approx(600 * MB / 4 / STEPS)


@pytest.mark.parametrize(
    "trial",
    [
        Trial(model="resnet50", devices=4, interconnect="sockets"),
        Trial(model="resnet50", devices=4, device="cpu"),
    ],
)
def test_ranks_of_a_machine_that_use_sockets_send_over_loopback(trial: Trial) -> None:
    record = made(trial, told(nvlink(1, 1, 1, 1) | host(loopback_sent=400, network_sent=9999)))
    assert value(record, "gradient_bytes") == pytest.approx(400 * MB / 4 / STEPS)


@pytest.mark.parametrize(("network", "megabytes"), [("ethernet", 300), ("infiniband", 40), ("any", 340)])
def test_gradient_bytes_between_nodes_are_those_that_leave_the_node(network: str, megabytes: float) -> None:
    counters = host(network_sent=500, loopback_sent=200, infiniband_sent=40)
    record = made(FOUR, told(nvlink(1, 1) | counters), nodes=2, network=network)
    assert value(record, "gradient_bytes") == pytest.approx(megabytes * MB / STEPS)


def test_without_infiniband_network_any_counts_the_operating_systems_network() -> None:
    counters = told(host(network_sent=500, loopback_sent=200), LOCAL)
    assert value(made(FOUR, counters, nodes=2), "gradient_bytes") == pytest.approx(300 * MB / STEPS)


NO_NVLINK = {f"gpu{n}": {"nvlink_sent_bytes": "the driver says: Not Supported"} for n in range(4)}


LOST = Telemetry(status="lost", reason="the process was killed")
EPOCHS = run("multi_gpu", Trial(devices=2, epochs=1), 1, [6.0], 0.1, telemetry=told(nvlink(1, 1)), devices_used=2)
LOCAL = {"host": {"infiniband_sent_bytes": "no InfiniBand"}}


def in_energy_windows(record: Record) -> Record:
    assert record.blocks is not None
    return record.model_copy(update={"result": record.blocks.model_copy(update={"energy_blocks": [(0, 5), (5, 10)]})})


def traced(trace: Trace | None) -> Record:
    record = made(FOUR, None)
    assert record.blocks is not None
    return record.model_copy(update={"result": record.blocks.model_copy(update={"trace": trace})})


def of_five_steps(exchange_s: float, exposed_exchange_s: float) -> Traced:
    piece = Piece(steps=5, elapsed_s=0.1, busy_s=0.05, kernel_s={"convolution": 0.05})
    return Traced(
        **{"of": "kernels", "steps": 5, "asked_for": 5, "pieces": [piece], "longest": []},
        **{"elapsed_s": 0.1, "busy_s": 0.05, "active_s": 0.05},
        kernels={"convolution": Total(seconds=0.05, count=50)},
        exchange_s=exchange_s,
        exposed_exchange_s=exposed_exchange_s,
    )


@pytest.mark.parametrize(
    ("metric", "record", "fact"),
    [
        ("gradient_bytes", made(Trial(model="resnet50"), told(nvlink(1))), "several devices"),
        ("gradient_bytes", made(FOUR, None), "no telemetry"),
        ("gradient_bytes", made(FOUR, LOST), "killed"),
        ("gradient_bytes", made(replace(FOUR, interconnect="host"), told(nvlink(1, 1, 1, 1))), "memory"),
        ("gradient_bytes", made(FOUR, told(nvlink(1, 1, 1))), "1 of its devices"),
        ("gradient_bytes", made(FOUR, told(nvlink(1, 1, 1, 1, n=5))), "5 in it, 6"),
        ("gradient_bytes", made(FOUR, told(nvlink(0, 0, 0, 0))), "nothing went over NVLink"),
        ("gradient_bytes", made(FOUR, told(busy(gpu0=1, gpu1=1, gpu2=1, gpu3=1), NO_NVLINK)), "Not Supported"),
        ("gradient_bytes", made(Trial(devices=2, device="cpu"), told(host())), "loopback_sent_bytes of host"),
        ("gradient_bytes", made(FOUR, told(host(), LOCAL), nodes=2, network="infiniband"), "no InfiniBand"),
        ("gradient_bytes", EPOCHS, "timed blocks"),
        ("gradient_bytes", in_energy_windows(made(FOUR, told(nvlink(1, 1, 1, 1)))), "energy windows"),
        ("received_minus_sent_bytes", made(FOUR, told(host(network_received=9, network_sent=4))), "one node"),
        ("first_device_utilisation_ratio", made(Trial(), told(busy(gpu0=0.5))), "several devices"),
        ("first_device_utilisation_ratio", made(FOUR, told(busy(gpu0=1, gpu1=1, gpu2=1))), "1 of its devices"),
        ("first_device_utilisation_ratio", made(Trial(devices=2), told(busy(gpu0=1, gpu1=0))), "did nothing"),
        ("hidden_exchange_share", traced(None), "no steps"),
        ("hidden_exchange_share", traced(Untraced(reason="no kernels")), "no kernels"),
        ("hidden_exchange_share", traced(of_five_steps(0.0, 0.0)), "nothing of the kind"),
    ],
)
def test_a_missing_value_has_its_reason(metric: str, record: Record, fact: str) -> None:
    assert value(record, metric) is None
    assert fact in reason_of(record, metric)


def test_a_reason_is_that_of_the_trial_of_a_claim() -> None:
    alone, together = Trial(model="resnet50"), Trial(model="resnet50", devices=2)
    results = of_records("multi_gpu", [made(alone, told(nvlink(1))), made(together, told(nvlink(0, 0)))])
    assert "several devices" in Side(Results([results]), alone).why_missing("gradient_bytes")
    assert "nothing went" in Side(Results([results]), together).why_missing("gradient_bytes")


def test_a_claim_gives_the_reasons_of_all_passes_of_its_trial() -> None:
    records = [made(FOUR, LOST), made(FOUR, None).model_copy(update={"pass_number": 2})]
    reason = Side(Results([of_records("multi_gpu", records)]), FOUR).why_missing("first_device_utilisation_ratio")
    assert len(reason.split("; ")) == 2 and LOST.reason in reason.split("; ")


def test_received_minus_sent_bytes_need_several_nodes() -> None:
    telemetry = told(host(network_received=500, network_sent=420))
    assert value(made(FOUR, telemetry, nodes=2), "received_minus_sent_bytes") == pytest.approx(80 * MB)
    less = told(host(network_received=400, network_sent=420))
    assert value(made(FOUR, less, nodes=2), "received_minus_sent_bytes") == pytest.approx(-20 * MB)


def test_the_first_device_is_compared_with_the_mean_of_the_others() -> None:
    shares = {f"gpu{n}": 0.4 for n in range(12)} | {"gpu0": 0.6, "gpu10": 0.62}
    others = (10 * 0.4 + 0.62) / 11
    record = made(Trial(devices=12), told(busy(**shares)))
    assert value(record, "first_device_utilisation_ratio") == pytest.approx(0.6 / others)
    starts_at_two = made(Trial(devices=2), told(busy(gpu10=0.3, gpu2=0.6)))
    assert value(starts_at_two, "first_device_utilisation_ratio") == pytest.approx(2.0)


# ---- from a trace ---------------------------------------------------------------------------------------------------


def test_exchange_times_of_a_trace_are_per_step() -> None:
    record = traced(of_five_steps(0.01, 0.004))
    times = {name: value(record, name) for name in ("exchange_s", "exposed_exchange_s")}
    assert times == {"exchange_s": pytest.approx(0.002), "exposed_exchange_s": pytest.approx(0.0008)}
    assert value(record, "hidden_exchange_share") == pytest.approx(0.6)


def test_a_link_must_carry_a_steps_bytes_in_the_time_of_a_step_on_one_gpu() -> None:
    one = Trial(model="resnet50", batch=64)
    two = replace(one, devices=2)
    all_reduce = Trial(workload="all_reduce", data=NO_DATA, devices=2, size=2**28)
    reduced = blocks("multi_gpu", all_reduce, 1, 20 * all_reduce.batch_of_step, devices_used=2)  # 20 steps per second
    assert isinstance(reduced.result, Blocks)
    records = [
        blocks("multi_gpu", one, 1, 640.0),  # 64 images take 0.1 s
        blocks("multi_gpu", two, 1, 1000.0, devices_used=2, facts={"exchanged_bytes_per_step": 50 * MB}),
        reduced.model_copy(update={"result": reduced.result.model_copy(update={"bytes_per_step": 400 * MB})}),
    ]
    results = Results([of_records("multi_gpu", records)])
    frame = results.frame()
    must = results.facts("exchanged_bytes_per_step")
    assert multi_gpu.needed(multi_gpu.scaled(frame), must)["value"].tolist() == pytest.approx([500 * MB])
    (carried,) = multi_gpu.carried(frame).to_dict("records")
    assert carried == {"label": "direct", "value": pytest.approx(8e9)}, "two GPUs each send what they reduce"


def test_the_time_to_the_target_is_that_of_its_epochs_and_words_have_no_pixels() -> None:
    learning = Trial(model="resnet18", batch=64, epochs=4, target_top1=0.5)  # 3 s an epoch
    learned = [run("multi_gpu", learning, number, [6.0] * 4, top1) for number, top1 in ((1, 0.8), (2, 0.4))]
    records = Results([of_records("multi_gpu", learned)]).frame()
    assert multi_gpu.runs(records)["target_s"].tolist() == pytest.approx([7.5, 12.0]), "a lower bound"
    stale = run("multi_gpu", replace(learning, devices=2, updates="asynchronous"), 1, [6.0] * 4, 0.8, devices_used=2)
    told = multi_gpu.runs(Results([of_records("multi_gpu", [stale])]).frame())
    shown = table(told, "recipe", {"top-1": "top1", "time": "target_s"})
    assert "its devices share or repeat work" in shown.reasons[0, "time"]
    words = Trial(model="mlp512", devices=2)
    frame = Results([of_records("multi_gpu", [blocks("multi_gpu", words, 1, 640.0, devices_used=2)])]).frame()
    assert multi_gpu.exchanging(frame)["image_px"].isna().all()


def test_the_nominal_rate_of_the_links_is_the_devices_or_unknown() -> None:
    given = {"scale": "smoke", "mode": "plan"}
    h100 = load_profile("h100").peaks.link_bytes_per_s
    assert h100 is not None
    assert multi_gpu.nominal(open_study("03_multi_gpu", hw="h100_x2", **given))["value"].tolist() == [h100.value]
    assert multi_gpu.nominal(open_study("03_multi_gpu", hw="cpu", **given)).empty
