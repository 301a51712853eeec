"""State before a trial: earlier compilations do not matter, and the memory of a trial is its own."""

from __future__ import annotations

import json
import subprocess
import sys
import weakref
from typing import Any

import pytest

from workbook.engines.state import free_memory, peak_memory, reset_peak_memory


def test_the_memory_of_a_cpu_trial_is_the_resident_set_of_its_process() -> None:
    free_memory("cpu")
    facts = peak_memory("cpu")
    assert 2**20 < facts["memory_bytes"] < 2**40
    assert "resident set" in facts["memory_method"]


def test_a_peak_begins_without_garbage_in_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    class Step:
        def __init__(self) -> None:
            self.function = self.run  # as a step of a user's network keeps its loss

        def run(self) -> None: ...

    left = weakref.ref(Step())
    at_reset: list[Any] = []
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: None)
    monkeypatch.setattr("torch.cuda.reset_peak_memory_stats", lambda: at_reset.append(left()))
    reset_peak_memory("cuda")
    assert at_reset == [None]


# ---- compiled trials in a separate process: earlier compilations by Dynamo must not matter ---------------------------

COMPILED_TRIALS = """
import json, sys
import torch
from workbook.engines.state import reset_compiler

graphs = []

def backend(gm, inputs):
    tensors = [i for i in inputs if isinstance(i, torch.Tensor)]
    sizes = [size for t in tensors for size in t.shape] + [i for i in inputs if not isinstance(i, torch.Tensor)]
    static = all(type(size) is int for size in sizes)
    graphs.append([static, [[int(size) for size in t.shape] for t in tensors]])
    return gm.forward

model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))

def run(order, before_each):
    compiled = []
    for batch in order:
        before_each()
        before = len(graphs)
        with torch.no_grad():
            step = torch.compile(model, backend=backend)
            for _ in range(3):
                assert step(torch.zeros(batch, 4)).shape == (batch, 2)
        compiled.append([batch, graphs[before:]])
    return sorted(compiled)

def limit():
    step = torch.compile(torch.nn.Linear(4, 2), backend="eager")
    for batch in range(2, 30):
        try:
            step(torch.zeros(batch, 4))
        except torch._dynamo.exc.FailOnRecompileLimitHit:
            return batch
    return None

orders, said = json.loads(sys.argv[1]), {}
for name, order in orders.items():  # first PyTorch's defaults, in a fresh state each time
    torch._dynamo.reset()
    said["plain " + name] = run(order, lambda: None)
torch._dynamo.reset()
torch._dynamo.config.automatic_dynamic_shapes = False
said["plain limit"] = limit()
torch._dynamo.config.automatic_dynamic_shapes = True
for name, order in orders.items():
    said["reset " + name] = run(order, reset_compiler)
reset_compiler()
said["reset limit"] = limit()
print(json.dumps(said))
"""
BATCHES = [2, 3, 4, 6, 8]


@pytest.fixture(scope="module")
def compiled() -> dict[str, Any]:
    """Return each batch size's graphs (are all sizes static, shapes) by "plain" or "reset" and the order of sizes."""
    orders = {"ascending": BATCHES, "shuffled": BATCHES[1::2][::-1] + BATCHES[::2]}
    command = [sys.executable, "-c", COMPILED_TRIALS, json.dumps(orders)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_compiled_trials_give_the_same_static_graphs_in_any_order(compiled: dict[str, Any]) -> None:
    ascending = compiled["reset ascending"]
    assert ascending == compiled["reset shuffled"]
    assert [batch for batch, _ in ascending] == BATCHES
    for batch, graphs in ascending:
        assert len(graphs) == 1, f"batch {batch} compiled {len(graphs)} times, or not at all"
        static, shapes = graphs[0]
        assert static, f"batch {batch} compiled with dynamic shapes"
        assert [batch, 4] in shapes


def test_without_the_reset_a_trial_depends_on_earlier_trials(compiled: dict[str, Any]) -> None:
    plain = dict(compiled["plain ascending"])
    static, _ = plain[BATCHES[1]][0]
    assert not static, "the second batch size compiles with dynamic shapes"
    assert plain[BATCHES[-1]] == [], "later batch sizes compile no graph"
    assert compiled["plain shuffled"] != compiled["plain ascending"] != compiled["reset ascending"]


def test_a_recompile_limit_is_an_error_and_not_a_silent_fallback(compiled: dict[str, Any]) -> None:
    assert compiled["reset limit"] is not None
    assert compiled["plain limit"] is None, "PyTorch has changed its default: the setting is no longer needed"
