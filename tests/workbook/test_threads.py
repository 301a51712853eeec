"""Tests of the threads of a trial (set, limited, reset afterwards) and of the CPU limits of a process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from labkit.errors import UserError
from tests.faulty.campaign import records, run, trial
from workbook.errors import Unsupported
from workbook.runner import threads as threads_module
from workbook.runner.threads import threads_of
from workbook.trials.trial import Trial, thread_counts

ON_CPU = Trial(device="cpu")


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process use four threads."""
    monkeypatch.setattr(threads_module, "usable_threads", lambda: 4)


@pytest.mark.parametrize(
    ("asked", "cores", "counts"),
    [
        ("powers", 1, [1]),
        ("powers", 2, [1, 2]),
        ("powers", 16, [1, 2, 4, 8, 16]),
        ("powers", 12, [1, 2, 4, 8, 12]),
        ("ends", 1, [1]),
        ("ends", 64, [1, 64]),
        ([2, 1, 2], 8, [2, 1]),
        ([], 8, []),
    ],
)
def test_a_sweep_of_threads_fits_the_cores_of_the_machine(asked: object, cores: int, counts: list[int]) -> None:
    assert thread_counts(asked, cores) == counts


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("power", "unknown sweep of threads 'power'; valid: powers, ends. A list"),
        (4, "unknown sweep of threads '4'"),
        ([0], "at least 1"),
        ([True], "at least 1"),
        (["all"], "at least 1"),
    ],
)
def test_an_invalid_sweep_of_threads_is_a_user_error(asked: object, said: str) -> None:
    with pytest.raises(UserError, match=said):
        thread_counts(asked, 8)


def test_a_trial_sets_its_threads_and_restores_pytorchs_default(four: None) -> None:
    import torch

    before = torch.get_num_threads()
    for asked in (3, 1, 4):
        with threads_of(replace(ON_CPU, threads=asked)):
            assert torch.get_num_threads() == asked
        assert torch.get_num_threads() == before
    with threads_of(ON_CPU):
        assert torch.get_num_threads() == before, "0 keeps PyTorch's default"
    with pytest.raises(ZeroDivisionError), threads_of(replace(ON_CPU, threads=2)):
        raise ZeroDivisionError
    assert torch.get_num_threads() == before, "threads are restored after a failed trial too"


@pytest.mark.parametrize(("framework", "left"), [("torch", 4), ("keras-jax", 7)])
def test_pytorch_runs_no_more_threads_than_a_quota_lets_run(four: None, framework: str, left: int) -> None:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(7)  # PyTorch's number on seven cores, of which the control group leaves four
    try:
        with threads_of(replace(ON_CPU, framework=framework)):
            assert torch.get_num_threads() == left
    finally:
        torch.set_num_threads(before)


def test_more_threads_than_allowed_are_refused_with_the_number(four: None) -> None:
    with (
        pytest.raises(Unsupported, match="asks for 5 threads, and this process may run 4"),
        threads_of(replace(ON_CPU, threads=5)),
    ):
        pass


def test_too_many_threads_give_an_unsupported_record_and_the_pass_goes_on(tmp_path: Path) -> None:
    run([replace(trial(), threads=1_000_000), trial(size=1)], tmp_path)
    reasons = {record.status: record.reason for record in records(tmp_path)}
    assert set(reasons) == {"ok", "unsupported"}
    assert reasons["unsupported"] is not None and "threads" in reasons["unsupported"]
