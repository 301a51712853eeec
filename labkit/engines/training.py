"""One model in training: its weights, loss and update, as a trial's precision and optimiser have them.

`Training.update(images, labels)` is the step of every engine; what differs is who calls it: Python in each step
(eager), with the loss compiled by Inductor (compile), or once, while a CUDA graph records it (graph).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

from labkit import ranks
from labkit.engines import side_stream
from labkit.engines.buckets import Buckets
from labkit.engines.exchange import Exchange, average_gradients, in_buckets, overlapped
from labkit.engines.one_process import split_over_devices
from labkit.engines.precision import AUTOCAST, autocast
from labkit.engines.regions import loss_function
from labkit.engines.sections import section
from labkit.errors import GateError
from labkit.recipes import LOSS_SCALE, MOMENTUM, WEIGHT_DECAY
from labkit.trial import Trial

SIDE_STREAM_PX = 64  # larger images fill the device, and keeping all gradients would cost memory


class Training:
    """A model, its optimiser and its loss. `model` has FP32 weights and is changed in place.

    `lr` is a float32 scalar on the device; engines that capture read it there, others are told by `set_learning_rate`.
    `network` is what is called with the images: the model, or what shares it with other devices. `restarts` says
    whether `restart()` will be called: the beginning is then kept on the host, since the device's memory is reported.
    `exchange` says how the gradients of several devices become one; gates compare with "by hand".
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
            if in_buckets(trial):
                self.buckets = self._make_buckets(self._team)
            else:
                self.network = overlapped(model, self._team, trial.gradient_precision)
        self._loss = loss_function(self.network, None)

    def _make_buckets(self, team: ranks.Team) -> Buckets:
        """The exchange of a tuned step: `sgd_master` takes gradients as they are, in BF16 but for batch norm's."""
        if not self._has_masters:
            return Buckets(self.model, team, wire=AUTOCAST.get(self.trial.gradient_precision))
        buckets = Buckets(self.model, team, update=self.optimizer.step_part)
        self.optimizer.arrange(buckets.parts, buckets.own)
        return buckets

    def _make_optimizer(self) -> Any:
        if self._has_masters:
            from labkit.engines.master_sgd import MasterSGD, to_half

            exact = [weight.detach().clone() for weight in self.model.parameters()]
            to_half(self.model)
            if self._side_stream:
                side_stream.use_side_stream(self.model)
            return MasterSGD(self.model, exact, lr=self.lr, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
        rate = self.lr if self._captured else self.trial.learning_rate  # a captured number could not change
        return plain_sgd(self.model.parameters(), rate, fused=True if self.trial.optimizer == "sgd_fused" else None)

    @property
    def input_dtype(self) -> torch.dtype:
        """What the model takes: half precision where nothing casts the images anyway."""
        return AUTOCAST.get(self.trial.precision, torch.float32) if self._captured else torch.float32

    def compile(self) -> None:
        """Let Inductor make the forward and backward pass; it does so in the first step."""
        # Dropout draws PyTorch's own random numbers, so that the gate can compare with the plain step.
        options: dict[str, Any] = {"fallback_random": True}
        if self.trial.device == "cuda" and self.trial.memory_format == "contiguous":
            # Inductor would turn convolutions to channels last, which the trial does not say; and PyTorch 2.11 then
            # expects another layout of some weight gradients than cuDNN returns.
            options["layout_optimization"] = False
        if self._side_stream:
            options |= side_stream.INDUCTOR_OPTIONS
        if self.buckets is not None:
            # Inductor would make large gradients at the end, to keep memory free: too late to send them meanwhile.
            options["reorder_for_peak_memory"] = False
        compile_ = partial(torch.compile, dynamic=False, fullgraph=True, options=options)
        # Captured, regions cost nothing; sent in buckets, the gradients of one are on their way while the next is made.
        in_regions = self._captured or self.buckets is not None
        self._loss = loss_function(self.model, compile_, in_regions=in_regions)

    def set_learning_rate(self, value: float) -> None:
        """For the next steps. A captured step reads it from the device."""
        self.lr.fill_(value)
        if not self._captured:
            for group in self.optimizer.param_groups:
                group["lr"] = value

    def update(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """One step: its loss, detached, on the device."""
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
            for part in self.buckets.arriving():  # while other gradients are still on their way
                self.optimizer.step_part(part)
        else:
            self.optimizer.step()

    def bind(self) -> None:
        """Once the step is captured: the gradients stay where they are now."""
        if self._has_masters:
            self.optimizer.bind()
        if self._side_stream:
            gradients = [weight.grad for weight in self.model.parameters() if weight.grad is not None]
            side_stream.check_not_copied(gradients)

    def masters(self) -> list[torch.Tensor]:
        """What the optimiser updates, FP32, in the order of the model's parameters: of some maybe its share only."""
        if self._has_masters:
            return list(self.optimizer.masters)
        return [weight.detach() for weight in self.model.parameters()]

    def weights(self) -> list[torch.Tensor]:
        """The weights as the optimiser sees them, FP32, in the model's order, whole. All ranks have to ask together."""
        return self.masters() if self.buckets is None else self.buckets.whole(self.masters())

    def check_rounded(self, weights: Sequence[torch.Tensor]) -> None:
        """GateError where the network computes with others than these weights, rounded to what it computes in."""
        named = list(self.model.named_parameters())
        wrong = [
            name
            for (name, own), weight in zip(named, weights, strict=True)
            if own.dtype != weight.dtype and not torch.equal(own, weight.to(own.dtype))
        ]
        if wrong:
            raise GateError(f"{len(wrong)} weights of the network are not the optimiser's, rounded, {wrong[0]} first")

    def state(self) -> list[torch.Tensor]:
        """What the optimiser keeps beside the weights: momenta, and masters of weights in half precision."""
        if self._has_masters:
            return [*self.optimizer.masters, *self.optimizer.momenta]
        kept = (value for of_weight in self.optimizer.state.values() for value in of_weight.values())
        return [value for value in kept if isinstance(value, torch.Tensor)]

    def statistics(self) -> list[torch.Tensor]:
        """Running means and variances, in the model's order."""
        return [buffer for buffer in self.model.buffers() if buffer.is_floating_point()]

    @torch.no_grad()
    def restart(self) -> None:
        """Back to the initial weights, statistics and momenta, in place."""
        assert self._initial is not None, "made without restarts"
        for value, initial in zip(values_of(self.model), self._initial, strict=True):
            value.copy_(initial)
        if self._has_masters:
            self.optimizer.restart(self._initial)
        else:
            for state in self.optimizer.state.values():
                if state.get("momentum_buffer") is not None:
                    state["momentum_buffer"].zero_()  # the first step then sets it to its gradient, as a fresh one does
        if self._scaler is not None:
            self._scaler.load_state_dict({**self._scaler.state_dict(), "scale": LOSS_SCALE, "_growth_tracker": 0})
        if not self._captured:
            self.model.zero_grad(set_to_none=True)

    def newest(self) -> AbstractContextManager[None]:
        """With the weights in the model that the training has come to: they always are, but where they may be stale."""
        return nullcontext()

    def forget_beginning(self) -> None:
        """There will be no restart any more: give the memory back."""
        self._initial = None


def plain_sgd(
    weights: Iterable[nn.Parameter], rate: float | torch.Tensor, *, fused: bool | None = None
) -> torch.optim.SGD:
    """PyTorch's SGD as all trials have it."""
    return torch.optim.SGD(weights, lr=rate, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, fused=fused)


def values_of(model: nn.Module) -> list[torch.Tensor]:
    """Weights and buffers, weights first, in the model's order."""
    return [*model.parameters(), *model.buffers()]
