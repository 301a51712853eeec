"""Networks with their samples: a Python file of yours, or a name.

A file has three functions or more:

    def build(): ...                      # the network, a torch.nn.Module
    def batch(size, device): ...          # `size` samples on `device`: tensors, in any structure
    def loss(network, batch): ...         # a scalar tensor, to train; or, or beside it,
    def predict(network, batch): ...      # a tensor, or several

`optimizer(parameters)` and the number `tokens_per_sample` are optional. A name is `torchvision:vit_b_16`,
`timm:vit_small_patch16_224` where timm is installed, or a network of `labkit.models.MODELS`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.errors import UserError, check_whole, one_of
from labkit.models.catalogue import CLASSES, MODELS

if TYPE_CHECKING:
    import torch

# The functions of a file, with the number of arguments that each is called with.
FUNCTIONS = {"build": 0, "batch": 2, "loss": 2, "predict": 2, "optimizer": 1}
TASKS = ("loss", "predict")
SAMPLES_FEWER = 0.5  # of the numbers that one and two samples let expect: samples may differ in length
LIBRARIES = ("torchvision", "timm")
TRAINED_BY_ADAMW = ("vit_", "swin_", "convnext", "maxvit_")


class SamplesError(UserError):
    """A batch that a network's file makes and that no rate can be formed from."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """How a network is built, fed, trained and asked. `path` is the file that says so; None for a name.

    `loss` is None for a network that only predicts, and `predict` for a network that is only trained. Samples have
    `tokens_per_sample` tokens; None if they are no texts.
    """

    name: str
    path: Path | None
    build: Callable[[], torch.nn.Module]
    batch: Callable[[int, torch.device], Any]
    loss: Callable[[torch.nn.Module, Any], torch.Tensor] | None
    predict: Callable[[torch.nn.Module, Any], Any] | None
    optimizer: Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]
    tokens_per_sample: int | None = None

    def samples(self, size: int, device: torch.device) -> Any:
        """Return a batch of `size` samples, after batches of 1 and of 2 samples.

        Raise SamplesError if it has no tensor, too few numbers, or a tensor on another device.
        """
        batch, said = self.batch(size, device), f"batch(size, device) of {self.name}"
        if not (tensors := tensors_of(batch)):
            raise SamplesError(f"{said} returned no tensor")
        numbers, one, two = (
            sum(value.numel() for value in tensors_of(of)) for of in (batch, *(self.batch(n, device) for n in (1, 2)))
        )
        if one == two or numbers < SAMPLES_FEWER * (one + (size - 1) * (two - one)):  # or a rate would be of fewer
            raise SamplesError(
                f"{said} gives {numbers:,} numbers for size={size}, {one:,} for 1 and {two:,} for 2: it must give "
                "`size` samples"
            )
        if elsewhere := [value.device for value in tensors if value.device.type != device.type]:
            raise SamplesError(f"{said} left a tensor on {elsewhere[0]}: move it to `device`")
        return batch

    def training_step(self, size: int, device: torch.device | str) -> Callable[[], torch.Tensor]:
        """Return an eager training step on one batch of `size` samples.

        Raise UserError for a file without `loss`, and as `samples` does.
        """
        if self.loss is None:
            raise UserError(f"{self.name} has no loss(network, batch), so it cannot be trained; write one.")
        import torch

        place, loss = torch.device(device), self.loss
        network = self.build().to(place).train()
        samples, optimizer = self.samples(size, place), self.optimizer(network.parameters())

        def step() -> torch.Tensor:
            optimizer.zero_grad(set_to_none=True)
            value = loss(network, samples)
            value.backward()
            optimizer.step()
            return value.detach()

        return step


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """Return the tensors in a structure of lists, tuples and dictionaries."""
    import torch
    from torch.utils import _pytree

    return [leaf for leaf in _pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def is_file(name: str) -> bool:
    """Return whether the name of a network is that of a file."""
    return name.endswith(".py")


def open_network(name: str) -> Network:
    """Return the network of a file or a name. A file is executed, as Python's `import` would: open only your own.

    >>> labkit.models.open_network("torchvision:resnet18").batch(2, "cpu")[0].shape
    torch.Size([2, 3, 224, 224])

    Raise UserError for a file that is not there, cannot be executed, or lacks a function, and for an unknown name.
    """
    if is_file(name):
        return _of_file(Path(name).expanduser())
    if "/" in name:
        raise UserError(f"{name} is no Python file: the file of a network ends in .py.")
    library, _, model = name.rpartition(":")
    if library:
        one_of("library of networks", library, LIBRARIES)
    return _of_timm(name, model) if library == "timm" else _of_images(name, model)


def _of_file(path: Path) -> Network:
    if not path.is_file():
        raise UserError(f"there is no file {path}; give the path of a Python file with build() and batch().")
    module = _executed(path.resolve())
    given = {name: getattr(module, name) for name in FUNCTIONS if hasattr(module, name)}
    missing = [name for name in ("build", "batch") if name not in given]
    if missing or not set(TASKS) & set(given):
        lacks = " and ".join(f"{name}()" for name in missing) or "loss(network, batch) or predict(network, batch)"
        raise UserError(
            f"{path.name} lacks {lacks}; a file has build(), batch(size, device), and loss(network, batch) or "
            "predict(network, batch)."
        )
    for name, function in given.items():
        _check_signature(path, name, function)
    tokens = getattr(module, "tokens_per_sample", None)
    if tokens is not None:
        check_whole(f"tokens_per_sample of {path.name}", tokens)
    return Network(
        name=path.name,
        path=path.resolve(),
        build=given["build"],
        batch=given["batch"],
        loss=given.get("loss"),
        predict=given.get("predict"),
        optimizer=given.get("optimizer", _sgd),
        tokens_per_sample=tokens,
    )


def _executed(path: Path) -> Any:
    """Return the module of a file. Its folder is importable, so that it can have other files beside it."""
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where pickle and dataclasses look for it
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # the file must not end the process that reads it
        failed = f"{path.name}{line_of(path, error)} cannot be executed"
        raise UserError(f"{failed}: {type(error).__name__}: {error}") from error
    return module


def line_of(path: Path | None, error: BaseException) -> str:
    """Return " (line N)", the last line of a file that an error came from; empty if it came from none of its lines."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f" (line {lines[-1]})" if lines else ""


def _check_signature(path: Path, name: str, function: Any) -> None:
    arguments = FUNCTIONS[name]
    try:
        inspect.signature(function).bind(*[None] * arguments)
    except TypeError as error:
        usage = {0: "without arguments", 1: "with the parameters"}.get(arguments, "with two arguments")
        raise UserError(f"{name} of {path.name} cannot be called {usage}: {error}.") from error


def _optimizer_of(model: str) -> Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]:
    """Return the optimiser with which torchvision's references train a model: AdamW for the younger families."""
    return _adamw if model.startswith(TRAINED_BY_ADAMW) else _sgd


def _adamw(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    import torch

    return torch.optim.AdamW(parameters, lr=1e-4)


def _sgd(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Return PyTorch's SGD with momentum, for files without an optimiser."""
    import torch

    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def _of_images(name: str, model: str) -> Network:
    from labkit.models.torch_models import build, default_px

    entry = MODELS.get(model)
    if entry and entry.noise:
        raise UserError(f"{model} is two networks that are trained together, and has no batch of its own here.")
    if entry and entry.words:
        return _classifier(name, lambda: build(model), (entry.words,), entry.classes)
    px = entry.native_px if entry else default_px(model)
    shape, optimizer = (3, px, px), _optimizer_of(model)
    return _classifier(name, lambda: build(model, image_px=px), shape, CLASSES, optimizer)


def _of_timm(name: str, model: str) -> Network:
    try:
        import timm
    except ImportError:
        raise UserError(f"{name} needs the package timm, which is not installed: pip install timm.") from None
    if not timm.is_model(model):
        raise UserError(f"timm has no model {model!r}; `timm.list_models('*{model[:4]}*')` lists similar names.")
    made = timm.get_pretrained_cfg(model)
    optimizer = _optimizer_of(model)
    return _classifier(name, lambda: timm.create_model(model), made.input_size, made.num_classes, optimizer)


def _classifier(
    name: str,
    build: Callable[[], torch.nn.Module],
    shape: tuple[int, ...],
    classes: int,
    optimizer: Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer] = _sgd,
) -> Network:
    """Return a network that gives samples of `shape` one class each, with random samples and cross-entropy."""
    import torch
    from torch.nn import functional

    return Network(
        name=name,
        path=None,
        build=build,
        batch=lambda size, place: (
            torch.randn(size, *shape, device=place),
            torch.randint(classes, (size,), device=place),
        ),
        loss=lambda network, batch: functional.cross_entropy(network(batch[0]).float(), batch[1]),
        predict=lambda network, batch: network(batch[0]),
        optimizer=optimizer,
    )
