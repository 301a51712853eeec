"""Records: the line that a trial leaves, the append-only store, series of telemetry, and what a page selects."""

from labkit.records.record import (
    PROTOCOL,
    SCHEMA,
    Blocks,
    Epoch,
    Epochs,
    Planned,
    Process,
    Queries,
    Record,
    Status,
    parse_line,
    short_hash,
    utc_now,
)

__all__ = [
    "PROTOCOL",
    "SCHEMA",
    "Blocks",
    "Epoch",
    "Epochs",
    "Planned",
    "Process",
    "Queries",
    "Record",
    "Status",
    "parse_line",
    "short_hash",
    "utc_now",
]
