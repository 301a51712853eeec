"""The glossary: its words stand on a page of their own, and the first use of each in a page's prose leads there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from hypothesis import given
from hypothesis import strategies as st

from workbook.report.glossary import PAGE, glossary, with_words_linked
from workbook.report.html import write_template

NAV = '<nav><a href="glossary.html">Glossary</a></nav>'


def links(body: str, nav: str = NAV) -> list[tuple[str, str]]:
    """Return the address and the text of the links to words in a page."""
    page = BeautifulSoup(with_words_linked(f"{nav}{body}"), "html.parser")
    return [(str(link["href"]), link.get_text()) for link in page.select(".lk-term")]


def test_the_glossary_has_twelve_words_each_with_whole_sentences() -> None:
    assert len({word.id for word in glossary()}) == 12
    for word in glossary():
        sentences = re.split(r"(?<=\.) ", word.text)
        assert all(re.fullmatch(r"[A-Z].*\.", text) and len(text.split()) <= 25 for text in sentences), word
        assert re.search(re.escape(word.name), word.text, re.I), f"{word.name} is not in its own sentences"


def test_the_page_of_the_glossary_has_every_word_under_its_address(tmp_path: Path) -> None:
    write_template(tmp_path / PAGE, "glossary.html.j2", title="H200", links=[], words=glossary())
    page = BeautifulSoup((tmp_path / PAGE).read_text(encoding="utf-8"), "html.parser")
    assert [str(entry["id"]) for entry in page.select("dl > div")] == [word.id for word in glossary()]
    assert not page.select(".lk-term")


def test_only_the_first_use_of_a_word_is_a_link() -> None:
    body = "<p>An <b>Eager</b> loop.</p><ul><li>An eager loop and\na CUDA graph; CUDA graphs, non-eager.</li></ul>"
    assert links(body) == [("glossary.html#eager", "Eager"), ("glossary.html#cuda-graph", "CUDA graph")]
    assert links(body, '<a href="../glossary.html">x</a>')[0][0] == "../glossary.html#eager"
    assert links(body, "") == [], "a page apart from the site has no glossary"


@pytest.mark.parametrize(
    "body",
    [
        *(f"<p><{tag}>eager</{tag}></p>" for tag in ("a", "code")),
        *(f"<{tag}>eager</{tag}>" for tag in ("h1", "h2", "h3", "h4", "div", "title", "style")),
        "<pre>eager</pre>",
        "<table><caption>eager</caption><tr><td><p>eager</p></td></tr></table>",
        "<figure><p>eager</p><svg><text>eager</text></svg><figcaption><p>eager</p></figcaption></figure>",
        "<details><summary><p>eager</p></summary></details>",
        '<p class="lk-title">eager</p><p class="lk-notice">eager</p><p class="lk-claim-head">eager</p>',
        '<p title="eager">overeager, eager-minded, &lt;eagerly&gt;, FP32 utilisation<!-- eager --></p>',
    ],
)
def test_headings_code_tables_figures_links_and_attributes_have_no_link(body: str) -> None:
    assert links(body) == []
    assert links(f"{body}<p>eager</p>") == [("glossary.html#eager", "eager")]


@given(
    st.lists(st.sampled_from(["<p>", "</p>", "<a>", "</a>", "eager ", "a run", "\n", "&amp;", "<br>", "<", '"', "é "]))
)
def test_linking_changes_nothing_but_the_links(parts: list[str]) -> None:
    page = NAV + "".join(parts)
    assert re.sub(r'<a class="lk-term"[^>]*>(.*?)</a>', r"\1", with_words_linked(page)) == page
