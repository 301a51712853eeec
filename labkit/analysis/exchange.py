"""The report's numbers for other programs: one tidy frame, a row a trial and metric, unrounded and in SI units."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import pandas as pd

from labkit.analysis.evidence import Side, level
from labkit.analysis.results import Results, measured_gpus
from labkit.registry import METRICS
from labkit.trial import Trial

_OF_TRIAL = [field.name for field in fields(Trial)]
COLUMNS = [
    *("profile", "device_name", "host", "study", "scale", "protocol", "commit"),
    *(f"trial_{name}" for name in _OF_TRIAL),
    *("metric", "unit", "value", "low", "high", "confidence", "n", "status", "reason", "records"),
]


def numbers(shown: Iterable[Results]) -> pd.DataFrame:
    """Mean with 95 % interval of every metric of every trial; a trial without a result has one row with its reason."""
    rows = [row for results in shown for trial in results.by_trial for row in _of_trial(results, trial)]
    return pd.DataFrame(rows, columns=COLUMNS)


def _of_trial(results: Results, trial: Trial) -> list[dict[str, Any]]:
    records = results.by_trial[trial]
    lines = ",".join(map(str, results.lines_of(trial)))
    gpus = measured_gpus(results.profile, results.host)
    common = {
        "profile": results.profile.name,
        "device_name": gpus[0] if gpus else results.host.get("cpu"),
        "host": results.host_id,
        "study": results.study.id,
        "scale": results.scale,
        "protocol": records[0].protocol,
        "commit": " ".join(sorted({record.versions.get("commit", "unknown") for record in records})),
        **{f"trial_{name}": getattr(trial, name) for name in _OF_TRIAL},
        "records": f"{results.file()}:{lines}",
    }
    side = Side(results, trial)
    rows = []
    for metric in METRICS.values():
        found = level(side, metric.name)
        if found:
            about = {"metric": metric.name, "unit": metric.si_unit, "value": found.point, "low": found.low}
            about |= {"high": found.high, "confidence": found.confidence, "n": found.n, "status": "ok"}
            rows.append({**common, **about})
    if rows:
        return rows
    return [{**common, "n": 0, "status": records[-1].status, "reason": records[-1].reason}]
