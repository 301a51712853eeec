"""`fingerprint.html`: on which machines, with which software and code, the numbers of a report were made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from labkit.hardware.profile import Profile
from labkit.report.html import write_template
from labkit.report.machine import fingerprint_rows, versions_rows
from labkit.results import Results
from labkit.results.study_records import StudyRecords
from labkit.show.table import table_html
from labkit.studies import machines


def write_fingerprint(
    page: Path,
    profile: Profile,
    shown: Sequence[StudyRecords],
    *,
    rendered: dict[str, str],
    links: Sequence[tuple[str, str]],
) -> None:
    """Write the page whole or not at all. `rendered` says where, when and by what this page was made."""
    hosts: dict[str, dict[str, Any]] = {str(results.host_id): results.host for results in shown}
    listed = machines.listed(Results(shown)).drop(columns="device file")
    write_template(
        page,
        "fingerprint.html.j2",
        title=profile.title,
        links=links,
        studies=[(row, (page.parent.parent / row["series"]).is_file()) for row in versions_rows(shown)],
        rows=_side_by_side(list(hosts.values())),
        hosts=list(hosts),
        machines=Markup(table_html(listed, name="Machines")),  # noqa: S704 - it escapes its cells
        rendered=rendered,
    )


def _side_by_side(hosts: list[dict[str, Any]]) -> list[tuple[str, list[str], bool]]:
    """(what, its value on each host, whether the hosts differ in it)."""
    told = [dict(fingerprint_rows(host)) for host in hosts]
    names = list(dict.fromkeys(name for one in told for name in one))
    rows = [(name, [one.get(name, "–") for one in told]) for name in names]
    return [(name, values, len(set(values)) > 1) for name, values in rows]
