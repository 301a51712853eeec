"""Tests of host settings: applied within the context and undone after it, refused with a reason, kept out of claims."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from labkit.claims.evidence import Side, select
from labkit.data import DataSet
from labkit.engines import precision
from labkit.errors import Unsupported
from labkit.hardware import cpu_limits
from labkit.hardware.profile import Timing
from labkit.recipes import is_plain, mode_name
from labkit.run import host_settings
from labkit.run.execution import run
from labkit.run.host_settings import host_setting_of
from labkit.run.preparing import Data
from labkit.run.processes import processes_of
from labkit.run.protocol import Pass
from labkit.show import label
from labkit.trial import HOST_SETTINGS, Trial
from labkit.trial_label import trial_label

DEFAULT, *SETTINGS = HOST_SETTINGS
EAGER = Trial(model="resnet18", classes=10, batch=4, device="cpu", data="digits")
LINUX = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux binds threads to cores")


def autograd_has_threads() -> bool:
    return cast(bool, torch._C._is_multithreading_enabled())


# ---- applied and undone ---------------------------------------------------------------------------------------------


@LINUX
@pytest.mark.parametrize("setting", ["calling_thread", "calling_thread+two_cores"])
def test_the_backward_pass_moves_to_the_calling_thread_within_the_context_only(
    setting: str, one_core: list[int]
) -> None:
    assert autograd_has_threads()
    with host_setting_of(replace(EAGER, host_setting=setting)):
        assert not autograd_has_threads()
    assert autograd_has_threads()
    with pytest.raises(ZeroDivisionError), host_setting_of(replace(EAGER, host_setting=setting)):
        raise ZeroDivisionError
    assert autograd_has_threads(), "after a failed trial too"


@LINUX
@pytest.mark.parametrize("setting", [DEFAULT, "two_cores", "no_benchmark"])
def test_other_settings_leave_autograd_its_threads(setting: str, one_core: list[int]) -> None:
    with host_setting_of(replace(EAGER, host_setting=setting)):
        assert autograd_has_threads()


@pytest.fixture
def one_core(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let `two_cores` bind to one core: on a machine with two cores, two would change nothing."""
    last = [max(os.sched_getaffinity(0))]
    monkeypatch.setattr(host_settings, "CORES", 1)
    monkeypatch.setattr(host_settings, "separate_cores", lambda: last)
    return last


@pytest.fixture
def another_thread() -> Iterator[Callable[[], threading.Thread]]:
    """Return a function that starts a thread, which ends after the test."""
    end, started = threading.Event(), []

    def start() -> threading.Thread:
        started.append(threading.Thread(target=end.wait, daemon=True))
        started[-1].start()
        return started[-1]

    yield start
    end.set()
    for thread in started:
        thread.join()


@LINUX
@pytest.mark.skipif(cpu_limits.usable_threads() < 2, reason="with one processor all threads are bound to it anyway")
def test_all_threads_are_bound_to_the_cores_and_get_their_own_processors_back(
    one_core: list[int], another_thread: Callable[[], threading.Thread]
) -> None:
    own = os.sched_getaffinity(0)
    narrow = another_thread()
    assert narrow.native_id is not None
    os.sched_setaffinity(narrow.native_id, {min(own)})
    with host_setting_of(replace(EAGER, host_setting="two_cores")) as facts:
        later = another_thread()
        masks = [os.sched_getaffinity(int(folder.name)) for folder in host_settings.THREADS.iterdir()]
        assert len(masks) >= 3 and all(mask == set(one_core) for mask in masks)
        assert facts == {"bound_to_processors": one_core}
    assert os.sched_getaffinity(0) == own and os.sched_getaffinity(narrow.native_id) == {min(own)}
    assert later.native_id is not None and os.sched_getaffinity(later.native_id) == own


@pytest.mark.usefixtures("_torch_is_left_as_it_was")
def test_cudnn_times_its_algorithms_unless_the_trial_says_no() -> None:
    for setting in (*HOST_SETTINGS, DEFAULT):
        precision.set_modes(replace(EAGER, host_setting=setting))
        assert torch.backends.cudnn.benchmark == (setting != "no_benchmark")


@LINUX
@pytest.mark.usefixtures("_torch_is_left_as_it_was")
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_training_runs_with_each_setting_and_its_record_says_which_processors(
    setting: str, one_core: list[int], digits: DataSet
) -> None:
    trial = replace(EAGER, host_setting=setting, data_checksum=digits.checksum)
    job = Pass(number=4, timing=Timing(warmup_s=0.01, timed_s=0.1, block_s=0.05, limit_s=60), short=True)
    events: Any = SimpleNamespace(progress=lambda _phase, _share: None)
    outcome = run(trial, job, Data(), events)
    bound = {"bound_to_processors": one_core} if "two_cores" in setting else {}
    assert (outcome["status"], outcome["reason"]) == ("ok", None)
    assert outcome["facts"]["cudnn_benchmark"] == (setting != "no_benchmark")
    assert {name: fact for name, fact in outcome["facts"].items() if name.startswith("bound")} == bound


# ---- refused --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"workload": "infer"}, "is for training, not for the infer workload"),
        ({"framework": "keras-torch"}, "is for PyTorch's own loop, not for keras-torch"),
        ({"engine": "compile"}, "is for the engine eager, .*not for compile"),
        ({"devices": 2}, "is for one process, and the trial has 2"),
    ],
)
def test_other_trials_have_no_host_setting(other: dict[str, Any], reason: str, setting: str) -> None:
    with (
        pytest.raises(Unsupported, match=reason),
        host_setting_of(replace(EAGER, host_setting=setting, **other)),
    ):
        pass


TWO_CORES = replace(EAGER, host_setting="two_cores")


def test_two_cores_are_refused_where_the_system_binds_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    with pytest.raises(Unsupported, match="only Linux binds"), host_setting_of(TWO_CORES):
        pass


@LINUX
def test_two_cores_are_refused_to_a_process_that_may_not_bind(
    monkeypatch: pytest.MonkeyPatch, one_core: list[int]
) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    with pytest.raises(Unsupported, match="may not choose the cores"), host_setting_of(TWO_CORES):
        pass


@LINUX
@pytest.mark.parametrize(("cores", "usable"), [([3], 4), ([3, 4], 1)])
def test_two_cores_are_refused_with_the_number_that_there_is(
    cores: list[int], usable: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_settings, "separate_cores", lambda: cores)
    monkeypatch.setattr(host_settings, "usable_threads", lambda: usable)
    with pytest.raises(Unsupported, match="needs 2 cores, and this process may use 1"), host_setting_of(TWO_CORES):
        pass


# ---- the cores of a machine -----------------------------------------------------------------------------------------


def test_separate_cores_leave_out_siblings_and_keep_packages_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    siblings = {0: "0,4", 1: "1,5", 2: "2,6", 3: "3,7"}
    for number in range(8):
        folder = tmp_path / f"cpu{number}/topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text(f"{number % 2}\n")
        (folder / "thread_siblings_list").write_text(f"{siblings[number % 4]}\n")
    monkeypatch.setattr(cpu_limits.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert cpu_limits.separate_cores(tmp_path) == [0, 2, 1, 3]
    monkeypatch.setattr(cpu_limits.os, "sched_getaffinity", lambda _: {1, 4, 5, 6}, raising=False)
    assert cpu_limits.separate_cores(tmp_path) == [4, 6, 1]
    assert cpu_limits.separate_cores(tmp_path / "none") == [1, 4, 5, 6], "unknown: each processor is a core"


# ---- never taken for the baseline -----------------------------------------------------------------------------------


def test_a_trial_with_a_setting_has_a_name_of_its_own_everywhere() -> None:
    trials = [Trial(host_setting=setting) for setting in HOST_SETTINGS]
    names = [mode_name(trial) for trial in trials]
    assert names[0] == "baseline" and len(set(names)) == len(trials)
    assert not any("baseline" in name for name in names[1:]) and [*map(is_plain, trials)] == [True] + [False] * 4
    assert len({trial_label(trial, beside=trials) for trial in trials}) == len(trials)
    assert all(label("host_setting", setting) in mode_name(Trial(host_setting=setting)) for setting in SETTINGS)


def test_a_claim_meets_a_trial_with_a_setting_only_if_its_test_names_it() -> None:
    trials = [Trial(host_setting=setting) for setting in HOST_SETTINGS]
    sides = [Side(cast(Any, None), trial) for trial in trials]

    def met(**wanted: Any) -> list[Trial]:
        return [side.trial for side in select(sides, wanted)]

    assert met() == met(engine="eager", precision="fp32") == met(host_setting=DEFAULT) == trials[:1]
    assert met(host_setting="two_cores") == [Trial(host_setting="two_cores")]


def test_a_loop_without_a_search_shares_no_process_with_those_that_search() -> None:
    """PyTorch keeps cuDNN's algorithm for a convolution until its process ends."""
    apart = {setting: processes_of(Trial(host_setting=setting)) for setting in HOST_SETTINGS}
    assert {setting for setting in HOST_SETTINGS if apart[setting] != apart["default"]} == {"no_benchmark"}
