"""Tests of taking traces in pieces and within limits, of the sections of a step, and of the memory of a step."""

from __future__ import annotations

import gc
import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, get_args

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn import functional

from labkit.data import DataSet, open_data
from labkit.timing import HostClock
from tests.commands import apart
from tests.faulty.campaign import records, run, tiny_profile
from tests.faulty.campaign import trial as workload_trial
from tests.prepared import checked
from workbook.engines.regions import loss_function
from workbook.records import Blocks, Record, short_hash
from workbook.records.traced import SECTIONS, Traced, Untraced
from workbook.runner.afterwards import asked_of_steps
from workbook.runner.protocol import Pass
from workbook.trace import SECTION, STEP, Held, UntracedError, memory_of_step, profiler, take_trace
from workbook.trace.profiler import FIRST_STEPS, MOST_STEPS
from workbook.trials.trial import Trial
from workbook.workloads import Workload


class Pieces:
    """An analysis that counts steps and keeps the names of labkit's ranges."""

    def __init__(self, *, fails_at: int = 0) -> None:
        self.steps: list[int] = []
        self.ranges: list[list[str]] = []
        self._fails_at = fails_at

    def add(self, path: Path, *, steps: int) -> None:
        if len(self.steps) + 1 == self._fails_at:
            raise UntracedError("the file says nothing")
        rows = json.loads(path.read_text())["traceEvents"]
        ranges = [row for row in rows if row.get("cat") == "user_annotation" and row["name"].startswith("labkit")]
        self.ranges.append([row["name"] for row in sorted(ranges, key=lambda row: (row["ts"], -row["dur"]))])
        self.steps.append(steps)


class SlowClock(HostClock):
    """A clock on which every step takes `second_s`."""

    def __init__(self, second_s: float = 1.0) -> None:
        self._now_s, self._second_s = 0.0, second_s

    def now_s(self) -> float:
        return self._now_s

    def time_block(self, step: Callable[[], object], steps: int) -> tuple[float, float | None]:
        for _ in range(steps):
            step()
        self._now_s += self._second_s * steps
        return self._second_s * steps, None


def small_step() -> None:
    torch.ones(8, 8) @ torch.ones(8, 8)


# ---- pieces and limits ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked_for", "pieces"),
    [(5, [5]), (48, [FIRST_STEPS, MOST_STEPS, MOST_STEPS, 3])],
)
def test_a_trace_is_taken_in_pieces(asked_for: int, pieces: list[int]) -> None:
    seen, taken, shares = Pieces(), [], []

    def step() -> None:
        taken.append(1)
        small_step()

    trace = take_trace(step, HostClock(), seen, asked_for=asked_for, on_gpu=False, on_share=shares.append)
    assert seen.steps == pieces
    assert len(taken) == asked_for + len(pieces), "each piece has a step that warms up the profiler"
    assert [names.count(STEP) for names in seen.ranges] == pieces, "the warm-up step is not in the trace"
    assert (trace.steps, trace.notes) == (asked_for, [])
    assert shares == sorted(shares) and shares[-1] == 1


class Slow(Pieces):
    """An analysis of a piece that takes 35 s on its clock."""

    clock: SlowClock

    def add(self, path: Path, *, steps: int) -> None:
        super().add(path, steps=steps)
        self.clock.time_block(lambda: None, 35)


@pytest.mark.parametrize(
    ("kind", "analysed_s", "elapsed_s"), [(Pieces, 0, (40, 41)), (Slow, 70, (0, 40))], ids=["steps", "analysis"]
)
def test_the_time_limit_ends_a_trace_with_a_note(
    kind: type[Pieces], analysed_s: float, elapsed_s: tuple[float, float]
) -> None:
    """Pieces start only if time is left. They may exceed it by a step."""
    seen, clock = kind(), SlowClock()
    seen.clock = clock
    trace = take_trace(small_step, clock, seen, asked_for=100, limit_s=40, on_gpu=False)
    assert trace.steps == sum(seen.steps) < 100
    assert elapsed_s[0] <= trace.elapsed_s <= elapsed_s[1] and trace.analysed_s == analysed_s
    (note,) = trace.notes
    assert f"{trace.steps} of 100" in note and "40 s" in note


def test_a_step_longer_than_the_limit_is_traced_once() -> None:
    seen = Pieces()
    trace = take_trace(small_step, SlowClock(50), seen, asked_for=5, limit_s=30, step_s=45, on_gpu=False)
    assert (trace.steps, seen.steps, trace.asked_for) == (1, [1], 5)


def test_work_between_pieces_is_in_no_piece() -> None:
    events: list[str] = []

    def step() -> None:
        assert not gc.isenabled(), "Python's garbage collector is off during traced steps"
        events.append("step")
        small_step()

    take_trace(step, HostClock(), Pieces(), asked_for=7, on_gpu=False, after_piece=lambda: events.append("read"))
    assert [event for event, _ in groupby(events)] == ["step", "read"] * 2
    assert gc.isenabled()


@pytest.mark.parametrize("fails_in", [1, 9])
def test_a_failing_step_stops_the_profiler_and_enables_the_garbage_collector(fails_in: int) -> None:
    taken = []

    def step() -> None:
        taken.append(1)
        if len(taken) == fails_in:
            raise ValueError("this step has no such layer")

    with pytest.raises(ValueError, match="no such layer"):
        take_trace(step, HostClock(), Pieces(), asked_for=12, on_gpu=False)
    assert not torch.autograd._profiler_enabled()
    assert gc.isenabled()


@pytest.mark.parametrize("method", ["start", "step", "stop", "export_chrome_trace"])
def test_a_failing_profiler_raises_untraced_error(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no room for its buffers")

    with monkeypatch.context() as broken, pytest.raises(UntracedError, match="RuntimeError: no room"):
        broken.setattr(torch.profiler.profile, method, fails)
        take_trace(small_step, HostClock(), Pieces(), asked_for=2, on_gpu=False)
    if method == "stop":
        torch.autograd._disable_profiler()  # the test replaced `stop`, so nothing else stops the profiler
    assert not torch.autograd._profiler_enabled()


def test_a_build_of_pytorch_without_cuda_traces_is_refused_before_any_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.profiler, "supported_activities", lambda: {torch.profiler.ProfilerActivity.CPU})
    with pytest.raises(UntracedError, match="CUDA activity"):
        take_trace(lambda: pytest.fail("it took a step"), HostClock(), Pieces(), asked_for=2, on_gpu=True)


def rows_of(file: Path) -> list[dict[str, Any]]:
    with gzip.open(file, "rt") as packed:
        return json.load(packed)["traceEvents"]


def test_a_piece_without_events_ends_the_trace_and_keeps_earlier_pieces(tmp_path: Path) -> None:
    """With `keep`, the last piece is saved even if its analysis fails."""
    file = tmp_path / "traces" / "host" / "0a1b2c3d-pass1.json.gz"
    trace = partial(take_trace, small_step, HostClock(), asked_for=7, on_gpu=False)
    for fails_at, kept_steps in ((3, 2), (2, 2), (1, 5)):
        if fails_at == 1:
            with pytest.raises(UntracedError, match="says nothing"):
                trace(Pieces(fails_at=1), keep=file)
        else:
            taken = trace(Pieces(fails_at=fails_at), keep=file)
            assert (taken.steps, len(taken.notes)) == ((5, 1) if fails_at == 2 else (7, 0))
            assert all("5 of 7" in note and "says nothing" in note for note in taken.notes)
        assert [path.name for path in file.parent.iterdir()] == [file.name]
        steps = [row for row in rows_of(file) if (row.get("name"), row.get("cat")) == (STEP, "user_annotation")]
        assert len(steps) == kept_steps
    (tmp_path / "full").write_text("no folder")
    taken = trace(Pieces(), keep=tmp_path / "full" / "x.json.gz")
    assert taken.steps == 7 and len(taken.notes) == 1


# ---- sections -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data() -> DataSet:
    return open_data("synthetic32", train_images=64, val_images=8)


def training(data: DataSet, **fields: Any) -> Any:
    about: dict[str, Any] = {"model": "resnet18", "batch": 2, "device": "cpu", "classes": 1000, **fields}
    return checked(Trial(data=data.name, data_checksum=data.checksum, **about), data)


def sections_of(step: Callable[[], object]) -> list[str]:
    """Return the sections of a step, in the order in which the host entered them."""
    seen = Pieces()
    with profiler.marked():
        take_trace(step, HostClock(), seen, asked_for=1, on_gpu=False)
    (names,) = seen.ranges
    assert names[0] == STEP
    return [name.removeprefix(SECTION) for name in names[1:]]


def test_the_names_of_sections_equal_those_of_the_record() -> None:
    assert get_args(profiler.Name) == SECTIONS


@pytest.mark.parametrize("fields", [{}, {"optimizer": "sgd_fused", "precision": "bf16"}], ids=str)
def test_a_step_marks_its_sections_only_while_it_is_traced(data: DataSet, fields: dict[str, Any]) -> None:
    workload = training(data, **fields)
    assert sections_of(workload.step) == ["load", "optimiser", "forward", "loss", "backward", "optimiser"]
    seen = Pieces()
    take_trace(workload.step, HostClock(), seen, asked_for=1, on_gpu=False)
    assert seen.ranges == [[STEP]]


def test_marks_surround_a_compiled_graph_without_breaking_it() -> None:
    model = nn.Linear(4, 3)
    compiled = loss_function(model, partial(torch.compile, fullgraph=True, backend="eager"))
    images, labels = torch.ones(2, 4), torch.tensor([0, 2])
    with profiler.marked():
        first = compiled(images, labels)
    assert compiled(images, labels) == first == functional.cross_entropy(model(images), labels)
    assert sections_of(lambda: compiled(images, labels)) == ["forward"]


# ---- memory ---------------------------------------------------------------------------------------------------------


class Small:
    """A network of 100 inputs, 200 hidden units with in-place ReLU and 10 classes, in batches of 7."""

    def __init__(self, hidden: int = 200) -> None:
        self.model = nn.Sequential(nn.Linear(100, hidden), nn.ReLU(inplace=True), nn.Linear(hidden, 10))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.beside = [torch.zeros(5000)]
        self.step()

    def step(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.images, self.labels = torch.randn(7, 100), torch.randint(10, (7,))
        loss = functional.cross_entropy(self.model(self.images), self.labels)
        loss.backward()
        self.optimizer.step()

    def held(self, **unseen: str) -> Held:
        return Held(
            weights=list(self.model.parameters()),
            gradients=[weight.grad for weight in self.model.parameters()],
            optimiser=[state["momentum_buffer"] for state in self.optimizer.state.values()],
            inputs=[self.images, self.labels],
            beside=self.beside,
            **unseen,
        )


WEIGHTS = 4 * (100 * 200 + 200 + 200 * 10 + 10)
INPUTS = 4 * 7 * 100 + 8 * 7
# The hidden units after ReLU, which the second layer also reads; the log-probabilities; and the loss's total weight.
ACTIVATIONS = 4 * 7 * 200 + 4 * 7 * 10 + 4


def test_the_memory_of_a_step_is_counted_by_kind() -> None:
    small = Small()
    memory = memory_of_step(small.step, HostClock(), small.held, on_gpu=False)
    assert (memory.weights, memory.gradients, memory.optimiser) == (WEIGHTS, WEIGHTS, WEIGHTS)
    assert (memory.inputs, memory.activations) == (INPUTS, ACTIVATIONS)
    # The peak is at the end of the backward pass: it holds the gradient of the hidden units and all gradients, possibly
    # except that of the last bias.
    least = 3 * WEIGHTS + INPUTS + 4 * 7 * 200 - 4 * 200
    assert memory.peak is not None and least <= memory.peak <= least + ACTIVATIONS + 4 * 7 * 200
    assert memory.allocated_bytes is not None and memory.allocated_bytes > WEIGHTS + INPUTS + ACTIVATIONS
    assert memory.allocations is not None and memory.allocations >= 4 + 2 + 3
    # Gradients appear as activations are freed. The peak holds at least the gradients and at most both.
    assert memory.workspace is not None
    most = memory.peak - 3 * WEIGHTS - INPUTS
    assert max(0, most - ACTIVATIONS) <= memory.workspace <= most


def test_the_memory_of_a_step_does_not_depend_on_earlier_steps_of_the_process() -> None:
    memories = []
    for _ in range(4):
        large = Small(hidden=20_000)  # 8 MB of gradients, freed between two profilers
        for _ in range(2):
            large.step()
        memories.append(memory_of_step(large.step, HostClock(), large.held, on_gpu=False))
        del large
    peaks = [memory.peak for memory in memories]
    assert None not in peaks and len(set(peaks)) == 1, peaks
    assert memories[0].peak is not None and memories[0].peak >= 3 * memories[0].weights


def test_saved_tensors_are_counted_while_they_live() -> None:
    small = Small()

    def twice() -> None:
        small.step()
        small.step()

    assert memory_of_step(twice, HostClock(), small.held, on_gpu=False).activations == ACTIVATIONS


def test_the_peak_counts_simultaneous_allocations() -> None:
    kept = torch.zeros(250)

    def step() -> None:
        first = torch.zeros(1000)
        del first
        second, third = torch.zeros(500), torch.zeros(750)
        del second, third

    held = Held(weights=[kept], gradients=[], optimiser=[], inputs=[])
    memory = memory_of_step(step, HostClock(), lambda: held, on_gpu=False)
    assert (memory.peak, memory.allocations, memory.allocated_bytes) == (4 * 1500, 3, 4 * 2250)
    assert (memory.activations, memory.workspace) == (0, 4 * 1250)


def test_unknown_memory_is_missing_with_its_reason() -> None:
    small = Small()
    memory = memory_of_step(
        small.step, HostClock(), lambda: small.held(saves_unseen="COMPILED", peak_unseen="REPLAYED"), on_gpu=False
    )  # fmt: skip
    assert memory.weights == WEIGHTS
    assert (memory.activations, memory.peak, memory.allocations, memory.workspace) == (None, None, None, None)
    assert "COMPILED" in memory.method and "REPLAYED" in memory.method


def test_the_memory_of_a_training_step_is_counted(data: DataSet) -> None:
    workload = training(data)
    memory = memory_of_step(workload.step, HostClock(), workload.held, on_gpu=False)
    assert memory.weights == memory.gradients == memory.optimiser == workload.facts["parameter_bytes"]
    assert memory.inputs == 2 * 3 * 32 * 32 * 4 + 2 * 8
    assert memory.activations is not None and memory.activations > 2 * 64 * 16 * 16 * 4
    assert memory.peak is not None and memory.peak > 2 * memory.weights


# ---- after the timed blocks -----------------------------------------------------------------------------------------


class Falling(Workload):
    """A training whose loss is 1 over the number of the step."""

    images_per_step = flop_per_step = bytes_per_step = None

    def __init__(self) -> None:
        self.steps, self._unread, self.facts = 0, list[float](), dict[str, Any]()

    def check(self) -> None:
        """Pass the gate."""

    def step(self) -> None:
        self.steps += 1
        self._unread.append(1 / self.steps)
        torch.ones(4) + 1

    def read_loss(self) -> float | None:
        losses, self._unread = self._unread, []
        return sum(losses) / len(losses) if losses else None


class Told:
    """A stand-in for the connection to the runner, which keeps the progress of each phase."""

    def __init__(self) -> None:
        self.shares: dict[str, list[float]] = {}

    def progress(self, phase: str, share: float) -> None:
        self.shares.setdefault(phase, []).append(share)


FIRST = Pass(number=1, timing=tiny_profile().timing_at("smoke"))


def after_blocks(workload: Any, trial: Trial, told: Told, *, steps: int = 50) -> tuple[Blocks, dict[str, Any]]:
    for _ in range(steps):
        workload.step()
    workload.read_loss()
    blocks = Blocks(
        steps_per_block=(steps - 10) // 4,
        host_s=[0.1] * 4,
        warmup_s=[0.1, 0.1],
        warmup_steps=[5, 5],
        steady=True,
        stopped_by="time",
    )
    return asked_of_steps(trial, workload, HostClock(), blocks, FIRST, told, lambda _name: None)


@pytest.mark.parametrize(("traced", "until"), [(0, 300), (5, 299)])
def test_steps_before_a_trace_are_taken_and_their_losses_kept(traced: int, until: int) -> None:
    workload, told = Falling(), Told()
    trial = Trial(workload="tests.falling", device="cpu", steps_before=300, traced_iterations=traced)
    blocks, facts = after_blocks(workload, trial, told)
    losses = facts["later_loss"]
    assert len(losses) == 20
    assert losses[-1][0] == until
    first, (second, mean) = losses[0][0], losses[1]
    assert mean == pytest.approx(sum(1 / step for step in range(first + 1, second + 1)) / (second - first))
    shares = told.shares["steps before the trace"]
    assert shares == sorted(shares) and shares[-1] == 1
    if traced:
        assert isinstance(blocks.trace, Traced)
        assert (blocks.trace.steps_before, blocks.trace.steps, workload.steps) == (300, 5, 305)
    else:
        assert (blocks.trace, workload.steps) == (None, 300)


def test_timed_steps_count_as_steps_before_a_trace() -> None:
    workload = Falling()
    trial = Trial(workload="tests.falling", device="cpu", steps_before=30, traced_iterations=5)
    blocks, facts = after_blocks(workload, trial, Told())
    assert "later_loss" not in facts
    assert isinstance(blocks.trace, Traced)
    assert blocks.trace.steps_before == 51


@pytest.fixture(scope="module")
def made(shared_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, Record]]]:
    """Run a pass of traced trials and an untraced trial in a worker process. Yield the report and records by name."""
    folder = tmp_path_factory.mktemp("traced")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in apart(folder, shared_cache).items():
            patch.setenv(name, value)
        digits = open_data("digits")
        trained = Trial(
            model="resnet18", batch=2, classes=10, device="cpu", data=digits.name, data_checksum=digits.checksum
        )
        wanted = {
            "plain": workload_trial("ok"),
            "traced": replace(trained, traced_iterations=6, steps_before=40),
            "without operators": replace(workload_trial("ok"), traced_iterations=2),
        }
        run(list(wanted.values()), folder / "cpu", limit_s=120, keeps_traces=True)
        by_key = {item.key: item for item in records(folder / "cpu")}
    yield folder / "cpu", {name: by_key[item.key] for name, item in wanted.items()}


def test_a_trial_is_traced_after_everything_timed(made: tuple[Path, dict[str, Record]]) -> None:
    _, by_name = made
    assert {name: (item.status, item.reason) for name, item in by_name.items()} == dict.fromkeys(by_name, ("ok", None))
    record = by_name["traced"]
    assert record.blocks is not None
    trace = record.blocks.trace
    assert isinstance(trace, Traced)
    assert (trace.of, trace.steps, trace.asked_for, trace.steps_before) == ("operators", 6, 6, 40)
    assert [piece.steps for piece in trace.pieces] == [5, 1]
    assert set(trace.sections) == set(SECTIONS)
    assert 0 < trace.busy_s <= trace.elapsed_s
    assert trace.kernels["convolution"].seconds > 0
    assert trace.memory is not None and trace.memory.weights == record.facts["parameter_bytes"]
    assert record.facts["later_loss"][-1][0] == 39
    assert {"steps_before", "traced_steps"} <= set(record.phases_s)
    assert record.telemetry is not None and record.telemetry.windows["after"].start_s > record.phases_s["timed"]


def test_an_untraced_trial_has_no_facts_or_phases_of_a_trace(made: tuple[Path, dict[str, Record]]) -> None:
    record = made[1]["plain"]
    assert record.blocks is not None and record.blocks.trace is None
    assert not {"later_loss", "trace_file", "nsight"} & set(record.facts)
    assert not {"trace", "traced_steps", "steps_before"} & set(record.phases_s)


def test_a_trial_that_cannot_be_traced_succeeds_with_a_reason(made: tuple[Path, dict[str, Record]]) -> None:
    record = made[1]["without operators"]
    assert record.blocks is not None
    assert isinstance(record.blocks.trace, Untraced)
    assert "no operator" in record.blocks.trace.reason
    framework = Trial(framework="keras-jax", device="cpu", traced_iterations=2)
    blocks, facts = after_blocks(Falling(), framework, Told())
    assert isinstance(blocks.trace, Untraced) and "keras-jax" in blocks.trace.reason and facts == {}


def test_a_kept_trace_is_at_the_path_in_the_record(made: tuple[Path, dict[str, Record]]) -> None:
    report, by_name = made
    record = by_name["traced"]
    name = record.facts["trace_file"]
    assert name == f"traces/{record.host}/{record.study}/{short_hash(record.key)}-pass1.json.gz"
    assert any(row.get("cat") == "cpu_op" for row in rows_of(report / name))
    silent = by_name["without operators"]
    assert (report / silent.facts["trace_file"]).is_file(), "a trace without events is kept for inspection"
    assert "trace_file" not in by_name["plain"].facts


@pytest.fixture(autouse=True)
def _nothing_is_profiled_afterwards() -> Iterator[None]:
    yield
    assert not torch.autograd._profiler_enabled()


def test_the_memory_of_a_nested_tensor_is_that_of_its_values_and_offsets() -> None:
    weight = torch.ones(4, requires_grad=True)
    texts = torch.nested.nested_tensor([torch.ones(3, 4), torch.ones(2, 4)], layout=torch.jagged)

    def step() -> None:
        (texts * weight).values().sum().backward()

    held = Held(weights=[weight], gradients=[], optimiser=[], inputs=[texts])
    memory = memory_of_step(step, HostClock(), lambda: held, on_gpu=False)
    assert memory.inputs == 4 * (3 + 2) * 4 + 8 * 3, "five FP32 vectors of four, and three offsets"
    assert memory.weights == 4 * 4
