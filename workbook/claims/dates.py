"""The time at which the tests of a claim last changed, from git; pages compare it with the times of the records."""

from __future__ import annotations

import datetime
import re
import subprocess
from pathlib import Path
from typing import Any

import yaml

from workbook.claims.papers import PAPERS

NOT_A_TEST = ("because",)  # fields of a test that decide nothing: `because` is the reason for the bound


def committed(folder: Path = PAPERS) -> dict[str, str]:
    """Return claim id -> the time (UTC) of the last commit to a line of its tests: `2026-11-21 16:32`.

    Claims with uncommitted changes are left out. The result is empty without git, and in a shallow clone.
    """
    moments = {}
    for path in sorted(folder.glob("*.yaml")):
        of_line = _times_of_lines(path)
        for claim, lines in _lines_of_tests(path.read_text(encoding="utf-8")).items():
            times_of_tests = [of_line[line] for line in lines] if of_line else [""]
            if all(times_of_tests):
                moments[claim] = max(times_of_tests)
    return moments


def _lines_of_tests(text: str) -> dict[str, list[int]]:
    """Return claim id -> the line numbers of its tests, counted from 0."""
    root = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    fields_of_paper = {key.value: value.value for key, value in root.value} if root else {}
    claims: list[Any] = fields_of_paper.get("claims", [])
    lines: dict[str, list[int]] = {}
    for claim in claims:
        fields = {key.value: value for key, value in claim.value}
        pairs = [pair for test in fields["tests"].value for pair in test.value if pair[0].value not in NOT_A_TEST]
        spans = [(key.start_mark.line, max(value.end_mark.line, key.start_mark.line + 1)) for key, value in pairs]
        lines[fields["id"].value] = sorted({line for first, end in spans for line in range(first, end)})
    return lines


def _times_of_lines(path: Path) -> list[str]:
    """Return the time of each line's commit, "" for an uncommitted line; empty without git or its whole history."""
    try:
        if _git(path.parent, "rev-parse", "--is-shallow-repository") != "false":
            return []
        blame = _git(path.parent, "blame", "--line-porcelain", "--root", "--", path.name)
    except (OSError, subprocess.CalledProcessError):
        return []
    commits = re.findall(r"^([0-9a-f]{40}) \d+ \d+", blame, re.MULTILINE)  # all zeros for an uncommitted line
    seconds = re.findall(r"^committer-time (\d+)$", blame, re.MULTILINE)
    times = [datetime.datetime.fromtimestamp(int(time), datetime.UTC).strftime("%Y-%m-%d %H:%M") for time in seconds]
    return [time if int(commit, 16) else "" for commit, time in zip(commits, times, strict=True)]


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip("\n")
