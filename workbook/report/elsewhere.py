"""Links from a claim that could not be tested on a device to the devices that tested it.

`make compare` writes to `FILE` which devices tested each claim. The macros of claims leave a mark, and a page that is
written has the links in its place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from labkit.files import replacing
from workbook.claims import Findings

FILE = Path("comparison/tested.json")  # in the folder of reports
_MARK = re.compile(r'<small data-claim="(?P<claim>[\w-]+)"></small>')


def write_tested(reports: Path, findings: Findings, sites: Sequence[tuple[str, str]]) -> None:
    """Write for each claim the titles of the devices that tested it, each with the address of its site, or without.

    `findings` are the verdicts over all devices, and `sites` are (address from a site, title) of the indexes.
    """
    address_of = {title: address.removesuffix("index.html") + "claims.html" for address, title in sites}
    tested = {
        finding.claim.id: [(re.sub("^The ", "the ", title), address_of.get(title, "")) for title in finding.devices]
        for finding in findings.findings
    }
    with replacing(reports / FILE) as new:
        new.write_text(json.dumps(tested, indent=1), encoding="utf-8")


def with_devices_linked(page: Path, text: str) -> str:
    """Return a page with the names and links of devices in place of the marks."""
    if not _MARK.search(text):
        return text
    above = "../" if page.parent.name == "papers" else ""
    try:
        tested = json.loads((page.parent / above / ".." / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        tested = {}

    def linked(mark: re.Match[str]) -> str:
        claim = mark["claim"]
        names = [
            Markup('<a href="{}{}#claim-{}">{}</a>').format(above, address, claim, title) if address else title
            for title, address in tested.get(claim, [])
        ]
        return Markup("<small>Tested on {}.</small>").format(Markup(", ").join(names)) if names else ""

    return _MARK.sub(linked, text)
