"""Execute one notebook headlessly, and judge its success without papermill's metadata.

After a dead kernel or a timeout, papermill's metadata calls every cell completed. Success here means that no exception
was raised and every code cell has an execution count.
"""

from __future__ import annotations

import json
import logging
import math
import multiprocessing
import os
import re
import sys
import tempfile
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.errors import LabkitError, UserError, one_of
from labkit.files import python_path, temporary_folder
from workbook.registry import STUDIES
from workbook.report.kernel import INLINE, LOG_VARIABLE, ForkedKernel, managing
from workbook.results import REPORT_VARIABLE
from workbook.trials.trial import as_on_disk

SOCKET_FOLDER = 40  # characters of a folder below which a socket's path is short enough
START_TIMEOUT_S = 120
KERNEL = "labkit"


@dataclass(frozen=True)
class Execution:
    """How a notebook ended. `reason` is None on success; `user_mistake` says whether the user can mend the failure."""

    reason: str | None
    user_mistake: bool = False
    seconds: float = 0.0


def parameters_of(notebook: Path) -> dict[str, Any]:
    """Return the notebook's parameters and defaults, as papermill finds them in the cell tagged `parameters`."""
    import papermill

    parameters = papermill.inspect_notebook(str(notebook))
    return {name: entry["default"] for name, entry in parameters.items()}


def execute(
    notebook: Path, output: Path, parameters: dict[str, Any], *, timeout_s: float, log: Path | None = None
) -> Execution:
    """Run `notebook` with `parameters`, write `output` even if a cell fails, and return how the run ended.

    The kernel uses sockets in a private folder and not TCP, which other users of the host could reach. Raise UserError
    for an unknown parameter: papermill alone would only warn. KeyboardInterrupt ends the kernel and propagates. The
    kernel's own stderr goes to `log`.
    """
    import papermill
    from nbclient.exceptions import CellTimeoutError, DeadKernelError
    from papermill.exceptions import PapermillExecutionError
    from traitlets.config import Config

    check_study(notebook)
    valid = parameters_of(notebook)
    for name in parameters:
        one_of(f"parameter of {notebook.name}", name, valid)
    logging.getLogger("papermill").setLevel(logging.CRITICAL)  # this function reports a dead kernel
    # A process that renders one page has imported what its notebook does, and has started no thread of a library.
    forked = {"kernel_manager_class": managing(ForkedKernel())} if multiprocessing.parent_process() else {}
    with temporary_folder(_short_folder()) as sockets:  # each run needs a folder of its own
        of_log = {LOG_VARIABLE: str(log.resolve())} if log else {}
        # A folder without the user's IPython profile: its start-up files may change any number, text or path.
        own = {REPORT_VARIABLE: "1", "IPYTHONDIR": str(sockets / "ipython"), "MPLBACKEND": INLINE}
        offer_kernel(sockets, KERNEL, ["-c", LAUNCH], title=KERNEL, environment={**own, **of_log})
        os.environ["JUPYTER_PATH"] = str(sockets)
        try:
            papermill.execute_notebook(
                str(notebook),
                str(output),
                parameters=parameters,
                engine_name=_engine(),
                kernel_name=KERNEL,
                cwd=str(notebook.parent),
                progress_bar=False,
                start_timeout=START_TIMEOUT_S,
                execution_timeout=math.ceil(timeout_s),
                coalesce_streams=True,
                config=Config({"KernelManager": {"transport": "ipc", "ip": str(sockets / "k")}}),
                **forked,
            )
        except PapermillExecutionError as error:
            text, kinds = f"{error.ename}: {error.evalue}"[:2000], (UserError.__name__, "DataError")
            if error.ename in kinds:
                return Execution(text, user_mistake=True)
            first_line = (error.source.strip().splitlines() or [""])[0]
            return Execution(f"cell [{error.exec_count}], which begins with `{first_line}`: {text}")
        except DeadKernelError:
            return Execution("the notebook's kernel died; its last messages are in logs/")
        except CellTimeoutError:
            return Execution(f"a cell took longer than {timeout_s:.0f} s and was stopped")
        except KeyboardInterrupt:
            # The client's pending requests failed with the kernel, and asyncio would print them when it discards them.
            logging.getLogger("asyncio").setLevel(logging.CRITICAL)
            warnings.simplefilter("ignore", RuntimeWarning)  # of its coroutines that never ran
            raise
        except Exception as error:  # noqa: BLE001 - any error of papermill fails this study, not the report
            return Execution(f"the notebook could not be run: {type(error).__name__}: {error}"[:2000])
    skipped = sum(
        cell["cell_type"] == "code" and cell["execution_count"] is None and bool("".join(cell["source"]).strip())
        for cell in json.loads(output.read_text(encoding="utf-8"))["cells"]
    )
    return Execution(f"{skipped} code cells never ran" if skipped else None)


def _short_folder() -> str:
    """Return a folder for temporary files whose path leaves room for a socket's: about 100 characters in all.

    Raise UserError if no such folder can be written.
    """
    usual = (tempfile.gettempdir(), "/tmp", os.environ.get("XDG_RUNTIME_DIR", ""), "/dev/shm")  # noqa: S108 - private
    for folder in usual:
        if folder and len(folder) <= SOCKET_FOLDER and os.access(folder, os.W_OK | os.X_OK):
            return folder
    raise UserError(
        f"notebooks need a folder for sockets, and none of {', '.join(filter(None, usual))} is one: set TMPDIR to a "
        f"folder that can be written, with a path of at most {SOCKET_FOLDER} characters."
    )


def _engine() -> str:
    """Register an engine of papermill that saves the notebook once, at its end, and return the engine's name.

    Papermill's own engine saves it twice for each cell, which takes longer than most cells.
    """
    from papermill.engines import NBClientEngine, papermill_engines

    class SavingOnce(NBClientEngine):
        @classmethod
        def execute_managed_notebook(cls, nb_man: Any, kernel_name: str, **options: Any) -> None:
            path, nb_man.output_path = nb_man.output_path, None
            try:
                super().execute_managed_notebook(nb_man, kernel_name, **options)
            finally:
                nb_man.output_path = path  # papermill saves after this, also when a cell or the kernel failed

    papermill_engines.register(KERNEL, SavingOnce)
    return KERNEL


LAUNCH = "from workbook.report.kernel import run; run()"


def offer_kernel(
    folder: Path, name: str, launch: list[str], *, title: str, environment: dict[str, str] | None = None
) -> None:
    """Write a kernel that runs this interpreter with the arguments `launch`, for a `folder` of JUPYTER_PATH.

    Kernels there come before all others of the same name, which may belong to another environment.
    """
    specification = folder / "kernels" / name
    specification.mkdir(parents=True)
    argv = [sys.executable, *launch, "-f", "{connection_file}"]
    # The notebook runs in its own folder, where Python would not find a labkit that is not installed.
    variables = {"PYTHONPATH": python_path(), **(environment or {})}
    text = json.dumps({"argv": argv, "display_name": title, "language": "python", "env": variables})
    (specification / "kernel.json").write_text(text, encoding="utf-8")


def planned_trials(notebook: Path, parameters: dict[str, Any]) -> Any:
    """Return the trials that a notebook would measure: run its cells `imports`, `parameters` and `trials` here.

    The notebook stays the only definition of a study's trials. Raise LabkitError if one of these tags is missing, and
    UserError for sizes of the profile that make no valid trial.
    """
    check_study(notebook)
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
    return [as_on_disk(trial) for trial in names["trials"]]


def check_study(notebook: Path) -> None:
    """Raise UserError if a study's notebook opens another study, as a copy may, and would show its records."""
    opened = re.search(r'open_study\(\\"(\w+)\\"', notebook.read_text(encoding="utf-8"))
    if opened and notebook.stem in STUDIES and opened[1] != notebook.stem:
        raise UserError(
            f"{notebook.name} opens the study {opened[1]!r}, whose records it would show; write "
            f'`workbook.open_study("{notebook.stem}", …)` in its cell.'
        )


def _of_sizes(error: Exception, notebook: Path, parameters: dict[str, Any]) -> UserError:
    """Return the error of a cell as a mistake in the profile's sizes, the only user input of these cells."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(last.filename).name}, line {last.lineno}"
    return UserError(
        f"{notebook.stem} can make no configurations from the sizes under `sweeps:` in "
        f"params/{parameters.get('hw')}.yaml (or a file that "
        f"it extends) at {parameters.get('scale')}: {type(error).__name__} {error} ({where}). A name is "
        f"unknown, or a value has another type than in the profiles of this version. If you changed no sizes, please "
        f"report this."
    )
