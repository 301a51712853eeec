"""A WGAN trains as its papers say, the gate compares captured with eager iterations, and samples can be drawn."""

from __future__ import annotations

import base64
import io
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from labkit.data import DataSet
from labkit.data.order import EpochOrder
from labkit.errors import UserError
from labkit.models import MODELS, build, count
from labkit.models.catalogue import CRITIC_STEPS
from tests.prepared import loading
from tests.workbook.conftest import Measured
from workbook.errors import GateError, Unsupported
from workbook.trials.recipes import CLIP, adversarial
from workbook.trials.trial import Trial
from workbook.workloads import build_workload

torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from labkit.models.wgan import NOISE, WGAN, iteration  # noqa: E402
from workbook.engines import gan_gate  # noqa: E402
from workbook.engines.device_loader import DeviceLoader  # noqa: E402
from workbook.engines.gan_training import Adversarial, CapturedIteration, Draws  # noqa: E402
from workbook.workloads.gan import MIDDLE, png  # noqa: E402

pytestmark = pytest.mark.usefixtures("_torch_is_left_as_it_was")


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use networks of a quarter of the width, for tests that count nothing."""
    monkeypatch.setattr("labkit.models.wgan.WIDTH", 32)


def trial_of(**fields: Any) -> Trial:
    usual: dict[str, Any] = {"device": "cpu", "data": "digits", "classes": 10, "batch": 4}
    return Trial(**{**adversarial("cpu")["eager"], **usual, **fields})


def training_of(*, seed: int = 0, **options: Any) -> Adversarial:
    torch.manual_seed(seed)
    usual: dict[str, Any] = {"captured": False, "restarts": False}
    return Adversarial(trial_of(), WGAN(), **(usual | options))


def values(network: torch.nn.Module) -> list[torch.Tensor]:
    return [weight.detach().clone() for weight in network.parameters()]


def moved(before: list[torch.Tensor], network: torch.nn.Module) -> list[bool]:
    return [not torch.equal(old, now) for old, now in zip(before, network.parameters(), strict=True)]


def batch_of(size: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images and noise."""
    return torch.randn(size, 3, 32, 32), torch.randn(size, NOISE, 1, 1)


# ---- the networks and what they cost --------------------------------------------------------------------------------


def test_the_networks_have_dcgans_layers_and_the_published_number_of_parameters() -> None:
    with torch.device("meta"):
        network = build("wgan")
        noise = torch.empty(3, NOISE, 1, 1)
    assert isinstance(network, WGAN)
    shapes = []
    for part in (network.generator, network.critic):
        for layer in part:
            if isinstance(layer, torch.nn.Conv2d | torch.nn.ConvTranspose2d):
                layer.register_forward_hook(lambda _m, _i, output: shapes.append(tuple(output.shape[1:])))
    assert network(noise).shape == (3,)
    made = [(512, 4, 4), (256, 8, 8), (128, 16, 16), (3, 32, 32)]
    assert shapes == [*made, (128, 16, 16), (256, 8, 8), (512, 4, 4), (1, 1, 1)]
    assert sum(weight.numel() for weight in network.parameters()) == MODELS["wgan"].published_parameters


def test_the_flop_of_an_iteration_are_those_that_pytorch_counts() -> None:
    training, batch = training_of(), 2
    images, noise = batch_of(batch)
    with FlopCounterMode(display=False) as of_critic:
        training.critic_step(images, noise)
    with FlopCounterMode(display=False) as of_generator:
        training.generator_step(noise)
    work = iteration()
    assert of_critic.get_total_flops() == batch * work.critic_step
    assert of_generator.get_total_flops() == batch * work.generator_step
    assert work.flop == 5 * work.critic_step + work.generator_step
    assert count("wgan").flop_training == round(work.flop / 5)


def test_both_optimisers_pass_over_the_weights_as_often_as_the_roofline_says() -> None:
    with torch.device("meta"):
        made = sum(4 * weight.numel() for weight in WGAN().generator.parameters())
        judged = sum(4 * weight.numel() for weight in WGAN().critic.parameters())
    assert count("wgan").weight_traffic_bytes == made * (8 + 5) + judged * (5 * 8 + 2)


# ---- an iteration ---------------------------------------------------------------------------------------------------


def test_each_step_moves_its_own_network_and_no_other() -> None:
    training = training_of()
    images, noise = batch_of()
    makers, critics = values(training.generator), values(training.critic)
    training.critic_step(images, noise)
    assert all(moved(critics, training.critic))
    assert not any(moved(makers, training.generator))
    critics, gradients = values(training.critic), [weight.grad.clone() for weight in training.critic.parameters()]
    training.generator_step(noise)
    assert all(moved(makers, training.generator))
    assert not any(moved(critics, training.critic))
    for before, weight in zip(gradients, training.critic.parameters(), strict=True):
        assert weight.grad is not None and torch.equal(before, weight.grad), "the critic's gradients are not computed"


def test_the_estimate_is_the_mean_score_of_real_images_less_that_of_generated_ones() -> None:
    training = training_of()
    images, noise = batch_of()
    with torch.no_grad():
        real, made = training.critic(images).mean(), training.critic(training.make(noise)).mean()
    assert float(training.critic_step(images, noise)) == pytest.approx(float(real - made), rel=1e-4)
    for _ in range(5):
        last = float(training.critic_step(images, noise))
    assert last > float(real - made), "the critic learns to tell them apart"


def test_after_each_step_all_of_the_clipped_critics_weights_lie_within_the_bound() -> None:
    training = training_of()
    assert training.out_of_bounds() is not None, "the initial weights exceed the bound"
    training.critic_step(*batch_of())
    assert training.out_of_bounds() is None
    for value in (2 * CLIP, float("nan")):
        with torch.no_grad():
            training.critic[0].weight[0, 0, 0, 0] = value
        assert f"0.weight of the critic reaches {value:g}," in (training.out_of_bounds() or "")


@pytest.mark.usefixtures("narrow")
def test_a_restart_undoes_weights_statistics_and_moments() -> None:
    training = training_of(restarts=True)
    images, noise = batch_of()

    def train() -> list[torch.Tensor]:
        for _ in range(2):
            training.critic_step(images, noise)
            training.generator_step(noise)
        return [value.clone() for value in (*training.weights(), *training.statistics())]

    first = train()
    training.restart()
    again = train()
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(first, again, strict=True))


# ---- the workload ---------------------------------------------------------------------------------------------------


def test_a_step_takes_five_fresh_batches_and_counts_their_images(digits: DataSet) -> None:
    workload: Any = build_workload(trial_of(), digits)
    workload.check()
    assert workload.images_per_step == CRITIC_STEPS * 4 == workload.facts["images_per_step"]
    assert workload.flop_per_step == 4 * iteration().flop
    first, noise = workload.run.images.clone(), workload.run.draws.noise.clone()
    assert first.min() == -1 and first.max() == 1, "the range of the generator's last layer"
    workload.step()
    assert not torch.equal(first, workload.run.images) and not torch.equal(noise, workload.run.draws.noise)
    assert workload.facts["parameters"] == sum(w.numel() for w in workload.training.network.parameters())
    order = EpochOrder(len(digits.train), seed=0)
    order.take(2 * CRITIC_STEPS * 4)
    _, labels = workload.run.loader.next_batch()
    assert labels.tolist() == digits.train.labels[order.take(4)].tolist(), "two iterations have taken ten batches"


@pytest.mark.usefixtures("narrow")
def test_a_trials_seed_decides_its_estimates_and_reading_resets_them(digits: DataSet) -> None:
    def estimates(seed: int) -> list[float | None]:
        workload: Any = build_workload(trial_of(seed=seed, batch=2), digits)
        readings = []
        for _ in range(2):
            workload.step()
            readings.append(workload.read_loss())
        assert workload.read_loss() is None
        return readings

    first = estimates(0)
    assert first == estimates(0) and first != estimates(1)


@pytest.mark.usefixtures("narrow")
def test_the_gate_refuses_a_broken_training(digits: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    lost: Any = build_workload(trial_of(batch=2), digits)
    with torch.no_grad():
        lost.training.critic[0].weight[0, 0, 0, 0] = float("nan")
    with pytest.raises(GateError, match="not finite"):
        lost.check()
    frozen: Any = build_workload(trial_of(batch=2), digits)
    frozen.training.generator[0].weight.requires_grad_(False)
    with pytest.raises(GateError, match=r"1 weights .* generator\.0\.weight"):
        frozen.check()
    several: Any = build_workload(trial_of(batch=2), digits)
    several.training.critic[-1] = torch.nn.Flatten(1)
    with pytest.raises(GateError, match=r"critic .*\(2, 1\).*\(2,\)"):
        several.check()
    monkeypatch.setattr(Adversarial, "clip", lambda self: None)
    with pytest.raises(GateError, match=r"critic reaches .* 0\.01"):
        build_workload(trial_of(batch=2), digits).check()


def test_a_wgan_that_no_engine_trains_is_refused(digits: DataSet) -> None:
    with pytest.raises(Unsupported, match="need a GPU"):
        build_workload(trial_of(engine="graph"), digits)


def test_a_gan_is_neither_trained_as_a_classifier_nor_asked_for_classes(digits: DataSet) -> None:
    for workload in ("train", "infer"):
        with pytest.raises(Unsupported, match="gan workload"):
            build_workload(Trial(workload=workload, model="wgan", device="cpu"), digits)
    with pytest.raises(UserError, match="32 pixels"):
        build_workload(trial_of(image_px=64), digits)


@pytest.mark.usefixtures("narrow")
def test_bf16_computes_in_bf16_keeps_fp32_weights_and_stays_near_fp32(digits: DataSet) -> None:
    losses = {}
    for precision in ("fp32", "bf16"):
        workload: Any = build_workload(trial_of(precision=precision), digits)
        seen: set[Any] = set()
        workload.training.critic.register_forward_hook(lambda _m, _i, output, seen=seen: seen.add(output.dtype))
        workload.check()
        assert seen == {torch.bfloat16 if precision == "bf16" else torch.float32}
        assert {weight.dtype for weight in workload.training.network.parameters()} == {torch.float32}
        losses[precision] = workload.facts["first_loss"]
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.3) and losses["bf16"] != losses["fp32"]


# ---- a captured iteration, without a graph --------------------------------------------------------------------------


def captured(digits: DataSet, **fields: Any) -> CapturedIteration:
    """Return a captured iteration that calls its recorded function in place of a graph."""
    trial = trial_of(**fields)
    training = training_of(captured=False, restarts=True)
    about: dict[str, Any] = {"dtype": torch.float32, "one_kernel": False, "mean": MIDDLE, "std": MIDDLE}
    loader = loading(DeviceLoader, digits.train, batch=trial.batch, **about)
    run = CapturedIteration(training, loader, Draws(trial))
    run._graph = SimpleNamespace(replay=run._body)
    return run


def gated(run: CapturedIteration, *, spoil: Any = None, precision: str = "fp32") -> dict[str, Any]:
    """Run the gate as the workload does, on iterations that `spoil` may change. Return its facts."""
    plain, tuned = training_of(), run._training
    read = lambda: (run.images, run.draws.noise)  # noqa: E731
    expected = gan_gate.trace(plain, lambda: run.eagerly(plain), read)
    run.rewind()
    if spoil:
        spoil(run)

    def one_iteration() -> torch.Tensor:
        run()
        return run.estimates

    return gan_gate.compare(expected, gan_gate.trace(tuned, one_iteration, read), precision)


@pytest.mark.usefixtures("narrow")
def test_the_gate_passes_iterations_that_equal_the_eager_ones(digits: DataSet) -> None:
    facts = gated(captured(digits))
    assert facts["loss_difference"] <= 1e-3 < facts["loss_tolerance"]
    assert facts["squares_difference"] <= 0.01 < facts["squares_tolerance"]
    assert facts["change_difference"] <= 0.05 < facts["change_tolerance"]


def no_new_noise(run: CapturedIteration) -> None:
    run.draws.generator.manual_seed(0)
    run.draws.fill()
    run.draws.fill = lambda: None


def other_images(run: CapturedIteration) -> None:
    run._loader.next_batch()


def half_the_generators_rate(run: CapturedIteration) -> None:
    run._training.optimizers[1].param_groups[0]["lr"] /= 2


def no_generator(run: CapturedIteration) -> None:
    run._training.generator_step = lambda noise: None


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (no_new_noise, "iteration 2 .*other noise"),
        (other_images, "iteration 1 .*other images"),
        (half_the_generators_rate, "differ from"),
        (no_generator, "estimates differ"),
    ],
)
def test_the_gate_refuses_faulty_iterations(spoil: Any, said: str, digits: DataSet) -> None:
    with pytest.raises(GateError, match=said):
        gated(captured(digits), spoil=spoil)


def trace(
    estimate: float = 1.0, movement: float = 1.0, squares: float = 1.0, statistics: float = 1.0
) -> gan_gate.Trace:
    """Return a trace with the given estimate and statistics. `movement` and `squares` are those of the generator."""
    values_read = {name: [torch.zeros(()), torch.ones(())] for name in ("images", "noise")}
    parts = ({"critic": torch.ones(3), "generator": torch.full((3,), value)} for value in (movement, squares))
    return gan_gate.Trace(torch.full((2, 5), estimate), values_read, *parts, torch.full((3,), statistics))


@pytest.mark.parametrize(
    ("plain", "tuned", "said"),
    [
        (trace(), trace(estimate=1.02), "estimates differ"),
        (trace(), trace(movement=1.41), "movement differ"),
        (trace(), trace(movement=math.nan), "movement .* by nan"),
        (trace(movement=0.0), trace(), "weights' movement"),
        (trace(), trace(squares=1.06), "statistics differ"),
        (trace(), trace(statistics=1.06), "statistics differ"),
    ],
)
def test_the_gate_finds_each_difference_of_either_network(
    plain: gan_gate.Trace, tuned: gan_gate.Trace, said: str
) -> None:
    gan_gate.compare(trace(), trace(1.009, 1.39, 1.04, 1.04), "fp32")
    gan_gate.compare(trace(movement=0.0), trace(movement=0.0), "fp32")
    with pytest.raises(GateError, match=said):
        gan_gate.compare(plain, tuned, "fp32")


@pytest.mark.usefixtures("narrow")
def test_the_mean_estimate_covers_the_captured_iterations_since_the_last_reading(digits: DataSet) -> None:
    run = captured(digits)
    each = []
    for _ in range(2):
        run()
        each.append(float(run.estimates.mean()))
    assert float(run.take_estimates()) == pytest.approx(sum(each) / 2)
    assert torch.isnan(run.take_estimates())


# ---- samples --------------------------------------------------------------------------------------------------------


def pixels(text: str) -> Any:
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(base64.b64decode(text))).convert("RGB"))


@pytest.mark.usefixtures("narrow")
def test_samples_use_the_same_noise_before_and_after_training_and_do_not_change_it(digits: DataSet) -> None:
    workload: Any = build_workload(trial_of(samples=32), digits)
    untrained = workload.draw_samples()
    assert untrained["samples_png"] == untrained["samples_before_png"]
    workload.check()
    weights, statistics = values(workload.training.network), [value.clone() for value in workload.training.statistics()]
    drawn = workload.draw_samples()
    assert drawn["samples_before_png"] == untrained["samples_before_png"] != drawn["samples_png"]
    assert not any(moved(weights, workload.training.network))
    assert all(torch.equal(a, b) for a, b in zip(statistics, workload.training.statistics(), strict=True))
    assert drawn == workload.draw_samples(), "the noise is fixed"
    assert sum(map(len, drawn.values())) <= 60_000, "a record stays small"
    for text in drawn.values():
        assert pixels(text).shape == (4 * 34 - 2, 8 * 34 - 2, 3)


@pytest.mark.usefixtures("narrow")
def test_asking_for_samples_does_not_change_the_training(digits: DataSet) -> None:
    losses = []
    for samples in (0, 8):
        workload = build_workload(trial_of(samples=samples, batch=2), digits)
        workload.check()
        losses.append(workload.facts["first_loss"])
    assert losses[0] == losses[1]


def test_real_images_appear_in_the_grid_unchanged(digits: DataSet) -> None:
    shown = pixels(png(np.array(digits.train.images[:3])))
    assert shown.shape == (32, 3 * 34 - 2, 3)
    for place in range(3):
        there = shown[:, place * 34 : place * 34 + 32].transpose(2, 0, 1).astype(int)
        assert abs(there - digits.train.images[place].astype(int)).max() <= 16, "sixteen colours for seventeen levels"
    assert (shown[:, 32:34] == 255).all()


def test_a_worker_times_a_wgan_and_keeps_its_images(measured: Measured, digits: DataSet) -> None:
    about = {"data": "digits", "data_checksum": digits.checksum, "batch": 2}
    wgan = trial_of(samples=8, **about)
    record = measured([wgan])[wgan.key]
    assert record.status == "ok" and record.blocks is not None
    assert record.blocks.images_per_step == 10
    assert {"samples_png", "samples_before_png", "samples_real_png"} <= set(record.facts)
    assert all(loss is not None for loss in record.blocks.loss)


def test_a_wgans_recipes_are_named_by_their_engines_and_updated_as_in_the_paper() -> None:
    trials = {name: Trial(**recipe) for name, recipe in adversarial("cuda").items()}
    assert list(trials) == [trial.engine for trial in trials.values()] == ["eager", "graph"]
    assert {(trial.optimizer, trial.learning_rate) for trial in trials.values()} == {("rmsprop", 5e-5)}
