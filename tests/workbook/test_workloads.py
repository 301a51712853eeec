"""Tests of workloads: training learns, records state what ran, and wrong or unsupported steps are refused."""

from __future__ import annotations

import pkgutil
from dataclasses import replace
from typing import Any

import pytest

from labkit.data import DataSet
from labkit.errors import UserError
from labkit.models import count
from workbook import workloads
from workbook.errors import GateError, Unsupported
from workbook.trials.parts import PARTS
from workbook.trials.trial import Trial
from workbook.workloads import Workload, build_workload

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("_torch_is_left_as_it_was")

TRAIN = Trial(model="resnet18", classes=10, batch=16, learning_rate=0.005, device="cpu", data="digits")
MATMUL = Trial(workload="matmul", device="cpu", data="none", size=32)
COPY = Trial(workload="memory_copy", device="cpu", data="none", size=4000)
LAUNCHES = Trial(workload="launch_rate", device="cpu", data="none", size=300)


# ---- training -------------------------------------------------------------------------------------------------------


def losses_of(workload: Workload, steps: int) -> list[float | None]:
    """Take `steps` training steps and return the loss of each."""
    assert workload.read_loss is not None
    losses = []
    for _ in range(steps):
        workload.step()
        losses.append(workload.read_loss())
    return losses


def test_training_learns(digits: DataSet) -> None:
    workload = build_workload(TRAIN, digits)
    workload.check()
    first = workload.read_loss()
    assert workload.facts["first_loss"] == pytest.approx(first)
    assert 1.5 < first < 4, "near the logarithm of 10"
    assert max(losses_of(workload, 30)[20:]) < first
    assert sum(losses_of(workload, 10)) / 10 < first / 2


def test_the_seed_determines_the_losses(digits: DataSet) -> None:
    def losses(seed: int) -> list[float | None]:
        return losses_of(build_workload(replace(TRAIN, seed=seed, batch=4), digits), 2)

    assert losses(0) == losses(0)
    assert losses(0) != losses(1)


def test_read_loss_returns_the_mean_since_the_last_call(digits: DataSet) -> None:
    one_by_one = losses_of(build_workload(replace(TRAIN, batch=4), digits), 4)
    workload = build_workload(replace(TRAIN, batch=4), digits)
    for _ in range(3):
        workload.step()
    assert workload.read_loss() == pytest.approx(sum(one_by_one[:3]) / 3)
    workload.step()
    assert workload.read_loss() == pytest.approx(one_by_one[3])
    assert workload.read_loss() is None


def test_a_loss_that_is_not_finite_fails_the_gate_and_is_missing_in_a_record(digits: DataSet) -> None:
    workload = build_workload(replace(TRAIN, batch=4), digits)
    workload.step()
    with torch.no_grad():
        workload.training.model.fc.weight[0, 0] = float("nan")
    workload.step()
    assert workload.read_loss() is None, "never a NaN in a record"
    with pytest.raises(GateError, match="loss is nan"):
        workload.check()


def test_the_gate_finds_outputs_of_another_shape_and_weights_without_gradients(digits: DataSet) -> None:
    wide = build_workload(replace(TRAIN, batch=4), digits)
    wide.training.model.fc = torch.nn.Linear(512, 11)
    with pytest.raises(GateError, match=r"\(4, 11\).*expected \(4, 10\)"):
        wide.check()
    frozen = build_workload(replace(TRAIN, batch=4), digits)
    frozen.training.model.conv1.weight.requires_grad_(False)
    with pytest.raises(GateError, match=r"1 weights got no gradient, conv1\.weight first"):
        frozen.check()


def test_the_facts_of_a_training_describe_the_model_that_ran(digits: DataSet) -> None:
    workload = build_workload(TRAIN, digits)
    facts = count("resnet18", classes=10)
    assert (workload.images_per_step, workload.flop_per_step) == (16, 16 * facts.flop_training)
    assert workload.facts["parameters"] == sum(weight.numel() for weight in workload.training.model.parameters())
    assert workload.facts["head"] is None
    assert workload.facts["threads"] == torch.get_num_threads()
    assert "not ImageNet" in workload.facts["data_description"]


def test_fp32_disables_tf32(digits: DataSet) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    build_workload(replace(TRAIN, batch=4), digits)
    assert not torch.backends.cuda.matmul.allow_tf32
    assert not torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    build_workload(MATMUL, None)
    assert not torch.backends.cuda.matmul.allow_tf32


def test_bf16_and_channels_last_apply_to_the_computation_and_weights_stay_fp32(digits: DataSet) -> None:
    last = torch.channels_last
    workload = build_workload(replace(TRAIN, batch=4, precision="bf16", memory_format="channels_last"), digits)
    model, seen = workload.training.model, []
    model.register_forward_hook(
        lambda _, given, output: seen.append((given[0].is_contiguous(memory_format=last), output.dtype))
    )
    workload.check()
    assert seen == [(True, torch.bfloat16)]
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert model.layer1[0].conv1.weight.is_contiguous(memory_format=last)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"engine": "graph"}, "CUDA graphs"),
        ({"precision": "fp16"}, "FP16 training needs loss scaling"),
        ({"precision": "int8"}, "int8"),
        ({"precision": "tf32"}, "TF32"),
        ({"devices": 2}, "needs 2 processes, but this group has 1"),
        ({"optimizer": "adam"}, "adam"),
    ],
)
def test_an_unsupported_training_is_refused_and_never_replaced(
    digits: DataSet, change: dict[str, Any], said: str
) -> None:
    with pytest.raises(Unsupported, match=said):
        build_workload(replace(TRAIN, **change), digits)
    with pytest.raises(Unsupported, match="needs images"):
        build_workload(replace(TRAIN, data="none"), None)


def test_the_gate_and_the_timed_steps_run_the_same_graphs(digits: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[Any] = []

    def backend(module: Any, _inputs: Any, **_options: Any) -> Any:
        graphs.append(module)
        return module.forward

    compile_it = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, **options: compile_it(model, backend=backend, **options))
    workload = build_workload(replace(TRAIN, batch=4, engine="compile"), digits)
    compiled_after = {}
    for name, prepare in workload.preparations():
        prepare()
        compiled_after[name] = len(graphs)
    made = compiled_after["compile"]
    assert compiled_after["reference"] == 0 < made, "the baseline steps of the gate are not compiled"
    workload.check()
    assert len(graphs) == made, "the gate recompiled: it checked another graph than the timed one"
    for _ in range(3):
        workload.step()
    assert len(graphs) == made, "a timed step recompiled: the gate left a guard behind"
    torch._dynamo.reset()


# ---- ceilings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "int8"])
def test_a_matrix_product_passes_its_gate_and_a_wrong_one_does_not(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = build_workload(replace(MATMUL, precision=precision, size=128), None)
    workload.check()
    assert workload.flop_per_step == 2 * 128**3
    right = workload._product

    def wrong():
        out = right().clone()
        out[3] += out[3] // 2 + 1
        return out

    monkeypatch.setattr(workload, "_product", wrong)
    with pytest.raises(GateError, match=f"{precision} product differs"):
        workload.check()


def test_a_product_that_was_never_computed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = build_workload(replace(MATMUL, size=128), None)
    monkeypatch.setattr(torch, "mm", lambda a, b, *, out: out)
    with pytest.raises(GateError, match="nan"):
        workload.check()


def test_the_gate_finds_a_product_in_half_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = build_workload(replace(MATMUL, size=128), None)
    product = torch.mm
    monkeypatch.setattr(torch, "mm", lambda a, b, *, out: out.copy_(product(a.bfloat16(), b.bfloat16())))
    with pytest.raises(GateError, match="fp32 product differs"):
        workload.check()


def test_matrices_are_random_and_unsupported_precisions_are_refused() -> None:
    workload = build_workload(MATMUL, None)
    assert 0.8 < float(workload.a.std()) < 1.2
    assert not torch.equal(workload.a, workload.b)
    for precision in ("tf32", "fp8", "default"):
        with pytest.raises(Unsupported, match=f"no {precision} matrix product on cpu"):
            build_workload(replace(MATMUL, precision=precision), None)


def test_a_copy_counts_read_and_written_bytes_and_a_wrong_copy_is_refused() -> None:
    workload = build_workload(COPY, None)
    workload.check()
    assert workload.bytes_per_step == 2 * 4000
    workload.step = lambda: workload.target[-1].fill_(0)
    with pytest.raises(GateError, match="differs"):
        workload.check()


def test_a_step_of_the_launch_rate_queues_each_of_its_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = build_workload(LAUNCHES, None)
    workload.check()
    assert (workload.launches_per_step, workload.images_per_step) == (300, None)
    assert float(workload.step()) == 2 * 300, "the check and a step"  # type: ignore[arg-type]
    with pytest.raises(Unsupported, match="size=3000"):
        build_workload(replace(LAUNCHES, size=0), None)
    monkeypatch.setattr(torch.Tensor, "add_", lambda tensor, _number: tensor)
    with pytest.raises(GateError, match="300 operations added one, and their sum is 0"):
        workload.check()


# ---- names ----------------------------------------------------------------------------------------------------------


def test_an_unknown_workload_is_refused_with_the_valid_ones() -> None:
    with pytest.raises(UserError, match=r"unknown workload 'trian'; valid: train, .*matmul"):
        replace(TRAIN, workload="trian")
    modules = [module.name for module in pkgutil.iter_modules(workloads.__path__)]
    assert sorted(PARTS) == sorted(name for name in modules if not name.startswith("_"))
    assert build_workload(Trial(workload="tests.faulty.ok", size=5), None).facts == {"size": 5}, "a user's module"
