"""The setting of every test: its own folders, one thread per process, and a summary of the tests that did not run."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import workbook.report  # noqa: F401 - spares the tests that import nbformat seconds, as its first lines say
from tests import commands
from tests.once import once
from tests.processes import nothing_left_running

SLOW = "LABKIT_SLOW"
# These files take longest. The last of them would run alone if they came late.
LONG = (
    *("notebooks/test_record_sets.py", "notebooks/test_report.py", "workbook/test_ranks.py", "browser/test_site.py"),
    *("workbook/test_keras_training.py", "workbook/test_keras_models.py", "browser/test_hostile_site.py"),
    *("workbook/test_verdicts.py", "workbook/test_intervals.py"),
)
# `make test` leaves out these files and tests, and those that take the fixture after an @. `make test-all` runs them.
THOROUGH = (
    "faults/",  # of the machine
    *("browser/test_hostile_site.py", "browser/test_jupyterlab.py"),
    "labkit/test_wheel.py",  # in an environment of its own
    "workbook/test_changed_files.py",  # changes files at random
    *(f"workbook/test_{name}.py@measured" for name in ("ranks", "nodes", "gan", "readers")),  # passes with PyTorch
    *("workbook/test_exchanged_bytes.py", "workbook/test_taking_traces.py@made"),
    *(
        "workbook/test_training_runs.py::test_the_records_of_a_training_run",
        "workbook/test_own_network.py::test_a_training",
    ),
    *(f"workbook/test_ranks.py::test_{name}" for name in ("ranks_that_find", "a_rank_that_hangs", "the_ranks_end")),
    "workbook/test_buckets.py::test_two_ranks_that_share",
    *(f"workbook/test_frameworks.py::test_a_framework_that_{name}" for name in ("fails", "cannot")),
    "workbook/test_trained_weights.py@trained",  # trains a network
    *("workbook/test_openvino_on_cpu.py@int8", "workbook/test_openvino_inference.py@int8"),  # quantises one
    *("workbook/test_environment.py::test_a_compiler_that_compiles_nothing", "workbook/test_state.py@compiled"),
    # Simulations of verdicts over thousands of draws.
    *(
        f"workbook/test_verdicts.py::test_{name}"
        for name in (
            "many_cases",
            "a_true_ratio",
            "a_trend_of_a_tie",
            "over_three_hosts",
            "across_hosts",
            "a_ratio_far",
        )
    ),
    "notebooks/test_start_here.py::test_the_outputs",
    # Trainings, faults of processes, and counts over whole networks and all records.
    *(
        f"workbook/test_{name}"
        for name in (
            "workloads.py::test_training_learns",
            "trained_weights.py",
            "training_runs.py::test_each_pass_of",
            "own_network.py::test_the_flop",
            "own_network.py::test_a_decode_step",
            "own_network.py::test_samples_that_differ",
            "unattended.py",
            "frameworks.py",
            "predict.py::test_the_promised_share",
            "predict.py::test_nothing_of_a_device",
            "claims_can_be_tested.py",
            "runner.py::test_a_failing_trial_costs",
            "runner.py::test_a_repeated_call_resumes",
            "runner.py::test_a_trial_that_hangs",
            "results.py::test_the_long_tables",
        )
    ),
    # Other libraries, and interpreters and processes of their own.
    *(
        f"workbook/test_{name}.py"
        for name in (
            "keras_models",
            "keras_training",
            "stored_make",
            "imagenet_validation",
            "torchvision_import",
            "fused",
        )
    ),
    *(f"workbook/test_{name}.py" for name in ("taking_traces", "openvino_on_cpu", "openvino_inference", "prices")),
)
# Set before anything imports NumPy or torch. The worker processes that tests start inherit it.
os.environ["OMP_NUM_THREADS"] = "1"
if "PYTEST_XDIST_WORKER" in os.environ:  # else each pytest process keeps a pool of compiler processes
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"

# No test asserts an absolute time. A deadline would do so, and fail on a busy machine.
settings.register_profile("labkit", deadline=None)
settings.load_profile("labkit")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return a scheduler that gives the tests of a file to one process, and those of tests/gpu to one process."""
    from xdist.scheduler import LoadFileScheduling

    class FileOrDevice(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "tests/gpu" if nodeid.startswith("tests/gpu/") else super()._split_scope(nodeid)

    return FileOrDevice(config, log)


def _no_gpu() -> str | None:
    """Return why tests marked `gpu` cannot run here, or None if they can."""
    try:
        import pynvml
    except ImportError:
        return "needs an NVIDIA GPU, and nvidia-ml-py is not installed to look for one"
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return f"needs an NVIDIA GPU, and the driver says: {error}"
    return None if count else "needs an NVIDIA GPU, and this machine has none"


def _not_asked_for() -> str | None:
    """Return why tests marked `slow` do not run, or None if they do."""
    return None if os.environ.get(SLOW) == "1" else f"takes minutes, and {SLOW}=1 asks for it"


def _place(item: pytest.Item) -> int:
    """Return the place of a test's file in LONG; all other files come after them."""
    file = item.nodeid.partition("::")[0].removeprefix("tests/")
    return LONG.index(file) if file in LONG else len(LONG)


def _is_thorough(item: pytest.Item) -> bool:
    return any(
        item.nodeid.startswith(f"tests/{start}") and fixture in ("", *item.fixturenames)
        for start, _, fixture in (entry.partition("@") for entry in THOROUGH)
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_place)
    for item in items:
        if _is_thorough(item):
            item.add_marker("thorough")
    for marker, why_not in (("gpu", _no_gpu), ("slow", _not_asked_for)):
        wanting = [item for item in items if item.get_closest_marker(marker)]
        if wanting and (reason := why_not()):
            for item in wanting:
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print a sentence for each reason for which tests were skipped."""
    reasons: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons[reason.removeprefix("Skipped: ")] += 1
    if reasons:
        terminalreporter.section("not run")
    for reason, number in sorted(reasons.items()):
        terminalreporter.line(f"{number} {'test was' if number == 1 else 'tests were'} skipped: {reason}.")


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the data sets that all tests share."""
    return once(tmp_path_factory, "cache", lambda _: None)


@pytest.fixture(scope="session")
def own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return an iterator of new folders, one for each test. `mktemp` would scan all folders for the next number."""
    parent = tmp_path_factory.mktemp("own")

    def new_folders() -> Iterator[Path]:
        for number in count():
            folder = parent / str(number)
            folder.mkdir()
            yield folder

    return new_folders()


@pytest.fixture(scope="session", autouse=True)
def _one_cache_for_all(shared_cache: Path) -> Iterator[None]:
    """Set the cache for module fixtures too, which run before those of a test: workers must find the data they open."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_CACHE", str(shared_cache))
        yield


@pytest.fixture(autouse=True)
def _nothing_of_the_user_is_touched(
    shared_cache: Path, own_folders: Iterator[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = next(own_folders)
    monkeypatch.setenv("LABKIT_CACHE", str(shared_cache))  # an earlier test may have changed it
    monkeypatch.setenv("XDG_STATE_HOME", str(own / "state"))
    monkeypatch.setenv("LABKIT_REPORTS", str(own / "reports"))
    monkeypatch.setenv("LABKIT_LOCK", str(own / "lock"))
    monkeypatch.delenv("LABKIT_PROGRESS", raising=False)


@pytest.fixture
def report() -> Path:
    """Return the folder of the CPU's report."""
    return Path(os.environ["LABKIT_REPORTS"]) / "cpu"


@pytest.fixture(scope="session")
def site(shared_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> commands.Site:
    """Return a site whose reports are rendered once for all tests. Tests must only read it."""
    return commands.Site(tmp_path_factory, shared_cache)


@pytest.fixture
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Yield a folder on a disk of its own, of 4 MB or of the fixture's parameter in MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={getattr(request, 'param', 4)}m", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("mounting a small disk needs the command mount")
    if mounted.returncode:
        pytest.skip(f"mounting a small disk needs root: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def _nothing_is_left_running() -> Iterator[None]:
    with nothing_left_running():
        yield


@pytest.fixture
def _torch_is_left_as_it_was() -> Iterator[None]:
    torch = pytest.importorskip("torch")
    flags = [
        (torch.backends.cuda.matmul, "allow_tf32"),
        (torch.backends.cudnn, "allow_tf32"),
        (torch.backends.cudnn, "benchmark"),
    ]
    before = [(place, name, getattr(place, name)) for place, name in flags]
    yield
    for place, name, value in before:
        setattr(place, name, value)
