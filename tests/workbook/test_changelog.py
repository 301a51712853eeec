"""CHANGELOG.md names the protocol of every committed record, and the version names the protocol of new ones."""

from __future__ import annotations

import gzip
import re

import yaml

from labkit import __version__
from tests.committed import committed_reports
from workbook.paths import ROOT
from workbook.records import PROTOCOL

TEXT = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_every_protocol_of_committed_records_has_a_heading() -> None:
    headings = re.findall(r"^## Protocol (\d+)\b", TEXT, re.MULTILINE)
    packed = (gzip.decompress(path.read_bytes()) for path in committed_reports().glob("*/records/*/*.jsonl.gz"))
    recorded = {number.decode() for text in packed for number in re.findall(rb'"protocol": ?(\d+)', text)}
    assert recorded and recorded <= {*headings}
    assert headings == [str(number) for number in range(PROTOCOL, 0, -1)]


def test_every_entry_is_one_dated_sentence_and_the_newest_come_first() -> None:
    for part in re.split(r"^#+ ", TEXT, flags=re.MULTILINE)[2:]:
        entries = [line for line in part.splitlines()[1:] if line]
        assert all(re.fullmatch(r"- 2026-\d\d-\d\d: [A-Z].{20,140}\.", entry) for entry in entries if entry[0] == "-")
        days = [entry[2:12] for entry in entries if entry[0] == "-"]
        assert days == sorted(days, reverse=True)


def test_the_version_names_the_protocol_and_the_citation_has_it() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert __version__.split(".")[1] == str(PROTOCOL)
    assert {"cff-version", "message", "title", "authors"} <= set(cited)
    assert cited["version"] == __version__ and __version__ in TEXT
