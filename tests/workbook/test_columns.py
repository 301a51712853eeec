"""Tests that the functions on tables name a column that they lack, whichever it is."""

from __future__ import annotations

import contextlib
import math
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pytest

from labkit.errors import UserError
from tests.workbook.show_frames import MODES, made
from workbook.results import REPORT_VARIABLE, difference, estimate, ratio
from workbook.show import plots, table
from workbook.studies.values import one_of_column, share, text_of, value_of

ROWS = made([("vgg16", batch, mode, [900.0, 1_000.0]) for batch in (16, 64) for mode in MODES])
ROWS = ROWS.assign(
    image_px=32, framework="torch", machine="a", protocol=3, scale="quick", profile="h200", study="s", process="p"
)
OF_IMAGES = pd.concat([ROWS[:2].assign(image=image, top1=[1.0, 0.0]) for image in range(4)], ignore_index=True)
OF_IMAGES = OF_IMAGES.assign(mode=["strict FP32", "CUDA graph"] * 4, pass_number=1)
MEANS = estimate(ROWS, "images_per_s", by=["mode", "batch"])
GAINS = ratio(ROWS, "images_per_s", over={"mode": MODES[0]}, by=["mode", "batch"])
CURVE = pd.DataFrame({"batch": [16, 64], "value": [1e3, 2e3], "mode": MODES[0], "label": "bound"})
SENSED = pd.DataFrame({"time_s": [0, 1], "metric": "power_w", "value": [90, 400], "load": "a", "host": "a"})
OVER: dict[str, Any] = {"over": {"mode": MODES[0]}, "by": ["mode", "batch"]}
CALLS: dict[str, tuple[pd.DataFrame, Callable[[pd.DataFrame], Any]]] = {
    "estimate": (ROWS, lambda data: estimate(data, "images_per_s", by=["mode", "batch"])),
    "ratio": (ROWS, lambda data: ratio(data, "images_per_s", **OVER)),
    "difference": (ROWS, lambda data: difference(data, "utilisation", **OVER)),
    "difference by image": (OF_IMAGES, lambda data: difference(data, "top1", over={"mode": "strict FP32"}, by="mode")),
    "lines": (ROWS, lambda data: plots.lines(data, x="batch", y="images_per_s", hue="mode", col="model")),
    "lines of means": (MEANS, lambda data: plots.lines(data, x="batch", y="images_per_s", hue="mode")),
    "lines, bound": (CURVE, lambda data: plots.lines(ROWS, x="batch", y="images_per_s", col="mode", bound=data)),
    "dots": (ROWS, lambda data: plots.dots(data, y=["model", "batch"], x="images_per_s", hue="mode")),
    "dots of means": (MEANS, lambda data: plots.dots(data, y="batch", x="images_per_s", hue="mode", sort="ascending")),
    "dots, ticks": (CURVE, lambda data: plots.dots(ROWS, y="batch", x="images_per_s", hue="mode", ticks=data)),
    "dots, ratio": (GAINS, lambda data: plots.dots(ROWS, y=["batch", "mode"], x="images_per_s", ratio=data)),
    "stack": (ROWS, lambda data: plots.stack(data, y="batch", part="mode", value="images_per_s")),
    "stack, total": (MEANS, lambda data: plots.stack(ROWS, y="batch", part="mode", value="images_per_s", total=data)),
    "series": (SENSED, lambda data: plots.series(data, hue="load")),
    "table": (ROWS, lambda data: table(data, ["model", "batch"], "images_per_s", across="mode", best="images_per_s")),
    "table of means": (MEANS, lambda data: table(data, ["mode", "batch"], {"images/s": (data, "images_per_s")})),
    "table of ratios": (GAINS, lambda data: table(ROWS, ["mode", "batch"], {"over baseline": data})),
    "table of texts": (ROWS, lambda data: table(data, "batch", {"how": "mode", "why": "reason"})),
}


USED = ("model", "batch", "mode", "images_per_s", "value", "label", "time_s", "metric", "low", "high", "pass_number")


def without_one_column() -> Iterator[Any]:
    for name, (data, call) in CALLS.items():
        for column in data.columns:
            marks = [] if column in USED else pytest.mark.thorough
            yield pytest.param(data.drop(columns=column), call, marks=marks, id=f"{name}-{column}")


@pytest.mark.parametrize("name", CALLS)
def test_with_all_columns_there_is_a_result(name: str) -> None:
    data, call = CALLS[name]
    assert call(data) is not None


@pytest.mark.parametrize(("data", "call"), without_one_column())
def test_without_a_column_there_is_a_result_or_a_sentence(
    data: pd.DataFrame, call: Callable[[pd.DataFrame], Any]
) -> None:
    with contextlib.suppress(UserError):
        assert call(data) is not None


@pytest.mark.parametrize("name", CALLS)
def test_what_is_no_table_is_refused(name: str) -> None:
    data, call = CALLS[name]
    with pytest.raises(UserError, match="a table is valid where"):
        call(data.to_dict("records"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("over", "said"),
    [
        ({"mode": "eager"}, "has mode='eager'; it is 'strict FP32', 'CUDA graph', 'compiled + CUDA graph' here"),
        ({"batch": 63}, "has batch=63; it is 16, 64 here"),
        ({"mode": "strict FP32", "batch": 16}, "no row agrees with one of mode='strict FP32' and batch=16 in model"),
    ],
)
def test_a_ratio_without_a_row_says_what_there_is(
    over: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = ROWS if "model" not in said else ROWS.assign(model=["a"] * 2 + ["b"] * (len(ROWS) - 2))
    with pytest.warns(UserWarning, match=re.escape(said)):
        assert ratio(rows, "images_per_s", over=over, by=["model", "mode", "batch"]).empty
    monkeypatch.setenv(REPORT_VARIABLE, "1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ratio(rows, "images_per_s", over=over, by=["model", "mode", "batch"]).empty


def test_a_text_in_the_place_of_a_number_is_refused() -> None:
    with pytest.raises(UserError, match="the column batch holds numbers, and '16' is a text; it is 16, 64 here"):
        difference(ROWS, "images_per_s", over={"batch": "16"}, by=["mode", "batch"])
    with pytest.raises(UserError, match="the column batch holds numbers, and '64' is a text"):
        value_of(MEANS, mode="strict FP32", batch="64")


def test_a_value_as_printed_names_that_of_the_column(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = ROWS.assign(precision="bf16")
    assert one_of_column(rows, "precision", "BF16") == "bf16" and one_of_column(rows, "model", "VGG-16") == "vgg16"
    with pytest.raises(UserError, match="no row has model='VGG16'; here it is 'vgg16'"):
        one_of_column(rows, "model", "VGG16")
    assert one_of_column(rows, "model", "alexnet", "vgg16") == "vgg16", "the first that the column holds"
    assert one_of_column(rows, "model") == "vgg16" and one_of_column(rows[:0], "model") is None
    assert one_of_column(rows[:0], "model", "alexnet") == "alexnet", "a study without records has empty tables"
    monkeypatch.setenv(REPORT_VARIABLE, "1")
    assert one_of_column(rows, "model", "alexnet") == "alexnet", "a page says that it is not measured"


def test_a_share_of_nothing_is_not_measured() -> None:
    assert text_of(share(3.0, 0.0), "times") == text_of(share(3.0, math.nan), "times") == "not measured"
    assert text_of(share(3.0, 2.0), "times") == "1.50 times"


@pytest.mark.parametrize("name", [["images_per_s"], None, 3])
def test_a_column_that_is_no_text_gets_a_sentence(name: Any) -> None:
    with pytest.raises(UserError, match="a column has a text as its name, and "):
        ratio(ROWS, name, **OVER)
