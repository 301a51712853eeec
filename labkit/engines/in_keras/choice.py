"""Which loop trains a trial of Keras: the one of its back end, which alone is imported."""

from __future__ import annotations

from labkit.engines.in_keras.training import KerasTraining, Pixels
from labkit.trial import Trial


def make_training(trial: Trial, pixels: Pixels) -> KerasTraining:
    """The training of a trial, in a process that has Keras on its back end. Unsupported for what this device lacks."""
    if trial.framework == "keras-tensorflow":
        from labkit.engines.in_keras.on_tensorflow import TrainingOnTensorFlow

        return TrainingOnTensorFlow(trial, pixels)
    if trial.framework == "keras-jax":
        from labkit.engines.in_keras.on_jax import TrainingOnJax

        return TrainingOnJax(trial, pixels)
    from labkit.engines.in_keras.on_torch import TrainingOnTorch

    return TrainingOnTorch(trial, pixels)
