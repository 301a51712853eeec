"""Training: forward, cross-entropy, backward, SGD with momentum, images (or documents) from the loader of the trial.

The baseline stands for the papers' loops: eager FP32 (TF32 off), one fresh batch per step. The trial's fields set
engine, precision, optimiser and memory format. An impossible combination is `unsupported`, never replaced by another.
Before any timing, the gate compares another engine or optimiser with the eager loop in the same precision.
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

from labkit.data import DataSet
from labkit.data.augment import TORCH_FORMATS
from labkit.data.loaders import StreamingLoader
from labkit.data.order import WHOLE, Shard
from labkit.models import build as build_model
from workbook import ranks
from workbook.engines import gate, precision
from workbook.engines.device_loader import HostFed, StaticBatch
from workbook.engines.exchange.averaging import check_same_everywhere
from workbook.engines.exchange.stale_updates import StaleTraining
from workbook.engines.regions import counted_regions
from workbook.engines.steps import CapturedStep, HostedStep
from workbook.engines.support import TRAINING
from workbook.engines.training import Training, learning_rates
from workbook.errors import GateError, Unsupported
from workbook.storage import StoredSet
from workbook.storage.readers import RULES as OF_READER
from workbook.storage.readers.reader import FedLoader
from workbook.trace import Held
from workbook.trials.recipes import weight_passes
from workbook.trials.rules import Rule, given
from workbook.trials.trial import Trial
from workbook.workloads import Scores, Workload
from workbook.workloads._facts import cost_of, facts_of_exchange, facts_of_network, held
from workbook.workloads._inputs import StoredInputs, inputs_of
from workbook.workloads._readers import bring_cache
from workbook.workloads._two_jobs import TwoJobs

EVALUATION_BATCH = 500

# fmt: off
_FROM_FILES = (
    Rule("version", lambda t: t.arrangement != "alone", "a training from files is one job: leave arrangement"),
    Rule("never", lambda t: t.augment or t.loader != "indexed",
        "the reader crops, flips and loads the images: leave augment and loader"),
    Rule("version", lambda t: t.readers != t.processes and t.processes,
        "each of the {value} training processes has a reader: give readers={value}"),
)
RULES = (
    *TRAINING,
    Rule("version", lambda t: t.arrangement != "alone" and t.epochs,
        "two jobs are timed in steps, not trained for whole epochs: leave arrangement or epochs"),
    *given(lambda t: t.form != "embedded", _FROM_FILES),
    *OF_READER,
)
# fmt: on


def build(trial: Trial, data: DataSet | StoredSet) -> TrainWorkload | TwoJobs:
    """Return the training workload of a trial. Raise Unsupported for data that it cannot take."""
    team = ranks.team()
    together = team.size if team else 1
    if trial.processes != together:
        raise Unsupported(f"the configuration needs {trial.processes} processes, but this group has {together}")
    if isinstance(data, StoredSet):
        return FedTraining(trial, data)
    if trial.arrangement != "alone":
        return TwoJobs(trial, lambda own: TrainWorkload(own, data))
    return TrainWorkload(trial, data)


class TrainWorkload(Workload):
    """One model, its optimiser and its loader on one device, driven by the trial's engine.

    `adapt` may change the model in place before its first use.
    """

    def __init__(
        self, trial: Trial, data: DataSet | StoredSet, *, adapt: Callable[[nn.Module], None] | None = None
    ) -> None:
        self.trial = trial
        self.images_per_step = trial.batch_of_step
        self._inputs = inputs_of(trial, data)
        self.epoch_images = self._inputs.train_images
        precision.set_modes(trial)
        self._adapt = adapt
        model = self._build()
        captured = "graph" in trial.engine
        self._team = ranks.team()
        # No other engine computes stale updates, so they have no reference, but a check of their own.
        self._is_stale = trial.updates == "asynchronous"
        plain = trial.engine == "eager" and trial.optimizer == "sgd"
        self._is_reference = self._is_stale or (plain and self._team is None and trial.parallel != "one_process")
        self._reference: Training | None = None
        if not self._is_reference:
            as_plain = replace(trial, engine="eager", optimizer="sgd")
            self._reference = Training(
                as_plain, copy.deepcopy(model), captured=False, restarts=False, exchange="by hand"
            )
        # The initial state is kept only if steps will be undone: those of a tuned step's gate, or before whole epochs.
        restarts = not self._is_reference or trial.epochs > 0
        self.training = (
            StaleTraining(trial, model, restarts=restarts)
            if self._is_stale
            else Training(trial, model, captured=captured, restarts=restarts)
        )
        self.run = self._drive()
        self._rates = learning_rates(trial, self._inputs.train_images) if trial.epochs else None
        self._step = 0
        cost = cost_of(trial)
        self.flop_per_step = cost.flop_training * trial.batch_of_step
        traffic = weight_passes(trial.optimizer, trial.devices) * cost.parameter_bytes  # if no cache holds weights
        self.facts = {
            **facts_of_network(trial, cost, self._inputs.description),
            "weight_traffic_bytes_per_step": round(traffic),
            "flop_training": cost.flop_training,
            "train_images": self._inputs.train_images,
            **self._inputs.facts,
            "loader": self.run.kind,
            **facts_of_exchange(self.training, self._team, averaged=not self._is_stale),
            **self.training.facts,
        }

    def _build(self) -> nn.Module:
        """Return the model with its initial weights, which the seed determines."""
        trial = self.trial
        torch.manual_seed(trial.seed)
        with torch.device(trial.device):
            model = build_model(trial.model, image_px=trial.image_px, classes=trial.classes, head=trial.head)
            if self._adapt is not None:
                self._adapt(model)
        return model.to(memory_format=TORCH_FORMATS[trial.memory_format])

    def _drive(self) -> HostedStep | CapturedStep:
        """Return the step with its loader. A captured step needs a batch at fixed addresses."""
        shard = Shard(self._team.rank, self._team.size) if self._team else WHOLE
        loader = self._inputs.loader(dtype=self.training.input_dtype, shard=shard)
        if "graph" not in self.trial.engine:
            return HostedStep(self.training, loader)
        if isinstance(loader, StreamingLoader | FedLoader):
            shape: dict[str, Any] = {"image_px": self.trial.image_px, "memory_format": self.trial.memory_format}
            return CapturedStep(self.training, HostFed(loader, dtype=self.training.input_dtype, **shape))
        assert isinstance(loader, StaticBatch), "a captured step runs on a GPU"
        return CapturedStep(self.training, loader)

    def leave_out_gate(self) -> None:
        """Drop the reference steps."""
        self._reference = None

    def preparations(self) -> Iterable[tuple[str, Callable[[], None]]]:
        """Yield the preparations of the trial: eager reference steps, compilation, capture."""
        self._compares = self._reference is not None
        if self._compares:
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
        """Return the trace of an eager training on the trial's first batches."""
        exactly = training.trial.precision == "fp32"  # FP32 steps do not cast images of a narrower type

        def one_step() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            images, labels = self.run.peek()
            return training.update(images.float() if exactly else images, labels), images, labels

        traced = gate.trace(training, one_step, seed=self.trial.seed)
        self.run.rewind()
        return traced

    def _compile(self) -> None:
        self.training.compile()
        with counted_regions(self.facts):
            self.run.warm_up()
        self._forget_steps()

    def _capture(self) -> None:
        assert isinstance(self.run, CapturedStep)
        if "compile" not in self.trial.engine:
            self.run.warm_up()
        if self._team is not None:
            self._team.barrier()  # no rank may wait in a replay for a rank that still captures
        self.run.capture()
        if self._team is not None:
            self._team.barrier()
        self.facts |= {
            "memory_bytes": self.run.memory_bytes,
            "memory_method": "peak of PyTorch's CUDA allocator while the step was captured",
        }
        self._forget_steps()

    def _forget_steps(self) -> None:
        """Undo the changes of preparations to weights, momenta and the order of the images."""
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
        """Check shapes, loss and gradients of an eager step, or compare tuned steps with eager steps."""
        if self._is_reference:
            self._check_first_step()
            if self._is_stale and self._team is not None:
                check_same_everywhere(self.training.weights(), self._team)
            return
        if self._compares:
            self._compare()
        else:
            self.run()
        self._forget_steps()
        if not self.trial.epochs:
            self.training.forget_beginning()

    def _compare(self) -> None:
        """Compare tuned steps with the reference's, and the weights of all ranks."""

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

    def _judge(self, tuned: gate.Trace) -> dict[str, Any]:
        """Return the gate's findings. If any rank is beyond the tolerances, all ranks also compare with FP32 steps."""
        least, sent = self.trial.precision, self.trial.gradient_precision
        if least in ("fp32", "tf32") and sent != "fp32":
            least = sent
        differences = gate.differences(self._expected, tuned)
        beyond = not differences.within(precision.TOLERANCES[least])
        if self._team is not None:
            beyond = bool(self._team.most(float(beyond)))
        if not beyond or least == "fp32":
            return gate.compare(self._expected, tuned, least, differences)
        return gate.compare_beside_exact(self._steps_in_fp32(), self._expected, tuned, least)

    def _steps_in_fp32(self) -> gate.Trace:
        exactly = replace(self.trial, precision="fp32", gradient_precision="fp32", engine="eager", optimizer="sgd")
        precision.set_modes(exactly)
        self.run.rewind()
        try:
            return self._plain_steps(
                Training(exactly, self._build(), captured=False, restarts=False, exchange="by hand")
            )
        finally:
            precision.set_modes(self.trial)

    def _check_first_step(self) -> None:
        """Check one step: logits of shape (batch, classes), a finite loss, a gradient for every weight."""
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
        """Return the mean loss since the last call, None if not finite."""
        mean = float(self.run.take_losses())
        return mean if math.isfinite(mean) else None

    def held(self) -> Held:
        """Return the tensors in memory between two steps."""
        return held(self.trial, self.training, self.run)

    def restart(self) -> None:
        """Go back to the initial weights and the first image."""
        self._forget_steps()
        torch.manual_seed(self.trial.seed)

    def learning_rate(self) -> float:
        """Return the learning rate of the last step."""
        if self._rates is None:
            return self.trial.learning_rate
        return self._rates[min(max(self._step - 1, 0), len(self._rates) - 1)]

    @torch.no_grad()
    def evaluate(self) -> Scores:
        """Score all validation images: mean loss, top-1 and top-5 (with fewer than five classes, the top of all)."""
        trial, model = self.trial, self.training.model
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
        loss_sum, first, among = (sums / self._inputs.val_images).tolist()
        return Scores(loss_sum if math.isfinite(loss_sum) else None, first, among, self._inputs.val_images)


class FedTraining(TrainWorkload):
    """A training whose images a reader takes from files, in blocks of steps or in whole epochs."""

    stored: StoredSet

    def __init__(self, trial: Trial, stored: StoredSet) -> None:
        super().__init__(trial, stored)
        assert isinstance(self._inputs, StoredInputs)
        self.stored, self._fed = stored, self._inputs.fed
        # Seconds in which the steps waited for their batch: before the first block, and in each block.
        self.facts["waited_s"] = []
        self._waited_before_s = 0.0

    def waited_s(self) -> float:
        """Return the seconds in which all steps so far waited for their batches."""
        return self._fed.waited_s

    def skipped(self) -> int:
        """Return the images that could not be read since the readers were opened."""
        return self._fed.reader.skipped

    def read_loss(self) -> float | None:
        """Return the mean loss since the last call, None if not finite."""
        self.facts["skipped"] = self.skipped()
        self.facts["waited_s"].append(self.waited_s() - self._waited_before_s)
        self._waited_before_s = self.waited_s()
        return super().read_loss()

    def bring_cache(self) -> float | None:
        """Bring the page cache into the trial's state. Return the share of the set that it then holds."""
        return bring_cache(self.trial, self.stored)

    def restart(self) -> None:
        """Go back to the initial weights, and open the reader anew after `close`."""
        super().restart()
        self._fed.reopen()

    def close(self) -> None:
        """Close the reader."""
        self._fed.close()
