"""Engines: the gate refuses a tuned step that computes wrongly."""

from __future__ import annotations

import copy
import math
import weakref
from collections import OrderedDict
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.data import DataSet, Split, open_data
from labkit.data.order import EpochOrder, Shard
from tests import bf16
from tests.prepared import loading, prepare, prepared
from workbook.errors import GateError
from workbook.trials.trial import Trial
from workbook.workloads import Workload, build_workload

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from labkit.data.augment import TORCH_FORMATS, Augment, Preparation  # noqa: E402
from labkit.data.loaders import ResidentLoader, StreamingLoader  # noqa: E402
from labkit.models import build  # noqa: E402
from workbook.engines import device_loader, gate  # noqa: E402
from workbook.engines.comparison import damp, weaken, weakened  # noqa: E402
from workbook.engines.device_loader import DeviceLoader, HostFed  # noqa: E402
from workbook.engines.precision import TOLERANCES, Tolerance  # noqa: E402
from workbook.engines.steps import CapturedStep  # noqa: E402
from workbook.engines.training import Training, learning_rates  # noqa: E402
from workbook.workloads.train import TrainWorkload  # noqa: E402

pytestmark = pytest.mark.usefixtures("_torch_is_left_as_it_was")

TUNED = Trial(model="resnet18", classes=10, batch=16, device="cpu", data="digits", optimizer="sgd_fused")
GRAPH = {"engine": "graph", "loader": "device"}
MASTER = {**GRAPH, "optimizer": "sgd_master", "precision": "bf16"}


# ---- the gate -------------------------------------------------------------------------------------------------------


def trace(
    losses: list[float],
    changes: list[list[float]],
    labels: list[list[int]] | None = None,
    statistics: list[list[float]] | None = None,
) -> gate.Trace:
    labels_read = labels or [[step, step + 1] for step in range(len(losses))]
    tensors = ([torch.tensor(values) for values in part] for part in (labels_read, changes, statistics or []))
    return gate.Trace(losses, *tensors)


PLAIN = trace([2.0, 1.9, 1.8], [[3.0, 0.0], [0.0, 4.0]])  # the norm of all changes is 5


def test_equal_steps_pass_and_the_gate_states_differences_and_tolerances() -> None:
    assert gate.compare(PLAIN, copy.deepcopy(PLAIN), "fp32") == {
        "steps": 3,
        "loss_difference": 0.0,
        "loss_tolerance": 1e-4,
        "change_difference": 0.0,
        "change_tolerance": 0.05,
        "worst_difference": 0.0,
        "worst_tolerance": 0.2,
    }


def test_the_gate_takes_the_largest_relative_loss_and_the_relative_norm_of_all_changes() -> None:
    tuned = trace([2.0, 1.9 * 1.001, 1.8 * 0.997], [[3.0, 0.3], [0.4, 4.0]])
    facts = gate.compare(PLAIN, tuned, "bf16")
    assert facts["loss_difference"] == pytest.approx(0.003)
    assert facts["change_difference"] == pytest.approx(0.1)
    assert facts["worst_difference"] == pytest.approx(0.1)
    assert tuple(facts[f"{what}_tolerance"] for what in ("loss", "change", "worst")) == TOLERANCES["bf16"]


@pytest.mark.parametrize("precision", TOLERANCES)
def test_differences_just_within_the_tolerance_pass_and_just_beyond_are_refused(precision: str) -> None:
    allowed = TOLERANCES[precision]

    def tuned(loss: float, change: float) -> gate.Trace:
        return trace([2.0, 1.9, 1.8 * (1 + loss * allowed.loss)], [[3.0, 5 * change * allowed.change], [0.0, 4.0]])

    gate.compare(PLAIN, tuned(0.99, 0.99), precision)
    with pytest.raises(GateError, match="loss differs"):
        gate.compare(PLAIN, tuned(1.01, 0.0), precision)
    with pytest.raises(GateError, match="weights together"):
        gate.compare(PLAIN, tuned(0.0, 1.01), precision)


SAME, STILL = trace([2.0, 1.9], [[1.0]], [[4, 2], [4, 2]]), trace([2.0, 1.9], [[0.0]])
UNEVEN = trace([2.0, 1.9], [[1.0], [100.0]])


def statistics(*values: float) -> gate.Trace:
    return trace([2.0, 1.9], [[1.0]], statistics=[[value] for value in values])


@pytest.mark.parametrize(
    ("plain", "tuned", "said"),
    [
        (PLAIN, trace([2.0, 1.9, 1.8], [[3.0, 0.0], [0.0, 4.0]], [[0, 1], [2, 1], [2, 3]]), "step 2 .* other images"),
        (SAME, SAME, "same images"),
        (PLAIN, trace([2.0, math.nan, 1.8], [[3.0, 0.0], [0.0, 4.0]]), "not finite: .*tuned 2.0000, nan"),
        (trace([math.inf, 1.9, 1.8], [[3.0, 0.0], [0.0, 4.0]]), PLAIN, "not finite: baseline inf"),
        (trace([0.0, 1.9], [[1.0]]), trace([0.1, 1.9], [[1.0]]), "loss differs .* by inf"),
        (trace([2.0, 1.9], [[1e-6], [9.0]]), trace([2.0, 1.9], [[0.0], [9.0]]), "1 of 2 weights .* in 2"),
        (trace([2.0, 1.9], [[1e-6], [9.0]]), trace([2.0, 1.9], [[2e-6], [9.0]]), None),  # only rounding moves it
        (trace([2.0, 1.9], [[0.0], [9.0]]), trace([2.0, 1.9], [[0.0], [9.0]]), None),
        (STILL, STILL, "by nan of it"),
        (PLAIN, trace([2.0, 1.9, 1.8], [[math.nan, 0.0], [0.0, 4.0]]), "weights together"),
        (UNEVEN, trace([2.0, 1.9], [[0.01], [100.0]]), "single weight"),
        (UNEVEN, trace([2.0, 1.9], [[-1.0], [100.0]]), "single weight"),
        (statistics(0.3), statistics(0.0), "running statistic"),
        (statistics(0.3, 0.3, 0.3), statistics(0.3, math.nan, 0.3), "running statistic .* by nan"),
        (statistics(math.nan), statistics(0.3), "running statistic .* by nan"),
    ],
)
def test_a_step_that_computes_wrongly_is_refused_with_the_difference(
    plain: gate.Trace, tuned: gate.Trace, said: str | None
) -> None:
    with nullcontext() if said is None else pytest.raises(GateError, match=said):
        gate.compare(plain, tuned, "bf16")


# The changes of two weights in FP32. `rounded` returns the changes of a plain or a tuned step in BF16.
EXACT = trace([2.0, 1.9, 1.8], [[3.0, 0.0, 0.0, 0.0], [0.0, 4.0, 0.0, 0.0]])


def rounded(by: float, *, towards: int = 2, times: float = 1.0, loss: float = 0.0) -> gate.Trace:
    """Return EXACT with rounding: the change of each weight is off by the share `by`, in the direction `towards`."""
    changes = [[3.0, 0.0, 0.0, 0.0], [0.0, 4.0, 0.0, 0.0]]
    for change, norm in zip(changes, (3.0, 4.0), strict=True):
        change[towards] = by * norm
    return trace([2.0, 1.9, 1.8 * (1 + loss)], [[times * value for value in change] for change in changes])


def test_beside_fp32_a_step_with_as_much_rounding_as_the_plain_step_passes() -> None:
    plain, tuned = rounded(0.5), rounded(0.5, towards=3, loss=0.008)
    with pytest.raises(GateError, match="differs"):
        gate.compare(plain, tuned, "bf16")
    facts = gate.compare_beside_exact(EXACT, plain, tuned, "bf16")
    assert facts["change_difference"] == facts["worst_difference"] == pytest.approx(0.5)
    assert facts["change_tolerance"] == pytest.approx(0.8) and facts["worst_tolerance"] == pytest.approx(0.95)
    assert facts["loss_difference"] == pytest.approx(0.008) and facts["loss_tolerance"] == pytest.approx(0.025)
    assert (facts["against"], facts["rounding_difference"]) == ("plain FP32", pytest.approx(0.5))


@pytest.mark.parametrize(
    ("plain", "tuned", "said"),
    [
        (rounded(0.4), rounded(0.4, times=0.5), "move 0.5 times .* 25%"),
        (rounded(0.4), rounded(0.4, times=1.3), "move 1.3 times"),
        (rounded(0.5), rounded(0.81, towards=3), "weights together .* FP32 by 0.81"),
        (rounded(0.1), rounded(0.36, towards=3), "weights together .* 0.35"),
        (rounded(0.4), rounded(0.4, loss=0.021), "loss differs .* FP32"),
        (rounded(0.01), rounded(0.01, loss=0.006), "loss differs .* FP32 by 0.006 .* 0.005"),
        (rounded(0.61), rounded(0.61), "BF16 alone .* by 0.61"),
        (rounded(math.nan), rounded(0.1), "BF16 alone .* by nan"),
        (rounded(0.1), rounded(math.nan), "move nan times"),
    ],
    ids=["half", "more", "far", "few", "loss", "loss of little rounding", "too rough", "plain nan", "tuned nan"],
)
def test_beside_fp32_differences_beyond_rounding_are_refused(plain: gate.Trace, tuned: gate.Trace, said: str) -> None:
    with pytest.raises(GateError, match=said):
        gate.compare_beside_exact(EXACT, plain, tuned, "bf16")


def beside(
    plain: list[float], tuned: list[float], *, of_statistics: bool = False, losses: tuple[list[float], ...] = ()
) -> dict[str, Any]:
    """Return the gate's facts for weights (or running statistics) whose changes differ from FP32 by these shares."""

    def made(off: list[float], seen: list[float]) -> gate.Trace:
        each = [[1.0, share] for share in off]
        changes = [[50.0, 0.0]] if of_statistics else [[50.0, 0.0], *each]
        return trace(seen, changes, [[n, n + 1] for n in range(3)], each if of_statistics else None)

    exact, of_plain, of_tuned = losses or ([2.0, 1.9, 1.8],) * 3
    return gate.compare_beside_exact(
        made([0.0] * len(plain), exact), made(plain, of_plain), made(tuned, of_tuned), "bf16"
    )


@pytest.mark.parametrize("of_statistics", [False, True], ids=["weights", "statistics"])
def test_beside_fp32_each_value_is_compared_with_its_own_rounding(of_statistics: bool) -> None:
    least = 0.25 if of_statistics else 0.6
    place = "running statistic" if of_statistics else "single weight"
    facts = beside([0.01, 0.4], [least - 0.01, 0.79], of_statistics=of_statistics)
    assert facts["worst_difference"] == pytest.approx(0.79) and facts["worst_tolerance"] == pytest.approx(0.8)
    no_number = place if of_statistics else "move nan times"
    for tuned, fault in (([least + 0.01, 0.4], place), ([0.01, 0.81], place), ([math.nan, 0.4], no_number)):
        with pytest.raises(GateError, match=fault):
            beside([0.01, 0.4], tuned, of_statistics=of_statistics)


def test_beside_fp32_a_weight_without_its_gradient_is_found_unless_rounding_hides_it() -> None:
    with pytest.raises(GateError, match=r"single weight .* 1 of it.* 0.95"):
        beside([0.6, 0.0], [1.0, 0.0])
    assert beside([1.2, 0.1], [1.3, 0.1])["worst_difference"] == pytest.approx(0.1)


def test_beside_fp32_each_loss_has_the_tolerance_of_its_own_step() -> None:
    exact, plain = [2.0, 1.9, 1.8], [2.0, 1.9, 1.8 * 1.04]
    beside([0.1], [0.1], losses=(exact, plain, [2.0 * 1.007, 1.9, 1.8 * 1.06]))
    for tuned in ([2.0 * 1.008, 1.9, 1.8], [2.0, 1.9 * 1.006, 1.8], [2.0, 1.9, 1.8 * 1.07]):
        with pytest.raises(GateError, match=r"loss differs .* FP32"):
            beside([0.1], [0.1], losses=(exact, plain, tuned))
    with pytest.raises(GateError, match=r"FP32 are not finite: 2\.0000, nan"):
        beside([0.1], [0.1], losses=([2.0, math.nan, 1.8], plain, plain))


# ---- the gate of a whole workload -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [{}, pytest.param({"precision": "bf16"}, marks=bf16.needed), {"memory_format": "channels_last", "augment": True}],
)
def test_a_correct_fused_update_passes_with_almost_no_difference(digits: DataSet, change: dict[str, Any]) -> None:
    workload = prepared(replace(TUNED, **change), digits)
    workload.check()
    gate_facts = workload.facts["gate"]
    assert gate_facts["steps"] == gate.STEPS
    assert gate_facts["loss_difference"] < 1e-6
    assert gate_facts["change_difference"] < 1e-4


def forgets_momentum(workload: TrainWorkload, patch: pytest.MonkeyPatch) -> None:
    (group,) = workload.training.optimizer.param_groups
    patch.setitem(group, "momentum", 0.0)


def halves_the_rate(workload: TrainWorkload, patch: pytest.MonkeyPatch) -> None:
    honest = workload.training.set_learning_rate
    patch.setattr(workload.training, "set_learning_rate", lambda value: honest(value / 2))


def leaves_a_layer_out(workload: TrainWorkload, patch: pytest.MonkeyPatch) -> None:
    workload.training.model.get_submodule("layer3.1.conv2").weight.requires_grad_(False)


def computes_another_loss(workload: TrainWorkload, patch: pytest.MonkeyPatch) -> None:
    honest = workload.training._loss
    patch.setattr(workload.training, "_loss", lambda images, labels: 1.01 * honest(images, labels))


def drops_the_first_batch(workload: TrainWorkload, patch: pytest.MonkeyPatch) -> None:
    workload.run.peek()


def repeats_a_batch(workload: TrainWorkload, patch: pytest.MonkeyPatch) -> None:
    images, labels = workload.run.peek()
    workload.run.rewind()
    patch.setattr(workload.run.loader, "next_batch", lambda: (images, labels))  # type: ignore[union-attr]


# A wrong update shows in the weights' change and, from the next step on, in the loss. The message names either.
DIFFERS = "(loss|change of .*) differs"


MOVES = rf"{DIFFERS}|move 0.[45]\d* times"


@pytest.mark.parametrize(
    ("precision", "fault", "said"),
    [
        ("fp32", forgets_momentum, DIFFERS),
        ("fp32", leaves_a_layer_out, "1 of 62 weights"),
        ("fp32", computes_another_loss, "loss differs"),
        ("fp32", drops_the_first_batch, "step 1 .* other images"),
        ("fp32", repeats_a_batch, "step 2 .* other images"),
        pytest.param("bf16", forgets_momentum, MOVES, marks=bf16.needed),
        pytest.param("bf16", halves_the_rate, MOVES, marks=bf16.needed),
    ],
)
def test_a_wrong_step_is_refused_in_every_precision(
    digits: DataSet, monkeypatch: pytest.MonkeyPatch, precision: str, fault: Any, said: str
) -> None:
    workload = prepared(replace(TUNED, precision=precision), digits)
    fault(workload, monkeypatch)
    with pytest.raises(GateError, match=said):
        workload.check()


def rounds_otherwise(workload: TrainWorkload) -> Callable[[Any, Any], Any]:
    """Return an update on images whose last BF16 digits differ, as another order of sums changes its results."""
    honest, noise = workload.training.update, torch.Generator().manual_seed(1)

    def update(images: Any, labels: Any) -> Any:
        return honest(images * (1 + (torch.rand(images.shape, generator=noise) - 0.5) * 2**-8), labels)

    return update


@bf16.needed
@pytest.mark.parametrize("gradient_is_there", [True, False], ids=["rounding", "and a gradient of another sign"])
def test_rounding_that_few_images_magnify_is_compared_with_that_of_plain_steps(
    digits: DataSet, monkeypatch: pytest.MonkeyPatch, gradient_is_there: bool
) -> None:
    monkeypatch.setitem(TOLERANCES, "bf16", Tolerance(5e-3, 0.1, 0.2))  # rounding always exceeds this tolerance
    workload = prepared(replace(TUNED, precision="bf16", batch=32), digits)
    monkeypatch.setattr(workload.training, "update", rounds_otherwise(workload))
    modes = torch.backends.cuda.matmul.allow_tf32
    if gradient_is_there:
        workload.check()
        gate_facts = workload.facts["gate"]
        assert gate_facts["against"] == "plain FP32" and 0.1 < gate_facts["rounding_difference"] < 0.6
        assert 0.1 < gate_facts["change_difference"] <= gate_facts["change_tolerance"] < 0.9
    else:
        workload.training.model.layer3[1].conv2.weight.register_hook(torch.neg)
        with pytest.raises(GateError, match="single weight"):
            workload.check()
    assert torch.backends.cuda.matmul.allow_tf32 is modes


def test_the_baseline_has_no_gate(digits: DataSet) -> None:
    workload: Any = build_workload(replace(TUNED, optimizer="sgd", batch=4), digits)
    assert list(workload.preparations()) == []


# ---- the gate changes nothing ---------------------------------------------------------------------------------------


def run_on(workload: TrainWorkload, steps: int = 3) -> tuple[list[float | None], list[torch.Tensor]]:
    """Return the loss of each step, and the weights and statistics after the last step."""
    losses = []
    for _ in range(steps):
        workload.step()
        losses.append(workload.read_loss())
    model = workload.training.model
    return losses, [value.detach().clone() for value in [*model.parameters(), *model.buffers()]]


def assert_alike(first: tuple[list[Any], list[Any]], second: tuple[list[Any], list[Any]]) -> None:
    assert first[0] == second[0]
    assert all(torch.equal(a, b) for a, b in zip(first[1], second[1], strict=True))


def test_a_tuned_run_after_its_gate_equals_the_run_without_it(digits: DataSet) -> None:
    trial = replace(TUNED, batch=8, augment=True)
    checked = prepared(trial, digits)
    beginning = [value.detach().clone() for value in checked.training.model.state_dict().values()]
    checked.check()
    restored = checked.training.model.state_dict().values()
    assert all(torch.equal(a, b) for a, b in zip(beginning, restored, strict=True)), "the damped branches are restored"
    momenta = [state["momentum_buffer"] for state in checked.training.optimizer.state.values()]
    assert len(momenta) == 62 and not any(bool(momentum.any()) for momentum in momenta)
    (group,) = checked.training.optimizer.param_groups
    assert group["lr"] == trial.learning_rate, "the rate is the trial's, not the gate's"
    assert_alike(run_on(checked), run_on(build_workload(trial, digits)))  # type: ignore[arg-type]


@pytest.mark.parametrize("optimizer", ["sgd", "sgd_fused"])
def test_a_restarted_training_run_does_not_depend_on_earlier_steps(digits: DataSet, optimizer: str) -> None:
    trial = replace(TUNED, optimizer=optimizer, batch=8, augment=True, epochs=1, schedule="one_cycle")
    workload = prepared(trial, digits)
    workload.check()
    workload.restart()
    first = run_on(workload)
    workload.evaluate()
    workload.restart()
    assert_alike(first, run_on(workload))
    assert_alike(first, run_on(build_workload(trial, digits)))  # type: ignore[arg-type]


def test_damping_weakens_the_last_normalisation_of_each_residual_branch_and_nothing_else(digits: DataSet) -> None:
    training = build_workload(TUNED, digits).training  # type: ignore[attr-defined]
    before = {name: value.clone() for name, value in training.model.state_dict().items()}
    damp(training.model, 0.05)
    changed = {name for name, value in training.model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {f"layer{stage}.{block}.bn2.weight" for stage in (1, 2, 3, 4) for block in (0, 1)}
    assert torch.allclose(training.model.layer2[1].bn2.weight, 0.05 * before["layer2.1.bn2.weight"])


def test_calming_changes_the_optimisers_masters_and_not_a_copy() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(OrderedDict(conv=nn.Conv2d(3, 8, 3)))
    masters = [weight.detach().clone() for weight in model.parameters()]
    copies: Any = {"masters": lambda: masters, "weights": lambda: [master.clone() for master in masters]}
    training: Any = SimpleNamespace(trial=Trial(), model=model, statistics=list, set_learning_rate=abs, **copies)
    small, nothing = model.conv.weight.std().item(), torch.zeros(1)
    traced = gate.trace(training, lambda: (nothing, nothing, nothing), seed=0)
    for weight, master in zip(model.parameters(), masters, strict=True):
        assert torch.equal(weight, master)
    assert model.conv.weight.std().item() > 2 * small
    assert not any(change.any() for change in traced.changes)


def test_a_network_whose_weights_differ_from_its_optimisers_is_refused() -> None:
    data = open_data("synthetic32", train_images=64, val_images=8)
    training = prepared(Trial(model="resnet18", batch=4, data=data.name, device="cpu"), data).training
    masters = [weight.clone() for weight in training.weights()]
    training.check_rounded(masters)
    training.model.conv1.to(torch.bfloat16)
    training.check_rounded(masters)
    masters[0] *= 1.01
    with pytest.raises(GateError, match=r"1 .*rounded.* conv1\.weight"):
        training.check_rounded(masters)


def test_chains_of_convolutions_are_calmed_equally_as_tensors_masters_and_arrays() -> None:
    model = build("googlenet", image_px=32, classes=10)
    names = [name for name, _ in model.named_parameters()]
    before = {name: value.detach().numpy().copy() for name, value in model.named_parameters()}
    masters = [value.detach().clone() for value in model.parameters()]
    model.to(torch.bfloat16)
    weaken(model, masters)
    expected = weakened(before)
    for name, value, master in zip(names, model.parameters(), masters, strict=True):
        assert torch.equal(value, master.to(torch.bfloat16)), f"{name}: the weights are their masters, rounded"
        # NumPy divides a sum of squares by n, PyTorch by n - 1
        assert torch.allclose(master, torch.from_numpy(expected[name]), rtol=1e-3), name
    changed = {name for name in names if not (expected[name] == before[name]).all()}
    assert {name.split(".", 1)[-1].split(".")[-2] for name in changed} == {"conv", "bn"}
    assert not any(name.startswith("fc") for name in changed)
    shifts = [expected[name] for name in names if name.endswith("bn.bias")]
    assert shifts and all((shift == 1.0).all() for shift in shifts)


def test_the_gate_can_judge_networks_without_residual_branches(digits: DataSet) -> None:
    """Noise of 1e-7, as another order of sums makes, stays far below the gate's tolerance."""
    workload = prepared(replace(TUNED, model="googlenet"), digits)
    noise = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in workload.training.weights():
            weight.mul_(1 + 1e-7 * torch.randn(weight.shape, generator=noise))
    workload.check()
    assert workload.facts["gate"]["change_difference"] < 0.2 * workload.facts["gate"]["change_tolerance"]


def test_the_gate_finds_a_rectifier_that_a_chain_lacks(digits: DataSet) -> None:
    workload = prepared(replace(TUNED, model="googlenet"), digits)
    for block in workload.training.model.modules():
        if hasattr(block, "conv") and hasattr(block, "bn"):
            block.forward = lambda images, block=block: block.bn(block.conv(images))  # type: ignore[method-assign]
    with pytest.raises(GateError, match="differs"):
        workload.check()


def test_the_gates_copies_are_freed_before_memory_is_counted(digits: DataSet) -> None:
    """They must not wait for the garbage collector, which runs after the peak is reset."""
    workload: Any = build_workload(TUNED, digits)
    reference = weakref.ref(workload._reference.model)
    prepare(workload)
    assert reference() is None
    workload.check()
    assert workload.training._initial is None, "a trial that times blocks never restarts: it keeps no initial weights"


# ---- learning rates and epochs --------------------------------------------------------------------------------------


def rates(images: int, **fields: Any) -> list[float]:
    return learning_rates(Trial(learning_rate=0.1, **fields), images)


def test_a_warm_up_rises_from_the_rate_of_one_device_and_then_stays_constant() -> None:
    rates = learning_rates(
        Trial(learning_rate=0.8, schedule="warm_up", devices=8, batch=10, epochs=5), 800
    )  # 10 steps an epoch
    assert len(rates) == 50
    assert rates[0] == pytest.approx(0.1)
    assert rates[5] == pytest.approx(0.45)
    assert set(rates[10:]) == {0.8}
    assert rates == sorted(rates)


@given(epochs=st.integers(1, 50), images=st.integers(1, 5000), batch=st.integers(1, 600))
def test_each_step_has_a_rate_within_the_trials(epochs: int, images: int, batch: int) -> None:
    steps = math.ceil(epochs * images / batch)
    assert rates(images, epochs=epochs, batch=batch) == [0.1] * steps
    cycle = rates(images, epochs=epochs, batch=batch, schedule="one_cycle")
    assert len(cycle) == steps
    assert all(0 < rate <= 0.1 * (1 + 1e-9) for rate in cycle)


@pytest.mark.parametrize("steps", [4, 5, 17, 400])
def test_one_cycle_equals_pytorchs(steps: int) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 0.1, total_steps=steps + 1, pct_start=0.25, anneal_strategy="linear", cycle_momentum=False
    )
    expected = []
    for _ in range(steps):
        expected.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    assert rates(steps, epochs=1, batch=1, schedule="one_cycle") == pytest.approx(expected)


def test_each_step_trains_at_its_own_rate_and_the_last_rate_is_reported(digits: DataSet) -> None:
    trial = replace(TUNED, batch=500, epochs=2, schedule="one_cycle", learning_rate=0.2)
    workload: Any = build_workload(trial, digits)
    (group,) = workload.training.optimizer.param_groups
    used: list[float] = []
    workload.run = lambda: used.append(group["lr"])
    reported = []
    for _ in range(6):
        workload.step()
        reported.append(workload.learning_rate())
    assert used == reported == learning_rates(trial, 1500)
    assert max(used) <= 0.2 and len(set(used)) == 6


@given(images=st.integers(1, 3000), batch=st.integers(1, 800), epochs=st.integers(1, 12))
def test_each_epoch_sees_every_image_again_and_no_step_is_counted_twice(images: int, batch: int, epochs: int) -> None:
    workload = Workload()
    workload.epoch_images, workload.images_per_step = images, batch
    steps = [workload.steps_of_epoch(epoch) for epoch in range(epochs)]
    assert sum(steps) == math.ceil(epochs * images / batch)
    for epoch in range(epochs):
        seen = sum(steps[: epoch + 1]) * batch
        assert (epoch + 1) * images <= seen < (epoch + 1) * images + batch


# ---- validation -----------------------------------------------------------------------------------------------------


def small_set(images: int, *, classes: int) -> DataSet:
    """Return a data set of random images with random labels."""
    rng = np.random.default_rng(5)
    pixels = rng.integers(0, 256, (images, 3, 32, 32), dtype=np.uint8)
    split = Split(pixels, rng.integers(0, classes, images).astype(np.int16))
    return DataSet("small", classes, split, split, (125.0, 120.0, 110.0), (60.0, 61.0, 62.0), "0", "random images")


def scored_slowly(workload: TrainWorkload, data: DataSet) -> tuple[float, float, float]:
    """Return the mean loss, top-1 and top-5, computed image by image with NumPy."""
    model = workload.training.model.eval()
    losses, places = [], []
    for image, label in zip(data.val.images, data.val.labels, strict=True):
        normal = (image.astype(np.float32) - np.reshape(data.mean, (3, 1, 1))) / np.reshape(data.std, (3, 1, 1))
        with torch.no_grad():
            logits = model(torch.from_numpy(normal[None].astype(np.float32)))[0].double().numpy()
        losses.append(np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[label])
        places.append(int((logits > logits[label]).sum()))
    model.train()
    return float(np.mean(losses)), float(np.mean(np.less(places, 1))), float(np.mean(np.less(places, 5)))


@pytest.mark.parametrize(("classes", "memory_format"), [(10, "contiguous"), (7, "channels_last"), (3, "contiguous")])
def test_a_validation_equals_scoring_each_image_alone(
    monkeypatch: pytest.MonkeyPatch, classes: int, memory_format: str
) -> None:
    monkeypatch.setattr("workbook.workloads.train.EVALUATION_BATCH", 10)
    data = small_set(27, classes=classes)  # two full batches and one of seven
    workload: Any = build_workload(replace(TUNED, classes=classes, batch=8, memory_format=memory_format), data)
    for _ in range(4):
        workload.step()
    scores = workload.evaluate()
    loss, top1, top5 = scored_slowly(workload, data)
    assert scores.images == 27
    assert scores.loss == pytest.approx(loss, rel=1e-4)
    assert (scores.top1, scores.top5) == (pytest.approx(top1), pytest.approx(top5))
    assert (scores.top5 == 1) == (classes < 5), "with fewer than five classes, each class is among the first five"


def test_a_validation_changes_nothing() -> None:
    trial, data = replace(TUNED, batch=8), small_set(27, classes=10)
    scored: Any = build_workload(trial, data)
    unscored: Any = build_workload(trial, data)
    first, second = scored.evaluate(), scored.evaluate()
    assert first == second
    assert scored.training.model.training, "batch norm continues to learn"
    assert_alike(run_on(scored), run_on(unscored))


def test_a_validation_loss_that_is_not_finite_is_missing_and_the_accuracies_are_kept() -> None:
    workload: Any = build_workload(replace(TUNED, batch=8), small_set(27, classes=10))
    with torch.no_grad():
        workload.training.model.fc.bias[0] = math.inf
    scores = workload.evaluate()
    assert scores.loss is None
    assert 0 <= scores.top1 <= scores.top5 <= 1


# ---- a batch in a fixed place ---------------------------------------------------------------------------------------

CPU = torch.device("cpu")


def numbered(samples: int) -> Split:
    """Return a split where sample i has label i and its own random pixels."""
    images = np.random.default_rng(2).integers(0, 256, (samples, 3, 32, 32), dtype=np.uint8)
    return Split(images, np.arange(samples, dtype=np.int16))


def loader_of(split: Split, **options: Any) -> DeviceLoader:
    usual: dict[str, Any] = {
        "batch": 4,
        "mean": (120.0, 121.0, 122.0),
        "std": (60.0, 61.0, 62.0),
        "seed": 3,
        "dtype": torch.float32,
        "one_kernel": False,
    }
    return loading(DeviceLoader, split, **(usual | options))


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
@pytest.mark.parametrize(("image_px", "dtype"), [(32, torch.float32), (48, torch.float32), (32, torch.bfloat16)])
def test_the_devices_loader_returns_the_prepared_samples_in_their_order(
    memory_format: Any, image_px: int, dtype: torch.dtype
) -> None:
    split = numbered(10)
    loader = loader_of(split, memory_format=memory_format, image_px=image_px, dtype=dtype)
    shared: dict[str, Any] = {"mean": (120.0, 121.0, 122.0), "std": (60.0, 61.0, 62.0), "augment": Augment()}
    plain = Preparation(device=CPU, seed=0, image_px=image_px, **shared)
    order = EpochOrder(10, seed=3)
    for _ in range(7):
        images, labels = loader.next_batch()
        chosen = order.take(4)
        assert labels.tolist() == chosen.tolist()
        assert torch.equal(images, plain(torch.from_numpy(split.images[chosen])).to(dtype))
        assert images.dtype == dtype
        assert images.is_contiguous(memory_format=TORCH_FORMATS[memory_format])


@given(
    samples=st.integers(1, 40),
    batch=st.integers(1, 30),
    part=st.integers(1, 25),
    steps=st.integers(1, 60),
)
def test_the_order_continues_past_the_end_of_the_ring(samples: int, batch: int, part: int, steps: int) -> None:
    pixel = Split(np.zeros((samples, 3, 1, 1), np.uint8), np.arange(samples, dtype=np.int16))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_loader, "PART", part)
        loader = loader_of(pixel, batch=batch, image_px=1)
    order = EpochOrder(samples, seed=3)
    for _ in range(steps):
        _, labels = loader.next_batch()
        assert labels.tolist() == order.take(batch).tolist()


@pytest.mark.parametrize(("ranks", "part"), [(2, 3), (3, 64)])
def test_ranks_with_loaders_on_their_devices_take_the_batches_of_one_device(
    ranks: int, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_loader, "PART", part)
    whole = loader_of(numbered(10), batch=4 * ranks)
    own = [loader_of(numbered(10), shard=Shard(rank, ranks)) for rank in range(ranks)]
    for rewound in (False, True):
        for loader in (whole, *own):
            loader.rewind()
        for _ in range(7 - 3 * rewound):
            images, labels = whole.next_batch()
            parts = [loader.next_batch() for loader in own]
            assert torch.equal(labels, torch.cat([part[1] for part in parts]))
            assert torch.equal(images, torch.cat([part[0] for part in parts]))


def test_the_host_sends_a_part_of_the_order_only_when_a_batch_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_loader, "PART", 10)
    sent: list[int] = []
    take = EpochOrder.take
    monkeypatch.setattr(EpochOrder, "take", lambda order, count: sent.append(count) or take(order, count))
    loader = loader_of(numbered(7))
    after = []
    for _ in range(8):
        loader.feed()
        after.append(len(sent))
        loader.load()
    assert after == [1, 1, 2, 2, 2, 3, 3, 4], "batches of four from parts of ten"
    assert set(sent) == {10}


@pytest.mark.parametrize("augment", [Augment(), Augment(flip=True, crop=True)], ids=["plain", "augmented"])
def test_a_rewind_repeats_the_same_batches_bit_for_bit_in_the_same_place(augment: Augment) -> None:
    loader = loader_of(numbered(10), augment=augment)
    place = (loader.images.data_ptr(), loader.labels.data_ptr())
    rounds = []
    for steps in (5, 5, 3):
        batches = []
        for _ in range(steps):
            images, labels = loader.next_batch()
            batches.append((images.clone(), labels.tolist()))
        assert (images.data_ptr(), labels.data_ptr()) == place, "a captured step reads there"
        rounds.append(batches)
        loader.rewind()
    for repeated in rounds[1:]:
        for first, again in zip(rounds[0], repeated, strict=False):
            assert torch.equal(first[0], again[0]) and first[1] == again[1]


def test_a_place_that_the_host_feeds_holds_the_batches_of_its_loader() -> None:
    options: dict[str, Any] = {"batch": 4, "mean": (120.0,) * 3, "std": (60.0,) * 3, "seed": 3}
    options["augment"] = Augment(flip=True, crop=True)
    alone, within = (loading(StreamingLoader, numbered(10), **options) for _ in range(2))
    fed = HostFed(within, image_px=32, dtype=torch.float32, memory_format="channels_last")
    place = fed.images.data_ptr()
    try:
        expected = [tuple(t.clone() for t in alone.next_batch()) for _ in range(6)]
        for _ in range(2):
            for images, labels in expected:
                fed.next_batch()
                assert torch.equal(fed.images, images) and torch.equal(fed.labels, labels)
                assert fed.images.data_ptr() == place
            fed.rewind()
    finally:
        alone.close()
        within.close()
    assert (fed.kind, alone.kind) == ("streaming", "streaming")


def test_a_captured_step_trains_like_a_step_that_python_drives(digits: DataSet) -> None:
    """A stand-in for the graph calls the recorded function. The device's loader fills the batch in its fixed place."""
    trial = replace(TUNED, batch=8)
    hosted: Any = build_workload(trial, digits)
    assert isinstance(hosted.run.loader, ResidentLoader)
    training = Training(trial, copy.deepcopy(hosted.training.model), captured=False, restarts=True)
    shared: dict[str, Any] = {"mean": digits.mean, "std": digits.std, "batch": 8, "seed": trial.seed}
    step = CapturedStep(training, loader_of(digits.train, **shared))
    step._graph = SimpleNamespace(replay=step._body)  # type: ignore[assignment]
    expected, _ = run_on(hosted, 4)
    for _ in range(3):
        step()
    assert float(step.take_losses()) == pytest.approx(np.mean(expected[:3]), rel=1e-5)
    step()
    assert float(step.take_losses()) == pytest.approx(expected[3], rel=1e-5)
    assert math.isnan(float(step.take_losses())), "the mean of no steps is not a number"
    step()
    step.rewind()
    training.restart()
    step()
    assert float(step.take_losses()) == pytest.approx(expected[0], rel=1e-5), "a rewind discards earlier losses"
