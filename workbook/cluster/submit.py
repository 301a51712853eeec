"""`make report ON=slurm`: writes the profile's script or keeps the user's, submits it once and follows the job."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from labkit.data import refuse_address
from labkit.errors import UserError
from workbook.cluster.script import render_script
from workbook.cluster.slurm import POLL_S, NotCompleted, follow, queued_number, submit
from workbook.hardware.profile import Profile, load_profile
from workbook.paths import as_typed
from workbook.report.make import Request
from workbook.report.plan import chosen_studies
from workbook.results import reports_folder

OWN_PYTHON = ".venv/bin/python"  # the Makefile's choice without PYTHON=


def report_on_slurm(request: Request, *, nodes: int = 1, poll_s: float = POLL_S) -> int:
    """Submit a report, or find the job that already makes it, and follow that job. Return 0 once it has completed.

    Raise UserError for a mistake that shows before the job, and NotCompleted if the job does not complete.
    """
    if not request.hw:
        raise UserError("ON=slurm needs HW=, the profile of the node, for example `make report ON=slurm HW=h100`.")
    profile = load_profile(request.hw)
    if not profile.runnable:
        raise UserError(f"profile {profile.name!r} can't be measured: {profile.reason}")
    profile.timing_at(request.scale)
    chosen_studies(request.study)
    refuse_address(request.data)  # before it stands in the job's comment, which everybody reads
    variables = variables_of(request)
    # The comment identifies the report, so FORCE=1 is not part of it. It is one line, because squeue prints one.
    several = f" NODES={nodes}" if nodes > 1 else ""
    command = f"make report {shlex.join([f'HW={profile.name}', *variables])}{several}"
    comment = " ".join(command.replace(" FORCE=1", "").split())
    number = queued_number(f"labkit-{profile.name}", comment)
    if number is not None:
        print(f"Job {number} makes this report already: following it.", flush=True)
    else:
        script = _write_script(profile)
        number = submit(script, variables, comment=comment, nodes=nodes)
        print(f"Submitted {script} as job {number}. Ctrl-C stops following it, `scancel {number}` cancels it.")
    try:
        follow(number, poll_s=poll_s)
    except KeyboardInterrupt:
        hint = f"The same command follows it again, `scancel {number}` cancels it."
        raise NotCompleted(f"job {number} continues. {hint}", exit_code=130) from None
    print(f"job {number} completed: {as_typed(reports_folder() / profile.name / 'index.html')}", flush=True)
    return 0


def variables_of(request: Request) -> list[str]:
    """Return the variables of the job's `make` as `NAME=value`, with absolute paths for files of this machine."""
    paths = {"DATA": request.data, "WEIGHTS": request.weights, "REUTERS": request.reuters}
    python = os.environ.get("LABKIT_PYTHON", sys.executable)
    variables = {
        "STUDY": request.study,
        "SCALE": request.scale,
        **{name: str(Path(path).resolve()) if path and Path(path).exists() else path for name, path in paths.items()},
        "FORCE": "1" if request.force else "",
        "KEEP_TRACES": "1" if request.keep_traces else "",
        "TIME": f"{request.time_s:.0f}s" if request.time_s else "",
        **{name: os.environ.get(name, "") for name in ("TORCH_INDEX", "TF_PYTHON", "JAX_PYTHON")},
        "PYTHON": "" if python == OWN_PYTHON else python,
    }
    return [f"{name}={value}" for name, value in variables.items() if value]


def _write_script(profile: Profile) -> str:
    """Write the profile's script if there is none, keep an edited one, and return its path as the user types it."""
    script, text = reports_folder() / profile.name / "slurm.sh", render_script(profile)
    (script.parent / "logs").mkdir(parents=True, exist_ok=True)  # Slurm makes no folder for a log
    if not script.exists():
        script.write_text(text, encoding="utf-8")
    elif script.read_bytes() != text.encode():
        print(f"{as_typed(script)} was edited and is submitted as it stands; remove it to get a fresh one.", flush=True)
    return as_typed(script)
