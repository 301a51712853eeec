"""A browser, and the pages of a rendered site that it opens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.checks import ARGUMENTS, chromium, why_not
from tests.commands import UNRECORDED, Site

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# Of a profile without records pages are alike, and a CPU's are a GPU's with less on them, but where devices are
# compared; tests/notebooks read all of them.
OPENED = ("index", "claims", "fingerprint", "01_training", "08_quantization")


# Not for the session: Playwright keeps an event loop running, and other tests start loops of their own.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    if reason := why_not():
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        yield started
        started.close()


@pytest.fixture(scope="session")
def pages(site: Site) -> list[Path]:
    """Those that are opened."""
    alike = [page for page in site.pages(UNRECORDED) if page.stem in OPENED]
    return [*site.pages("comparison", "cpu", "h200"), *alike]
