"""Follow a job with one line, and say in one sentence how it ended and what to do."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from labkit.cluster.script import shown
from labkit.cluster.slurm import Job, NoAnswerError, look_up, seconds_of
from labkit.errors import LabkitError
from labkit.run.progress import duration

POLL_S = 5.0  # a controller has more to do than to answer us
SAY_S = 30.0  # where there is no terminal, the line is said anew this often
GO_ON = "the same command (without FORCE=1) goes on where it was"

WAITING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
RUNNING = {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT", "UNKNOWN"}
ENDED_BADLY = {
    "CANCELLED": "was cancelled",
    "TIMEOUT": "ran into its time limit ({limit}; `time_limit_s` under `cluster:` in the profile, or the script)",
    "NODE_FAIL": "lost its node ({nodes})",
    "BOOT_FAIL": "lost its node ({nodes}), which did not start",
    "PREEMPTED": "had to make room for another job",
    "OUT_OF_MEMORY": "needed more memory than it was given",
    "DEADLINE": "could not end before its deadline",
    "REVOKED": "was taken away by another cluster",
}


class StoppedFollowing(LabkitError):  # noqa: N818 - nothing went wrong
    """The user stopped following; the job goes on."""

    exit_code = 130


class Line:
    """One line: written over on a terminal, elsewhere said when its beginning changes and every half minute."""

    def __init__(self) -> None:
        self._head, self._said_s = "", -SAY_S

    def show(self, head: str, rest: str) -> None:
        """`head` is what must not be missed, `rest` what changes all the time."""
        text = f"{head}{rest}"
        if sys.stdout.isatty():
            width = shutil.get_terminal_size().columns - 1
            print(f"\r{text[:width]:<{width}}", end="", flush=True)
        elif head != self._head or time.monotonic() - self._said_s >= SAY_S:
            self._said_s = time.monotonic()
            print(text, flush=True)
        self._head = head

    def close(self) -> None:
        """Leave the last line where it is."""
        if sys.stdout.isatty() and self._head:
            print(flush=True)


def follow(number: str, site: Path, *, poll_s: float = POLL_S, sleep: Callable[[float], None] = time.sleep) -> int:
    """Wait for a job's end; the exit code of its report (0, 1 or 2).

    LabkitError with one sentence when the job ended in another way, StoppedFollowing when the user pressed Ctrl-C.
    """
    line = Line()
    before: Job | None = None
    try:
        while True:
            try:
                job = look_up(number)
            except NoAnswerError as error:
                line.show(f"job {number}: Slurm does not answer ({error}), asking again", "")
            else:
                if job is None:
                    line.close()
                    raise LabkitError(
                        f"Slurm no longer knows job {number}, so how it ended is not known: {GO_ON}, and measures "
                        f"nothing twice."
                    )
                if job.state not in WAITING | RUNNING:
                    line.close()
                    return result_of(job, site)
                if before is not None and job.restarts > before.restarts:
                    line.close()
                    print(
                        f"job {number}: stopped on {before.nodes or 'its node'} (the node failed, or Slurm needed it) "
                        f"and put back into the queue by Slurm.",
                        flush=True,
                    )
                before = job
                line.show(*_where(job))
            sleep(poll_s)
    except KeyboardInterrupt:
        line.close()
        raise StoppedFollowing(
            f"stopped following; job {number} goes on. The same command follows it again, `scancel {number}` ends it."
        ) from None


def result_of(job: Job, site: Path) -> int:
    """The exit code of the report of an ended job, said in a sentence; LabkitError where Slurm ended the job."""
    log = f" Its log: {shown(job.log)}." if job.log else ""
    if job.state == "COMPLETED":
        print(f"job {job.number}: done, {shown(site)}", flush=True)
        return 0
    if job.state == "FAILED" and not job.signal:
        code = _code_of_report(job)
        last = _last_complaint(job.log)
        said = f" It said: {last.rstrip('.')}." if last else ""
        what = "ended with failed studies" if code == 1 else f"ended with exit code {code}"
        print(f"labkit: job {job.number} {what}.{said}{log} Then {GO_ON}.", file=sys.stderr, flush=True)
        return code
    if job.state == "FAILED":
        what = f"was ended by signal {job.signal}"
    else:
        what = ENDED_BADLY.get(job.state, f"ended as {job.state}")
        what = what.format(limit=job.time_limit or "the partition's", nodes=job.nodes or "no name given")
    raise LabkitError(f"job {job.number} {what}: {GO_ON}.{log}")


def _where(job: Job) -> tuple[str, str]:
    times = "once" if job.restarts == 1 else f"{job.restarts} times"
    again = f" (restarted {times}, goes on where it was)" if job.restarts else ""
    if job.state in WAITING:
        state = "" if job.state == "PENDING" else f" {job.state.lower()}"
        reason = f" ({job.reason})" if job.reason else ""
        return f"job {job.number}: waiting{state}{reason}{again}", f", {duration(_waited_s(job))}"
    verb = {"RUNNING": "running", "COMPLETING": "ending"}.get(job.state, job.state.lower())
    said = last_line(job.log)
    passed = f", {duration(seconds_of(job.run_time))}"
    return f"job {job.number}: {verb} on {job.nodes or '?'}{again}", passed + (f": {said}" if said else "")


def _waited_s(job: Job) -> float:
    try:
        return (datetime.now() - datetime.fromisoformat(job.submitted or "")).total_seconds()
    except ValueError:
        return 0.0


def _tail(log: Path | None) -> list[str]:
    """The last lines of a log as a terminal would show them; [] while there is none."""
    try:
        if log is None:
            return []
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 8192))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    # Only what can be printed: a log may hold colours and other orders to a terminal.
    plain = re.sub(r"\x1b\[[0-9;?]*[ -/]*[@-~]", "", text)
    lines = ["".join(c for c in line if c.isprintable()).strip() for line in re.split(r"[\r\n]+", plain)]
    return [line for line in lines if line]


def last_line(log: Path | None) -> str:
    """What a job's report last said; "" while it said nothing."""
    return (_tail(log) or [""])[-1]


def _last_complaint(log: Path | None) -> str:
    said = [line.removeprefix("labkit: ") for line in _tail(log) if line.startswith(("labkit: ", "failed: "))]
    return said[-1] if said else ""


def _code_of_report(job: Job) -> int:
    """The report's own exit code: make ends with 2 whatever its command ended with, but says with what."""
    told = [found[1] for line in _tail(job.log) if (found := re.search(r"\*\*\* \[.*\breport\] Error (\d+)$", line))]
    return int(told[-1]) if told and job.exit_code == 2 else job.exit_code or 1
