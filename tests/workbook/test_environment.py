"""Tests of environment variables that change a measurement: they reach no worker, are recorded, or show by effect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from labkit.data import DataSet, open_data
from tests.faulty.campaign import records, run, trial
from tests.prepared import checked
from workbook.errors import GateError
from workbook.hardware.environment import for_workers, line_of_changers, recorded_variables, settings_of
from workbook.trials.trial import Trial
from workbook.workloads import build_workload

KEPT = ("PATH", "HOME", "CUDA_VISIBLE_DEVICES", "CUDA_PATH", "NCCL_SOCKET_IFNAME", "LD_LIBRARY_PATH", "LABKIT_CACHE")
KEPT = (*KEPT, "TORCHINDUCTOR_CACHE_DIR", "TF_CPP_MIN_LOG_LEVEL", "SLURM_JOB_ID", "PYTHONPATH", "TRITON_CACHE_DIR")


def test_a_page_names_what_may_change_a_step_and_not_what_describes_an_image() -> None:
    given = {"MALLOC_ARENA_MAX": "2", "NVIDIA_REQUIRE_CUDA": "cuda>=13", "CUDA_VISIBLE_DEVICES": "1", "UCX_TLS": "tcp"}
    first, second = recorded_variables(given), recorded_variables({**given, "UCX_TLS": "rc", "HOME": "/home/me"})
    assert settings_of([first, second]) == "MALLOC_ARENA_MAX=2; UCX_TLS=rc; UCX_TLS=tcp"
    assert settings_of([{}]) == ""


@pytest.mark.parametrize(
    ("name", "effect"),
    [
        ("GOMP_CPU_AFFINITY", "threads"),
        ("KMP_BLOCKTIME", "threads"),
        ("NUMEXPR_MAX_THREADS", "threads"),
        ("DNNL_DEFAULT_FPMATH_MODE", "precision"),
        ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "precision"),
        ("TORCH_COMPILE_DISABLE", "compiled"),
        ("TORCHINDUCTOR_MAX_AUTOTUNE", "compiled"),
        ("JAX_DISABLE_JIT", "compiled"),
        ("TORCH_NCCL_BLOCKING_WAIT", "order"),
        ("PYTHONTRACEMALLOC", "interpreter"),
    ],
)
def test_a_variable_that_changes_what_is_timed_reaches_no_worker_and_is_named(name: str, effect: str) -> None:
    given = dict.fromkeys(KEPT, "x") | {name: "1"}
    assert for_workers(given) == dict.fromkeys(KEPT, "x")
    assert f"{name}=1" in line_of_changers(given) and effect in line_of_changers(given)
    assert line_of_changers(dict.fromkeys(KEPT, "x")) == ""


def test_what_frameworks_read_is_recorded_without_folders_secrets_and_names_of_machines() -> None:
    given = {"NCCL_ALGO": "Ring", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "LD_PRELOAD": "/opt/x.so"}
    hidden = {"NCCL_HOSTID": "node7", "TF_CONFIG": '{"cluster": 1}', "JAX_API_TOKEN": "s", "EDITOR": "vi", "OMP_X": "1"}
    assert recorded_variables(given | hidden) == given | {"LD_PRELOAD": "(a path)"}


def test_workers_run_without_the_users_changers_and_records_hold_what_they_inherit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHDYNAMO_SUPPRESS_ERRORS", "1")
    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    run([trial("settings")], tmp_path / "cpu")
    (record,) = records(tmp_path / "cpu")
    assert record.status == "ok", record.reason
    assert record.facts["inherited"] == ["MALLOC_ARENA_MAX"]
    assert record.environment["MALLOC_ARENA_MAX"] == "2" and "TORCHDYNAMO_SUPPRESS_ERRORS" not in record.environment


@pytest.fixture(scope="module")
def digits(shared_cache: Path) -> DataSet:
    return open_data("digits", train_images=64, val_images=64)


@pytest.mark.parametrize("workload", ["train", "infer"])
def test_a_compiler_that_compiles_nothing_fails_the_trial(
    digits: DataSet, monkeypatch: pytest.MonkeyPatch, workload: str
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)  # as with a switched-off compiler
    about: dict[str, Any] = {"classes": 10, "batch": 4, "device": "cpu", "data": "digits", "engine": "compile"}
    asked = Trial(workload=workload, model="alexnet", **about)
    assert build_workload(asked, digits) is not None
    with pytest.raises(GateError, match="made no graph"):
        checked(asked, digits)
