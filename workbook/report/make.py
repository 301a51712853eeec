"""Run `make report` and `make render`: what the user typed -> session -> plan -> measurements -> pages."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from labkit.errors import UserError
from labkit.files import remove_leftovers
from workbook.datasets import READING, data_at_scale, documents_of_user
from workbook.hardware.environment import line_of_changers
from workbook.hardware.frameworks import KNOWN, interpreter_of
from workbook.hardware.host import Host, this_host
from workbook.hardware.matching import detect, mismatch, require_match
from workbook.hardware.profile import Profile, load_profile, profile_names
from workbook.options import open_session
from workbook.paths import reports_folder
from workbook.records.store import Store
from workbook.registry import SMALL, STUDIES, YOUR_NETWORK
from workbook.report.generate import write_profile
from workbook.report.pages import read_runs, write_site
from workbook.report.plan import StudyPlan, chosen_studies, line_of_rounds, measured_studies, plan_studies
from workbook.report.rendering import write_pages
from workbook.report.rounds import Rounds
from workbook.results.load import without_records
from workbook.runner.lock import only_measurement
from workbook.session import Session

ELSEWHERE = "So this machine cannot run the plan. Its times are those of recorded runs, or estimates without any."

UNCOMMITTED = "The code here has changes, or git names no commit: new records are never pooled with other machines'."


@dataclass(frozen=True)
class Request:
    """The options of the user; an empty string is an option that was not given."""

    hw: str = ""
    study: str = ""
    scale: str = "quick"
    data: str = ""
    force: bool = False
    weights: str = ""
    reuters: str = ""
    network: str = ""
    batches: str = ""
    keep_traces: bool = False
    time_s: float | None = None  # the seconds after which no further round begins

    def command(self, verb: str) -> str:
        """Return the command that repeats the request."""
        # Without FORCE and TIME: the repeated command must not start over, and measures what is left.
        given = [("HW", self.hw), ("STUDY", self.study), ("DATA", self.data)]
        given += [("WEIGHTS", self.weights), ("REUTERS", self.reuters)]
        given += [("NETWORK", self.network), ("BATCH", self.batches)]
        given.append(("KEEP_TRACES", "1" if self.keep_traces else ""))
        given.append(("SCALE", self.scale if self.scale != "quick" else ""))
        return " ".join(["make", verb, *(f"{name}={shlex.quote(value)}" for name, value in given if value)])


def choose_profile(hw: str, host: Host) -> Profile:
    """Return the profile that HW names, or the one that matches this machine; write a profile for an unknown GPU."""
    if hw:
        return load_profile(hw)
    profile = detect(host)
    if profile is None:
        profile = load_profile(write_profile(host).stem)
        print(f"No profile matches {host.summary()}: wrote params/{profile.name}.yaml.", flush=True)
    return profile


def make_plan(request: Request, *, elsewhere: bool = False) -> tuple[Session, list[StudyPlan]]:
    """Return the session and the plan of each study, after all checks that need no measurement.

    With `elsewhere`, this host may lack the profile's hardware: a sentence says so.
    """
    host = this_host()
    profile = choose_profile(request.hw, host)
    studies = measured_studies(request.study, request.network)
    if not (elsewhere and profile.runnable):
        require_match(profile, host)
    profile.timing_at(request.scale)
    session = open_session(
        profile,
        host,
        studies,
        scale=request.scale,
        data=request.data,
        weights=request.weights,
        reuters=request.reuters,
        network=request.network,
        batches=request.batches,
        keeps_traces=request.keep_traces,
    )
    problem = mismatch(profile, host)
    print(f"{problem}. {ELSEWHERE}" if problem else f"{profile.title}: {host.summary()}", flush=True)
    if not set(studies) <= set(READING):  # such a study makes its images when it is planned
        print(data_at_scale(request.data, request.scale).description, flush=True)
    if not host.commit or host.commit.endswith("+"):
        print(UNCOMMITTED, flush=True)
    if session.reuters:
        print(documents_of_user(session.reuters).description, flush=True)
    if changers := line_of_changers():
        print(changers, flush=True)
    plans = plan_studies(studies, session=session, force=request.force)
    for framework in dict.fromkeys(trial.framework for plan in plans for trial in plan.trials):
        variable = KNOWN[framework].variable if framework in KNOWN else ""
        if (named := os.environ.get(variable)) and not shutil.which(interpreter_of(framework)):
            raise UserError(f"{variable}={named} is no program: name the program of a Python, or leave {variable} out.")
    return session, plans


def make_report(request: Request) -> int:
    """Measure missing trials by rounds, and render the site after round 0, after the first round and after the last.

    Round 1 replaces the pages of round 0 one by one. Return 0, 1 if a study failed, 2 if all failures are user
    mistakes. Raise UserError if TIME= is too short for a complete site.
    """
    began = time.monotonic()
    session, plans = make_plan(request)
    small = replace(session, scale=SMALL)
    print(f"Plan at scale {request.scale}:")
    for plan in plans:
        print(plan.line())
    print(line_of_rounds(plans), flush=True)
    with only_measurement():
        report = session.store.report
        report.mkdir(parents=True, exist_ok=True)
        remove_leftovers(report)
        ends_s = None if request.time_s is None else began + request.time_s
        rounds = Rounds(session, plans, ends_s)
        rounds.check_time()
        if request.force:
            for plan in plans:
                for scale in {session.scale, SMALL if plan.small else session.scale}:
                    session.store.move_aside(plan.study, session.host.id, scale)
        studies = [plan.study for plan in plans]
        begun_small = [plan.study for plan in plans if plan.small]
        renewed: set[str] = set()
        code = 0  # of the pages of round 0

        def rendered(chosen: Sequence[str], of: Session = session, *, is_last: bool = False, **waiting: Any) -> int:
            failed = {study: how for study, how in rounds.failed.items() if study in chosen}
            command = request.command("report")
            return write_pages(of, "measure", chosen, command, unmeasured=failed, is_last=is_last, **waiting)

        def after_study(number: int, study: str, waiting: dict[str, float]) -> None:
            if number == 1 and study in begun_small:
                rendered([study], waiting=waiting)
                renewed.add(study)
            elif waiting:  # the index exists from the first study on, and verdicts change with the pages
                write_site(report, session.profile, session.host, waiting, judges=not study)

        if session.scale != SMALL and rounds.expected_s and 0 not in rounds.expected_s:
            # The report that measured round 0 or 1 may have ended before it rendered the pages.
            shown_small = _with_small_page(small)
            if lacking := [study for study in begun_small if study not in shown_small]:
                rendered(lacking, small)
            if late := [study for study in studies if study in shown_small and study not in begun_small]:
                rendered(late)
                renewed.update(late)
        for number in rounds.measured(after_study):
            if number == 0:
                rounds.plans = plan_studies(studies, session=session)  # it told the pace of this machine
                code = rendered(begun_small, small, is_last=not rounds.follows(0))
            elif number == 1 and rounds.follows(1) and (rest := [name for name in studies if name not in renewed]):
                rendered(rest)
        unchanged = {study for study in begun_small if study not in renewed and study not in rounds.failed}
        rest = [study for study in studies if study not in unchanged]
        return (rendered(rest, is_last=True) if rest else 0) or (code if unchanged else 0)


def _with_small_page(small: Session) -> set[str]:
    """Return the studies whose page was rendered last from round 0 of this machine."""
    runs = read_runs(small.store.report)
    return {study for study, run in runs.items() if (run.scale, run.host) == (small.scale, small.host.id)}


def make_render(request: Request) -> int:
    """Render a site from the records alone, or those of all profiles with records. Return codes as `make_report` does.

    A profile without records has a warning. Without `hw`, all recorded profiles are rendered, and 2 is the code if no
    profile has records.
    """
    if request.hw:
        return _render(request)
    names = [name for name in profile_names() if any(Store(reports_folder() / name).hosts(study) for study in STUDIES)]
    if not names:
        raise UserError("no profile has records to render: `make report` measures this machine.")
    codes = []
    for number, name in enumerate(names, start=1):
        print(f"Site {number} of {len(names)}: {name}.", flush=True)
        codes.append(_render(replace(request, hw=name), sites=names, compares=number == 1))
    return max(codes)


def _render(request: Request, *, sites: Sequence[str] = (), compares: bool = True) -> int:
    profile = load_profile(request.hw)
    studies = chosen_studies(request.study)
    if not request.study and Store(reports_folder() / profile.name).hosts(YOUR_NETWORK):
        studies.append(YOUR_NETWORK)
    session = open_session(profile, this_host(numbered=False), studies, scale=request.scale)
    report = session.store.report
    missing = [study for study in studies if not Store(report).hosts(study)]
    if missing and (request.study or missing == studies):
        reason = without_records(profile.name, missing if request.study else [])
        print(f"labkit: warning: {reason} Pages without records hold no results.", file=sys.stderr, flush=True)
    report.mkdir(parents=True, exist_ok=True)
    command = request.command("render")
    return write_pages(session, "render", studies, command, force=request.force, sites=sites, compares=compares)
