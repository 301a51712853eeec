"""Tests that models have the published parameters, FLOP and shapes, at their native input and at 32x32."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from labkit.errors import UserError
from labkit.models import MODELS, build, count
from labkit.models.facts import COUNTS, _counts, count_everything
from labkit.models.torch_models import default_px

torch = pytest.importorskip("torch")

# Multiply-adds per image at the native input, in 1e9, from torchvision's documentation ("GFLOPS" of the weights).
# Inception-BN's are from osmr/imgclsmob's list of networks (BN-Inception, 2,048.06 M).
PUBLISHED_GMAC = {
    "resnet18": 1.81,
    "resnet50": 4.09,
    "resnet101": 7.80,
    "resnet152": 11.51,
    "vgg16": 15.47,
    "vgg19": 19.63,
    "alexnet": 0.71,
    "googlenet": 1.50,
    "inception_bn": 2.048,
    "inception_v3": 5.71,
}
# Other tests cover the network that takes words (`test_small_network.py`) and that which takes noise (`test_gan.py`).
OF_IMAGES = [name for name in MODELS if not MODELS[name].words and not MODELS[name].noise]
SMALL = [name for name in MODELS if MODELS[name].small]


def parameters(model: torch.nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())


@pytest.mark.parametrize("name", OF_IMAGES)
def test_a_model_has_as_many_parameters_as_published(name: str) -> None:
    entry = MODELS[name]
    with torch.device("meta"):
        model = build(name, image_px=entry.native_px, aux=name == "inception_v3")
    assert parameters(model) == entry.published_parameters


@pytest.mark.parametrize("name", OF_IMAGES)
def test_the_flop_of_a_forward_pass_are_twice_the_published_multiply_adds(name: str) -> None:
    published = PUBLISHED_GMAC.get(name)
    if published is None:
        pytest.skip(f"PUBLISHED_GMAC has no published number of {name}: nothing to compare with")
    counted = count(name, image_px=MODELS[name].native_px).flop_forward / 2e9
    assert counted == pytest.approx(published, rel=0.03), f"{name}: {counted:.2f} GMAC counted, {published} published"


@pytest.mark.thorough
def test_the_counts_on_file_equal_those_of_pytorch() -> None:
    assert _counts() == count_everything(), f"write {COUNTS.name} again: see write_counts"


def test_a_variant_that_is_not_on_file_is_counted_on_request() -> None:
    ten, thousand = count("resnet18", classes=10), count("resnet18")
    assert thousand.parameters - ten.parameters == 990 * (512 + 1)
    assert thousand.flop_forward - ten.flop_forward == 2 * 990 * 512
    with pytest.raises(UserError, match="40 pixels"):
        count("alexnet", image_px=40)


@pytest.mark.parametrize("name", SMALL)
def test_a_model_at_32x32_gives_a_logit_per_class(name: str) -> None:
    torch.manual_seed(0)
    model = build(name, classes=7)
    with torch.no_grad():
        logits = model(torch.randn(2, 3, 32, 32))
    assert type(logits) is torch.Tensor, "a tuple of main and auxiliary outputs"
    assert logits.shape == (2, 7) and torch.isfinite(logits).all() and model.training


def shapes_inside(model: torch.nn.Module, *names: str) -> dict[str, tuple[int, ...]]:
    """Return the output shapes, per image of 32x32, of some submodules, computed on the meta device."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name in names:
        model.get_submodule(name).register_forward_hook(
            lambda _module, _inputs, output, name=name: shapes.update({name: tuple(output.shape[1:])})
        )
    model(torch.empty(2, 3, 32, 32, device="meta"))
    return shapes


def test_a_resnet_quarters_the_resolution_of_small_images_before_its_stages() -> None:
    with torch.device("meta"):
        shapes = shapes_inside(build("resnet50"), "maxpool", "layer4")
    assert shapes == {"maxpool": (64, 8, 8), "layer4": (2048, 1, 1)}


def test_the_small_vgg_head_is_512_wide_and_torchvisions_holds_most_of_the_weights() -> None:
    with torch.device("meta"):
        small, whole = build("vgg16", head="head512"), build("vgg16")
    assert shapes_inside(small, "features", "classifier") == {"features": (512, 1, 1), "classifier": (1000,)}
    assert shapes_inside(whole, "avgpool") == {"avgpool": (512, 7, 7)}
    assert parameters(small.classifier) == 2 * (512 * 512 + 512) + 512 * 1000 + 1000
    assert parameters(whole.classifier) == 123_642_856


def test_alexnets_first_convolution_has_stride_1_at_32x32_only() -> None:
    with torch.device("meta"):
        small, whole = build("alexnet"), build("alexnet", image_px=224)
        assert shapes_inside(small, "features.0") == {"features.0": (64, 26, 26)}
    assert small.features[0].stride == (1, 1)
    assert whole.features[0].stride == (4, 4)


@pytest.mark.parametrize(
    ("arguments", "valid"),
    [
        ({"name": "resnet5"}, ["resnet50", "resnext50_32x4d", "labkit.models.classifiers()"]),
        ({"name": "alexnet", "image_px": 40}, ["40 pixels", "32, 64, 96"]),
        ({"name": "vit_b_16", "image_px": 60}, ["32, 48, 64"]),
        ({"name": "resnet50", "image_px": 0}, ["image_px is 0"]),
        ({"name": "vgg16", "head": "512"}, ["head512, torchvision"]),
    ],
)
def test_an_unknown_model_or_option_is_refused_with_the_valid_ones(arguments: dict, valid: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        build(**arguments)
    for name in valid:
        assert name in str(caught.value)


@pytest.mark.parametrize(
    "name", ["vgg16", "alexnet", "googlenet", "inception_bn", "vit_b_16", "swin_t", "regnet_x_400mf"]
)
@pytest.mark.parametrize("px", [64, 128])
def test_a_classifier_takes_other_sizes_than_its_own(name: str, px: int) -> None:
    with torch.device("cpu" if name.startswith("regnet") else "meta"):
        network = build(name, image_px=px, classes=7)
        assert network(torch.empty(2, 3, px, px)).shape == (2, 7)


@pytest.mark.parametrize(
    ("name", "px"), [("vit_b_16", 224), ("inception_v3", 299), ("resnet50", 32), ("vit_h_14", 518)]
)
def test_without_a_size_a_network_has_its_own_or_32(name: str, px: int) -> None:
    assert default_px(name) == px


@pytest.mark.parametrize(
    # parameters and GMAC of torchvision's model pages
    ("name", "parameters_there", "gmac"),
    [
        ("vit_b_16", 86_567_656, 17.56),
        ("convnext_tiny", 28_589_128, 4.46),
        ("resnext50_32x4d", 25_028_904, 4.23),
        ("regnet_x_400mf", 5_495_976, 0.41),
    ],
)
def test_counts_of_other_classifiers_are_the_published_ones(name: str, parameters_there: int, gmac: float) -> None:
    facts = count(name)
    assert facts.parameters == parameters_there
    assert facts.flop_forward / 2e9 == pytest.approx(gmac, abs=0.006)
    assert 2.9 < facts.flop_training / facts.flop_forward < 3, "grouped convolutions included"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"image_px": "64"}, "image_px is '64'; use a whole number"),
        ({"image_px": 10**20}, "use a whole number of at most"),
        ({"classes": 0}, "classes is 0"),
        ({"aux": True}, "aux=True is for googlenet and inception_v3"),
        ({"head": "head512"}, "head='head512' is for VGGs at 32 pixels"),
    ],
)
def test_an_argument_without_effect_or_of_another_type_is_refused(options: dict, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        build("resnet18", **options)


def test_a_network_of_the_user_is_counted_and_stays_as_it_is() -> None:
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1, groups=1, bias=False), torch.nn.Flatten(), torch.nn.Linear(8 * 16 * 16, 5)
    ).eval()
    facts = count(network, image_px=16)
    convolution, linear = 2 * 8 * 27 * 16 * 16, 2 * 8 * 16 * 16 * 5
    assert facts.parameters == 8 * 27 + 8 * 16 * 16 * 5 + 5
    assert facts.flop_forward == convolution + linear
    assert facts.flop_training == 2 * convolution + 3 * linear, "the first layer needs no gradient of its input"
    assert not network.training and network[0].weight.device.type == "cpu"
    with pytest.raises(UserError, match=r"Sequential could not be counted with samples of shape \(3, 8, 8\)"):
        count(network, image_px=8)


class Decoder(torch.nn.Module):
    """A decoder's layer in which 6 queries of width 8 attend to each other, and to the 48 pixels as 16 keys."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.TransformerDecoderLayer(8, 2, dim_feedforward=20, dropout=0.0, batch_first=True)
        self.queries, self.widen = torch.nn.Parameter(torch.zeros(6, 8)), torch.nn.Linear(3, 8)

    def forward(self, images: Any) -> Any:
        keys = self.widen(images.flatten(2).transpose(1, 2))
        return self.layer(self.queries.expand(len(images), -1, -1), keys)


def test_the_products_of_attention_are_counted_as_by_hand() -> None:
    n, keys, width, hidden = 6, 16, 8, 20
    own = 4 * n * width**2 + 2 * n**2 * width
    others = (2 * n + 2 * keys) * width**2 + 2 * n * keys * width
    assert count(Decoder(), image_px=4).flop_forward == 2 * (keys * 3 * width + own + others + 2 * n * width * hidden)


@torch.library.custom_op("labkit_test::halve", mutates_args=())
def halve(values: torch.Tensor) -> torch.Tensor:
    return values / 2


halve.register_fake(torch.empty_like)


class Calls(torch.nn.Module):
    """A network that applies one operator to its images, beside a linear layer."""

    def __init__(self, operator: Callable[[Any], Any]) -> None:
        super().__init__()
        self.operator, self.linear = operator, torch.nn.Linear(48, 48)

    def forward(self, images: Any) -> Any:
        return self.operator(self.linear(images.flatten(1)))


@pytest.mark.parametrize(
    ("operator", "name"),
    [
        (lambda values: torch.nn.functional.bilinear(values, values, values.new_ones(2, 48, 48)), "aten._trilinear"),
        (lambda values: torch.dot(values[0], values[1]), "aten.dot"),
        (
            lambda values: torch.cdist(values, values, compute_mode="donot_use_mm_for_euclid_dist"),
            "aten._cdist_forward",
        ),
        (lambda values: halve(values), "labkit_test.halve"),
        (torch.nn.functional.normalize, ""),
        (torch.lgamma, ""),
    ],
    ids=["bilinear", "dot", "distances", "custom", "normalize", "lgamma"],
)
def test_a_product_that_cannot_be_counted_is_named(operator: Callable[[Any], Any], name: str) -> None:
    if name:
        with pytest.raises(UserError, match=re.escape(name)):
            count(Calls(operator), image_px=4)
    else:
        assert count(Calls(operator), image_px=4).flop_forward == 2 * 48 * 48


def test_a_network_without_a_builder_is_refused_naming_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "resnet19", replace(MODELS["resnet18"], name="resnet19"))
    with pytest.raises(UserError, match=r"no builder named 'resnet19'.* labkit/models/torch_models\.py"):
        build("resnet19")


def test_importing_labkit_and_its_models_imports_no_framework() -> None:
    script = (
        "import sys, labkit.models, labkit.timing, labkit.data\n"
        "labkit.models.count('resnet152')\n"
        "heavy = {'torch', 'torchvision', 'tensorflow', 'keras', 'jax', 'scipy.stats', 'sklearn', 'pandas'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
