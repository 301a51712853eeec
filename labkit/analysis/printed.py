"""Tables that papers printed, as they printed them."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from labkit.analysis.table import Table
from labkit.models import MODELS
from labkit.papers import Paper
from labkit.registry import METRICS


def tables(
    papers: Sequence[Paper], study: str, *, device: str | None = None, metric: str | None = None
) -> list[tuple[str, pd.DataFrame, str]]:
    """(title, frame, where it stands) of each published table of a study, numbers as printed.

    With `device`, only the tables in which that profile's hardware stands; with `metric`, only those of that metric.
    """
    found = []
    for paper in papers:
        printed = {device.profile: device.printed for device in paper.devices}
        for table in paper.tables:
            if table.study != study or (device and device not in table.columns) or metric not in (None, table.metric):
                continue
            frame = pd.DataFrame(
                [
                    {
                        "": MODELS[row].title if row in MODELS else row,
                        **{printed.get(c, c): f"{v:.10g}" for c, v in zip(table.columns, values, strict=True)},
                    }
                    for row, values in table.rows.items()
                ]
            )
            about = METRICS[table.metric]
            of = f", {MODELS[table.model].title if table.model in MODELS else table.model}" if table.model else ""
            where = f"{paper.citation.title}, {table.where}" + (f"; {table.note}" if table.note else "")
            found.append((f"Published: {about.label.lower()} in {table.unit}{of}", frame, where))
    return found


def of_metric(papers: Sequence[Paper], study: str, *, metric: str) -> list[Table]:
    """The published tables of one metric, as tables that show themselves."""
    return [Table(frame, f"{name} ({where}).") for name, frame, where in tables(papers, study, metric=metric)]
