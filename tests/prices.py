"""The price of each feature, and the ratchet that keeps the code from growing unseen.

    python -m tests.prices            what `make lint` runs: bounds of pyproject.toml, and the table in ARCHITECTURE.md
    python -m tests.prices --write    write the table

A line of code is a line that is not blank, a comment or part of a docstring. A function is called once if its name
appears once in both packages besides its definition and imports.
"""

from __future__ import annotations

import ast
import gzip
import io
import json
import sys
import tokenize
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
ARCHITECTURE = ROOT / "ARCHITECTURE.md"
BEGIN, END = "<!-- prices: begin -->\n", "<!-- prices: end -->\n"
PACKAGES = ("labkit", "workbook")
SLACK = 0.98  # a bound is lowered once the code is this much smaller
SIZE_WORDS = ("several", "largest", "smallest")  # of claims: they stand for sizes above the default
_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


@dataclass(frozen=True)
class Feature:
    """A line of `workbook/features.yaml`, which explains the fields."""

    feature: str
    modules: list[str]
    person: str
    records: list[dict[str, Any]] | None = None
    claims: list[dict[str, Any]] | None = None
    metrics: tuple[str, ...] = ()
    pages: tuple[int, ...] = ()
    hypothesis: date | None = None
    library: str = ""


@cache
def features() -> list[Feature]:
    """Return the features in the order of the file."""
    listed = yaml.safe_load((ROOT / "workbook" / "features.yaml").read_text(encoding="utf-8"))
    return [
        Feature(**{key: tuple(value) if key in ("metrics", "pages") else value for key, value in one.items()})
        for one in listed
    ]


def sources(folder: str) -> list[Path]:
    """Return the Python files of a folder, sorted."""
    return sorted((ROOT / folder).rglob("*.py"))


@cache
def code_lines(path: Path) -> int:
    """Return the lines of code of a file."""
    text = path.read_text(encoding="utf-8")
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(
            node
        ):
            lines.difference_update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


def owners() -> dict[Path, list[str]]:
    """Return by module the features with the longest fitting path: one, if the list is right."""
    owned: dict[Path, list[str]] = {}
    for path in [path for package in PACKAGES for path in sources(package)]:
        name = path.relative_to(ROOT).as_posix()
        fitting = [
            (len(part), one.feature) for one in features() for part in one.modules if f"{name}/".startswith(f"{part}/")
        ]
        owned[path] = [feature for length, feature in fitting if length == max(fitting)[0]]
    return owned


def called_once() -> list[str]:
    """Return the functions of both packages that are called once, as `file:name`."""
    defined: dict[str, list[str]] = defaultdict(list)
    mentions: Counter[str] = Counter()
    for path in [path for package in PACKAGES for path in sources(package)]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                defined[node.name].append(f"{path.relative_to(ROOT)}:{node.name}")
            elif isinstance(node, ast.Name):
                mentions[node.id] += 1
            elif isinstance(node, ast.Attribute):
                mentions[node.attr] += 1
    return sorted(places[0] for name, places in defined.items() if len(places) == 1 and mentions[name] == 1)


def sizes() -> dict[str, int]:
    """Return what the ratchet bounds, by its name in pyproject.toml."""
    lines = {f"{folder}_code_lines": sum(map(code_lines, sources(folder))) for folder in (*PACKAGES, "tests")}
    labkit = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in sources("labkit"))
    files = {f"{folder}_files": len(sources(folder)) for folder in (*PACKAGES, "tests")}
    return {"labkit_lines": labkit, **lines, **files, "functions_called_once": len(called_once())}


def bounds() -> dict[str, int]:
    """Return the bounds of `sizes`."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return dict(table["tool"]["ratchet"])


@cache
def recorded() -> list[dict[str, Any]]:
    """Return the trials of the committed records that have a number, one for each record."""
    from tests.committed import committed_reports

    trials = []
    for path in sorted(committed_reports().glob("*/records/*/*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            trials += [line["trial"] for line in map(json.loads, lines) if line["status"] == "ok"]
    return trials


def fits_one(trial: dict[str, Any], selections: list[dict[str, Any]] | None) -> bool:
    """Return whether a trial has the values of one of the selections."""
    return any(all(_fits(trial.get(name), value) for name, value in one.items()) for one in selections or [])


def _fits(value: Any, wanted: Any) -> bool:
    if wanted == ">0" or wanted == ">1":
        return value in SIZE_WORDS or (isinstance(value, int) and value > int(wanted[1]))
    if wanted == "given":
        return bool(value)
    return value in (wanted if isinstance(wanted, list) else [wanted])


def claims_of(feature: Feature) -> list[str]:
    """Return the ids of the claims with a test that selects a feature's values or names one of its metrics."""
    from workbook.claims.papers import load_papers

    def rests_on_it(test: Any) -> bool:
        named = bool(feature.metrics) and test.metric.startswith(feature.metrics)
        return named or any(fits_one(trial, feature.claims or feature.records) for trial in _selected(test))

    return [claim.id for paper in load_papers() for claim in paper.claims if any(map(rests_on_it, claim.tests))]


def _selected(test: Any) -> Iterable[dict[str, Any]]:
    """Yield trials as a test selects them: its values, and the defaults of the fields that it does not name."""
    from workbook.trials.trial import Trial

    defaults = {field.name: field.default for field in fields(Trial)}
    for side in (test.over, test.under) if test.over else ({},):
        chosen = {**test.select, **side, **({test.along: test.order} if test.order else {})}
        if test.along and not test.order:
            chosen.setdefault(test.along, "several" if isinstance(defaults.get(test.along), int) else "")
        wide = {name: value if isinstance(value, list) else [value] for name, value in chosen.items()}
        for name, values in wide.items():
            for value in values:
                yield {**defaults, **{other: listed[0] for other, listed in wide.items()}, name: value}


def table() -> str:
    """Return the price list as a table of Markdown."""
    owned, trials = owners(), recorded()
    rows = ["| feature | code lines | files | records | claims | pages | person |", "|---|--:|--:|--:|--:|---|---|"]
    for one in features():
        modules = [path for path, [feature] in owned.items() if feature == one.feature]
        records = str(sum(fits_one(trial, one.records) for trial in trials)) if one.records else "all"
        claims = str(len(claims_of(one))) if one.records or one.metrics else "all"
        waits = f" (no record since {one.hypothesis})" if one.hypothesis else ""
        pages = ", ".join(f"{page:02d}" for page in one.pages) or "all"
        lines = sum(map(code_lines, modules))
        rows.append(
            f"| {one.feature}{waits} | {lines:,} | {len(modules)} | {records} | {claims} | {pages} | {one.person} |"
        )
    return "\n".join(rows) + "\n"


def main(arguments: list[str]) -> int:
    """Check the bounds and the table, or write the table. Return 0, or 1 after a sentence for each fault."""
    text = ARCHITECTURE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    renewed = before + BEGIN + "\n" + table() + "\n" + END + after
    if "--write" in arguments:
        ARCHITECTURE.write_text(renewed, encoding="utf-8")
        return 0
    faults = [
        f"{name} is {size:,}, above its bound of {bounds()[name]:,} in pyproject.toml: remove code, or raise the bound "
        "with a reason in the commit"
        for name, size in sizes().items()
        if size > bounds()[name]
    ]
    faults += [
        f"{name} is {size:,}: lower its bound of {bounds()[name]:,} in pyproject.toml"
        for name, size in sizes().items()
        if size < SLACK * bounds()[name] and name != "labkit_lines"  # whose bound is a promise
    ]
    faults += ["the price list in ARCHITECTURE.md is old: run `python -m tests.prices --write`"] * (renewed != text)
    print("\n".join(faults) or f"prices: {', '.join(f'{name} {size:,}' for name, size in sizes().items())}")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
