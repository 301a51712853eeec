"""`papers/*.yaml` -> Paper: citation, hardware and published numbers as printed, with where they stand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from labkit.errors import UserError, unknown
from labkit.profile import read_yaml
from labkit.registry import METRICS, STUDIES

PAPERS = Path(__file__).resolve().parent.parent / "papers"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Citation(_Part):
    """Who published it, and how a reader finds it."""

    title: str
    authors: list[str]
    institution: str
    published: str  # as far as the paper says


class Setup(_Part):
    """What the paper measured on: framework, data and models."""

    framework: str
    data: str
    models: list[str]


class PaperDevice(_Part):
    """A device of the paper, as the paper prints it, and the profile it belongs to."""

    profile: str
    printed: str
    where: str


class PublishedTable(_Part):
    """Numbers of one metric: a row a statistic, a column a device. `values` are as printed, in `unit`."""

    metric: str
    unit: str
    to_si: float = Field(gt=0)  # stored SI value = printed value * to_si
    study: str
    model: str
    workload: Literal["train", "infer", "idle"]
    columns: list[str]
    rows: dict[str, list[float]]
    where: Annotated[str, Field(min_length=1)]
    note: str = ""

    @model_validator(mode="after")
    def _fits_the_registry(self) -> PublishedTable:
        if self.metric not in METRICS:
            raise ValueError(f"{unknown('metric', self.metric, METRICS)}")
        if self.study not in STUDIES:
            raise ValueError(f"{unknown('study', self.study, STUDIES)}")
        for name, values in self.rows.items():
            if len(values) != len(self.columns):
                raise ValueError(f"row {name!r} has {len(values)} values for {len(self.columns)} columns")
        return self

    def si(self, row: str, column: str) -> float:
        """One number in SI units."""
        return self.rows[row][self.columns.index(column)] * self.to_si


class PublishedOrder(_Part):
    """An ordering that the paper states, best first, where it prints no numbers."""

    metric: str
    study: str
    workload: Literal["train", "infer"]
    order: list[str]
    statement: str
    where: Annotated[str, Field(min_length=1)]


class Paper(_Part):
    """One paper."""

    id: str
    citation: Citation
    setup: Setup
    devices: list[PaperDevice]
    tables: list[PublishedTable] = []
    orders: list[PublishedOrder] = []


def load_papers(folder: Path = PAPERS) -> list[Paper]:
    """Every paper, sorted by id. UserError with the file and the place for one that does not fit the schema."""
    papers = []
    for path in sorted(folder.glob("*.yaml")):
        try:
            papers.append(Paper.model_validate({**read_yaml(path), "id": path.stem}))
        except ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(map(str, problem['loc']))}: {problem['msg'].removeprefix('Value error, ')}"
                for problem in error.errors()
            )
            raise UserError(f"papers/{path.name}: {problems}.") from error
    return papers
