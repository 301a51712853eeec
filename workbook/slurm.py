"""`make report ON=slurm`: runs a report as a Slurm job, submitted once and followed to its end.

The profile's script is written once, readable, and the user's to edit. It depends on the profile alone. A report's
variables (STUDY, SCALE, DATA ...) are arguments of the script.
"""

from __future__ import annotations

import getpass
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

from labkit.data import refuse_address
from labkit.errors import LabkitError, UserError
from workbook.hardware.profile import Cluster, Profile, load_profile
from workbook.paths import ROOT, as_typed
from workbook.report.make import Request
from workbook.report.plan import measured_studies
from workbook.results import reports_folder

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


# A value of a #SBATCH line must not end the line, start a comment in it or open a quotation.
PLAIN = re.compile(r"[\w.,:;@+=~/%&|*()\[\]-]*")


def render_script(profile: Profile) -> str:
    """Return a profile's script for one node. Raise UserError for a value that no #SBATCH line can hold."""
    cluster = profile.cluster or Cluster()
    gpus = cluster.gpus_per_node or (profile.device.count if profile.device.kind == "cuda" else 0)
    folder = as_typed(reports_folder() / profile.name)
    options = {
        "job-name": f"labkit-{profile.name}",
        "partition": cluster.partition,
        "account": cluster.account,
        "constraint": cluster.constraint,
        "gres": f"gpu:{gpus}" if gpus else "",
        "time": str(-(-cluster.time_limit_s // 60)) if profile.cluster else "",  # Slurm counts in minutes
        "output": folder.replace("%", "%%") + "/logs/slurm-%j.log",  # %j is the job's number
    }
    for name, value in options.items():
        if not PLAIN.fullmatch(value):
            raise UserError(
                f"Slurm's option {name} can't be {value!r}, with spaces, quotes or unusual punctuation: correct "
                f"`cluster:` in params/{profile.name}.yaml, or set LABKIT_REPORTS to another folder."
            )
    lines = "\n".join(f"#SBATCH --{name}={value}" for name, value in options.items() if value)
    return f"""#!/bin/bash
# Written by `make report ON=slurm HW={profile.name}`, and yours to edit: it is submitted as it stands until
# you remove it. Its settings come from `cluster:` in params/{profile.name}.yaml.
# By hand, without the Makefile:
#   sbatch {folder}/slurm.sh STUDY=training SCALE=smoke
{lines}
# The whole node with all of its memory (mem=0), because a neighbour would be measured too.
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --exclusive
#SBATCH --mem=0
# A requeued job has the same number, so its log is appended to.
#SBATCH --requeue
#SBATCH --open-mode=append

set -eu
# The job must not submit itself, nor take over what the submitting `make` was told.
unset ON NODES MAKEFLAGS MFLAGS MAKELEVEL
# Requeued (a node failed, the job was preempted), it resumes instead of measuring again.
[ "${{SLURM_RESTART_COUNT:-0}}" = 0 ] || set -- "$@" FORCE=
exec make report HW={shlex.quote(profile.name)} "$@"
"""


OWN_PYTHON = ".venv/bin/python"  # the Makefile's choice without PYTHON=


def checked(request: Request, on: str) -> Profile:
    """Return the profile of a report that runs elsewhere. Raise UserError for a mistake that shows before it runs."""
    if not request.hw:
        raise UserError(f"ON={on} needs HW=, the profile of the node, for example `make report ON={on} HW=h100`.")
    profile = load_profile(request.hw)
    if not profile.runnable:
        raise UserError(f"profile {profile.name!r} can't be measured: {profile.reason}")
    profile.timing_at(request.scale)
    measured_studies(request.study, request.network)
    refuse_address(request.data)  # before it stands in the job's comment, which everybody reads
    return profile


def report_on_slurm(request: Request, *, nodes: int = 1, poll_s: float = POLL_S) -> int:
    """Submit a report, or find the job that already makes it, and follow that job. Return 0 once it has completed.

    Raise UserError for a mistake that shows before the job, and NotCompleted if the job does not complete.
    """
    return follow_report(submit_report(request, nodes=nodes), request.hw, poll_s=poll_s)


def submit_report(request: Request, *, nodes: int = 1) -> str:
    """Submit a report, or find the job that already makes it. Return its number."""
    profile = checked(request, "slurm")
    variables = variables_of(request)
    # The comment identifies the report, so FORCE=1 is not part of it. It is one line, because squeue prints one.
    several = f" NODES={nodes}" if nodes > 1 else ""
    command = f"make report {shlex.join([f'HW={profile.name}', *variables])}{several}"
    comment = " ".join(command.replace(" FORCE=1", "").split())
    number = queued_number(f"labkit-{profile.name}", comment)
    if number is not None:
        print(f"Job {number} makes this report already: following it.", flush=True)
    else:
        script = write_script(profile)
        number = submit(script, variables, comment=comment, nodes=nodes)
        print(f"Submitted {script} as job {number}. Ctrl-C stops following it, `scancel {number}` cancels it.")
    return number


def follow_report(number: str, hw: str, *, poll_s: float = POLL_S) -> int:
    """Follow the job of a profile's report to its end. Return 0 once it has completed."""
    try:
        follow(number, poll_s=poll_s)
    except KeyboardInterrupt:
        hint = f"The same command follows it again, `scancel {number}` cancels it."
        raise NotCompleted(f"job {number} continues. {hint}", exit_code=130) from None
    print(f"job {number} completed: {as_typed(reports_folder() / hw / 'index.html')}", flush=True)
    return 0


def variables_of(request: Request) -> list[str]:
    """Return the variables of the job's `make` as `NAME=value`, with absolute paths for files of this machine."""
    paths = {"DATA": request.data, "WEIGHTS": request.weights, "REUTERS": request.reuters, "NETWORK": request.network}
    python = os.environ.get("LABKIT_PYTHON", sys.executable)
    variables = {
        "STUDY": request.study,
        "SCALE": request.scale,
        **{name: str(Path(path).resolve()) if path and Path(path).exists() else path for name, path in paths.items()},
        "BATCH": request.batches,
        "FORCE": "1" if request.force else "",
        "KEEP_TRACES": "1" if request.keep_traces else "",
        "TIME": f"{request.time_s:.0f}s" if request.time_s else "",
        **{name: os.environ.get(name, "") for name in ("TORCH_INDEX", "TF_PYTHON", "JAX_PYTHON")},
        "PYTHON": "" if python == OWN_PYTHON else python,
    }
    return [f"{name}={value}" for name, value in variables.items() if value]


def write_script(profile: Profile) -> str:
    """Write the profile's script if there is none, keep an edited one, and return its path as the user types it."""
    script, text = reports_folder() / profile.name / "slurm.sh", render_script(profile)
    (script.parent / "logs").mkdir(parents=True, exist_ok=True)  # Slurm makes no folder for a log
    if not script.exists():
        script.write_text(text, encoding="utf-8")
    elif script.read_bytes() != text.encode():
        print(f"{as_typed(script)} was edited and is submitted as it stands; remove it to get a fresh one.", flush=True)
    return as_typed(script)
