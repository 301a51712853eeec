"""Helpers for any notebook or script: batches of images, the time of a step, the sensors during a block of code.

Importing this package imports no framework; calling a helper does.
"""

from labkit.helpers.loading import ImageLoader, loader
from labkit.helpers.sampling import Sampled, sample
from labkit.helpers.timing import StepTiming, time_step

__all__ = ["ImageLoader", "Sampled", "StepTiming", "loader", "sample", "time_step"]
