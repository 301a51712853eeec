"""A GPU holds documents as bits and unpacks the rows that a CPU unpacks. The 512-unit network trains on them there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from labkit.data import DataSet
from labkit.data.loaders import ResidentLoader, in_order
from labkit.models import count
from tests.gpu.test_on_device import run
from tests.prepared import checked
from workbook.hardware.host import this_host
from workbook.records import Epochs
from workbook.reuters import open_documents
from workbook.reuters.newswires import WORDS
from workbook.trials.trial import Trial
from workbook.workloads._inputs import Unpacked

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def documents() -> DataSet:
    return open_documents()


def test_a_gpu_gets_the_rows_that_a_cpu_gets(documents: DataSet) -> None:
    on_cpu, on_gpu = (
        ResidentLoader(documents.train, batch=1000, prepare=Unpacked(WORDS, where), seed=3) for where in ("cpu", "cuda")
    )
    for _ in range(10):  # past the end of an epoch
        (expected, labels), (rows, labels_there) = on_cpu.next_batch(), on_gpu.next_batch()
        assert rows.is_cuda and rows.dtype == torch.float32 and rows.is_contiguous()
        assert torch.equal(rows.cpu(), expected) and torch.equal(labels_there.cpu(), labels)
    rows = torch.cat([batch.cpu() for batch, _ in in_order(documents.val, batch=500, prepare=Unpacked(WORDS, "cuda"))])
    assert np.array_equal(np.packbits(rows.numpy().astype(bool), axis=1, bitorder="little"), documents.val.images)


@pytest.mark.slow
def test_the_network_trains_on_a_gpu_and_learns(documents: DataSet, tmp_path: Path) -> None:
    about = {"model": "mlp512", "data": documents.name, "data_checksum": documents.checksum, "classes": 46}
    timed, epochs = Trial(**about), Trial(**about, epochs=5)
    shared, turns = Trial(**about, arrangement="at_once"), Trial(**about, arrangement="in_sequence")
    made = {record.key: record for record in run([timed, epochs, shared, turns], tmp_path)}
    for trial in (timed, epochs, shared, turns):
        assert made[trial.key].status == "ok", made[trial.key].reason
    assert made[timed.key].blocks.flop_per_step == 64 * count("mlp512").flop_training  # type: ignore[union-attr]
    result = made[epochs.key].result
    assert isinstance(result, Epochs)
    assert result.epochs[-1].top1 > 0.7, "twice the share of the most frequent class"


def test_two_gpus_train_the_network_in_every_arrangement(documents: DataSet, tmp_path: Path) -> None:
    if len(this_host().gpus) < 2:
        pytest.skip("needs two NVIDIA GPUs, and this machine has one")
    from tests.gpu.test_ranks_on_device import assert_ok
    from tests.gpu.test_ranks_on_device import run as run_on_all

    about = {"model": "mlp512", "data": documents.name, "data_checksum": documents.checksum, "classes": 46}
    trials = [Trial(**about, devices=2, arrangement=how) for how in ("alone", "at_once", "in_sequence")]
    assert_ok(run_on_all(this_host(), trials, tmp_path))


def test_bf16_and_the_fused_update_pass_the_gate(documents: DataSet) -> None:
    trial = Trial(model="mlp512", data=documents.name, classes=46, optimizer="sgd_fused", precision="bf16")
    workload = checked(trial, documents)
    assert workload.facts["gate"]["change_difference"] <= workload.facts["gate"]["change_tolerance"]
