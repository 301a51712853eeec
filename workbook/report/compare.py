"""Write `reports/comparison/`, the page of all recorded profiles: for `make compare` and each report of all studies."""

from __future__ import annotations

import shutil
import time
from itertools import islice

from labkit.errors import LabkitError, UserError, unknown
from labkit.files import temporary_folder
from workbook.claims.papers import committed
from workbook.claims.reports import evidence, recorded, verdicts
from workbook.hardware.host import this_host
from workbook.paths import as_typed, notebook_of
from workbook.records import utc_now
from workbook.records.store import Store
from workbook.registry import COMPARISON, SMALL, STUDIES
from workbook.report.claims_pages import write_claims, write_papers
from workbook.report.exchange import write_exchange
from workbook.report.execute import execute
from workbook.report.glossary import PAGE as GLOSSARY
from workbook.report.glossary import glossary
from workbook.report.html import render_notebook, write_template
from workbook.report.then_and_now import PAGE, write_then_and_now
from workbook.results import reports_folder
from workbook.studies.comparison import in_generations

TIMEOUT_S = 600.0


def make_compare(baseline: str = "") -> int:
    """Write `reports/comparison/`; return 0, or 1 if the notebook failed.

    Raise UserError if no profile has records, or if `baseline` is not a profile with records.
    """
    began = time.monotonic()
    reason = write_comparison(baseline)
    if reason:
        print(f"labkit: the comparison failed: {reason.splitlines()[0]}", flush=True)
        return 1
    print(f"done in {time.monotonic() - began:.0f} s: {as_typed(reports_folder() / 'comparison' / 'index.html')}")
    return 0


def is_comparable() -> bool:
    """Return whether at least two profiles have records beyond round 0."""
    stores = (Store(path.parent) for path in sorted(reports_folder().glob("*/records")))
    return len(list(islice(filter(_has_rounds, stores), 2))) > 1


def _has_rounds(store: Store) -> bool:
    files = ((study, host) for study in STUDIES for host in store.hosts(study))
    try:
        return any(record.scale != SMALL for file in files for record in store.read(*file))
    except LabkitError:  # the comparison names the file
        return True


def write_comparison(baseline: str = "", rendering: str = "") -> str | None:
    """Write the page of all recorded profiles; return why its notebook failed, or None.

    The page links to the existing sites of profiles, and to the site of profile `rendering`, which is being written.
    Raise UserError if no profile has records, or if `baseline` is not a profile with records.
    """
    host = this_host(numbered=False)
    seen = evidence(None)  # as in the notebook: its figures and these numbers are of the same hosts
    shown = recorded(seen)
    profiles = in_generations({records.profile.name: records.profile for records in shown.selected}.values())
    names = [profile.name for profile in profiles]
    reasons = {key: why.replace(f"{reports_folder()}/", "") for key, why in sorted(seen.unreadable.items())}
    unreadable = [f"{study} of {name}: {why}" for (name, study), why in reasons.items()]
    if not names:
        raise UserError(" ".join(unreadable) or "there are no records to compare: `make report` makes some.")
    if baseline and baseline not in names:
        raise unknown("BASELINE", baseline, names)
    folder = reports_folder() / "comparison"
    folder.mkdir(parents=True, exist_ok=True)
    print("\n".join([f"Comparing {', '.join(names)}.", *(f"Not compared: {line}" for line in unreadable)]), flush=True)
    with temporary_folder() as temporary:
        output = temporary / "index.ipynb"
        outcome = execute(notebook_of(COMPARISON), output, {"baseline": baseline}, timeout_s=TIMEOUT_S)
        page, notebook = folder / "index.html", folder / f"{COMPARISON}.ipynb"
        for old in (page, notebook):  # a failure must not leave an old page behind
            old.unlink(missing_ok=True)
        if output.is_file():
            shutil.copyfile(output, notebook)
    findings = verdicts(seen)
    write_exchange(folder, shown, findings)
    sites = [
        (f"../{profile.name}/index.html", profile.title)
        for profile in profiles
        if profile.name == rendering or (folder.parent / profile.name / "index.html").is_file()
    ]
    about = [(PAGE, "Then and now"), ("claims.html", "Claims"), (GLOSSARY, "Glossary")]
    told, claims, words = about
    write_then_and_now(folder, findings, links=[claims, *sites])
    write_claims(folder / "claims.html", findings, title="all devices", links=[told, *sites, words], days=committed())
    write_papers(folder, findings, title="all devices", links=about)
    write_template(folder / GLOSSARY, "glossary.html.j2", title="all devices", links=[told, claims], words=glossary())
    links = [*sites, *about, ("numbers.csv", "Numbers (CSV)"), ("claims.csv", "Claims (CSV)")]
    strip = {
        "Profiles": ", ".join(profile.title for profile in profiles),
        **({"Not compared": "; ".join(unreadable)} if unreadable else {}),
        "Rendered": f"{utc_now()[:10]}, commit {host.commit or 'unknown'}",
        "Reproduce": f"make compare{f' BASELINE={baseline}' if baseline else ''}",
    }
    if notebook.is_file():
        render_notebook(notebook, page, title="Comparison", device="all", profile="", strip=strip, links=links)
    return outcome.reason
