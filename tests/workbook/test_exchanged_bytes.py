"""The bytes that two ranks send to each other, and how much of the exchange a trace shows behind computation."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")

from tests.faulty.campaign import records
from tests.faulty.exchanging import TRACED, trials
from tests.workbook.made_records import of_records
from workbook.hardware.limits import usable_threads
from workbook.paths import ROOT
from workbook.records import Record
from workbook.records.traced import Traced
from workbook.results.metrics import metric_of
from workbook.results.study_records import StudyRecords as Results

pytestmark = pytest.mark.skipif(usable_threads() < 2, reason="two ranks on a CPU take two cores")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    """Return the records of the trials, by the trials' names."""
    report = tmp_path_factory.mktemp("exchanged") / "cpu"
    with pytest.MonkeyPatch.context() as patch:
        for name in ("LABKIT_CACHE", "XDG_STATE_HOME", "LABKIT_REPORTS", "LABKIT_LOCK"):
            patch.setenv(name, str(report.parent / name.lower()))
        done = subprocess.run(
            [sys.executable, "-m", "tests.faulty.exchanging", str(report)], cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        wanted = trials()
    by_key = {record.key: record for record in records(report)}
    by_name = {name: by_key[trial.key] for name, trial in wanted.items()}
    assert {name: record.reason for name, record in by_name.items() if record.status != "ok"} == {}
    return by_name


def of(made: dict[str, Record]) -> Results:
    return of_records("training", made.values(), hw="cpu")


def sent(made: dict[str, Record], name: str) -> float:
    """Return the bytes that a rank sends in a step, according to telemetry."""
    value = metric_of(of(made), made[name], "gradient_bytes")
    assert value is not None
    return value


def test_ranks_send_the_gradients_of_their_network_once_a_step(made: dict[str, Record]) -> None:
    for name in ("fp32", "fp16", "in turns", "stale"):
        expected = made[name].facts["exchanged_bytes_per_step"]
        # On a busy machine the sampler reads late, and misses up to a step's bytes at an end of the window.
        assert sent(made, name) == pytest.approx(expected, rel=0.1), name
    share_of_network = {
        name: made[name].facts["exchanged_bytes_per_step"] / made[name].facts["parameter_bytes"]
        for name in made
        if name != "alone"
    }
    # Each of two ranks sends half of the gradients and passes on half.
    assert share_of_network == {"fp32": 1, "fp16": 0.5, "in turns": 2, "stale": 1}


def test_gradients_in_half_precision_are_half_the_bytes(made: dict[str, Record]) -> None:
    assert sent(made, "fp16") / made["fp16"].facts["parameter_bytes"] == pytest.approx(0.5, rel=0.1)


def test_one_rank_sends_nothing_and_has_no_value(made: dict[str, Record]) -> None:
    assert "exchanged_bytes_per_step" not in made["alone"].facts
    assert metric_of(of(made), made["alone"], "gradient_bytes") is None


def trace_of(made: dict[str, Record], name: str) -> Traced:
    blocks = made[name].blocks
    assert blocks is not None and isinstance(blocks.trace, Traced)
    return blocks.trace


def test_a_trace_shows_the_exchange_beside_the_operators(made: dict[str, Record]) -> None:
    trace = trace_of(made, "fp32")
    assert (trace.steps, trace.asked_for, trace.of) == (TRACED, TRACED, "operators")
    assert 0 < trace.exposed_exchange_s < trace.exchange_s <= trace.elapsed_s
    assert 0 < trace.busy_s <= trace.elapsed_s
    assert trace.hidden_exchange_share is not None and 0 < trace.hidden_exchange_share < 1
    assert metric_of(of(made), made["fp32"], "exchange_s") == trace.exchange_s / TRACED
    assert metric_of(of(made), made["fp32"], "hidden_exchange_share") == trace.hidden_exchange_share
    untraced = made["fp16"].blocks
    assert untraced is not None and untraced.trace is None, "nobody asked for a trace"


def test_one_rank_computes_and_exchanges_nothing(made: dict[str, Record]) -> None:
    trace = trace_of(made, "alone")
    assert trace.busy_s > 0
    assert (trace.exchange_s, trace.exposed_exchange_s, trace.hidden_exchange_share) == (0, 0, None)
