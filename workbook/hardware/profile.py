"""`params/<hw>.yaml` -> Profile: the hardware expected, its nominal peaks with their source, and how much to measure.

A profile with `extends: other` inherits missing values from `params/<other>.yaml`, mapping by mapping. Files under
`params/base/` hold values that several profiles share, and describe no hardware themselves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from labkit.errors import UserError, nearest_first, one_of, unknown
from labkit.timing.blocks import Timing as _Timing
from workbook.paths import ROOT
from workbook.registry import PASSES, SCALES, STUDIES, check_scale, find_study

PARAMS = ROOT / "params"
PRICES = "prices.yaml"  # beside params/; version control ignores it
Precision = Literal["fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8"]
SweepValue = int | float | str | bool | list[int] | list[float] | list[str]


class _Part(BaseModel):
    """A part of a profile, immutable after reading. Unknown keys and quoted numbers are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Sourced(_Part):
    """A published number in SI units, and its source."""

    value: Annotated[float, Field(gt=0)]
    source: Annotated[str, Field(min_length=1)]


def _regular_expression(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}; write one such as '^(NVIDIA )?H200$'") from error
    return pattern


class Device(_Part):
    """The devices a profile expects. `pattern` is a regular expression on the driver's device name."""

    kind: Literal["cuda", "cpu"]
    pattern: Annotated[str, AfterValidator(_regular_expression)] = ""
    count: Annotated[int, Field(ge=1)] = 1
    memory_bytes: Sourced | None = None
    compute_capability: Annotated[str, Field(pattern=r"^\d+\.\d+$")] | None = None
    architecture: str = ""
    multiprocessors: Sourced | None = None
    board_power_w: Sourced | None = None
    interconnect: str = ""

    def fits(self, name: str) -> bool:
        """Return whether the pattern is found in a device's name."""
        return re.search(self.pattern, name) is not None


class Peaks(_Part):
    """Nominal peaks of one device: FLOP/s (dense) by precision, bytes/s of its memory. Missing = not published.

    `link_bytes_per_s` is its rate to the devices of its host, in one direction, over all its links together.
    """

    flop_per_s: dict[Precision, Sourced] = {}
    memory_bytes_per_s: Sourced | None = None
    link_bytes_per_s: Sourced | None = None


class Timing(_Timing):
    """The seconds for which a trial is timed at one scale. The worker stops earlier if the blocks agree well enough."""

    limit_s: Annotated[float, Field(gt=0)]  # a trial that takes longer counts as hanging and is killed
    passes: Annotated[int, Field(ge=1)] | None = None  # None = the scale's number

    def shortened(self) -> Timing:
        """Return the timing of short passes. Their number decides the interval, not their length."""
        return self.model_copy(update={"timed_s": self.timed_s / 2})


class Cluster(_Part):
    """Slurm's options for a report that runs with ON=slurm."""

    partition: str = ""
    constraint: str = ""
    gpus_per_node: Annotated[int, Field(ge=0)] = 0
    account: str = ""
    time_limit_s: Annotated[int, Field(gt=0)] = 7200


class Cost(_Part):
    """The price of an hour of a profile's whole hardware: all its devices and the machine around them.

    In a profile of GPUs `cpu_per_hour` is the price of a machine with the same CPU and without GPUs, which a reader
    could rent instead. Without it, trials on the CPU have no price.
    """

    per_hour: Sourced
    cpu_per_hour: Sourced | None = None
    currency: Annotated[str, Field(min_length=3, max_length=3)]


class Prices(_Part):
    """The user's prices: of an hour of a profile's whole hardware, by profile, all in one currency.

    The price of `cpu` is that of a machine without GPUs.
    """

    currency: Annotated[str, Field(min_length=3, max_length=3)]
    per_hour: Annotated[dict[str, Sourced], BeforeValidator(lambda prices: {} if prices is None else prices)]


class Profile(_Part):
    """The hardware that a report is about, and the sizes of its studies."""

    name: str
    title: Annotated[str, Field(min_length=1)]
    description: str = ""
    extends: str = ""
    runnable: bool = True
    reason: str = ""  # why not, when `runnable` is false
    device: Device
    peaks: Peaks = Peaks()
    timing: dict[str, Timing] = {}
    sweeps: dict[str, dict[str, dict[str, SweepValue]]] = {}
    cluster: Cluster | None = None
    cost: Cost | None = None

    @model_validator(mode="after")
    def _is_consistent(self) -> Profile:
        scales: dict[str, Mapping[str, Any]] = {"timing": self.timing}
        for study, sizes in self.sweeps.items():
            if study not in STUDIES:
                raise ValueError(f"sweeps: {unknown('study', study, STUDIES)}")
            scales[f"sweeps.{study}"] = sizes
        for place, by_scale in scales.items():
            for scale in by_scale:
                if scale not in SCALES:
                    raise ValueError(f"{place}: {unknown('scale', scale, SCALES)}")
        if not self.runnable and not self.reason:
            raise ValueError("a profile that is not runnable says why in `reason`")
        if self.runnable and not self.timing:
            raise ValueError("`timing` is missing: give warmup_s, timed_s, block_s and limit_s for each scale")
        return self

    def timing_at(self, scale: str) -> Timing:
        """Return the timing of a scale, the same for all studies. Raise UserError if the profile has none."""
        if check_scale(scale) not in self.timing:
            raise UserError(
                f"profile {self.name!r} has no timing for scale {scale!r}; it has: {', '.join(self.timing)}."
            )
        return self.timing[scale]

    @property
    def power_limit_w(self) -> float | None:
        """The power limit of all devices of the profile together, in watts; None without a board power."""
        limit = self.device.board_power_w
        return None if limit is None else limit.value * self.device.count

    def price_of(self, device: str) -> Sourced | None:
        """Return the hourly price of the hardware for trials on `device`, `cuda` or `cpu`; None without a price."""
        if self.cost is None:
            return None
        return self.cost.per_hour if device == self.device.kind else self.cost.cpu_per_hour

    def passes(self, scale: str) -> int:
        """Return the number of full passes at a scale. Trials that the host delays have further, short passes."""
        return self.timing_at(scale).passes or PASSES[check_scale(scale)]

    def sweep(self, study: str, scale: str) -> dict[str, SweepValue]:
        """Return the sizes of a study at a scale, or at the next smaller scale if this one has none.

        Raise UserError if the profile has none. The mapping raises UserError for a missing size.
        """
        by_scale = self.sweeps.get(find_study(study).id, {})
        file = f"params/{self.extends or self.name}.yaml"
        for candidate in reversed(SCALES[: SCALES.index(check_scale(scale)) + 1]):
            if candidate in by_scale:
                of = f"sweep of {study} at {candidate} in the profile {self.name!r}"
                return _Sizes(by_scale[candidate], of, file)
        raise UserError(
            f"profile {self.name!r} has no sweep for {study} at {scale}: add one under `sweeps:` in {file}."
        )


class _Sizes(dict[str, SweepValue]):
    """The sizes of a sweep by their names; `of` and `file` describe the sweep in error messages."""

    def __init__(self, sizes: dict[str, SweepValue], of: str, file: str) -> None:
        super().__init__(sizes)
        self._of, self._file = of, file

    def __missing__(self, name: str) -> SweepValue:
        has = ", ".join(nearest_first(name, self)) or "nothing"
        raise UserError(f"the {self._of} lacks {name!r}; it has: {has}. Add it in {self._file}, or correct its name.")


# libyaml's reader takes a seventh of the Python reader's time.
class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """A YAML loader for hand-written profiles: `1e-3` is a number, and a key given twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the mapping. Raise ConstructorError for a key given twice, and for a key that is no text or number."""
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                problem = f"the key {key!r} is given twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen.add(key)
        return mapping


_NUMBER = re.compile(r"^[-+]?(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][-+]?\d+)$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+0123456789."))


@lru_cache(maxsize=64)
def _parsed(text: str) -> Any:
    """Return the parsed YAML, cached because a page reads the same few profiles and papers repeatedly."""
    return yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader


def read_yaml(path: Path) -> Mapping[str, Any]:
    """Return a YAML mapping, cached: do not change it. Raise UserError, with the place, for invalid or other YAML."""
    try:
        values = _parsed(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path.name} can't be read: {error.strerror or error}.") from error
    except Exception as error:  # PyYAML raises nearly anything for a date or a number that does not exist
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{path.name} is not valid YAML: {reason}") from error
    if not isinstance(values, dict):
        raise UserError(f"{path.name} must hold a mapping (key: value lines), not {type(values).__name__}.")
    return values


def _overlay(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return `above` merged over `below`, mapping by mapping. Lists and scalars are replaced whole."""
    result = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        # A sourced number is replaced whole: a new value must not keep the old value's source.
        result[key] = _overlay(result[key], value) if both and "source" not in result[key] else value
    return result


def _read_chain(name: str, params: Path, seen: tuple[str, ...] = ()) -> dict[str, Any]:
    path = params / f"{name}.yaml"
    if name in seen:
        raise UserError(f"params/{seen[0]}.yaml extends itself: {' -> '.join((*seen, name))}.")
    bases = [str(p.relative_to(params).with_suffix("")) for p in params.rglob("*.yaml")] if seen else [name]
    if name not in bases:
        raise UserError(f"params/{seen[-1]}.yaml: {unknown('profile to extend', name, bases)}")
    values = read_yaml(path)
    base = values.get("extends")
    if not base:
        return dict(values)
    if not isinstance(base, str):
        raise UserError(f"params/{name}.yaml: `extends` must name one other profile, not {base!r}.")
    inherited = _read_chain(base, params, (*seen, name))
    # These keys describe the other hardware alone, so they are not inherited.
    for own in ("title", "description", "extends", "cost", "cluster"):
        inherited.pop(own, None)
    return _overlay(inherited, values)


def profile_names(params: Path = PARAMS) -> list[str]:
    """Return the names that HW= takes, sorted."""
    return sorted(path.stem for path in params.glob("*.yaml"))


_CHECKED: dict[str, Profile] = {}  # by their values: a site asks hundreds of times for a few profiles


def load_profile(name: str, params: Path = PARAMS) -> Profile:
    """Read `params/<name>.yaml`. Raise UserError for an unknown name, an unknown key or a value of the wrong kind."""
    hint = "`make profile` writes one for the hardware found here; `make report` detects it."
    values = _read_chain(one_of("HW", name, profile_names(params), hint=hint), params)
    if "cost" in values:
        raise UserError(f"params/{name}.yaml has `cost`: prices stand in {PRICES} now; see prices.example.yaml.")
    try:
        key = repr((name, values))
        profile = _CHECKED.get(key) or _CHECKED.setdefault(key, _validated({**values, "name": name}, params))
    except ValidationError as error:
        problems = "; ".join(map(_explain, error.errors()))
        raise UserError(f"params/{name}.yaml: {problems}. Nothing was run; correct the file and try again.") from error
    return profile.model_copy(update={"cost": _cost_of(profile, params)})


def _validated(values: Mapping[str, Any], params: Path) -> Profile:
    """Return the profile. Raise ValidationError, and UserError for a size that the profile it extends lacks."""
    profile = Profile.model_validate(values)
    root, sweeps = profile.extends, dict[str, Any]()
    while root:  # sizes have their names in the last file of the chain
        values = read_yaml(params / f"{root}.yaml")
        root, sweeps = values.get("extends", ""), values.get("sweeps") or {}
    for study, by_scale in sweeps.items():
        names = {size for sizes in (by_scale or {}).values() for size in sizes or {}}
        for scale, sizes in profile.sweeps[study].items():
            for size in sizes if names else ():
                one_of(f"key of sweeps.{study}.{scale} in params/{profile.name}.yaml", size, names)
    return profile


def _cost_of(profile: Profile, params: Path) -> Cost | None:
    """Return the price of a profile's hour if the user has entered it. Raise UserError for a file of another form."""
    path = params.parent / PRICES
    if not path.is_file():
        return None
    try:
        prices = Prices.model_validate(read_yaml(path))
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise UserError(f"{PRICES}: {problems}. prices.example.yaml has the form.") from error
    for name in prices.per_hour:
        one_of(f"profile in {PRICES}", name, {*profile_names(params), "cpu"})
    own, machine = prices.per_hour.get(profile.name), prices.per_hour.get("cpu")
    if own is None:
        return None
    beside = machine if profile.device.kind == "cuda" else None
    return Cost(per_hour=own, cpu_per_hour=beside, currency=prices.currency)


def _explain(problem: Any) -> str:
    """Return a pydantic problem as text; for an unknown key, with the valid keys, nearest first."""
    place = [part for part in problem["loc"] if isinstance(part, (str, int))]
    no_such_key = problem["type"] == "extra_forbidden" or place[-1:] == ["[key]"]
    if place[-1:] == ["[key]"]:  # a mapping whose keys are a Literal
        place.pop()
    where = ".".join(map(str, place))
    if no_such_key:
        return f"unknown key {where!r}; valid here: {', '.join(nearest_first(str(place[-1]), _fields_at(place[:-1])))}"
    message = problem["msg"].removeprefix("Value error, ").rstrip(".")
    return f"{where}: {message}" if where else message


def _fields_at(place: list[str | int]) -> list[str]:
    """Return the keys that are valid at a place of the profile."""
    if not place:
        return list(Profile.model_fields)
    if place[0] == "timing":
        return list(Timing.model_fields)
    if place[-1] == "flop_per_s":
        return list(get_args(Precision))
    by_key: dict[str, type[BaseModel]] = {"device": Device, "peaks": Peaks, "cluster": Cluster}
    return list(by_key.get(str(place[-1]), Sourced).model_fields)
