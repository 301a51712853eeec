"""Tests of a study's page: it loads nothing, folds the code, shows failures, escapes texts and fits a phone."""

import json
import re

import pandas as pd
import pytest
from bs4 import BeautifulSoup, Tag
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from labkit.errors import LabkitError
from workbook.report.html import TEMPLATE, external_urls, plain, render_notebook, with_stacked_tables
from workbook.report.scraps import Answer
from workbook.show import plots, table
from workbook.show.table import table_html

EVIL = """<script>alert(1)</script><img src=x onerror=alert(2)></style>" onload='alert(3)'"""
STRIP = {"Profile": "H200 SXM", "Machine": "3fa9c1", "Scale": "quick"}


def code(source, *outputs, count=1, tags=()):
    return new_code_cell(source, outputs=list(outputs), execution_count=count, metadata={"tags": list(tags)})


def shown(thing):
    return new_output("display_data", data=thing._repr_mimebundle_())


@pytest.fixture
def render(tmp_path):
    def page_of(*cells, title="Training", strip=STRIP, links=()):
        notebook, page = tmp_path / "01_training.ipynb", tmp_path / "01_training.html"
        notebook.write_text(json.dumps(new_notebook(cells=list(cells))), encoding="utf-8")
        about = {"title": title, "device": "H200 SXM", "profile": "h200"}
        render_notebook(notebook, page, **about, strip=dict(strip), links=list(links))
        return page.read_text(encoding="utf-8")

    return page_of


def body(page):
    """Return the page without its stylesheet."""
    return re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)


def assert_nothing_was_injected(page):
    """Assert that no text became an element or an attribute."""
    elements = BeautifulSoup(page, "html.parser").find_all(True)
    assert not [element for element in elements if element.name == "script"]
    assert not [name for element in elements for name in element.attrs if name.startswith("on")]
    assert not [element for element in elements if element.get("src") == "x"]
    assert page.count("</style>") == page.count("<style>")


EVIL_RATES = pd.DataFrame(
    {"mode": [EVIL] * 2, "batch": [1, 2], "value": [1.0, 2.0], "low": [0.9, 1.9], "high": [1.1, 2.1]}
)


PARTS = ("setup", "answer", "figure", "table", "verdicts", "limits", "more")


def test_a_page_shows_tagged_cells_and_folds_all_other_cells(render):
    cells = [code("1", shown(Answer((tag,))), tags=[tag]) for tag in reversed(PARTS)]
    cells = [new_markdown_cell("# How fast?"), new_markdown_cell("Of more"), *cells, new_markdown_cell("Of the rest")]
    page = BeautifulSoup(render(*cells, code("rest = 2")), "html.parser")
    assert page.h1.get_text() == "How fast?"
    assert [item.get_text() for item in page.select(".lk-answer li")] == list(PARTS)
    assert [summary.get_text() for summary in page.select("details.lk-fold > summary")] == [
        "Every number and further figures",
        "Method and checks",
        "Reproduce or change it in JupyterLab",
    ]
    assert not page.select("details[open]")
    more, rest, _ = (fold.get_text() for fold in page.select("details.lk-fold"))
    assert "Of more" in more and "Of the rest" in rest, "text goes with the cell below it"
    assert "rest = 2" in rest, "the code of an untagged cell can be read"
    assert not page.select_one("main > .lk-code"), "the code of a part is in the notebook"


@pytest.mark.parametrize("rates", [EVIL_RATES, EVIL_RATES.assign(value=float("nan")), EVIL_RATES.iloc[:0]])
def test_an_explanation_of_what_was_not_measured_is_left_out(render, rates):
    made = (plots.lines(rates, x="batch", y="images_per_s", caption="A dot."), table(rates, "batch", "images_per_s"))
    for one in made:
        page = BeautifulSoup(
            render(new_markdown_cell("## Rates\n\nWhy."), code("1", shown(one), tags=["more"])), "html.parser"
        )
        text = page.main.get_text()
        assert "Rates" in text and ("Why." in text) == bool(rates["value"].notna().any())
    assert ("A dot." in made[0]._repr_mimebundle_()["text/html"]) == ("Why." in text)


def test_a_page_with_figure_and_table_loads_nothing_and_is_small(render):
    figure = plots.lines(EVIL_RATES, x="batch", y="images_per_s", title=f"title {EVIL}", caption=f"caption {EVIL}")
    page = render(
        code(
            "1",
            shown(figure),
            shown(table(EVIL_RATES, ["mode", "batch"], {EVIL: (EVIL_RATES, "images_per_s")}, caption=f"table {EVIL}")),
        ),
        links=[("index.html", "Results"), ("claims.html", "Claims")],
    )
    assert external_urls(page) == []
    assert "default-src 'none'" in page
    (drawing,) = BeautifulSoup(page, "html.parser").select("figure.lk-figure svg")
    assert drawing["role"] == "img" and drawing["aria-label"]
    assert "@media screen and (prefers-color-scheme:dark)" in page and "--lk-baseline" in page
    assert_nothing_was_injected(page)
    assert 'class="lk-scroll"' in page
    assert "table &lt;script&gt;alert(1)" in page
    assert len(page) < 80_000
    assert page.startswith("<!DOCTYPE html>")
    assert '<html lang="en">' in page
    assert 'content="width=device-width' in page


def test_the_navigation_links_the_other_pages_and_names_the_device(render):
    nav = BeautifulSoup(render(links=[("claims.html", "Claims"), ("index.html", "x")]), "html.parser").nav
    assert [(link.get_text(), link["href"]) for link in nav.find_all("a")] == [
        ("Results", "index.html"),
        ("Claims", "claims.html"),
    ]
    assert nav.select_one("[aria-current=page]").get_text() == "H200 SXM"


def test_code_is_folded_and_has_no_prompts(render):
    page = render(
        code("scale = 'quick'", tags=["parameters"]),
        code("scale = 'full'", tags=["injected-parameters"]),
        code("visible = 1", new_output("execute_result", data={"text/plain": "1"}, execution_count=7), count=7),
        code("invisible = 2", tags=["remove-input"]),
        code("gone = 3", tags=["remove-cell"]),
    )
    folded = BeautifulSoup(page, "html.parser").select("details.lk-code > summary")
    assert [summary.get_text() for summary in folded] == ["default parameters", "parameters of this run", "code"]
    assert "In [" not in page
    assert "Out[" not in page
    assert "[7]" not in page
    assert "invisible" not in page
    assert "gone" not in page


def test_the_notebooks_title_heads_the_page(render):
    page = render(new_markdown_cell("# How <fast>?\n\ntext\n\n## Method & means"))
    assert re.findall(r"<h1>(.*?)</h1>", page) == ["How &lt;fast&gt;?"]
    assert "<h2>Method &amp; means</h2>" in page and "<p>text</p>" in page
    assert "<title>Training</title>" in page


def test_a_failing_cell_is_shown_open_and_announced_at_the_top(render):
    traceback = ["\x1b[0;31mValueError\x1b[0m  Traceback", "\x1b[38;5;241m<bad>\x1b[39m"]
    page = body(
        render(
            code("ok", count=1),
            new_markdown_cell('<span style="color:red">An Exception', metadata={"tags": ["papermill-error-cell-tag"]}),
            code("bad", new_output("error", ename="ValueError", evalue=EVIL, traceback=traceback), count=2),
            code("later", count=None),
        )
    )
    block = re.search(r'<section [^>]*class="lk-error"[^>]*>.*?</section>', page, re.DOTALL)[0]
    assert 'id="error"' in block
    assert "ValueError  Traceback\n&lt;bad&gt;" in block
    assert "\x1b" not in page
    assert_nothing_was_injected(page)
    assert "An Exception" not in page
    notice = re.search(r'<p class="lk-notice lk-failed">(.*?)</p>', page, re.DOTALL)[1]
    assert "Cell [2] failed: ValueError: &lt;script&gt;" in notice
    assert "1 code cell did not run." in notice
    assert 'href="#error"' in notice
    assert "<summary>code, not run</summary>" in page


def test_the_page_says_if_the_notebook_did_not_run_or_stopped_early(render):
    page = render(new_markdown_cell("## Method"), code("x = 1", count=None), code("y = 2", count=None))
    assert "This notebook has not been run" in page and "<h1>Training</h1>" in page, (
        "without a title it has the study's"
    )
    assert "Go to the error" not in page
    page = render(code("x = 1", count=1), code("y = 2", count=None), code("", count=None))
    assert "The run stopped early: 1 code cell did not run." in page


def test_output_streams_are_plain_text_and_stderr_is_folded(render):
    page = render(
        code("1", new_output("stream", name="stdout", text=f"\x1b[32mdone\x1b[0m {EVIL}")),
        code("2", new_output("stream", name="stderr", text="\r 10%\r100%\nwarning")),
    )
    assert '<pre class="lk-text-output" tabindex="0">done &lt;script&gt;alert(1)&lt;/script&gt;' in page
    messages = re.search(r'<details class="lk-stderr">.*?</details>', page, re.DOTALL)[0]
    assert "100%\nwarning" in messages
    assert " 10%" not in messages
    assert_nothing_was_injected(page)


def test_plain_keeps_text_and_removes_terminal_control_sequences():
    link = "\x1b]8;;https://example.org\x1b\\here\x1b]8;;\x07"
    assert plain(f"{link} \x1b[1;31mred\x1b[0m\x1b[K\x00\x08 a\tb\r\nold\rnew\r\n") == "here red a\tb\nnew\n"


def test_other_outputs_are_shown_as_text_without_scripts_and_widgets(render):
    of_widget = {"application/javascript": EVIL, "application/vnd.jupyter.widget-view+json": {"model_id": "a"}}
    for data in ({"text/plain": EVIL}, {"text/latex": EVIL}, {"text/markdown": EVIL, "text/plain": EVIL}, of_widget):
        page = render(code("1", new_output("display_data", data={**data, "text/plain": f"a {EVIL}"})))
        assert body(page).count("&lt;script&gt;") == 1
        assert_nothing_was_injected(page)


def test_pictures_are_embedded_in_the_page(render, tmp_path):
    (tmp_path / "local.png").write_bytes(b"\x89PNG local")
    png = new_output("display_data", data={"image/png": "iVBORw0="}, metadata={"image/png": {"alt": f'a "b" {EVIL}'}})
    svg = new_output("display_data", data={"image/svg+xml": "<svg onload='alert(1)'/>"})
    page = render(new_markdown_cell("![here](local.png)"), code("1", png, svg))
    assert page.count('src="data:image/png;base64,') == 2
    assert 'src="data:image/svg+xml;base64,' in page
    assert "onload='alert(1)'/>" not in page
    assert_nothing_was_injected(page)
    assert external_urls(page) == []


def test_a_remote_image_is_refused_and_nothing_is_written(render, tmp_path):
    with pytest.raises(LabkitError, match=r"example\.org/x\.png.*without a network"):
        render(new_markdown_cell("![x](https://example.org/x.png)"))
    assert [path.name for path in tmp_path.iterdir()] == ["01_training.ipynb"]


def test_a_missing_attachment_raises_a_readable_error(render):
    with pytest.raises(LabkitError, match=r"01_training\.ipynb can't be rendered: missing attachment: a\.png"):
        render(new_markdown_cell("![x](attachment:a.png)"))


def test_a_page_is_replaced_atomically(render, tmp_path):
    render(new_markdown_cell("first"))
    assert "second" in render(new_markdown_cell("second \ud800"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["01_training.html", "01_training.ipynb"]


def test_an_unreadable_notebook_raises_a_readable_error(tmp_path):
    notebook = tmp_path / "n.ipynb"
    for text in (None, "{", '{"nbformat": 4}'):
        if text is not None:
            notebook.write_text(text, encoding="utf-8")
        with pytest.raises(LabkitError, match="can't be read as a notebook"):
            render_notebook(notebook, tmp_path / "n.html", title="t", device="d", profile="p", strip={}, links=[])


def test_external_urls_finds_only_urls_that_a_browser_would_load():
    for markup in (
        '<script src="{}"></script>',
        '<link rel="stylesheet" href="{}">',
        "<IMG SRC={}>",
        '<svg><image href="{}"/></svg>',
    ):
        for url in ("https://example.org/x", "//example.org/x"):
            assert external_urls(markup.format(url)) == [url]
    for markup in (
        '<a href="https://example.org/">x</a>',
        '<svg xmlns="http://www.w3.org/2000/svg"><use href="#mark"/></svg>',
        '<img src="data:image/png;base64,AA//"><img src="figures/x.png">',
        '<pre>&lt;img src="https://example.org/x"&gt;</pre>',
    ):
        assert external_urls(markup) == []


def test_each_figure_has_a_citation_with_workbook_page_device_and_day(render):
    figure = plots.dots(EVIL_RATES, y="batch", x="images_per_s", name="rates")
    page = BeautifulSoup(render(code("1", shown(figure), tags=["figure"]), title="Training — H200 SXM"), "html.parser")
    cited = page.select_one(".lk-figure details > p").get_text()
    assert re.search(r"Cite as: labkit [\d.]+, “Training — H200 SXM”, figure rates, \d{4}-\d\d-\d\d\.$", cited), cited
    assert not page.select("[data-figure]")


def colours(css):
    return dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", css))


def contrast(first, second):
    def luminance(colour):
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted((luminance(first), luminance(second)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_colour_has_the_contrast_of_wcag_aa(scheme):
    light, dark = (TEMPLATE / "style.css").read_text(encoding="utf-8").split("@media screen and", 1)
    palette = {**colours(light), **(colours(dark) if scheme == "dark" else {})}
    texts = [name for name in palette if name not in ("paper", "shade", "rule") and not name.endswith("-edge")]
    assert len(texts) >= 10
    for name in texts:
        for ground in ("paper", "shade"):
            assert contrast(palette[name], palette[ground]) >= 4.5, (name, ground)
    for edge in ("good-edge", "bad-edge", "link-edge"):
        assert contrast(palette[edge], palette["paper"]) >= 3, edge


# ---- tables for a phone: each cell has the heading of its own column ------------------------------------------------


def stacked(markup: str) -> Tag:
    (table,) = BeautifulSoup(with_stacked_tables(f"<main>{markup}</main>"), "html.parser").find_all("table")
    return table


def labels(row: Tag) -> list[tuple[str, str]]:
    return [(str(cell.get("data-label", "")), cell.get_text()) for cell in row.find_all(["th", "td"])]


def test_each_value_of_many_columns_has_its_heading_and_unit() -> None:
    frame = pd.DataFrame({"network": ["VGG-16"], "batch": ["64"], "step time, ms": ["7.75 [7, 9]"], "x < y": ["no"]})
    made = stacked(table_html(frame))
    assert "lk-stack" in made.get_attribute_list("class")
    values = [("batch", "64"), ("step time, ms", "7.75 [7, 9]"), ("x < y", "no")]
    assert labels(made.tbody.tr) == [("", "VGG-16"), *values]


def test_a_number_that_names_its_row_keeps_its_heading() -> None:
    frame = pd.DataFrame({"batch": ["64"], "a": ["1"], "b": ["2"], "c": ["3"]})
    assert labels(stacked(table_html(frame)).tbody.tr)[0] == ("batch", "64")


@pytest.mark.parametrize("kind", ["", "lk-choose"])
def test_a_table_that_fits_a_phone_is_unchanged(kind: str) -> None:
    columns = "abcdef" if kind else "abc"
    page = f"<p>1 &lt; 2</p>{table_html(pd.DataFrame({name: ['1'] for name in columns}), kind=kind)}"
    assert with_stacked_tables(page) == page


def test_a_reason_across_several_columns_has_no_heading() -> None:
    frame = pd.DataFrame({"mode": ["eager"], "a": ["not run"], "b": [""], "c": [""]})
    made = stacked(table_html(frame, reasons={(0, name): "not run" for name in "abc"}))
    assert labels(made.tbody.tr) == [("", "eager"), ("", "not run")]


def test_rows_of_a_pandas_index_repeat_what_they_share() -> None:
    keys = ["model", "batch", "mode"]
    rows = pd.DataFrame([("a", 8, "eager", 1, 4), ("a", 16, "graph", 2, 5)], columns=[*keys, "v", "w"])
    frame = rows.set_index(keys).rename_axis(columns="metric")
    body = stacked(frame.to_html()).tbody.find_all("tr")
    assert labels(body[1]) == [("", "a"), ("batch", "16"), ("mode", "graph"), ("v", "2"), ("w", "5")]
    assert [cell.has_attr("hidden") for cell in body[1].find_all(["th", "td"])] == [True, False, False, False, False]


def test_headings_of_two_rows_are_joined() -> None:
    frame = pd.DataFrame([[1, 2, 3, 4]], columns=pd.MultiIndex.from_product([["energy", "power"], ["low", "high"]]))
    headings = [label for label, _ in labels(stacked(frame.to_html()).tbody.tr)]
    assert headings[1:] == ["energy, low", "energy, high", "power, low", "power, high"]
