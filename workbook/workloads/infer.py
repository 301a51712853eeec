"""Inference: logits of a batch. Queued steps measure throughput, queries with a wait for each answer measure latency.

Weights are initial, or trained with scored answers (`_weights`). The gate compares every engine and precision with the
FP32 baseline network on the same images. In half precision, rounding is as large as the error of one wrong block. The
gate therefore makes two more comparisons: in FP32, the network with folded batch norm with the baseline, and image by
image, the compiled or captured network with itself before.

Copies excluded: normalised images are on the device and logits stay there. Copies included: bytes come from the host's
memory, are normalised on the device, and the predicted classes return to the host.
"""

from __future__ import annotations

import copy
import hashlib
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from labkit.data import DataSet, Split, open_data
from labkit.errors import DataError
from labkit.models import find_model
from workbook.engines import precision
from workbook.engines.batch_norm import fold_batch_norm
from workbook.engines.fused.network import FusedPredictor
from workbook.engines.gate import LOGIT_TOLERANCES, compare_logits, compare_with_uncompiled
from workbook.engines.inference_images import Pool
from workbook.engines.openvino_on_cpu import OpenVinoPredictor
from workbook.engines.prediction import Predictor, TorchPredictor, score
from workbook.engines.regions import counted_regions
from workbook.engines.steps import CapturedPrediction
from workbook.engines.support import PREDICTION
from workbook.errors import GateError
from workbook.records.scored import Scored
from workbook.trials.rules import Rule, check
from workbook.trials.trial import Trial
from workbook.workloads import Workload
from workbook.workloads._facts import cost_of, facts_of_network
from workbook.workloads._weights import make_network

_HASHED_AT_ONCE = 512  # images; a whole set may exceed the memory


def scoring_split(data: DataSet, images: int) -> Split:
    """Return the first `images` validation images, or all images of a shorter set that cannot be extended.

    synthetic32 is drawn image by image. A longer split is therefore drawn and cached once, and begins with the images
    of the given set. Raise DataError if it does not, because the given set has another seed than reports use.
    """
    own = data.val
    if images > len(own) and data.name == "synthetic32":
        longer = open_data("synthetic32", train_images=1, val_images=images).val  # an entry needs a training image
        if not np.array_equal(longer.labels[: len(own)], own.labels) or not np.array_equal(
            longer.images[: len(own)], own.images
        ):
            raise DataError("the validation images of this synthetic32 are not the first of the longer split.")
        return longer
    return Split(own.images[:images], own.labels[:images])


def split_sha256(split: Split) -> str:
    """Return the SHA-256 of the images and the labels, 64 hexadecimal digits."""
    digest = hashlib.sha256()
    for first in range(0, len(split), _HASHED_AT_ONCE):
        digest.update(np.ascontiguousarray(split.images[first : first + _HASHED_AT_ONCE]).data)
    digest.update(np.ascontiguousarray(split.labels, dtype="<i2").tobytes())
    return digest.hexdigest()


REFERENCE_PART = 100  # images that the baseline network predicts at once

FOLDED_IMAGES = 64  # images on which folding is checked


def build(trial: Trial, data: DataSet, weights: Path | None = None) -> InferWorkload:
    """Return the inference workload of a trial, with trained weights from the folder `weights`.

    Raise Unsupported for data that it cannot take.
    """
    check(of_inputs(data), trial)
    return InferWorkload(trial, data, weights)


# fmt: off
RULES = (
    Rule("never", lambda t: t.scored and t.weights == "initial",
        "initial weights are not scored: their answers mean nothing"),
    *PREDICTION,
)


def of_inputs(data: DataSet) -> tuple[Rule, ...]:
    """Return the rules of predictions of these images."""
    return (
        Rule("never", lambda t: data.words or find_model(t.model).words,
            "inference needs a model that takes images, and data that are images"),
        Rule("never", lambda t: data.edge_px > t.image_px and f"{data.edge_px} px ({data.name})",
            "images of {value} are not scaled down to {image_px} px"),
    )
# fmt: on


class InferWorkload(Workload):
    """One model that predicts on one device, driven by the trial's engine."""

    def __init__(self, trial: Trial, data: DataSet, weights: Path | None) -> None:
        self.trial = trial
        self.images_per_step = trial.batch
        network = make_network(trial, data, weights)
        self._data = data = network.weights.normalise(data) if network.weights else data
        precision.set_modes(trial)
        self.build_phases = network.phases
        self._weights = network.weights
        self._plain = copy.deepcopy(network.model)
        self._compares = True
        began = time.perf_counter()
        self._predictor: Predictor
        if trial.engine == "openvino":
            self._predictor = OpenVinoPredictor(trial, network.model, data)
        elif trial.engine == "triton+graph":
            self._predictor = FusedPredictor(trial, network.model, data)
        else:
            self._predictor = TorchPredictor(trial, network.model)
        build_s = network.build_s + time.perf_counter() - began
        included = trial.copies == "included"
        self._pool = Pool(trial, data, dtype=self._predictor.dtype, where="host" if included else "device")
        self._classes = torch.empty(trial.batch, dtype=torch.int64, pin_memory=trial.device == "cuda")
        self._captured: CapturedPrediction | None = None
        cost = cost_of(trial)
        self.flop_per_step = cost.flop_forward * trial.batch
        self.logits = torch.empty(0)
        self.facts = {
            **facts_of_network(trial, cost, data.description),
            "weight_traffic_bytes_per_step": cost.parameters * self._predictor.weight_bytes,  # read once
            "image_bytes": 3 * trial.image_px**2 * self._predictor.dtype.itemsize,
            "folded": self._predictor.folded,
            **({"weights": {"sha256": self._weights.sha256, **self._weights.facts}} if self._weights else {}),
            **self._predictor.facts,
            "build_s": build_s,
        }

    def leave_out_gate(self) -> None:
        """Drop the FP32 baseline network."""
        self._compares = False
        del self._plain

    def preparations(self) -> Iterable[tuple[str, Callable[[], None]]]:
        """Yield the preparations of the trial: reference logits, calibration, compilation, capture."""
        if self._compares:
            yield "reference", self._run_reference
        yield from self._predictor.preparations()
        if self._predictor.compiles:
            yield "compile", self._compile
        if "graph" in self.trial.engine:
            yield "capture", self._capture

    @torch.inference_mode()
    def _run_reference(self) -> None:
        """Compute the logits of the FP32 baseline network for the first two batches, and keep them on the host."""
        plain = replace(self.trial, engine="eager", precision="fp32", memory_format="contiguous")
        pool = Pool(plain, self._data, dtype=torch.float32, where="host")
        precision.set_modes(plain)
        # A search for the fastest algorithms does not pay off in a single step. PyTorch keeps cuDNN's algorithm for a
        # convolution until the process ends, but apart for deterministic steps: the timed steps search for theirs.
        torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = False, True

        self._expected = [
            torch.cat([self._plain(pool.ready(few.to(plain.device))).cpu() for few in pixels.split(REFERENCE_PART)])
            for pixels in pool.batches[:2]
        ]
        if self._predictor.folded:
            self._check_folding(pool)
        del self._plain
        precision.set_modes(self.trial)
        if self._predictor.has_uncompiled_form:
            self._run_uncompiled()

    def _check_folding(self, pool: Pool) -> None:
        """Check folded batch norm in FP32, because half precision would hide a wrong block."""
        few = pool.ready(pool.batches[0][:FOLDED_IMAGES].to(self.trial.device))
        before = self._plain(few)
        with torch.inference_mode(False):
            folded = copy.deepcopy(self._plain)
            fold_batch_norm(folded)
        apart = float((folded(few) - before).norm() / before.norm())
        if not apart <= LOGIT_TOLERANCES["fp32"]:
            raise GateError(f"with batch norm folded the logits differ by {apart:.2g} of their norm")

    def _run_uncompiled(self) -> None:
        """Keep the logits of the engine's network, in its precision, from before compilation or capture."""
        self._uncompiled = []
        for batch in self._pool.batches[:2]:
            images = batch.to(self.trial.device)
            images = self._pool.ready(images) if self.trial.copies == "included" else images
            self._uncompiled.append(self._predictor(images).float().cpu())

    def _compile(self) -> None:
        self._predictor.compile()
        with counted_regions(self.facts) if "compile" in self.trial.engine else nullcontext():
            self._eager()
            self._wait()
        self.facts |= self._predictor.facts
        self._pool.rewind()

    def _capture(self) -> None:
        self._captured = CapturedPrediction(self._body, self._pool)
        self._captured.capture()
        self.facts |= {
            "memory_bytes": self._captured.memory_bytes,
            "memory_method": "peak of PyTorch's CUDA allocator while the prediction was captured",
        }
        self._pool.rewind()

    def _body(self, batch: torch.Tensor) -> torch.Tensor:
        """Queue the whole device work of a step for a batch on the device, and return the logits."""
        if self.trial.copies == "excluded":
            return self._predictor(batch)
        logits = self._predictor(self._pool.ready(batch))
        self._classes.copy_(logits.argmax(dim=1), non_blocking=True)
        return logits

    def _eager(self) -> None:
        batch = next(self._pool)
        self.logits = self._body(batch.to(self.trial.device, non_blocking=True))

    def step(self) -> None:
        """Queue the prediction of the next batch."""
        if self._captured is None:
            self._eager()
        else:
            self.logits = self._captured()

    def query(self) -> None:
        """Predict the next batch and wait for it."""
        self.step()
        self._wait()

    def score(self, on_share: Callable[[float], None]) -> Scored:
        """Return which of the trial's validation images the timed network classifies correctly."""
        assert self._weights is not None, "build refuses to score initial weights"
        split = scoring_split(self._data, self.trial.scored)
        top1, top5 = score(self._predict, split, batch=self.trial.batch, on_share=on_share)
        self._pool.rewind()
        return Scored.of(top1, top5, weights_sha256=self._weights.sha256, images_sha256=split_sha256(split))

    def _predict(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return the logits of a batch of uint8 images on the host."""
        batch = pixels if self.trial.copies == "included" else self._pool.all_ready(pixels)
        return self._captured.of(batch) if self._captured else self._body(batch.to(self.trial.device))

    def _wait(self) -> None:
        if self.trial.device == "cuda":
            torch.cuda.synchronize()

    def check(self) -> None:
        """Compare the predictions of the first two batches with the FP32 baseline. Raise GateError if they differ."""
        began = time.perf_counter()
        self.query()
        self.facts["first_step_s"] = time.perf_counter() - began
        self._pool.rewind()
        if self._compares:
            self._compare()
            self._pool.rewind()

    def _compare(self) -> None:
        seen = []
        for _ in range(2):
            self.query()
            seen.append((self.logits.float().cpu(), self._classes.clone()))
        logits_seen = [logits for logits, _ in seen]
        self.facts["gate"] = compare_logits(self._expected, logits_seen, self.trial)
        if self._predictor.has_uncompiled_form:
            self.facts["gate"] |= compare_with_uncompiled(self._uncompiled, logits_seen, self.trial)
            del self._uncompiled
        if self.trial.copies == "included":
            for logits, classes in seen:
                if not torch.equal(logits.argmax(dim=1), classes):
                    raise GateError("the classes copied to the host are not those of the logits")
        del self._expected
        self._pool.rewind()
