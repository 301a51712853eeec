"""The helpers that work alone, in a notebook or script: batches of images, the time of a step, sensors of a block.

Importing this room imports no framework; calling a helper does.
"""

from labkit.helpers.loading import ImageLoader, loader
from labkit.helpers.sampling import Sampled, sample
from labkit.helpers.timing import StepTiming, time_step

__all__ = ["ImageLoader", "Sampled", "StepTiming", "loader", "sample", "time_step"]
