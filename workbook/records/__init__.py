"""Records of trials: their JSON lines, the append-only store, telemetry series, and selection for pages."""

from workbook.records.record import (
    PROTOCOL,
    SCHEMA,
    TRIED,
    Blocks,
    Epoch,
    Epochs,
    Planned,
    Process,
    Queries,
    Record,
    Status,
    parse_line,
    result_of,
    short_hash,
    utc_now,
)

__all__ = [
    "PROTOCOL",
    "SCHEMA",
    "TRIED",
    "Blocks",
    "Epoch",
    "Epochs",
    "Planned",
    "Process",
    "Queries",
    "Record",
    "Status",
    "parse_line",
    "result_of",
    "short_hash",
    "utc_now",
]
