"""`papers/<id>.html`: a paper then and now, with its claims, its tables and figures, and its tables as printed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from workbook.claims import Findings
from workbook.claims.papers import PrintedTable, PublishedTable
from workbook.hardware.profile import load_profile
from workbook.registry import METRICS, STUDIES
from workbook.report.html import write_template
from workbook.show.table import table_html
from workbook.words import number

FOLDER = "papers"


def write_papers(folder: Path, findings: Findings, *, title: str, links: Sequence[tuple[str, str]]) -> None:
    """Write a page for each paper into `folder/papers`. `title` names the hardware; `links` are (address, text)."""
    (folder / FOLDER).mkdir(exist_ok=True)
    for own in findings.by_paper():
        paper = own.findings[0].paper
        write_template(
            folder / FOLDER / f"{paper.id}.html",
            "paper.html.j2",
            title=title,
            paper=paper,
            devices=", ".join(dict.fromkeys(device.printed for device in paper.devices)),
            sentence=own.sentence(),
            claims=own.html(home="../", places=True),
            exhibits=[(exhibit, _pages(folder, exhibit.studies)) for exhibit in paper.exhibits],
            tables=[*map(_printed, paper.printed), *map(_published, paper.tables)],
            links=[(f"../{address}", text) for address, text in links],
        )


def _pages(folder: Path, studies: Sequence[str]) -> list[tuple[str, str]]:
    """Return (address, title) of the studies; the address is empty where the study has no page."""
    addresses = {study: f"{study}.html" if (folder / f"{study}.html").is_file() else "" for study in studies}
    return [(f"../{address}" if address else "", STUDIES[study].title) for study, address in addresses.items()]


def _printed(table: PrintedTable) -> str:
    rows = [{"": name, **dict(zip(table.columns, values, strict=True))} for name, values in table.rows.items()]
    cells = pd.DataFrame(rows).map(lambda cell: "" if cell is None else str(cell))
    return table_html(cells, " ".join(filter(None, [f"{table.title} ({table.where}).", table.note])))


def _published(table: PublishedTable) -> str:
    titles = [load_profile(name).title if table.columns_are == "profile" else name.upper() for name in table.columns]
    rows = [
        {"": name, **{title: number(value) for title, value in zip(titles, values, strict=True)}}
        for name, values in table.rows.items()
    ]
    subject = f"{METRICS[table.metric].label}, {table.unit}"
    about = f"{subject}: {table.model}" if table.model else subject
    return table_html(pd.DataFrame(rows), " ".join(filter(None, [f"{about} ({table.where}).", table.note])))
