"""Slurm's commands: what they are asked, and what their answers mean. Accounting (`sacct`) is not needed."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from labkit.errors import LabkitError, UserError
from labkit.places import ROOT

COMMANDS = ("sbatch", "squeue", "scontrol")
# A job inherits the environment it is submitted from. What `make` was told must not come with it: the job is told anew.
NOT_INHERITED = (
    *("HW", "STUDY", "SCALE", "DATA", "FORCE", "WEIGHTS", "REUTERS", "KEEP_TRACES", "ON", "NODES", "BASELINE"),
    *("TORCH_INDEX", "TF_PYTHON", "JAX_PYTHON", "PYTHON", "LABKIT_PYTHON"),
    *("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES"),
)


class NoAnswerError(LabkitError):
    """Slurm's controller can't be asked at the moment."""


@dataclass(frozen=True)
class Queued:
    """A job that waits or runs. `asked` is the command it was submitted for, "" where it was submitted by hand."""

    number: str
    name: str
    asked: str


@dataclass(frozen=True)
class Job:
    """What Slurm says of one job. Times are Slurm's own text, None where it has none."""

    number: str
    state: str
    reason: str
    nodes: str
    exit_code: int
    signal: int
    restarts: int
    submitted: str | None
    run_time: str
    time_limit: str
    log: Path | None


def check_commands() -> None:
    """UserError when Slurm's commands are not on PATH."""
    missing = [name for name in COMMANDS if shutil.which(name) is None]
    if missing:
        raise UserError(
            f"ON=slurm needs Slurm's {', '.join(missing)} on PATH, not found here: run this where jobs are submitted "
            f"(a login node), or leave ON= out to measure this machine."
        )


def submit(script: str, arguments: list[str], *, asked: str, nodes: int = 1) -> str:
    """Submit a script from the repository's folder; the job's number. UserError with Slurm's words when it refuses.

    Several nodes are asked for beside the script, whose own lines (edited or not) are for one.
    """
    several = [f"--nodes={nodes}", f"--ntasks={nodes}"] if nodes > 1 else []
    done = _ask("sbatch", "--parsable", f"--comment={asked}", *several, script, *arguments)
    number = done.stdout.strip().split(";")[0]  # of several clusters, `number;cluster`
    if done.returncode or not number.isdigit():
        raise UserError(
            f"Slurm refused the job: {_said(done)}. Look at {script}, or remove it and mend `cluster:` in the profile."
        )
    return number


def queued() -> list[Queued]:
    """The user's jobs of this folder that wait or run; NoAnswerError when Slurm can't be asked."""
    done = _ask("squeue", "--noheader", f"--user={getpass.getuser()}", "--format=%i|%j|%T|%Z|%k")
    if done.returncode:
        raise NoAnswerError(f"Slurm can't be asked what is queued: {_said(done)}.")
    jobs = []
    for line in done.stdout.splitlines():
        number, name, state, folder, asked = (*line.strip().split("|", 4), "", "", "", "")[:5]
        if folder == str(ROOT) and state != "COMPLETING":  # which has ended, and only clears its node
            jobs.append(Queued(number, name, "" if asked == "(null)" else asked))
    return jobs


def look_up(number: str) -> Job | None:
    """What Slurm says of a job; None when it has forgotten it, NoAnswerError when it can't be asked."""
    done = _ask("scontrol", "show", "job", number)
    if done.returncode:
        if "Invalid job id" in done.stdout + done.stderr:
            return None
        raise NoAnswerError(_said(done))
    return parse_job(number, done.stdout)


def parse_job(number: str, text: str) -> Job:
    """The answer of `scontrol show job`: several `Key=value` in a line, and the log's path with a line of its own."""
    log = re.search(r"^\s*StdOut=(.*)$", text, re.MULTILINE)

    def value(key: str, otherwise: str = "") -> str:
        found = re.search(rf"(?:^|\s){key}=(\S*)", text)
        return otherwise if found is None or found[1] in ("", "(null)", "Unknown", "None") else found[1]

    code, _, signal = value("ExitCode", "0:0").partition(":")
    return Job(
        number=number,
        state=value("JobState", "UNKNOWN").split("+")[0],
        reason=value("Reason"),
        nodes=value("NodeList"),
        exit_code=_number(code),
        signal=_number(signal),
        restarts=_number(value("Restarts", "0")),
        submitted=value("SubmitTime") or None,
        run_time=value("RunTime", "00:00:00"),
        time_limit=value("TimeLimit"),
        log=Path(log[1]) if log and log[1] else None,
    )


def seconds_of(run_time: str) -> float:
    """Slurm's `[days-]hours:minutes:seconds` in seconds; 0 for what is no time."""
    days, _, clock = run_time.rpartition("-")
    parts = clock.split(":")
    if len(parts) != 3 or not all(part.isdigit() for part in [*parts, days or "0"]):
        return 0.0
    hours, minutes, seconds = map(int, parts)
    return float(((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds)


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _ask(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    try:
        return subprocess.run(
            list(command),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=120,
            check=False,
            env=environment,
            cwd=ROOT,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(list(command), 1, "", f"{command[0]}: {error}")


def _said(done: subprocess.CompletedProcess[str]) -> str:
    """A command's complaint as part of a sentence."""
    text = done.stderr.strip() or done.stdout.strip() or f"it ended with exit code {done.returncode} and said nothing"
    lines = [re.sub(r"^\w+: (error: )?", "", line).rstrip(". ") for line in text.splitlines() if line.strip()]
    return "; ".join(lines)
