"""What the packages that labkit installs are: their licences, their hashes and their known vulnerabilities."""

from __future__ import annotations

from workbook.paths import ROOT

PINS = ROOT / "constraints.txt"


def pinned() -> dict[str, str]:
    """Return the version of each package of constraints.txt, by its name there."""
    lines = (line.partition("#")[0].strip() for line in PINS.read_text(encoding="utf-8").splitlines())
    pairs = (line.partition("==") for line in lines if line)
    return {name: version for name, _, version in pairs}


def plain(name: str) -> str:
    """Return a package's name as indexes compare it."""
    return name.lower().replace("_", "-").replace(".", "-")
