"""Dispersion of values, and quantiles of Student's t."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def coefficient_of_variation(values: Sequence[float]) -> float | None:
    """Return the standard deviation over the mean; None for fewer than two values."""
    if len(values) < 2:
        return None
    array = np.asarray(values, dtype=float)
    return float(array.std(ddof=1) / array.mean())


def t_quantile(confidence: float, degrees: float) -> float:
    """Return the two-sided quantile of Student's t distribution."""
    from scipy.special import ndtri, stdtrit  # scipy.stats has the same function, but takes a second to import

    share = 0.5 + confidence / 2
    return float(ndtri(share) if math.isinf(degrees) else stdtrit(degrees, share))
