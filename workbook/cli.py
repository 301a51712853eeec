"""The command line, which the Makefile calls: `labkit report|render|compare|plan|predict|pack|collect|sweep|lab|…`.

Exit codes: 0; 1 if a study failed; 2 for a user's mistake, with one message and no traceback.
"""

from __future__ import annotations

from workbook.lifetime import INTERRUPTED, exit_interrupted, exit_on_request, requested, unwind_on_request

if __name__ == "__main__":
    exit_on_request()  # Ctrl-C within an import would print a traceback

import errno
import inspect
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from labkit.errors import LabkitError, UserError, unknown
from labkit.files import users_path
from workbook.home import replace_unwritable_folders
from workbook.registry import check_scale

if TYPE_CHECKING:
    from workbook.report.make import Request

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
data_app = typer.Typer(no_args_is_help=True, help="What DATA= names.")
app.add_typer(data_app, name="data")

Hw = Annotated[
    str, typer.Option("--hw", envvar="HW", help="Profile: a file of params/ without its ending; several for sweep.")
]
StudyName = Annotated[str, typer.Option("--study", envvar="STUDY", help="Studies, comma-separated; empty = all.")]
Scale = Annotated[str, typer.Option("--scale", envvar="SCALE", help="smoke, quick or full.")]
Data = Annotated[
    str,
    typer.Option("--data", envvar="DATA", help="A folder with images, or synthetic32 or digits."),
]
Weights = Annotated[
    str, typer.Option("--weights", envvar="WEIGHTS", help="A folder with a GPU's trained weights, or torchvision's.")
]
Reuters = Annotated[str, typer.Option("--reuters", envvar="REUTERS", help="Keras's reuters.npz.")]
Network = Annotated[
    str,
    typer.Option("--network", envvar="NETWORK", help="A network of yours: mine.py, torchvision:vit_b_16, timm:name."),
]
Batch = Annotated[str, typer.Option("--batch", envvar="BATCH", help="Batch sizes of --network: 32,256.")]
Force = Annotated[str, typer.Option("--force", envvar="FORCE", help="1 = measure anew; old records are moved aside.")]
Again = Annotated[str, typer.Option("--force", envvar="FORCE", help="1 = also make the pages that are unchanged.")]
KeepTraces = Annotated[
    str,
    typer.Option("--keep-traces", envvar="KEEP_TRACES", help="1 = keep a file of each trace, for Perfetto."),
]
Time = Annotated[str, typer.Option("--time", envvar="TIME", help="No further round after it: 45m, 1h30m.")]
On = Annotated[str, typer.Option("--on", envvar="ON", help="slurm, or a file of clusters/: shell (needs HW).")]
Nodes = Annotated[str, typer.Option("--nodes", envvar="NODES", help="How many nodes, with --on; the default is 1.")]
Baseline = Annotated[str, typer.Option("--baseline", envvar="BASELINE", help="The profile to compare with.")]

FOLDERS = ("LABKIT_REPORTS", "LABKIT_CACHE", "XDG_CACHE_HOME", "XDG_STATE_HOME", "WEIGHTS", "REUTERS", "TMPDIR")
FULL = (errno.ENOSPC, errno.EDQUOT)
NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EEXIST, errno.ELOOP)


def _asked(
    hw: Hw = "",
    study: StudyName = "",
    scale: Scale = "quick",
    data: Data = "",
    force: Force = "",
    weights: Weights = "",
    reuters: Reuters = "",
    network: Network = "",
    batch: Batch = "",
    keep_traces: KeepTraces = "",
    time: Time = "",
    on: On = "",
    nodes: Nodes = "",
) -> tuple[Any, str, int]:
    from workbook.report.make import Request

    request = Request(
        hw=hw,
        study=study,
        scale=check_scale(scale or "quick"),
        data=data,
        force=_is_on("FORCE", force),
        weights=weights,
        reuters=reuters,
        network=network,
        batches=batch,
        keep_traces=_is_on("KEEP_TRACES", keep_traces),
        time_s=_seconds(time) if time else None,
    )
    return request, on, _nodes(on, nodes)


def _with_options_of_a_report(command: Callable[[Request, str, int], None]) -> Callable[..., None]:
    """Return the command with the options of `_asked`, which it gets as a request, a place and a number of nodes."""

    def run(**options: str) -> None:
        command(*_asked(**options))

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = _asked.__annotations__
    run.__signature__ = inspect.signature(_asked, eval_str=True)  # type: ignore[attr-defined]
    return run


def _is_on(name: str, value: str) -> bool:
    if value not in ("", "0", "1"):
        raise unknown(name, value, ["0", "1"])
    return value == "1"


def _seconds(time: str) -> float:
    parts = re.fullmatch(r"(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?", time, flags=re.ASCII)
    seconds = (
        sum(int(part or 0) * unit for part, unit in zip(parts.groups(), (3600, 60, 1), strict=True)) if parts else 0
    )
    if not seconds:
        raise UserError(f"TIME={time} is no time; valid: hours, minutes and seconds, such as 45m, 1h30m or 90s.")
    return float(seconds)


def _nodes(on: str, nodes: str) -> int:
    from workbook.clusters import SLURM, check_on

    check_on(on)
    if nodes and on != SLURM:
        raise UserError("NODES= needs ON=slurm: without it, labkit measures one machine alone.")
    if nodes and not re.fullmatch(r"0*[1-9][0-9]{0,5}", nodes):
        raise UserError(f"NODES={nodes} is no number of nodes; valid: 1, 2 and so on, up to what Slurm may allocate.")
    return int(nodes or 1)


@app.command()
@_with_options_of_a_report
def report(request: Request, on: str, nodes: int) -> None:
    """Measure on this machine what has no record yet, and render the site."""
    from workbook.report.make import make_report

    if on:
        from workbook.clusters import SLURM, report_by_template
        from workbook.slurm import report_on_slurm

        raise typer.Exit(report_on_slurm(request, nodes=nodes) if on == SLURM else report_by_template(request, on))
    raise typer.Exit(make_report(request))


@app.command()
@_with_options_of_a_report
def sweep(request: Request, on: str, nodes: int) -> None:
    """Make one report per profile elsewhere, bring their records together, and compare them."""
    from workbook.sweep import sweep as swept

    raise typer.Exit(swept(request, on, nodes=nodes))


@app.command()
def render(hw: Hw = "", study: StudyName = "", scale: Scale = "quick", force: Again = "") -> None:
    """Render the site of a profile, or without HW= those of all recorded profiles, without measuring."""
    from workbook.report.make import make_render

    raise typer.Exit(make_render(_asked(hw, study, scale, force=force)[0]))


@app.command()
def compare(baseline: Baseline = "") -> None:
    """Show all recorded profiles side by side (20_comparison)."""
    from workbook.report.compare import make_compare

    raise typer.Exit(make_compare(baseline))


@app.command()
@_with_options_of_a_report
def plan(request: Request, on: str, _: int) -> None:
    """List the trials that a report would run, which are unsupported, and the time. The hardware may be elsewhere."""
    from workbook.clusters import SLURM
    from workbook.hardware.matching import mismatch
    from workbook.report.make import make_plan
    from workbook.report.plan import line_of_rounds
    from workbook.slurm import checked, write_script

    session, plans = make_plan(request, elsewhere=True)
    elsewhere = mismatch(session.profile, session.host) is not None
    for study_plan in plans:
        print(study_plan.line())
        print(*study_plan.lines_of_trials(elsewhere=elsewhere), sep="\n")
    print(line_of_rounds(plans))
    if on == SLURM:
        print(f"`make report ON=slurm` submits {write_script(checked(request, on))}, which you may edit first.")


@app.command()
def predict(
    hw: Hw = "",
    source: Annotated[str, typer.Option("--from", envvar="FROM", help="The profile whose records are used.")] = "h200",
    study: Annotated[str, typer.Option(envvar="STUDY", help="The study whose records are used.")] = "profile",
) -> None:
    """Predict the step times of recorded configurations on a device, with 80 % intervals, or say why not."""
    from workbook.prediction.lines import lines_of

    for line in lines_of(hw, source, study or "profile"):
        print(line)


@app.command()
def appendix(hw: Hw = "") -> None:
    """Write the artifact appendix of a profile: machines, records, and the command and time of each claim."""
    from workbook.paths import as_typed
    from workbook.report.appendix import write_appendix

    print(f"Wrote {as_typed(write_appendix(hw))}.")


@app.command()
def pack(hw: Hw = "") -> None:
    """Compress the records of a profile for a commit. The next measurement unpacks them again."""
    from workbook.report.keep import pack_records

    for sentence in pack_records(hw):
        print(sentence)


@app.command()
def collect(
    source: Annotated[str, typer.Option("--from", envvar="FROM", help="A folder of reports, or an archive.")] = "",
    hw: Hw = "",
) -> None:
    """Check records that were made elsewhere, and merge them into the reports here."""
    from workbook.collect import collect as collected

    for sentence in collected(source, hw):
        print(sentence)


@app.command()
def lab(
    options: Annotated[str, typer.Option("--options", envvar="LAB", help='Options of JupyterLab: "--port 9000".')] = "",
) -> None:
    """Run JupyterLab on the project's folder."""
    from workbook.lab import start_lab

    start_lab(options)


@app.command()
def profile() -> None:
    """Write a params/<name>.yaml for this machine's hardware."""
    from workbook.hardware.host import this_host
    from workbook.report.generate import write_profile

    path = write_profile(this_host())
    print(f"Wrote params/{path.name}. Add the nominal peaks from the data sheet, then: make report HW={path.stem}")


@app.command()
def doctor() -> None:
    """Show this machine's hardware and packages, the profiles that match, and how to install what is missing."""
    from workbook.doctor import examine

    marks = {True: "ok  ", False: "FIX ", None: "note"}
    broken = 0
    for fine, sentence in examine():
        broken += fine is False
        print(f"{marks[fine]} {sentence}")
    raise typer.Exit(1 if broken else 0)


@app.command()
def trace(
    files: Annotated[
        list[str], typer.Argument(help="Traces of PyTorch's profiler, .json or .json.gz.", show_default=False)
    ],
) -> None:
    """Summarise traces of PyTorch's profiler: kernels by class, gaps, copies, calls, sections."""
    from workbook.results.from_trace import sentence, tables
    from workbook.trace import analyse

    for number, file in enumerate(files):
        traced = analyse(file)
        print(f"{chr(10) if number else ''}{file}: {sentence(traced)}")
        for title, table in tables(traced).items():
            print(f"\n{title}\n{table.to_string(index=False, float_format='{:.4g}'.format)}")
        if traced.notes:
            print("\nNotes")
        for note in traced.notes:
            print(f"- {note[0].upper()}{note[1:]}.")


@data_app.command("check")
def data_check(
    path: Annotated[str, typer.Argument(envvar="DATA", help="A folder, or synthetic32 or digits.")] = "",
) -> None:
    """Say what DATA= names and which studies can use it; or say why none can."""
    from workbook.datasets import described

    if not path:
        raise UserError("say which folder to check: `labkit data check /folder`, or `make data-check DATA=/folder`.")
    for sentence in described(path):
        print(sentence)


def main() -> None:
    """Run the command line and turn errors into exit codes."""
    try:
        unwind_on_request()
        _make_paths_absolute()
        if moved := replace_unwritable_folders():
            print(f"labkit: {moved}", file=sys.stderr)
        code = app(standalone_mode=False)
    except LabkitError as error:
        print(f"labkit: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except (Exception, KeyboardInterrupt) as error:
        # Libraries may raise another error from an interruption, and a closed terminal adds its own.
        if requested() or isinstance(error, (KeyboardInterrupt, typer.Abort)):
            exit_interrupted()
        # Usage errors of Typer and Click have no common base class across versions, but all have this method.
        if hasattr(error, "format_message"):
            message = str(error.format_message())
            hint = " `labkit --help` lists the commands." if message.startswith("No such command") else ""
            why: str | None = f"{message}{hint}"
        else:
            why = _why_not_written(error) if isinstance(error, OSError) else None
        if why is None:
            raise
        print(f"labkit: {why or 'give one of these commands.'}", file=sys.stderr)
        sys.exit(2)
    if code == INTERRUPTED:  # newer versions of Typer return it instead of raising
        exit_interrupted()
    sys.exit(code if isinstance(code, int) else 0)


def _make_paths_absolute() -> None:
    """Expand the folders that variables name, once: notebooks and workers run in other folders than this command."""
    for name in FOLDERS:
        if given := os.environ.get(name):
            os.environ[name] = str(users_path(given).absolute())


def _why_not_written(error: OSError) -> str | None:
    """Return why reports cannot be written: a full disk, or a folder without permission. None for other errors."""
    from workbook.results import reports_folder

    folder = reports_folder()
    if error.errno in FULL:
        return (
            f"the disk is full ({error.filename or folder}). Finished measurements are kept. Free space, and run the "
            f"same command again (without FORCE=1), which continues."
        )
    place = Path(str(error.filename))
    is_lacking = error.errno == errno.ENOENT and folder.is_relative_to(place)  # a parent that can't be made
    if is_lacking or (error.errno in NOT_WRITABLE and (place.is_relative_to(folder) or folder.is_relative_to(place))):
        why = "a file or a lost link is in its place" if error.errno == errno.EEXIST else error.strerror
        return (
            f"{error.filename} can't be written ({why}). Make it writable, or set LABKIT_REPORTS to a "
            f"folder that is, and run the same command again."
        )
    return None


if __name__ == "__main__":
    main()
