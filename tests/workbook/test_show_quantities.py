"""Tests of numbers and words on pages: digits by the interval, missing values as dashes, and labels."""

from __future__ import annotations

import doctest
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbook.registry import METRICS
from workbook.show import heading, label
from workbook.show import labels as labels_module
from workbook.show import quantities as quantities_module
from workbook.show.labels import in_order, phrase
from workbook.show.quantities import INVERTED_BELOW, MISSING, amount, digits_of, factor, number, points, quantity
from workbook.studies import values as values_module

numbers = st.floats(1e-6, 1e12)


@pytest.mark.parametrize("module", [quantities_module, labels_module, values_module])
def test_the_doctests_pass(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]


@given(numbers, st.integers(2, 4))
def test_a_number_is_rounded_to_its_digits(value: float, digits: int) -> None:
    assert float(number(value, digits).replace(",", "")) == pytest.approx(value, rel=0.51 * 10.0 ** (1 - digits))


@given(numbers)
def test_a_number_has_at_most_three_digits(value: float) -> None:
    digits = re.sub(r"e.*|[^0-9]", "", number(value)).lstrip("0").rstrip("0")
    assert len(digits) <= 3


@pytest.mark.parametrize("show", [number, factor, points, lambda value: quantity(value, "images_per_s")])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_missing_value_is_a_dash(show: object, value: float) -> None:
    assert show(value) == MISSING  # type: ignore[operator]


def test_only_zero_is_shown_as_zero() -> None:
    assert number(0.0) == "0"
    assert {number(value) for value in (1e-9, -1e-9, 4e-4)} == {"1.00e-09", "-1.00e-09", "0.000400"}


@given(numbers, st.floats(0, 0.5))
def test_a_number_with_a_wide_interval_has_two_digits(value: float, half: float) -> None:
    digits = digits_of(value, value * (1 - half), value * (1 + half))
    assert digits == (2 if half > 0.1001 else 3) or abs(half - 0.1) < 1e-3


def test_every_metric_can_be_shown() -> None:
    for metric in METRICS.values():
        assert amount(0.5, metric.name) not in ("", MISSING, "0")
        assert metric.unit in ("", "%", "x") or metric.unit in heading(metric.name)


@given(st.floats(0.01, 100))
def test_a_ratio_is_never_a_long_fraction(value: float) -> None:
    text = factor(value)
    inverse = text.startswith("1/")
    shown_value = float(text.removeprefix("1/").removesuffix("x"))
    assert (1 / shown_value if inverse else shown_value) == pytest.approx(value, rel=0.006)
    assert not text.startswith("0.") or value >= INVERTED_BELOW


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("model", "resnet152", "ResNet-152"),
        ("precision", "bf16", "BF16"),
        ("batch", 2048, "2,048"),
        ("batch", 2048.0, "2,048"),
        ("device", "cuda", "GPU"),
        ("memory_format", "channels_last", "NHWC"),
        ("augment", True, "yes"),
        ("model", None, MISSING),
        ("batch", math.nan, MISSING),
        ("anything", "as it is", "as it is"),
    ],
)
def test_values_have_the_words_of_the_field(column: str, value: object, words: str) -> None:
    assert label(column, value) == words


def test_headings_follow_the_vocabulary() -> None:
    assert [heading(column) for column in ("devices", "mode", "pass_number", "images_per_s", "step_s")] == [
        "GPUs",
        "execution mode",
        "run",
        "images/s",
        "step time, ms",
    ]
    assert phrase("threads", 1) == "1 thread"


def test_values_are_sorted_in_the_order_of_a_page() -> None:
    modes = ["compiled + CUDA graph", "CUDA graph", "eager", "baseline"]
    assert in_order(modes, "mode") == ["baseline", "eager", "CUDA graph", "compiled + CUDA graph"]
    assert in_order(["vgg16", "resnet50", "own"], "model") == ["resnet50", "vgg16", "own"]
    assert in_order([256, 16, 64, 16]) == [16, 64, 256]
