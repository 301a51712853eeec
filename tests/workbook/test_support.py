"""Support: each rule refuses a trial, names what to change, and lets the changed trial or the mended machine pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from workbook.engines.keras import support as keras
from workbook.errors import Cause, Unsupported
from workbook.runner.preparing import TOGETHER
from workbook.trials.rules import Rule, check
from workbook.trials.trial import Trial
from workbook.workloads import BUILDS

torch = pytest.importorskip("torch")

from workbook.engines import openvino_on_cpu as openvino  # noqa: E402
from workbook.engines import support, triton_check  # noqa: E402
from workbook.engines.common_rules import of_gpu  # noqa: E402
from workbook.engines.gan_training import RULES as ADVERSARIAL  # noqa: E402
from workbook.engines.support import PREDICTION, TRAINING  # noqa: E402
from workbook.workloads._inputs import OF_DOCUMENTS, of_stored  # noqa: E402
from workbook.workloads.infer import of_inputs  # noqa: E402

KERAS_GPU = of_gpu("tensorflow", lambda: torch.cuda.get_device_capability() if torch.cuda.is_available() else None)
STORED = of_stored(SimpleNamespace(images=10, classes=1000))
LARGE = of_inputs(SimpleNamespace(words=0, edge_px=224, name="photographs"))
TABLES = (TRAINING, PREDICTION, ADVERSARIAL, keras.RULES, KERAS_GPU, STORED, LARGE, OF_DOCUMENTS, BUILDS, TOGETHER)

GRAPH = {"engine": "graph", "loader": "device"}
MASTER = {**GRAPH, "optimizer": "sgd_master", "precision": "bf16"}
ONE_PROCESS = {"parallel": "one_process", "devices": 2, "scaling": "strong"}
OPENVINO = {"engine": "openvino", "device": "cpu"}
FUSED = {"engine": "triton+graph", "precision": "int8"}
WGAN = {"model": "wgan", "optimizer": "rmsprop"}
TF, JAX = {"framework": "keras-tensorflow"}, {"framework": "keras-jax", "engine": "xla"}
FILES = {"form": "jpeg", "reader": "torch_pil", "classes": 1000}
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
        monkeypatch.setattr(keras, "find_spec", lambda name: name if machine.packages else None)

    pretend()
    return pretend


def refusal(rules: Iterable[Rule], trial: Trial) -> Unsupported | None:
    try:
        check(rules, trial)
    except Unsupported as refused:
        return refused
    return None


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
    (PREDICTION, "never", {"model": "wgan"}, {"model": "vgg16"}),
    (PREDICTION, "version", {"devices": 2}, {"devices": 1}),
    (PREDICTION, "never", {"engine": "openvino"}, {"device": "cpu"}),
    (PREDICTION, "version", {**OPENVINO, "precision": "fp16"}, {"precision": "int8"}),
    (PREDICTION, "never", {**OPENVINO, "copies": "included"}, {"copies": "excluded"}),
    (PREDICTION, "never", {**OPENVINO, "memory_format": "channels_last"}, {"memory_format": "contiguous"}),
    (PREDICTION, "never", {**FUSED, "device": "cpu"}, {"device": "cuda"}),
    (PREDICTION, "version", {**FUSED, "model": "inception_bn"}, {"model": "resnet50"}),
    (PREDICTION, "version", {"engine": "triton+graph"}, {"precision": "bf16"}),
    (PREDICTION, "version", {"precision": "int8"}, {"engine": "triton+graph"}),
    (ADVERSARIAL, "never", {**WGAN, "model": "resnet18"}, {"model": "wgan"}),
    (ADVERSARIAL, "version", {**WGAN, "engine": "compile"}, {"engine": "eager"}),
    (ADVERSARIAL, "version", {**WGAN, "devices": 2}, {"devices": 1}),
    (ADVERSARIAL, "version", {**WGAN, "optimizer": "sgd"}, {"optimizer": "rmsprop"}),
    (ADVERSARIAL, "never", {**WGAN, "epochs": 1}, {"epochs": 0}),
    (ADVERSARIAL, "version", {**WGAN, "precision": "fp16"}, {"precision": "bf16"}),
    (ADVERSARIAL, "never", {**WGAN, "augment": True}, {"augment": False}),
    (ADVERSARIAL, "never", {**WGAN, "batch": 1}, {"batch": 64}),
    (ADVERSARIAL, "version", {**WGAN, **GRAPH, "batch": 10**6}, {"batch": 64}),
    (keras.RULES, "never", {**JAX, "engine": "eager"}, {"engine": "xla"}),
    (keras.RULES, "version", {**TF, "engine": "compile"}, {"engine": "function"}),
    (keras.RULES, "version", {**TF, "model": "alexnet"}, {"model": "resnet50"}),
    (keras.RULES, "version", {**TF, "precision": "int8"}, {"precision": "bf16"}),
    (keras.RULES, "version", {**TF, "devices": 2}, {"devices": 1}),
    (keras.RULES, "version", {**JAX, "optimizer": "sgd_fused"}, {"optimizer": "sgd"}),
    (keras.RULES, "version", {**JAX, "devices": 2, "nodes": 2}, {"nodes": 1}),
    (STORED, "version", {**FILES, "arrangement": "in_sequence"}, {"arrangement": "alone"}),
    (STORED, "never", {**FILES, "augment": True}, {"augment": False}),
    (STORED, "version", {**FILES, "readers": 2}, {"readers": 1}),
    (STORED, "never", {**FILES, "epochs": 1, "batch": 64}, {"batch": 8}),
    (STORED, "never", {**FILES, "classes": 10}, {"classes": 1000}),
    (LARGE, "never", {"scored": 5, "image_px": 224}, {"weights": "trained"}),
    (LARGE, "never", {"model": "mlp512", "image_px": 224}, {"model": "vgg16"}),
    (LARGE, "never", {"image_px": 32}, {"image_px": 224}),
    (OF_DOCUMENTS, "never", {"image_px": 224}, {"image_px": 32}),
    (OF_DOCUMENTS, "version", {"engine": "graph"}, {"engine": "eager"}),
    (BUILDS, "version", {**FILES, "workload": "infer"}, {"workload": "train"}),
    (BUILDS, "version", {**JAX, "workload": "infer"}, {"framework": "torch"}),
    (TOGETHER, "version", {**ONE_PROCESS, "workload": "infer"}, {"workload": "train"}),
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
    (PREDICTION, {"device": "cpu", "precision": "fp16"}, {}),
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
    ((field, value),) = change.items()
    words = [field.rstrip("s"), str(getattr(trial, field)), str(value)]
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


def test_a_forgotten_cause_is_the_state_of_the_machine() -> None:
    assert Unsupported("who knows").cause == "here"
