"""One model in training: its weights, loss and update, in a trial's precision and with its optimiser.

`Training.update(images, labels)` is the step of every engine. Python calls it in each step (eager), also with the loss
compiled by Inductor (compile), or once, while a CUDA graph records it (graph).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

from workbook import ranks
from workbook.engines.exchange import side_stream
from workbook.engines.exchange.averaging import Exchange, average_gradients, in_buckets, overlapped
from workbook.engines.exchange.buckets import Buckets
from workbook.engines.exchange.data_parallel import split_over_devices
from workbook.engines.precision import AUTOCAST, autocast
from workbook.engines.regions import loss_function
from workbook.errors import GateError
from workbook.trace.profiler import section
from workbook.trials.recipes import LOSS_SCALE, MOMENTUM, WEIGHT_DECAY
from workbook.trials.trial import Trial

SIDE_STREAM_PX = 64  # larger images fill the device, and keeping all gradients would cost memory


class Training:
    """A model, its optimiser and its loss. `model` has FP32 weights and is changed in place.

    `lr` is a float32 scalar on the device. Captured steps read it there. For other engines, call `set_learning_rate`.
    `network` is called with the images: the model, or a module that shares it with other devices. `restarts` says
    whether `restart()` will be called: initial values are then kept on the host, since the device's memory is reported.
    `exchange` says how several devices average gradients; gates compare with "by hand".
    """

    def __init__(
        self,
        trial: Trial,
        model: nn.Module,
        *,
        captured: bool,
        restarts: bool,
        exchange: Exchange = "overlapped",
    ) -> None:
        self.trial, self.model, self._team, self._captured = trial, model, ranks.team(), captured
        self._by_hand = exchange == "by hand"
        self.lr = torch.full((), trial.learning_rate, device=torch.device(trial.device))
        self._initial = [value.detach().to("cpu", copy=True) for value in values_of(model)] if restarts else None
        self._scaler = torch.amp.GradScaler(trial.device, init_scale=LOSS_SCALE) if trial.precision == "fp16" else None
        self._has_masters = trial.optimizer == "sgd_master"
        self._side_stream = self._has_masters and trial.image_px <= SIDE_STREAM_PX
        self.optimizer = self._make_optimizer()
        self.buckets: Buckets | None = None
        self.facts: dict[str, Any] = {}
        self.network = model
        if trial.parallel == "one_process":
            self.network, self.facts = split_over_devices(model, trial, by_hand=self._by_hand)
        if self._team is not None and not self._by_hand:
            if not in_buckets(trial):
                self.network = overlapped(model, self._team, trial.gradient_precision)
            elif self._has_masters:  # gradients keep their types: BF16, and FP32 for batch norm
                self.buckets = Buckets(model, self._team, update=self.optimizer.step_part)
                self.optimizer.arrange(self.buckets.parts, self.buckets.own)
            else:
                self.buckets = Buckets(model, self._team, wire=AUTOCAST.get(trial.gradient_precision))
        self._loss = loss_function(self.network, None)

    def _make_optimizer(self) -> Any:
        if self._has_masters:
            from workbook.engines.exchange.master_sgd import MasterSGD, to_half

            exact = [weight.detach().clone() for weight in self.model.parameters()]
            to_half(self.model)
            if self._side_stream:
                side_stream.use_side_stream(self.model)
            return MasterSGD(self.model, exact, lr=self.lr, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
        rate = self.lr if self._captured else self.trial.learning_rate  # a captured number cannot change
        return plain_sgd(self.model.parameters(), rate, fused=True if self.trial.optimizer == "sgd_fused" else None)

    @property
    def input_dtype(self) -> torch.dtype:
        """Type of the images that the model takes: the trial's half precision in a captured step, else FP32."""
        return AUTOCAST.get(self.trial.precision, torch.float32) if self._captured else torch.float32

    def compile(self) -> None:
        """Let Inductor compile the forward and backward pass; it does so in the first step."""
        # Dropout draws PyTorch's own random numbers, so that the gate can compare with the baseline step.
        options: dict[str, Any] = {"fallback_random": True}
        if self.trial.device == "cuda" and self.trial.memory_format == "contiguous":
            # Inductor would convert convolutions to channels last, against the trial's format. PyTorch 2.11 then also
            # expects another layout of some weight gradients than cuDNN returns.
            options["layout_optimization"] = False
        if self._side_stream:
            options |= side_stream.INDUCTOR_OPTIONS
        if self.buckets is not None:
            # To save memory, Inductor would compute large gradients last: too late to send them meanwhile.
            options["reorder_for_peak_memory"] = False
        compile_ = partial(torch.compile, dynamic=False, fullgraph=True, options=options)
        # In a captured step, regions are free. With buckets, a region's gradients are sent while the next is computed.
        in_regions = self._captured or self.buckets is not None
        self._loss = loss_function(self.model, compile_, in_regions=in_regions)

    def set_learning_rate(self, value: float) -> None:
        """Set the learning rate of the next steps. A captured step reads it from the device."""
        self.lr.fill_(value)
        if not self._captured:
            for group in self.optimizer.param_groups:
                group["lr"] = value

    def update(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Run one step and return its loss, detached, on the device."""
        with section("optimiser"):
            self.optimizer.zero_grad(set_to_none=True)
            if self.buckets is not None:
                self.buckets.begin()
            if self._side_stream:
                side_stream.begin(self.buckets)
        with autocast(self.trial):
            loss = self._loss(images, labels)
        with section("backward"):
            (loss if self._scaler is None else self._scaler.scale(loss)).backward()
            if self._side_stream:
                side_stream.join()
            if self.buckets is not None and not self._has_masters:
                self.buckets.wait()
            elif self._by_hand and self._team is not None:
                average_gradients(self.model, self._team)
        with section("optimiser"):
            self._update()
        return loss.detach()

    def _update(self) -> None:
        if self._scaler is not None:
            self._scaler.step(self.optimizer)
            self._scaler.update()
        elif self.buckets is not None and self._has_masters:
            for part in self.buckets.arriving():  # while other gradients are still being sent
                self.optimizer.step_part(part)
        else:
            self.optimizer.step()

    def bind(self) -> None:
        """Take the gradients' addresses, once the step is captured; gradients do not move from then on."""
        if self._has_masters:
            self.optimizer.bind()
        if self._side_stream:
            gradients = [weight.grad for weight in self.model.parameters() if weight.grad is not None]
            side_stream.check_not_copied(gradients)

    def masters(self) -> list[torch.Tensor]:
        """Return the FP32 weights that the optimiser updates, in the model's order; some perhaps in its share only."""
        if self._has_masters:
            return list(self.optimizer.masters)
        return [weight.detach() for weight in self.model.parameters()]

    def weights(self) -> list[torch.Tensor]:
        """Return the optimiser's FP32 weights, whole, in the model's order. All ranks must call this together."""
        return self.masters() if self.buckets is None else self.buckets.whole(self.masters())

    def check_rounded(self, weights: Sequence[torch.Tensor]) -> None:
        """Raise GateError if the network computes with other weights than these, rounded to its own types."""
        named = list(self.model.named_parameters())
        wrong = [
            name
            for (name, own), weight in zip(named, weights, strict=True)
            if own.dtype != weight.dtype and not torch.equal(own, weight.to(own.dtype))
        ]
        if wrong:
            raise GateError(f"{len(wrong)} network weights are not the optimiser's rounded weights, {wrong[0]} first")

    def state(self) -> list[torch.Tensor]:
        """Return the optimiser's tensors beside the weights: momenta, and masters of half-precision weights."""
        if self._has_masters:
            return [*self.optimizer.masters, *self.optimizer.momenta]
        kept = (value for of_weight in self.optimizer.state.values() for value in of_weight.values())
        return [value for value in kept if isinstance(value, torch.Tensor)]

    def statistics(self) -> list[torch.Tensor]:
        """Return running means and variances, in the model's order."""
        return [buffer for buffer in self.model.buffers() if buffer.is_floating_point()]

    @torch.no_grad()
    def restart(self) -> None:
        """Go back to the initial weights, statistics and momenta, in place."""
        assert self._initial is not None, "made without restarts"
        for value, initial in zip(values_of(self.model), self._initial, strict=True):
            value.copy_(initial)
        if self._has_masters:
            self.optimizer.restart(self._initial)
        else:
            for state in self.optimizer.state.values():
                if state.get("momentum_buffer") is not None:
                    state["momentum_buffer"].zero_()  # the first step then sets it to its gradient, as if it were new
        if self._scaler is not None:
            self._scaler.load_state_dict({**self._scaler.state_dict(), "scale": LOSS_SCALE, "_growth_tracker": 0})
        if not self._captured:
            self.model.zero_grad(set_to_none=True)

    def newest(self) -> AbstractContextManager[None]:
        """Return a context in which the model has the newest weights. It always has them, except with stale updates."""
        return nullcontext()

    def forget_beginning(self) -> None:
        """Free the memory of the initial values. `restart()` cannot be called after that."""
        self._initial = None


def plain_sgd(
    weights: Iterable[nn.Parameter], rate: float | torch.Tensor, *, fused: bool | None = None
) -> torch.optim.SGD:
    """Return PyTorch's SGD with the momentum and weight decay of all trials."""
    return torch.optim.SGD(weights, lr=rate, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, fused=fused)


def values_of(model: nn.Module) -> list[torch.Tensor]:
    """Return weights and buffers, weights first, in the model's order."""
    return [*model.parameters(), *model.buffers()]


WARM_UP_SHARE = 0.2


def learning_rates(trial: Trial, images: int) -> list[float]:
    """Return the learning rate of each step of the trial's epochs, of `images` images each.

    `warm_up` rises linearly over the first fifth, from one device's rate (the trial's rate over its devices) to the
    trial's rate, and stays there (Goyal et al. 2017, arXiv:1706.02677, who rise for 5 epochs of 90). `one_cycle` rises
    linearly over the first quarter to the trial's learning rate and falls linearly to almost nothing (Smith & Topin
    2018, arXiv:1708.07120; PyTorch's OneCycleLR).
    """
    steps = -(-trial.epochs * images // trial.batch_of_step)
    highest = trial.learning_rate
    if trial.schedule == "constant":
        return [highest] * steps
    if trial.schedule == "warm_up":
        alone, rise = highest / trial.devices, max(1, round(WARM_UP_SHARE * steps))
        return [alone + (highest - alone) * min(1.0, step / rise) for step in range(steps)]
    # PyTorch's own scheduler divides by zero at three steps, so its formula is repeated here.
    first, last, peak = highest / 25, highest / 25e4, max(0.25 * (steps + 1) - 1, 0.0)

    def at(step: int) -> float:
        if step < peak:
            return first + (highest - first) * step / peak
        return highest + (last - highest) * (step - peak) / (steps - peak)

    return [at(step) for step in range(steps)]
