"""Chooses a trial's training by its Keras back end, and imports the framework of this back end alone."""

from __future__ import annotations

from workbook.engines.keras.training import KerasTraining, Pixels
from workbook.trials.trial import Trial


def make_training(trial: Trial, pixels: Pixels) -> KerasTraining:
    """Return the trial's training, in a process with Keras on its back end. Raise Unsupported if it cannot run."""
    if trial.framework == "keras-tensorflow":
        from workbook.engines.keras.on_tensorflow import TrainingOnTensorFlow

        return TrainingOnTensorFlow(trial, pixels)
    if trial.framework == "keras-jax":
        from workbook.engines.keras.on_jax import TrainingOnJax

        return TrainingOnJax(trial, pixels)
    from workbook.engines.keras.on_torch import TrainingOnTorch

    return TrainingOnTorch(trial, pixels)
