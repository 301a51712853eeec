"""Functions for figures: `lines`, `series` (continuous axes), `dots`, `stack` (rows).

Each returns a `Figure` of a DataFrame: one row per configuration, host and pass, or the output of `estimate`, `ratio`
or `difference` (columns `value`, `low`, `high`). Tables hold SI values; drawings use display units.
"""

from workbook.show.rows import dots, stack
from workbook.show.sweeps import lines, series

__all__ = ["dots", "lines", "series", "stack"]
