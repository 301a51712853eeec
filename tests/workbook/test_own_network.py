"""Tests of a network that the user brings: its report, and the sentences for what cannot be measured."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
import torch._inductor.config

from labkit.errors import LabkitError, UserError
from labkit.models import open_network
from labkit.models.networks import TASKS
from labkit.timing import HostClock
from tests.faulty.campaign import HOST, tiny_profile, trial
from tests.prepared import checked, prepare
from workbook.engines.own_flop import attention, counted_flop
from workbook.engines.own_network import OwnStep
from workbook.engines.quantised import inductor_options, quantise
from workbook.errors import GateError
from workbook.paths import ROOT
from workbook.records.store import Store
from workbook.registry import STUDIES, YOUR_NETWORK
from workbook.report.plan import chosen_studies, measured_studies
from workbook.report.rendering import _nothing_worked
from workbook.results import Results, records_of_host
from workbook.runner import measure
from workbook.session import Session
from workbook.studies.your_network import sizes
from workbook.trace import memory_of_step
from workbook.trials.own_module import source_hash_of_file
from workbook.trials.today import TODAY, open_today
from workbook.trials.trial import NO_DATA, Trial
from workbook.workloads import build_workload
from workbook.workloads._own import OwnWorkload, draws

SOUND = """
import torch
from torch import nn
tokens_per_sample = 5
calls = []
def build(): return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 1))
def batch(size, device): return torch.randn(size, 4, device=device)
def loss(network, batch): return network(batch).square().mean()
def predict(network, batch): return network(batch)
"""


@pytest.fixture(autouse=True)
def _path_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo that opening a file makes its folder importable."""
    monkeypatch.setattr(sys, "path", [*sys.path])


def file_with(folder: Path, text: str) -> str:
    path = folder / "mine.py"
    path.write_text(SOUND + text)
    return str(path)


def trial_of(name: str, **fields: object) -> Trial:
    network = open_network(name)
    source = source_hash_of_file(network.path) if network.path else ""
    about = {"workload": "own_training", "batch": 3, "device": "cpu", "data": NO_DATA, **fields}
    return Trial(model=network.name, workload_source=source, **about)  # type: ignore[arg-type]


def prepared(name: str, **fields: object) -> None:
    """Do what a worker does before it times a trial."""
    workload = prepare(build_workload(trial_of(name, **fields), None, network=name))
    workload.step()
    workload.check()


@pytest.mark.parametrize("workload", ["own_training", "own_prediction"])
@pytest.mark.parametrize("fields", [{}, {"precision": "bf16", "optimizer": "sgd_fused"}])
def test_a_sound_network_passes_the_check(tmp_path: Path, workload: str, fields: dict[str, str]) -> None:
    prepared(file_with(tmp_path, ""), workload=workload, **fields)


def test_the_mode_of_a_prediction_has_the_weights_of_its_eager_steps(tmp_path: Path) -> None:
    """A network of 8 billion weights is built once, and no copy of it passes through the host."""
    name = file_with(tmp_path, "def build(): calls.append('build'); return nn.Linear(4, 1)")
    network = open_network(name)
    workload = OwnWorkload(trial_of(name, workload="own_prediction", optimizer="sgd_fused"), network, training=False)
    prepare(workload).check()
    assert network.build.__globals__["calls"] == ["build"]
    assert workload._initial == []


WIDE = """
def build(): return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.Linear(64, 3))
def batch(size, device): return torch.randn(size, 64, device=device)
"""


def test_int8_weights_predict_nearly_what_bf16_weights_do_and_are_half_as_large(tmp_path: Path) -> None:
    name = file_with(tmp_path, WIDE)
    facts = {}
    for precision in ("bf16", "int8"):
        asked = trial_of(name, workload="own_prediction", precision=precision, memory_format="channels_last")
        workload = checked(asked, None, network=name)
        facts[precision] = workload.facts
        weights = memory_of_step(workload.step, HostClock(), workload.held, on_gpu=False).weights
        assert weights == facts[precision]["weight_traffic_bytes_per_step"], "a traced step counts the same bytes"
    assert not torch._inductor.config.coordinate_descent_tuning, "torchao left the compiler as other networks need it"
    assert 0 < facts["int8"]["gate"]["answer_difference"] < 0.1, "they are quantised, and not wrong"
    assert facts["int8"]["quantised_by"].startswith("torchao ") and "quantised_by" not in facts["bf16"]
    half, byte = (facts[precision]["weight_traffic_bytes_per_step"] for precision in ("bf16", "int8"))
    last = 2 * (64 * 3 + 3)  # its side of 3 is left in BF16, with its bias
    assert 0.5 < (byte - last) / (half - last) < 0.6, "a byte per weight, and scales"


@pytest.mark.parametrize(
    ("text", "said", "fields"),
    [
        (WIDE, "INT8 and FP8 weights predict, and do not train", {"workload": "own_training", "precision": "int8"}),
        (WIDE, "FP8 products need a GPU", {"precision": "fp8"}),
        ("", "no linear layer whose sides are multiples of 16", {"precision": "int8"}),
    ],
)
def test_weights_that_cannot_be_quantised_are_a_sentence(
    tmp_path: Path, text: str, said: str, fields: dict[str, str]
) -> None:
    with pytest.raises(LabkitError, match=said):
        prepared(file_with(tmp_path, text), **{"workload": "own_prediction", **fields})


def test_the_compiler_has_options_of_its_own_for_quantised_weights_on_a_gpu_alone() -> None:
    assert {*inductor_options("int8", "cuda"), *inductor_options("fp8", "cuda")} <= {*torch._inductor.list_options()}
    assert inductor_options("int8", "cuda") != inductor_options("fp8", "cuda")
    assert inductor_options("bf16", "cuda") is inductor_options("int8", "cpu") is None


def test_a_damaged_weight_of_int8_fails_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(model: torch.nn.Module, precision: str) -> None:
        quantise(model, precision)
        model[0].weight.scale *= 1.5  # type: ignore[index]

    monkeypatch.setattr("workbook.engines.own_network.quantise", damaged)
    with pytest.raises(GateError, match="prediction differs"):
        prepared(file_with(tmp_path, WIDE), workload="own_prediction", precision="int8")


NESTED = """
def batch(size, device):
    return torch.nested.nested_tensor([torch.randn(2 + k, 4) for k in range(size)], layout=torch.jagged)
def loss(network, batch): return network(batch).values().mean()
"""
SPARSE = """
def batch(size, device): return torch.randn(size, 4, device=device).relu().to_sparse_csr()
def loss(network, batch): return torch.sparse.mm(batch, network[0].weight.t()).mean()
"""


GRAPH = """
class Graph(nn.Linear):
    def __init__(self):
        super().__init__(4, 1)
        self.register_buffer("edges", torch.eye(3).to_sparse())
    def forward(self, nodes): return torch.sparse.mm(self.edges, super().forward(nodes))
def build(): return Graph()
"""


@pytest.mark.parametrize("text", [NESTED, SPARSE, GRAPH])
def test_samples_of_any_layout_are_measured_without_a_false_count_of_flop(tmp_path: Path, text: str) -> None:
    name = file_with(tmp_path, text)
    workload = checked(trial_of(name), None, network=name)
    assert workload.flop_per_step is None, "PyTorch's counter fails for nested samples, and counts 0 for sparse ones"
    assert workload.facts["image_bytes"] > 0


COMPILED = {"engine": "compile"}
ADDED = SOUND.count("\n") + 1  # the line of what `file_with` adds


@pytest.mark.parametrize(
    ("text", "said", "fields"),
    [
        ("def build(): return 3", "returned int, no torch.nn.Module", {}),
        ("def build(): raise KeyError('layers')", f"build() of mine.py (line {ADDED}) failed: KeyError", {}),
        ("def build(): raise ValueError('weights:\\n not found')", "ValueError: weights: not found", {}),
        ("def loss(network, batch): raise SystemExit(0)", f"a step of mine.py (line {ADDED}) failed: SystemExit", {}),
        ("def batch(size, device): return [size]", "returned no tensor", {}),
        ("def batch(size, device): return torch.randn(7, 4)", "gives 28 numbers for size=3, 28 for 1 and 28 for 2", {}),
        ("def batch(size, device): return torch.randn(min(size, 2), 4)", "must give `size` samples", {"batch": 16}),
        ("def loss(network, batch): return network(batch)", "returned shape (3, 1), not a tensor with one number", {}),
        ("def loss(network, batch): return 0.5", "returned type float", {}),
        ("def loss(network, batch): return network(batch).detach().mean()", "gets a gradient from its loss", {}),
        ("def loss(network, batch): return (network(batch) * float('nan')).mean()", "is nan before the first", {}),
        (
            "def loss(network, batch): return network(batch.double()).mean()",
            f"(line {ADDED}) failed: Runtime",
            {},
        ),
        (
            "def loss(network, batch): return network(batch).mean() * (2 if network(batch).sum() > 0 else 1)",
            "cannot make one graph of the step",
            COMPILED,
        ),
        ("def loss(network, batch): return network(batch).mean() * batch.tolist()[0][0]", "compile", COMPILED),
        (
            "def batch(size, device): calls.append(1); return torch.randn(size + len(calls) // 4, 4, device=device)",
            "gave shapes [(3, 4)], then [(4, 4)]",
            COMPILED,
        ),
        (NESTED, "gave shapes ['nested'], then ['nested']", COMPILED),
        (
            "def predict(network, batch): return network(batch + torch.rand_like(batch))",
            "draws random numbers beside dropout",
            {"workload": "own_prediction", **COMPILED},
        ),
        ("def predict(network, batch): return []", "returned no numbers", {"workload": "own_prediction"}),
        ("def predict(network, batch): return network(batch) * float('nan')", "NaN", {"workload": "own_prediction"}),
        ("del predict", "mine.py has no predict(network, batch)", {"workload": "own_prediction"}),
        ("", "needs a loss scale", {"precision": "fp16"}),
        ("", "a CPU has no CUDA graphs", {"engine": "graph"}),
        ("def optimizer(parameters): return 'adam'", "returned no optimiser of torch.optim", {}),
    ],
)
def test_what_a_network_cannot_do_is_one_sentence_before_the_timing(
    tmp_path: Path, text: str, said: str, fields: dict[str, str]
) -> None:
    with pytest.raises(LabkitError) as raised:
        prepared(file_with(tmp_path, text), **fields)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_samples_that_differ_between_calls_are_drawn_once(tmp_path: Path) -> None:
    drawn = "import numpy\ndef batch(size, device): return torch.from_numpy(numpy.random.rand(size, 4)).float()"
    prepared(file_with(tmp_path, drawn), **COMPILED)
    prepared(file_with(tmp_path, drawn), workload="own_prediction", precision="bf16")


def test_a_mode_that_computes_something_else_fails_its_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))  # traces, and generates no code
    wrong = "def predict(network, batch): return network(batch) + torch.compiler.is_compiling()"
    with pytest.raises(LabkitError, match="prediction differs"):
        prepared(file_with(tmp_path, wrong), workload="own_prediction", **COMPILED)


@pytest.mark.parametrize(
    ("noise", "drawn", "random"), [(0, 0, False), (1e-6, 0, False), (0, 1e-6, True), (1e-6, 1, True)]
)
def test_kernels_that_add_in_any_order_draw_no_numbers(noise: float, drawn: float, random: bool) -> None:
    order = torch.Generator().manual_seed(3)  # differs from run to run, whatever the seed of the step

    def value_only() -> torch.Tensor:
        return torch.ones(1000) + noise * torch.rand(1000, generator=order) + drawn * torch.rand(1000)

    assert draws(cast(OwnStep, SimpleNamespace(value_only=value_only))) == random


def test_a_decode_step_writes_its_caches_in_place() -> None:
    from torch._inductor.utils import run_and_get_code  # takes seconds, which only this test needs

    network, place = open_network(str(ROOT / "examples" / "decode.py")), torch.device("cpu")
    module = sys.modules[network.build.__module__]
    shape = module.Shape(layers=2, width=256, heads=16, hidden=64)
    model, samples = module.build(shape).to(place), module.batch(2, place, shape)
    with torch.inference_mode():
        _, (code, *_) = run_and_get_code(torch.compile(module.predict, dynamic=False), model, samples)
    whole = (2, module.KEY_HEADS, module.CONTEXT, shape.head)
    assert f"empty_strided_cpu({whole}" not in code, "a step copies a layer's cache"


def test_a_network_that_draws_nothing_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    torch._dynamo.utils.counters.clear()
    prepared(file_with(tmp_path, "def build(): return nn.Linear(4, 1)"), **COMPILED)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


IMAGES = """
def build(): return nn.Sequential(nn.Conv2d(4, 8, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 1))
def batch(size, device): return torch.randn(size, 4, 6, 5, device=device)
"""
ATTENTION = """
class Mixed(nn.Linear):
    def forward(self, keys): return super().forward(nn.functional.scaled_dot_product_attention(keys, keys, keys))
def build(): return Mixed(5, 1)
def batch(size, device): return torch.randn(size, 4, 6, 5, device=device)
"""


@pytest.mark.parametrize(("text", "last"), [(IMAGES, True), (ATTENTION, False)])
def test_samples_of_convolutions_alone_become_channels_last(tmp_path: Path, text: str, last: bool) -> None:
    name = file_with(tmp_path, text)
    given = trial_of(name, workload="own_prediction", precision="bf16", memory_format="channels_last")
    samples = OwnStep(given, open_network(name), training=False).samples
    assert samples.is_contiguous(memory_format=torch.channels_last) is last
    assert samples.is_contiguous() is not last


def test_records_have_rates_in_samples_and_tokens_and_no_path(tmp_path: Path) -> None:
    name = file_with(tmp_path, "")
    session = Session(profile=tiny_profile(), host=HOST, store=Store(tmp_path / "cpu"), scale="smoke", network=name)
    trials = [trial_of(name), trial_of(name, workload="own_prediction")]
    assert measure(trials, study=YOUR_NETWORK, session=session).measured == 2
    about = {"store": session.store, "host_id": HOST.id, "asked": ("smoke", None)}
    shown = records_of_host(session.profile, STUDIES[YOUR_NETWORK], **about)
    frame = Results([shown]).frame()
    assert (frame["status"] == "ok").all()
    assert (frame["tokens_per_s"] / frame["samples_per_s"]).round(6).eq(5).all()
    assert frame["images_per_s"].isna().all()
    assert str(tmp_path) not in session.store.path(HOST.id, YOUR_NETWORK).read_text()


@pytest.mark.parametrize(("workload", "precision"), [("own_training", "fp32"), ("own_prediction", "bf16")])
def test_the_eager_steps_of_a_network_are_seen_once(tmp_path: Path, workload: str, precision: str) -> None:
    """Seeing them takes ten of the steps that are timed, and a large network's last for seconds on a CPU."""
    name, store = file_with(tmp_path, ""), Store(tmp_path / "cpu")
    session = Session(profile=tiny_profile(passes=2), host=HOST, store=store, scale="quick", network=name)
    measure([trial_of(name, workload=workload, precision=precision)], study=YOUR_NETWORK, session=session)
    records = store.read(YOUR_NETWORK, HOST.id)
    seen = [record for record in records if record.pass_number == 1]  # two beside other load, which repeats a run
    assert len(seen) < len(records) and all(record.facts["gate"]["steps"] for record in seen)
    for record in records[len(seen) :]:
        assert record.status == "ok" and "gate" not in record.facts
        assert record.facts["gate_passed_in"] in {earlier.process.id for earlier in seen}


def test_a_report_fails_with_the_reason_if_no_step_of_the_network_ran(tmp_path: Path) -> None:
    name = file_with(tmp_path, "def build(): raise ValueError('weights:\\n not found')")
    session = Session(profile=tiny_profile(), host=HOST, store=Store(tmp_path / "cpu"), scale="smoke", network=name)
    trials = [trial_of(name), trial(), trial_of(name, workload="own_prediction")]
    assert measure(trials, study=YOUR_NETWORK, session=session).measured == 3
    why = _nothing_worked(session, YOUR_NETWORK)
    assert why and "not one of 2 trials" in why and "ValueError: weights: not found" in why


def test_later_rounds_repeat_what_the_versions_refuse_without_a_try(tmp_path: Path) -> None:
    name = file_with(tmp_path, "def predict(network, batch): return network(batch + torch.rand_like(batch))")
    store = Store(tmp_path / "cpu")
    session = Session(profile=tiny_profile(passes=2), host=HOST, store=store, scale="quick", network=name)
    measure([trial_of(name, workload="own_prediction", **COMPILED)], study=YOUR_NETWORK, session=session)
    first, *later = store.read(YOUR_NETWORK, HOST.id)
    assert first.process.startup_s > 0
    assert [record.pass_number for record in later] == [*range(2, len(later) + 2)]
    for record in later:
        assert (record.reason, record.cause, record.process.startup_s) == (first.reason, "version", 0)


def test_a_changed_file_is_another_network_and_is_not_loaded_for_earlier_records(tmp_path: Path) -> None:
    name = file_with(tmp_path, "")
    earlier = trial_of(name)
    assert trial_of(file_with(tmp_path, "# other")).key != earlier.key
    with pytest.raises(LabkitError, match="has changed meanwhile"):
        build_workload(earlier, None, network=name)
    with pytest.raises(LabkitError, match="not the network of NETWORK="):
        build_workload(earlier, None)


def test_a_report_has_the_study_with_a_network_alone() -> None:
    assert YOUR_NETWORK not in chosen_studies("")
    with pytest.raises(UserError, match="unknown study ','; valid: "):
        chosen_studies(",")
    assert YOUR_NETWORK in measured_studies("", "mine.py")
    for names, network in (("your_network", ""), ("training", "mine.py")):
        with pytest.raises(UserError, match="belong together"):
            measured_studies(names, network)


@pytest.mark.parametrize("text", ["many", "0", "-3", "2.5", "8;16", ",", "9" * 20, "9" * 5000, "٨"])
def test_batch_sizes_that_are_none_get_one_sentence(text: str) -> None:
    with pytest.raises(UserError, match="no list of batch sizes"):
        sizes(text, [8])


@pytest.mark.parametrize("name", TODAY)
def test_a_plan_knows_what_a_network_of_today_does(name: str) -> None:
    network, planned = open_today(name), TODAY[name]
    assert network.path == planned.path
    assert tuple(task for task in TASKS if getattr(network, task)) == planned.tasks


# Multiply-adds of one image, as torchvision's documentation of the weights gives them.
PUBLISHED = {"vit_b_16": 17.564e9, "swin_t": 4.491e9, "resnet50": 4.089e9, "convnext_tiny": 4.456e9}


@pytest.mark.parametrize(("name", "published"), PUBLISHED.items())
def test_the_flop_of_a_training_are_three_times_those_of_a_prediction(name: str, published: float) -> None:
    """ConvNeXt has a group per channel, which PyTorch's own formula does not count in the weights' gradient."""
    network = open_today(name)
    model, samples = network.build(), network.batch(1, torch.device("cpu"))
    assert network.loss is not None
    with counted_flop() as counter:
        network.loss(model, samples).backward()
    assert counter.get_total_flops() == pytest.approx(3 * 2 * published, rel=0.03)


@pytest.mark.parametrize(("name", "published"), PUBLISHED.items())
def test_the_flop_of_a_prediction_are_the_published_ones(name: str, published: float) -> None:
    network = open_today(name)
    model, samples = network.build().eval(), network.batch(1, torch.device("cpu"))
    assert network.predict is not None
    with torch.inference_mode(), counted_flop() as counter:
        network.predict(model, samples)
    assert counter.get_total_flops() == pytest.approx(2 * published, rel=0.02)


# Weights as torchvision's documentation and the GPT-2 paper's small network with padded words have them.
@pytest.mark.parametrize(
    ("name", "parameters"),
    [("vit_b_16", 86_567_656), pytest.param("gpt2_124m", 124_475_904, marks=pytest.mark.slow)],
)
def test_a_training_holds_its_weights_four_times_in_fp32(name: str, parameters: int) -> None:
    network = open_today(name)
    source = source_hash_of_file(network.path) if network.path else ""
    about = {"workload": "own_training", "workload_source": source, "batch": 1, "device": "cpu", "data": NO_DATA}
    workload = build_workload(Trial(model=name, **about), None, network=name)  # type: ignore[arg-type]
    assert isinstance(workload, OwnWorkload)
    workload.leave_out_gate()
    prepare(workload).step()
    held = workload.held()
    kinds = {"weights": held.weights, "gradients": held.gradients, "optimiser": held.optimiser}
    seen = {kind: sum(value.nbytes for value in values) for kind, values in kinds.items()}
    assert seen == pytest.approx(
        {"weights": 4 * parameters, "gradients": 4 * parameters, "optimiser": 8 * parameters}, rel=1e-3
    )


def test_the_flop_of_a_text_network_are_those_of_its_matrix_products() -> None:
    network, tokens, layers, width, words = open_today("gpt2_124m"), 1024, 12, 768, 50_304
    assert network.loss is not None
    model, samples = network.build(), network.batch(1, torch.device("cpu"))
    with counted_flop() as counter:
        network.loss(model, samples).backward()
    weights = 12 * layers * width**2 + words * width
    forward = 2 * weights * tokens + layers * 4 * tokens**2 * width
    assert counter.get_total_flops() == pytest.approx(3 * forward, rel=0.02)
    assert sum(weight.numel() for weight in model.parameters()) == pytest.approx(124.4e6, rel=0.01)


def test_keys_with_fewer_heads_than_queries_are_counted() -> None:
    query, key = torch.randn(2, 8, 16, 4), torch.randn(2, 2, 16, 4)
    with counted_flop() as counter:
        torch.nn.functional.scaled_dot_product_attention(query, key, key, enable_gqa=True)
    assert counter.get_total_flops() == attention((2, 8, 16, 4), (2, 8, 16, 4), (2, 8, 16, 4))
