"""Predicts step times of a device without records, with intervals that were checked by leaving devices out.

published    public tables of measured times, with their source and licence
laws         the two laws: by kernel class within a chip, by two exponents between chips
guarantee    how the laws did on devices that were left out: errors and coverage
device       a prediction for recorded configurations, or the reason why there is none
"""

from workbook.prediction.device import predict
from workbook.prediction.guarantee import coverage, left_out
from workbook.prediction.published import load_published

__all__ = ["coverage", "left_out", "load_published", "predict"]
