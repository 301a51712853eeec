"""Schema of the papers' claims and of their tests, which records pass or fail; nothing is evaluated here.

A test names its trials (`select`), the quantity that it forms from them (`shape`) and the bound that decides. Bounds
are fixed in `papers/*.yaml` before any measurement; `because` names the word of the paper that a bound stands for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, model_validator

from labkit.errors import unknown
from workbook.hardware.profile import profile_names
from workbook.registry import COMPARISON, LABELS, METRICS, STUDIES
from workbook.trials.trial import WORDS, Trial

Value = bool | int | float | str
# Why the verdict on a claim does not count: its test cannot fail, the claim is ours, or the records cannot decide it.
Mark = Literal["by definition", "derived", "other hardware or data"]
# Where a claim is counted: its verdict, a group of its own for a replicated direction, and one for claims with a mark.
Group = Literal[
    "replicated", "direction replicated", "not replicated", "inconclusive", "not counted", "not testable here"
]
Shape = Literal["level", "ratio", "difference", "trend", "order", "alike", "differs"]

# Fields to select by or compare along besides those of a trial: the records' profile, and its GPU's generation.
ACROSS = ("profile", "generation")
# Words for values: the largest or smallest size among the selected trials; every other value; the profile or engine
# with the most images/s (if several fields have this word, the one fastest trial); any size above 1.
LARGEST, SMALLEST, OTHERS, FASTEST, SEVERAL = "largest", "smallest", "others", "fastest", "several"


def one_of(what: str, valid: Iterable[str]) -> AfterValidator:
    """Return a validator for texts that are one of `valid`; the error for another text names the nearest ones."""

    def check(name: str) -> str:
        if name not in valid:
            raise ValueError(str(unknown(what, name, valid)))
        return name

    return AfterValidator(check)


def _ascending(ends: tuple[float, float]) -> tuple[float, float]:
    if ends[0] >= ends[1]:
        raise ValueError("a range: the lower end comes first")
    return ends


FieldName = Annotated[str, one_of("trial field", [*(field.name for field in fields(Trial)), *ACROSS])]
StudyId = Annotated[str, one_of("study", STUDIES)]
MetricName = Annotated[str, one_of("metric", METRICS)]
ProfileName = Annotated[str, one_of("profile", profile_names())]
Range = Annotated[tuple[float, float], AfterValidator(_ascending)]
MOST_WORDS = 8  # of the reason for a verdict
ABOUT = 0.1  # a magnitude is met within ±10 %


class _Part(BaseModel, extra="forbid", frozen=True, allow_inf_nan=False):
    """A part of a claim, immutable after reading. Unknown keys are errors."""


class Published(_Part):
    """A printed magnitude (a fraction of 1, a ratio or in SI units; a range as two numbers) with its hardware."""

    value: float | Range
    hardware: Annotated[list[ProfileName], Field(min_length=1)]
    select: dict[FieldName, Value] = {}  # the test's trials that it applies to; {} for all

    @property
    def ends(self) -> tuple[float, ...]:
        """The value, or both ends of the range."""
        return self.value if isinstance(self.value, tuple) else (self.value,)

    def bounds(self, *, of_ratio: bool) -> tuple[float, float]:
        """Return the range around the published value: ±10 %; for a ratio, ±10 % of its distance from 1."""
        low, high = self.ends[0], self.ends[-1]
        base = 1.0 if of_ratio else 0.0
        return low - ABOUT * abs(low - base), high + ABOUT * abs(high - base)


class Test(_Part):
    """One condition on records.

    - `level`: the metric of each selected trial.
    - `ratio`, `difference`: the metric of each trial that fits `over` relative to the otherwise equal trial that fits
      `under`; with `metric_under`, two metrics of the same trial.
    - `trend`: the metric along a field (`rises`, `falls`, `constant`, `diminishing`: each step adds less than the one
      before, `peaks`: rises, then falls).
    - `order`: the metric at each value in `order` of the field `along` exceeds the metric at the next value.
    - `alike`: the order along a field is the same for every value of `among`.
    - `differs`: a label (a text, not a number) is not the same for all values of the field; with `among`, for at least
      one value of `among`.
    """

    shape: Shape
    metric: str
    metric_under: MetricName | None = None
    # Written as one study or several; by default the claim's first study.
    study: Annotated[list[StudyId], BeforeValidator(lambda study: [study] if isinstance(study, str) else study)] = []
    select: dict[FieldName, Value | list[Value]] = {}
    over: dict[FieldName, Value] = {}
    under: dict[FieldName, Value] = {}
    along: FieldName | None = None
    among: FieldName | None = None
    trend: Literal["rises", "falls", "constant", "diminishing", "peaks"] | None = None
    order: list[Value] = []
    at_least: float | None = None
    at_most: float | None = None
    between: Range | None = None
    outside: Range | None = None
    because: str = ""  # the word of the paper that the bound stands for, and the rule
    beside: list[MetricName] = []  # metrics that help to understand the verdict; they decide nothing
    published: list[Published] = []

    @property
    def has_direction(self) -> bool:
        """Whether the test can judge any hardware, not only the paper's."""
        given = (self.at_least, self.at_most, self.between, self.outside)
        return self.shape in ("trend", "order", "alike", "differs") or any(bound is not None for bound in given)

    @model_validator(mode="after")
    def _is_consistent(self) -> Test:
        _check_names(self)
        needed = _NEEDED[self.shape]
        for name in ("over", "under", "along", "among", "trend", "order"):
            given = bool(getattr(self, name))
            if name == "among" and self.shape == "differs":
                continue
            if given and name not in needed and not (name in ("over", "under") and self.metric_under):
                raise ValueError(f"a test of shape {self.shape!r} has no `{name}`")
            if not given and name in needed and not (name in ("over", "under") and self.metric_under):
                raise ValueError(f"a test of shape {self.shape!r} needs `{name}`")
        alike = [name for name in self.over if self.over[name] == self.under.get(name)]
        if bool(self.over) != bool(self.under) or set(self.over) != set(self.under) or alike == list(self.over) != []:
            raise ValueError("`over` and `under` must give the same fields different values")
        if self.order and len(set(self.order)) < max(2, len(self.order)):
            raise ValueError("`order` needs at least two values, each once")
        if self.trend == "diminishing" and self.along not in _SIZES:
            raise ValueError(
                f"`diminishing` needs sizes in `along`; {unknown('field of sizes', self.along or '', _SIZES)}"
            )
        if self.metric_under and (self.shape not in ("ratio", "difference") or self.over):
            raise ValueError("`metric_under` is for a ratio or difference of two metrics of one configuration")
        bounds = [self.at_least, self.at_most, self.between, self.outside]
        given_bounds = sum(bound is not None for bound in bounds)
        if given_bounds > 1:
            raise ValueError("a test has one bound: at_least, at_most, between or outside")
        if self.shape in ("level", "ratio", "difference") and not given_bounds and not self.published:
            raise ValueError(f"a test of shape {self.shape!r} needs a bound: at_least, at_most, between or outside")
        if self.shape in ("trend", "order", "alike", "differs") and given_bounds:
            raise ValueError(f"a test of shape {self.shape!r} has built-in bounds and takes no other")
        if given_bounds and not self.because:
            raise ValueError("a bound needs `because`: the word of the paper that it stands for")
        if self.published and self.shape not in ("level", "ratio", "difference"):
            raise ValueError(f"a test of shape {self.shape!r} takes no `published` magnitude")
        return self


_SIZES = (
    *(field.name for field in fields(Trial) if isinstance(field.default, (int, float)) and field.default is not False),
    "generation",
)
_NEEDED: dict[str, tuple[str, ...]] = {
    "level": (),
    "ratio": ("over", "under"),
    "difference": ("over", "under"),
    "trend": ("along", "trend"),
    "order": ("along", "order"),
    "alike": ("along", "among"),
    "differs": ("along",),
}


class Why(_Part):
    """The reason, in at most eight words, of a verdict that the records of a host gave a claim."""

    profile: str
    host: Annotated[str, Field(min_length=1)]
    verdict: Literal["not replicated", "inconclusive"]
    why: Annotated[str, Field(min_length=1)]

    @model_validator(mode="after")
    def _is_short(self) -> Why:
        if len(self.why.split()) > MOST_WORDS:
            raise ValueError(f"`why` has at most {MOST_WORDS} words")
        return self


class Claim(_Part):
    """One claim of a paper: its statement, place, studies and tests. All of its tests must hold."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9_]+(-[a-z0-9]+)+$")]
    statement: Annotated[str, Field(min_length=1)]
    where: Annotated[str, Field(min_length=1)]
    studies: Annotated[list[StudyId], Field(min_length=1)]
    tests: Annotated[list[Test], Field(min_length=1)]
    mark: Mark | None = None
    only: dict[FieldName, list[Value]] = {}  # the paper speaks of these trials or profiles; others get the third mark
    because_not: list[Why] = []  # shown with this verdict and these records only
    note: str = ""  # how an ambiguous statement was read

    @model_validator(mode="after")
    def _studies_have_records(self) -> Claim:
        if any(COMPARISON in self.studies_of(test) for test in self.tests):
            raise ValueError(f"{self.id}: {COMPARISON} has no records of its own: name the study to compare in `study`")
        return self

    def studies_of(self, test: Test) -> list[str]:
        """Return the studies whose records a test reads."""
        return test.study or self.studies[:1]


def _check_names(test: Test) -> None:
    """Raise ValueError for a metric, a label or a value of a field that no record has."""
    what, valid = ("label", list(LABELS)) if test.shape == "differs" else ("metric", list(METRICS))
    if test.metric not in valid:
        raise ValueError(f"{unknown(what, test.metric, valid)}")
    choices = {**WORDS, "profile": profile_names()}
    chosen: list[dict[str, Any]] = [test.select, test.over, test.under, *(printed.select for printed in test.published)]
    chosen += [{test.along: test.order}] if test.along else []
    for name, values in [pair for choice in chosen for pair in choice.items() if pair[0] in choices]:
        for value in values if isinstance(values, list) else [values]:
            if value not in (*choices[name], OTHERS, FASTEST):
                what = name if name == "profile" else f"trial {name}"
                raise ValueError(f"{unknown(what, str(value), choices[name])}")
