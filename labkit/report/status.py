"""`run.json`: how each study of a report ended, and with which command; written after every study."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from labkit.places import replacing


@dataclass(frozen=True)
class StudyRun:
    """How one study ended last."""

    status: str  # "ok" or "failed"
    reason: str | None
    duration_s: float
    command: str
    mode: str
    scale: str
    host: str
    commit: str | None
    finished_at: str


def read_runs(report: Path) -> dict[str, StudyRun]:
    """Study id -> how it ended; {} before the first, and for a file that an older version or an editor broke."""
    try:
        values = json.loads((report / "run.json").read_text(encoding="utf-8"))
        return {study: StudyRun(**run) for study, run in values["studies"].items()}
    except (OSError, ValueError, TypeError, KeyError):
        return {}


def write_run(report: Path, study: str, run: StudyRun) -> None:
    """Add or replace one study's entry."""
    runs = {**read_runs(report), study: run}
    text = json.dumps({"studies": {name: asdict(runs[name]) for name in sorted(runs)}}, indent=1, ensure_ascii=False)
    with replacing(report / "run.json") as new:
        new.write_text(text + "\n", encoding="utf-8")
