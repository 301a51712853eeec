"""labkit's Keras loop is not slower than `keras.applications` under `model.fit`, in the same framework.

    python benchmarks/keras_loop.py --framework keras-jax [--device cpu] [--batch 16] [--pairs 6] [--peer same]

Trains ResNet-50 on 32x32 images with both loops, in turns, in one run on one device, with the same compiler (XLA if the
framework has it). Prints our images/s over the peer's with the 95 % interval over the pairs. The exit code is 1 if the
whole interval lies below 1.

The default peer is `keras.applications.ResNet50`, which differs from our layers in three points. Its stride is on the
first 1x1 convolution of a block; ours, as in torchvision, is on the 3x3 convolution, which is more work. Its
convolutions have biases. Its batch norm uses Keras's default momentum. Its optimiser is Keras's SGD with momentum and
(decoupled) decay. `--peer same` is our network and optimiser under `model.fit`, so that only the loops differ. Both
loops read images from the host's memory, `model.fit` as normalised FP32 and ours as bytes.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from labkit.data import DataSet, open_data
from labkit.timing import HostClock
from workbook.engines.keras import back_end
from workbook.engines.state import quiet_collector
from workbook.hardware.frameworks import title_of
from workbook.statistics import Interval, log_interval
from workbook.trials.recipes import MOMENTUM, WEIGHT_DECAY
from workbook.trials.trial import Trial
from workbook.workloads import build_workload

ENGINES = {"keras-jax": "xla", "keras-tensorflow": "xla", "keras-torch": "eager"}
LEG_S = 2.0
LEAST_STEPS = 4  # minimum of a leg, because `model.fit` has extra costs at the beginning and end of an epoch


def main() -> int:
    """Measure and print. Return 1 if labkit is slower, else 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--framework", choices=ENGINES, required=True)
    parser.add_argument("--engine", help="our engine; the peer is compiled if it is xla or compile")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--peer", choices=("applications", "same"), default="applications")
    asked = parser.parse_args()
    trial = Trial(
        framework=asked.framework,
        engine=asked.engine or ENGINES[asked.framework],
        device=asked.device,
        precision=asked.precision,
        batch=asked.batch,
    )
    ratio, ours = compare(trial, asked.peer, asked.pairs)
    assert ratio.low is not None and ratio.high is not None
    verdict = "is faster" if ratio.low > 1 else "is SLOWER" if ratio.high < 1 else "is undecided"
    print(
        f"{title_of(trial.framework)}, {trial.engine}, ResNet-50 batch {trial.batch} {trial.precision}, "
        f"{trial.device}: {ours:,.1f} images/s, "
        f"over model.fit of {asked.peer} {ratio.point:.3f}x [{ratio.low:.3f}, {ratio.high:.3f}], "
        f"n = {ratio.n}: {verdict}"
    )
    return 1 if ratio.high < 1 else 0


def compare(trial: Trial, peer: str, pairs: int) -> tuple[Interval, float]:
    """Return the ratio over the pairs, which run in both orders, and our images/s over all pairs."""
    data = open_data("synthetic32", train_images=max(2000, 4 * trial.batch), val_images=10)
    workload: Any = build_workload(trial, data)
    for _, prepare in workload.preparations():
        prepare()
    workload.check()
    clock = HostClock(workload.wait)
    clock.time_block(workload.step, 2)
    first, _ = clock.time_block(workload.step, 2)
    steps = max(LEAST_STEPS, round(LEG_S / (first / 2)))
    fit = fitted(trial, peer, data, steps)
    fit()  # compiles
    quiet_collector()
    ratios, ours_s = [], 0.0
    for pair in range(pairs):
        took: dict[str, float] = {}
        for name in ("ours", "fit") if pair % 2 else ("fit", "ours"):
            took[name] = clock.time_block(workload.step, steps)[0] if name == "ours" else seconds_of(fit)
            workload.read_loss()
        ratios.append(took["fit"] / took["ours"])
        ours_s += took["ours"]
    return log_interval(ratios), pairs * steps * trial.batch / ours_s


def fitted(trial: Trial, peer: str, data: DataSet, steps: int) -> Callable[[], object]:
    """Return a call of `model.fit` for `steps` steps. Its end reads the loss and therefore waits for the device."""
    keras = back_end.enter(trial.framework)
    if peer == "same":
        from workbook.engines.keras.networks import build
        from workbook.engines.keras.sgd import TorchSGD

        model, optimizer = build("resnet50"), TorchSGD(trial.learning_rate)
    else:
        model = keras.applications.ResNet50(weights=None, input_shape=(32, 32, 3), classifier_activation=None)
        about = {"momentum": MOMENTUM, "weight_decay": WEIGHT_DECAY}
        optimizer = keras.optimizers.SGD(trial.learning_rate, **about)
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=trial.engine in ("xla", "compile"),
        run_eagerly=trial.engine == "eager" and trial.framework != "keras-torch",
    )
    chosen = np.arange(steps * trial.batch) % len(data.train)
    mean, std = (np.asarray(levels, np.float32) for levels in (data.mean, data.std))
    images = (data.train.images[chosen].transpose(0, 2, 3, 1).astype(np.float32) - mean) / std
    labels = data.train.labels[chosen].astype(np.int32)
    return lambda: model.fit(images, labels, batch_size=trial.batch, epochs=1, shuffle=False, verbose=0)


def seconds_of(call: Callable[[], object]) -> float:
    """Return the seconds of a call that ends when its work is done."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
