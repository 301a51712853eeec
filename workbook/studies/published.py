"""The papers' printed values as tables: for ticks in figures, and for columns beside measured values."""

from __future__ import annotations

import pandas as pd

from workbook.claims.papers import load_papers
from workbook.hardware.profile import load_profile
from workbook.words import label


def speed_ups(study: str, column: str = "precision") -> pd.DataFrame:
    """Return throughput ratios between values of `column` in claims on a study, a row per end of a printed range.

    All are of one device. Columns: `model`, `image_px`, `column` (of the faster side), `value`, `label` (its paper).
    """
    rows = []
    for paper in load_papers():
        tests = [test for claim in paper.claims for test in claim.tests if claim.studies_of(test)[0] == study]
        for test in tests:
            if test.metric != "images_per_s" or column not in test.over or test.over.get("devices", 1) != 1:
                continue
            faster = str(test.over[column])
            about = {column: faster, "label": f"{label(column, faster)}, {paper.name} paper"}
            for printed in test.published:
                chosen = test.select | printed.select
                place = {"model": test.select.get("model"), "image_px": chosen.get("image_px")}
                rows += [{**place, **about, "value": end} for end in printed.ends]
    return pd.DataFrame(rows, columns=["model", "image_px", column, "value", "label"])


def by_precision(study: str, metric: str) -> pd.DataFrame:
    """Return a metric that papers print by network and precision: `model`, `precision`, `value` (SI), `label`."""
    rows = [
        {"model": model, "precision": precision, "value": table.si(model, precision), "label": f"{paper.name} paper"}
        for paper in load_papers()
        for table in paper.tables
        if (table.study, table.metric, table.columns_are) == (study, metric, "precision")
        for model in table.rows
        for precision in table.columns
    ]
    return pd.DataFrame(rows, columns=["model", "precision", "value", "label"])


def statistics(metric: str, model: str) -> pd.DataFrame:
    """Return papers' values of a metric of a network in training: `device`, `lowest`, `mean`, `highest` (SI), `limit`.

    `limit` is the power limit of all boards together in watts; `device` also names the paper.
    """
    rows = [
        {
            "device": f"{load_profile(name).title} ({paper.name} paper)",
            **{column: table.si(row, name) for column, row in _STATISTICS.items()},
            "limit": load_profile(name).power_limit_w,
        }
        for paper in load_papers()
        for table in paper.tables
        if (table.metric, table.model, table.workload) == (metric, model, "train")
        for name in table.columns
    ]
    return pd.DataFrame(rows, columns=["device", *_STATISTICS, "limit"])


_STATISTICS = {"lowest": "min", "mean": "mean", "highest": "max"}
