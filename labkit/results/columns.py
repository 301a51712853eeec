"""The columns of a table of results, by what they say."""

from __future__ import annotations

from dataclasses import fields

from labkit.trial import ASKED_AFTER, Trial

# What ran: the fields of a trial, and `mode`, the name of its way of execution.
WHAT_RAN = ["mode", *(field.name for field in fields(Trial))]
# Whose records: passes of one profile, study and host belong together.
RECORDS = ["profile", "study", "host"]
WHERE_AND_WHEN = [
    *RECORDS,
    *("device_name", "pass_number", "process", "protocol", "scale", "started_at", "commit", "record"),
]
HOW_IT_ENDED = ["status", "reason"]

__all__ = ["ASKED_AFTER", "HOW_IT_ENDED", "RECORDS", "WHAT_RAN", "WHERE_AND_WHEN"]
