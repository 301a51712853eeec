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
from tests.committed import committed_reports
from tests.once import once
from tests.processes import nothing_left_running

SLOW = "LABKIT_SLOW"
# These files take longest. The last of them would run alone if they came late.
LONG = (
    *("notebooks/test_record_sets.py", "notebooks/test_report.py", "workbook/test_ranks.py", "browser/test_site.py"),
    *("workbook/test_keras_training.py", "workbook/test_keras_models.py", "browser/test_hostile_site.py"),
    *("workbook/test_verdicts.py", "workbook/test_intervals.py"),
)
# `make test` leaves out the tests whose names begin with a text and one of its ends. `make test-all` runs them. Behind
# an @ stands a fixture: only the tests that take it are left out.
_LEFT_OUT = (
    # Faults of the machine and of processes, and files changed at random.
    ("", "faults/ browser/test_hostile_site.py workbook/test_changed_files.py workbook/test_unattended.py"),
    ("workbook/test_hostile_input.py::test_each_lie_gets_one_sentence_in_bounded_memory[", "half series an"),
    (
        "workbook/test_runner.py::test_a_",
        "configuration_that failing_trial gate_that repeated_call second trial_measured trial_that_hangs worker_",
    ),
    ("workbook/test_runner.py::test_", "records_of_another rounds_measure what_one_study"),
    ("workbook/test_forked.py::test_a_", "forked_worker parent_that_cannot report_forks"),
    (
        "workbook/test_telemetry.py::test_",
        "a_reading_that_fails a_sampler_killed a_stopped a_restarted the_sampler_ends",
    ),
    ("workbook/test_", "lifetime.py::test_a_closed other_load.py::test_runs_beside readers.py::test_a_killed_worker"),
    ("workbook/test_ranks.py::test_", "ranks_that_find a_rank_that_hangs the_ranks_end"),
    # Passes with PyTorch, trainings, and large networks where smaller ones show the same.
    ("workbook/test_", "ranks.py@measured nodes.py@measured gan.py@measured readers.py@measured state.py@compiled"),
    ("workbook/test_", "exchanged_bytes.py taking_traces.py trained_weights.py buckets.py::test_two_ranks_that_share"),
    ("workbook/test_", "workloads.py::test_training_learns small_network.py::test_the_mlp_learns"),
    ("workbook/test_training_runs.py::test_", "the_records_of_a_training_run each_pass_of"),
    ("workbook/test_engines.py::test_", "a_restarted_training_run a_tuned_run_after"),
    ("workbook/test_", "one_process.py stored_cold.py own_module.py::test_a_changed_helper"),
    ("workbook/test_", "studies_training.py::test_configurations_that own_network.py::test_later_rounds"),
    ("workbook/test_own_network.py::test_", "the_flop a_decode_step samples_that_differ a_training"),
    ("workbook/test_inference.py::test_an_engine_predicts_what_the_baseline_predicts[", "vgg16"),
    ("labkit/test_models.py::test_a_model_at_32x32_gives_a_logit_per_class[", "vgg"),
    ("labkit/test_models.py::test_a_classifier_takes_other_sizes_than_its_own[", "128"),
    ("labkit/test_models.py::test_counts_of_other_classifiers_are_the_published_ones[", "re"),
    # Simulations over thousands of draws, pages of cut records and other networks, and counts over all records.
    ("workbook/test_verdicts.py::test_", "many_cases a_true_ratio a_trend_of_a_tie over_three_hosts across_hosts"),
    ("workbook/test_verdicts.py::test_", "a_ratio_far"),
    ("notebooks/test_", "record_sets.py start_here.py::test_the_outputs"),
    (
        "notebooks/test_report.py::test_",
        "a_change_of_code a_failing_notebook_does_not_stop_the_other[04 a_record_more a_users_imagenet32 "
        "other_parameters pages_link rendering_without",
    ),
    ("browser/test_site.py::test_", "a_dark_screen every_page_has_the_same no_kind_of_page"),
    ("workbook/test_", "studies_comparison.py::test_a_baseline_is studies_comparison.py::test_a_failed"),
    ("workbook/test_show_plots.py::test_", "a_figure_can_be_drawn_of_any"),
    ("workbook/test_predict.py::test_", "the_promised nothing_of within_a_chip a_prediction"),
    ("workbook/test_", "claims_can_be_tested.py results.py::test_the_long_tables"),
    ("workbook/test_committed_verdicts.py::test_", "a_reader each_claim_that_is_not_replicated_or_open_has_a_reason[h"),
    ("workbook/test_", "prices.py trace_reading.py::test_rows_do_not"),
    # Other libraries, and interpreters, kernels and processes of their own.
    (
        "workbook/test_",
        "frameworks.py keras_models.py keras_training.py stored_make.py imagenet_validation.py fused.py",
    ),
    (
        "workbook/test_",
        "torchvision_import.py openvino_on_cpu.py openvino_inference.py setup.py::test_the_doctor_finds",
    ),
    ("", "labkit/test_page.py labkit/test_wheel.py browser/test_jupyterlab.py"),
    ("workbook/test_environment.py::test_a_", "compiler_that_compiles"),
    ("notebooks/test_", "settings.py::test_settings settings.py::test_make_lab"),
    ("notebooks/test_notebooks.py::test_a_notebook_that_fails_is_never_called_ok[", "hangs"),
)
THOROUGH = tuple(text + end for text, ends in _LEFT_OUT for end in ends.split())
# Set before anything imports NumPy or torch. The worker processes that tests start inherit it.
os.environ["OMP_NUM_THREADS"] = "1"
if "PYTEST_XDIST_WORKER" in os.environ:  # else each pytest process keeps a pool of compiler processes
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"

# No test asserts an absolute time. A deadline would do so, and fail on a busy machine.
settings.register_profile("labkit", deadline=None)
settings.register_profile("few", deadline=None, max_examples=25)
settings.load_profile("labkit")


def pytest_configure(config: pytest.Config) -> None:
    """Draw a quarter of the examples in `make test`."""
    if config.option.markexpr == "not thorough":
        settings.load_profile("few")


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


@pytest.fixture
def committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the committed records those of the reports."""
    monkeypatch.setenv("LABKIT_REPORTS", str(committed_reports()))


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
