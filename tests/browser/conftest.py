"""Fixtures: a browser, and the pages of a rendered site that the tests open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.checks import ARGUMENTS, chromium, why_not
from tests.commands import RENDERS, Site

if TYPE_CHECKING:
    from playwright.sync_api import Browser


# The scope is not the session: Playwright keeps an event loop running, and other tests start their own loops.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    if reason := why_not():
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        yield started
        started.close()


OTHERS = [pytest.param(name, marks=pytest.mark.thorough) for name in ("papers", *RENDERS) if name != "h200"]


@pytest.fixture(params=["h200", *OTHERS])
def pages(site: Site, request: pytest.FixtureRequest) -> list[Path]:
    """Return the pages of a report that the tests open. The pages of papers are alike: with the others stands one."""
    first, *papers = sorted(site.report("h200").glob("papers/*.html"))
    if request.param == "papers":
        return papers
    return [*site.pages(request.param), *([first] if request.param == "h200" else [])]
