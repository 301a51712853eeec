"""Memory of a step by contents, measured in a few more steps after everything timed.

Memory that stays between steps (weights, gradients, optimiser state) is the sum over the tensors' storages, each
counted once. Hooks on every tensor that autograd saves count the activations that the forward pass keeps, while they
live: an in-place ReLU's result and the views of a tensor share one storage. The peak and the allocator's calls come
from the CUDA allocator's counters; on a CPU, from the profiler's allocation events.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from labkit.files import temporary_folder
from labkit.timing.clocks import Clock, Step
from workbook.records.traced import Memory

_STEP = "labkit step of memory"

_PARTS: dict[str, tuple[str, ...]] = {"sparse_coo": ("_indices", "_values")}  # of a sparse tensor, by its layout
_PARTS |= dict.fromkeys(("sparse_csr", "sparse_bsr"), ("crow_indices", "col_indices", "values"))
_PARTS |= dict.fromkeys(("sparse_csc", "sparse_bsc"), ("ccol_indices", "row_indices", "values"))


@dataclass(frozen=True, kw_only=True)
class Held:
    """Tensors of a training run between two steps.

    `beside` holds tensors that do not belong to a step: a network's statistics, a data set on the device.
    `saves_unseen` says why hooks would miss what autograd saves, `peak_unseen` why the allocator cannot be asked.
    """

    weights: Sequence[Any]
    gradients: Sequence[Any]
    optimiser: Sequence[Any]
    inputs: Sequence[Any]
    beside: Sequence[Any] = ()
    saves_unseen: str | None = None
    peak_unseen: str | None = None


class Allocated(NamedTuple):
    """Allocations of one step: most bytes allocated at once, number of allocator calls, and bytes they requested."""

    peak: int
    calls: int
    bytes: int


def memory_of_step(step: Step, clock: Clock, held: Callable[[], Held], *, on_gpu: bool) -> Memory:
    """Return the memory of a step by contents, from up to three more steps.

    `held` is called between the steps. Errors that a step raises are not caught.
    """
    notes: list[str] = []
    activations: int | None = None
    with_gradients: int | None = None
    if (unseen := held().saves_unseen) is None:
        saved = _Saved(_storages(held().weights, held().beside))
        with saved.watched(held().weights):
            clock.time_block(step, 1)
        saved_inputs = _bytes(saved.ever(held().inputs))
        activations, with_gradients = saved.most - saved_inputs, saved.most_with_gradients - saved_inputs
    else:
        notes.append(f"activations are unknown: {unseen}")
    allocated: Allocated | None = None
    if (unseen := held().peak_unseen) is None:
        try:
            allocated = (_on_gpu if on_gpu else _on_cpu)(step, clock, held)
        except _UnreadableError as error:
            notes.append(f"the peak is unknown: {error}")
    else:
        notes.append(f"the peak is unknown: {unseen}")
    now = held()
    weights, gradients, optimiser, inputs = _each_once(now.weights, now.gradients, now.optimiser, now.inputs)
    if allocated is not None and allocated.peak < weights + gradients + optimiser:
        notes.append("the peak is unknown: the allocations seen are less than the memory held when a step ends")
        allocated = None
    workspace: int | None = None
    if allocated is not None and with_gradients is not None:
        # Gradients appear while activations are freed, so the two are never complete at once.
        beyond = allocated.peak - weights - optimiser - inputs - max(with_gradients, gradients)
        workspace = beyond if beyond >= 0 else None
        if workspace is None:
            notes.append("the workspace is unknown: the step measured for the peak held less than the step before it")
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
        method="; ".join([f"storages of tensors; what autograd saved while it lived; {how}", *notes]),
    )


# ---- storages -------------------------------------------------------------------------------------------------------

Storages = dict[int, int]  # bytes by address


def _storages(*tensors: Iterable[Any]) -> Storages:
    """Return the storages behind tensors, as bytes by address: each storage once."""
    plain = (part for group in tensors for tensor in group for part in plain_tensors(tensor))
    storages = (tensor.untyped_storage() for tensor in plain)
    return {storage.data_ptr(): storage.nbytes() for storage in storages if storage.nbytes()}


def plain_tensors(tensor: Any) -> list[Any]:
    """Return the tensors behind a tensor: numbers and scales of a quantised one, values and places of a sparse one.

    A plain tensor is its own. Only plain tensors have a storage with an address.
    """
    if parts := _PARTS.get(str(tensor.layout).removeprefix("torch.")):
        return [getattr(tensor, part)() for part in parts]
    if not hasattr(tensor, "__tensor_flatten__"):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()
    return [part for name in names for part in plain_tensors(getattr(tensor, name))]


def _bytes(storages: Storages) -> int:
    return sum(storages.values())


def _each_once(*kinds: Iterable[Any]) -> list[int]:
    """Return the bytes of each kind. A storage of two kinds counts for the first."""
    seen: Storages = {}
    sizes = []
    for kind in kinds:
        new = {at: size for at, size in _storages(kind).items() if at not in seen}
        sizes.append(_bytes(new))
        seen |= new
    return sizes


# ---- tensors that autograd saves ------------------------------------------------------------------------------------


class _Saved:
    """Storages that autograd keeps for a backward pass, without the `known` storages.

    `most` is the largest number of bytes kept at once, `most_with_gradients` that of kept bytes plus gradients so far.
    """

    def __init__(self, known: Storages) -> None:
        self._known, self._users = known, dict[int, int]()
        self._sizes: Storages = {}
        self._gradients: Storages = {}
        self._now = self.most = self.most_with_gradients = 0

    @contextmanager
    def watched(self, weights: Iterable[Any]) -> Iterator[None]:
        """Watch what autograd saves in a step that runs in this context."""
        import torch

        hooks = [weight.register_post_accumulate_grad_hook(self._made) for weight in weights if weight.requires_grad]
        try:
            with torch.autograd.graph.saved_tensors_hooks(self._pack, lambda kept: kept.tensor):
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def _made(self, weight: Any) -> None:
        """Count a new gradient, which is no saved tensor of this step."""
        self._gradients |= _storages([weight.grad])
        self._look()

    def _look(self) -> None:
        self.most = max(self.most, self._now)
        self.most_with_gradients = max(self.most_with_gradients, self._now + _bytes(self._gradients))

    def ever(self, tensors: Iterable[Any]) -> Storages:
        """Return those of the tensors' storages that autograd has saved at any time."""
        return {at: size for at, size in _storages(tensors).items() if at in self._sizes}

    def _pack(self, tensor: Any) -> _Kept:
        kept = {at: size for at, size in _storages([tensor]).items() if at not in self._known}
        for at, size in kept.items():
            self._users[at] = self._users.get(at, 0) + 1
            if self._users[at] == 1:
                self._sizes[at] = size
                self._now += size
                self._look()
        return _Kept(tensor, (lambda: self._forget(kept)) if kept else None)

    def _forget(self, kept: Iterable[int]) -> None:
        for at in kept:
            self._users[at] -= 1
            if not self._users[at]:
                self._now -= self._sizes[at]


class _Kept:
    """A saved tensor that calls `on_end` when autograd releases it."""

    def __init__(self, tensor: Any, on_end: Callable[[], None] | None) -> None:
        self.tensor, self._on_end = tensor, on_end

    def __del__(self) -> None:
        if self._on_end is not None:
            self._on_end()


# ---- allocations in a step ------------------------------------------------------------------------------------------


class _UnreadableError(Exception):
    """Error for allocations that cannot be read; the message says why."""


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
    """Run two steps and read the second: the profiler misses frees of earlier allocations, e.g. the last gradients."""
    from torch import profiler

    def marked() -> None:
        with profiler.record_function(_STEP):
            step()

    tracer = profiler.profile(activities=[profiler.ProfilerActivity.CPU], profile_memory=True)
    with temporary_folder() as folder:
        file = folder / "steps.json"
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
    """Return the allocations of the second of two steps in a profiler's events. Raise _UnreadableError without both.

    `stayed` are the storages alive at its end. Those whose allocation the profiler did not see were alive all the time.
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
        # PyTorch keeps a table of addresses for all its profilers, which lacks frees that no profiler saw: a free
        # counts only if this profiler saw the allocation.
        now -= live.pop(at, 0)
        if change > 0:
            live[at] = change
            now += change
        if row["ts"] >= steps[1] and change > 0:
            calls, asked, peak = calls + 1, asked + change, max(peak, now)
    before = {at: size for at, size in stayed.items() if at not in live}
    return Allocated(peak + _bytes(before), calls, asked)
