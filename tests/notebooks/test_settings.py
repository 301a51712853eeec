"""Tests that the settings of a user's libraries change no page, and that a notebook runs this checkout's code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from labkit.errors import UserError
from tests.notebooks.test_notebooks import write_notebook
from tests.processes import PATIENCE_S
from workbook import lab
from workbook.paths import ROOT
from workbook.report import execute as executing
from workbook.report.execute import execute

DRAWN = """
import pandas as pd
from workbook import plots
frame = pd.DataFrame({"batch": [16, 64, 256], "value": [1.23456, 4.0, 9.0], "low": [1.0, 3.0, 8.0], "high": 10.0})
plots.lines(frame, x="batch", y="power_w", title="A title")
"""
SHOWN = "print(frame)\nframe"
MATPLOTLIBRC = "lines.linewidth: 9\naxes.titleweight: bold\nfont.family: cursive\ntext.usetex: True\nbackend: TkAgg\n"
STARTUP = """
import pandas, matplotlib
pandas.set_option("display.precision", 1)
matplotlib.rcParams["axes.titlepad"] = 40
print("hello")
"""
IN_HOME = {
    ".config/matplotlib/matplotlibrc": MATPLOTLIBRC,
    ".ipython/profile_default/startup/00.py": STARTUP,
    ".ipython/profile_default/ipython_kernel_config.py": "c.InteractiveShell.pdb = True\n",
    ".jupyter/jupyter_config.py": "c.KernelManager.transport = 'tcp'\nc.NotebookClient.timeout = 1\n",
    ".local/share/jupyter/kernels/labkit/kernel.json": '{"argv": ["false"], "display_name": "x", "language": "y"}',
}


def outputs_of(tmp_path: Path) -> list[Any]:
    notebook = write_notebook(tmp_path / "drawn.ipynb", "x = 1", DRAWN, SHOWN)
    outcome = execute(notebook, tmp_path / "executed.ipynb", {}, timeout_s=PATIENCE_S)
    assert outcome.reason is None
    return [cell["outputs"] for cell in json.loads((tmp_path / "executed.ipynb").read_text())["cells"]]


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        return outputs_of(tmp_path_factory.mktemp("usual"))


def in_home(home: Path, files: dict[str, str], patch: pytest.MonkeyPatch) -> None:
    for name, text in files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    patch.setenv("HOME", str(home))
    for name in ("IPYTHONDIR", "XDG_CONFIG_HOME", "MPLCONFIGDIR", "JUPYTER_CONFIG_DIR", "MATPLOTLIBRC"):
        patch.delenv(name, raising=False)


@pytest.mark.parametrize("where", ["files in the home", "variables", "no home"])
def test_settings_of_a_user_change_no_output(
    where: str, usual: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if where == "files in the home":
        in_home(tmp_path / "home", IN_HOME, monkeypatch)
    elif where == "variables":
        (tmp_path / "rc").write_text(MATPLOTLIBRC)
        monkeypatch.setenv("MATPLOTLIBRC", str(tmp_path / "rc"))
        monkeypatch.setenv("MPLBACKEND", "TkAgg")
    else:
        monkeypatch.delenv("HOME")
    assert outputs_of(tmp_path) == usual


def test_sockets_go_to_the_first_short_folder_that_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    writable = {"/scratch", "/tmp"}
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/of-the-user")
    monkeypatch.setattr(os, "access", lambda folder, _: folder in writable)
    monkeypatch.setattr(tempfile, "tempdir", "/scratch")
    assert executing._short_folder() == "/scratch"
    monkeypatch.setattr(tempfile, "tempdir", f"/scratch/{'a' * executing.SOCKET_FOLDER}")
    writable |= {tempfile.gettempdir()}
    assert executing._short_folder() == "/tmp"
    writable = {tempfile.gettempdir(), "/run/of-the-user"}
    assert executing._short_folder() == "/run/of-the-user"
    writable = {tempfile.gettempdir()}
    with pytest.raises(UserError, match="set TMPDIR to a folder that can be written, with a path of at most 40"):
        executing._short_folder()


# ---- which code a notebook runs --------------------------------------------------------------------------------------

ASKED = "import workbook, labkit; from workbook.results import reports_folder; print(labkit.__file__, reports_folder())"


def said_by_kernel(cell: str, name: str = "python3", cwd: Path = ROOT / "notebooks") -> str:
    """Start a kernel as JupyterLab does, run a cell, and return what it prints."""
    from jupyter_client.manager import start_new_kernel

    printed: list[str] = []

    def note(message: dict[str, Any]) -> None:
        printed.append(str(message["content"].get("text") or message["content"].get("traceback") or ""))

    manager, client = start_new_kernel(kernel_name=name, cwd=str(cwd))
    try:
        client.execute_interactive(cell, output_hook=note, timeout=PATIENCE_S)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    return "".join(printed)


OTHER_KERNEL = '{"argv": ["false", "{connection_file}"], "display_name": "Python 3", "language": "python"}'


@pytest.mark.parametrize("is_cloned", [False, True], ids=["a kernel of the user", "another clone in PYTHONPATH"])
def test_make_lab_runs_this_checkout(is_cloned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from jupyterlab.labapp import LabApp

    in_home(tmp_path / "home", {".local/share/jupyter/kernels/python3/kernel.json": OTHER_KERNEL}, monkeypatch)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.delenv("LABKIT_REPORTS", raising=False)
    monkeypatch.setenv("JUPYTER_PATH", "")
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "0")
    if is_cloned:
        for package in ("labkit", "workbook"):
            (tmp_path / "clone" / package).mkdir(parents=True)
            (tmp_path / "clone" / package / "__init__.py").touch()
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "clone"))
    said: list[str] = []
    monkeypatch.setattr(LabApp, "launch_instance", lambda _: said.append(said_by_kernel(ASKED)))
    lab.start_lab("")
    assert said == [f"{ROOT / 'labkit/__init__.py'} {ROOT / 'reports'}\n"]


def test_a_notebook_of_another_checkout_says_so(tmp_path: Path) -> None:
    (tmp_path / "workbook").mkdir()
    (tmp_path / "workbook" / "__init__.py").touch()
    (tmp_path / "notebooks").mkdir()
    code = "import sys, types; sys.modules['ipykernel'] = types.ModuleType('ipykernel'); import workbook"
    for folder, is_told in ((tmp_path / "notebooks", True), (ROOT / "notebooks", False), (tmp_path, False)):
        run = subprocess.run(
            [sys.executable, "-c", code],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert (f"this notebook belongs to {tmp_path}, and workbook is imported from {ROOT}" in run.stderr) == is_told
        assert bool(run.stderr) == is_told, run.stderr
