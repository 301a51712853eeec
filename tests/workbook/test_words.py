"""Tests of numbers and words on pages: digits by the interval, missing values as dashes, and labels."""

from __future__ import annotations

import ast
import doctest
import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from workbook import words
from workbook.paths import ROOT
from workbook.registry import METRICS, STUDIES
from workbook.report.glossary import glossary
from workbook.results.columns import HOW_IT_ENDED, WHAT_RAN, WHERE_AND_WHEN
from workbook.show import frames
from workbook.studies import values
from workbook.trials.trial import WORDS, Trial
from workbook.words import (
    INVERTED_BELOW,
    MISSING,
    amount,
    configuration_name,
    digits_of,
    factor,
    heading,
    in_order,
    label,
    number,
    phrase,
    points,
    quantity,
)

numbers = st.floats(1e-6, 1e12)


@pytest.mark.parametrize("module", [words, values, frames])
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
    modes = ["compiled + CUDA graph", "CUDA graph", "eager", "strict FP32"]
    assert in_order(modes, "mode") == ["strict FP32", "eager", "CUDA graph", "compiled + CUDA graph"]
    assert in_order(["vgg16", "resnet50", "own"], "model") == ["resnet50", "vgg16", "own"]
    assert in_order([256, 16, 64, 16]) == [16, 64, 256]


def test_a_configuration_is_named_by_what_differs_from_those_beside_it() -> None:
    tf32, fp16 = Trial(model="vgg16", batch=32, precision="tf32"), Trial(model="vgg16", batch=32, precision="fp16")
    assert configuration_name(tf32) == "VGG-16, batch 32"
    assert configuration_name(tf32, beside=[tf32, fp16]) == "VGG-16, batch 32, TF32"
    swept = [Trial(threads=count) for count in (0, 1, 4)]
    ends = [configuration_name(trial, beside=swept).rpartition(", ")[2] for trial in swept]
    assert ends == ["default threads", "1 thread", "4 threads"]
    assert configuration_name(Trial(workload="memory_copy", size=4096)) == "memory copy, size 4,096"


def test_a_usual_value_of_a_rare_field_is_named_only_on_request() -> None:
    run = Trial(epochs=2)
    runs = [
        run,
        replace(run, devices=4),
        replace(run, devices=4, placement="together"),
        replace(run, learning_rate=0.3),
    ]
    names = [configuration_name(trial, beside=runs).removeprefix("ResNet-50, batch 64, 2 epochs") for trial in runs]
    assert names == ["", ", 4 GPUs", ", 4 workers on one device", ", learning rate 0.3"]
    assert configuration_name(run, runs, ["batch", "devices"]) == "ResNet-50, batch 64, 1 GPU"
    on_cpu = replace(run, device="cpu", devices=2)
    assert configuration_name(on_cpu, [replace(on_cpu, devices=1)], ["devices"]) == "ResNet-50, 2 processes"


# ---- one word for one thing -----------------------------------------------------------------------------------------

# Code words of ARCHITECTURE.md. A host is also the processor beside a GPU, and a step passes over memory.
CODE_WORDS = re.compile(r"\b(trials?|(each|every|one|first|short) pass|passes of|engines?|hosts of)\b", re.IGNORECASE)


def page_texts() -> Iterator[tuple[str, str]]:
    """Yield the texts that pages show: of notebooks, templates, papers, metrics, headings and values."""
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            source = re.sub(r"`[^`]*`", "", "".join(cell["source"]))
            texts = [source] if cell["cell_type"] == "markdown" else strings_of(source)
            yield from ((path.name, text) for text in texts)
    for path in sorted((ROOT / "workbook" / "report" / "template").glob("*.j2")):
        texts = re.sub(r"(?s)\{[#%{].*?[#%}]\}|<code>.*?</code>|<[^>]*>", " ", path.read_text(encoding="utf-8"))
        yield path.name, texts
    yield from (("glossary", word.text) for word in glossary())
    for path in sorted((ROOT / "papers").glob("*.yaml")):
        yield from ((path.name, text) for text in strings_in(yaml.safe_load(path.read_text(encoding="utf-8"))))
    yield from (("metric", metric.label) for metric in METRICS.values())
    yield from (("study", f"{study.title} {study.question}") for study in STUDIES.values())
    columns = [*WHAT_RAN, *WHERE_AND_WHEN, *HOW_IT_ENDED, "passes", "hosts"]
    yield from (("heading", heading(column)) for column in columns)
    yield from (("value", label(column, word)) for column, valid in WORDS.items() for word in valid)


def strings_of(source: str) -> list[str]:
    """Return the texts in the code of a cell; a query is none."""
    constants = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
    return [text for text in constants if isinstance(text, str) and " " in text and "==" not in text]


def strings_in(data: object) -> Iterator[str]:
    """Yield all texts of several words in nested lists and mappings."""
    if isinstance(data, str):
        yield from [data] if " " in data else []
    elif isinstance(data, list | dict):
        for part in data.values() if isinstance(data, dict) else data:
            yield from strings_in(part)


def test_page_texts_hold_no_code_word() -> None:
    texts = list(page_texts())
    assert len(texts) > 1000
    assert [(place, text) for place, text in texts if CODE_WORDS.search(text)] == []
