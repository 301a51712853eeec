"""Traces are taken in pieces, within limits, and cost nothing but themselves; what a step's memory holds is counted."""

from __future__ import annotations

import gc
import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn import functional

from labkit.data import DataSet, open_data
from labkit.engines import sections
from labkit.engines.regions import loss_function
from labkit.measure import Held, HostClock, UntracedError, memory_of_step, take_trace
from labkit.measure.trace import SECTION, STEP
from labkit.measure.trace.taking import FIRST_STEPS, MOST_STEPS
from labkit.records import Blocks, Record, short_hash
from labkit.records.traced import SECTIONS, Traced, Untraced
from labkit.run.afterwards import asked_of_steps
from labkit.trial import Trial
from labkit.workloads import build_workload
from tests.commands import apart
from tests.faulty.campaign import records, run
from tests.faulty.campaign import trial as workload_trial


class Pieces:
    """An analysis that only counts, and keeps the names of ranges."""

    def __init__(self, *, fails_at: int = 0) -> None:
        self.steps: list[int] = []
        self.ranges: list[list[str]] = []
        self._fails_at = fails_at

    def add(self, path: Path, *, steps: int) -> None:
        if len(self.steps) + 1 == self._fails_at:
            raise UntracedError("the file says nothing")
        rows = json.loads(path.read_text())["traceEvents"]
        found = [row for row in rows if row.get("cat") == "user_annotation" and row["name"].startswith("labkit")]
        self.ranges.append([row["name"] for row in sorted(found, key=lambda row: (row["ts"], -row["dur"]))])
        self.steps.append(steps)


class SlowClock(HostClock):
    """A second a step, whatever it does."""

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
def test_a_trace_is_taken_in_pieces_of_which_each_is_forgotten(asked_for: int, pieces: list[int]) -> None:
    seen, taken, shares = Pieces(), [], []

    def step() -> None:
        taken.append(1)
        small_step()

    found = take_trace(step, HostClock(), seen, asked_for=asked_for, on_gpu=False, on_share=shares.append)
    assert seen.steps == pieces
    assert len(taken) == asked_for + len(pieces), "each piece has a step that warms the profiler up"
    assert [names.count(STEP) for names in seen.ranges] == pieces, "and is none of its events"
    assert (found.steps, found.notes) == (asked_for, [])
    assert shares == sorted(shares) and shares[-1] == 1


def test_the_time_limit_ends_a_trace_and_says_so() -> None:
    seen = Pieces()
    found = take_trace(small_step, SlowClock(), seen, asked_for=100, limit_s=40, on_gpu=False)
    assert found.steps == sum(seen.steps) < 100
    assert 40 <= found.elapsed_s <= 41, "no piece begins that there is no time for, but one of a step"
    assert found.notes == [f"{found.steps} of 100 steps were traced, then 40 s were over"]


def test_an_analysis_that_takes_too_long_ends_a_trace_too() -> None:
    clock = SlowClock()

    class Slow(Pieces):
        def add(self, path: Path, *, steps: int) -> None:
            super().add(path, steps=steps)
            clock.time_block(lambda: None, 35)

    found = take_trace(small_step, clock, Slow(), asked_for=100, limit_s=40, on_gpu=False)
    assert (found.steps, found.analysed_s) == (25, 70)
    assert found.elapsed_s < 40
    assert found.notes == ["25 of 100 steps were traced, then 40 s were over"]


def test_a_step_longer_than_the_limit_is_traced_once() -> None:
    seen = Pieces()
    found = take_trace(small_step, SlowClock(50), seen, asked_for=5, limit_s=30, step_s=45, on_gpu=False)
    assert (found.steps, seen.steps, found.asked_for) == (1, [1], 5)


def test_what_is_done_between_pieces_is_in_none_of_them() -> None:
    events: list[str] = []

    def step() -> None:
        assert not gc.isenabled(), "Python's collector stays out of traced steps"
        events.append("step")
        small_step()

    take_trace(
        step, HostClock(), Pieces(), asked_for=7, on_gpu=False, after_piece=lambda: events.append("losses are read")
    )
    assert [one for one, last in zip(events, ["", *events], strict=False) if one != last] == [
        *("step", "losses are read"),
        *("step", "losses are read"),
    ]
    assert gc.isenabled()


@pytest.mark.parametrize("fails_in", [1, 9])
def test_a_step_that_fails_leaves_no_profiler_and_no_quiet_collector_behind(fails_in: int) -> None:
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
def test_a_profiler_that_fails_is_a_reason_and_no_failure_of_the_trial(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no room for its buffers")

    with monkeypatch.context() as broken, pytest.raises(UntracedError, match=r"did not .*RuntimeError: no room"):
        broken.setattr(torch.profiler.profile, method, fails)
        take_trace(small_step, HostClock(), Pieces(), asked_for=2, on_gpu=False)
    if method == "stop":
        torch.autograd._disable_profiler()  # which nothing but itself could stop
    assert not torch.autograd._profiler_enabled()


def test_what_a_build_of_pytorch_cannot_trace_it_says_before_any_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.profiler, "supported_activities", lambda: {torch.profiler.ProfilerActivity.CPU})
    with pytest.raises(UntracedError, match="traces no CUDA activity"):
        take_trace(lambda: pytest.fail("it took a step"), HostClock(), Pieces(), asked_for=2, on_gpu=True)


def rows_of(file: Path) -> list[dict[str, Any]]:
    with gzip.open(file, "rt") as packed:
        return json.load(packed)["traceEvents"]


def test_a_piece_that_says_nothing_ends_the_trace_and_costs_none_before_it(tmp_path: Path) -> None:
    """The last piece is kept where that is asked for, also when the analysis could make nothing of it."""
    file = tmp_path / "traces" / "host" / "0a1b2c3d-pass1.json.gz"
    trace = partial(take_trace, small_step, HostClock(), asked_for=7, on_gpu=False)
    for fails_at, kept_steps in ((3, 2), (2, 2), (1, 5)):
        if fails_at == 1:
            with pytest.raises(UntracedError, match="says nothing"):
                trace(Pieces(fails_at=1), keep=file)
        else:
            found = trace(Pieces(fails_at=fails_at), keep=file)
            notes = ["after 5 of 7 steps the trace ended: the file says nothing"]
            assert (found.steps, found.notes) == ((5, notes) if fails_at == 2 else (7, []))
        assert [path.name for path in file.parent.iterdir()] == [file.name]
        steps = [row for row in rows_of(file) if (row.get("name"), row.get("cat")) == (STEP, "user_annotation")]
        assert len(steps) == kept_steps
    (tmp_path / "full").write_text("no folder")
    found = trace(Pieces(), keep=tmp_path / "full" / "x.json.gz")
    assert found.steps == 7 and "could not be kept" in found.notes[0]


# ---- sections -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data() -> DataSet:
    return open_data("synthetic32", train_images=64, val_images=8)


def training(data: DataSet, **fields: Any) -> Any:
    about: dict[str, Any] = {"model": "resnet18", "batch": 2, "device": "cpu", "classes": 1000, **fields}
    workload = build_workload(Trial(data=data.name, data_checksum=data.checksum, **about), data)
    for _, prepare in workload.preparations():
        prepare()
    workload.check()
    return workload


def sections_of(step: Callable[[], object]) -> list[str]:
    """Of one step, in the order in which the host entered them."""
    seen = Pieces()
    with sections.marked():
        take_trace(step, HostClock(), seen, asked_for=1, on_gpu=False)
    (names,) = seen.ranges
    assert names[0] == STEP
    return [name.removeprefix(SECTION) for name in names[1:]]


def test_the_names_of_sections_are_those_of_the_record() -> None:
    assert get_args(sections.Name) == SECTIONS


@pytest.mark.parametrize("fields", [{}, {"optimizer": "sgd_fused", "precision": "bf16"}], ids=str)
def test_a_step_marks_its_sections_only_where_somebody_traces(data: DataSet, fields: dict[str, Any]) -> None:
    workload = training(data, **fields)
    assert sections_of(workload.step) == ["load", "optimiser", "forward", "loss", "backward", "optimiser"]
    seen = Pieces()
    take_trace(workload.step, HostClock(), seen, asked_for=1, on_gpu=False)
    assert seen.ranges == [[STEP]]


def test_marks_break_no_compiled_graph_and_stand_around_it() -> None:
    model = nn.Linear(4, 3)
    compiled = loss_function(model, partial(torch.compile, fullgraph=True, backend="eager"))
    images, labels = torch.ones(2, 4), torch.tensor([0, 2])
    with sections.marked():
        first = compiled(images, labels)
    assert compiled(images, labels) == first == functional.cross_entropy(model(images), labels)
    assert sections_of(lambda: compiled(images, labels)) == ["forward"]


# ---- memory ---------------------------------------------------------------------------------------------------------


class Small:
    """100 numbers, 200 hidden units, 10 classes, in batches of 7; the ReLU writes over what it reads."""

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
# The hidden units after ReLU, which the second layer reads too; the log-probabilities and the loss's total weight.
ACTIVATIONS = 4 * 7 * 200 + 4 * 7 * 10 + 4


def test_memory_of_a_step_is_what_it_holds() -> None:
    small = Small()
    found = memory_of_step(small.step, HostClock(), small.held, on_gpu=False)
    assert (found.weights, found.gradients, found.optimiser) == (WEIGHTS, WEIGHTS, WEIGHTS)
    assert (found.inputs, found.activations) == (INPUTS, ACTIVATIONS)
    # The peak is at the end of the backward pass: the gradient of the hidden units is there beside all gradients but
    # the last bias's, or with it.
    least = 3 * WEIGHTS + INPUTS + 4 * 7 * 200 - 4 * 200
    assert found.peak is not None and least <= found.peak <= least + ACTIVATIONS + 4 * 7 * 200
    assert found.allocated_bytes is not None and found.allocated_bytes > WEIGHTS + INPUTS + ACTIVATIONS
    assert found.allocations is not None and found.allocations >= 4 + 2 + 3
    # Gradients come as activations go: at most both are there, at least the gradients.
    assert found.workspace is not None
    most = found.peak - 3 * WEIGHTS - INPUTS
    assert max(0, most - ACTIVATIONS) <= found.workspace <= most


def test_the_memory_of_a_step_is_the_same_whatever_the_process_did_before() -> None:
    found = []
    for _ in range(4):
        large = Small(hidden=20_000)  # 8 MB of gradients, which are freed between two profilers
        for _ in range(2):
            large.step()
        found.append(memory_of_step(large.step, HostClock(), large.held, on_gpu=False))
        del large
    peaks = [one.peak for one in found]
    assert None not in peaks and len(set(peaks)) == 1, peaks
    assert found[0].peak is not None and found[0].peak >= 3 * found[0].weights


def test_what_is_saved_is_counted_while_it_lives() -> None:
    small = Small()

    def twice() -> None:
        small.step()
        small.step()

    assert memory_of_step(twice, HostClock(), small.held, on_gpu=False).activations == ACTIVATIONS


def test_the_peak_is_of_what_is_there_at_once() -> None:
    kept = torch.zeros(250)

    def step() -> None:
        first = torch.zeros(1000)
        del first
        second, third = torch.zeros(500), torch.zeros(750)
        del second, third

    held = Held(weights=[kept], gradients=[], optimiser=[], inputs=[])
    found = memory_of_step(step, HostClock(), lambda: held, on_gpu=False)
    assert (found.peak, found.allocations, found.allocated_bytes) == (4 * 1500, 3, 4 * 2250)
    assert (found.activations, found.workspace) == (0, 4 * 1250)


def test_what_cannot_be_told_is_missing_with_its_reason() -> None:
    small = Small()
    found = memory_of_step(
        small.step, HostClock(), lambda: small.held(saves_unseen="it is compiled", peak_unseen="it is replayed"),
        on_gpu=False,
    )  # fmt: skip
    assert found.weights == WEIGHTS
    assert (found.activations, found.peak, found.allocations, found.workspace) == (None, None, None, None)
    assert "it is compiled" in found.method and "it is replayed" in found.method


def test_a_training_says_what_it_holds(data: DataSet) -> None:
    workload = training(data)
    found = memory_of_step(workload.step, HostClock(), workload.held, on_gpu=False)
    assert found.weights == found.gradients == found.optimiser == workload.facts["parameter_bytes"]
    assert found.inputs == 2 * 3 * 32 * 32 * 4 + 2 * 8
    assert found.activations is not None and found.activations > 2 * 64 * 16 * 16 * 4
    assert found.peak is not None and found.peak > 2 * found.weights


# ---- after the timed blocks -----------------------------------------------------------------------------------------


class Falling:
    """A training whose loss is one over the step."""

    images_per_step = flop_per_step = bytes_per_step = None

    def __init__(self) -> None:
        self.steps, self._unread, self.facts = 0, list[float](), dict[str, Any]()

    def check(self) -> None:
        """It trains."""

    def step(self) -> None:
        self.steps += 1
        self._unread.append(1 / self.steps)
        torch.ones(4) + 1

    def read_loss(self) -> float | None:
        losses, self._unread = self._unread, []
        return sum(losses) / len(losses) if losses else None


class Told:
    """Where progress goes."""

    def __init__(self) -> None:
        self.shares: dict[str, list[float]] = {}

    def progress(self, phase: str, share: float) -> None:
        self.shares.setdefault(phase, []).append(share)


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
    return asked_of_steps(trial, workload, HostClock(), blocks, 1, told, lambda _name: None)


@pytest.mark.parametrize(("traced", "until"), [(0, 300), (5, 299)])
def test_steps_go_on_until_a_trace_may_begin_and_their_losses_are_kept(traced: int, until: int) -> None:
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


def test_steps_that_were_taken_already_are_not_taken_again() -> None:
    workload = Falling()
    trial = Trial(workload="tests.falling", device="cpu", steps_before=30, traced_iterations=5)
    blocks, facts = after_blocks(workload, trial, Told())
    assert "later_loss" not in facts
    assert isinstance(blocks.trace, Traced)
    assert blocks.trace.steps_before == 51


@pytest.fixture(scope="module")
def made(shared_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, Record]]]:
    """One pass of trials that are traced and one that is not, in processes of their own, and where its report is."""
    folder = tmp_path_factory.mktemp("traced")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in apart(folder, shared_cache).items():
            patch.setenv(name, value)
        patch.setenv("KEEP_TRACES", "1")
        digits = open_data("digits")
        trained = Trial(
            model="resnet18", batch=2, classes=10, device="cpu", data=digits.name, data_checksum=digits.checksum
        )
        wanted = {
            "plain": workload_trial("ok"),
            "traced": replace(trained, traced_iterations=6, steps_before=40),
            "without operators": replace(workload_trial("ok"), traced_iterations=2),
        }
        run(list(wanted.values()), folder / "cpu", limit_s=120)
        found = {one.key: one for one in records(folder / "cpu")}
    yield folder / "cpu", {name: found[one.key] for name, one in wanted.items()}


def test_a_trial_is_traced_after_everything_timed(made: tuple[Path, dict[str, Record]]) -> None:
    _, found = made
    assert {name: (one.status, one.reason) for name, one in found.items()} == dict.fromkeys(found, ("ok", None))
    record = found["traced"]
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


def test_a_trial_that_is_not_traced_knows_nothing_of_it(made: tuple[Path, dict[str, Record]]) -> None:
    record = made[1]["plain"]
    assert record.blocks is not None and record.blocks.trace is None
    assert not {"later_loss", "trace_file", "nsight"} & set(record.facts)
    assert not {"trace", "traced_steps", "steps_before"} & set(record.phases_s)


def test_what_cannot_be_traced_says_why_and_is_no_failure(made: tuple[Path, dict[str, Record]]) -> None:
    record = made[1]["without operators"]
    assert record.blocks is not None
    assert isinstance(record.blocks.trace, Untraced)
    assert "the profiler saw no operator" in record.blocks.trace.reason
    framework = Trial(framework="keras-jax", device="cpu", traced_iterations=2)
    blocks, facts = after_blocks(Falling(), framework, Told())
    assert blocks.trace == Untraced(reason="the profiler is PyTorch's, and the trial runs on keras-jax")
    assert facts == {}


def test_a_kept_trace_stands_where_the_record_says(made: tuple[Path, dict[str, Record]]) -> None:
    report, found = made
    record = found["traced"]
    name = record.facts["trace_file"]
    assert name == f"traces/{record.host}/{record.study}/{short_hash(record.key)}-pass1.json.gz"
    assert any(row.get("cat") == "cpu_op" for row in rows_of(report / name))
    silent = found["without operators"]
    assert (report / silent.facts["trace_file"]).is_file(), "one that says nothing is the one that somebody will open"
    assert "trace_file" not in found["plain"].facts


@pytest.fixture(autouse=True)
def _nothing_is_profiled_afterwards() -> Iterator[None]:
    yield
    assert not torch.autograd._profiler_enabled()
