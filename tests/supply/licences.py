"""Write docs/licences.md, the licence of every package that `make setup` installs (`make licences`).

The text comes from the metadata of the installed packages.
"""

from __future__ import annotations

from importlib import metadata

from tests.supply import pinned
from workbook.paths import ROOT

PAGE = ROOT / "docs" / "licences.md"
CLASSIFIER = "License :: "
MOST_CHARACTERS = 60  # of a licence's name; a longer field holds the whole text
NONE = "not named in its metadata"


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


def page() -> str:
    """Return the page: a row per installed package, and the names of the others."""
    rows, absent = [], []
    for name, version in pinned().items():
        try:
            about = metadata.metadata(name)
        except metadata.PackageNotFoundError:
            absent.append(name)
            continue
        installed = about["Version"].partition("+")[0]
        differs = "" if installed == version else f" (read from {installed})"
        rows.append(f"| {name} | {version}{differs} | {licence(about)} |")
    text = [
        "# Licences of the packages that labkit installs",
        "",
        "labkit itself has the MIT licence. It contains no code of these packages and does not ship them.",
        "`make licences` writes this page from the metadata of the installed packages.",
        "",
        "| package | version | licence |",
        "|---|---|---|",
        *rows,
    ]
    if absent:
        text += ["", f"Not installed where this page was written: {', '.join(absent)}."]
    return "\n".join(text) + "\n"


def licence(about: metadata.PackageMetadata) -> str:
    """Return a package's SPDX expression, else its classifiers, else the first line of its licence field."""
    if expression := about.get("License-Expression"):
        return expression
    classified = [
        line.rpartition(" :: ")[2] for line in about.get_all("Classifier") or [] if line.startswith(CLASSIFIER)
    ]
    named = [name for name in classified if name != "OSI Approved"]
    if named:
        return ", ".join(named)
    first = (about.get("License") or "").strip().splitlines()[:1]
    return first[0][:MOST_CHARACTERS].replace("|", "/") if first and first[0] != "UNKNOWN" else NONE


if __name__ == "__main__":
    main()
