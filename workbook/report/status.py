"""Read and write `run.json`: how each study of a report ended, and its command. Written after every study."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from labkit.files import replacing


@dataclass(frozen=True)
class StudyRun:
    """How the latest run of one study ended."""

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
    """Return the latest run by study id; {} without a file, or for a damaged file or one of an older version."""
    try:
        values = json.loads((report / "run.json").read_text(encoding="utf-8"))
        return TypeAdapter(dict[str, StudyRun]).validate_python(values["studies"])
    except (OSError, ValueError, TypeError, KeyError):
        return {}


def write_run(report: Path, study: str, run: StudyRun) -> None:
    """Add or replace one study's entry in `run.json`."""
    runs = {**read_runs(report), study: run}
    text = json.dumps({"studies": {name: asdict(runs[name]) for name in sorted(runs)}}, indent=1, ensure_ascii=False)
    with replacing(report / "run.json") as new:
        new.write_text(text + "\n", encoding="utf-8")
