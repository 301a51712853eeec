"""Recorded results as tables: the registry's metrics, the tidy table of results, and the arithmetic on it.

load, Results                  recorded results as DataFrames
estimate, ratio, difference    the only arithmetic on them
"""

from labkit.results.columns import describe
from labkit.results.estimates import difference, estimate, ratio
from labkit.results.load import (
    REPORT_VARIABLE,
    is_report,
    load,
    other_hosts,
    records_of_host,
    reports_folder,
    study_records,
)
from labkit.results.table import Results

__all__ = [
    "REPORT_VARIABLE",
    "Results",
    "describe",
    "difference",
    "estimate",
    "is_report",
    "load",
    "other_hosts",
    "ratio",
    "records_of_host",
    "reports_folder",
    "study_records",
]
