"""What a step's memory holds, in a few more steps after everything timed.

What stays between steps (weights, gradients, the optimiser's state) is added up over the tensors' storages, each once.
What the forward pass keeps for the backward pass is seen by hooks on whatever autograd saves, and counted while it
lives: an in-place ReLU's result and the views of a tensor are one storage. The peak and the allocator's calls are the
CUDA allocator's own numbers; on a CPU they follow from the profiler's events of each allocation.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from labkit.measure.clocks import Clock, Step
from labkit.records.traced import Memory

_STEP = "labkit step of memory"


@dataclass(frozen=True, kw_only=True)
class Held:
    """Tensors of a training between two steps.

    `beside` are those that are none of a step's: a network's statistics, a data set on the device. `saves_unseen` says
    why hooks would not see what is saved for the backward pass, `peak_unseen` why the allocator is not asked in a step.
    """

    weights: Sequence[Any]
    gradients: Sequence[Any]
    optimiser: Sequence[Any]
    inputs: Sequence[Any]
    beside: Sequence[Any] = ()
    saves_unseen: str | None = None
    peak_unseen: str | None = None


class Allocated(NamedTuple):
    """Of one step: the most bytes that were allocated at once, the allocator's calls and the bytes these asked for."""

    peak: int
    calls: int
    bytes: int


def memory_of_step(step: Step, clock: Clock, held: Callable[[], Held], *, on_gpu: bool) -> Memory:
    """The memory of a step by what it holds, from two or three more steps; `held` is asked between them.

    Whatever a step raises is raised.
    """
    said: list[str] = []
    activations: int | None = None
    coming_and_going: int | None = None
    if (unseen := held().saves_unseen) is None:
        saved = _Saved(_storages(held().weights, held().beside))
        with saved.watched(held().weights):
            clock.time_block(step, 1)
        saved_inputs = _bytes(saved.ever(held().inputs))
        activations, coming_and_going = saved.most - saved_inputs, saved.most_with_gradients - saved_inputs
    else:
        said.append(f"activations are unknown: {unseen}")
    allocated: Allocated | None = None
    if (unseen := held().peak_unseen) is None:
        try:
            allocated = (_on_gpu if on_gpu else _on_cpu)(step, clock, held)
        except _UnreadableError as error:
            said.append(f"the peak is unknown: {error}")
    else:
        said.append(f"the peak is unknown: {unseen}")
    now = held()
    weights, gradients, optimiser, inputs = _each_once(now.weights, now.gradients, now.optimiser, now.inputs)
    if allocated is not None and allocated.peak < weights + gradients + optimiser:
        said.append("the peak is unknown: what was seen of the allocator is less than what is there when a step ends")
        allocated = None
    workspace: int | None = None
    if allocated is not None and coming_and_going is not None:
        # Gradients come as activations go, so that both are never there as a whole.
        beyond = allocated.peak - weights - optimiser - inputs - max(coming_and_going, gradients)
        workspace = beyond if beyond >= 0 else None
        if workspace is None:
            said.append("the workspace is unknown: the step that was asked for its peak held less than the one before")
    how = "PyTorch's CUDA allocator in one step" if on_gpu else "PyTorch's allocations in one step, by its profiler"
    return Memory(
        weights=weights,
        gradients=gradients,
        optimiser=optimiser,
        activations=activations,
        inputs=inputs,
        workspace=workspace,
        peak=allocated.peak if allocated else None,
        allocations=allocated.calls if allocated else None,
        allocated_bytes=allocated.bytes if allocated else None,
        method="; ".join([f"storages of tensors; what autograd saved while it lived; {how}", *said]),
    )


# ---- storages -------------------------------------------------------------------------------------------------------

Storages = dict[int, int]  # bytes by address


def _storages(*tensors: Iterable[Any]) -> Storages:
    """The storages behind tensors, each once."""
    found = (one.untyped_storage() for some in tensors for one in some)
    return {storage.data_ptr(): storage.nbytes() for storage in found if storage.nbytes()}


def _bytes(storages: Storages) -> int:
    return sum(storages.values())


def _each_once(*kinds: Iterable[Any]) -> list[int]:
    """Bytes of each kind; a storage of two kinds counts as the first."""
    seen: Storages = {}
    sizes = []
    for kind in kinds:
        new = {at: size for at, size in _storages(kind).items() if at not in seen}
        sizes.append(_bytes(new))
        seen |= new
    return sizes


# ---- what autograd saves --------------------------------------------------------------------------------------------


class _Saved:
    """Storages that autograd keeps for a backward pass, but those that are there anyway.

    Bytes: `most` of them at once, `most_with_gradients` of them and the gradients made so far.
    """

    def __init__(self, known: Storages) -> None:
        self._known, self._users = known, dict[int, int]()
        self._sizes: Storages = {}
        self._gradients: Storages = {}
        self._now = self.most = self.most_with_gradients = 0

    @contextmanager
    def watched(self, weights: Iterable[Any]) -> Iterator[None]:
        """A step in it is watched."""
        import torch

        hooks = [one.register_post_accumulate_grad_hook(self._made) for one in weights if one.requires_grad]
        try:
            with torch.autograd.graph.saved_tensors_hooks(self._pack, lambda kept: kept.tensor):
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def _made(self, weight: Any) -> None:
        """A gradient is there; it is no saved tensor of this step."""
        self._gradients |= _storages([weight.grad])
        self._look()

    def _look(self) -> None:
        self.most = max(self.most, self._now)
        self.most_with_gradients = max(self.most_with_gradients, self._now + _bytes(self._gradients))

    def ever(self, tensors: Iterable[Any]) -> Storages:
        """Of the tensors' storages those that were saved."""
        return {at: size for at, size in _storages(tensors).items() if at in self._sizes}

    def _pack(self, tensor: Any) -> _Kept:
        storage = tensor.untyped_storage()
        at, size = storage.data_ptr(), storage.nbytes()
        if at in self._known or not size:
            return _Kept(tensor, None)
        self._users[at] = self._users.get(at, 0) + 1
        if self._users[at] == 1:
            self._sizes[at] = size
            self._now += size
            self._look()
        return _Kept(tensor, lambda: self._forget(at))

    def _forget(self, at: int) -> None:
        self._users[at] -= 1
        if not self._users[at]:
            self._now -= self._sizes[at]


class _Kept:
    """A saved tensor; when autograd lets go of it, somebody is told."""

    def __init__(self, tensor: Any, on_end: Callable[[], None] | None) -> None:
        self.tensor, self._on_end = tensor, on_end

    def __del__(self) -> None:
        if self._on_end is not None:
            self._on_end()


# ---- what the allocator did -----------------------------------------------------------------------------------------


class _UnreadableError(Exception):
    """Nothing can be said of allocations; the text says why."""


def _on_gpu(step: Step, clock: Clock, held: Callable[[], Held]) -> Allocated:
    import torch

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()
    clock.time_block(step, 1)
    after = torch.cuda.memory_stats()
    now = held()
    inputs = _storages(now.inputs)
    beside = {at: size for at, size in _storages(now.beside).items() if at not in inputs}
    calls, asked = (
        int(after[name] - before[name]) for name in ("allocation.all.allocated", "requested_bytes.all.allocated")
    )
    return Allocated(int(after["allocated_bytes.all.peak"]) - _bytes(beside), calls, asked)


def _on_cpu(step: Step, clock: Clock, held: Callable[[], Held]) -> Allocated:
    """Two steps: the profiler is told of no end of what was allocated before it began, such as the last gradients."""
    from torch import profiler

    def marked() -> None:
        with profiler.record_function(_STEP):
            step()

    tracer = profiler.profile(activities=[profiler.ProfilerActivity.CPU], profile_memory=True)
    with tempfile.TemporaryDirectory(prefix="labkit-memory-") as folder:
        file = Path(folder) / "steps.json"
        with tracer:
            for _ in range(2):
                clock.time_block(marked, 1)
        now = held()
        stayed = _storages(now.weights, now.gradients, now.optimiser, now.inputs)
        try:
            tracer.export_chrome_trace(str(file))
            rows = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
        except Exception as error:
            raise _UnreadableError(f"the profiler did not write what it saw: {error}") from error
    return allocated_in_last_step(rows, stayed)


def allocated_in_last_step(rows: Iterable[dict[str, Any]], stayed: Storages) -> Allocated:
    """From a profiler's events: the second of two steps. `stayed` are storages that are there at its end.

    Of these, what the profiler did not see being allocated was there all the time. _UnreadableError without two steps.
    """
    rows = list(rows)
    steps = sorted(row["ts"] for row in rows if row.get("ph") == "X" and row.get("name") == _STEP)
    if len(steps) != 2:
        raise _UnreadableError(f"the profiler saw {len(steps)} of 2 steps")
    changes = [row for row in rows if row.get("name") == "[memory]" and row["args"].get("Device Type") == 0]
    live: Storages = {}
    now = calls = asked = peak = 0
    for row in sorted(changes, key=lambda row: (row["ts"], row["args"].get("Ev Idx", 0))):
        at, change = int(row["args"]["Addr"]), int(row["args"]["Bytes"])
        # PyTorch keeps a table of addresses over all its profilers, in which ends that none of them saw are missing: an
        # end counts only of what was seen to begin.
        now -= live.pop(at, 0)
        if change > 0:
            live[at] = change
            now += change
        if row["ts"] >= steps[1] and change > 0:
            calls, asked, peak = calls + 1, asked + change, max(peak, now)
    before = {at: size for at, size in stayed.items() if at not in live}
    return Allocated(peak + _bytes(before), calls, asked)
