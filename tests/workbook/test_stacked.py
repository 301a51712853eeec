"""Tests of tables whose rows a phone shows as blocks: each cell has the heading of its own column."""

from __future__ import annotations

import pandas as pd
import pytest
from bs4 import BeautifulSoup, Tag

from workbook.report.stacked import with_stacked_tables
from workbook.show.table import table_html


def stacked(markup: str) -> Tag:
    (table,) = BeautifulSoup(with_stacked_tables(f"<main>{markup}</main>"), "html.parser").find_all("table")
    return table


def labels(row: Tag) -> list[tuple[str, str]]:
    return [(str(cell.get("data-label", "")), cell.get_text()) for cell in row.find_all(["th", "td"])]


def test_each_value_of_many_columns_has_its_heading_and_unit() -> None:
    frame = pd.DataFrame({"network": ["VGG-16"], "batch": ["64"], "step time, ms": ["7.75 [7, 9]"], "x < y": ["no"]})
    table = stacked(table_html(frame))
    assert "lk-stack" in table.get_attribute_list("class")
    assert labels(table.tbody.tr) == [
        ("", "VGG-16"),
        ("batch", "64"),
        ("step time, ms", "7.75 [7, 9]"),
        ("x < y", "no"),
    ]


def test_a_number_that_names_its_row_keeps_its_heading() -> None:
    frame = pd.DataFrame({"batch": ["64"], "a": ["1"], "b": ["2"], "c": ["3"]})
    assert labels(stacked(table_html(frame)).tbody.tr)[0] == ("batch", "64")


@pytest.mark.parametrize("kind", ["", "lk-choose"])
def test_a_table_that_fits_a_phone_is_unchanged(kind: str) -> None:
    columns = "abcdef" if kind else "abc"
    page = f"<p>1 &lt; 2</p>{table_html(pd.DataFrame({name: ['1'] for name in columns}), kind=kind)}"
    assert with_stacked_tables(page) == page


def test_a_reason_across_several_columns_has_no_heading() -> None:
    frame = pd.DataFrame({"mode": ["eager"], "a": [""], "b": [""], "c": [""]})
    table = stacked(table_html(frame, reasons={(0, name): "not run" for name in "abc"}))
    assert labels(table.tbody.tr) == [("", "eager"), ("", "not run")]


def test_rows_of_a_pandas_index_repeat_what_they_share() -> None:
    rows = pd.DataFrame(
        {
            "model": ["a", "a", "b"],
            "batch": [8, 16, 8],
            "mode": ["eager", "graph", "eager"],
            "v": [1, 2, 3],
            "w": [4, 5, 6],
        }
    )
    frame = rows.set_index(["model", "batch", "mode"]).rename_axis(columns="metric")
    body = stacked(frame.to_html()).tbody.find_all("tr")
    assert labels(body[1]) == [("", "a"), ("batch", "16"), ("mode", "graph"), ("v", "2"), ("w", "5")]
    assert [cell.has_attr("hidden") for cell in body[1].find_all(["th", "td"])] == [True, False, False, False, False]


def test_headings_of_two_rows_are_joined() -> None:
    frame = pd.DataFrame([[1, 2, 3, 4]], columns=pd.MultiIndex.from_product([["energy", "power"], ["low", "high"]]))
    assert [label for label, _ in labels(stacked(frame.to_html()).tbody.tr)][1:] == [
        *("energy, low", "energy, high", "power, low", "power, high")
    ]
