"""Tests of pages that `make render` makes from records that someone sent: nothing runs and nothing is fetched."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.hostile import ATTACKS, HW, NOWHERE, STUDIES, control_characters, make_project, render
from tests.commands import apart
from tests.once import once

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Request, Route

SAID = "said.txt"
COUNT = """
window.hits = 0; window.hit = () => { window.hits += 1; };
document.addEventListener('securitypolicyviolation', event => { (window.violations ??= []).push(event.blockedURI); });
"""

NOT_ON_A_PAGE = {
    "an element that runs or loads": (
        "[...document.querySelectorAll('script, iframe, object, embed, base, form, input[onfocus], "
        "link:not([rel=icon])')].map(e => e.outerHTML)"
    ),
    "an event handler": (
        "[...document.querySelectorAll('*')].flatMap(e => e.getAttributeNames()).filter(n => n.startsWith('on'))"
    ),
    "a link that runs": (
        "[...document.links].filter(a => !(a.download && /^data:(text\\/csv|image\\/(png|svg\\+xml));base64,/"
        ".test(a.href))).map(a => a.protocol).filter(p => !['file:', 'https:', 'http:'].includes(p))"
    ),
    "a saved drawing that runs": (
        "[...document.querySelectorAll('a[download$=svg]')].map(a => new DOMParser().parseFromString("
        "atob(a.href.split(',')[1]), 'image/svg+xml')).flatMap(svg => [...svg.querySelectorAll('*')])"
        ".filter(e => ['script', 'foreignObject', 'parsererror'].includes(e.localName)"
        " || e.getAttributeNames().some(n => n.startsWith('on'))).map(e => e.outerHTML)"
    ),
}


@pytest.fixture(scope="module")
def hostile(shared_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project whose site was rendered from hostile data."""

    def make(folder: Path) -> None:
        make_project(folder)
        (folder / SAID).write_text(render(folder, apart(folder, shared_cache)), encoding="utf-8")

    return once(tmp_path_factory, "hostile", make)


def test_the_command_renders_every_page_and_prints_no_control_character(hostile: Path) -> None:
    said = (hostile / SAID).read_text(encoding="utf-8")
    assert "Traceback" not in said and control_characters(said) == [], said
    pages = {page.name for page in (hostile / "reports" / HW).glob("*.html")}
    assert {"index.html", "claims.html", "fingerprint.html", *(f"{study}.html" for study in STUDIES)} <= pages, said


def test_hostile_texts_are_on_the_pages_as_text(hostile: Path) -> None:
    for page in sorted((hostile / "reports" / HW).rglob("*.html")):
        text = page.read_text(encoding="utf-8")
        assert NOWHERE in text, page


def test_no_page_runs_a_script_fetches_anything_or_opens_a_dialog(hostile: Path, browser: Browser) -> None:
    pages = sorted((hostile / "reports" / HW).rglob("*.html"))
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        requests: list[str] = []
        dialogs: list[str] = []

        def asked(route: Route, request: Request) -> None:
            if request.is_navigation_request() and request.frame.parent_frame is None and request.url == wanted:
                route.continue_()
                return
            requests.append(f"{wanted}: {request.url}")
            route.abort()

        context.route("**/*", asked)
        context.add_init_script(COUNT)
        for path in pages:
            wanted = path.as_uri()
            page = context.new_page()
            page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
            page.goto(wanted)
            page.evaluate("for (const fold of document.querySelectorAll('details')) fold.open = true")
            for link in page.locator("summary").all()[:3]:
                link.hover()
            page.wait_for_timeout(100)
            # A script of the page would count here: the function stands before anything of the page runs.
            assert page.evaluate("window.hits") == 0, path
            assert page.evaluate("window.violations ?? []") == [], "the policy had nothing to forbid"
            assert page.url == wanted
            for what, selected in NOT_ON_A_PAGE.items():
                assert page.evaluate(selected) == [], (path, what)
            page.close()
        assert requests == [] and dialogs == []


def test_the_attacks_are_real(browser: Browser, tmp_path: Path) -> None:
    """The same attacks on a page without escaping and policy run and ask for files: the test above can fail."""
    path = tmp_path / "page.html"
    path.write_text(f"<!DOCTYPE html><title>x</title><body>{' '.join(ATTACKS[:5])}", encoding="utf-8")
    with browser.new_context() as context:
        asked: list[str] = []
        context.route("**/*", lambda route, request: (asked.append(request.url), route.continue_()))
        context.add_init_script(COUNT)
        page = context.new_page()
        page.goto(path.as_uri())
        assert page.evaluate("window.hits") > 0
        assert any(NOWHERE in url for url in asked)
