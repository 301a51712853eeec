"""Checks of a page in a browser. Each check returns the problems that it finds, one readable line per problem."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request

Rules: TypeAlias = Literal["all", "colours", "structure"]

LARGEST_BYTES = 2_000_000
PAPER = (672, 986)  # A4 less the margins of the stylesheet's @page, in CSS pixels; US letter is wider
ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]

LONGEST_TABLE = 6  # rows of a folded table that axe-core reads: rows are alike, and each cell takes long

# `run` puts these definitions before each script below.
_HELPERS = """
const brief = element => {
  const tag = element.cloneNode(false).outerHTML.replace(/<\\/[^>]*>$/, '').replace(/data:[^"]{40,}/g, 'data:…');
  const text = (element.textContent || '').trim().replace(/\\s+/g, ' ');
  return tag.slice(0, 160) + (text ? ' “' + text.slice(0, 60) + '”' : '');
};
const shown = element => element.checkVisibility({visibilityProperty: true, opacityProperty: true})
  && element.getBoundingClientRect().width > 0 && element.getBoundingClientRect().height > 0;
const drawn = () => [...document.body.querySelectorAll('*')].filter(e => !e.closest('svg *') && shown(e));
const clips = element => getComputedStyle(element).overflowX !== 'visible';
"""

_STICKING_OUT = """
const width = document.scrollingElement.clientWidth, wide = document.scrollingElement.scrollWidth;
if (wide <= width + 1) return [];
const within = element => {  // a box that clips it: one between an absolute element and what places it does not
  let position = getComputedStyle(element).position;
  for (let e = element.parentElement; e !== document.body && position !== 'fixed'; e = e.parentElement) {
    const placed = getComputedStyle(e).position;
    if (position === 'absolute' && placed === 'static') continue;
    if (clips(e)) return true;
    position = placed;
  }
  return false;
};
const out = drawn().filter(e => e.getBoundingClientRect().right > width + 1 && !within(e)).slice(0, 3).map(brief);
return [`the page is ${wide} px wide in a window of ${width} px; sticking out: ${out.join('; ') || 'nothing drawn'}`];
"""

# The boxes of words decide, not those of elements: a box that scrolls is inside the window, its words may be cut.
_TEXTS_IN_FIGURES = """
const problems = [];
for (const svg of document.querySelectorAll('.lk-figure > svg')) {
  const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
  const texts = [...svg.querySelectorAll('text')].filter(text => text.textContent.trim()).map(text => (
    {said: `“${text.textContent}” in ${svg.parentElement.id}`, box: text.getBoundingClientRect(),
      size: scale * parseFloat(getComputedStyle(text).fontSize)}));
  for (const [place, {said, box, size}] of texts.entries()) {
    if (size < 11.95) problems.push(`${said} has ${size.toFixed(1)} pixels`);
    for (const other of texts.slice(place + 1))
      if (Math.min(box.right, other.box.right) - Math.max(box.left, other.box.left) > 1
          && Math.min(box.bottom, other.box.bottom) - Math.max(box.top, other.box.top) > 3)
        problems.push(`${said} overlaps ${other.said}`);
  }
}
return problems;
"""
_CUT_OR_OVERLAPPING = """
const screen = {left: 0, right: document.scrollingElement.clientWidth, top: -Infinity, bottom: Infinity};
const known = new Map([[document.documentElement, screen]]);
const visible = element => {  // the part of the page in which an element's content is seen without scrolling a box
  if (known.has(element)) return known.get(element);
  let part = visible(element.parentElement);
  if (clips(element) && getComputedStyle(element).display !== 'inline') {
    const box = element.getBoundingClientRect();
    const left = box.left + element.clientLeft, top = box.top + element.clientTop;
    part = {left: Math.max(part.left, left), right: Math.min(part.right, left + element.clientWidth),
      top: Math.max(part.top, top), bottom: Math.min(part.bottom, top + element.clientHeight)};
  }
  known.set(element, part);
  return part;
};
const heard = element => element.closest('a[href="#content"]:not(:focus)') || element.clientWidth === 1;
const inline = element => getComputedStyle(element).display.startsWith('inline');
const block = element => inline(element) ? block(element.parentElement) : element;
const said = text => '“' + text.data.trim().replace(/\\s+/g, ' ').slice(0, 60) + '”';
const words = text => [...text.data.matchAll(/\\S+/g)].flatMap(word => {  // spaces may hang over the end of a line
  range.setStart(text, word.index);
  range.setEnd(text, word.index + word[0].length);
  return [...range.getClientRects()].filter(box => box.width > 0);
});
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
const lines = [], problems = [], range = document.createRange();
while (texts.nextNode()) {
  const text = texts.currentNode, element = text.parentElement;
  if (!text.data.trim() || element.closest('style, script') || !shown(element) || heard(element)) continue;
  const part = visible(element), boxes = words(text);
  const cut = Math.max(...boxes.map(box => Math.max(box.right - part.right, part.left - box.left)));
  if (cut > 0.5) problems.push(`${Math.ceil(cut)} px are cut of ${said(text)} in ${brief(element)}`);
  if (element.closest('svg')) continue;
  for (const box of boxes)
    if (box.top < part.bottom && box.bottom > part.top) lines.push({box, text, block: block(element)});
}
lines.sort((one, other) => one.box.top - other.box.top);
for (const [place, {box, text, block}] of lines.entries())
  for (let next = place + 1; next < lines.length && lines[next].box.top < box.bottom - 1; next++) {
    const other = lines[next];
    if (other.block !== block && Math.min(box.right, other.box.right) - Math.max(box.left, other.box.left) > 1)
      problems.push(`${said(text)} overlaps ${said(other.text)}`);
  }
return problems;
"""

_EMPTY_PICTURES = """
return [...document.images].filter(image => image.complete && !image.naturalWidth)
  .map(image => 'a picture can\\'t be shown: ' + brief(image));
"""

_SHORTEN = f"""
for (const table of document.querySelectorAll('details table'))
  for (const row of [...table.rows].slice({LONGEST_TABLE})) row.remove();
"""

# Only the main content that is visible on the screen must be printed. Folded code may stay folded.
_BLOCKS = "main :is(h1, h2, h3, h4, p, li, dt, dd, table, caption, th, td, figure, figcaption, img, pre, svg)"
_MARK_BLOCKS = f"""
window.lkBlocks = [...document.querySelectorAll('{_BLOCKS}')]
  .filter(element => !element.closest('details, svg *') && shown(element));
return window.lkBlocks.length;
"""
_ON_PAPER = """
const page = document.scrollingElement.clientWidth;
const problems = window.lkBlocks.filter(element => !shown(element)).map(e => 'is not printed: ' + brief(e));
const broad = element => {
  const box = element.getBoundingClientRect();
  return Math.max(box.right, box.width) > page + 1;
};
for (const element of drawn()) {
  const box = element.getBoundingClientRect(), style = getComputedStyle(element);
  if (broad(element) && !broad(element.parentElement))
    problems.push(`is ${Math.round(box.width)} px wide and ends at ${Math.round(box.right)} px `
      + `of a printed page of ${page} px: ` + brief(element));
  if (style.display !== 'inline' && element.clientWidth > 1 && (
      (style.overflowX !== 'visible' && element.scrollWidth > element.clientWidth + 1)
      || (style.overflowY !== 'visible' && element.scrollHeight > element.clientHeight + 1)))
    problems.push(`is cut off on paper, because it scrolls (${element.scrollWidth} x ${element.scrollHeight} px in `
      + `${element.clientWidth} x ${element.clientHeight}): ` + brief(element));
}
return problems;
"""

_FOCUSABLE = """
const focusable = () => [...document.querySelectorAll('a[href], area[href], button, input, select, textarea, summary, '
    + 'iframe, audio[controls], video[controls], [contenteditable=true], [tabindex]')]
  .filter(element => !element.disabled && element.type !== 'hidden' && shown(element)
    && !(element.tabIndex < 0 && !element.matches('a, button, input, select, textarea, summary')));
"""
_WHERE = """
const element = document.activeElement;
if (!element || element === document.body || element === document.documentElement) return null;
window.lkSeen ??= new Set(), window.lkFirst ??= element;
const again = window.lkSeen.has(element), box = element.getBoundingClientRect();
const outlined = e => getComputedStyle(e).outlineStyle !== 'none' && parseFloat(getComputedStyle(e).outlineWidth) > 0;
window.lkSeen.add(element);
return {
  brief: brief(element),
  again,
  first: element === window.lkFirst,
  marked: element.matches(':focus-visible') && [element, ...element.labels ?? []].some(outlined),
  inside: box.right > 0 && box.bottom > 0 && box.left < innerWidth && box.top < innerHeight,
  choice: element.type === 'radio',
  folded: element.localName === 'summary' && !element.parentElement.open,
  leads: element.localName === 'a' && element.hash ? element.hash.slice(1) : '',
  main: document.querySelector('main')?.id || null,
};
"""
_FOCUS_IN_MAIN = "return document.querySelector('main')?.contains(document.activeElement) ?? false;"


def why_not() -> str | None:
    """Return why this machine cannot open pages and what to install, or None if it can."""
    missing = [name for name in ("playwright", "axe-playwright-python") if find_spec(name.replace("-", "_")) is None]
    if missing:
        return f"needs {' and '.join(missing)} to open pages in a browser: run `make setup`"
    if chromium() is None:
        return (
            "needs Chromium to open pages in: install it (Debian: `apt-get install chromium`), "
            "or name a Chromium or Chrome in LABKIT_CHROMIUM"
        )
    return None


def chromium() -> str | None:
    """Return the path of Chromium: LABKIT_CHROMIUM, or the first of the usual names on PATH. None without Chromium."""
    own = os.environ.get("LABKIT_CHROMIUM")
    names = [own] if own else ["chromium", "chromium-browser", "google-chrome"]
    return next((path for name in names if (path := shutil.which(name))), None)


@cache
def axe() -> str:
    """Return the JavaScript source of axe-core that the package bundles."""
    import axe_playwright_python

    return (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")


@contextmanager
def window(
    browser: Browser, size: tuple[int, int] = (1280, 900), scheme: str = "light", *, scripts: bool = True
) -> Iterator[BrowserContext]:
    """Open a new, offline browser window: no request of a page to the network succeeds."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if scheme == "dark" else "light",
        java_script_enabled=scripts,
        offline=True,
    )
    context.set_default_timeout(120_000)  # a busy machine must not fail a page
    try:
        yield context
    finally:
        context.close()


@contextmanager
def opened(context: BrowserContext, path: Path) -> Iterator[tuple[Page, list[str]]]:
    """Open a page and yield it with a list of its external requests and complaints, which grows while it is open.

    All pages of a window open in the same tab, one after the other. A tab for each page would take twice the time.
    """
    page = context.pages[0] if context.pages else context.new_page()
    problems = list[str]()

    def add(problem: str) -> None:
        if problem not in problems:
            problems.append(problem)

    def asked(request: Request) -> None:
        if request.url.partition("#")[0] != path.as_uri() and not request.url.startswith("data:"):
            add(f"asks for {request.url[:200]}")

    def said(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            add(f"{message.type}: {message.text}")

    listeners: dict[Any, Any] = {
        "request": asked,
        "requestfailed": lambda request: add(f"a request failed ({request.failure}): {request.url[:200]}"),
        "console": said,
        "pageerror": lambda error: add(f"a script failed: {error}"),
    }
    for event, listener in listeners.items():
        page.on(event, listener)
    try:
        page.goto(path.as_uri())
        yield page, problems
    finally:
        for event, listener in listeners.items():
            page.remove_listener(event, listener)


def problems_on_screen(context: BrowserContext, path: Path, *, rules: Rules = "all") -> list[str]:
    """Return all problems of a page in this window, both as it opens and with every fold open.

    `rules` selects the rules of axe-core, to skip those checked in another window: colours take most of its time.
    """
    with opened(context, path) as (page, heard):
        found = sticking_out(page) + run(page, _EMPTY_PICTURES) + skip_link_fails(page)
        unfold(page)
        found += [problem for problem in sticking_out(page) if problem not in found] + cut_or_overlapping(page)
        run(page, _SHORTEN)
        found += inaccessible(page, rules)
        return heard + found


def run(page: Page, script: str) -> Any:
    """Run a script in the page and return its value. The page's policy, which forbids scripts, does not apply here."""
    return page.evaluate(f"() => {{ {_HELPERS} {script} }}")


def unfold(page: Page) -> None:
    run(page, "document.querySelectorAll('details').forEach(element => { element.open = true; });")


def sticking_out(page: Page) -> list[str]:
    """Return a problem if the page as a whole scrolls sideways."""
    return run(page, _STICKING_OUT)


def cut_or_overlapping(page: Page) -> list[str]:
    """Return the texts that a window or a scrolling box cuts at a side, and the texts of two blocks that overlap."""
    return run(page, _CUT_OR_OVERLAPPING)


def texts_in_figures(context: BrowserContext, path: Path) -> list[str]:
    """Return the texts of figures that are smaller than 12 pixels, or that overlap another text of their figure."""
    with opened(context, path) as (page, _):
        unfold(page)
        return run(page, _TEXTS_IN_FIGURES)


def inaccessible(page: Page, rules: Rules = "all") -> list[str]:
    """Return the problems that axe-core rates serious or critical."""
    page.evaluate(axe())
    options: dict[str, Any] = {"preload": False, "resultTypes": ["violations"]}
    if rules == "colours":
        options["runOnly"] = ["color-contrast"]
    elif rules == "structure":
        options["rules"] = {"color-contrast": {"enabled": False}}
    result = page.evaluate("options => axe.run(document, options)", options)
    return [
        f"{rule['id']} ({rule['impact']}): {rule['help']}; {len(rule['nodes'])} of them, such as "
        + "; ".join(f"{node['html'][:200]} at {node['target'][0]}" for node in rule["nodes"][:3])
        + f" [{' '.join(rule['nodes'][0]['failureSummary'].split())[:300]}]"
        for rule in result["violations"]
        if rule["impact"] in ("serious", "critical")
    ]


def too_large(path: Path) -> list[str]:
    size = path.stat().st_size
    return [f"has {size} bytes, and at most {LARGEST_BYTES} are allowed"] if size > LARGEST_BYTES else []


def problems_of_keyboard(context: BrowserContext, path: Path) -> list[str]:
    """Return what a keyboard cannot reach, mark or leave. Enter opens folds; arrow keys step through radio buttons."""
    with opened(context, path) as (page, heard):
        stop = _pressed(page, "Tab")
        problems, last = _not_to_main(stop), ""
        while stop is not None and not stop["again"]:
            problems += _problems_of_stop(stop)
            if stop["folded"]:
                page.keyboard.press("Enter")
                if not run(page, "return document.activeElement.parentElement.open"):
                    problems.append(f"Enter does not unfold {stop['brief']}")
            # Radio buttons of a name share one Tab stop. After the last of them the arrow selects the first again.
            if stop["choice"]:
                while (button := _pressed(page, "ArrowDown")) is not None and not button["again"]:
                    problems += _problems_of_stop(button)
            last, stop = stop["brief"], _pressed(page, "Tab")
        if stop is not None and not stop["first"]:
            problems.append(f"Tab never leaves {last}")
        problems += run(
            page,
            f"{_FOCUSABLE} return focusable().filter(element => !(window.lkSeen ?? new Set()).has(element))"
            ".map(element => 'Tab never reaches ' + brief(element));",
        )
        return heard + problems


def _not_to_main(stop: dict[str, Any] | None) -> list[str]:
    if stop is not None and stop["main"] and stop["leads"] == stop["main"]:
        return []
    return [f"the first Tab reaches no link to the main content, but {stop['brief'] if stop else 'nothing'}"]


def _problems_of_stop(stop: dict[str, Any]) -> list[str]:
    found = [] if stop["marked"] else [f"focus can't be seen on {stop['brief']}"]
    return found if stop["inside"] else [*found, f"has the focus outside the window: {stop['brief']}"]


def skip_link_fails(page: Page) -> list[str]:
    """Return a problem if Tab and Enter, as the first keys on a page, do not move the focus into the main content."""
    if astray := _not_to_main(_pressed(page, "Tab")):
        return astray  # Enter might open another page
    page.keyboard.press("Enter")
    if not run(page, _FOCUS_IN_MAIN):
        page.keyboard.press("Tab")
    return [] if run(page, _FOCUS_IN_MAIN) else ["the skip link leads nowhere: the focus is outside main"]


def _pressed(page: Page, key: str) -> dict[str, Any] | None:
    page.keyboard.press(key)
    return _where(page)


def _where(page: Page) -> dict[str, Any] | None:
    return page.evaluate(f"() => {{ {_HELPERS} {_WHERE} }}")


def problems_on_paper(context: BrowserContext, path: Path) -> list[str]:
    """Return what printing loses: content not printed, wider than the page, or cut off by a scrolling box."""
    with opened(context, path) as (page, heard):
        page.set_viewport_size({"width": PAPER[0], "height": PAPER[1]})
        if not run(page, _MARK_BLOCKS):
            return [*heard, "has no main content on the screen either"]
        page.emulate_media(media="print")
        found = run(page, _ON_PAPER)
        unfold(page)
        found += [f"unfolded, {problem}" for problem in run(page, _ON_PAPER) if problem not in found]
        page.emulate_media(media="screen")
        return heard + found


def printed(context: BrowserContext, path: Path) -> bytes:
    """Return the page as a PDF printed by Chromium, without the dates, which alone differ between prints."""
    with opened(context, path) as (page, _):
        return re.sub(rb"/(CreationDate|ModDate) \([^)]*\)", b"", page.pdf(prefer_css_page_size=True))


def text_of(context: BrowserContext, path: Path) -> str:
    """Return the visible text of the main content."""
    with opened(context, path) as (page, _):
        return page.inner_text("main")


def listed(problems: dict[str, list[str]], most: int = 12) -> str:
    """Return all problems as text, page by page, with at most `most` lines per page."""
    lines = [f"{sum(map(len, problems.values()))} problems on {len(problems)} pages"]
    for page, found in problems.items():
        lines += [page, *(f"  - {problem}" for problem in found[:most])]
        if len(found) > most:
            lines.append(f"  - and {len(found) - most} more")
    return "\n".join(lines)
