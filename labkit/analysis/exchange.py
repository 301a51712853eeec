"""The report's numbers for other programs: one tidy frame, a row a trial and metric, unrounded and in SI units."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import pandas as pd

from labkit.analysis.results import Results, measured_gpus
from labkit.analysis.verdicts.evidence import Side, level
from labkit.registry import METRICS
from labkit.trial import NO_DATA, Trial

_OF_TRIAL = [field.name for field in fields(Trial)]
_OF_NETWORKS = ("model", "image_px", "classes", "stem", "head", "batch", "optimizer", "learning_rate", "augment")
COLUMNS = [
    *("profile", "device_name", "host", "study", "scale", "protocol", "commit"),
    *(f"trial_{name}" for name in _OF_TRIAL),
    *("metric", "unit", "value", "low", "high", "confidence", "n", "status", "reason", "records"),
]


def numbers(shown: Iterable[Results]) -> pd.DataFrame:
    """Mean with 95 % interval of every metric of every trial; a trial without a result has one row with its reason."""
    rows = [row for results in shown for trial in results.by_trial for row in _of_trial(results, trial)]
    frame = pd.DataFrame(rows, columns=COLUMNS)
    for name in ("batch", "image_px", "classes"):  # an absent count must not make the others fractions
        frame[f"trial_{name}"] = pd.Series([row[f"trial_{name}"] for row in rows], dtype=object)
    return frame


def _of_trial(results: Results, trial: Trial) -> list[dict[str, Any]]:
    records = results.by_trial[trial]
    lines = ",".join(map(str, results.lines_of(trial)))
    gpus = measured_gpus(results.profile, results.host)
    common = {
        "profile": results.profile.name,
        "device_name": gpus[0] if gpus and trial.device == "cuda" else results.host.get("cpu"),
        "host": results.host_id,
        "study": results.study.id,
        "scale": results.scale,
        "protocol": records[0].protocol,
        "commit": " ".join(sorted({record.versions.get("commit", "unknown") for record in records})),
        **{f"trial_{name}": _field(trial, name) for name in _OF_TRIAL},
        "records": f"{results.file()}:{lines}",
    }
    side = Side(results, trial)
    rows = []
    for metric in METRICS.values():
        found = level(side, metric.name)
        if found:
            cost = results.profile.cost
            unit = cost.currency if cost and metric.unit == "currency" else metric.si_unit
            about = {"metric": metric.name, "unit": unit, "value": found.point, "low": found.low}
            about |= {"high": found.high, "confidence": found.confidence, "n": found.n, "status": "ok"}
            rows.append({**common, **about})
    failed = [record for record in records if record.status != "ok"]
    if not failed:
        return rows
    # A failure is a row, also where other passes have a result.
    reasons = list(dict.fromkeys(record.reason for record in failed if record.reason))
    status = "; ".join(dict.fromkeys(record.status for record in failed))
    return [*rows, {**common, "n": 0, "status": status, "reason": "; ".join(reasons) or None}]


def _field(trial: Trial, name: str) -> Any:
    """A field of a trial; None of a ceiling's or an idle trial's, which have no network and no images."""
    if trial.data == NO_DATA and name in _OF_NETWORKS:
        return None
    return getattr(trial, name)
