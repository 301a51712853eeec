"""Execute a report's notebooks in parallel, and write their pages and the site."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from itertools import chain
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import MappingProxyType
from typing import Any

from labkit.errors import LabkitError
from labkit.files import replacing, temporary_folder
from workbook.claims.papers import committed
from workbook.claims.reports import evidence, recorded, verdicts
from workbook.hardware.profile import Profile
from workbook.lifetime import REQUESTS, end_children, end_with_parent
from workbook.paths import as_typed, notebook_of
from workbook.records import utc_now
from workbook.records.selection import at_scale, scale_to_show
from workbook.records.shared import read_together
from workbook.registry import COMPARISON, OF_ALL, SMALL, STUDIES, YOUR_NETWORK
from workbook.report.compare import is_comparable, write_comparison, write_which_device
from workbook.report.execute import Execution, execute, parameters_of
from workbook.report.inputs import CLAIMS, INDEX, Seals
from workbook.report.pages import Shown, StudyRun, read_runs, shown_of, write_page, write_run, write_site
from workbook.report.plan import NOTEBOOK_S, chosen_studies
from workbook.results.load import kept_records
from workbook.runner.progress import duration
from workbook.session import OPTIONS, Session
from workbook.trials.trial import OWN

MOST_PAGES = 4  # at once
GARBAGE = 100_000  # new objects before Python looks for garbage: records and trees of pages are many, and stay
# What notebooks import, and what runs them.
IMPORTED = ("workbook.study", "workbook.show", "scrapbook", "seaborn", "papermill", "ipykernel.kernelapp")


@kept_records()
def write_pages(
    session: Session,
    mode: str,
    studies: Sequence[str],
    command: str,
    *,
    unmeasured: Mapping[str, Execution] = MappingProxyType({}),
    is_last: bool = True,
    waiting: Mapping[str, float] = MappingProxyType({}),
    force: bool = False,
    sites: Collection[str] = (),
    compares: bool = True,
) -> int:
    """Execute the notebooks and write pages and site. Return the exit code of the report.

    The exit code is 0, 1 if a study failed, or 2 if all failures are user mistakes. `mode` is `measure` or `render`,
    and `command` is the user's. `unmeasured` holds why studies could not be measured; their notebooks do not run.
    Unless `is_last`, the report goes on and renders the pages again. `waiting` is as in `write_site`. In mode `render`,
    pages whose inputs are unchanged stay as they are, unless `force`. `sites` are the profiles that are rendered
    together. Without `compares`, one of them has made the comparison.
    """
    profile, host, report = session.profile, session.host, session.store.report
    before = read_runs(report)
    failed: dict[str, str] = {}
    mistakes = 0
    everything = set(studies) >= set(chosen_studies(""))
    # Sizes of round 0 are never compared, so its pages do not wait for the comparison.
    compares = compares and everything and (is_last or session.scale != SMALL) and is_comparable()
    runnable = [*OF_ALL] if compares else []
    runnable += [study for study in studies if study not in unmeasured]
    sites = {profile.name, *sites}
    seals = Seals(report, host, session.parameters(mode), runnable, sites)
    keeps = mode == "render" and not force
    whole = {*OF_ALL, *(study for study, run in before.items() if run.status == "ok")}
    if unchanged := [study for study in runnable if keeps and study in whole and seals.hold(study)]:
        print(f"Unchanged: {', '.join(unchanged)}. FORCE=1 renders them again.", flush=True)
        runnable = [study for study in runnable if study not in unchanged]
    shown = cache(partial(shown_of, profile, host))
    run_one = partial(_run_one, report, session.parameters(mode), sites)
    executed = _executed(runnable, run_one, shown, judges=not (keeps and seals.hold(CLAIMS)))
    for study, outcome in chain(unmeasured.items(), executed):
        if not outcome.reason and study not in OF_ALL:
            outcome = replace(outcome, reason=_nothing_worked(session, study, mode))
        mistakes += outcome.user_mistake
        if outcome.reason:
            failed[study] = outcome.reason
            print(f"      failed: {outcome.reason.splitlines()[0]}", file=sys.stderr, flush=True)
        else:
            repaired = study in before and before[study].status == "failed"
            mended = "; its page had failed before, and is repaired" if repaired else ""
            print(f"      done in {duration(outcome.seconds)}{mended}", flush=True)
        if study in OF_ALL:  # its page is of all profiles
            if not outcome.reason:
                seals.keep(study)
            continue
        run = StudyRun(
            status="failed" if outcome.reason else "ok",
            reason=outcome.reason,
            duration_s=outcome.seconds,
            command=command,
            mode=mode,
            scale=session.scale,
            host=host.id,
            commit=host.commit,
            finished_at=utc_now(),
        )
        write_run(report, study, run)
        try:
            write_page(report, study, profile, run, {*studies} - {*unmeasured})
        except Exception as error:  # noqa: BLE001 - a failed page does not stop the other studies
            failed[study] = f"its page could not be made: {error}"
            write_run(report, study, replace(run, status="failed", reason=failed[study]))
            print(f"      failed: {failed[study]}", file=sys.stderr, flush=True)
        if study not in failed:
            seals.keep(study)
    if not (keeps and seals.hold(INDEX)):
        judges = not (keeps and seals.hold(CLAIMS))  # asked again: it links the pages made meanwhile
        write_site(report, profile, host, waiting, shown=shown(), sites=sites, judges=judges)
    if not waiting:
        seals.keep(CLAIMS)
        seals.keep(INDEX)
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


def _executed(
    studies: Sequence[str], run_one: Callable[[str], Execution], prepare: Callable[[], Shown], *, judges: bool
) -> Iterator[tuple[str, Execution]]:
    """Run the notebooks in parallel and yield (study, how it ended). Nothing measures meanwhile.

    Each has a process of its own, forked from this one after the imports: the environment holds a kernel's folders,
    and a process that dies fails only its page. `prepare` reads the records of the site: several pages begin with what
    it has read, and beside a single page it runs meanwhile. The claims are judged beside the first pages, for a single
    page only if the site needs them (`judges`).
    """
    gc.set_threshold(GARBAGE)
    for module in IMPORTED if studies else ():
        import_module(module)
    if len(studies) > 1:  # read once what the pages show
        recorded(evidence(None)).frame()
        prepare().results.frame(hosts="all")
        committed()  # the comparison and the site date the rules of claims
    gc.freeze()  # a collection in a forked process would copy all that it shares with this one
    fork, waiting, running = get_context("fork"), [*studies], dict[Any, tuple[str, Any]]()
    outcomes: dict[str, Execution] = {}  # not yet yielded: pages link what the comparison finds
    try:
        while waiting or running:
            while waiting and len(running) < min(os.cpu_count() or 1, MOST_PAGES):
                study = waiting.pop(0)
                ends = fork.Pipe(duplex=False)
                process = fork.Process(target=_send, args=(ends[1], study, run_one))
                with _starting_processes():
                    process.start()
                ends[1].close()
                running[ends[0]] = study, process
            seen = prepare().seen
            if judges or len(studies) > 1:
                verdicts(seen)  # pages that begin later show them too
            connections: list[Any] = wait(list(running))
            for ended in connections:
                study, process = running.pop(ended)
                try:
                    outcomes[study] = ended.recv()
                except EOFError:
                    outcomes[study] = Execution("its process was killed")
                process.join()
            while outcomes and COMPARISON not in dict(running.values()):
                study = next(iter(outcomes))
                outcome = outcomes.pop(study)
                number = len(studies) - len(waiting) - len(running) - len(outcomes)
                print(f"[{number}/{len(studies)}] {study}: {STUDIES[study].question}", flush=True)
                yield study, outcome
    except BaseException:  # Ctrl-C: start no waiting study
        end_children()
        raise


def _send(writer: Connection, study: str, run_one: Callable[[str], Execution]) -> None:
    """Run a study's notebook in a process of its own and send how it ended."""
    signal.set_wakeup_fd(-1)
    for number in REQUESTS:
        signal.signal(number, signal.SIG_DFL)
    end_with_parent()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    writer.send(_timed(study, run_one))


@contextmanager
def _starting_processes() -> Iterator[None]:
    """Put an interruption off until a process has started; it starts with SIGINT blocked."""
    came: list[int] = []
    handled = [number for number in REQUESTS if callable(signal.getsignal(number))]  # nohup ignores them
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in handled}
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])


def _timed(study: str, run_one: Callable[[str], Execution]) -> Execution:
    """Run a study's notebook and time the run. An exception fails this study only."""
    began = time.monotonic()
    try:
        outcome = run_one(study)
    except Exception as error:  # noqa: BLE001 - see above
        outcome = Execution(f"{type(error).__name__}: {error}")
    return replace(outcome, seconds=round(time.monotonic() - began, 1))


def _next(profile: Profile, failed: Collection[str], is_last: bool) -> str:
    """Return what to do about failed studies: all measurements are kept, and the other pages are complete."""
    if not is_last:
        return "Their pages say why. The report goes on, and renders them again after its last round."
    names = ",".join(STUDIES[study].name for study in failed)
    return (
        "Their pages say why; measurements and all other pages are kept. When the cause is mended, "
        f"`make render HW={profile.name} STUDY={names}` makes these pages again, and the same `make report` measures "
        "the rest."
    )


def _nothing_worked(session: Session, study: str, mode: str = "measure") -> str | None:
    """Return why a study failed although its notebook ran: no results, or records that can't be read; else None."""
    try:
        records = read_together(session.store, study, session.host.id).records
        scale = session.scale if mode == "measure" else scale_to_show(records) or session.scale
        tried = at_scale(records, scale)
    except LabkitError as error:  # its records can't be read
        return str(error)
    if study == YOUR_NETWORK:  # the ceilings of the device always work
        own = [record for record in tried if record.trial["workload"] in OWN]
        last = max(own, key=lambda record: record.started_at, default=None)
        tried = [record for record in own if last and record.trial["model"] == last.trial["model"]]
    if not tried or any(record.status == "ok" for record in tried):
        return None
    return f"not one of {len(tried)} trials gave a result; the first: {tried[0].dated_reason}"


def _run_one(report: Path, parameters: dict[str, Any], sites: Collection[str], study: str) -> Execution:
    if study in OF_ALL:
        write = write_comparison if study == COMPARISON else write_which_device
        return Execution(write(rendering=sites))
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
