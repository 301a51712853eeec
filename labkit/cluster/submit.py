"""`make report ON=slurm`: write the script of the profile or keep the user's, submit it once, follow it."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from labkit.cluster.follow import POLL_S, follow
from labkit.cluster.script import render_script, report_of, script_of, shown
from labkit.cluster.slurm import check_commands, queued, submit
from labkit.errors import UserError
from labkit.profile import Profile, load_profile
from labkit.registry import check_scale
from labkit.report.make import Request
from labkit.report.plan import chosen_studies

OWN_PYTHON = ".venv/bin/python"  # what the Makefile takes where PYTHON= is not given


def report_on_slurm(request: Request, *, nodes: int = 1, poll_s: float = POLL_S) -> int:
    """Submit a report of one node or of several, or find the job that makes it already, and follow it to its end.

    The report's exit code; UserError for what can be told before anything is queued, LabkitError when Slurm ended it.
    """
    profile = _profile_of(request)
    check_commands()
    script = _written(profile)
    arguments = variables_of(request)
    several = [f"NODES={nodes}"] if nodes > 1 else []  # which the job's own `make` hears from Slurm
    asked = " ".join(["make report", f"HW={profile.name}", *several, *map(shlex.quote, arguments)])
    asked = " ".join(asked.replace(" FORCE=1", "").split())  # one line, as squeue shows it
    number = _already(profile, asked)
    if number is None:
        number = submit(shown(script), arguments, asked=asked, nodes=nodes)
        print(f"Submitted {shown(script)} as job {number}. Ctrl-C stops following it, `scancel {number}` ends it.")
    return follow(number, report_of(profile) / "index.html", poll_s=poll_s)


def variables_of(request: Request) -> list[str]:
    """The request as `NAME=value`, each for one argument of `make`; paths are those of this machine's folders."""
    given = {
        "STUDY": request.study,
        "SCALE": request.scale,
        "DATA": _whole(request.data),
        "WEIGHTS": _whole(request.weights),
        "REUTERS": _whole(request.reuters),
        "FORCE": "1" if request.force else "",
        "KEEP_TRACES": "1" if request.keep_traces else "",
        **{name: os.environ.get(name, "") for name in ("TORCH_INDEX", "TF_PYTHON", "JAX_PYTHON")},
        "PYTHON": _python(),
    }
    return [f"{name}={value}" for name, value in given.items() if value]


def _profile_of(request: Request) -> Profile:
    if not request.hw:
        raise UserError(
            "ON=slurm needs HW=: this machine is not the one that measures, so say which profile the job is of, for "
            "example `make report ON=slurm HW=h100`."
        )
    profile = load_profile(request.hw)
    if not profile.runnable:
        raise UserError(f"profile {profile.name!r} can't be measured: {profile.reason}")
    check_scale(request.scale)
    profile.timing_at(request.scale)
    chosen_studies(request.study)  # a misspelt name should not wait in a queue to be refused
    return profile


def _written(profile: Profile) -> Path:
    """The profile's script: made where there is none, left alone where it differs from what would be made."""
    path, text = script_of(profile), render_script(profile)
    (path.parent / "logs").mkdir(parents=True, exist_ok=True)  # Slurm makes no folder for a log
    if not path.exists():
        path.write_text(text, encoding="utf-8")
        print(f"Wrote {shown(path)}.", flush=True)
    elif path.read_bytes() != text.encode():
        print(f"{shown(path)} was edited and is submitted as it stands; remove it to get a fresh one.", flush=True)
    return path


def _already(profile: Profile, asked: str) -> str | None:
    """The number of the job that makes this report already. UserError when one makes another of the same profile."""
    jobs = queued()
    for job in jobs:
        if job.asked == asked:
            print(f"Job {job.number} makes this report already: following it.", flush=True)
            return job.number
    for job in jobs:
        if job.name == f"labkit-{profile.name}":
            raise UserError(
                f"job {job.number} makes another report of {profile.name} ({job.asked or 'submitted by hand'}), and "
                f"two would write into one folder. Wait for it, or end it (`scancel {job.number}`), and run this again."
            )
    return None


def _whole(path: str) -> str:
    """A path that holds in whatever folder; what is no path (`digits`) stays."""
    return str(Path(path).expanduser().resolve()) if path and Path(path).expanduser().exists() else path


def _python() -> str:
    """PYTHON= for the job's make: what this one was given; without make, this interpreter."""
    given = os.environ.get("LABKIT_PYTHON", sys.executable)
    return "" if given == OWN_PYTHON else given
