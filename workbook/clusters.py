"""`make report ON=<template>`: a report by a file of `clusters/`, whose slots are filled with quoted texts.

A shell template is run and awaited. A manifest, such as that of a Kubernetes Job, is written for the user to submit.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

from labkit.errors import UserError, unknown
from workbook.paths import ROOT, as_typed
from workbook.report.make import Request
from workbook.results import reports_folder
from workbook.slurm import checked, variables_of

CLUSTERS = ROOT / "clusters"
SLOTS = ("COMMAND", "PROFILE", "ARCHIVE")  # in a template as __COMMAND__
SLURM = "slurm"
# What the make that runs this has told its own commands: the report's make must not run elsewhere again.
_OF_THIS_MAKE = ("ON", "NODES", "FROM", "MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "MAKELEVEL")


def templates() -> dict[str, Path]:
    """Return the templates by the names that ON= takes."""
    return {path.stem: path for path in sorted(CLUSTERS.glob("*")) if path.suffix in (".sh", ".yaml")}


def check_on(on: str) -> None:
    """Raise UserError for a name that ON= does not take."""
    if on and on != SLURM and on not in templates():
        raise unknown("ON", on, [SLURM, *templates()], hint="A file of clusters/ is a further name.")


def archive_of(hw: str) -> Path:
    """Return where a template puts the records of a profile."""
    return reports_folder().absolute() / hw / "records.tar.gz"


def filled(template: Path, command: str, profile: str) -> str:
    """Return a template with its slots filled, each as one quoted text. Raise UserError for a slot that it lacks."""
    text = template.read_text(encoding="utf-8")
    if lacking := [slot for slot in SLOTS if f"__{slot}__" not in text]:
        raise UserError(
            f"{as_typed(template)} lacks __{lacking[0]}__; a template has the slots __COMMAND__, __PROFILE__ and "
            "__ARCHIVE__. clusters/shell.sh is an example."
        )
    values = dict(zip(SLOTS, (command, profile, str(archive_of(profile))), strict=True))
    quoted = shlex.quote if template.suffix == ".sh" else _quoted_in_manifest
    return re.sub(f"__({'|'.join(SLOTS)})__", lambda slot: quoted(values[slot[1]]), text)


def _quoted_in_manifest(text: str) -> str:
    """Return a text as a scalar of YAML, which JSON's texts are. Kubernetes reads `$(NAME)` in it, but not `$$`."""
    return json.dumps(text.replace("$", "$$"))


def report_by_template(request: Request, on: str) -> int:
    """Run a report by a shell template, or write the manifest of one; say where its records will be.

    Return the exit code of the template's shell, 0 for a manifest.
    """
    profile, template = checked(request, on), templates()[on]
    text = filled(template, shlex.join(["make", "report", f"HW={profile.name}", *variables_of(request)]), profile.name)
    script, archive = reports_folder() / profile.name / template.name, as_typed(archive_of(profile.name))
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(text, encoding="utf-8")
    if template.suffix != ".sh":
        print(f"Wrote {as_typed(script)}, whose first lines say how to submit it. It was not submitted.", flush=True)
        return 0
    environment = {name: value for name, value in os.environ.items() if name not in _OF_THIS_MAKE}
    code = subprocess.run(["bash", script], cwd=ROOT, env=environment).returncode
    print(f"{as_typed(script)} ended with exit code {code}. Its archive of records: {archive}", flush=True)
    return code
