"""A workload of a network that the user brings: preparations, check and facts, for training and for prediction."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import torch
from torch.utils import _pytree as pytree

from labkit.models import Network
from labkit.models.networks import tensors_of
from workbook.engines import own_gate, precision
from workbook.engines.own_flop import counted_flop
from workbook.engines.own_network import OwnStep, calling, in_a_line, nothing_dropped
from workbook.engines.quantised import BASE, FORMATS, RULES
from workbook.engines.regions import counted_regions
from workbook.engines.state import reset_compiler
from workbook.engines.support import GPU
from workbook.errors import GateError, Unsupported
from workbook.trace import Held, plain_tensors
from workbook.trials.recipes import weight_passes
from workbook.trials.rules import Rule
from workbook.trials.trial import Trial
from workbook.workloads import Workload
from workbook.workloads._facts import unseen

ROUNDING = 8.0  # times the distance of two runs of one seed, which only rounding explains
# fmt: off
OF_OWN = (
    Rule("never", lambda t: t.device == "cpu" and "graph" in t.engine, "a CPU has no CUDA graphs"),
    *RULES,
    Rule("version", lambda t: t.precision == "fp16" and t.workload == "own_training",
        "FP16 training needs a loss scale, which your file does not have: use BF16"),
    Rule("never", lambda t: t.engine not in ("eager", "compile", "graph", "compile+graph"),
        "{engine} does not run a network of yours"),
    *GPU,
)
# fmt: on


class OwnWorkload(Workload):
    """The steps of a network that the user brings, driven by the trial's engine."""

    def __init__(self, trial: Trial, network: Network, *, training: bool) -> None:
        if (network.loss if training else network.predict) is None:
            lacks = "loss(network, batch)" if training else "predict(network, batch)"
            raise Unsupported(f"{network.name} has no {lacks}", "never")
        self.trial, self._network, self._training = trial, network, training
        self.images_per_step = trial.batch
        precision.set_modes(trial)
        is_quantised = trial.precision in FORMATS
        self._is_reference = trial.engine == "eager" and trial.optimizer == "sgd" and not is_quantised
        self._compares = True
        self._base = BASE if is_quantised else trial.precision  # of the eager steps to compare with
        plain = replace(trial, engine="eager", optimizer="sgd", precision=self._base)
        self._plain = OwnStep(plain, network, training=training)
        self._initial = self._plain.state()
        self._last = torch.empty(0)
        self._sum, self._steps = 0.0, 0
        parameters = list(self._plain.model.parameters())
        self.facts: dict[str, Any] = {
            "parameters": sum(weight.numel() for weight in parameters),
            "parameter_bytes": sum(weight.nbytes for weight in parameters),
            # The least that a step moves: an optimiser with more state than SGD's momentum moves more.
            "weight_traffic_bytes_per_step": (weight_passes("sgd") if training else 1)
            * sum(weight.nbytes for weight in parameters),
            "image_bytes": sum(
                part.nbytes for value in tensors_of(self._plain.samples) for part in plain_tensors(value)
            )
            / trial.batch,
            "threads": torch.get_num_threads(),
            "tokens_per_sample": network.tokens_per_sample,
            "data_description": "one batch of the network's own samples, which stays on the device",
        }
        self._step = self._plain

    def leave_out_gate(self) -> None:
        """Compare nothing."""
        self._compares = False

    def preparations(self) -> Iterable[tuple[str, Callable[[], None]]]:
        """Yield the preparations of the trial: the eager steps, compilation, capture."""
        yield "reference", self._run_reference
        if not self._is_reference:
            yield "build", self._build
        if "compile" in self.trial.engine:
            yield "compile", self._compile
        if "graph" in self.trial.engine:
            yield "capture", self._step_captured

    def _run_reference(self) -> None:
        """Run the eager steps: count their FLOP, and keep what the gate compares."""
        plain = self._plain
        with nothing_dropped(plain.model), calling(self._network, "a step"):
            self._check_shapes()
            plain.check()
            if self._compares and not self._is_reference and draws(plain):
                why = f"{self._network.name} draws random numbers beside dropout, so no mode can be compared"
                raise Unsupported(why, "version")
            used = (*tensors_of(plain.samples), *plain.model.parameters(), *plain.model.buffers())
            is_dense = all(value.layout is torch.strided and not value.is_nested for value in used)
            with counted_flop() if is_dense else nullcontext() as counter:  # it counts 0 for sparse products
                first = plain.value_only() if self._compares else None
                counted = plain.eager()
            if counter is not None:
                self.flop_per_step = counter.get_total_flops() - self._flop_of(first)
            del counted
            plain.restart(self._initial)
            if self._compares:
                self._expected = own_gate.see(plain)
                self._check_precision(first)
                if self._is_reference:  # later runs need not check these steps again
                    self.facts["gate"] = {"steps": len(self._expected.losses) or 1, **self.facts.get("gate", {})}
        plain.restart(self._initial)
        if not self._is_reference:
            # A compiled step would be compiled once more to tell, without gradients.
            self._is_random = self._compares and draws(plain)
            plain.restart(self._initial)
            self._rounding()
            self._shared = {"samples": plain.samples, "model": None if self._training else plain.model}
            del self._plain, self._step

    def _flop_of(self, first: torch.Tensor | None) -> int:
        if first is None:
            return 0
        with counted_flop() as counter:
            self._plain.value_only()
        return int(counter.get_total_flops())

    def _check_shapes(self) -> None:
        """Refuse samples whose shapes differ between calls, where a step is compiled or captured for one shape."""
        with calling(self._network, "batch(size, device)"):
            again = tensors_of(self._network.batch(self.trial.batch, torch.device(self.trial.device)))
        if self.trial.engine == "eager":
            return
        shapes, others = (
            ["nested" if value.is_nested else tuple(value.shape) for value in of]
            for of in (tensors_of(self._plain.samples), again)
        )
        if shapes != others or "nested" in shapes:
            raise Unsupported(
                f"batch() of {self._network.name} gave shapes {shapes}, then {others}: a compiled or captured step has "
                f"one shape",
                "never",
            )

    def _check_precision(self, first: torch.Tensor | None) -> None:
        assert first is not None
        if self._base == "fp32":
            return
        strict = replace(self.trial, precision="fp32", engine="eager", optimizer="sgd", memory_format="contiguous")
        precision.set_modes(strict)
        samples = pytree.tree_map(lambda value: value.float() if is_half(value) else value, self._plain.samples)
        torch.backends.cudnn.benchmark = False  # one forward pass does not pay for trying algorithms out
        exact = OwnStep(strict, self._network, training=self._training, samples=samples)
        self._plain.restart(self._initial)
        exact.take(self._plain)
        with nothing_dropped(exact.model):
            value = exact.value_only()
        precision.set_modes(self.trial)
        about = {"training": self._training}
        self.facts["gate"] = own_gate.compare_with_strict(value, first, self._base, **about)

    def _rounding(self) -> None:
        """Keep how far rounding alone moves the eager gradients."""
        self._own_distance = 0.0
        if self._compares and self._training:
            with nothing_dropped(self._plain.model):
                moved = own_gate.rounded(self._plain)
            self._own_distance = own_gate.distance(self._expected.gradients, moved)

    def _build(self) -> None:
        self._step = OwnStep(self.trial, self._network, training=self._training, **self._shared)
        self._step.restart(self._initial)
        if self._step.quantise():
            self.facts["quantised_by"] = f"torchao {version('torchao')}"
        if not self._training:
            stored = [plain_tensors(weight) for weight in self._step.model.parameters()]
            self.facts["weight_traffic_bytes_per_step"] = sum(part.nbytes for parts in stored for part in parts)

    def _compile(self) -> None:
        self._step.compile()
        with self._gate_mode(), counted_regions(self.facts), calling(self._network, "the compiled step"):
            try:
                self._step.eager()
            except torch._dynamo.exc.TorchDynamoException as error:
                why = in_a_line(error)
                raise Unsupported(f"torch.compile cannot make one graph of the step: {why}", "version") from error

    def _gate_mode(self) -> Any:
        return nothing_dropped(self._step.model) if self._compares else nullcontext()

    def _step_captured(self) -> None:
        with self._gate_mode(), calling(self._network, "the captured step"):
            self._step.capture()
        self.facts |= {
            "memory_bytes": self._step.memory_bytes,
            "memory_method": "peak of PyTorch's CUDA allocator while the step was captured",
        }

    def step(self) -> torch.Tensor:
        """Queue one step."""
        self._last = self._step()
        return self._last

    def check(self) -> None:
        """Compare the mode's steps with the eager loop's. Raise GateError if they differ."""
        if self._compares and not self._is_reference:
            self._step.restart(self._initial)
            with nothing_dropped(self._step.model):
                seen = own_gate.see(self._step)
            found = own_gate.compare(self._expected, seen, self.trial.precision, self._own_distance)
            self.facts["gate"] = {**self.facts.get("gate", {}), **found}
            self._as_written()
        self.step()

    def _as_written(self) -> None:
        """Make the step anew, as its file has it, if the gate had switched something off that is drawn at random."""
        if not self._is_random:
            return
        self._step.restart(self._initial)
        if "compile" in self.trial.engine:
            reset_compiler()
            self._step.compile()
            self._step.eager()
        if "graph" in self.trial.engine:
            self._step.capture()

    def read_loss(self) -> float | None:
        """Return the last loss, None for a prediction and for a loss that is not finite."""
        if not self._training:
            return None
        value = float(self._last)
        if not math.isfinite(value):
            raise GateError(f"the loss of {self._network.name} became {value}: training on one batch diverged")
        return value

    def held(self) -> Held:
        """Return the tensors in memory between two steps."""
        model = self._step.model
        state = self._step.optimizer.state.values() if self._step.optimizer else ()
        return Held(
            weights=list(model.parameters()),
            gradients=[weight.grad for weight in model.parameters() if weight.grad is not None],
            optimiser=[value for of in state for value in of.values() if isinstance(value, torch.Tensor)],
            inputs=tensors_of(self._step.samples),
            beside=list(model.buffers()),
            **unseen(self.trial),
        )


def draws(step: OwnStep) -> bool:
    """Return whether two seeds give a step two values. Kernels may add in any order, so one seed has a distance too."""
    values = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        values.append(step.value_only().double())
    same, other = (float((value - values[0]).abs().nan_to_num(0).amax()) for value in values[1:])
    return other > ROUNDING * same


def is_half(value: Any) -> bool:
    """Return whether a sample is a tensor in half precision."""
    return isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)
