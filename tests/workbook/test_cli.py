"""A user's mistake gets one sentence that says what is valid, and exit code 2. No value of a variable is executed."""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from tests.commands import MADE_BY_MAKE
from tests.processes import frameworks_after
from tests.workbook.test_site import passes_of, put
from workbook.cli import _make_paths_absolute, main
from workbook.paths import ROOT

MAKE_VARIABLES = (
    *("HW", "STUDY", "SCALE", "DATA", "FORCE", "WEIGHTS", "REUTERS", "KEEP_TRACES", "ON", "NODES", "BASELINE"),
)


def labkit(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in this process, since a new one costs seconds. Return its exit code and output."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        for name in MAKE_VARIABLES:
            patch.delenv(name, raising=False)
        for name, value in variables.items():
            patch.setenv(name, value)
        patch.setattr(sys, "argv", ["labkit", *arguments])
        patch.setattr("workbook.cli.unwind_on_request", lambda: None)
        with pytest.raises(SystemExit) as ended:
            main()
    return subprocess.CompletedProcess(["labkit", *arguments], ended.value.code, out.getvalue(), err.getvalue())


def labkit_process(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a new process. Return its exit code and output."""
    environment = {name: value for name, value in os.environ.items() if name not in MAKE_VARIABLES}
    return subprocess.run(
        [sys.executable, "-m", "workbook.cli", *arguments],
        capture_output=True,
        text=True,
        env={**environment, **variables},
        cwd=ROOT,
    )


def assert_refused(done: subprocess.CompletedProcess[str], *said: str) -> None:
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    assert done.stderr.startswith("labkit: ")
    assert len(done.stderr.strip().splitlines()) == 1, "one message"
    for part in said:
        assert part in done.stderr


def has_nvidia_gpu() -> bool:
    return Path("/proc/driver/nvidia/version").exists()


@pytest.mark.skipif(has_nvidia_gpu(), reason="this machine has an NVIDIA GPU")
def test_absent_hardware_is_refused_with_the_next_steps() -> None:
    done = labkit("report", "--hw", "p100_16gb")
    assert_refused(done, "P100", "this machine has", "`make report HW=cpu`", "`make render HW=p100_16gb`")


@pytest.mark.skipif(has_nvidia_gpu(), reason="this machine has an NVIDIA GPU")
def test_a_plan_for_absent_hardware_says_that_this_machine_cannot_run_it() -> None:
    done = labkit("plan", "--hw", "h200", "--study", "power", "--scale", "smoke")
    assert (done.returncode, done.stderr) == (0, "")
    first, *_, last = done.stdout.splitlines()
    assert "H200 SXM" in first and "04_power" in done.stdout and last.startswith("Together ")
    assert_refused(labkit("plan", "--hw", "k80"), "k80", "can't be measured")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["report", "--hw", "nope"], ["unknown HW 'nope'", "h200", "cpu", "make profile"]),
        (["report", "--hw", "cpu", "--study", "nope"], ["unknown study 'nope'", "01_training", "20_comparison"]),
        (["report", "--hw", "cpu", "--scale", "huge"], ["unknown scale 'huge'", "smoke", "quick", "full"]),
        (["report", "--hw", "cpu", "--data", "/no/such/folder"], ["/no/such/folder", "synthetic32", "val_data"]),
        (["report", "--hw", "k80"], ["k80", "compute capability", "make render HW=k80"]),
        (["report", "--on", "slurm"], ["needs HW=", "make report ON=slurm HW=h100"]),
        (["report", "--on", "slum"], ["unknown ON 'slum'", "slurm"]),
        (["report", "--on", "slurm", "--hw", "nope"], ["unknown HW 'nope'"]),
        (["report", "--on", "slurm", "--hw", "k80"], ["k80", "can't be measured"]),
        (["report", "--on", "slurm", "--hw", "cpu", "--nodes", "two"], ["NODES=two", "no number"]),
        (["report", "--nodes", "2"], ["NODES=", "ON=slurm"]),
        (["plan", "--nodes", "2"], ["NODES=", "ON=slurm"]),
        (["plan", "--on", "slurmm"], ["unknown ON 'slurmm'", "slurm"]),
        (["plan", "--time", "soon"], ["TIME=soon", "45m"]),
        (["report", "--force", "maybe"], ["FORCE", "0, 1"]),
        (["report", "--keep-traces", "yes"], ["KEEP_TRACES", "0, 1"]),
        (["report", "--hw", "cpu", "--weights", "/nowhere"], ["WEIGHTS=/nowhere", "not a folder", "<model>-<px>px-"]),
        (["plan", "--hw", "cpu", "--weights", "/"], ["WEIGHTS=/", "holds no weights", "<model>-<px>px-"]),
        (["plan", "--hw", "cpu", "--weights", "~nobody-here/w"], ["~nobody-here/w", "home folder of a user"]),
        (["plan", "--hw", "cpu", "--reuters", "/no/reuters.npz"], ["REUTERS=/no/reuters.npz", "no file", "Keras's"]),
        (["render"], ["no profile has records", "make report"]),
        (["data", "check"], ["which folder"]),
        (["data", "check", "/bin"], ["no study can use DATA=/bin", "/bin holds"]),
        (["report", "--hw", "cpu", "--data", "gs://bucket/a.tar"], ["is an address", "labkit reads folders"]),
        (["report", "--on", "slurm", "--hw", "cpu", "--data", "ftp://a:b@c/d"], ["is an address"]),
        (["report", "--colour"], ["--colour"]),
        (["reprot"], ["reprot"]),
        (["report", "--hw", "cpu", "--study", "comparison"], ["measures nothing", "`make compare`"]),
        (["render", "--hw", "h200", "--study", "training,20_comparison"], ["measures nothing", "`make compare`"]),
        (["compare"], ["no records to compare", "`make report`"]),
        (["compare", "h200"], ["h200"]),
        (["data"], ["give one of these commands"]),
        (["pack", "--hw", "l40s"], ["no records of l40s"]),
        (["predict", "--hw", "l40s", "--from", "h2000"], ["unknown FROM 'h2000'", "h200"]),
    ],
)
def test_each_mistake_gets_one_clear_sentence(arguments: list[str], said: list[str]) -> None:
    assert_refused(labkit(*arguments), *said)


@pytest.mark.parametrize(
    ("command", "variable", "value", "said"),
    [
        ("plan", "TF_PYTHON", "/nowhere/python", ["TF_PYTHON=/nowhere/python is no program"]),
        ("plan", "JAX_PYTHON", "/etc/passwd", ["JAX_PYTHON=/etc/passwd is no program"]),
        ("render", "LABKIT_REPORTS", "/proc/reports", ["/proc/reports can't be written", "set LABKIT_REPORTS"]),
        ("appendix", "LABKIT_REPORTS", "/proc/1/mine/reports", ["/proc/1/mine can't be written"]),
    ],
)
def test_a_wrong_path_gets_one_sentence(command: str, variable: str, value: str, said: list[str]) -> None:
    done = labkit(command, "--hw", "cpu", **{variable: value})
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert all(part in done.stderr.splitlines()[-1] for part in said)


@pytest.fixture
def two_profiles() -> Path:
    """Return the folder of reports, with records of two profiles."""
    reports = Path(os.environ["LABKIT_REPORTS"])
    for hw, host in (("h100", "c" * 12), ("h200", "a" * 12)):
        put(reports, hw, passes_of(host=host))
    return reports


@pytest.mark.parametrize("name", ["h20", "cpu", "../h200", "$(touch marker)"])
def test_a_baseline_without_records_is_refused_with_the_valid_ones(two_profiles: Path, name: str) -> None:
    done = labkit("compare", "--baseline", name)
    assert_refused(done, f"unknown BASELINE {name!r}; valid: ", "h100", "h200")
    if name == "h20":
        assert done.stderr.index("h200") < done.stderr.index("h100"), "the nearest name comes first"
    assert "k40m" not in done.stderr, "a profile without records is not valid"
    assert not (two_profiles / "comparison").exists()


def test_the_baseline_may_come_from_the_environment_and_an_empty_one_is_ignored(two_profiles: Path) -> None:
    assert_refused(labkit("compare", BASELINE="nope"), "unknown BASELINE 'nope'")
    with pytest.MonkeyPatch.context() as patch:
        given: list[str] = []
        patch.setattr("workbook.report.compare.make_compare", lambda baseline: given.append(baseline) or 0)
        assert labkit("compare", BASELINE="").returncode == 0
        assert labkit("compare", BASELINE="h100").returncode == 0
        assert labkit("compare", "--baseline", "h200", BASELINE="h100").returncode == 0
    assert given == ["", "h100", "h200"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--hw", "v100_sxm2"), "of v100_sxm2. Profiles with records: h100, h200."),
        (("--hw", "h100", "--study", "inference"), "of 05_inference of h100. Profiles with them: none."),
        (("--hw", "h100", "--study", "training,power"), "of 04_power of h100. "),
        (("--hw", "h100"), ""),
        (("--hw", "h100", "--study", "training"), ""),
    ],
)
def test_rendering_without_records_gives_one_line_of_warning(
    two_profiles: Path, given: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbook.report.make.write_pages", lambda *_, **__: 0)
    done = labkit("render", *given)
    assert done.returncode == 0 and len(done.stderr.splitlines()) == bool(said)
    assert said in done.stderr


EXECUTED = "$(shell touch marker)$(touch marker)`touch marker`'; touch marker; '\"; touch marker; \""


def make_once(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run make in the repository, or in the folder of a `-C`, with variables of the environment."""
    left_out = (*MADE_BY_MAKE, *MAKE_VARIABLES)
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return subprocess.run(["make", *arguments], capture_output=True, text=True, env={**kept, **environment}, cwd=ROOT)


def make(folder: Path, target: str, **variables: str) -> Iterator[subprocess.CompletedProcess[str]]:
    """Run a target with variables from the command line, then from the environment. Nothing may make a marker."""
    for given, added in (([f"{name}={value}" for name, value in variables.items()], {}), ([], variables)):
        done = make_once("-C", str(folder), target, *given, **added)
        assert not (folder / "marker").exists() and "Traceback" not in done.stdout + done.stderr
        assert done.returncode == 2
        yield done


def test_no_value_of_a_make_variable_is_executed() -> None:
    values = dict.fromkeys((*MAKE_VARIABLES, "TIME", "LAB", "TORCH_INDEX", "TF_PYTHON", "JAX_PYTHON"), EXECUTED)
    for done in make(ROOT, "plan", **values, PYTHON=sys.executable):
        assert "unknown scale" in done.stderr
    for done in make(ROOT, "data-check", DATA=EXECUTED, PYTHON=sys.executable):
        assert "touch marker" in done.stderr.partition("labkit: ")[2].partition("make: ")[0]


@pytest.mark.parametrize("given", ["STUDYS=training", "hw=h200", "VARIABLE=", "LABKIT=x"])
@pytest.mark.parametrize("target", [["plan"], ["-n", "report", "HW=cpu"]])
def test_an_unknown_make_variable_is_refused_in_one_sentence(target: list[str], given: str) -> None:
    done = make_once(*target, given)
    assert done.returncode == 2 and not done.stdout
    name = given.partition("=")[0]
    assert f"variable {name}; valid: HW STUDY SCALE " in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_every_variable_that_make_help_names_is_accepted_also_by_a_make_within_make(tmp_path: Path) -> None:
    named = re.findall(r"\b([A-Z_]{2,})=", make_once("help").stdout)
    given = [f"{name}=" for name in {*named, *MAKE_VARIABLES}]
    assert {"PYTHON", "STUDY", "JAX_PYTHON"} <= set(named)
    assert make_once("-n", "report", *given, "LABKIT_SLOW=1").returncode == 0
    (tmp_path / "Makefile").write_text(f"report:\n\t@$(MAKE) -C {ROOT} -n report\n")
    done = [make_once("-C", str(tmp_path), "report", *more) for more in (given, ["STUDYS=x"])]
    assert [one.returncode for one in done] == [0, 2] and "variable STUDYS" in done[1].stderr


def test_no_variable_of_the_environment_is_refused() -> None:
    assert make_once("-n", "plan", STUDYS="training", hw="h200").returncode == 0


NO_PYTHON = (EXECUTED, "/no/python", "/etc", "--help", "a b", "~nobody-here/python", "*", "true", "echo")


@pytest.mark.parametrize("python", NO_PYTHON)
def test_a_python_that_cannot_run_labkit_is_refused_in_one_sentence(python: str) -> None:
    for done in make(ROOT, "plan", PYTHON=python):
        said, of_make = done.stderr.splitlines()
        assert said.startswith("labkit: PYTHON= ")
        assert of_make.startswith("make: ***")


@pytest.mark.parametrize("index", [EXECUTED, "cu126", "--pre", "ftp://host/x", "/no/folder"])
def test_a_torch_index_that_is_no_address_is_refused_in_one_sentence(index: str, tmp_path: Path) -> None:
    for name in ("Makefile", "constraints.txt", "constraints-cu126.txt", "pyproject.toml", "workbook/bootstrap.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for done in make(tmp_path, "setup", TORCH_INDEX=index):
        said, of_make = done.stderr.splitlines()
        assert said.startswith(f"labkit: TORCH_INDEX={index!r} ") and "http" in said
        assert of_make.startswith("make: ***")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / ".installed").touch()
    for other in (EXECUTED, ""):
        (tmp_path / ".venv" / ".torch-index").write_text(other + "x")
        for done in make(tmp_path, "setup", TORCH_INDEX=index):
            assert "TORCH_INDEX" in done.stderr and "`rm -r .venv`" in done.stderr


def test_the_exit_code_of_the_process_is_2() -> None:
    assert_refused(labkit_process("report", "--hw", "nope"), "unknown HW 'nope'")


@pytest.mark.parametrize("start", [("-m", "workbook.cli"), ("-c", "from workbook.command import main; main()")])
@pytest.mark.parametrize("sent", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_while_labkit_is_imported_ends_it_without_a_traceback(
    start: tuple[str, str], sent: str, tmp_path: Path
) -> None:
    (tmp_path / "typer.py").write_text(INTERRUPTS.format(sent=sent))
    done = subprocess.run(
        [sys.executable, *start],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        preexec_fn=lambda: [signal.signal(getattr(signal, sent), signal.SIG_DFL)],  # nohup and `&` ignore signals
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.startswith("\nlabkit: interrupted. ") and len(done.stderr.strip().splitlines()) == 1


# Typer for a labkit that is interrupted during its imports.
INTERRUPTS = """
import os, signal
os.kill(os.getpid(), signal.{sent})
"""


def test_make_variables_arrive_through_the_environment_and_empty_ones_are_ignored() -> None:
    assert_refused(labkit("report", HW="nope"), "unknown HW 'nope'")
    assert_refused(labkit("report", "--study", "nope", HW="", DATA=""), "unknown study")


def test_importing_the_command_line_and_a_worker_imports_no_framework() -> None:
    names = ["cli", "study", "doctor", "report.make", "runner.worker", "runner.available"]
    names += ["workloads._train_in_keras", "engines.keras.reference"]
    assert not {"torch", "tensorflow", "jax", "keras"} & {*frameworks_after(*(f"workbook.{name}" for name in names))}


def test_doctor_says_what_this_machine_is_and_which_profile_fits() -> None:
    done = labkit("doctor")
    assert "This machine:" in done.stdout and "`make report`" in done.stdout
    assert "Traceback" not in done.stderr


def test_folders_of_variables_are_absolute_before_notebooks_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LABKIT_REPORTS", "out")
    monkeypatch.setenv("LABKIT_CACHE", "~/cache")
    _make_paths_absolute()
    assert os.environ["LABKIT_REPORTS"] == str(tmp_path / "out")
    assert os.environ["LABKIT_CACHE"] == str(tmp_path / "home" / "cache")
