"""Slurm's commands: submits a job, lists the queue, follows a job to its end. Accounting (`sacct`) is not needed.

`sbatch --wait` cannot replace `follow`: it does not wait for a job submitted earlier. It also returns 0 for a job that
lost its node or was cancelled while pending (Slurm 22.05).
"""

from __future__ import annotations

import getpass
import re
import subprocess
import time
from pathlib import Path

from labkit.errors import LabkitError, UserError
from workbook.paths import ROOT, as_typed

POLL_S = 5.0  # the controller serves the whole cluster
TAIL_BYTES = 4000  # most bytes of the log printed after a poll, so that following again starts near the log's end
# ASCII's separators of fields and of records: names of folders and jobs may hold every printable character.
FIELD, END = "\x1f", "\x1e"
QUEUE_FORMAT = FIELD.join(("%i", "%T", "%Z", "%j", "%k")) + END
MAYBE_REQUEUED = ("NODE_FAIL", "BOOT_FAIL", "PREEMPTED")  # Slurm may queue such a job again under its number
REQUEUE_POLLS = 24  # how often such a state is seen before it counts as the end, unless Slurm requeues the job
RESUME = "The same command without FORCE=1 resumes the report."
FAILURES = {
    "FAILED": "was killed by a signal",
    "CANCELLED": "was cancelled",
    "TIMEOUT": "reached its time limit (`time_limit_s` under `cluster:` in the profile, or the script)",
    "NODE_FAIL": "lost its node",
    "BOOT_FAIL": "lost its node, which did not boot",
    "PREEMPTED": "was preempted by another job",
    "OUT_OF_MEMORY": "ran out of memory",
}


class SlurmError(LabkitError):
    """A failure of one of Slurm's commands, with Slurm's message."""


class NotCompleted(LabkitError):  # noqa: N818 - Ctrl-C is no error
    """A job that ended without completing, or that the user stopped following."""

    def __init__(self, text: str, exit_code: int = 1) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def submit(script: str, arguments: list[str], *, comment: str, nodes: int) -> str:
    """Submit a script from the repository's folder. Return `number` or `number;cluster`.

    Raise UserError if Slurm refuses the job, or answers without a number.
    """
    # The script's #SBATCH lines are for one node. Options of the command override them.
    options = [f"--nodes={nodes}", f"--ntasks={nodes}"] if nodes > 1 else []
    try:
        answer = _run("sbatch", "--parsable", f"--comment={comment}", *options, script, *arguments)
    except SlurmError as error:
        raise UserError(f"Slurm refused the job ({error}). Edit {script}, or `cluster:` in the profile.") from None
    # Sites print a banner before the number. It is `number;cluster` where there are several clusters.
    numbers = [line for line in map(str.strip, answer.splitlines()) if re.fullmatch(r"\d+(;[\w.-]+)?", line)]
    if len(numbers) != 1:
        raise UserError(
            f"sbatch answered without the number of a job: {' '.join(answer.split())[:200] or 'nothing'}. The job may "
            "be in the queue nevertheless: `squeue --me` shows it."
        )
    return numbers[0]


def queued_number(name: str, comment: str) -> str | None:
    """Return the user's job of this folder with that comment, or None. Raise UserError if another job has the name."""
    queue = _run("squeue", "--noheader", f"--user={getpass.getuser()}", f"--format={QUEUE_FORMAT}")
    for job in queue.split(END + "\n")[:-1]:
        number, state, folder, other_name, other_comment = job.split(FIELD)
        if folder != str(ROOT) or state == "COMPLETING":  # it has ended, and Slurm cleans up its node
            continue
        if other_comment == comment:
            return number
        if other_name == name:
            raise UserError(
                f"job {number} makes another report of this profile ({other_comment}), and both would write into one "
                f"folder. Wait for it, or `scancel {number}`, and repeat this command."
            )
    return None


def follow(number: str, *, poll_s: float = POLL_S) -> None:
    """Print a job's state and log until it completes. Raise NotCompleted, with an exit code, for every other end."""
    status, position, polls_left = "", 0, REQUEUE_POLLS
    while True:
        try:
            job = _look_up(number)
        except SlurmError as error:
            text = f"Slurm does not answer ({error}), asking again"
        else:
            log = Path(job["StdOut"])
            content = log.read_bytes() if log.is_file() else b""
            print(content[position:][-TAIL_BYTES:].decode(errors="replace"), end="", flush=True)
            position = len(content)
            if job["JobState"] == "COMPLETED":
                return
            may_return = job["JobState"] in MAYBE_REQUEUED and job["Requeue"] == "1"
            polls_left = polls_left - 1 if may_return else REQUEUE_POLLS
            if job["JobState"] in FAILURES and not (may_return and polls_left):
                raise _failure(number, job, content)
            text = job["JobState"] + (f" ({job['Reason']})" if job["Reason"] else "")
            text += f" on {job['NodeList']}" if job["NodeList"] else ""
            text += ", requeued after a node failure or preemption" if job["Restarts"] != "0" else ""
        if text != status:
            print(f"job {number}: {text}", flush=True)
        status = text
        time.sleep(poll_s)


def _look_up(number: str) -> dict[str, str]:
    """Return the fields of `scontrol show job`, "" without a value. Raise NotCompleted if Slurm forgot the job."""
    try:
        job, _, cluster = number.partition(";")
        answer = _run("scontrol", *([f"--clusters={cluster}"] if cluster else []), "show", "job", job)
    except SlurmError as error:
        if "Invalid job id" not in str(error):
            raise
        raise NotCompleted(f"Slurm has forgotten job {number}, so its end is unknown. {RESUME}") from None
    # The first field of a name is Slurm's; a later field may be part of the comment. The log's path may hold spaces.
    pairs = reversed(re.findall(r"(\w+)=(\S*)", answer))
    fields = {name: "" if value in ("(null)", "None") else value for name, value in pairs}
    return fields | {"StdOut": answer.rpartition(" StdOut=")[2].partition("\n")[0]}


def _failure(number: str, job: dict[str, str], log: bytes) -> NotCompleted:
    failure, code = FAILURES[job["JobState"]], 1
    if job["JobState"] == "FAILED" and job["ExitCode"].endswith(":0"):  # no signal
        # `make` ends with 2 whatever failed, and prints the exit code of the report.
        code = int([job["ExitCode"][:-2], *re.findall(r"\breport\] Error (\d+)", log.decode(errors="replace"))][-1])
        failure = f"failed with exit code {code}"
    where = f"job {number} ({job['NodeList'] or 'no node'})"
    return NotCompleted(f"{where} {failure}. Its log: {as_typed(Path(job['StdOut']))}. {RESUME}", code)


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=120, cwd=ROOT)
    except FileNotFoundError:
        raise UserError(f"ON=slurm needs Slurm's {command[0]} on PATH: run it on a login node, or omit ON=.") from None
    except subprocess.TimeoutExpired as error:
        raise SlurmError(str(error)) from None
    if done.returncode:
        raise SlurmError(f"{command[0]} failed: {'; '.join(done.stderr.splitlines())}")
    return done.stdout
