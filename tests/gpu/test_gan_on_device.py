"""A WGAN's iteration in one CUDA graph computes on a real GPU what the eager iteration computes, and learns."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from labkit.data import DataSet, open_data  # noqa: E402
from tests.prepared import checked, prepared  # noqa: E402
from workbook.engines.gan_training import RULES, CapturedIteration, Draws  # noqa: E402
from workbook.errors import GateError, Unsupported  # noqa: E402
from workbook.trials.recipes import CLIP, adversarial  # noqa: E402
from workbook.trials.rules import check  # noqa: E402
from workbook.trials.trial import Trial  # noqa: E402
from workbook.workloads import build_workload  # noqa: E402

pytestmark = pytest.mark.gpu

PRECISIONS = ("fp32", "tf32", "bf16")


@pytest.fixture(scope="module")
def digits() -> DataSet:
    return open_data("digits")


def trial_of(engine: str = "graph", **fields: Any) -> Trial:
    usual: dict[str, Any] = {"data": "digits", "classes": 10, "batch": 64}
    trial = Trial(**{**adversarial("cuda")[engine], **usual, **fields})
    try:
        check(RULES, trial)
    except Unsupported as refused:
        if trial.precision in ("tf32", "bf16"):  # older GPUs lack these
            pytest.skip(str(refused))
        raise
    return trial


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_captured_iteration_passes_the_gate(digits: DataSet, precision: str, memory_format: str) -> None:
    workload = checked(trial_of(precision=precision, memory_format=memory_format), digits)
    gate = workload.facts["gate"]
    print(precision, memory_format, {name: value for name, value in gate.items() if "difference" in name})
    assert isinstance(workload.run, CapturedIteration)
    assert workload.facts["memory_bytes"] > 4 * workload.facts["parameter_bytes"]
    workload.step()
    assert workload.read_loss() is not None


@pytest.mark.parametrize("batch", [2, 1000])
def test_small_and_large_batches_are_captured_too(digits: DataSet, batch: int) -> None:
    workload = checked(trial_of(batch=batch), digits)
    assert workload.images_per_step == 5 * batch


def test_noise_in_a_graph_equals_the_noise_outside_and_changes_each_iteration(digits: DataSet) -> None:
    workload = prepared(trial_of(), digits)
    outside = Draws(workload.trial)
    seen = []
    for _ in range(3):
        workload.step()
        outside.fill()
        assert torch.equal(workload.run.draws.noise, outside.noise)
        seen.append(workload.run.draws.noise.clone())
    assert not torch.equal(seen[0], seen[1]) and not torch.equal(seen[1], seen[2])
    assert abs(float(seen[0].mean())) < 0.05 and float(seen[0].std()) == pytest.approx(1, abs=0.05)


def test_a_captured_iteration_takes_the_images_that_the_eager_one_takes(digits: DataSet) -> None:
    captured, eager = prepared(trial_of(), digits), build_workload(trial_of("eager"), digits)
    for _ in range(3):
        captured.step()
        eager.step()
        assert torch.allclose(captured.run.images, eager.run.images)  # type: ignore[attr-defined]


def test_an_iteration_is_not_captured_if_its_images_do_not_fit_on_the_device(
    digits: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labkit.data.loaders.RESIDENT_SHARE", 0.0)
    assert checked(trial_of("eager"), digits).facts["loader"] == "streaming"
    with pytest.raises(Unsupported, match="do not fit"):
        build_workload(trial_of(), digits)


def test_the_gate_refuses_a_captured_iteration_with_stale_weights(digits: DataSet) -> None:
    workload = prepared(trial_of(), digits)
    with torch.no_grad():
        for weight in workload.training.critic.parameters():
            weight.mul_(0.5)
    with pytest.raises(GateError, match="captured iterations"):
        workload.check()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_captured_training_moves_the_generator_towards_the_images(digits: DataSet, precision: str) -> None:
    """After 400 iterations, the mean generated image is at least three times nearer to the mean real image."""
    workload = checked(trial_of(precision=precision, samples=64), digits)
    real = torch.from_numpy(digits.train.images[:].astype("float32")).mean(0) / 127.5 - 1
    noise = torch.randn(256, 100, 1, 1, generator=torch.Generator().manual_seed(7))

    def distance() -> float:
        return float((workload._make(workload.training.network, noise).mean(0) - real).abs().mean())

    before = distance()
    for _ in range(400):
        workload.step()
    estimate = workload.read_loss()
    assert estimate is not None
    assert distance() < before / 3
    assert all(float(weight.abs().max()) <= CLIP * (1 + 1e-6) for weight in workload.training.critic.parameters())
    drawn = workload.draw_samples()
    assert drawn["samples_png"] != drawn["samples_before_png"]


def test_an_eager_iteration_trains_on_a_gpu_too(digits: DataSet) -> None:
    workload = checked(trial_of("eager"), digits)
    workload.step()
    assert workload.read_loss() is not None
