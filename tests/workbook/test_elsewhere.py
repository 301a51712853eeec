"""A claim that could not be tested on a device names the devices that tested it, with links to their pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbook.claims import Findings
from workbook.report.elsewhere import with_devices_linked, write_tested

MARKED = '<td>It needs 4 GPUs. <small data-claim="nyu-flops"></small></td>'


class OfClaim:
    """What `write_tested` reads of a finding."""

    def __init__(self, claim: str, *devices: str) -> None:
        self.claim, self.id, self.devices = self, claim, list(devices)


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    (tmp_path / "comparison").mkdir()
    findings = Findings([OfClaim("nyu-flops", "4x H200 SXM", "A <b>"), OfClaim("nyu-winograd")])  # type: ignore[list-item]
    write_tested(tmp_path, findings, [("../h200_x4/index.html", "4x H200 SXM")])
    return tmp_path


@pytest.mark.parametrize(("page", "above"), [("claims.html", ""), ("papers/nyu.html", "../")])
def test_devices_are_linked_where_their_site_exists(reports: Path, page: str, above: str) -> None:
    (reports / "h200" / "papers").mkdir(parents=True)
    link = f'<a href="{above}../h200_x4/claims.html#claim-nyu-flops">4x H200 SXM</a>'
    said = f"<td>It needs 4 GPUs. <small>Tested on {link}, A &lt;b&gt;.</small></td>"
    assert with_devices_linked(reports / "h200" / page, MARKED) == said


def test_a_claim_that_no_device_tested_has_no_mark_left(reports: Path) -> None:
    (reports / "h200").mkdir()
    for claim in ("nyu-winograd", "unknown"):
        text = MARKED.replace("nyu-flops", claim)
        assert with_devices_linked(reports / "h200" / "claims.html", text) == "<td>It needs 4 GPUs. </td>"


def test_without_a_comparison_no_device_is_named(tmp_path: Path) -> None:
    assert with_devices_linked(tmp_path / "h200" / "claims.html", MARKED) == "<td>It needs 4 GPUs. </td>"
