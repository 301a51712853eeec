"""Tests of inference: predictions and their gate, compiled regions, pools of batches, and queries."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.data import DataSet
from labkit.errors import UserError
from labkit.timing import HostClock, time_queries
from tests import bf16
from tests.prepared import prepare, prepared
from workbook.errors import GateError, Unsupported
from workbook.records.record import PACKED_FROM, Queries
from workbook.trials.trial import Trial
from workbook.workloads import build_workload

torch = pytest.importorskip("torch")

from labkit.models import build as build_model  # noqa: E402
from workbook.engines.batch_norm import fold_batch_norm  # noqa: E402
from workbook.engines.gate import compare_logits  # noqa: E402
from workbook.engines.inference_images import Pool  # noqa: E402
from workbook.engines.regions import logits_function, loss_function  # noqa: E402
from workbook.workloads._weights import initial_model, settle  # noqa: E402
from workbook.workloads.infer import InferWorkload  # noqa: E402

PLAIN = Trial(workload="infer", model="resnet18", classes=10, batch=4, device="cpu", data="digits")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"memory_format": "channels_last"},
        {"precision": "bf16"},
        {"copies": "included"},
        {"model": "vgg16"},
        {"model": "alexnet", "copies": "included", "memory_format": "channels_last"},
    ],
    ids=lambda fields: "-".join(fields.values()) or "plain",
)
def test_an_engine_predicts_what_the_baseline_predicts(digits: DataSet, fields: dict[str, Any]) -> None:
    workload = prepared(replace(PLAIN, **fields), digits)
    workload.check()
    gate = workload.facts["gate"]
    assert gate["batches"] == 2 and gate["logits_difference"] <= gate["logits_tolerance"]
    assert workload.facts["first_step_s"] > 0
    assert workload.flop_per_step == 4 * workload.facts["flop_forward"]


def test_the_reference_chooses_no_algorithms_for_the_timed_steps(digits: DataSet) -> None:
    workload = build_workload(PLAIN, digits)
    assert isinstance(workload, InferWorkload)
    seen = []
    flags = torch.backends.cudnn
    workload._plain.register_forward_hook(lambda *_: seen.append((flags.deterministic, flags.benchmark)))
    prepare(workload)
    assert set(seen) == {(True, False)}, "PyTorch keeps the algorithms of deterministic steps apart"
    assert not flags.deterministic and flags.benchmark


def test_queries_cycle_through_the_batches_of_the_pool(digits: DataSet) -> None:
    workload = prepared(PLAIN, digits)
    workload.check()
    seen = []
    for _ in range(4):
        workload.query()
        seen.append(workload.logits.clone())
    assert torch.equal(seen[0], seen[3]), "three different batches"
    for first, second in ((0, 1), (1, 2), (0, 2)):
        assert not torch.allclose(seen[first], seen[second])


def test_with_copies_the_predicted_classes_are_copied_to_the_host(digits: DataSet) -> None:
    workload = prepared(replace(PLAIN, copies="included"), digits)
    workload.check()
    workload.query()
    assert workload._classes.device.type == "cpu"
    assert torch.equal(workload._classes, workload.logits.argmax(dim=1))


def test_the_gate_finds_different_weights(digits: DataSet) -> None:
    workload = prepared(PLAIN, digits)
    with torch.no_grad():
        workload._predictor.model.fc.weight.mul_(1.01)
    with pytest.raises(GateError, match="differ from the plain FP32 network's by"):
        workload.check()


def captured_on_a_cpu(workload: InferWorkload) -> None:
    """Run the gate's part for engines that compile or capture, which a CPU supports only with a compiler."""
    workload._predictor.has_uncompiled_form = True
    workload._run_uncompiled()


def test_a_correct_engine_equals_its_uncompiled_form(digits: DataSet) -> None:
    workload = prepared(replace(PLAIN, precision="bf16"), digits)
    captured_on_a_cpu(workload)
    workload.check()
    assert workload.facts["gate"]["engine_difference"] <= 1e-6
    assert workload.facts["gate"]["engine_worst_image"] <= 1e-6


def test_the_gate_finds_missing_residual_branches_in_half_precision(digits: DataSet) -> None:
    workload = prepared(replace(PLAIN, precision="bf16"), digits)
    captured_on_a_cpu(workload)
    with torch.no_grad():
        for stage in ("layer1", "layer2", "layer3", "layer4"):
            for block in getattr(workload._predictor.model, stage):
                block.bn2.weight.zero_()
    with pytest.raises(GateError, match="logits differ"):
        workload.check()


@bf16.needed
def test_the_gate_finds_a_single_wrong_image(digits: DataSet) -> None:
    trial = replace(PLAIN, batch=300, precision="bf16")
    workload = prepared(trial, digits)
    captured_on_a_cpu(workload)
    honest = workload._predictor._logits

    def last_is_stale(images: Any) -> Any:
        logits = honest(images).clone()
        logits[-1] = logits[0]
        return logits

    workload._predictor._logits = last_is_stale
    with pytest.raises(GateError, match="of a single image"):
        workload.check()


def test_the_gate_finds_folding_that_changes_the_network(digits: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    from workbook.workloads import infer

    def wrong(model: Any) -> int:
        folded = fold_batch_norm(model)
        with torch.no_grad():
            model.layer3[1].conv2.weight.zero_()
        return folded

    monkeypatch.setattr(infer, "fold_batch_norm", wrong)
    workload: Any = build_workload(PLAIN, digits)
    workload._predictor.folded = 20
    with pytest.raises(GateError, match="folded"):
        dict(workload.preparations())["reference"]()


def test_the_gate_finds_a_repeated_batch(digits: DataSet) -> None:
    workload = prepared(replace(PLAIN, precision="bf16"), digits)
    workload._pool.batches[1] = workload._pool.batches[0]
    with pytest.raises(GateError, match=r"by (0\.99|1) of the difference between two batches"):
        workload.check()


def test_the_gate_finds_nan_logits_and_outputs_of_another_shape() -> None:
    expected = [torch.zeros(4, 10), torch.ones(4, 10)]
    with pytest.raises(GateError, match="by nan"):
        compare_logits(expected, [expected[0], torch.full((4, 10), torch.nan)], PLAIN)
    with pytest.raises(GateError, match="shapes"):
        compare_logits(expected, [torch.zeros(4, 9), torch.ones(4, 9)], PLAIN)
    with pytest.raises(GateError, match="nothing can be compared"):
        compare_logits([expected[0]] * 2, expected, PLAIN)


@pytest.mark.parametrize(("model", "norms"), [("resnet18", 20), ("googlenet", 57), ("vgg16", 0)])
def test_folding_removes_batch_norm_and_keeps_the_outputs(digits: DataSet, model: str, norms: int) -> None:
    trial = replace(PLAIN, model=model)
    network = initial_model(trial)
    settle(network, trial, digits)
    images = next(Pool(trial, digits, dtype=torch.float32, where="device"))
    with torch.inference_mode():
        before = network(images)
    with torch.inference_mode(False):
        assert fold_batch_norm(network) == norms
    assert not any(isinstance(module, torch.nn.BatchNorm2d) for module in network.modules())
    with torch.inference_mode():
        after = network(images)
    assert torch.allclose(before, after, atol=1e-4 * float(before.abs().max()))


def compiled_and_losses(model: Any) -> tuple[list[str], list[float]]:
    """Return the names of the functions compiled for a step in regions and for a whole step, and both losses."""
    compiled: list[str] = []

    def note(function: Any) -> Any:
        compiled.append(function.__name__)
        return function

    images, labels = torch.randn(2, 3, 32, 32), torch.tensor([1, 2])
    with torch.no_grad():
        losses = [float(loss_function(model, note, in_regions=kind)(images, labels)) for kind in (True, False)]
        regions = list(compiled)
        assert torch.equal(logits_function(model.eval(), note)(images), model(images))
    return regions, losses


def test_a_resnet_is_compiled_in_regions_or_as_a_whole() -> None:
    compiled, losses = compiled_and_losses(build_model("resnet18", classes=10))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert len(compiled) == 4 and compiled[-1] == "whole", "start, block and end; then the whole network"


def test_the_head_of_a_vgg_is_a_region_of_its_own() -> None:
    compiled, losses = compiled_and_losses(build_model("vgg16", classes=10, head="head512").eval())
    assert losses[0] == losses[1]
    assert len(compiled) == 4 and compiled[-1] == "whole", "two regions, one for blocks (unused), and the whole"


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"precision": "tf32"}, "tensor cores"),
        ({"precision": "int8"}, "does not predict in INT8"),
        ({"engine": "graph"}, "CUDA graphs"),
    ],
)
def test_an_unsupported_trial_gives_a_reason(digits: DataSet, fields: dict[str, Any], word: str) -> None:
    with pytest.raises(Unsupported, match=word):
        build_workload(replace(PLAIN, **fields), digits)


def test_a_pool_repeats_a_split_that_is_smaller_than_a_batch(digits: DataSet) -> None:
    images = len(digits.val)
    pool = Pool(replace(PLAIN, batch=images + 5), digits, dtype=torch.float32, where="host")
    first = next(pool)
    assert first.shape == (images + 5, 3, 32, 32) and first.dtype == torch.uint8
    assert torch.equal(first[:5], first[images:])
    assert np.array_equal(first[0].numpy(), digits.val.images[0])
    assert not torch.equal(first, next(pool))


def test_a_pool_scales_images_up_and_applies_the_memory_format(digits: DataSet) -> None:
    trial = replace(PLAIN, image_px=224, memory_format="channels_last", batch=2)
    images = next(Pool(trial, digits, dtype=torch.bfloat16, where="device"))
    assert images.shape == (2, 3, 224, 224) and images.dtype == torch.bfloat16
    assert images.is_contiguous(memory_format=torch.channels_last)


def test_invalid_copies_and_queries_are_refused() -> None:
    with pytest.raises(UserError, match="copies"):
        Trial(workload="infer", copies="maybe")
    with pytest.raises(UserError, match="queries"):
        Trial(workload="infer", queries=-1)


def test_the_number_of_queries_is_as_requested_or_limited_by_time() -> None:
    calls = []
    shares: list[float] = []
    latencies = time_queries(lambda: calls.append(1), HostClock(), 50, limit_s=5, on_query=shares.append)
    assert len(latencies) == 50 and len(calls) > 50, "untimed queries come first"
    assert shares[-1] >= 1
    slow = time_queries(lambda: time.sleep(0.02), HostClock(), 1000, limit_s=0.1)
    assert 1 <= len(slow) < 1000
    assert min(slow) >= 20e6, "nanoseconds"


@given(st.lists(st.integers(0, 2**62), max_size=20), st.integers(0, 3))
def test_latencies_survive_the_way_through_a_record_packed_or_not(few: list[int], times: int) -> None:
    latencies = (few or [7]) * (1 + times * PACKED_FROM)
    queries = Queries(images=1, latency_ns=latencies, asked_for=10_000)
    line = queries.model_dump(mode="json")
    assert isinstance(line["latency_ns"], str) == (len(latencies) > PACKED_FROM)
    assert Queries.model_validate(line) == queries


def test_a_damaged_packed_list_fails_validation() -> None:
    line = Queries(images=1, latency_ns=list(range(2 * PACKED_FROM)), asked_for=1).model_dump(mode="json")
    packed = line["latency_ns"]
    line["latency_ns"] = packed[:40] + ("A" if packed[40] != "A" else "B") + packed[41:]
    with pytest.raises(ValueError, match="latency_ns"):
        Queries.model_validate(line)
