"""The sbatch script of a profile: written once, readable, the user's to edit.

It depends on the profile alone. What a report is asked for (STUDY, SCALE, DATA ...) comes to it as arguments, so an
edited script serves every report of its profile, and no value of a variable ever stands in shell text. It is for one
node; more are asked for beside it, when it is submitted.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from labkit.errors import UserError
from labkit.places import ROOT
from labkit.profile import Profile
from labkit.results import reports_folder

# What stands in a #SBATCH line must not end it, start a comment in it or open a quotation.
_PLAIN = re.compile(r"[\w.,:;@+=~/%&|*()\[\]-]*")

BODY = """
set -eu
# The job must not submit itself, nor take over what the submitting `make` was told.
unset ON NODES MAKEFLAGS MFLAGS MAKELEVEL
# Requeued (a node failed, the job was preempted), it goes on where it was instead of measuring anew.
[ "${SLURM_RESTART_COUNT:-0}" = 0 ] || set -- "$@" FORCE=
exec make report HW=@NAME@ "$@"
"""


def report_of(profile: Profile) -> Path:
    """The folder of a profile's report."""
    return reports_folder() / profile.name


def script_of(profile: Profile) -> Path:
    """Where a profile's script stands."""
    return report_of(profile) / "slurm.sh"


def shown(path: Path) -> str:
    """A path as it is typed in the folder of the Makefile, where jobs are submitted."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def render_script(profile: Profile) -> str:
    """The script for one node of a profile. UserError for a value of `cluster:` that no #SBATCH line can hold."""
    # The whole machine, all of its memory (mem=0) too: a neighbour would be measured with it.
    options = {"job-name": f"labkit-{profile.name}", "nodes": "1", "ntasks": "1", "exclusive": "", "mem": "0"}
    cluster = profile.cluster
    gpus = profile.device.count if profile.device.kind == "cuda" else 0
    if cluster is not None:
        gpus = cluster.gpus_per_node or gpus
        options |= {"partition": cluster.partition} if cluster.partition else {}
        options |= {"account": cluster.account} if cluster.account else {}
        options |= {"constraint": cluster.constraint} if cluster.constraint else {}
    options |= {"gres": f"gpu:{gpus}"} if gpus else {}
    if cluster is not None:
        options["time"] = str(-(-cluster.time_limit_s // 60))  # Slurm counts in minutes
    # Appended: a requeued job has the same number, and what it said before is part of the story.
    options |= {"requeue": "", "open-mode": "append", "output": _log_pattern(profile)}
    lines = [
        "#!/bin/bash",
        f"# Written by `make report ON=slurm HW={profile.name}`, and yours to edit: it is submitted as it stands until",
        f"# you remove it. Its settings come from `cluster:` in params/{profile.name}.yaml.",
        "# By hand, beside the Makefile:",
        f"#   sbatch {shown(script_of(profile))} STUDY=training SCALE=smoke",
    ]
    if cluster is None:
        lines.append(
            "# Without `cluster:` partition and time limit are Slurm's own; submitted again, a report goes on."
        )
    lines += [_line(profile, name, value) for name, value in options.items()]
    return "\n".join(lines) + "\n" + BODY.replace("@NAME@", shlex.quote(profile.name))


def _line(profile: Profile, name: str, value: str) -> str:
    if not _PLAIN.fullmatch(value):
        raise UserError(
            f"Slurm can't be told {name} {value!r}: it may hold letters, digits and ordinary punctuation, no spaces or "
            f"quotes; mend `cluster:` in params/{profile.name}.yaml, or set LABKIT_REPORTS to another folder."
        )
    return f"#SBATCH --{name}={value}" if value else f"#SBATCH --{name}"


def _log_pattern(profile: Profile) -> str:
    logs = report_of(profile) / "logs"
    return shown(logs).replace("%", "%%") + "/slurm-%j.log"  # %j is the job's number
