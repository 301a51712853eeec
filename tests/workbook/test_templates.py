"""Templates escape every text, are packaged, and compile in one environment."""

from __future__ import annotations

import tomllib

import jinja2
import pytest
from bs4 import BeautifulSoup

from workbook.paths import ROOT
from workbook.report.html import TEMPLATE as PAGES
from workbook.show.templates import TEMPLATE, drawn, environment

BAD = """</td></svg><script>steal()</script><b onclick='x'>`<i>` **<u>**" autofocus="""
CALLS = [
    *(("picture", BAD, BAD), ("setup", BAD), ("answer", [BAD]), ("cell", BAD), ("cell", BAD, BAD), ("head", [BAD])),
    *(
        ("text_of", BAD),
        ("bold", BAD),
        ("reasons", BAD, [BAD], BAD),
        ("figure", *[BAD] * 4, [BAD], BAD, "", [(BAD, BAD)], False),
    ),
    ("table", [BAD] * 3, [[BAD] * 3, [BAD] * 3], BAD, BAD, BAD, 1, [["", BAD], [BAD] * 2]),
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call[0])
def test_no_macro_lets_a_text_become_an_element_or_an_attribute(call: tuple[object, ...]) -> None:
    page = BeautifulSoup(drawn(*call), "html.parser")
    elements = page.find_all(True)
    assert not {element.name for element in elements} & {"script", "b", "i", "u"}
    assert not {name for element in elements for name in element.attrs} & {"onclick", "autofocus"}
    assert "steal()" in page.get_text() + str([element.attrs for element in elements]), "the text itself is shown"


def test_a_command_is_code_and_a_label_is_bold() -> None:
    assert drawn("text_of", "run `make <hw>` or `x`") == "run <code>make &lt;hw&gt;</code> or <code>x</code>"
    assert drawn("text_of", drawn("picture", "AA", "a `b`")).startswith("<img "), "markup stays markup"
    assert drawn("bold", "**At 64:** 3 < 4") == "<strong>At 64:</strong> 3 &lt; 4"


def test_the_package_has_every_template_and_all_compile_in_one_environment() -> None:
    package = ROOT / "workbook"
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    patterns = settings["package-data"]["workbook"]
    packaged = {path for pattern in patterns for path in package.glob(f"{pattern}/*")}
    assert {*package.rglob("*.j2"), *package.rglob("*.css")} <= packaged
    pages = environment(PAGES)
    assert pages is environment(PAGES) and pages.autoescape is True and pages.undefined is jinja2.StrictUndefined
    for path in (*TEMPLATE.glob("*.j2"), *PAGES.glob("*.j2")):
        assert path.name == "index.html.j2" or pages.get_template(path.name), "index has filters of nbconvert"
