"""When the test of a claim was last changed, from version control: beside it stand the dates of its records."""

from __future__ import annotations

import datetime
import re
import subprocess
from pathlib import Path
from typing import Any

import yaml

from labkit.claims.papers import PAPERS

NOT_A_TEST = ("because",)  # of a test: the reason for its bound


def committed(folder: Path = PAPERS) -> dict[str, str]:
    """Claim -> the day (UTC) on which a line of its tests was last committed: `2026-11-21`.

    Claims with changes that are not committed are left out, and all of them where git does not know the history.
    """
    days = {}
    for path in sorted(folder.glob("*.yaml")):
        of_line = _days_of_lines(path)
        for claim, lines in _lines_of_tests(path.read_text(encoding="utf-8")).items():
            found = [of_line[line] for line in lines] if of_line else [""]
            if all(found):
                days[claim] = max(found)
    return days


def _lines_of_tests(text: str) -> dict[str, list[int]]:
    """Claim -> the lines of its tests, counted from 0."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    fields_of_paper = {key.value: value.value for key, value in root.value} if root else {}
    claims: list[Any] = fields_of_paper.get("claims", [])
    lines: dict[str, list[int]] = {}
    for claim in claims:
        fields = {key.value: value for key, value in claim.value}
        pairs = [pair for test in fields["tests"].value for pair in test.value if pair[0].value not in NOT_A_TEST]
        spans = [(key.start_mark.line, max(value.end_mark.line, key.start_mark.line + 1)) for key, value in pairs]
        lines[fields["id"].value] = sorted({line for first, end in spans for line in range(first, end)})
    return lines


def _days_of_lines(path: Path) -> list[str]:
    """The day of each line's commit, "" where it has none; empty where git does not know."""
    try:
        if _git(path.parent, "rev-parse", "--is-shallow-repository") != "false":
            return []
        told = _git(path.parent, "blame", "--line-porcelain", "--root", "--", path.name)
    except (OSError, subprocess.CalledProcessError):
        return []
    commits = re.findall(r"^([0-9a-f]{40}) \d+ \d+", told, re.MULTILINE)  # all zeros where it is not committed
    times = re.findall(r"^committer-time (\d+)$", told, re.MULTILINE)
    days = [datetime.datetime.fromtimestamp(int(time), datetime.UTC).strftime("%Y-%m-%d") for time in times]
    return [day if int(commit, 16) else "" for commit, day in zip(commits, days, strict=True)]


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip("\n")
