"""`make lab`: JupyterLab on the project's folder, with notebooks that run in this interpreter and find labkit."""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys

from labkit.errors import UserError
from labkit.files import temporary_folder
from workbook.paths import ROOT
from workbook.report.execute import offer_kernel

FIRST = "notebooks/00_start_here.ipynb"
KERNEL = "python3"  # the name in the notebooks, and that of the kernel that JupyterLab starts by default


def start_lab(options: str) -> None:
    """Run JupyterLab until it is stopped. `options` is the text of its command line, quoted as in a shell.

    Raise UserError if this interpreter has no JupyterLab, or for a quotation mark without its counterpart.
    """
    if importlib.util.find_spec("jupyterlab") is None:
        raise UserError(
            f"{sys.executable} has no JupyterLab. Install it there (`{sys.executable} -m pip install jupyterlab`), or "
            "leave PYTHON= out, and `make lab` makes an environment that has it."
        )
    try:
        given = shlex.split(options)
    except ValueError as error:
        raise UserError(
            f"LAB={options!r} can't be read: {error}. Valid are options of JupyterLab, as in "
            'LAB="--no-browser --port 9000".'
        ) from error
    as_root = ["--allow-root"] if os.geteuid() == 0 else []  # in a container there often is no other user
    with temporary_folder() as folder:
        offer_kernel(folder, KERNEL, ["-m", "ipykernel_launcher"], title="Python 3")
        os.environ["JUPYTER_PATH"] = os.pathsep.join(filter(None, [str(folder), os.environ.get("JUPYTER_PATH")]))
        from jupyterlab.labapp import LabApp

        LabApp.launch_instance([f"--notebook-dir={ROOT}", *as_root, *given, str(ROOT / FIRST)])
