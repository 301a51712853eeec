"""`make picture`: the picture in the README, the first screen of the H200's index.

The titles of the page's figures go into the PNG file as text, so that a test can tell an old picture.
"""

from __future__ import annotations

from tests.browser.checks import ARGUMENTS, chromium, why_not
from workbook.paths import ROOT

PICTURE = ROOT / "docs" / "report-h200.png"
KEY = "Titles"
_SIZE = {"width": 1280, "height": 920}


def titles_of(page: str) -> str:
    """Return the titles of a page's figures, a line each."""
    from bs4 import BeautifulSoup

    titles = BeautifulSoup(page, "html.parser").select(".lk-title")
    return "\n".join(" ".join(title.get_text().split()) for title in titles)


def main() -> int:
    """Take the picture of the site that is rendered; return 1 where no browser can."""
    if reason := why_not():
        print(f"labkit: the picture was not made: {reason}")
        return 1
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo
    from playwright.sync_api import sync_playwright

    index = ROOT / "reports" / "h200" / "index.html"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        page = browser.new_page(viewport=_SIZE, color_scheme="light")
        page.goto(index.as_uri())
        page.screenshot(path=PICTURE)
        browser.close()
    texts = PngInfo()
    texts.add_text(KEY, titles_of(index.read_text(encoding="utf-8")))
    Image.open(PICTURE).save(PICTURE, pnginfo=texts, optimize=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
