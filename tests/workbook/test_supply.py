"""Tests of the lists of licences, hashes and vulnerabilities of the pinned packages."""

from __future__ import annotations

import json
import subprocess
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

from tests.supply import audit, hashes, licences, pinned, plain
from workbook.paths import ROOT


def test_every_pinned_package_has_its_licence_in_the_page() -> None:
    text = licences.PAGE.read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ") and "| package" not in line]
    listed = {row[0].removeprefix("| "): row[1] for row in rows}
    absent = text.rpartition("Not installed where this page was written: ")[2].rstrip(".\n").split(", ")
    assert {**listed, **{name: pinned()[name] for name in absent}} == pinned()
    assert all(row[2].removesuffix(" |") for row in rows)
    assert len(absent) < 20, "the page was written with most packages installed"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ([("License-Expression", "MIT"), ("License", "other")], "MIT"),
        ([("Classifier", "License :: OSI Approved :: BSD License"), ("License", "x")], "BSD License"),
        ([("Classifier", "License :: OSI Approved"), ("License", "ISC\nThe whole text")], "ISC"),
        ([("License", "UNKNOWN")], licences.NONE),
        ([], licences.NONE),
    ],
)
def test_a_licence_is_read_from_the_most_precise_field(fields: list[tuple[str, str]], said: str) -> None:
    about = Message()
    for name, value in fields:
        about[name] = value
    assert licences.licence(about) == said  # type: ignore[arg-type]


@pytest.mark.parametrize("ends", [0, 1])
def test_hashes_are_of_the_files_that_pip_would_take(
    ends: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def item(name: str, version: str, **download: Any) -> dict[str, Any]:
        return {"metadata": {"name": name, "version": version}, "download_info": download}

    def pip(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        found = {"archive_info": {"hashes": {"sha256": "ab" * 32}}}
        items = [
            item("torch", "2+cpu", **found),
            item("labkit", "1", dir_info={"editable": True}),
            item("a", "1", **found),
        ]
        Path(command[command.index("--report") + 1]).write_text(json.dumps({"install": items}))
        assert ["-c", str(ROOT / "constraints.txt")] == command[command.index("-c") :][:2]
        return subprocess.CompletedProcess(command, ends)

    monkeypatch.setattr(hashes.subprocess, "run", pip)
    monkeypatch.setattr(hashes, "HASHED", tmp_path / "hashed.txt")
    assert hashes.main() == ends
    if ends:
        assert not hashes.HASHED.exists() and "pip could not resolve" in capsys.readouterr().err
        return
    hashed = f"--hash=sha256:{'ab' * 32}"
    assert hashes.HASHED.read_text().splitlines()[1:] == [f"a==1 {hashed}", f"torch==2+cpu {hashed}"]


def told(**versions: list[str] | None) -> list[dict[str, Any]]:
    """Return the answer of a service: the vulnerabilities of each package, or None where it was not looked up."""
    return [
        {"name": name, "version": "1", "vulns": [{"id": one} for one in found]}
        if found is not None
        else {"name": name, "skip_reason": "not found"}
        for name, found in versions.items()
    ]


@pytest.mark.parametrize(
    ("pypi", "osv", "code", "said"),
    [
        (told(a=[], b=[]), "no route", 0, "api.osv.dev could not be reached: no route"),
        (told(a=[], b=None), told(a=["CVE-1"], b=[]), 1, "a 1: CVE-1"),
        (told(a=[], b=None), "no route", 3, "Not looked up by any service: 1 of 2 versions (b)."),
        ("no route", "no route", 3, "Not looked up by any service: 2 of 2 versions (all)."),
    ],
)
def test_an_audit_says_what_it_could_not_look_up(
    pypi: Any, osv: Any, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(audit, "pinned", lambda: {"a": "1", "b": "1"})
    monkeypatch.setattr(audit, "installed", lambda folder: ("pip-audit", None))
    monkeypatch.setattr(audit, "asked", lambda program, service, pins: {"pypi": pypi, "osv": osv}[service])
    assert audit.main() == code
    assert said in capsys.readouterr().out.splitlines()


def test_an_audit_without_pip_audit_is_no_pass(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(audit, "installed", lambda folder: ("", "no matching distribution"))
    assert audit.main() == 3
    assert "pip-audit could not be installed (no matching distribution)" in capsys.readouterr().out


def test_names_are_compared_as_indexes_do() -> None:
    assert plain("Jupyter_Server.Terminals") == "jupyter-server-terminals"
    assert len({plain(name) for name in pinned()}) == len(pinned())


def test_hashed_constraints_are_not_committed() -> None:
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert hashes.HASHED.name in ignored, "they hold for one machine and its package index"
