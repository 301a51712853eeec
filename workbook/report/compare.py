"""Write `reports/comparison/`, the pages of all recorded profiles, for `make compare` and reports of all studies."""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection, Iterable
from itertools import islice

from labkit.errors import LabkitError, UserError, unknown
from labkit.files import temporary_folder
from workbook.claims.papers import committed
from workbook.claims.reports import evidence, recorded, verdicts
from workbook.hardware.host import this_host
from workbook.hardware.profile import Profile, load_profile, profile_names
from workbook.paths import as_typed, notebook_of
from workbook.records import utc_now
from workbook.records.store import Store
from workbook.registry import COMPARISON, OF_ALL, SMALL, STUDIES, WHICH_DEVICE
from workbook.report.claims_pages import write_claims, write_papers
from workbook.report.elsewhere import write_tested
from workbook.report.exchange import write_exchange
from workbook.report.execute import execute
from workbook.report.glossary import PAGE as GLOSSARY
from workbook.report.glossary import glossary
from workbook.report.headlines import write_findings
from workbook.report.html import render_notebook, write_template
from workbook.report.then_and_now import PAGE, write_then_and_now
from workbook.results import reports_folder
from workbook.results.load import profiles_with_records
from workbook.studies.comparison import in_generations

TIMEOUT_S = 600.0


def make_compare(baseline: str = "") -> int:
    """Write `reports/comparison/`; return 0, or 1 if a notebook failed.

    Raise UserError if no profile has records, if `baseline` is not a profile with records, or for an invalid profile.
    """
    began = time.monotonic()
    for name in profile_names():
        load_profile(name)  # the choice of a device reads them all, minutes later
    failed = {"the comparison": write_comparison(baseline), "the choice of a device": write_which_device()}
    for name, reason in failed.items():
        if reason:
            print(f"labkit: {name} failed: {reason.splitlines()[0]}", flush=True)
    if any(failed.values()):
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


def write_comparison(baseline: str = "", rendering: Collection[str] = ()) -> str | None:
    """Write the page of all recorded profiles; return why its notebook failed, or None.

    The page links to the existing sites of profiles, and to the sites of profiles that are being written (`rendering`).
    Raise UserError if no profile has records, or if `baseline` is not a profile with records.
    """
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
    print("\n".join([f"Comparing {', '.join(names)}.", *(f"Not compared: {line}" for line in unreadable)]), flush=True)
    outcome = _executed(COMPARISON, {"baseline": baseline})
    findings = verdicts(seen)
    folder = reports_folder() / "comparison"
    write_exchange(folder, shown, findings)
    write_findings(reports_folder(), shown.frame(hosts="all"), findings)
    sites, which = _sites(profiles, rendering), (OF_ALL[WHICH_DEVICE], STUDIES[WHICH_DEVICE].title)
    about = [(PAGE, "Then and now"), ("claims.html", "Claims"), (GLOSSARY, "Glossary")]
    told, claims, words = about
    write_tested(reports_folder(), findings, sites)
    write_then_and_now(folder, findings, links=[claims, *sites])
    write_claims(folder / "claims.html", findings, title="all devices", links=[told, *sites, words], days=committed())
    write_papers(folder, findings, title="all devices", links=about)
    write_template(folder / GLOSSARY, "glossary.html.j2", title="all devices", links=[told, claims], words=glossary())
    strip = {
        "Profiles": ", ".join(profile.title for profile in profiles),
        **({"Not compared": "; ".join(unreadable)} if unreadable else {}),
        "Reproduce": f"make compare{f' BASELINE={baseline}' if baseline else ''}",
    }
    _render(
        COMPARISON, strip, [*sites, which, *about, ("numbers.csv", "Numbers (CSV)"), ("claims.csv", "Claims (CSV)")]
    )
    return outcome


def write_which_device(rendering: Collection[str] = ()) -> str | None:
    """Write the page that chooses a device, beside the comparison; return why its notebook failed, or None."""
    outcome = _executed(WHICH_DEVICE, {})
    profiles = in_generations(load_profile(name) for name in profiles_with_records(list(STUDIES)))
    links = [*_sites(profiles, rendering), (f"./{OF_ALL[COMPARISON]}", STUDIES[COMPARISON].title)]
    _render(WHICH_DEVICE, {"Reproduce": "make compare"}, [*links, ("claims.html", "Claims")])
    return outcome


def _executed(study: str, parameters: dict[str, str]) -> str | None:
    """Execute a notebook and keep it beside the comparison; return why it failed, or None."""
    folder = reports_folder() / "comparison"
    log = folder / "logs" / f"{study}-kernel.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder() as temporary:
        output = temporary / "page.ipynb"
        outcome = execute(notebook_of(study), output, parameters, timeout_s=TIMEOUT_S, log=log)
        for old in (folder / OF_ALL[study], folder / f"{study}.ipynb"):  # a failure must not leave an old page behind
            old.unlink(missing_ok=True)
        if output.is_file():
            shutil.copyfile(output, folder / f"{study}.ipynb")
    return outcome.reason


def _sites(profiles: Iterable[Profile], rendering: Collection[str]) -> list[tuple[str, str]]:
    return [
        (f"../{profile.name}/index.html", profile.title)
        for profile in profiles
        if profile.name in rendering or (reports_folder() / profile.name / "index.html").is_file()
    ]


def _render(study: str, strip: dict[str, str], links: list[tuple[str, str]]) -> None:
    notebook = reports_folder() / "comparison" / f"{study}.ipynb"
    host = this_host(numbered=False)
    about = {"Rendered": f"{utc_now()[:10]}, commit {host.commit or 'unknown'}"}
    if notebook.is_file():
        page, title = notebook.with_name(OF_ALL[study]), STUDIES[study].title
        render_notebook(notebook, page, title=title, device="all", profile="", strip=strip | about, links=links)
