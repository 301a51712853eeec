"""Tests of a whole report in a browser: on phone and desktop, light and dark, by keyboard, and on paper."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pytest

from tests.browser.checks import (
    Rules,
    cut_or_overlapping,
    listed,
    opened,
    printed,
    problems_of_keyboard,
    problems_on_paper,
    problems_on_screen,
    text_of,
    texts_in_figures,
    too_large,
    window,
)
from tests.browser.picture import KEY, PICTURE, titles_of
from tests.commands import Site
from workbook.paths import ROOT
from workbook.report.headlines import read_findings
from workbook.show import theme_css
from workbook.show.table import table_html

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NARROW, PHONE, DESK = (360, 800), (390, 844), (1280, 900)


KINDS = {
    "h200": ("index", "01_training", "claims", "fingerprint", "glossary"),
    "comparison": ("index", "which_device"),
}


@pytest.fixture(params=["h200", pytest.param("comparison", marks=pytest.mark.thorough)])
def kinds(site: Site, request: pytest.FixtureRequest) -> list[Path]:
    """Return a page of each kind. Pages of the same kind differ in nothing that the tests check."""
    return [site.report(request.param) / f"{name}.html" for name in KINDS[request.param]]


def none_found(pages: list[Path], check: Callable[[Path], list[str]]) -> None:
    """Check every page, then fail with the problems of all pages."""
    assert pages
    problems = {f"{page.parent.name}/{page.name}": found for page in pages if (found := check(page))}
    if problems:
        pytest.fail(listed(problems), pytrace=False)


def test_no_page_has_a_problem_on_a_phone(browser: Browser, pages: list[Path]) -> None:
    with window(browser, NARROW) as context:
        none_found(pages, lambda page: problems_on_screen(context, page, rules="structure"))


@pytest.mark.parametrize(("scheme", "rules"), [("light", "all"), ("dark", "colours")], ids=["light", "dark"])
def test_no_kind_of_page_has_a_problem_on_a_desktop_in_light_or_dark(
    browser: Browser, kinds: list[Path], scheme: str, rules: Rules
) -> None:
    with window(browser, DESK, scheme) as context:
        none_found(kinds, lambda page: problems_on_screen(context, page, rules=rules))


def test_texts_in_figures_have_12_pixels_on_a_phone_and_do_not_overlap(browser: Browser, pages: list[Path]) -> None:
    with window(browser, PHONE) as context:
        none_found(pages, lambda page: texts_in_figures(context, page))


def test_every_page_is_small(pages: list[Path]) -> None:
    none_found(pages, too_large)


def test_a_keyboard_reaches_everything_with_a_visible_focus(browser: Browser, kinds: list[Path]) -> None:
    operated = [page for page in kinds if page.stem in ("index", "claims")]
    with window(browser, DESK) as context:
        none_found(operated, lambda page: problems_of_keyboard(context, page))


def test_every_page_prints_completely(browser: Browser, pages: list[Path]) -> None:
    with window(browser) as context:
        none_found(pages, lambda page: problems_on_paper(context, page))


def test_a_dark_screen_prints_the_same_as_a_light_one(browser: Browser, kinds: list[Path]) -> None:
    with window(browser) as light, window(browser, scheme="dark") as dark:
        none_found(
            kinds,
            lambda page: (
                [] if printed(dark, page) == printed(light, page) else ["is printed in the dark screen's colours"]
            ),
        )


def test_every_page_has_the_same_text_without_javascript(browser: Browser, kinds: list[Path]) -> None:
    with window(browser) as scripted, window(browser, scripts=False) as without:
        none_found(
            kinds,
            lambda page: (
                [] if text_of(without, page) == text_of(scripted, page) else ["says something else without scripts"]
            ),
        )


@pytest.mark.thorough
def test_the_picture_in_the_readme_shows_the_findings_of_the_index(site: Site) -> None:
    """`make picture` makes a new one."""
    from PIL import Image

    site.said("comparison")  # it writes the findings that every index begins with
    assert Image.open(PICTURE).info[KEY] == titles_of("".join(map(str, read_findings(site.folder))))


@pytest.mark.parametrize("number_of_columns", [5, 6, 7, 8])
def test_a_table_beside_a_figure_shows_every_column(browser: Browser, tmp_path: Path, number_of_columns: int) -> None:
    """Each text of a table has at most 20 characters, so the whole table fits without scrolling."""
    words = ["H200 SXM, batch 256", "compiled + graph", "5,716", "no single bottleneck", "memory-bound", "1.25 points"]
    row = [words[place % len(words)] for place in range(number_of_columns)]
    shown = table_html(pd.DataFrame([row] * 3).rename(columns="column {}".format), kind="lk-stack")
    css = theme_css() + (ROOT / "workbook/report/template/style.css").read_text(encoding="utf-8")
    page = tmp_path / "page.html"
    body = f'<main><h1>Title</h1><div class="lk-pair"><div>Figure</div><div>{shown}</div></div></main>'
    page.write_text(f"<!doctype html><html lang=en><title>page</title><style>{css}</style>{body}", encoding="utf-8")
    for size in (DESK, (1024, 768)):
        with window(browser, size) as context, opened(context, page) as (tab, _):
            assert cut_or_overlapping(tab) == [], size
