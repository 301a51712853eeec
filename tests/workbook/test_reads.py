"""Metrics of epochs over images in files (`workbook/results/from_reads.py`)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.workbook.made_records import record_of
from workbook.records import Record
from workbook.records.record import ReadEpoch, Reads
from workbook.results.from_result import value_of
from workbook.trials.trial import Trial


def an_epoch(**changed: Any) -> ReadEpoch:
    about: dict[str, Any] = {"steps": 10, "images": 640, "parts_s": [1.0, 1.0], "waited_s": 0.5}
    return ReadEpoch(**about | changed)


def of_epochs(*epochs: ReadEpoch, **trial: Any) -> Record:
    reads = Reads(file_bytes=1000, cached_share_before=0.0, skipped=0, peak_memory_bytes=7, epochs=list(epochs))
    return record_of("12", Trial(**{"device": "cpu", **trial}), 1, result=reads)


def test_the_first_epoch_shows_the_storage_and_the_last_the_cache() -> None:
    cold = an_epoch(parts_s=[2.0, 6.0], read_bytes=1000, written_bytes=3, cpu_s=4.0)
    warm = an_epoch(parts_s=[1.0, 1.0], read_bytes=10, written_bytes=0, cpu_s=6.4, waited_s=0.5)
    record = of_epochs(cold, warm)
    expected = {
        "read_bytes": 1000.0,
        "read_bytes_per_s": 125.0,
        "later_read_share": 0.01,
        "written_bytes": 3.0,
        "first_epoch_ratio": 4.0,
        "throughput_variation": 0.5,  # rates of 1/2 and 1/6
        "images_per_s": 320.0,
        "step_s": 0.2,
        "run_s": 10.0,
        "stall_share": 0.25,
        "cpu_per_image_s": 0.01,
        "loader_memory_bytes": 7.0,
    }
    assert {metric: value_of(record, metric) for metric in expected} == pytest.approx(expected)


def test_the_course_of_the_reads_is_that_of_the_first_epochs_halves() -> None:
    series = {"read_at_s": [1.0, 2.0, 3.0, 4.0], "read_until_bytes": [40, 60, 75, 90]}
    record = of_epochs(an_epoch(parts_s=[2.0, 2.0], **series))
    assert value_of(record, "read_rate_late_over_early") == pytest.approx(30 / 60)


def test_what_was_read_ahead_before_the_epoch_is_in_its_bytes_but_not_in_its_rate() -> None:
    record = of_epochs(an_epoch(read_bytes=1000, read_at_s=[1.0, 2.0], read_until_bytes=[300, 600]))
    assert value_of(record, "read_bytes") == 1000
    assert value_of(record, "read_bytes_per_s") == 300


def test_what_another_process_has_read_counts_as_read_again_only_after_an_empty_cache() -> None:
    epoch = an_epoch(read_bytes=250)
    read: dict[str, Any] = {"form": "jpeg", "reader": "torch_pil", "readers": 4, "epochs": 1}
    assert value_of(of_epochs(epoch, **read, cache="cold"), "reread_share") == pytest.approx(0.75)
    assert value_of(of_epochs(epoch, **read), "reread_share") is None


@pytest.mark.parametrize(
    "metric",
    [
        *("read_bytes", "read_bytes_per_s", "later_read_share", "written_bytes", "reread_share"),
        "received_minus_sent_bytes",
    ],
)
def test_a_counter_that_the_machine_lacks_is_missing_and_not_zero(metric: str) -> None:
    assert value_of(of_epochs(an_epoch(), an_epoch()), metric) is None


def test_one_epoch_has_no_later_ones() -> None:
    record = of_epochs(an_epoch(read_bytes=5))
    assert value_of(record, "later_read_share") is None and value_of(record, "first_epoch_ratio") is None
    assert value_of(record, "read_bytes") == 5


def test_a_host_that_queues_steps_ahead_of_a_gpu_does_not_tell_how_long_the_gpu_waits() -> None:
    assert value_of(of_epochs(an_epoch(), device="cuda"), "stall_share") is None
    assert value_of(of_epochs(an_epoch()), "stall_share") == 0.25
