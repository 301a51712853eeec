"""A network that the user brings, in steps: trained or asked, eager, compiled or captured in a CUDA graph.

Its file says what a step computes. An engine may only change how: the precision of autocast, the memory format, the
optimiser's kernels, the compiler and the capture.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils import _pytree as pytree

from labkit.data.augment import TORCH_FORMATS
from labkit.errors import LabkitError
from labkit.models.networks import Network, SamplesError, line_of, tensors_of
from workbook.engines.precision import AUTOCAST
from workbook.engines.prediction import DTYPES
from workbook.engines.quantised import BASE, FORMATS, inductor_options, quantise
from workbook.engines.steps import record
from workbook.errors import Unsupported, is_out_of_memory
from workbook.trace.profiler import section
from workbook.trials.trial import Trial

Step = Callable[[], torch.Tensor]
# Optimisers whose state is zero before the first step, and that a CUDA graph can hold.
MOST_SAID = 240  # characters of an error of somebody else's code
CAPTURED_OPTIMIZERS = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam)


class UserFunctionError(Unsupported):
    """A function of the user's file that failed, or returned something that no step can use.

    It may read other files, which may be there the next time.
    """


@contextlib.contextmanager
def calling(network: Network, name: str) -> Iterator[None]:
    """Turn an error of a function of the file into a sentence with the function and the line. Memory errors stay."""
    try:
        yield
    except LabkitError:
        raise
    except (Exception, SystemExit) as error:
        if is_out_of_memory(error):
            raise
        raise UserFunctionError(
            f"{name} of {network.name}{line_of(network.path, error)} failed: {type(error).__name__}: {in_a_line(error)}"
        ) from error


def in_a_line(error: BaseException) -> str:
    """Return the beginning of an error's text in one line."""
    return " ".join(str(error).split())[:MOST_SAID] or "no message"


class OwnStep:
    """A network on a device, with one batch that stays there, and a step of its training or its prediction.

    `training` says which. The values of `step()` are the loss, or all predicted numbers of the batch. A training in
    half precision has FP32 weights under autocast; a prediction has half-precision weights and samples. For INT8 or FP8
    weights, call `quantise()`. `samples` are those of another step, because `batch` may draw others in each call; None
    asks the file for some. `model` is another prediction's, whose weights no step changes; None builds a network.
    """

    def __init__(
        self, trial: Trial, network: Network, *, training: bool, samples: Any = None, model: nn.Module | None = None
    ) -> None:
        self.trial, self.own, self.training = trial, network, training
        device = torch.device(trial.device)
        model = model or self._built()
        self.dtype = None if training else DTYPES[BASE if trial.precision in FORMATS else trial.precision]
        self.model = model.to(device, memory_format=TORCH_FORMATS[trial.memory_format]).train(training)
        # Without convolutions, a sample with four axes is no image: a mask, or keys and values of an attention.
        self._has_images = any(weight.ndim == 4 for weight in model.parameters())
        if self.dtype not in (None, torch.float32):
            self.model = self.model.to(self.dtype)
        self.samples = self._batch(device) if samples is None else pytree.tree_map(self._in_format, samples)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._value = torch.empty(0)
        self._as_given: Callable[[nn.Module, Any], torch.Tensor] = self._loss if training else self._prediction
        self._function = self._as_given
        self.optimizer = self._optimizer() if training else None
        self.memory_bytes = 0

    def _built(self) -> nn.Module:
        torch.manual_seed(self.trial.seed)
        with calling(self.own, "build()"):
            model: Any = self.own.build()
        if not isinstance(model, nn.Module):
            raise UserFunctionError(f"build() of {self.own.name} returned {type(model).__name__}, no torch.nn.Module")
        return model

    def _batch(self, device: torch.device) -> Any:
        try:
            with calling(self.own, "batch(size, device)"):
                samples = self.own.samples(self.trial.batch, device)
        except SamplesError as error:
            raise UserFunctionError(str(error)) from error
        return pytree.tree_map(self._in_format, samples)

    def _in_format(self, value: Any) -> Any:
        """Return a sample's tensor: an image in the trial's memory format, and for a prediction in its precision."""
        if not isinstance(value, torch.Tensor):
            return value
        if value.ndim == 4 and self._has_images:
            value = value.contiguous(memory_format=TORCH_FORMATS[self.trial.memory_format])
        return value.to(self.dtype) if self.dtype and value.is_floating_point() else value

    def _loss(self, model: nn.Module, samples: Any) -> torch.Tensor:
        assert self.own.loss is not None
        return self.own.loss(model, samples)

    def _prediction(self, model: nn.Module, samples: Any) -> torch.Tensor:
        assert self.own.predict is not None
        answer = tensors_of(self.own.predict(model, samples)) or [torch.empty(0)]
        return answer[0] if len(answer) == 1 else torch.cat([part.float().flatten() for part in answer])

    def _optimizer(self) -> torch.optim.Optimizer:
        with calling(self.own, "optimizer(parameters)"):
            made = self.own.optimizer(self.model.parameters())
        if not isinstance(made, torch.optim.Optimizer):
            raise UserFunctionError(f"optimizer() of {self.own.name} returned no optimiser of torch.optim")
        fused, captured = self.trial.optimizer == "sgd_fused", "graph" in self.trial.engine
        if captured and type(made) not in CAPTURED_OPTIMIZERS:
            names = ", ".join(kind.__name__ for kind in CAPTURED_OPTIMIZERS)
            raise Unsupported(f"a CUDA graph takes {names}, not {type(made).__name__}", "version")
        asked = {"fused": True, "foreach": None} if fused and "fused" in made.defaults else {}
        asked |= {"capturable": True} if captured and "capturable" in made.defaults else {}
        for flags in (made.defaults, *made.param_groups):  # before the first step, which makes the state
            flags.update(asked)
        return made

    def quantise(self) -> bool:
        """Give the linear layers weights in the trial's precision, if that is INT8 or FP8. Return whether it is."""
        if is_quantised := self.trial.precision in FORMATS:
            quantise(self.model, self.trial.precision)
        return is_quantised

    def compile(self) -> None:
        """Let Inductor compile the loss or the prediction; it does so in the first step."""
        options = inductor_options(self.trial.precision, self.trial.device)
        self._function = torch.compile(self._as_given, dynamic=False, fullgraph=True, options=options)

    def eager(self) -> torch.Tensor:
        """Queue one step, launched by Python, and return its value."""
        if not self.training:
            with torch.inference_mode():
                return self._function(self.model, self.samples)
        assert self.optimizer is not None
        with section("optimiser"):
            self.optimizer.zero_grad(set_to_none=True)
        with self._autocast(), section("forward"):
            loss = self._function(self.model, self.samples)
        with section("backward"):
            loss.backward()
        with section("optimiser"):
            self.optimizer.step()
        return loss.detach()

    def check(self) -> None:
        """Raise UserFunctionError for a loss that cannot train a network, and for a prediction without numbers."""
        name = self.own.name
        if not self.training:
            answer = self.eager()
            if not answer.numel():
                raise UserFunctionError(f"predict(network, batch) of {name} returned no numbers")
            if answer.isnan().any():  # an infinity may be a mask
                raise UserFunctionError(f"predict(network, batch) of {name} returned NaN")
            return
        with self._autocast():
            loss: Any = self._function(self.model, self.samples)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            shape = f"shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else f"type {type(loss).__name__}"
            raise UserFunctionError(f"loss(network, batch) of {name} returned {shape}, not a tensor with one number")
        if not loss.requires_grad:
            raise UserFunctionError(f"no weight of {name} gets a gradient from its loss")
        if not math.isfinite(loss.item()):
            raise UserFunctionError(f"the loss of {name} is {loss.item()} before the first update")

    def value_only(self) -> torch.Tensor:
        """Return the value of a step without its update."""
        with torch.no_grad(), self._autocast() if self.training else contextlib.nullcontext():
            return self._function(self.model, self.samples).detach()

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        half = AUTOCAST.get(self.trial.precision)
        if half is None:
            return contextlib.nullcontext()
        # Within a CUDA graph, a cached cast would be of the weights at capture.
        casts: contextlib.AbstractContextManager[Any]
        casts = torch.autocast(self.trial.device, half, cache_enabled="graph" not in self.trial.engine)
        return casts

    def capture(self) -> None:
        """Record the step in a CUDA graph. Its warm-up steps change weights."""
        self._graph = None  # an earlier capture's memory is free again

        def forget() -> None:
            if self.optimizer is not None:
                self.optimizer.zero_grad(set_to_none=True)
            else:
                torch.cuda.empty_cache()

        try:
            self._graph, self.memory_bytes = record(lambda: None, self._keep, before=forget)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            first = str(error).splitlines()[0]
            raise Unsupported(
                f"a CUDA graph cannot record the step: it waits for the device, or uses the host ({first})", "version"
            ) from error

    def _keep(self) -> None:
        self._value = self.eager()

    def __call__(self) -> torch.Tensor:
        """Queue one step and return its value; a replay overwrites the value before."""
        if self._graph is None:
            return self.eager()
        self._graph.replay()
        return self._value

    def state(self) -> list[torch.Tensor]:
        """Return copies on the host of what steps may change: a training's weights, and buffers."""
        return [value.detach().to("cpu", copy=True) for value in self._changing()]

    def _changing(self) -> list[torch.Tensor]:
        return [*(self.model.parameters() if self.training else ()), *self.model.buffers()]

    @torch.no_grad()
    def take(self, other: OwnStep) -> None:
        """Take weights and buffers of another step of the same network, in this step's precision."""
        for kind in ("parameters", "buffers"):
            for value, theirs in zip(getattr(self.model, kind)(), getattr(other.model, kind)(), strict=True):
                value.copy_(theirs)

    @torch.no_grad()
    def restart(self, initial: list[torch.Tensor]) -> None:
        """Go back to a state, in place, with a new optimiser's state, which is zero."""
        for value, before in zip(self._changing(), initial, strict=True):
            value.copy_(before)
        for of_weight in self.optimizer.state.values() if self.optimizer else ():
            for value in of_weight.values():
                if isinstance(value, torch.Tensor):
                    value.zero_()


# Attributes of layers that drop values at random: of PyTorch, torchvision's StochasticDepth and timm's DropPath.
RATES = ("p", "drop_prob", "dropout", "attn_drop")


@contextlib.contextmanager
def nothing_dropped(model: nn.Module) -> Iterator[None]:
    """Switch dropout and stochastic depth off, in layers and in PyTorch's functions, so that steps can be compared."""
    changed = [
        (layer, name, value)
        for layer in model.modules()
        for name in RATES
        if isinstance(value := getattr(layer, name, None), float) and 0 < value < 1
    ]
    attention = functional.scaled_dot_product_attention

    def without(*arguments: Any, **named: Any) -> Any:  # the fifth argument is dropout_p
        named = {name: value for name, value in named.items() if name != "dropout_p"}
        return attention(*arguments[:4], *([0.0] if len(arguments) > 4 else []), *arguments[5:], **named)

    dropped = {name: getattr(functional, name) for name in ("dropout", "dropout1d", "dropout2d", "alpha_dropout")}
    try:
        for layer, name, _ in changed:
            setattr(layer, name, 0.0)
        for name in dropped:
            setattr(functional, name, lambda input, *_args, **_more: input)
        functional.scaled_dot_product_attention = without
        yield
    finally:
        functional.scaled_dot_product_attention = attention
        for name, function in dropped.items():
            setattr(functional, name, function)
        for layer, name, value in changed:
            setattr(layer, name, value)
