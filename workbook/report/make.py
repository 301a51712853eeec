"""Run `make report` and `make render`: choose the profile, plan, execute notebooks, render pages, update the index."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

from labkit.errors import LabkitError, UserError
from labkit.files import remove_leftovers, replacing, temporary_folder, users_path
from workbook.datasets import READING, check_use, data_at_scale, documents_of_user
from workbook.engines.weights_files import check_folder
from workbook.hardware.environment import line_of_changers
from workbook.hardware.host import Host, this_host
from workbook.hardware.matching import detect, mismatch, require_match
from workbook.hardware.profile import Profile, load_profile
from workbook.lifetime import end_with_parent
from workbook.paths import as_typed, notebook_of
from workbook.records import utc_now
from workbook.records.selection import at_scale
from workbook.records.shared import read_together
from workbook.records.store import Store
from workbook.registry import COMPARISON, STUDIES, check_scale
from workbook.report.compare import is_comparable, write_comparison
from workbook.report.execute import Execution, execute, parameters_of
from workbook.report.generate import write_profile
from workbook.report.pages import write_page, write_site
from workbook.report.plan import NOTEBOOK_S, StudyPlan, chosen_studies, line_of_rounds, plan_studies
from workbook.report.rounds import Rounds
from workbook.report.status import StudyRun, read_runs, write_run
from workbook.results import reports_folder
from workbook.results.load import without_records
from workbook.runner.lock import only_measurement
from workbook.runner.progress import duration
from workbook.session import OPTIONS, Session

INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM)
ELSEWHERE = "So this machine cannot run the plan. Its times are those of recorded runs, or estimates without any."
INTERRUPTED_S = 2.0  # for notebooks that a signal to the whole group interrupts too


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
    keep_traces: bool = False
    time_s: float | None = None  # the seconds after which no further round begins

    def command(self, verb: str) -> str:
        """Return the command that repeats the request."""
        # Without FORCE and TIME: the repeated command must not start over, and measures what is left.
        given = [("HW", self.hw), ("STUDY", self.study), ("DATA", self.data)]
        given += [("WEIGHTS", self.weights), ("REUTERS", self.reuters)]
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
    check_scale(request.scale)
    weights = check_folder(request.weights) if request.weights else None
    host = this_host()
    profile = choose_profile(request.hw, host)
    studies = chosen_studies(request.study)
    if not (elsewhere and profile.runnable):
        require_match(profile, host)
    profile.timing_at(request.scale)
    check_use(request.data, studies)
    problem = mismatch(profile, host)
    print(f"{problem}. {ELSEWHERE}" if problem else f"{profile.title}: {host.summary()}", flush=True)
    if not set(studies) <= set(READING):  # such a study makes its images when it is planned
        print(data_at_scale(request.data, request.scale).description, flush=True)
    session = _session(profile, host, request, weights=weights)
    if session.reuters:
        print(documents_of_user(session.reuters).description, flush=True)
    if changers := line_of_changers():
        print(changers, flush=True)
    return session, plan_studies(studies, session=session, force=request.force)


def make_report(request: Request) -> int:
    """Measure missing trials by rounds and render the site after the first round and after the last.

    Return 0, 1 if a study failed, 2 if all failures are user mistakes. Raise UserError if TIME= is too short for the
    first round.
    """
    began = time.monotonic()
    session, plans = make_plan(request)
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
                session.store.move_aside(plan.study, session.host.id, session.scale)

        def rendered(*, is_last: bool) -> int:
            studies = [plan.study for plan in plans]
            return _run_all(session, request, "measure", studies, rounds.failed, is_last=is_last)

        def after_study(waiting: dict[str, float]) -> None:  # the index exists from the first study on
            write_site(report, session.profile, session.host, waiting)

        try:
            for number in rounds.measured(after_study):
                if number == 1 and rounds.follows(number):
                    rendered(is_last=False)
        except KeyboardInterrupt:
            write_site(report, session.profile, session.host)  # nothing waits any more
            raise
        return rendered(is_last=True)


def make_render(request: Request) -> int:
    """Render the site from the records alone, with a warning if there are none. Return codes as `make_report` does."""
    if not request.hw:
        raise UserError("say which report to render, for example `make render HW=h200`.")
    profile = load_profile(request.hw)
    session = _session(profile, this_host(numbered=False), request)
    studies, report = chosen_studies(request.study), session.store.report
    missing = [study for study in studies if not Store(report).hosts(study)]
    if missing and (request.study or missing == studies):
        reason = without_records(profile.name, missing if request.study else [])
        print(f"labkit: warning: {reason} Pages without records hold no results.", file=sys.stderr, flush=True)
    report.mkdir(parents=True, exist_ok=True)
    return _run_all(session, request, "render", studies, {})


def _session(profile: Profile, host: Host, request: Request, *, weights: Path | None = None) -> Session:
    """Return the session of a request. Its paths are absolute, because a notebook's kernel has another folder."""
    path = users_path(request.data)
    return Session(
        profile=profile,
        host=host,
        store=Store(reports_folder() / profile.name),
        scale=request.scale,
        data=str(path.resolve()) if request.data and path.exists() else request.data,
        weights=weights,
        reuters=users_path(request.reuters).absolute() if request.reuters else None,
        keeps_traces=request.keep_traces,
    )


def _executed(report: Path, studies: Sequence[str], parameters: dict[str, Any]) -> Iterator[tuple[str, Execution]]:
    """Run the notebooks in parallel and yield (study, how it ended). Nothing measures meanwhile."""
    if len(studies) == 1:
        print(f"[1/1] {studies[0]}: {STUDIES[studies[0]].question}", flush=True)
        yield studies[0], _timed(report, studies[0], parameters)
        return
    # Processes, not threads: the environment holds a kernel's folders. Spawned, because this process has threads.
    workers = min(len(studies), os.cpu_count() or 1, 4)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=end_with_parent) as pool:
        with _starting_processes():
            futures = {pool.submit(_in_pool, report, study, parameters): study for study in studies}
        try:
            for number, future in enumerate(as_completed(futures), start=1):
                study = futures[future]
                print(f"[{number}/{len(studies)}] {study}: {STUDIES[study].question}", flush=True)
                try:
                    outcome = future.result()
                except BrokenProcessPool:  # fails all studies left in the pool: run them in this process
                    outcome = _timed(report, study, parameters)
                yield study, outcome
        except BaseException:  # Ctrl-C: start no waiting study
            pool.shutdown(wait=False, cancel_futures=True)
            _end_children()
            raise


@contextmanager
def _starting_processes() -> Iterator[None]:
    """Put an interruption off until the pool's processes have started; they start with SIGINT blocked."""
    came: list[int] = []
    handled = [number for number in INTERRUPTIONS if callable(signal.getsignal(number))]  # nohup ignores them
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in handled}
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt


def _in_pool(report: Path, study: str, parameters: dict[str, Any]) -> Execution:
    """Run a study's notebook in a process of the pool, and let Ctrl-C interrupt the run.

    Outside the run SIGINT stays blocked: a process that imports or waits would end with a traceback.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        return _timed(report, study, parameters)
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def _end_children() -> None:
    """End the processes of the pool: a signal to this process alone has not interrupted their notebooks."""
    deadline = time.monotonic() + INTERRUPTED_S
    for process in active_children():
        process.join(max(0.0, deadline - time.monotonic()))
        process.terminate()


def _timed(report: Path, study: str, parameters: dict[str, Any]) -> Execution:
    """Run a study's notebook and time the run. An exception fails this study only."""
    began = time.monotonic()
    try:
        outcome = _run_one(report, study, parameters)
    except Exception as error:  # noqa: BLE001 - see above
        outcome = Execution(f"{type(error).__name__}: {error}")
    return replace(outcome, seconds=round(time.monotonic() - began, 1))


def _run_all(
    session: Session,
    request: Request,
    mode: str,
    studies: Sequence[str],
    unmeasured: Mapping[str, Execution],
    *,
    is_last: bool = True,
) -> int:
    """Execute the notebooks and write pages and site. Return the exit code of the report.

    `unmeasured` holds why studies could not be measured; their notebooks do not run. Unless `is_last`, the report goes
    on and renders the pages again.
    """
    profile, host, report = session.profile, session.host, session.store.report
    before = read_runs(report)
    verb = "report" if mode == "measure" else "render"
    failed: dict[str, str] = {}
    mistakes = 0
    runnable = [COMPARISON] if not request.study and is_comparable() else []
    runnable += [study for study in studies if study not in unmeasured]
    executed = _executed(report, runnable, session.parameters(mode)) if runnable else iter(())
    for study, outcome in chain(unmeasured.items(), executed):
        if mode == "measure" and not outcome.reason and study != COMPARISON:
            outcome = replace(outcome, reason=_nothing_worked(session, study))
        mistakes += outcome.user_mistake
        if outcome.reason:
            failed[study] = outcome.reason
            print(f"      failed: {outcome.reason.splitlines()[0]}", file=sys.stderr, flush=True)
        else:
            repaired = study in before and before[study].status == "failed"
            mended = "; its page had failed before, and is repaired" if repaired else ""
            print(f"      done in {duration(outcome.seconds)}{mended}", flush=True)
        if study == COMPARISON:  # its page is of all profiles
            continue
        run = StudyRun(
            status="failed" if outcome.reason else "ok",
            reason=outcome.reason,
            duration_s=outcome.seconds,
            command=request.command(verb),
            mode=mode,
            scale=session.scale,
            host=host.id,
            commit=host.commit,
            finished_at=utc_now(),
        )
        write_run(report, study, run)
        try:
            write_page(report, study, profile, run)
        except Exception as error:  # noqa: BLE001 - a failed page does not stop the other studies
            failed[study] = f"its page could not be made: {error}"
            write_run(report, study, replace(run, status="failed", reason=failed[study]))
            print(f"      failed: {failed[study]}", file=sys.stderr, flush=True)
    write_site(report, profile, host)
    print(f"The report: {as_typed(report / 'index.html')}")
    if failed:
        asked = len({*studies, *failed})
        print(
            f"labkit: {len(failed)} of {asked} studies failed: {', '.join(failed)}. {_next(profile, failed, is_last)}",
            file=sys.stderr,
            flush=True,
        )
        return 2 if mistakes == len(failed) else 1
    return 0


def _next(profile: Profile, failed: Collection[str], is_last: bool) -> str:
    """Return what to do about failed studies: all measurements are kept, and the other pages are complete."""
    if not is_last:
        return "Their pages say why. The report goes on, and renders them again after its last round."
    names = ",".join(STUDIES[study].name for study in failed)
    return (
        "Their pages say why; measurements and all other pages are kept. When the cause is mended, "
        f"`make render HW={profile.name} STUDY={names}` makes these pages again, and `make report` measures the rest."
    )


def _nothing_worked(session: Session, study: str) -> str | None:
    """Return why a study failed although its notebook ran: no results, or records that can't be read; else None."""
    try:
        tried = at_scale(read_together(session.store, study, session.host.id).records, session.scale)
    except LabkitError as error:  # its records can't be read
        return str(error)
    if not tried or any(record.status == "ok" for record in tried):
        return None
    return f"not one of {len(tried)} configurations gave a result; the first: {tried[0].dated_reason}"


def _run_one(report: Path, study: str, parameters: dict[str, Any]) -> Execution:
    if study == COMPARISON:
        return Execution(write_comparison(rendering=report.name))
    with temporary_folder() as folder:
        output = folder / f"{study}.ipynb"
        log = report / "logs" / f"{study}-kernel.log"
        log.parent.mkdir(exist_ok=True)
        notebook = notebook_of(study)
        accepted = parameters_of(notebook)  # few notebooks take the options WEIGHTS= and REUTERS=
        given = {name: value for name, value in parameters.items() if name not in OPTIONS or name in accepted}
        outcome = execute(notebook, output, given, timeout_s=60 * NOTEBOOK_S, log=log)
        if output.is_file():
            with replacing(report / f"{study}.ipynb") as new:
                shutil.copyfile(output, new)
    return outcome
