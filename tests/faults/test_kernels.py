"""Tests of what a report and `make lab` open to others: sockets, ports, tokens and temporary files."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from labkit.errors import UserError
from tests.notebooks.test_notebooks import write_notebook
from tests.processes import eventually
from workbook.paths import ROOT
from workbook.report.execute import execute
from workbook.runner.lock import lock_path, only_measurement

LOOK = """
import json, os, psutil, stat
from ipykernel.kernelapp import IPKernelApp
app = IPKernelApp.instance()
ports = [one for one in psutil.Process().net_connections("inet")]
sockets = os.path.dirname(app.ip)
mode = lambda path: stat.S_IMODE(os.stat(path).st_mode)
seen = dict(transport=app.transport, ports=len(ports), folder=sockets, mode=mode(sockets))
seen["connection_mode"] = mode(app.abs_connection_file)
open(where, "w").write(json.dumps(seen))
"""


def test_a_kernel_of_a_report_opens_no_port_and_its_files_are_private(tmp_path: Path) -> None:
    notebook = write_notebook(tmp_path / "look.ipynb", "where = ''", LOOK)
    before = os.umask(0o002)
    try:
        outcome = execute(notebook, tmp_path / "out.ipynb", {"where": str(tmp_path / "seen")}, timeout_s=100)
    finally:
        os.umask(before)
    assert outcome.reason is None
    seen = json.loads((tmp_path / "seen").read_text())
    assert (seen["transport"], seen["ports"]) == ("ipc", 0)
    assert (seen["mode"], seen["connection_mode"]) == (0o700, 0o600)
    assert not Path(seen["folder"]).exists(), "the sockets are removed"


def test_the_lock_is_private_and_no_link_of_another_user_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LABKIT_LOCK")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    victim = tmp_path / "victim"
    victim.write_text("content")
    lock_path().symlink_to(victim)
    with pytest.raises(UserError, match="can't be opened"), only_measurement():
        pass
    assert victim.read_text() == "content"
    lock_path().unlink()
    with only_measurement():
        assert stat.S_IMODE(lock_path().stat().st_mode) == 0o600


@pytest.mark.slow
def test_jupyterlab_keeps_its_token_and_listens_on_the_loopback_alone(tmp_path: Path) -> None:
    """`make lab` is started as this user, who may be root, with a home folder that cannot be written."""
    home = tmp_path / "home"
    home.touch()
    own = {"HOME": str(home), "TMPDIR": str(tmp_path), "BROWSER": "true", "JUPYTER_NO_CONFIG": ""}
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "JUPYTER_"))}
    runtime = tmp_path / f"labkit-home-{os.getuid()}/.local/share/jupyter/runtime"
    command = ["make", "lab", f"PYTHON={sys.executable}"]
    log = (tmp_path / "log").open("w+")
    server = subprocess.Popen(
        command, cwd=ROOT, env={**environment, **own}, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        assert eventually(lambda: bool(running(runtime)) or server.poll() is not None)
        assert server.poll() is None, (tmp_path / "log").read_text()
        said = running(runtime)
    finally:
        os.killpg(server.pid, 15)
        server.wait()
        log.close()
    assert len(said["token"]) >= 32 and not said["password"]
    assert said["hostname"] in ("localhost", "127.0.0.1", "::1")
    listening = said["listening"]
    assert listening and listening <= {"127.0.0.1", "::1"}, listening


def running(runtime: Path) -> dict[str, Any]:
    """Return what a server says about itself, and the addresses on which it listens; {} before it does."""
    import psutil

    for path in runtime.glob("jpserver-*.json"):
        try:
            said = json.loads(path.read_text())
            ports = psutil.Process(said["pid"]).net_connections("inet")
        except (ValueError, psutil.Error):
            continue
        said["listening"] = {one.laddr.ip for one in ports if one.status == psutil.CONN_LISTEN}
        if said["listening"]:
            return dict(said)
    return {}
