"""Claims, trials and effects in words: names of cases, and texts of effects and bounds."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from workbook.claims.evidence import Side
from workbook.claims.schema import FASTEST, LARGEST, OTHERS, SMALLEST, Test
from workbook.hardware.profile import load_profile, profile_names
from workbook.registry import LABELS, METRICS, find_metric
from workbook.statistics import Interval
from workbook.words import (
    configuration_name,
    field_text,
    heading,
    label,
    listing,
    number,
    phrase,
    points,
    quantity,
    within_sentence,
)

Kind = Literal["level", "ratio", "difference"]

TIE = 0.05  # "hardly": two values that differ by less are equal
MARGIN = f"{100 * TIE:g} %"
COMPARED = {"ratio": "over", "difference": "minus", "level": ""}


def shown_value(value: float, metric: str, kind: Kind, digits: int = 3) -> str:
    """Return a value of an effect: a ratio as `1.23x`, a difference of shares in points, else in the metric's unit."""
    if kind == "ratio" or metric not in METRICS or METRICS[metric].unit == "x":
        return f"{number(value, digits)}x"
    return f"{points(value)} points" if _in_points(metric, kind) else quantity(value, metric, digits)


def _in_points(metric: str, kind: str) -> bool:
    return kind == "difference" and metric in METRICS and METRICS[metric].unit == "%"


# Relative widths of an interval: below NARROW, its ends need one more digit to differ; below ALIKE, that does not help.
NARROW, ALIKE = 0.02, 1e-4


def shown_effect(effect: Interval, metric: str, kind: Kind) -> str:
    """Return an effect and its interval with the same digits: `1.32x [1.21, 1.44]`, `1.320x [1.313, 1.326]`.

    An interval whose ends have the same digits is left out.
    """
    if effect.low is None or effect.high is None:
        return f"{shown_value(effect.point, metric, kind)} (no interval)"
    if _in_points(metric, kind):
        point, low, high = (points(end, effect.low, effect.high) for end in (effect.point, effect.low, effect.high))
        return f"{point} points" + (f" [{low}, {high}]" if low != high else "")
    relative = (effect.high - effect.low) / abs(effect.point) if effect.point else math.inf
    digits = 4 if ALIKE < relative < NARROW else 3
    scale = METRICS[metric].scale if kind != "ratio" and metric in METRICS else 1.0
    low, high = (number(end * scale, digits) for end in (effect.low, effect.high))
    return shown_value(effect.point, metric, kind, digits) + (f" [{low}, {high}]" if low != high else "")


def shown_bound(test: Test) -> str:
    """Return the bound of a test in words."""
    along, among = (field_name(name or "") for name in (test.along, test.among))
    if test.shape == "trend":
        margin = "" if test.trend == "constant" else f" (±{MARGIN})"
        return _TREND_WORDS[test.trend or "rises"].format(along) + margin
    if test.shape == "order":
        named = [device_titles([v]) if test.along == "profile" else label(test.along or "", v) for v in test.order]
        return f"in this order (±{MARGIN}): {'; '.join(named)}"
    if test.shape == "alike":
        return f"the same order of {along.removeprefix('the ')}s, whatever {among} is"
    if test.shape == "differs":
        return f"changes with {along}{f', for at least one {among}'.replace('the ', '') if among else ''}"
    if test.at_least is not None:
        return f"at least {_as_written(test.at_least, test)}{_margin(test, test.at_least)}"
    if test.at_most is not None:
        return f"at most {_as_written(test.at_most, test)}{_margin(test, test.at_most)}"
    if ends := test.between or test.outside:
        low, high = (_as_written(end, test) for end in ends)
        return f"{'between' if test.between else 'outside of'} {low} and {high}"
    return "about the published value, on the paper's hardware"


def _margin(test: Test, bound: float) -> str:
    """Return the margin of a tie, which a ratio has that must be more or less than 1, also one of a single trial."""
    is_ratio = test.shape == "ratio" or (test.shape == "level" and find_metric(test.metric).unit == "x")
    return f" ±{MARGIN}" if is_ratio and bound == 1 else ""


def _as_written(bound: float, test: Test) -> str:
    """Return a bound without the trailing zeros of a measured value: `1x` for `at least 1x`, `80 %`."""
    about = find_metric(test.metric)
    if test.shape not in ("level", "difference") or about.unit == "x":
        return f"{bound:g}x"
    unit = "points" if test.shape == "difference" and about.unit == "%" else about.unit
    text = f"{bound * about.scale:.6g} {unit}".strip()
    return "1 day" if text == "1 days" else text


_TREND_WORDS = {
    "rises": "rises with {}",
    "falls": "falls with {}",
    "constant": "the same within ±10 %, whatever {} is",
    "diminishing": "each step of {} adds less",
    "peaks": "rises with {}, then falls",
}


def metric_label(test: Test) -> str:
    """Return the label of a test's metric, as pages show it; of two compared metrics, `A minus b` or `A over b`."""
    if test.shape == "differs":
        return LABELS[test.metric]
    of_metric = find_metric(test.metric).label
    if test.metric_under is None:
        return of_metric
    return f"{of_metric} {COMPARED[test.shape]} {within_sentence(find_metric(test.metric_under).label)}"


def quantity_label(test: Test) -> str:
    """Return what a test judges, and of what over what a ratio is: `images/s, GPU over CPU`."""
    compared = _COMPARES.get(test.trend or test.shape, "").format(field_name(test.along or "").removeprefix("the "))
    if test.over:
        changed = [name for name in test.over if test.over[name] != test.under[name]]
        over, under = (choice_words({name: of[name] for name in changed}) for of in (test.over, test.under))
        compared = f"{over} {COMPARED[test.shape]} {under}"
    updates = label("updates", test.select["updates"]) if "updates" in test.select else ""
    return ", ".join(filter(None, [metric_label(test), updates, compared]))


_COMPARES = {
    **dict.fromkeys(("rises", "falls"), "highest over lowest {}"),
    **dict.fromkeys(("constant", "alike"), "one {} over another"),
    "diminishing": "gain of a step over that of the step before",
    "peaks": "highest over first and last {}",
    "order": "each over the next",
}


def field_name(name: str) -> str:
    """Return the name of a trial's field for a sentence."""
    return f"the {_FIELD_NAMES.get(name) or heading(name)}" if name else ""


_FIELD_NAMES = {
    **{"profile": "device", "image_px": "image size", "traced_iterations": "number of traced steps"},
    **{"devices": "number of devices", "nodes": "number of nodes"},
}


def choice_words(choice: Mapping[str, object]) -> str:
    """Return selected values in words: `batch 256, ResNet-50`, `4 or 8 GPUs`."""
    texts = []
    for name, value in choice.items():
        values = value if isinstance(value, list) else [value]
        either = " or ".join(device_titles([item]) if name == "profile" else label(name, item) for item in values)
        text = phrase(name, values[-1], either)
        if values[-1] in (OTHERS, LARGEST, SMALLEST, FASTEST):
            of = "another" if values[-1] == OTHERS else f"the {values[-1]}"
            text = f"{of} {field_name(name).removeprefix('the ')}"
        elif text == either and name not in _CLEAR:
            text = f"{heading(name)} {text}"
        texts.append(text)
    return ", ".join(texts)


# Fields whose values are clear without the field's name.
_CLEAR = (
    *("model", "profile", "precision", "image_px", "data", "framework", "mode", "device", "workload", "engine"),
    *("optimizer", "network", "arrangement", "updates", "cache"),
)
_NAMED = (
    *("batch", "image_px", "precision", "engine", "optimizer", "threads", "devices", "device"),
    *("scaling", "arrangement", "updates", "interconnect", "gradient_precision", "schedule", "learning_rate"),
    *("framework", "workload", "data"),
)


def trial_name(side: Side, among: list[Side], without: Sequence[str] = ()) -> str:
    """Return the name of a trial: its model, and the fields that differ within `among` and are not in `without`."""
    named = [name for name in _NAMED if name not in without]
    texts = [configuration_name(side.trial, (compared.trial for compared in among), named)]
    if len({compared.results.study.id for compared in among}) > 1:
        texts.append(f"page “{side.results.study.title}”")
    profiles = {compared.results.profile.name for compared in among}
    if len(profiles) > 1 and not {"profile", "generation"} & set(without):
        texts.append(side.results.profile.title)
    return ", ".join(texts)


def value_words(side: Side, name: str, *, bare: bool = False) -> str:
    """Return the value of a field: `batch 256`, `4 GPUs`, `VGG-16`; with `bare`, without the field's name."""
    if name == "profile":
        return side.results.profile.title
    if bare:
        return label(name, side.field(name))
    return field_text(side.trial, name) if name == "devices" else phrase(name, side.field(name))


def pair_name(over: Side, under: Side, among: list[Side], names: list[str], kind: Kind) -> str:
    """Return the name of a pair, its shared part first: `ResNet-50: batch 256 over batch 64`."""
    common = shared_name(over, among, names)
    a, b = (", ".join(value_words(side, name) for name in names) for side in (over, under))
    return f"{common}: {a} {COMPARED[kind]} {b}" if common else f"{a} {COMPARED[kind]} {b}"


def shared_name(side: Side, among: list[Side], names: list[str]) -> str:
    """Return a trial's name without the fields `names`; empty if nothing is left."""
    full_name = trial_name(side, among, without=names)
    return ", ".join(full_name.split(", ")[1:]) if "model" in names else full_name


def span(family: list[Side], along: str) -> str:
    """Return the range of a family along a field: `batch 4 to 64`."""
    first, last = (value_words(side, along, bare=True) for side in (family[0], family[-1]))
    return f"{along.replace('_', ' ')} {first} to {last}"


def device_titles(profiles: Iterable[object]) -> str:
    """Return the titles of devices as a list: `H100 SXM and H200 SXM`."""
    words, named = {FASTEST: "the fastest device", OTHERS: "the others"}, set(profile_names())
    titles = [load_profile(str(name)).title if name in named else words.get(str(name), str(name)) for name in profiles]
    return listing([re.sub("^The ", "the ", title) for title in titles])
