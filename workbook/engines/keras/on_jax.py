"""Keras on JAX: a pure step, compiled by jax.jit, which is given the state (all that changes) and returns the next one.

With several devices in one process, each takes its part of the images and normalises by it, as PyTorch's data parallel
training does. Gradients, losses and running statistics are averaged (shard_map, pmean), and the update is the same
everywhere. Dropout is drawn alike on all devices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import keras
import numpy as np
from jax import numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from labkit.data import cache_dir
from workbook.engines.common_rules import of_gpu
from workbook.engines.keras.training import HostBatch, KerasTraining, Pixels
from workbook.errors import Unsupported
from workbook.trials.rules import check
from workbook.trials.trial import Trial

# JAX's names of the events that its listeners get.
_EVENTS = {
    "/jax/compilation_cache/cache_hits": "from the cache",
    "/jax/compilation_cache/cache_misses": "compiled",
}
_seen: Counter[str] = Counter()


def keep_programs() -> None:
    """Keep programs in labkit's cache from now on, unless the user named a folder (JAX_COMPILATION_CACHE_DIR)."""
    if jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_dir() / "xla"))


def programs() -> dict[str, int] | None:
    """Return how many programs this process took from the disk, and how many it compiled; None if none are kept.

    JAX keeps programs that took a second or more to compile, and counts no others.
    """
    if jax.config.jax_compilation_cache_dir is None or not jax.config.jax_enable_compilation_cache:
        return None
    return {name: _seen[name] for name in _EVENTS.values()}


def _listen(event: str, **_details: object) -> None:
    if name := _EVENTS.get(event):
        _seen[name] += 1


jax.monitoring.register_event_listener(_listen)


# How products of FP32 numbers are computed. Half precision has no such products, and XLA may choose.
PRODUCTS = {"fp32": "highest", "tf32": "tensorfloat32", "fp16": None, "bf16": None}
AXIS = "devices"
EVERYWHERE, IN_PARTS = PartitionSpec(), PartitionSpec(AXIS)
State = tuple[list[Any], list[Any], list[Any], Any]


class TrainingOnJax(KerasTraining):
    """A training by the engine `xla`. Before tracing, the weights lie in `model`, then in a separate state (`store`).

    The state is the weights, the model's other variables, the optimiser's variables, and the sum of losses. Each step
    donates its buffers to the next step's state, which then takes no second set of weights.
    """

    def __init__(self, trial: Trial, pixels: Pixels) -> None:
        devices = _devices(trial.device)
        check(of_gpu("jax", lambda: _capability(devices)), trial)
        if len(devices) < trial.devices:
            raise Unsupported(f"the configuration asks for {trial.devices} devices, and JAX sees {len(devices)} here")
        if trial.device == "cuda":
            keep_programs()
        self._device = devices[0]
        self._mesh = Mesh(np.array(devices[: trial.devices]), (AXIS,)) if trial.devices > 1 else None
        whole = SingleDeviceSharding(self._device)
        self._everywhere = NamedSharding(self._mesh, EVERYWHERE) if self._mesh else whole
        self._in_parts = NamedSharding(self._mesh, IN_PARTS) if self._mesh else whole
        jax.config.update("jax_default_matmul_precision", PRODUCTS[trial.precision])
        super().__init__(trial, pixels)
        self._state: State | None = None

    def on_device(self) -> Any:
        """Return a context in which the trial's device is JAX's default."""
        return jax.default_device(self._device)

    def preparations(self, batch: HostBatch) -> Iterable[tuple[str, Callable[[], None]]]:
        """Yield tracing and compiling, neither of which runs a step."""
        yield "trace", lambda: self._trace(*batch)
        yield "compile", self._compile

    def _trace(self, images: Any, labels: Any) -> None:
        self._take_state()
        step: Callable[..., State] = self._train
        if self._mesh:
            parts = (EVERYWHERE, IN_PARTS, IN_PARTS)
            step = jax.shard_map(step, mesh=self._mesh, in_specs=parts, out_specs=EVERYWHERE, check_vma=False)
        self._lowered = jax.jit(step, donate_argnums=0).lower(self._state, *self._put(images, labels))

    @property
    def _variables(self) -> tuple[list[Any], list[Any], list[Any]]:
        return self.model.trainable_variables, self.model.non_trainable_variables, self.optimizer.variables

    def _take_state(self) -> None:
        trained, rest, kept = (self._given(variables) for variables in self._variables)
        self._state = (trained, rest, kept, self._zero())

    def restart(self, weights: Mapping[str, Any]) -> None:
        """Restart Keras's variables from these weights, then copy them into a new state."""
        super().restart(weights)
        self._take_state()

    def _given(self, variables: Iterable[Any]) -> list[Any]:
        """Return the variables' values, to be donated: on a CPU copies, since NumPy's memory must not be written to."""
        copied = self.trial.device == "cpu"
        values = [jnp.array(v.value, copy=True) if copied else v.value for v in variables]
        return [jax.device_put(value, self._everywhere) for value in values]

    def _zero(self) -> Any:
        return jax.device_put(np.float32(0), self._everywhere)

    def _compile(self) -> None:
        before = programs()
        self._step = self._lowered.compile()
        del self._lowered
        if (now := programs()) and before:
            self.facts["compiled_regions"] = {name: now[name] - before[name] for name in now}
        plan = self._step.memory_analysis()
        if plan is not None:
            needs = plan.argument_size_in_bytes + plan.output_size_in_bytes + plan.temp_size_in_bytes
            self.facts["planned_memory_bytes"] = needs - plan.alias_size_in_bytes

    def _put(self, *arrays: Any) -> tuple[Any, ...]:
        """Return the arrays on the devices. A batch is never written to again, so on a CPU it may stay in place."""
        return tuple(jax.device_put(array, self._in_parts) for array in arrays)

    def _train(self, state: State, images: Any, labels: Any) -> State:
        assert self.traces is not None
        self.traces += 1  # Python runs this when it traces, and never again
        trained, rest, kept, total = state

        def loss_and_rest(trained: list[Any]) -> tuple[Any, tuple[Any, list[Any]]]:
            loss, new_rest = self._loss_and_rest(trained, rest, images, labels)
            with keras.StatelessScope(state_mapping=list(zip(self.optimizer.variables, kept, strict=True))):
                return self._scaled(loss), (loss, new_rest)

        (_, (loss, new_rest)), gradients = jax.value_and_grad(loss_and_rest, has_aux=True)(trained)
        if self._mesh:
            loss, gradients = jax.lax.pmean((loss, gradients), AXIS)
            new_rest = [jax.lax.pmean(v, AXIS) if jnp.issubdtype(v.dtype, jnp.floating) else v for v in new_rest]
        new_trained, new_kept = self.optimizer.stateless_apply(kept, gradients, trained)
        return list(new_trained), list(new_rest), list(new_kept), total + loss

    def _update(self, images: Any, labels: Any) -> None:
        self._state = self._step(self._state, *self._put(images, labels))

    def _take_total(self) -> float:
        assert self._state is not None
        *state, total = self._state
        self._state = (*state, self._zero())
        return float(total)

    def wait(self) -> None:
        """Wait for the last step's results."""
        jax.block_until_ready(self._state)

    def store(self) -> None:
        """Copy weights, statistics and momenta of the last step into Keras's variables."""
        assert self._state is not None
        for variables, values in zip(self._variables, self._state[:3], strict=True):
            for variable, value in zip(variables, values, strict=True):
                variable.assign(jnp.array(value, copy=True))

    def _loss_and_rest(self, trained: Any, rest: Any, images: Any, labels: Any) -> tuple[Any, list[Any]]:
        logits, new_rest = self.model.stateless_call(trained, rest, self._inputs(images), training=True)
        return self._cross_entropy(labels, logits), new_rest

    def _forward_loss(self, images: Any, labels: Any) -> float:
        values = [[variable.value for variable in variables] for variables in self._variables[:2]]
        forward = jax.jit(self._loss_and_rest)
        parts = zip(*(np.split(array, self.trial.devices) for array in (images, labels)), strict=True)
        return float(np.mean([float(forward(*values, *jax.device_put(part, self._device))[0]) for part in parts]))


def _devices(kind: str) -> list[Any]:
    """Return the devices of a kind that JAX sees."""
    try:
        return list(jax.devices(kind))
    except RuntimeError:
        return []


def _capability(devices: list[Any]) -> tuple[int, int] | None:
    """Return the first device's compute capability; None for a CPU, or without any device."""
    if not devices or devices[0].platform == "cpu":
        return None
    major, _, minor = str(devices[0].compute_capability).partition(".")
    return int(major), int(minor or 0)
