"""Recorded results as tables: the registry's metrics, the tidy table of results, and the arithmetic on it.

load, Results                  recorded results as DataFrames
estimate, ratio, difference    the only arithmetic on them
"""

from workbook.paths import reports_folder
from workbook.results.columns import describe
from workbook.results.estimates import difference, estimate, ratio
from workbook.results.load import (
    REPORT_VARIABLE,
    as_in_report,
    is_report,
    load,
    other_hosts,
    records_of_host,
    study_records,
)
from workbook.results.table import Results

__all__ = [
    "REPORT_VARIABLE",
    "Results",
    "as_in_report",
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
