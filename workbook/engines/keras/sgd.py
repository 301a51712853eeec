"""SGD in Keras, as PyTorch defines it. Imports Keras.

With gradient g, weight w, rate r, decay d and momentum m, PyTorch's step is

    g <- g + d w        (the decay is part of the gradient, and so of the momentum)
    b <- m b + g        (the first step sets b to g, as a b of 0 also does)
    w <- w - r b        (the present rate, on all of b)

Keras's own SGD keeps v <- m v - r g and takes w <- w + v. This is the same while the rate is constant, but a changed
rate reaches only the newest gradient. Its `weight_decay` shrinks weights by r d beside the momentum: another method,
decoupled decay. With decay 5e-4 and momentum 0.9, the coupled decay pulls ten times as far in the long run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from workbook.trials.recipes import MOMENTUM, WEIGHT_DECAY


class TorchSGD(keras.optimizers.Optimizer):
    """PyTorch's SGD with momentum and coupled weight decay on every weight, including biases and batch norm's."""

    def __init__(self, learning_rate: float, *, momentum: float = MOMENTUM, decay: float = WEIGHT_DECAY) -> None:
        super().__init__(
            learning_rate=learning_rate, name="torch_sgd"
        )  # Keras's weight_decay would be the decoupled one
        self.momentum, self.decay = momentum, decay

    def build(self, variables: Sequence[Any]) -> None:
        """Make a momentum of zeros for each variable."""
        if self.built:
            return
        super().build(variables)
        self.momenta = self.add_optimizer_variables(variables, "momentum")

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update one variable."""
        rate = ops.cast(learning_rate, variable.dtype)
        gradient = ops.cast(gradient, variable.dtype) + self.decay * variable
        momentum = self.momenta[self._get_variable_index(variable)]
        new = self.momentum * momentum + gradient
        self.assign(momentum, new)
        self.assign_sub(variable, rate * new)

    def _backend_update_step(self, grads: Any, trainable_variables: Any, learning_rate: Any) -> None:
        """Update all variables: on PyTorch by a few kernels of many tensors each, as Keras's own optimisers do.

        One variable at a time would take a thousand launches. The steps overwrite the gradients.
        """
        if keras.backend.backend() != "torch":
            super()._backend_update_step(grads, trainable_variables, learning_rate)
            return
        import torch

        weights = [variable.value for variable in trainable_variables]
        momenta = [self.momenta[self._get_variable_index(variable)].value for variable in trainable_variables]
        with torch.no_grad():
            torch._foreach_add_(grads, weights, alpha=self.decay)
            torch._foreach_mul_(momenta, self.momentum)
            torch._foreach_add_(momenta, grads)
            torch._foreach_copy_(grads, momenta)
            torch._foreach_mul_(grads, ops.convert_to_tensor(learning_rate))  # a number would wait for the device
            torch._foreach_sub_(weights, grads)
