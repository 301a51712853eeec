"""Execute one notebook headlessly, and judge by what happened rather than by what its metadata says.

After a dead kernel or a timeout papermill's output calls every cell completed, so success here means: no exception, and
every code cell has an execution count.
"""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import sys
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.errors import LabkitError, UserError, unknown
from labkit.hardware.frameworks import path_of_workers

START_TIMEOUT_S = 120
KERNEL = "labkit"


@dataclass(frozen=True)
class Execution:
    """How a notebook ended: `reason` is None when it ran through; `user_mistake` when the user can mend it."""

    reason: str | None
    user_mistake: bool = False


def parameters_of(notebook: Path) -> dict[str, Any]:
    """The notebook's parameters and their defaults, as papermill finds them in the cell tagged `parameters`."""
    import papermill

    found = papermill.inspect_notebook(str(notebook))
    return {name: entry["default"] for name, entry in found.items()}


def execute(
    notebook: Path, output: Path, parameters: dict[str, Any], *, timeout_s: float, log: Path | None = None
) -> Execution:
    """Run `notebook` with `parameters` into `output` (which appears even when a cell fails).

    The kernel talks over sockets in a private folder, not over TCP, which other users of the host could reach. An
    unknown parameter is an error: papermill alone would only warn. KeyboardInterrupt ends the kernel and passes on.
    What the kernel itself complains of goes to `log`.
    """
    import papermill
    from nbclient.exceptions import CellTimeoutError, DeadKernelError
    from papermill.exceptions import PapermillExecutionError
    from traitlets.config import Config

    valid = parameters_of(notebook)
    for name in parameters:
        if name not in valid:
            raise unknown(f"parameter of {notebook.name}", name, valid)
    logging.getLogger("papermill").setLevel(logging.CRITICAL)  # a kernel that died is this function's to tell
    # Unix socket paths may have about 100 characters, and two runs need two prefixes.
    sockets = Path(tempfile.mkdtemp(prefix="lk-", dir="/tmp"))
    _offer_kernel(sockets, log)
    try:
        papermill.execute_notebook(
            str(notebook),
            str(output),
            parameters=parameters,
            kernel_name=KERNEL,
            cwd=str(notebook.parent),
            progress_bar=False,
            start_timeout=START_TIMEOUT_S,
            execution_timeout=math.ceil(timeout_s),
            coalesce_streams=True,
            config=Config({"KernelManager": {"transport": "ipc", "ip": str(sockets / "k")}}),
        )
    except PapermillExecutionError as error:
        kinds = (UserError.__name__, "DataError")
        return Execution(f"{error.ename}: {error.evalue}"[:2000], user_mistake=error.ename in kinds)
    except DeadKernelError:
        return Execution("the notebook's kernel died; what it said last is in logs/")
    except CellTimeoutError:
        return Execution(f"a cell took longer than {timeout_s:.0f} s and was stopped")
    except KeyboardInterrupt:
        # What the client still waited for has failed with the kernel, and asyncio would print that as it is forgotten.
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        raise
    except Exception as error:  # noqa: BLE001 - whatever the machinery raises is this study's failure, not the report's
        return Execution(f"the notebook could not be run: {type(error).__name__}: {error}"[:2000])
    finally:
        shutil.rmtree(sockets, ignore_errors=True)
    skipped = _never_ran(output)
    return Execution(f"{skipped} code cells never ran" if skipped else None)


# The kernel's own stderr is no part of a cell's output: an interrupted kernel writes tracebacks there.
LAUNCH = """
import os, sys
if log := os.environ.get("LABKIT_KERNEL_LOG"):
    os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644), 2)
from ipykernel import kernelapp
kernelapp.launch_new_instance()
"""


def _offer_kernel(folder: Path, log: Path | None) -> None:
    """A kernel of this very interpreter: one called `python3` may be the user's own, from another environment."""
    specification = folder / "kernels" / KERNEL
    specification.mkdir(parents=True)
    argv = [sys.executable, "-c", LAUNCH, "-f", "{connection_file}"]
    # The notebook runs in its own folder, where an uninstalled labkit would not be found.
    environment = {"PYTHONPATH": path_of_workers(), **({"LABKIT_KERNEL_LOG": str(log.resolve())} if log else {})}
    text = json.dumps({"argv": argv, "display_name": "labkit", "language": "python", "env": environment})
    (specification / "kernel.json").write_text(text, encoding="utf-8")
    os.environ["JUPYTER_PATH"] = str(folder)


def _never_ran(notebook: Path) -> int:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return sum(
        cell["cell_type"] == "code" and cell["execution_count"] is None and bool("".join(cell["source"]).strip())
        for cell in cells
    )


def planned_trials(notebook: Path, parameters: dict[str, Any]) -> Any:
    """The trials a notebook would measure: its cells tagged `imports`, `parameters` and `trials`, run in this process.

    The notebook stays the one place that says what a study measures. LabkitError when it lacks one of those cells,
    UserError for sizes of the profile that no trial can be made of.
    """
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    names: dict[str, Any] = {"__name__": "__labkit_plan__"}
    for tag in ("imports", "parameters", "trials"):
        tagged = [cell for cell in cells if tag in cell["metadata"].get("tags", [])]
        if not tagged:
            raise LabkitError(f"{notebook.name} has no cell tagged {tag!r}: a study needs one.")
        for cell in tagged:
            code = compile("".join(cell["source"]), f"{notebook.name}:{tag}", "exec")
            try:
                exec(code, names)  # noqa: S102 - our notebooks
            except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
                raise _of_sizes(error, notebook, parameters) from error
        if tag == "parameters":
            names.update(parameters)
    if "trials" not in names:
        raise LabkitError(f"{notebook.name}: the cell tagged 'trials' must assign `trials`.")
    return names["trials"]


def _of_sizes(error: Exception, notebook: Path, parameters: dict[str, Any]) -> UserError:
    """What a cell stumbled over: sizes are the only thing in it that a user writes."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(last.filename).name}, line {last.lineno}"
    return UserError(
        f"{notebook.stem} can make no trials of the sizes under `sweeps:` in params/{parameters.get('hw')}.yaml (or "
        f"what that extends) at {parameters.get('scale')}: {type(error).__name__} {error} ({where}). A name there is "
        f"unknown, or a value of another kind than in the profiles that came with this version; if you changed none, "
        f"please report this."
    )
