"""Each framework has its own processes, environment and interpreter, and does not affect the others.

The frameworks are pretended (`tests.pretend`): interpreters have modules of their names and nothing else.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faulty.campaign import HOST, STUDY, records, run, sound, tiny_profile, trial
from tests.pretend import JAX as JAX_ITSELF
from tests.pretend import KERAS, interpreter
from tests.workbook.test_runner import workers_now
from workbook import doctor
from workbook.hardware import frameworks
from workbook.hardware.frameworks import KNOWN, environment_of, interpreter_of, version_of
from workbook.hardware.host import Host, this_host
from workbook.records import Record
from workbook.records.selection import done, rounds_complete
from workbook.records.store import Store
from workbook.registry import FRAMEWORK_TITLES
from workbook.runner import available
from workbook.runner.plan import (
    IN_KERAS_S,
    REFUSED_S,
    by_framework,
    order_of_pass,
    order_seed,
    pass_at,
    planned_s,
)
from workbook.session import Session
from workbook.trials.trial import FRAMEWORKS, Trial

pytestmark = pytest.mark.usefixtures("_nothing_is_left_running")

JAX = {"keras": "3.15.1", "jax": "0.10.2", "jaxlib": "0.10.2"}
TENSORFLOW = {"keras": "3.15.1", "tensorflow": "2.21.0"}
BUILT = "class sysconfig:\n    get_build_info = staticmethod(lambda: {'cuda_version': '12.5'})\n"
LOADS = {"keras": KERAS, "jax": JAX_ITSELF, "tensorflow": f"__version__ = '2.21.0'\n{BUILT}"}
# What can be pretended of a GPU: the name that a framework gives for the device, and the result of its convolution.
OPS = """
class ops:
    ones = staticmethod(lambda shape: shape)
    conv = staticmethod(lambda images, filters, padding: images)
    @staticmethod
    def convert_to_numpy(_):
        import numpy
        return numpy.full((1, 6, 6, 8), %s)
"""
SEEN_BY_JAX = """
from types import SimpleNamespace as device
__version__ = "0.10.2"
devices = lambda kind: [device(device_kind="NVIDIA H200")]
"""
NO_PLUGIN = """
__version__ = "0.10.2"
def devices(kind):
    raise RuntimeError(f"Unknown backend: '{kind}' requested, but no platforms that are instances of cuda are present.")
"""
OF_CPU = """
__version__ = "2.21.0"
class test:
    is_built_with_cuda = staticmethod(lambda: False)
"""


@pytest.fixture(autouse=True)
def _nothing_is_known_already(monkeypatch: pytest.MonkeyPatch) -> None:
    for asked in (frameworks._packages, available._ask):
        asked.cache_clear()
    monkeypatch.delenv("TF_PYTHON", raising=False)
    monkeypatch.delenv("JAX_PYTHON", raising=False)


@pytest.fixture
def report(tmp_path: Path) -> Path:
    return tmp_path / "cpu"


@pytest.fixture
def with_jax(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an interpreter that has JAX and Keras."""
    python = interpreter(tmp_path / "jax", packages=JAX, code=LOADS)
    monkeypatch.setenv("JAX_PYTHON", str(python))
    return python


@pytest.fixture
def with_tensorflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an interpreter that has TensorFlow and Keras."""
    python = interpreter(tmp_path / "tf", packages=TENSORFLOW, code=LOADS)
    monkeypatch.setenv("TF_PYTHON", str(python))
    return python


def of_each(workload: str, number: int = 2) -> list[Trial]:
    """Return `number` trials each without a framework, on TensorFlow and on JAX."""
    names = (workload, f"keras-tensorflow/{workload}", f"keras-jax/{workload}")
    return [trial(name, size=size) for name in names for size in range(1, number + 1)]


def by_name(made: list[Record]) -> dict[str, list[Record]]:
    records_of: dict[str, list[Record]] = {}
    for record in made:
        records_of.setdefault(record.framework, []).append(record)
    return records_of


def versions_in(**packages: str) -> str:
    return ", ".join(f"{name} {version}" for name, version in packages.items())


# ---- facts about frameworks -----------------------------------------------------------------------------------------


def test_every_framework_that_a_trial_may_name_is_known() -> None:
    assert tuple(KNOWN) == tuple(FRAMEWORK_TITLES) == FRAMEWORKS


def test_a_version_names_all_packages_that_a_framework_needs() -> None:
    everything = {"torch": "2.13.0", "keras": "3.15.1", "tensorflow": "2.21.0", "jax": "0.10.2", "jaxlib": "0.10.1"}
    assert version_of("torch", everything) == "2.13.0", "as in committed records"
    assert version_of("keras-jax", everything) == versions_in(keras="3.15.1", jax="0.10.2", jaxlib="0.10.1")
    for name, needed in itertools.product(KNOWN, everything):
        changed = {**everything, needed: "9"}
        same = version_of(name, changed) == version_of(name, everything)
        assert same is (needed not in KNOWN[name].packages), (name, needed)
        assert (version_of(name, {k: v for k, v in everything.items() if k != needed}) is None) is not same


def test_a_processs_environment_names_its_back_end_and_preallocates_no_memory() -> None:
    assert environment_of("torch", "cuda") == environment_of("none", "cpu") == {}
    for name in FRAMEWORKS[1:]:
        on_gpu, on_cpu = environment_of(name, "cuda"), environment_of(name, "cpu")
        assert on_gpu["KERAS_BACKEND"] == on_cpu["KERAS_BACKEND"] == name.removeprefix("keras-")
        assert (on_gpu["TF_FORCE_GPU_ALLOW_GROWTH"], on_gpu["XLA_PYTHON_CLIENT_PREALLOCATE"]) == ("true", "false")
        assert "CUDA_VISIBLE_DEVICES" not in on_gpu, "the profile chooses the devices"
        assert on_gpu["JAX_PLATFORMS"] == "cuda,cpu", "JAX would otherwise use the CPU if the GPU fails"
        assert on_gpu["LABKIT_RUNNER_PYTHON"] == sys.executable, "the interpreter that has PyTorch"
        assert (on_cpu["CUDA_VISIBLE_DEVICES"], on_cpu["JAX_PLATFORMS"]) == ("", "cpu")


def test_an_interpreter_is_the_named_one_or_the_one_set_up_or_this_one(tmp_path: Path) -> None:
    def chosen(name: str, given: Mapping[str, str] | None = None) -> str:
        return interpreter_of(name, given=given or {}, root=tmp_path)

    assert {chosen(name) for name in (*FRAMEWORKS, "none")} == {sys.executable}
    own = tmp_path / ".venv-tf" / "bin" / "python"
    own.parent.mkdir(parents=True)
    own.touch()
    assert [chosen(name) == str(own) for name in FRAMEWORKS] == [False, False, True, False]
    given = {"TF_PYTHON": "/opt/tf/python", "JAX_PYTHON": "other/python"}
    assert chosen("keras-tensorflow", given) == "/opt/tf/python"
    assert chosen("keras-jax", given) == str(tmp_path / "other/python"), "relative to the folder where make runs"
    assert chosen("keras-jax", {"JAX_PYTHON": "", "TF_PYTHON": "x"}) == chosen("torch", given) == sys.executable


# ---- the order of a pass --------------------------------------------------------------------------------------------


def test_the_trials_of_a_framework_are_adjacent_and_none_is_lost_or_repeated() -> None:
    trials = of_each("ok", number=5)
    first = set()
    for number in range(1, 41):
        seed = order_seed(STUDY, "smoke", number, HOST.id)
        order = order_of_pass(trials, seed)
        grouped = by_framework(order, seed)
        assert sorted(each.key for each in grouped) == sorted(each.key for each in trials)
        assert grouped == by_framework(order, seed), "the order follows from the seed in the record"
        groups = [name for name, _ in itertools.groupby(each.framework for each in grouped)]
        assert len(groups) == 3
        for name in groups:
            assert [t for t in grouped if t.framework == name] == [t for t in order if t.framework == name]
        first.add(tuple(groups))
    assert len(first) == 6, "every order of three frameworks occurs, whichever has most trials"


# ---- processes ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Host, list[Record]]:
    """Return the host, and records of two passes of two trials without a framework, on TensorFlow and on JAX."""
    folder = tmp_path_factory.mktemp("measured")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_LOCK", str(folder / "lock"))
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        patch.setenv("JAX_PYTHON", str(interpreter(folder / "jax", packages=JAX, code=LOADS)))
        patch.setenv("TF_PYTHON", str(interpreter(folder / "tf", packages=TENSORFLOW, code=LOADS)))
        patch.setenv("KERAS_BACKEND", "torch")  # a user's setting
        for asked in (frameworks._packages, available._ask):
            asked.cache_clear()
        host = replace(this_host(), id=HOST.id)
        run(of_each("settings"), folder / "cpu", passes=2, rounds=[1, 2], host=host)
    return host, records(folder / "cpu")


def test_each_framework_has_a_process_with_its_own_interpreter_and_environment(
    measured: tuple[Host, list[Record]],
) -> None:
    made, trials = measured[1], of_each("settings")
    assert len(made) == len({(record.key, record.pass_number) for record in made}) == 12
    assert {record.status for record in made} == {"ok"} and rounds_complete(made, "smoke") == 2
    for number in (1, 2):
        of_pass = [record for record in made if record.pass_number == number]
        seed = order_seed(STUDY, "smoke", number, HOST.id)
        order = order_of_pass(trials, seed)
        assert {record.planned.order_seed for record in of_pass} == {seed}
        assert [record.key for record in of_pass] == [t.key for t in by_framework(order, of_pass[0].planned.order_seed)]
        processes = {name: {record.process.id for record in group} for name, group in by_name(of_pass).items()}
        assert all(len(ids) == 1 for ids in processes.values()) and len(set.union(*processes.values())) == 3
        assert len({record.facts["pid"] for record in of_pass}) == 3
    for name, group in by_name(made).items():
        backend = {"keras-jax": "jax", "keras-tensorflow": "tensorflow"}.get(name, "torch")
        loaded = [] if name == "none" else [backend, "keras"]
        for record in group:
            assert record.facts["told"]["KERAS_BACKEND"] == backend
            assert record.facts["loaded"] == loaded, "only this framework is loaded before the first trial"


def test_a_record_carries_its_own_frameworks_versions_and_no_others(measured: tuple[Host, list[Record]]) -> None:
    host, made = measured
    versions_of = {name: group[0].versions for name, group in by_name(made).items()}
    assert {name: versions_of["keras-jax"][name] for name in JAX} == JAX
    assert {name: versions_of["keras-tensorflow"][name] for name in TENSORFLOW} == TENSORFLOW
    assert "torch" not in versions_of["keras-jax"] and "tensorflow" not in versions_of["keras-jax"]
    assert "torch" not in versions_of["keras-tensorflow"] and "jax" not in versions_of["keras-tensorflow"]
    assert versions_of["keras-tensorflow"]["cuda"] == "12.5", "as TensorFlow's build says"
    for versions in versions_of.values():
        assert versions["source"] == host.source and versions["python"]


def test_a_framework_that_fails_loses_only_its_trial_and_the_pass_continues(
    report: Path, with_jax: Path, with_tensorflow: Path
) -> None:
    faults = {"kill": "crashed", "keras-tensorflow/exhaust_numpy": "oom", "keras-jax/hang_with_child": "timeout"}
    run([*of_each("ok"), *map(trial, faults)], report, limit_s=10.0)
    assert not workers_now()
    made = records(report)
    assert len(made) == 9
    broken = {record.key: record.status for record in made if record.status != "ok"}
    assert broken == {trial(name).key: status for name, status in faults.items()}
    for name, group in by_name(made).items():
        statuses = [record.status for record in group]
        at = next((place for place, status in enumerate(statuses) if status != "ok"), len(statuses) - 1)
        assert len({record.process.id for record in group[: at + 1]}) == 1, name
        assert len({record.process.id for record in group}) == 1 + (at + 1 < len(statuses)), "a new process continued"


def test_a_framework_that_cannot_be_loaded_fails_its_trials_and_no_others(
    report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    death = {"jax": "raise RuntimeError('built for another NumPy')", "tensorflow": "import os; os.abort()"}
    for variable, packages in (("JAX_PYTHON", JAX), ("TF_PYTHON", TENSORFLOW)):
        python = interpreter(tmp_path / variable, packages=packages, code={**LOADS, **death})
        monkeypatch.setenv(variable, str(python))
    assert run(of_each("ok"), report).failed == 4
    records_of = by_name(records(report))
    assert {record.status for record in records_of["none"]} == {"ok"}
    for name, title, why in (
        ("keras-jax", "Keras on JAX", "built for another NumPy"),
        ("keras-tensorflow", "Keras on TensorFlow", "SIGABRT"),
    ):
        assert [record.status for record in records_of[name]] == ["crashed", "crashed"]
        for record in records_of[name]:
            assert record.reason is not None and title in record.reason and why in record.reason
            assert str(tmp_path) not in record.reason.split("Its log")[0]


# ---- missing frameworks ---------------------------------------------------------------------------------------------


def test_a_missing_framework_gives_records_that_say_what_to_do_and_is_asked_once(
    report: Path, tmp_path: Path, with_tensorflow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = interpreter(tmp_path / "lacking", packages={"keras": "3.15.1"}, needs=False)
    calls = tmp_path / "calls"
    python.write_text(python.read_text().replace("PYTHONPATH", f"echo >> {calls}\nPYTHONPATH", 1))
    monkeypatch.setenv("JAX_PYTHON", str(python))
    trials = of_each("ok", number=1)
    outcome = run(trials, report, passes=2, rounds=[1, 2])
    records_of = by_name(records(report))
    assert {record.status for record in (*records_of["none"], *records_of["keras-tensorflow"])} == {"ok"}
    assert {r.status for r in records_of["keras-jax"]} == {"unsupported"} and len(records_of["keras-jax"]) == 2
    (reason,) = {record.reason for record in records_of["keras-jax"]}
    for fact in ("Keras on JAX", "jax and jaxlib", "JAX_PYTHON", "`make setup-jax`"):
        assert fact in reason
    assert len(calls.read_text().splitlines()) == 1, "once, and not for each trial or pass"
    assert outcome.failed == 0
    again = run(trials, report, passes=2, rounds=[1, 2])
    assert (again.measured, again.resumed) == (2, 4), "only what the machine lacks is tried again"


def test_a_framework_that_works_now_is_tried_again_although_its_version_is_the_same(
    report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorFlow's build for GPUs, for example, has the same package name and version as its CPU build."""
    wanting = interpreter(tmp_path / "wanting", packages=JAX, code=LOADS, needs=False)
    monkeypatch.setenv("JAX_PYTHON", str(wanting))
    here = replace(HOST, packages={**HOST.packages, **JAX})
    trials = [trial("keras-jax/ok")]
    assert run(trials, report, host=here).measured == 1
    (refused,) = records(report)
    assert (refused.status, refused.cause) == ("unsupported", "here")
    monkeypatch.setenv("JAX_PYTHON", str(interpreter(tmp_path / "whole", packages=JAX, code=LOADS)))
    assert run(trials, report, host=here).measured == 1
    assert [record.status for record in records(report)] == ["unsupported", "ok"]
    assert run(trials, report, host=here).measured == 0


def test_a_missing_interpreter_is_unsupported(report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_PYTHON", str(tmp_path / "nowhere" / "python"))
    run([*sound(1), trial("keras-tensorflow/ok")], report)
    records_of = by_name(records(report))
    assert records_of["none"][0].status == "ok"
    (refused,) = records_of["keras-tensorflow"]
    assert (refused.status, refused.cause) == ("unsupported", "here") and "TF_PYTHON" in (refused.reason or "")
    assert str(tmp_path) not in (refused.reason or ""), "records are public, so they hold no local path"


@pytest.mark.parametrize(
    ("framework", "packages", "code", "said"),
    [
        ("keras-tensorflow", TENSORFLOW, {"tensorflow": OF_CPU}, "CPU build"),
        ("keras-jax", JAX, {"jax": NO_PLUGIN}, "no CUDA plug-in"),
        ("keras-jax", JAX, {"jax": SEEN_BY_JAX, "keras": OPS % 71}, "wrong numbers"),
        ("keras-jax", JAX, {"jax": SEEN_BY_JAX}, "GPU: ImportError"),
        ("keras-jax", JAX, {"jax": "import os; os.abort()"}, "code -6"),
        ("keras-jax", JAX, {"jax": "print('noise')\n" + SEEN_BY_JAX, "keras": OPS % 72}, None),
    ],
)
def test_a_framework_must_show_that_it_computes_correctly_on_a_gpu(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    framework: str,
    packages: dict[str, str],
    code: dict[str, str],
    said: str | None,
) -> None:
    python = interpreter(tmp_path / "python", packages=packages, code=code)
    monkeypatch.setenv(KNOWN[framework].variable, str(python))
    answer = available.ask(framework, "cuda")
    if said is None:
        assert (answer.sees, answer.reason) == ("NVIDIA H200", None)
        return
    assert answer.reason is not None and said in answer.reason
    assert KNOWN[framework].setup in answer.reason, "the reason says what to do"
    assert available.ask(framework, "cpu").reason is None, "the framework can run on the CPU"


def test_a_missing_framework_takes_no_time_in_the_plan(
    tmp_path: Path, with_tensorflow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_PYTHON", str(tmp_path / "nowhere"))
    timing = pass_at(Session(profile=tiny_profile(), host=HOST, store=Store(Path()), scale="smoke"), STUDY, 1)
    assert planned_s(trial("keras-jax/ok"), timing) == REFUSED_S
    assert planned_s(trial("keras-tensorflow/ok"), timing) == planned_s(trial(), timing) + IN_KERAS_S > REFUSED_S


# ---- resuming -------------------------------------------------------------------------------------------------------


def test_a_new_version_of_one_framework_leaves_the_others_records_done(measured: tuple[Host, list[Record]]) -> None:
    elsewhere = {"keras-jax": JAX, "keras-tensorflow": TENSORFLOW}
    host = replace(HOST, packages={"torch": "2.13.0"}, elsewhere=elsewhere)

    def missing(now: Host) -> set[str]:
        finished = done(measured[1], scale="smoke", versions=now.framework_versions())
        return {each.framework for each in of_each("settings") if (each.key, 1) not in finished}

    assert missing(host) == set()
    assert missing(replace(host, packages={"torch": "3.0"})) == set(), "no trial here depends on torch"
    assert missing(replace(host, elsewhere={**elsewhere, "keras-jax": {**JAX, "jaxlib": "0.11.0"}})) == {"keras-jax"}
    newer = {**TENSORFLOW, "tensorflow": "2.22.0"}
    assert missing(replace(host, elsewhere={**elsewhere, "keras-tensorflow": newer})) == {"keras-tensorflow"}
    both = {name: {**values, "keras": "4.0"} for name, values in elsewhere.items()}
    assert missing(replace(host, elsewhere=both)) == {"keras-jax", "keras-tensorflow"}


# ---- messages to the user -------------------------------------------------------------------------------------------


def test_the_host_lists_the_packages_of_other_interpreters(with_tensorflow: Path) -> None:
    host = this_host()
    assert {name: host.elsewhere["keras-tensorflow"][name] for name in TENSORFLOW} == TENSORFLOW
    assert set(host.elsewhere) == {"keras-tensorflow"}
    assert host.framework_versions()["keras-tensorflow"] == versions_in(**TENSORFLOW)
    assert host.framework_versions()["torch"] == host.packages["torch"]


def test_the_doctor_gives_each_frameworks_version_or_how_to_install_it(
    tmp_path: Path, with_tensorflow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_PYTHON", str(interpreter(tmp_path / "no", packages={}, needs=False)))
    host = replace(this_host(), gpus=())
    findings = dict(reversed(finding) for finding in doctor._frameworks(host))
    here = f"Keras on TensorFlow: {versions_in(**TENSORFLOW)}, on the CPU."
    assert findings[here] is True
    (lacking,) = [sentence for sentence, fine in findings.items() if "Keras on JAX" in sentence]
    assert findings[lacking] is None, "a note and not an error: the other studies need no JAX"
    assert "keras, jax and jaxlib" in lacking and "make setup-jax" in lacking
    assert any(sentence.startswith("PyTorch: torch ") for sentence in findings)
