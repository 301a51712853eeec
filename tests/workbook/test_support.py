"""Support: each rule refuses a trial, names what to change, and lets the changed trial or the mended machine pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from workbook.engines.keras import support as keras
from workbook.errors import Cause, Unsupported
from workbook.report.plan import StudyPlan
from workbook.trials.rules import Rule, refusal
from workbook.trials.trial import Trial
from workbook.workloads import OF_ANY

torch = pytest.importorskip("torch")

from workbook.engines import openvino_on_cpu as openvino  # noqa: E402
from workbook.engines import support, triton_check  # noqa: E402
from workbook.engines.common_rules import of_gpu  # noqa: E402
from workbook.engines.gan_training import RULES as ADVERSARIAL  # noqa: E402
from workbook.storage import readers  # noqa: E402
from workbook.workloads import all_reduce, launch_rate, load, matmul  # noqa: E402
from workbook.workloads._inputs import OF_DOCUMENTS, of_stored  # noqa: E402
from workbook.workloads.infer import RULES as PREDICTION  # noqa: E402
from workbook.workloads.infer import of_inputs  # noqa: E402
from workbook.workloads.train import RULES as TRAINING  # noqa: E402

KERAS_GPU = of_gpu("tensorflow", lambda: torch.cuda.get_device_capability() if torch.cuda.is_available() else None)
STORED = of_stored(SimpleNamespace(images=10, classes=1000))
LARGE = of_inputs(SimpleNamespace(words=0, edge_px=224, name="photographs"))
CEILINGS = (*matmul.RULES, *launch_rate.RULES, *all_reduce.RULES)
OF_DATA = (STORED, LARGE, OF_DOCUMENTS)
TABLES = (TRAINING, PREDICTION, ADVERSARIAL, keras.RULES, KERAS_GPU, *OF_DATA, OF_ANY, CEILINGS, load.RULES)

GRAPH = {"engine": "graph", "loader": "device"}
MASTER = {**GRAPH, "optimizer": "sgd_master", "precision": "bf16"}
ONE_PROCESS = {"parallel": "one_process", "devices": 2, "scaling": "strong"}
INFER = {"workload": "infer"}
OPENVINO = {**INFER, "engine": "openvino", "device": "cpu"}
FUSED = {**INFER, "engine": "triton+graph", "precision": "int8"}
WGAN = {"workload": "gan", "model": "wgan", "optimizer": "rmsprop"}
TF, JAX = {"framework": "keras-tensorflow"}, {"framework": "keras-jax", "engine": "xla"}
FILES = {"form": "jpeg", "reader": "torch_pil", "classes": 1000}
LOAD = {"workload": "load", "form": "jpeg", "reader": "torch_pil"}
RESIDENT = {**LOAD, "form": "cache", "reader": "resident"}
ALIAS = {"cuda": "gpu"}


@dataclass(frozen=True)
class Machine:
    """What the rules ask the machine: by default two H100 with all that the suite can use."""

    capability: tuple[int, int] | None = (9, 0)
    gpus: int = 2
    triton: str | None = None
    compiler: str | None = "/usr/bin/g++"
    packages: bool = True
    bf16: bool = True


Become = Callable[..., None]


@pytest.fixture
def become(monkeypatch: pytest.MonkeyPatch) -> Become:
    """Return a function that pretends a machine, and pretend the default."""

    def pretend(**state: Any) -> None:
        machine = Machine(**state)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: machine.capability is not None)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: machine.capability)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: machine.gpus)
        monkeypatch.setattr(triton_check, "fault", lambda: machine.triton)
        monkeypatch.setattr(support.shutil, "which", lambda _: machine.compiler)
        monkeypatch.setattr(openvino, "_is_installed", lambda _: machine.packages)
        monkeypatch.setattr(openvino, "has_bf16", lambda: machine.bf16)
        for module in (keras, readers):
            monkeypatch.setattr(module, "find_spec", lambda name: name if machine.packages else None)

    pretend()
    return pretend


def rule_of(rules: Iterable[Rule], trial: Trial) -> Rule:
    """Return the first rule that refuses a trial."""
    return next(rule for rule in rules if rule.refuses(trial))


def name(value: object) -> str:
    return str(value) if isinstance(value, (str, dict)) else ""


# A trial that a rule refuses, and the change of one field that the rule asks for.
FIELDS: list[tuple[Any, Cause, dict[str, Any], dict[str, Any]]] = [
    (TRAINING, "never", {"model": "wgan"}, {"model": "resnet50"}),
    (TRAINING, "never", {"engine": "openvino"}, {"engine": "eager"}),
    (TRAINING, "never", {**ONE_PROCESS, "device": "cpu"}, {"device": "cuda"}),
    (TRAINING, "never", {**ONE_PROCESS, "engine": "compile"}, {"engine": "eager"}),
    (TRAINING, "version", {**ONE_PROCESS, "gradient_precision": "fp16"}, {"gradient_precision": "fp32"}),
    (TRAINING, "version", {**ONE_PROCESS, "precision": "bf16"}, {"precision": "fp16"}),
    (TRAINING, "version", {"updates": "asynchronous"}, {"updates": "synchronous"}),
    (
        TRAINING,
        "version",
        {"placement": "together", "devices": 2, "epochs": 1, "engine": "compile"},
        {"engine": "eager"},
    ),
    (TRAINING, "never", {"gradient_precision": "fp16"}, {"devices": 2}),
    (
        TRAINING,
        "version",
        {"gradient_precision": "bf16", "devices": 2, "device": "cpu"},
        {"gradient_precision": "fp16"},
    ),
    (TRAINING, "version", {"optimizer": "lion"}, {"optimizer": "sgd"}),
    (TRAINING, "version", {"precision": "int8"}, {"precision": "fp32"}),
    (TRAINING, "never", {"device": "cpu", "precision": "tf32"}, {"device": "cuda"}),
    (TRAINING, "never", {"device": "cpu", "precision": "default"}, {"precision": "fp32"}),
    (TRAINING, "version", {"device": "cpu", "precision": "fp16"}, {"precision": "bf16"}),
    (TRAINING, "never", {**GRAPH, "optimizer": "sgd_fused", "device": "cpu"}, {"device": "cuda"}),
    (TRAINING, "never", {"loader": "device", "device": "cpu"}, {"loader": "indexed"}),
    (TRAINING, "never", {"engine": "graph", "optimizer": "sgd_fused"}, {"loader": "device"}),
    (TRAINING, "never", {"batch": 1}, {"batch": 2}),
    (TRAINING, "never", GRAPH, {"optimizer": "sgd_fused"}),
    (TRAINING, "never", {"optimizer": "sgd_master", "precision": "bf16"}, {"optimizer": "sgd_fused"}),
    (TRAINING, "never", {**MASTER, "precision": "fp32"}, {"precision": "bf16"}),
    (TRAINING, "never", {**MASTER, "devices": 8}, {"gradient_precision": "bf16"}),
    (TRAINING, "never", {"engine": "function"}, {"engine": "compile"}),
    (PREDICTION, "never", {**INFER, "model": "wgan"}, {"model": "vgg16"}),
    (PREDICTION, "never", {**INFER, "engine": "openvino"}, {"device": "cpu"}),
    (PREDICTION, "version", {**OPENVINO, "precision": "fp16"}, {"precision": "int8"}),
    (PREDICTION, "never", {**OPENVINO, "copies": "included"}, {"copies": "excluded"}),
    (PREDICTION, "never", {**OPENVINO, "memory_format": "channels_last"}, {"memory_format": "contiguous"}),
    (PREDICTION, "never", {**FUSED, "device": "cpu"}, {"device": "cuda"}),
    (PREDICTION, "version", {**FUSED, "model": "inception_bn"}, {"model": "resnet50"}),
    (PREDICTION, "version", {**INFER, "engine": "triton+graph"}, {"precision": "bf16"}),
    (PREDICTION, "version", {**INFER, "precision": "int8"}, {"engine": "triton+graph"}),
    (ADVERSARIAL, "never", {**WGAN, "model": "resnet18"}, {"model": "wgan"}),
    (ADVERSARIAL, "version", {**WGAN, "engine": "compile"}, {"engine": "eager"}),
    (ADVERSARIAL, "version", {**WGAN, "optimizer": "sgd"}, {"optimizer": "rmsprop"}),
    (ADVERSARIAL, "version", {**WGAN, "precision": "fp16"}, {"precision": "bf16"}),
    (ADVERSARIAL, "never", {**WGAN, "batch": 1}, {"batch": 64}),
    (ADVERSARIAL, "version", {**WGAN, **GRAPH, "batch": 10**6}, {"batch": 64}),
    (keras.RULES, "never", {**JAX, "engine": "eager"}, {"engine": "xla"}),
    (keras.RULES, "version", {**TF, "engine": "compile"}, {"engine": "function"}),
    (keras.RULES, "version", {**TF, "model": "alexnet"}, {"model": "resnet50"}),
    (keras.RULES, "version", {**TF, "precision": "int8"}, {"precision": "bf16"}),
    (keras.RULES, "version", {**TF, "devices": 2}, {"devices": 1}),
    (keras.RULES, "version", {**JAX, "optimizer": "sgd_fused"}, {"optimizer": "sgd"}),
    (keras.RULES, "version", {**JAX, "devices": 2, "nodes": 2}, {"nodes": 1}),
    (TRAINING, "version", {**FILES, "arrangement": "in_sequence"}, {"arrangement": "alone"}),
    (TRAINING, "never", {**FILES, "augment": True}, {"augment": False}),
    (TRAINING, "version", {**FILES, "readers": 2}, {"readers": 1}),
    (STORED, "never", {**FILES, "epochs": 1, "batch": 64}, {"batch": 8}),
    (STORED, "never", {**FILES, "classes": 10}, {"classes": 1000}),
    (PREDICTION, "never", {**INFER, "scored": 5}, {"weights": "trained"}),
    (LARGE, "never", {**INFER, "model": "mlp512", "image_px": 224}, {"model": "vgg16"}),
    (LARGE, "never", {**INFER, "image_px": 32}, {"image_px": 224}),
    (OF_DOCUMENTS, "never", {"image_px": 224}, {"image_px": 32}),
    (OF_DOCUMENTS, "version", {"engine": "graph"}, {"engine": "eager"}),
    (OF_ANY, "never", {"data": "none"}, {"data": "digits"}),
    (OF_ANY, "version", {**TF, "threads": 4}, {"threads": 0}),
    (matmul.RULES[:1], "never", {"workload": "matmul", "precision": "default"}, {"precision": "fp32"}),
    (launch_rate.RULES, "never", {"workload": "launch_rate"}, {"size": 3000}),
    (CEILINGS[2:], "never", {"workload": "all_reduce", "size": 4}, {"devices": 2}),
    (CEILINGS[2:], "never", {"workload": "all_reduce", "devices": 2, "size": 3}, {"size": 4}),
    (TRAINING, "version", {"arrangement": "in_sequence", "epochs": 1}, {"arrangement": "alone"}),
    (TRAINING, "never", {**FILES, "reader": "webdataset"}, {"form": "shards"}),
    (load.RULES, "never", {"workload": "load"}, {"form": "jpeg", "reader": "torch_pil"}),
    (load.RULES, "never", {**LOAD, "reader": "mapped"}, {"form": "cache"}),
    (load.RULES, "never", {**RESIDENT, "workers": 2}, {"workers": 0}),
    (load.RULES, "never", {**RESIDENT, "image_px": 257}, {"image_px": 256}),
    (load.RULES, "version", {**LOAD, "reader": "tf_data", "reader_order": "shared"}, {"reader": "torch_pil"}),
]
# A trial that a rule refuses on a machine, and a word that the reason must have.
MACHINES: list[tuple[Any, Cause, dict[str, Any], dict[str, Any], str]] = [
    (TRAINING, "here", {**ONE_PROCESS, "devices": 4}, {"gpus": 2}, "4 devices"),
    (TRAINING, "here", {}, {"capability": None}, "no GPU here"),
    (TRAINING, "never", {"precision": "tf32"}, {"capability": (7, 0)}, "compute capability 8.0, this device has 7.0"),
    (TRAINING, "never", {"engine": "compile"}, {"capability": (6, 1)}, "this device has 6.1"),
    (TRAINING, "here", {"engine": "compile"}, {"triton": "Triton finds no C compiler"}, "no C compiler"),
    (TRAINING, "here", {"engine": "compile", "device": "cpu"}, {"compiler": None}, "C++ compiler"),
    (PREDICTION, "here", OPENVINO, {"packages": False}, "pip install openvino"),
    (PREDICTION, "here", {**OPENVINO, "precision": "int8"}, {"packages": False}, "pip install openvino nncf"),
    (PREDICTION, "never", {**OPENVINO, "precision": "bf16"}, {"bf16": False}, "no arithmetic of BF16"),
    (PREDICTION, "never", FUSED, {"capability": (7, 0)}, "int8 needs compute capability 7.5"),
    (keras.RULES, "here", JAX, {"packages": False}, "is not installed"),
    (TRAINING, "here", {**FILES, "reader": "tf_data"}, {"packages": False}, "pip install tensorflow"),
    (KERAS_GPU, "here", TF, {"capability": None}, "this tensorflow can use"),
    (KERAS_GPU, "never", {**TF, "precision": "bf16"}, {"capability": (7, 0)}, "compute capability 8.0"),
]
# Trials that are close to those above, and supported.
SUPPORTED: list[tuple[Any, dict[str, Any], dict[str, Any]]] = [
    (TRAINING, MASTER, {}),
    (TRAINING, {**MASTER, "devices": 8, "gradient_precision": "bf16"}, {}),
    (TRAINING, {**ONE_PROCESS, "precision": "fp16"}, {}),
    (TRAINING, {"device": "cpu", "precision": "bf16"}, {"capability": None, "triton": "no Triton"}),
    (TRAINING, {"precision": "fp16"}, {"capability": (7, 0)}),
    (TRAINING, {**GRAPH, "optimizer": "sgd_fused"}, {"capability": (6, 1)}),
    (TRAINING, {}, {"capability": (3, 5)}),
    (TRAINING, {"batch": 1, "model": "vgg16"}, {}),
    (PREDICTION, {**OPENVINO, "precision": "int8"}, {"bf16": False, "capability": None}),
    (PREDICTION, {**INFER, "device": "cpu", "precision": "fp16"}, {}),
    (keras.RULES, {**JAX, "devices": 2}, {}),
    (keras.RULES, {**TF, "batch": 1, "model": "googlenet", "image_px": 224}, {}),
]


@pytest.mark.parametrize(("rules", "cause", "fields", "change"), FIELDS, ids=name)
def test_a_rule_names_the_field_whose_change_lets_the_trial_pass(
    rules: Iterable[Rule], cause: Cause, fields: dict[str, Any], change: dict[str, Any], become: Become
) -> None:
    trial = Trial(**fields)
    refused, rule = refusal(rules, trial), rule_of(rules, trial)
    assert refused is not None and refused.cause == cause
    assert not rule.refuses(replace(trial, **change)), "another change would be needed"
    words = [str(word) for name, value in change.items() for word in (name.rstrip("s"), getattr(trial, name), value)]
    said = str(refused).lower().replace("-", "_")
    assert any(ALIAS.get(word, word) in said or word.replace("_", " ") in said for word in words), said
    assert not said.endswith("."), "the reason is a part of a sentence"


@pytest.mark.parametrize(("rules", "cause", "fields", "state", "word"), MACHINES, ids=name)
def test_a_rule_names_what_the_machine_lacks_and_a_machine_that_has_it_runs_the_trial(
    rules: Iterable[Rule], cause: Cause, fields: dict[str, Any], state: dict[str, Any], word: str, become: Become
) -> None:
    trial = Trial(**fields)
    become(**state)
    refused, rule = refusal(rules, trial), rule_of(rules, trial)
    assert refused is not None and (refused.cause, word in str(refused)) == (cause, True), str(refused)
    assert refusal([rule], trial, elsewhere=True) is None, "a plan for another machine would be refused"
    become(gpus=8)
    assert not rule.refuses(trial)


@pytest.mark.parametrize(("rules", "fields", "state"), SUPPORTED, ids=name)
def test_what_no_rule_refuses_is_supported(
    rules: Iterable[Rule], fields: dict[str, Any], state: dict[str, Any], become: Become
) -> None:
    become(**state)
    assert refusal(rules, Trial(**fields)) is None


def test_every_rule_is_reached(become: Become) -> None:
    reached = {id(rule_of(rules, Trial(**fields))) for rules, _, fields, _ in FIELDS}
    for rules, _, fields, state, _ in MACHINES:
        become(**state)
        reached.add(id(rule_of(rules, Trial(**fields))))
    assert [rule.reason for table in TABLES for rule in table if id(rule) not in reached] == []


def test_a_plan_has_the_reason_beside_each_trial_that_is_unsupported(become: Become) -> None:
    plan = StudyPlan("a study", [Trial(), Trial(engine="openvino"), Trial(precision="tf32")], pairs=3, missing={})
    become(capability=(7, 0))
    for elsewhere, refused in ((True, [False, True, False]), (False, [False, True, True])):
        assert ["unsupported: " in line for line in plan.lines_of_trials(elsewhere=elsewhere)] == refused


def test_a_forgotten_cause_is_the_state_of_the_machine() -> None:
    assert Unsupported("who knows").cause == "here"
