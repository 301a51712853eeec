"""Tests of a notebook in JupyterLab: a reader opens recorded results, edits a line, and sees the figure change."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.committed import committed_reports
from workbook.paths import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NOTEBOOK = "05_inference.ipynb"
TOKEN = "of-this-test"
PATIENCE_MS = 240_000
# These definitions stand before each script of `page.evaluate`.
HELPERS = """
const panel = window.jupyterapp.shell.currentWidget;
const cells = panel.content.widgets;
const tagged = tag => cells.findIndex(cell => (cell.model.getMetadata('tags') || []).includes(tag));
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start JupyterLab on a folder with the notebook, whose `hw` is set to h200, and yield the notebook's address."""
    folder = tmp_path_factory.mktemp("lab")
    text = (ROOT / "notebooks" / NOTEBOOK).read_text(encoding="utf-8")
    (folder / NOTEBOOK).write_text(text.replace('hw = \\"\\"', 'hw = \\"h200\\"'), encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = [f"--ServerApp.port={port}", f"--ServerApp.root_dir={folder}", f"--IdentityProvider.token={TOKEN}"]
    options += ["--no-browser", "--allow-root", "--LabApp.expose_app_in_browser=True", "--ServerApp.port_retries=0"]
    own = {f"JUPYTER_{name}_DIR": str(folder / name) for name in ("CONFIG", "RUNTIME", "DATA")}
    environment = (
        os.environ | own | {"LABKIT_REPORTS": str(committed_reports()), "JUPYTERLAB_SETTINGS_DIR": str(folder)}
    )
    with (folder / "log").open("wb") as log:
        command = [sys.executable, "-m", "jupyterlab", *options]
        server = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
    try:
        wait_for_server(f"http://127.0.0.1:{port}/api?token={TOKEN}", server, folder / "log")
        yield f"http://127.0.0.1:{port}/lab/tree/{NOTEBOOK}?token={TOKEN}&reset"
    finally:
        server.terminate()
        server.wait()


def wait_for_server(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            assert server.poll() is None, log.read_text(errors="replace")
            time.sleep(0.2)


@pytest.fixture(scope="module")
def page(browser: Browser, address: str) -> Iterator[Page]:
    """Open the notebook, start running all its cells, and yield the page."""
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.goto(address)
        page.wait_for_function("() => window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel")
        page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.ready")
        page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-all-cells')")
        yield page


def outputs(page: Page, tag: str) -> list[dict[str, Any]]:
    """Wait until the cell with a tag has run and return its outputs."""
    place = page.evaluate(f"tag => {{ {HELPERS} return tagged(tag); }}", tag)
    page.wait_for_function(
        f"place => {{ {HELPERS} const cell = cells[place]; "
        "return cell.model.executionCount !== null && cell.model.executionState !== 'running'; }",
        arg=place,
    )
    shown: list[dict[str, Any]] = page.evaluate(
        f"place => {{ {HELPERS} return cells[place].model.outputs.toJSON(); }}", place
    )
    return shown


def edit(page: Page, place: int, source: str) -> None:
    """Focus a cell and replace its source."""
    page.evaluate(
        f"place => {{ {HELPERS} panel.content.activeCellIndex = place; panel.content.mode = 'edit'; "
        "return panel.content.scrollToItem(place); }",
        place,
    )
    page.locator(".jp-mod-active .cm-content").click()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(source)


def test_a_changed_query_changes_the_figure(page: Page) -> None:
    before = outputs(page, "figure")
    assert not [output for output in before if output["output_type"] == "error"], before
    place, source = page.evaluate(
        f"() => {{ {HELPERS} const i = tagged('figure'); return [i, cells[i].model.sharedModel.source]; }}"
    )
    assert "    swept,\n" in source
    edit(page, place, source.replace("    swept,\n", "    swept.query('batch <= 256'),\n"))
    page.keyboard.press("Shift+Enter")
    page.wait_for_function(
        f"before => {{ {HELPERS} const shown = cells[tagged('figure')].model.outputs.toJSON(); "
        "return shown.length && JSON.stringify(shown) !== before; }",
        arg=json.dumps(before, separators=(",", ":"), ensure_ascii=False),
    )
    after = outputs(page, "figure")
    assert not [output for output in after if output["output_type"] == "error"], after
    assert "<svg" in json.dumps(after) and after != before


def test_the_tab_key_offers_the_helpers(page: Page) -> None:
    # A busy kernel offers no completions.
    page.wait_for_function(
        f"() => {{ {HELPERS} const code = cells.filter(cell => cell.model.type === 'code'); "
        "return code.at(-1).model.executionCount !== null && panel.sessionContext.session.kernel.status === 'idle'; }"
    )
    page.evaluate("() => window.jupyterapp.commands.execute('notebook:insert-cell-below')")
    place = page.evaluate(f"() => {{ {HELPERS} return panel.content.activeCellIndex; }}")
    edit(page, place, "wb.")
    names = page.locator(".jp-Completer-list .jp-Completer-match")
    while not names.count():  # JupyterLab waits only 1 s for the kernel, which may be too short on a busy machine
        page.keyboard.press("Tab")
        page.wait_for_timeout(3_000)
    offered = set(names.all_inner_texts())
    assert {"load", "estimate", "ratio", "difference", "table"} <= offered, offered
