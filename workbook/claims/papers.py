"""Read `papers/*.yaml` as `Paper`: citation, hardware, printed numbers with their place in the paper, and claims.

Git tells when the rule of a verdict last changed. Pages compare that time with the times of the records.
"""

from __future__ import annotations

import datetime
import json
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, Field, ValidationError, model_validator

from labkit.errors import UserError, unknown
from workbook.claims.schema import Claim, MetricName, ProfileName, StudyId, Test
from workbook.claims.stories import Story
from workbook.hardware.profile import profile_names, read_yaml
from workbook.paths import ROOT
from workbook.records import short_hash

PAPERS = ROOT / "papers"
DECIDES_NOTHING = ("because", "beside")  # fields of a test: the reason for its bound, and what is shown beside it


class _Part(BaseModel, extra="forbid", frozen=True):
    """A part of a paper's file, immutable after reading. Unknown keys are errors."""


class Citation(_Part):
    """Title, authors, institution and date of a paper."""

    title: str
    authors: list[str]
    institution: str
    published: str  # as precise as the paper


class Setup(_Part):
    """The paper's set-up as printed; `frameworks`, `data_sets` and `precisions` hold values of `Trial`."""

    framework: str
    data: str
    models: list[str]
    frameworks: list[str] = []
    data_sets: list[str] = []
    precisions: list[str] = ["fp32"]


class PaperDevice(_Part):
    """A device as the paper prints it, with its profile and its place in the paper."""

    profile: ProfileName
    printed: str
    where: str


class PrintedTable(_Part):
    """A printed table without results: hardware, batch sizes, iterations."""

    title: str
    columns: list[str]
    rows: dict[str, list[str | float | None]]
    where: Annotated[str, Field(min_length=1)]
    note: str = ""

    @model_validator(mode="after")
    def _is_rectangular(self) -> PrintedTable:
        _check_rows(self.rows, self.columns)
        return self


class Exhibit(_Part):
    """A table or figure of the paper: the studies that measure its counterpart, or what is missing and why."""

    title: str
    where: Annotated[str, Field(min_length=1)]
    studies: list[StudyId] = []
    missing: str = ""

    @model_validator(mode="after")
    def _has_a_counterpart_or_a_reason(self) -> Exhibit:
        if not self.studies and not self.missing:
            raise ValueError(f"{self.title}: give the `studies` with a counterpart, or the reason in `missing`")
        return self


class PublishedRun(_Part):
    """A training of the paper: network, framework, number of devices and length.

    `batch` is the printed batch of all devices of one node together. Either `iterations` or `epochs` is given.
    `speed_up` is relative to one device, where the paper prints it.
    """

    framework: str
    model: str
    image_px: int = Field(ge=1)
    device: Literal["cuda", "cpu"] = "cuda"
    devices: int = Field(1, ge=1)
    nodes: int = Field(1, ge=1)
    batch: int = Field(ge=1)
    iterations: int | None = Field(None, ge=1)
    epochs: int | None = Field(None, ge=1)
    speed_up: float | None = Field(None, gt=0)
    where: Annotated[str, Field(min_length=1)]

    @model_validator(mode="after")
    def _has_one_length_and_shares_its_batch(self) -> PublishedRun:
        if (self.iterations is None) == (self.epochs is None):
            raise ValueError("a run needs its length in either `iterations` or `epochs`")
        if self.devices % self.nodes or self.batch % (self.devices // self.nodes):
            raise ValueError(f"{self.devices} devices of {self.nodes} nodes can't share a batch of {self.batch}")
        return self

    @property
    def batch_of_device(self) -> int:
        """Images per device and step."""
        return self.batch // (self.devices // self.nodes)

    @property
    def samples(self) -> int | None:
        """Images of the whole run; None if its length is in epochs."""
        return None if self.iterations is None else self.iterations * self.batch * self.nodes


class PublishedTable(_Part):
    """Printed numbers of one metric, in `unit`: a row per statistic or model, a column per profile or precision."""

    metric: MetricName
    unit: str
    to_si: float = Field(gt=0)  # stored SI value = printed value * to_si
    study: StudyId
    model: str = ""  # only if rows are statistics
    workload: Literal["train", "infer", "idle"]
    columns_are: Literal["profile", "precision"] = "profile"
    rows_are: Literal["statistic", "model"] = "statistic"
    columns: list[str]
    rows: dict[str, list[float]]
    where: Annotated[str, Field(min_length=1)]
    note: str = ""

    @model_validator(mode="after")
    def _names_its_model_once(self) -> PublishedTable:
        if bool(self.model) != (self.rows_are == "statistic"):
            raise ValueError("a table of statistics names its model; a table whose rows are models must not")
        profiles = profile_names()
        for name in self.columns if self.columns_are == "profile" else []:
            if name not in profiles:
                raise ValueError(f"{unknown('profile', name, profiles)}")
        _check_rows(self.rows, self.columns)
        return self

    def si(self, row: str, column: str) -> float:
        """Return one number in SI units."""
        return self.rows[row][self.columns.index(column)] * self.to_si


class Paper(_Part):
    """One paper; pages call it by `name`, one or two words. `later` sources are counted apart from the five papers."""

    id: str
    later: bool = False
    name: Annotated[str, Field(min_length=1)]
    citation: Citation
    setup: Setup
    devices: list[PaperDevice]
    printed: list[PrintedTable] = []
    tables: list[PublishedTable] = []
    runs: list[PublishedRun] = []
    exhibits: list[Exhibit] = []  # every table and figure, in the paper's order
    claims: list[Claim] = []
    story: Story | None = None

    @model_validator(mode="after")
    def _claims_are_its_own(self) -> Paper:
        ids = [claim.id for claim in self.claims]
        for claim_id in ids:
            if not claim_id.startswith(f"{self.id}-"):
                raise ValueError(f"claims: the id {claim_id!r} does not begin with {self.id}-")
            if ids.count(claim_id) > 1:
                raise ValueError(f"claims: the id {claim_id!r} is given twice")
        return self

    @model_validator(mode="after")
    def _story_is_of_its_claims(self) -> Paper:
        if not self.story:
            return self
        ids = [claim.id for claim in self.claims]
        for claim_id in [*self.story.outcomes, self.story.figure.claim]:
            if claim_id not in ids:
                raise ValueError(f"story: {unknown('claim', claim_id, ids)}")
        figure = self.story.figure
        tests = next(claim.tests for claim in self.claims if claim.id == figure.claim)
        if not any(test.published for test in tests[figure.test : figure.test + 1]):
            raise ValueError(f"story: test {figure.test} of its figure has no `published` magnitude")
        return self

    @property
    def figure_test(self) -> Test:
        """The test whose printed magnitudes the story's figure shows."""
        assert self.story
        figure = self.story.figure
        return next(claim.tests[figure.test] for claim in self.claims if claim.id == figure.claim)


def _check_rows(rows: Mapping[str, Sequence[object]], columns: Sequence[str]) -> None:
    for name, values in rows.items():
        if len(values) != len(columns):
            raise ValueError(f"row {name!r} has {len(values)} values for {len(columns)} columns")


def _explain(problem: Any) -> str:
    message = problem["msg"].removeprefix("Value error, ").rstrip(".")
    return ": ".join(filter(None, [".".join(map(str, problem["loc"])), message]))


def load_papers(folder: Path = PAPERS) -> list[Paper]:
    """Return every paper, sorted by id, then the later sources.

    Raise UserError with file and field if a paper does not fit the schema.
    """
    papers = []
    for path in sorted(folder.glob("*.yaml")):
        try:
            papers.append(Paper.model_validate({**read_yaml(path), "id": path.stem}))
        except ValidationError as error:
            problems = "; ".join(map(_explain, error.errors()))
            raise UserError(f"papers/{path.name}: {problems}.") from error
    return sorted(papers, key=lambda paper: paper.later)


def committed(folder: Path = PAPERS) -> dict[str, str]:
    """Return claim id -> the time (UTC) of the commit that last changed its rule: `2026-11-21 16:32`.

    Claims with uncommitted changes are left out. The result is empty without git, and in a shallow clone.
    """
    moments = {}
    for path in sorted(folder.glob("*.yaml")):
        versions = _versions(path)
        for claim, rule in rules_of(path.read_bytes()).items():
            same = [*takewhile(lambda version: version[1].get(claim) == rule, versions)]  # noqa: B023 - used at once
            if same:
                moments[claim] = same[-1][0]
    return moments


def rules_of(text: bytes) -> dict[str, str]:
    """Return claim id -> the hash of all that decides its verdict and whether it counts, from the file of a paper.

    These are its tests with their studies, selections and bounds, `only` and `mark`.
    """
    paper = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - a SafeLoader
    rules = {}
    for claim in paper.get("claims", []):
        tests = [
            {"study": claim.get("studies", [])[:1]} | {name: test[name] for name in test if name not in DECIDES_NOTHING}
            for test in claim.get("tests", [])
        ]
        rules[claim["id"]] = short_hash(json.dumps([tests, claim.get("only"), claim.get("mark")], sort_keys=True))
    return rules


def _versions(path: Path) -> list[tuple[str, dict[str, str]]]:
    """Return the time and the rules of each committed version, the newest first; [] without git or all its history."""
    log = history(path.parent, path.name)
    return _parsed(path, log) if log else []


def history(folder: Path = PAPERS, name: str = ".") -> str:
    """Return hash and time of each commit that changed a paper, by default any; empty without git or all its history.

    The same history of the same papers gives the same `committed`, which takes seconds to read.
    """
    try:
        if _git(folder, "rev-parse", "--is-shallow-repository").strip() != b"false":
            return ""
        log = _git(folder, "log", "--first-parent", "--format=%H %ct", "--diff-filter=AM", "--", name)
        return log.decode("ascii")
    except (OSError, subprocess.CalledProcessError):
        return ""


@cache  # a site asks twice, and reading all versions takes seconds
def _parsed(path: Path, log: str) -> list[tuple[str, dict[str, str]]]:
    """Return the versions of a file that git's log lists."""
    commits = [line.split() for line in log.splitlines()]
    names = "\n".join(f"{commit}:./{path.name}" for commit, _ in commits)
    left = _git(path.parent, "cat-file", "--batch", given=names.encode())
    versions = []
    for _, seconds in commits:
        head, left = left.split(b"\n", 1)  # the object's id, its kind and its size
        size = int(head.split()[2])
        moment = datetime.datetime.fromtimestamp(int(seconds), datetime.UTC).strftime("%Y-%m-%d %H:%M")
        with suppress(yaml.YAMLError, AttributeError, LookupError, TypeError):  # it was no paper
            versions.append((moment, rules_of(left[:size])))
        left = left[size + 1 :]
    return versions


def _git(folder: Path, *arguments: str, given: bytes = b"") -> bytes:
    return subprocess.run(["git", *arguments], cwd=folder, input=given, capture_output=True, check=True).stdout
