"""Training: forward, cross-entropy, backward, SGD with momentum, images (or documents) from the loader of the trial.

The plain loop is what the five papers ran: eager FP32 (TF32 off), one fresh batch a step. Engine, precision, optimiser
and memory format are fields of the trial; a combination that cannot be trained here is `unsupported`, never run as
another. Another engine or optimiser is compared, before anything is timed, with the eager loop in the same precision.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from labkit import ranks
from labkit.data import DataSet
from labkit.data.augment import TORCH_FORMATS
from labkit.data.device_loader import HostFed, StaticBatch
from labkit.data.loader import StreamingLoader
from labkit.data.order import WHOLE, Shard
from labkit.engines import gate, precision
from labkit.engines.captured import CapturedStep
from labkit.engines.exchange import check_same_everywhere
from labkit.engines.hosted import HostedStep
from labkit.engines.regions import compiler_cache
from labkit.engines.schedule import learning_rates
from labkit.engines.stale import StaleTraining
from labkit.engines.support import why_unsupported
from labkit.engines.training import Training
from labkit.errors import GateError, Unsupported
from labkit.measure import Held
from labkit.models import build as build_model
from labkit.trial import Trial
from labkit.workloads import Prepared, Scores
from labkit.workloads._facts import cost_of, facts_of_exchange, facts_of_training, held
from labkit.workloads._inputs import inputs_of
from labkit.workloads._two_jobs import TwoJobs

EVALUATION_BATCH = 500


def build(trial: Trial, data: DataSet | None) -> TrainWorkload | TwoJobs:
    """The training workload of a trial; Unsupported for what this device or version cannot train."""
    if data is None:
        raise GateError("training needs images or documents: the trial's `data` names none")
    if reason := why_unsupported(trial):
        raise Unsupported(reason)
    team = ranks.team()
    together = team.size if team else 1
    if trial.processes != together:
        raise Unsupported(f"the trial takes {trial.processes} processes, and this is one of {together}")
    if trial.arrangement != "alone":
        return TwoJobs(trial, lambda own: TrainWorkload(own, data))
    return TrainWorkload(trial, data)


class TrainWorkload(Prepared):
    """One model, its optimiser and its loader on one device, driven by the trial's engine.

    `adapt` may change the model before anything is done with it, in place.
    """

    def __init__(self, trial: Trial, data: DataSet, *, adapt: Callable[[nn.Module], None] | None = None) -> None:
        self.trial = trial
        self.images_per_step = trial.batch_of_step
        self._data, self._inputs = data, inputs_of(trial, data)
        precision.set_modes(trial.precision)
        self._adapt = adapt
        model = self._build()
        captured = "graph" in trial.engine
        self._team = ranks.team()
        # Nothing else computes what stale updates do: they have a check of their own.
        self._is_stale = trial.updates == "asynchronous"
        plain = trial.engine == "eager" and trial.optimizer == "sgd"
        self._is_reference = self._is_stale or (plain and self._team is None and trial.parallel != "one_process")
        self._reference: Training | None = None
        if not self._is_reference:
            as_plain = replace(trial, engine="eager", optimizer="sgd")
            self._reference = Training(
                as_plain, copy.deepcopy(model), captured=False, restarts=False, exchange="by hand"
            )
        # Only steps that are undone need the beginning: those of a tuned step's gate, and any before whole epochs.
        restarts = not self._is_reference or trial.epochs > 0
        self.training = (
            StaleTraining(trial, model, restarts=restarts)
            if self._is_stale
            else Training(trial, model, captured=captured, restarts=restarts)
        )
        self.run = self._drive()
        self._rates = learning_rates(trial, len(data.train)) if trial.epochs else None
        self._step = 0
        cost = cost_of(trial)
        self.flop_per_step = cost.flop_training * trial.batch_of_step
        self.facts = {
            **facts_of_training(trial, cost, data),
            **self._inputs.facts,
            "loader": self.run.kind,
            **facts_of_exchange(self.training, self._team, averaged=not self._is_stale),
            **self.training.facts,
        }

    def _build(self) -> nn.Module:
        """The model at its initial weights, which are the seed's."""
        trial = self.trial
        torch.manual_seed(trial.seed)
        with torch.device(trial.device):
            model = build_model(
                trial.model, image_px=trial.image_px, classes=trial.classes, stem=trial.stem, head=trial.head
            )
            if self._adapt is not None:
                self._adapt(model)
        return model.to(memory_format=TORCH_FORMATS[trial.memory_format])

    def _drive(self) -> HostedStep | CapturedStep:
        """The step with its loader. A captured one wants its batch in one place."""
        shard = Shard(self._team.rank, self._team.size) if self._team else WHOLE
        loader = self._inputs.loader(dtype=self.training.input_dtype, shard=shard)
        if "graph" not in self.trial.engine:
            return HostedStep(self.training, loader)
        if isinstance(loader, StreamingLoader):
            shape: dict[str, Any] = {"image_px": self.trial.image_px, "memory_format": self.trial.memory_format}
            return CapturedStep(self.training, HostFed(loader, dtype=self.training.input_dtype, **shape))
        assert isinstance(loader, StaticBatch), "a captured step runs on a GPU"
        return CapturedStep(self.training, loader)

    def preparations(self) -> Iterable[tuple[str, Callable[[], None]]]:
        """The eager steps to compare with, compiling, capturing: whichever the trial needs."""
        if not self._is_reference:
            yield "reference", self._run_reference
        if "compile" in self.trial.engine:
            yield "compile", self._compile
        if isinstance(self.run, CapturedStep):
            yield "capture", self._capture

    def _run_reference(self) -> None:
        assert self._reference is not None
        self._expected = self._plain_steps(self._reference)
        self._reference = None

    def _plain_steps(self, training: Training) -> gate.Trace:
        """What a plain training does with the trial's first batches."""
        exactly = training.trial.precision == "fp32"  # nothing casts images that were loaded in a narrower type

        def one_step() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            images, labels = self.run.peek()
            return training.update(images.float() if exactly else images, labels), images, labels

        traced = gate.trace(training, one_step, seed=self.trial.seed)
        self.run.rewind()
        return traced

    def _compile(self) -> None:
        self.training.compile()
        before = compiler_cache()
        self.run.warm_up()
        self.facts["compiled_regions"] = {name: n - before[name] for name, n in compiler_cache().items()}
        self._forget_steps()

    def _capture(self) -> None:
        assert isinstance(self.run, CapturedStep)
        if "compile" not in self.trial.engine:
            self.run.warm_up()
        if self._team is not None:
            self._team.barrier()  # no rank may wait in a replay for one that still captures
        self.run.capture()
        if self._team is not None:
            self._team.barrier()
        self.facts |= {
            "memory_bytes": self.run.memory_bytes,
            "memory_method": "peak of PyTorch's CUDA allocator while the step was captured",
        }
        self._forget_steps()

    def _forget_steps(self) -> None:
        """Undo what preparing did to weights, momenta and the order of the images."""
        self.training.restart()
        self.training.set_learning_rate(self.trial.learning_rate)
        self.run.rewind()
        self._step = 0

    def step(self) -> None:
        """Queue one training step on the next batch."""
        if self._rates is not None:
            self.training.set_learning_rate(self._rates[min(self._step, len(self._rates) - 1)])
        self.run()
        self._step += 1

    def check(self) -> None:
        """An eager step trains: shapes, loss and gradients are right. A tuned one does what the eager one does."""
        if self._is_reference:
            self._check_first_step()
            if self._is_stale and self._team is not None:
                check_same_everywhere(self.training.weights(), self._team)
            return

        def one_step() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            self.run()
            return self.run.take_losses(), self.run.images, self.run.labels

        tuned = gate.trace(self.training, one_step, seed=self.trial.seed)
        self.facts["gate"] = self._judge(tuned)
        weights = self.training.weights()
        if self._team is not None:
            check_same_everywhere([*weights, *self.training.model.parameters()], self._team)
        self.training.check_rounded(weights)
        del self._expected, weights
        self._forget_steps()
        if not self.trial.epochs:
            self.training.forget_beginning()

    def _judge(self, tuned: gate.Trace) -> dict[str, Any]:
        """What the gate found. All ranks compare with the same, whichever of them is beyond the tolerances."""
        least = self._least_precision()
        found = gate.differences(self._expected, tuned)
        beyond = not found.within(precision.TOLERANCES[least])
        if self._team is not None:
            beyond = bool(self._team.most(float(beyond)))
        if not beyond or least == "fp32":
            return gate.compare(self._expected, tuned, least, found)
        return gate.compare_beside_exact(self._steps_in_fp32(), self._expected, tuned, least)

    def _steps_in_fp32(self) -> gate.Trace:
        exactly = replace(self.trial, precision="fp32", gradient_precision="fp32", engine="eager", optimizer="sgd")
        precision.set_modes("fp32")
        self.run.rewind()
        try:
            return self._plain_steps(
                Training(exactly, self._build(), captured=False, restarts=False, exchange="by hand")
            )
        finally:
            precision.set_modes(self.trial.precision)

    def _least_precision(self) -> str:
        """Of what the steps compute in and what gradients are sent in."""
        trial = self.trial
        wide = trial.precision in ("fp32", "tf32")
        return trial.gradient_precision if wide and trial.gradient_precision != "fp32" else trial.precision

    def _check_first_step(self) -> None:
        """One step: the logits have the shape (batch, classes), the loss is finite, every weight got a gradient."""
        model, shapes = self.training.model, []
        hook = self.training.network.register_forward_hook(
            lambda _module, _inputs, output: shapes.append(tuple(output.shape))
        )
        assert isinstance(self.run, HostedStep)
        self.step()
        loss = float(self.run.losses[-1])
        hook.remove()
        expected = (self.trial.batch_of_process, self.trial.classes)
        if shapes != [expected]:
            raise GateError(f"{self.trial.model} gave outputs of shape {shapes}, expected {expected}")
        if not math.isfinite(loss):
            raise GateError(f"the first step's loss is {loss}")
        without = [name for name, weight in model.named_parameters() if weight.grad is None]
        if without:
            raise GateError(f"{len(without)} weights got no gradient, {without[0]} first")
        self.facts["first_loss"] = loss

    def read_loss(self) -> float | None:
        """Mean loss since the last call, None when it was not finite."""
        mean = float(self.run.take_losses())
        return mean if math.isfinite(mean) else None

    def held(self) -> Held:
        """What lies in memory between two steps."""
        return held(self.trial, self.training, self.run)

    def restart(self) -> None:
        """Back to the initial weights and the first image."""
        self._forget_steps()
        torch.manual_seed(self.trial.seed)

    def steps_of_epoch(self, epoch: int) -> int:
        """Steps until all training images have been seen `epoch + 1` times, from where the last epoch ended."""
        images, batch = len(self._data.train), self.trial.batch_of_step
        return math.ceil((epoch + 1) * images / batch) - math.ceil(epoch * images / batch)

    def learning_rate(self) -> float:
        """The learning rate of the step before."""
        if self._rates is None:
            return self.trial.learning_rate
        return self._rates[min(max(self._step - 1, 0), len(self._rates) - 1)]

    @torch.no_grad()
    def evaluate(self) -> Scores:
        """Score all validation images: mean loss, top-1 and top-5 (of fewer than five classes, all)."""
        trial, model, split = self.trial, self.training.model, self._data.val
        batches = self._inputs.in_order(batch=EVALUATION_BATCH, dtype=self.training.input_dtype)
        sums = torch.zeros(3, device=trial.device, dtype=torch.float64)
        model.eval()
        with self.training.newest():
            for images, labels in batches:
                with precision.autocast(trial):
                    logits = model(images).float()
                ranked = logits.topk(min(5, trial.classes), dim=1).indices == labels[:, None]
                loss = functional.cross_entropy(logits, labels, reduction="sum")
                sums += torch.stack([loss, ranked[:, 0].sum(), ranked.any(dim=1).sum()])
        model.train()
        loss_sum, first, among = (sums / len(split)).tolist()
        return Scores(loss_sum if math.isfinite(loss_sum) else None, first, among, len(split))
