"""The sbatch script of a profile: written once, readable, and the user's to edit.

The script depends on the profile alone. A report's variables (STUDY, SCALE, DATA ...) are arguments of the script. So
an edited script serves every report of its profile, and no value of a variable ever stands in shell text.
"""

from __future__ import annotations

import re
import shlex

from labkit.errors import UserError
from workbook.hardware.profile import Cluster, Profile
from workbook.paths import as_typed
from workbook.results import reports_folder

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
