"""Tests of tables: estimates with intervals, and missing values with their reasons instead of 0."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from bs4 import BeautifulSoup
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.errors import UserError
from tests.workbook.show_frames import MODES, frames, made
from workbook.results import difference, estimate, ratio
from workbook.show import Table, table
from workbook.show.table import NO_RATIO
from workbook.words import NAN, heading

REASON = "80 GiB were asked for"


def page(shown: Table) -> BeautifulSoup:
    return BeautifulSoup(shown._repr_mimebundle_()["text/html"], "html.parser")


@settings(max_examples=20)
@given(frames(), st.sampled_from(["wide", "all"]), st.booleans())
def test_any_results_make_a_table(data: pd.DataFrame, intervals: str, across: bool) -> None:
    rows = ["model", "batch"] if across else ["model", "batch", "mode"]
    made_of = ["images_per_s"] if across else ["images_per_s", "utilisation"]
    shown = table(
        data, rows, made_of, across="mode" if across else None, best="images_per_s", intervals=intervals, caption="Any"
    )
    bundle = shown._repr_mimebundle_()
    assert not re.search(r"\b(nan|None|NaN|inf|<NA>)\b", "".join(bundle.values()))
    assert len(shown.frame) == len(shown.data) == len(data[rows].drop_duplicates())
    cells = page(shown).select("td.n")
    assert data["images_per_s"].eq(0).any() or not any(cell.get_text() in ("0", "0 %") for cell in cells)
    assert all(cell.abbr and cell.abbr["title"] for cell in cells if cell.get_text() == "–")


@settings(max_examples=15)
@given(frames(failing=False, zeros=False))
def test_numbers_are_the_estimates(data: pd.DataFrame) -> None:
    rows = ["model", "batch", "mode"]
    shown = table(data, rows, ["images_per_s"])
    values = estimate(data, "images_per_s", by=rows)["value"]
    assert sorted(shown.data["images/s"]) == pytest.approx(sorted(values))
    ends = shown.data.dropna()
    assert (ends["images/s low"] <= ends["images/s"] * 1.000001).all()
    assert (ends["images/s"] <= ends["images/s high"] * 1.000001).all()


def test_an_interval_is_shown_only_if_it_is_wide() -> None:
    data = made([("vgg16", 64, "strict FP32", [1000, 1010, 990]), ("vgg16", 256, "strict FP32", [1000, 2000, 3000])])
    assert table(data, "batch", "images_per_s").frame["images/s"].tolist() == ["1,000", "1,800 [460, 7,200]"]
    assert table(data, "batch", "images_per_s", intervals="all").frame["images/s"][0] == "1,000 [975, 1,030]"
    light = page(table(data, "batch", "images_per_s")).select_one("td small")
    assert light is not None
    assert light.get_text() == "[460, 7,200]"


def test_one_run_has_no_interval_and_says_so() -> None:
    data = made([("vgg16", 64, "strict FP32", [1000])])
    for intervals in ("wide", "all"):
        shown = table(data, "batch", "images_per_s", intervals=intervals)
        assert shown.frame["images/s"].tolist() == ["1,000†"] and shown.caption == "† one run."
        assert page(shown).select_one("td.n") is not None, "a marked number stands right, like others"


def test_a_row_without_values_shows_the_reason_of_a_column_that_is_left() -> None:
    keys = pd.DataFrame({"model": ["vgg16", "vgg19"]})
    nothing = keys.assign(value=float("nan"), low=float("nan"), high=float("nan"), reason="never read")
    some = keys.assign(value=[2.0, float("nan")], low=[1.9, float("nan")], high=[2.1, float("nan")])
    some["reason"] = ["", "no sensor here"]
    shown = table(keys, "model", {"A": (nothing, "power_w"), "B": (some, "power_w")})
    assert shown.frame.iloc[:, -1].tolist() == ["2.00 [1.90, 2.10]", "no sensor here"]
    assert "never read" in page(shown).details.get_text()
    both = table(keys, "model", {"B": (some, "power_w"), "C": (some.assign(reason=["", "lost"]), "power_w")})
    assert both.frame.iloc[1, 1] == "no sensor here" and "lost" in page(both).details.get_text()
    compared = some.assign(reason=["", NO_RATIO])
    assert table(keys, "model", {"B": (compared, "ratio")}).frame["B"].tolist() == ["2.00x [1.90, 2.10]", "–"]


def test_a_bound_stands_before_its_value_and_before_no_other() -> None:
    ratios = pd.DataFrame({"batch": [64, 256], "value": [6.45, 2.18], "bound": ["at least ", ""]})
    ratios = ratios.assign(low=0.99 * ratios["value"], high=1.01 * ratios["value"])
    shown = table(pd.DataFrame({"batch": [64, 256, 512]}), "batch", {"over one": ratios})
    assert shown.frame["over one"].tolist() == ["at least 6.45x", "2.18x", "not run"]
    assert '<td class="n">at least 6.45x</td>' in shown._repr_mimebundle_()["text/html"]


def test_a_failed_configuration_is_a_row_with_its_reason() -> None:
    data = made([("vgg16", 64, "strict FP32", [1000]), ("vgg16", 256, "strict FP32", f"oom: {REASON}")])
    shown = table(data, "batch", ["images_per_s", "utilisation"])
    assert shown.frame.loc[1, "images/s"] == f"out of memory: {REASON}"
    row = page(shown).select("tbody tr")[1]
    assert row.td is not None
    assert row.td["colspan"] == "2"


def test_a_missing_cell_carries_its_reason() -> None:
    data = made([("vgg16", 64, mode, [1000]) for mode in MODES] + [("vgg16", 256, "strict FP32", [2000])])
    failed = made([("vgg16", 256, "CUDA graph", f"oom: {REASON}")])
    soup = page(table(pd.concat([data, failed]), "batch", "images_per_s", across="mode"))
    titles = [cell["title"] for cell in soup.select("abbr")]
    assert titles == [f"out of memory: {REASON}", "not run"]
    assert REASON in soup.details.get_text()


@pytest.mark.parametrize(("missing", "named"), [(3, "batch 1; batch 2; batch 4"), (4, "4 rows")])
def test_a_missing_value_has_the_reason_of_its_record_and_equal_ones_are_listed_once(missing: int, named: str) -> None:
    data = made([("vgg16", batch, "strict FP32", [1000.0 * batch]) for batch in (1, 2, 4, 8, 16)])
    is_missing, reasons = data.index < missing, "power_w: no meter\nutilisation: no sensor"
    told = data.assign(utilisation=data["utilisation"].mask(is_missing), reasons=np.where(is_missing, reasons, ""))
    shown = table(told, "batch", ["images_per_s", "utilisation"])
    assert set(shown.reasons.values()) == {"no sensor"}
    assert [said.get_text() for said in page(shown).select("details li")] == [
        f"{named}, {heading('utilisation')}: no sensor"
    ]
    for of_user in (None, "broken sensor"):
        untold = table(told.assign(reasons=of_user), "batch", ["images_per_s", "utilisation"])
        assert set(untold.reasons.values()) == {"not measured"}


def test_a_later_row_of_a_configuration_may_give_the_reason() -> None:
    two = made([("vgg16", 64, "strict FP32", [1000.0, 1001.0])])
    told = two.assign(utilisation=NAN, reasons=["", "utilisation: no sensor"])
    shown = table(told, "batch", ["images_per_s", "utilisation"])
    assert shown.reasons == {(0, "utilisation (any kernel active)"): "no sensor"}


def test_a_column_without_any_value_is_listed_once_with_its_reason() -> None:
    two = made([("vgg16", batch, "strict FP32", [1000.0]) for batch in (1, 2)])
    told = two.assign(utilisation=NAN, reasons=["utilisation: no sensor", ""])
    listed = page(table(told, "batch", {"rate": "images_per_s", "busy": "utilisation"})).select("details li")
    assert [said.get_text() for said in listed] == ["busy: no sensor"]


def test_a_given_table_has_the_reasons_of_the_rows_that_it_lacks() -> None:
    data = made([("vgg16", batch, "strict FP32", [1000.0 * batch]) for batch in (1, 2)])
    data.loc[0, "utilisation"] = NAN
    told = data.assign(reasons=["utilisation: no sensor", ""])
    shares = estimate(told, "utilisation", by="batch")
    shown = table(told, "batch", {"rate": "images_per_s", "busy": (shares, "utilisation")})
    assert shown.reasons == {(0, "busy"): "no sensor"}


@pytest.mark.parametrize("compare", [ratio, difference])
def test_the_base_of_a_comparison_ran_and_has_none(compare: Callable[..., pd.DataFrame]) -> None:
    data = made([("vgg16", batch, "strict FP32", [1000.0 * batch]) for batch in (1, 2)])
    gains = compare(data, "images_per_s", over={"batch": 1}, by=["batch"])
    lost = data.assign(images_per_s=[NAN, 2000.0], reasons=["images_per_s: an earlier trace slowed it", ""])
    slowed = pd.concat([data, lost.assign(pass_number=2)], ignore_index=True)
    for rows in (data, slowed):
        shown = table(rows, "batch", {"rate": "images_per_s", "gain": gains})
        assert shown.reasons == {(0, "gain"): NO_RATIO}
        assert not page(shown).select("details")
    failed = data.assign(images_per_s=[NAN, 2000.0], status=["oom", "ok"], reason=["too large", None])
    gains = compare(failed, "images_per_s", over={"batch": 1}, by=["batch"])
    assert table(failed, "batch", {"gain": gains}).reasons[0, "gain"] == "out of memory: too large"


def test_a_table_shows_a_metric_across_modes_beside_a_ratio() -> None:
    data = made([("vgg16", 64, "strict FP32", [1000, 1001]), ("vgg16", 64, "compiled", [7200, 7201])])
    speedup = ratio(data, "images_per_s", over={"mode": "strict FP32"}, by=["mode", "batch"])
    shown = table(data, "batch", {"images/s": "images_per_s", "speed-up": speedup}, across="mode")
    assert list(shown.frame) == ["batch", "strict FP32, images/s", "compiled, images/s", "speed-up"]
    assert shown.frame.iloc[0].tolist() == ["64", "1,000", "7,200", "7.20x"]


def test_a_useless_interval_of_two_runs_is_not_shown() -> None:
    two = made([("vgg16", 64, "strict FP32", [100, 1000]), ("resnet50", 64, "strict FP32", [1000, 1010])])
    shown = table(two, "model", "images_per_s", intervals="all", caption="Rates")
    marked = [text.endswith("‡") for text in shown.frame.iloc[:, -1]]
    assert sorted(marked) == [False, True] and shown.caption == (
        "Rates. ‡ two runs, with an interval wider than the value."
    )
    three = table(made([("vgg16", 64, "strict FP32", [100, 1000, 300])]), "model", "images_per_s", intervals="all")
    assert "[" in three.frame.iloc[0, -1] and three.caption == ""


def test_a_difference_is_in_points_with_its_sign() -> None:
    lost = pd.DataFrame({"model": ["vgg16"], "value": [-0.0123], "low": [-0.02], "high": [-0.004]})
    data = made([("vgg16", 64, "strict FP32", [1000])])
    assert table(data, "model", {"lost": lost}).frame["lost, points"].tolist() == ["−1.2 [−2.0, −0.4]"]
    assert table(data, "model", {"lost": (lost, "top1")}).frame["lost"].tolist()[0].startswith("−1.2 %")


@pytest.mark.parametrize(
    ("metric", "heading_of_user", "shown"),
    [
        ("memory_bytes", "memory", "memory, GiB"),
        ("sm_clock_hz", "clock in MHz", "clock in MHz"),
        ("step_s", "images/s", "images/s, ms"),
        ("utilisation", "busy", "busy"),
        ("own_column", "mine", "mine"),
    ],
)
def test_a_heading_without_the_unit_of_its_values_gets_it(metric: str, heading_of_user: str, shown: str) -> None:
    data = made([("vgg16", 64, mode, [1000, 1010]) for mode in MODES]).assign(**{metric: 0.25})
    assert list(table(data[data["mode"] == MODES[0]], "batch", {heading_of_user: metric}).frame)[-1] == shown
    two = table(data, "batch", {"throughput": "images_per_s", heading_of_user: metric}, across="mode")
    assert list(two.frame)[-1] == shown.replace(heading_of_user, f"{heading_of_user}, {MODES[-1]}")


def test_values_of_one_network_do_not_stand_in_another_networks_row() -> None:
    data = made([(model, batch, "strict FP32", [1000]) for model in ("resnet50", "vgg16") for batch in (1, 64)])
    gains = pd.DataFrame({"batch": [1, 64], "value": [2.0, 4.0], "low": [1.9, 3.9], "high": [2.1, 4.1]})
    with pytest.raises(UserError, match="one value to rows that differ in model"):
        table(data, ["model", "batch"], {"gain": gains})
    (first, second) = (
        gains.assign(model=model, value=gains["value"] + more) for model, more in (("resnet50", 0), ("vgg16", 1))
    )
    shown = table(data, ["model", "batch"], {"gain": pd.concat([first, second])})
    assert shown.data["gain"].tolist() == [2, 4, 3, 5]
    assert table(data.query("model == 'vgg16'"), ["model", "batch"], {"gain": gains}).data["gain"].tolist() == [2, 4]


def test_constant_columns_are_left_out_and_the_best_row_is_marked() -> None:
    data = made([("vgg16", batch, "strict FP32", [rate]) for batch, rate in ((256, 3000), (64, 1000), (1024, 2000))])
    shown = table(data, ["model", "batch", "mode"], ["images_per_s"], best="images_per_s")
    assert list(shown.frame) == ["batch", "images/s"]
    assert shown.frame["batch"].tolist() == ["64", "256", "1,024"]
    assert [row.th.get_text() for row in page(shown).select("tr.lk-best")] == ["256"]


def test_an_empty_table_says_so() -> None:
    shown = table(pd.DataFrame(), ["batch"], ["images_per_s"], caption="Nothing")
    assert "not measured" in page(shown).get_text()


def test_a_text_column_is_shown_as_it_is() -> None:
    data = made([("vgg16", 64, "strict FP32", [1000, 1001])]).assign(kernel="implicit_gemm")
    assert table(data, "model", {"kernel": "kernel"}).frame["kernel"].tolist() == ["implicit_gemm"]


def test_an_interval_around_1_is_not_inverted() -> None:
    ratios = pd.DataFrame(
        {"model": ["resnet50", "vgg16"], "value": [1.02, 0.2], "low": [0.37, 0.1], "high": [2.8, 0.4]}
    )
    shown = table(ratios[["model"]], "model", {"ratio": ratios}).frame["ratio"].tolist()
    assert shown == ["1.0x [0.37, 2.8]", "1/5.0 [1/10, 1/2.5]"]


def test_configurations_are_never_mixed() -> None:
    data = made([("vgg16", 64, "strict FP32", [1000]), ("vgg16", 64, "CUDA graph", [2000])])
    with pytest.raises(UserError, match="mode"):
        table(data, "batch", "images_per_s")
    with pytest.raises(UserError, match="no column colour"):
        table(data, "colour", "images_per_s")
    with pytest.raises(UserError, match="unknown choice of intervals 'none'; valid: "):
        table(data, ["batch", "mode"], "images_per_s", intervals="none")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("metric", "pooled", "apart"),
    [
        ("images_per_s", [[0, 1, 1], [0, 3, 1]], [[1, 3, 12], [0, 12, 12]]),
        ("power_w", [[1, 3, 3]], [[0, 1, 1], [3, 3, 12]]),
        ("power_fraction", [[1, 3, 3]], [[0, 1, 1]]),
        ("kilowatts", [[1, 3, 3]], [[0, 1, 1]]),
    ],
)
def test_runs_with_few_energy_windows_are_pooled_for_metrics_of_a_step(
    metric: str, pooled: list[list[int]], apart: list[list[int]]
) -> None:
    data = made([("vgg16", 64, "strict FP32", [1000, 1010, 990])])
    data[metric] = data["images_per_s"]
    for windows in pooled:
        table = estimate(data.assign(energy_windows=windows), metric, ["mode"])
        assert table["passes"].tolist() == [3] and table["value"].tolist() == [pytest.approx(1000, rel=1e-3)]
    for windows in apart:
        with pytest.raises(UserError, match="energy_windows"):
            estimate(data.assign(energy_windows=windows), metric, ["mode"])


def test_headings_have_scope() -> None:
    soup = page(table(made([("vgg16", 64, "strict FP32", [1000])]), "batch", "images_per_s"))
    assert [cell["scope"] for cell in soup.select("th")] == ["col", "col", "row"]
    assert soup.select("th")[1].get_text() == heading("images_per_s")


def test_a_column_without_any_value_is_left_out_and_its_reason_is_listed() -> None:
    data = made([("vgg16", 64, "strict FP32", [1000, 1010, 990]), ("vgg16", 256, "strict FP32", [1000, 2000, 3000])])
    shown = table(data.assign(utilisation=NAN), "batch", ["images_per_s", "utilisation"])
    assert shown.frame.columns.tolist() == ["batch", "images/s"]
    assert [item.get_text() for item in page(shown).select("details li")] == [f"no value of {heading('utilisation')}"]


def test_the_best_mode_of_a_row_is_bold_if_its_interval_lies_apart() -> None:
    data = made(
        [
            *[("vgg16", 64, "strict FP32", [1000, 1010, 990]), ("vgg16", 64, "CUDA graph", [2000, 2010, 1990])],
            *[("vgg16", 256, "strict FP32", [1000, 1500, 700]), ("vgg16", 256, "CUDA graph", [1000, 2000, 700])],
        ]
    )
    shown = table(data, "batch", "images_per_s", across="mode")
    assert [cell.get_text() for cell in page(shown).select("td strong")] == ["2,000"]
    assert not page(table(data, ["batch", "mode"], "images_per_s")).select("td strong")
