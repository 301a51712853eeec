"""Times of steps, except those that an earlier trace in the process may have delayed."""

from __future__ import annotations

from workbook.records import Blocks, Record
from workbook.records.after_traces import launched_slowly
from workbook.results.missing import Missing

SLOWED = "withdrawn: an earlier trace slowed it; the next report measures it again"


def check_in_time(record: Record) -> None:
    """Raise Missing if an earlier trace may have delayed the steps of a record."""
    if launched_slowly(record):
        raise Missing(SLOWED)


def blocks_in_time(record: Record) -> Blocks:
    """Return the timed blocks of a record that has some. Raise Missing as `check_in_time`."""
    assert record.blocks is not None
    check_in_time(record)
    return record.blocks
