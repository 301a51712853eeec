"""Tests of the checks: they find each fault that a page can have, and pass a page without faults."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from tests.browser import checks
from tests.browser.checks import listed, printed, text_of, too_large, window

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SVG = "<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'><path d='M0 0h9v9'/></svg>"
PICTURE = "data:image/svg+xml," + quote(SVG)
DARK_PICTURE = "data:image/svg+xml," + quote(SVG.replace("path", "path fill='orange'"))
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
GOOD = f"""
<a class="skip" href="#content">Skip to the content</a>
<nav><a href="#more">More</a></nav>
<main id="content" tabindex="-1"><h1>Title</h1><p>Text with a <a href="#more">link</a>.</p>
<img src="{PICTURE}" alt="a shape">
<span style="position: absolute; width: 1px; height: 1px; overflow: hidden; white-space: nowrap">only heard</span>
<div style="overflow-x: auto" role="region" tabindex="0" aria-label="numbers"><table style="width: 900px" class="wide">
<tr><th scope="col">model</th></tr><tr><td>a</td></tr></table></div>
<label><input type="radio" name="one" checked> one</label> <label><input type="radio" name="one"> two</label>
<details><summary>folded</summary><p id="more">More, with <a href="#content">a link</a></p></details></main>
"""
STYLE = """
:focus-visible { outline: 3px solid blue } .skip { position: absolute; left: -100vw } .skip:focus { left: 0 }
.wide th { text-align: left }
@media print { [role=region] { overflow-x: visible !important } .wide { width: auto !important } }
"""
Check = Callable[..., list[str]]

pytestmark = pytest.mark.slow  # their result depends on `checks.py` only


@pytest.fixture
def page(tmp_path: Path) -> Callable[..., Path]:
    def write(body: str = GOOD, head: str = "", *, policy: bool = True) -> Path:
        forbids = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">' if policy else ""
        path = tmp_path / "page.html"
        path.write_text(
            f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">{forbids}'
            f'<meta name="viewport" content="width=device-width"><title>page</title>'
            f"<style>{STYLE}</style>{head}</head><body>{body}</body></html>",
            encoding="utf-8",
        )
        return path

    return write


def problems(browser: Browser, check: Check, path: Path, size: tuple[int, int] = (360, 800)) -> list[str]:
    with window(browser, size) as context:
        found = check(context, path)
    assert all(found), "a problem is a readable line"
    return found


@pytest.mark.parametrize("policy", [True, False])
@pytest.mark.parametrize(
    "check",
    [checks.problems_on_screen, checks.problems_of_keyboard, checks.problems_on_paper],
    ids=lambda check: check.__name__,
)
def test_a_good_page_has_no_problems(browser: Browser, page: Callable[..., Path], check: Check, policy: bool) -> None:
    assert problems(browser, check, page(policy=policy)) == []


# Each entry is a fault and a part of its problem line. Faults share a page, because opening a page takes time.
LOUD = [
    ('<img src="http://picture.invalid/a.png" alt="a">', "asks for http://picture.invalid/a.png"),
    ('<img src="http://picture.invalid/b.png" alt="b">', "a request failed"),
    ('<link rel="stylesheet" href="other.css">', "asks for file://"),
    ("<script>fetch('https://data.invalid/')</script>", "asks for https://data.invalid/"),
    ('<script>console.error("broken")</script>', "error: broken"),
    ('<script>console.warn("doubtful")</script>', "warning: doubtful"),
    ("<script>throw new Error('thrown')</script>", "a script failed: thrown"),
    ('<script>setTimeout(() => { throw new Error("late") })</script>', "a script failed: late"),
]
UNUSABLE = [
    ('<img src="http://picture.invalid/a.png" alt="a">', "error: Loading the image"),
    ("<script>let blocked</script>", "error: Executing inline script"),
    (f'<img src="{PICTURE}">', "image-alt (critical)"),
    ('<p id="pale" style="color: #999; background: #fff">pale</p>', "color-contrast (serious)"),
    ('<details><summary>s</summary><p id="in" style="color: #999; background: #fff">pale</p></details>', "at #in"),
    ('<input type="text">', "label (critical)"),
    ("<button></button>", "button-name (critical)"),
    ('<div style="height: 3em; overflow: auto"><p>1</p><p>2</p><p>3</p><p>4</p></div>', "scrollable-region-focusable"),
    ('<div style="width: 900px">wide</div>', "the page is 9"),
    ('<div style="overflow: auto"><b style="position: absolute; left: 800px">out</b></div>', "“out”"),
    ('<details><summary>s</summary><div style="width: 1900px">wider</div></details>', "the page is 19"),
    ('<img src="data:image/png;base64,AAAA" alt="broken">', "a picture can't be shown"),
    (
        '<div style="width: 9em; overflow: auto"><table style="width: 10em; text-align: right"><td>0.482</table></div>',
        "px are cut of “0.482” in <td>",
    ),
    ('<div style="width: 2em; overflow: hidden; white-space: nowrap">seven words</div>', "px are cut of “seven words”"),
    ('<p style="margin: 0 0 -1em">one line</p><p style="margin: 0">another</p>', "“one line” overlaps “another”"),
]


@pytest.mark.parametrize(("faults", "policy"), [(LOUD, False), (UNUSABLE, True)], ids=["loud", "unusable"])
def test_each_fault_on_screen_is_found(
    browser: Browser, page: Callable[..., Path], faults: list[tuple[str, str]], policy: bool
) -> None:
    path = page(GOOD.replace("</main>", "".join(fault for fault, _ in faults) + "</main>"), policy=policy)
    found = problems(browser, checks.problems_on_screen, path)
    missed = [fault for fault, said in faults if not any(said in problem for problem in found)]
    assert not missed, listed({"found": found})


def test_problems_do_not_carry_over_to_the_next_page_of_a_window(browser: Browser, page: Callable[..., Path]) -> None:
    with window(browser) as context:
        for check in (checks.problems_on_screen, checks.problems_of_keyboard, checks.problems_on_paper):
            path = page(LOUD[4][0] + NO_OUTLINE, policy=False)
            assert check(context, path) != []
            assert check(context, page()) == []


def test_contrast_is_judged_in_the_scheme_of_the_window(browser: Browser, page: Callable[..., Path]) -> None:
    dark = "<style>@media (prefers-color-scheme: dark) { body { background: #000 } }</style>"
    found = {}
    for scheme in ("light", "dark"):
        with window(browser, scheme=scheme) as context:
            found[scheme] = checks.problems_on_screen(context, page(head=dark))
    assert found["light"] == [] and "color-contrast" in found["dark"][0]


NO_OUTLINE = "<style>nav a:focus-visible { outline: none }</style>"
TRAP = "<script>document.querySelector('nav a').onkeydown = event => event.preventDefault()</script>"
CYCLE = """<script>document.querySelector('main a').onkeydown = event => {
  event.preventDefault(); document.querySelector('nav a').focus() }</script>"""


@pytest.mark.parametrize(
    ("body", "head", "said"),
    [
        (GOOD.replace('class="skip" href="#content"', 'href="#more"'), "", "the first Tab reaches no link to the main"),
        ("<main><h1>Nothing to reach</h1></main>", "", "the first Tab reaches no link to the main"),
        (GOOD.replace("<a href", '<a tabindex="-1" href'), "", "Tab never reaches <a tabindex"),
        (GOOD, NO_OUTLINE, "focus can't be seen on <a"),
        (GOOD, "<style>.skip:focus { left: -100vw }</style>", "has the focus outside the window"),
        (GOOD + TRAP, "", "Tab never leaves <a"),
        (GOOD + TRAP, "", "Tab never reaches <summary>"),
        (GOOD, "<style>input:focus-visible { outline: none }</style>", "focus can't be seen on <input"),
        (GOOD.replace(' name="one">', ' name="one" tabindex="-1" onfocus="blur()">'), "", "Tab never reaches <input"),
        (GOOD + CYCLE, "", "Tab never leaves <a"),
        (GOOD.replace("<summary>", "<summary onclick='return false'>"), "", "Enter does not unfold <summary"),
    ],
)
def test_each_keyboard_fault_is_found(
    browser: Browser, page: Callable[..., Path], body: str, head: str, said: str
) -> None:
    found = problems(browser, checks.problems_of_keyboard, page(body, head, policy=False))
    assert [problem for problem in found if said in problem], found


def test_a_skip_link_that_leads_nowhere_is_found(browser: Browser, page: Callable[..., Path]) -> None:
    path = page(GOOD.replace(' id="content"', ""))
    assert "the first Tab reaches no link" in problems(browser, checks.problems_on_screen, path)[0]
    path = page(GOOD.replace('class="skip"', 'class="skip" onclick="return false"'), policy=False)
    assert "the skip link leads nowhere" in problems(browser, checks.problems_on_screen, path)[0]


@pytest.mark.parametrize(
    ("fault", "style", "said"),
    [
        ("", "main { display: none }", "is not printed: <h1>"),
        ("", "main p { visibility: hidden }", "is not printed: <p>"),
        ("", "img { opacity: 0 }", "is not printed: <img"),
        ("", ".wide { width: 900px !important }", "is 900 px wide"),
        ("", "h1 { margin-left: 600px; width: 200px }", "ends at 8"),
        ('<div style="width: 200px; overflow: auto"><p style="width: 400px">cut</p></div>', "", "is cut off on paper"),
        ('<pre style="height: 2em; overflow: auto" tabindex="0">1\n2\n3\n4\n5</pre>', "", "is cut off on paper"),
        (
            '<details><summary>s</summary><pre style="height: 2em; overflow: auto">1\n2\n3\n4\n5</pre></details>',
            "",
            "unfolded, is cut off on paper",
        ),
    ],
)
def test_content_lost_in_print_is_found(
    browser: Browser, page: Callable[..., Path], fault: str, style: str, said: str
) -> None:
    path = page(GOOD.replace("</main>", f"{fault}</main>"), f"<style>@media print {{ {style} }}</style>")
    found = problems(browser, checks.problems_on_paper, path)
    assert [problem for problem in found if said in problem], found


def test_dark_colours_on_paper_are_found(browser: Browser, page: Callable[..., Path]) -> None:
    picture = f'<picture><source media="(prefers-color-scheme: dark)" srcset="{DARK_PICTURE}">'
    with window(browser) as light, window(browser, scheme="dark") as dark:
        assert printed(light, page()) == printed(light, page()) == printed(dark, page())
        path = page(GOOD.replace("<img", f"{picture}<img").replace('a shape">', 'a shape"></picture>'))
        assert printed(light, path) != printed(dark, path), "the light picture, and the dark one"


def test_text_that_only_a_script_writes_is_found(browser: Browser, page: Callable[..., Path]) -> None:
    path = page(GOOD + "<script>document.querySelector('h1').textContent = 'Another title'</script>", policy=False)
    with window(browser) as scripted, window(browser, scripts=False) as without:
        assert "Another title" in text_of(scripted, path)
        assert text_of(without, path).startswith("Title")
        path = page()
        assert text_of(scripted, path) == text_of(without, path) != ""


def test_a_page_of_more_than_two_megabytes_is_found(page: Callable[..., Path]) -> None:
    assert too_large(page()) == []
    assert "has 2000" in too_large(page(" " * 2_000_000))[0]


def test_problems_are_listed_page_by_page() -> None:
    text = listed({"h200/index.html": ["one", "two"], "cpu/index.html": ["n"] * 14})
    assert text.splitlines()[:4] == ["16 problems on 2 pages", "h200/index.html", "  - one", "  - two"]
    assert text.endswith("  - and 2 more")


def test_without_a_browser_the_reason_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "find_spec", lambda _: object())
    monkeypatch.setenv("LABKIT_CHROMIUM", "/nowhere/chromium")
    assert "apt-get install chromium" in (checks.why_not() or "")
    monkeypatch.setattr(checks, "find_spec", lambda _: None)
    assert "make setup" in (checks.why_not() or "")
