"""Tell whether a page is still what its inputs give, by a hash of its inputs and of its own files.

Any page may show records of other studies and profiles, in its verdicts and beside its own. So all records, papers,
profiles and code count for each page. Of the notebooks, only its own counts. Hashes are of contents, not of times.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from labkit.files import replacing
from workbook.claims.papers import history
from workbook.hardware.host import Host
from workbook.hardware.profile import PRICES
from workbook.paths import ROOT, notebook_of, reports_folder
from workbook.registry import COMPARISON, OF_ALL, WHICH_DEVICE
from workbook.report.documents import DOCUMENTS
from workbook.report.elsewhere import FILE as TESTED
from workbook.report.glossary import GLOSSARY
from workbook.report.headlines import FILE as FINDINGS
from workbook.report.headlines import SENTENCES
from workbook.report.then_and_now import PAGE as TOLD

INDEX = "index"  # stands for all files of a site but the pages of studies
CLAIMS = "claims"  # stands for those of them that hold numbers and verdicts, which no notebook changes
CODE = ("labkit", "workbook", "papers", "params", "published")  # folders whose files all count
NO_CODE = ("reports", "tests", "docs")
ENVIRONMENTS = ("pyvenv.cfg", "conda-meta")  # in folders that hold an interpreter
MEASURED = ("records", "hosts", "telemetry")  # folders of a report with what was measured
# The files that rendering writes: those with numbers and verdicts, and all.
OF_CLAIMS = ("claims.html", "*.csv", "*.parquet", "papers/*.html")
SITE = ("*.html", *OF_CLAIMS[1:], "*.ipynb", FINDINGS.name, TESTED.name)
KEPT = Path("logs/seals.json")  # beside a site: page -> seal


class Seals:
    """The seals of a report's pages. A seal is a hash of a page's inputs and of its files.

    The inputs are hashed at once. If one changes later, while the pages are made, the next rendering makes them again.
    """

    def __init__(
        self, report: Path, host: Host, parameters: dict[str, Any], studies: Sequence[str], rendering: Iterable[str]
    ) -> None:
        self._report = report
        inputs = _inputs(host, parameters)
        pages = report.parent.glob("*/index.html")
        sites = sorted({report.name, *rendering, *(page.parent.name for page in pages)} - {"comparison"})
        of_all = json.dumps([sites, history()])
        self._inputs = {study: _hash(inputs, *sites, files=[notebook_of(study)]) for study in studies}
        self._inputs |= {page: _hash(self._inputs.get(page, ""), of_all) for page in OF_ALL}
        self._inputs[CLAIMS] = _hash(inputs, of_all)
        self._inputs[INDEX] = _hash(inputs, of_all, host.source, str(host.commit))

    def hold(self, page: str) -> bool:
        """Return whether a page, or INDEX, was kept with the present inputs and files."""
        return self._read(self._folder(page)).get(page) == self._seal(page)

    def keep(self, page: str) -> None:
        """Keep the seal of a page, or of INDEX, that was just written."""
        folder = self._folder(page)
        with replacing(folder / KEPT) as new:
            seals = {**self._read(folder), page: self._seal(page)}
            new.write_text(json.dumps(seals, indent=1), encoding="utf-8")

    def _folder(self, page: str) -> Path:
        return self._report.parent / "comparison" if page in OF_ALL else self._report

    def _seal(self, page: str) -> str:
        folder = self._folder(page)
        files = [folder / f"{page}.ipynb", folder / OF_ALL.get(page, f"{page}.html")]
        if page in (INDEX, COMPARISON):
            others = {OF_ALL[WHICH_DEVICE], f"{WHICH_DEVICE}.ipynb"} if page == COMPARISON else set()
            files = [path for form in SITE for path in folder.glob(form) if path.name not in others]
        if page == CLAIMS:
            files = [path for form in OF_CLAIMS for path in folder.glob(form)]
            files += [folder.parent / TESTED, folder.parent / "comparison" / TOLD]
        if page == INDEX:  # it shows how each study ended, and what the pages of all profiles answer
            files += [folder / "run.json", folder.parent / FINDINGS]
            files += [folder.parent / "comparison" / f"{of}.ipynb" for of in OF_ALL]
        pages = [path.name for path in sorted(folder.glob("*.html"))] if page == CLAIMS else []  # it links them
        return _hash(self._inputs[page], *pages, files=files)

    @staticmethod
    def _read(folder: Path) -> dict[str, str]:
        try:
            return dict(json.loads((folder / KEPT).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return {}


def _inputs(host: Host, parameters: dict[str, Any]) -> str:
    """Return a hash of what every page is made from: code, papers, profiles, records, versions and parameters."""
    machine = {name: value for name, value in host.as_dict().items() if name not in ("commit", "source")}
    given = {name: value for name, value in os.environ.items() if name.startswith("LABKIT_")}
    packages = sorted({path.name for place in sys.path for path in Path(place or ".").glob("*.dist-info")})
    further = [ROOT / PRICES, ROOT / GLOSSARY, SENTENCES, *(ROOT / file for file, _ in DOCUMENTS.values())]
    measured = [path for of in MEASURED for path in reports_folder().glob(f"*/{of}/**/*") if path.is_file()]
    facts = [machine, platform.node(), given, packages, parameters]
    return _hash(json.dumps(facts, sort_keys=True, default=str), files=[*_code(), *further, *measured])


def _code() -> Iterator[Path]:
    """Yield the files of CODE, and the modules of the user elsewhere in the project."""
    for folder, folders, names in os.walk(ROOT):
        place = Path(folder)
        top = place.relative_to(ROOT).parts[:1]
        left_out = () if top else NO_CODE
        folders[:] = [
            name
            for name in folders
            if not (name.startswith((".", "__")) or name in left_out)
            and not any((place / name / mark).exists() for mark in ENVIRONMENTS)
        ]
        yield from (place / name for name in names if (top and top[0] in CODE) or name.endswith(".py"))


def _hash(*texts: str, files: Iterable[Path] = ()) -> str:
    """Return a hash of texts, and of the names and contents of files. A missing file is another than an empty one."""
    digest = hashlib.sha256(json.dumps(texts).encode())
    for path in sorted(files):
        try:
            content = hashlib.sha256(path.read_bytes()).digest()
        except OSError as error:
            content = str(error.errno).encode()
        digest.update(f"{path}\0".encode() + content)
    return digest.hexdigest()
