"""Tests of `make lab`: its options, root, other interpreters, and homes that cannot be written, as in a container."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from labkit.data.cache import cache_dir
from labkit.errors import UserError
from workbook import home, lab
from workbook.hardware.identity import home_number
from workbook.paths import ROOT

Started = Callable[[str, int], list[str]]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """Return a function that starts a stand-in for JupyterLab as a user, and returns the arguments that it gets."""
    from jupyterlab.labapp import LabApp

    def start(options: str, user: int) -> list[str]:
        given: list[str] = []
        monkeypatch.setattr(LabApp, "launch_instance", given.extend)
        monkeypatch.setattr(os, "geteuid", lambda: user)
        lab.start_lab(options)
        return given

    monkeypatch.setenv("JUPYTER_PATH", "/of/the/user")
    return start


def test_options_reach_jupyterlab_as_words_and_root_is_allowed_only_for_root(started: Started) -> None:
    first, last = f"--notebook-dir={ROOT}", str(ROOT / "notebooks/00_start_here.ipynb")
    assert started("", 1000) == [first, last] and Path(last).is_file()
    assert started("", 0) == [first, "--allow-root", last]
    words = ["--port", "9000", "--name=a b", "$(touch marker)"]
    assert started(shlex.join(words), 1000) == [first, *words, last]
    with pytest.raises(UserError, match=r"LAB=\"--name='a\" .*quotation"):
        started("--name='a", 1000)


def test_notebooks_run_in_the_interpreter_of_jupyterlab_and_find_labkit(monkeypatch: pytest.MonkeyPatch) -> None:
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyterlab.labapp import LabApp

    found: list[Any] = []
    find = KernelSpecManager().get_kernel_spec
    monkeypatch.setattr(LabApp, "launch_instance", lambda _: found.append(find("python3")))
    monkeypatch.setenv("JUPYTER_PATH", "/of/the/user")
    lab.start_lab("")
    (kernel,) = found
    assert kernel.argv[0] == sys.executable
    where = [kernel.argv[0], "-c", "import labkit; print(labkit.__file__)"]
    said = subprocess.run(where, cwd="/", env={**os.environ, **kernel.env}, capture_output=True, text=True, check=True)
    assert Path(said.stdout.strip()) == ROOT / "labkit/__init__.py"


def test_an_interpreter_without_jupyterlab_is_told_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=rf"{sys.executable} .*install jupyterlab.*PYTHON="):
        lab.start_lab("")


@pytest.fixture
def _of_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = dict(os.environ)
    for name in home.FOLDERS:
        os.environ.pop(name, None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    os.environ.clear()
    os.environ.update(before)


WRITES = """
import json, os, pathlib
import jupyter_core.paths, matplotlib, IPython.paths
from labkit.data.cache import cache_dir
from workbook.hardware.host import this_host
places = [jupyter_core.paths.jupyter_runtime_dir(), matplotlib.get_cachedir()]
places += [IPython.paths.get_ipython_dir(), cache_dir()]
for place in places:
    pathlib.Path(place, "made").mkdir(parents=True)
print(json.dumps([this_host().id, *map(str, places)]))
"""


@pytest.mark.usefixtures("_of_a_container")
@pytest.mark.parametrize("where", ["a file", "missing"])
def test_libraries_write_to_a_private_folder_where_the_home_cannot_be_written(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a file").touch()
    monkeypatch.setenv("HOME", {"a file": str(tmp_path / "a file"), "missing": "/proc/self/missing"}[where])
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/self/cache")
    monkeypatch.delenv("LABKIT_CACHE")
    said = home.replace_unwritable_folders()
    private = tmp_path / f"labkit-home-{os.getuid()}"
    assert said is not None and str(private) in said
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    run = subprocess.run([sys.executable, "-c", WRITES], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0 and "not a writable" not in run.stderr, run.stderr
    _, *places = json.loads(run.stdout)
    assert all(Path(place).is_relative_to(private) for place in places), places


@pytest.mark.usefixtures("_of_a_container")
def test_a_user_whom_the_system_does_not_know_gets_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    with monkeypatch.context() as patch:
        patch.setattr(os.path, "expanduser", lambda path: path)
        said = home.replace_unwritable_folders()
    assert said is not None
    assert Path.home() == tmp_path / f"labkit-home-{os.getuid()}"
    assert home.replace_unwritable_folders() is None, "the processes that inherit the variables find nothing to do"


@pytest.mark.usefixtures("_of_a_container")
def test_beside_the_command_line_an_unknown_user_gets_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    os.environ.pop("LABKIT_CACHE")
    for needs_home in (cache_dir, home_number):
        with pytest.raises(UserError, match="not known"):
            needs_home()


@pytest.mark.usefixtures("_of_a_container")
def test_a_home_that_can_be_written_and_folders_of_the_user_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("IPYTHONDIR", "/proc/self/ipython")
    said = home.replace_unwritable_folders()
    assert said is not None and said.startswith("/proc/self/ipython ")
    assert os.environ["IPYTHONDIR"] == str(tmp_path / f"labkit-home-{os.getuid()}/.ipython")
    assert not set(home.FOLDERS) - {"IPYTHONDIR"} & set(os.environ)
    assert home.replace_unwritable_folders() is None and list((tmp_path / "home").iterdir()) == []


@pytest.mark.usefixtures("_of_a_container")
def test_a_private_folder_that_others_may_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/proc/self/missing")
    (tmp_path / f"labkit-home-{os.getuid()}").mkdir(mode=0o755)
    with pytest.raises(UserError, match=r"private folder.*HOME"):
        home.replace_unwritable_folders()
