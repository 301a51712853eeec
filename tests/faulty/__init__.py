"""Workloads that fail in every way a trial can, and some that succeed. A trial names each as `tests.faulty.kill`.

The module that a trial names builds its workload, so each entry of BUILDS is registered as a module. Workloads of one
process import no framework unless their docstring says so. `together` and `training` hold those of several ranks.
"""

from __future__ import annotations

import faulthandler
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from workbook.errors import GateError, Unsupported
from workbook.trials.rules import Rule, check
from workbook.trials.trial import Trial
from workbook.workloads import Scores

Build = Callable[[Trial, Any], Any]
GIB = 2**30
COMPILER = "labkit-test-cc"  # the program that `needs_compiler` needs
TOLD = ("KERAS_BACKEND", "CUDA_VISIBLE_DEVICES", "JAX_PLATFORMS")
OF_USER = ("TORCHDYNAMO_SUPPRESS_ERRORS", "MALLOC_ARENA_MAX")
MEMORY = ("TF_FORCE_GPU_ALLOW_GROWTH", "XLA_PYTHON_CLIENT_PREALLOCATE")


class Steps:
    """A workload that sleeps 1 ms per step and calls `fail` in its third step, while blocks are being timed."""

    images_per_step: int | None = 4
    flop_per_step: int | None = None
    bytes_per_step: int | None = None
    read_loss: Any = None
    fails_at = 3

    def __init__(self, trial: Trial, data: object = None, *, fail: Callable[[], object] = lambda: None) -> None:
        self.facts: dict[str, Any] = {"size": trial.size}
        self.fail = fail
        self._steps = 0

    def check(self) -> None:
        """Run one step. The gate passes."""
        self.step()

    def step(self) -> None:
        self._steps += 1
        time.sleep(0.001)
        if self._steps == self.fails_at:
            self.fail()


class WithGate(Steps):
    """A workload with a gate that takes a reference."""

    _compares = True

    def leave_out_gate(self) -> None:
        """Leave out the reference."""
        self._compares = False

    def check(self) -> None:
        """Run one step, and compare it unless the gate is left out."""
        self.step()
        if self._compares:
            self.facts["gate"] = {"loss_difference": 0.0, "loss_tolerance": 0.1}


# ---- faults of the third step ----------------------------------------------------------------------------------------


def kill() -> None:
    """Kill this process with SIGKILL."""
    os.kill(os.getpid(), signal.SIGKILL)


def kill_with_fork() -> None:
    """Kill this process and leave a forked child that keeps all of its pipes open."""
    if os.fork() == 0:
        time.sleep(600)
        os._exit(0)
    kill()


def segfault() -> None:
    """Crash with a segmentation fault, as a faulty library does."""
    faulthandler._sigsegv()  # type: ignore[attr-defined]


def hang() -> None:
    """Sleep far longer than any limit: the step never ends."""
    time.sleep(600)


def hang_with_child() -> None:
    """Start a child process that sleeps, then hang."""
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    hang()


def raises() -> None:
    """Raise an unexpected exception whose message contains bytes that are not valid text."""
    raise ValueError("this model has no such layer \udcff")


def exhaust() -> None:
    """Request more memory from PyTorch than any machine has."""
    import torch

    torch.empty(10**15)


def exhaust_numpy() -> None:
    """Request more memory from NumPy than any machine has."""
    import numpy as np

    np.empty(10**15)


def exhaust_kernel() -> None:
    """Imitate the kernel's OOM killer: count a kill in a file like /proc/vmstat, then kill this process."""
    Path(os.environ["LABKIT_TEST_VMSTAT"]).write_text("oom_kill 8\n")
    kill()


def takes_memory() -> None:
    """Write to 2 GiB of memory, more than a small control group allows."""
    kept = [bytearray(b"x" * 2**20) for _ in range(2 * 2**10)]
    assert kept


def breaks_gpu() -> None:
    """Read past the end of a tensor on the GPU. Every later CUDA call of this process fails, as after a lost GPU."""
    import torch

    few = torch.zeros(1, device="cuda")
    few[torch.tensor([9], device="cuda")].sum().item()


def hides_gpu() -> None:
    """Put /dev/null in the place of the GPUs' device files and kill this process.

    LABKIT_TEST_MOUNTS names the mount namespace of the tests, which must be another than this process's.
    """
    own = str(Path("/proc/self/ns/mnt").readlink())
    if os.environ.get("LABKIT_TEST_MOUNTS", own) == own:
        raise RuntimeError("this would hide the GPUs from the whole machine: run it below unshare --mount")
    for path in Path("/dev").glob("nvidia[0-9]*"):
        subprocess.run(["mount", "--bind", "/dev/null", str(path)], check=True)
    kill()


def noisy() -> None:
    """Print megabytes through Python, file descriptors and a child. Some lines look like an event of the protocol."""
    event = json.dumps({"event": "done", "status": "ok", "reason": None})
    for stream in (sys.stdout, sys.stderr):
        for _ in range(20):
            stream.write("x" * 50_000 + "\n" + event + "\n")
        stream.flush()
    os.write(1, b"\xff\x00" * 500_000 + b"\n" + event.encode() + b"\n")
    subprocess.run([sys.executable, "-c", f"print({event!r})"], check=True)


FAULTS = (
    *(kill, kill_with_fork, segfault, hang, hang_with_child),
    *(raises, exhaust, exhaust_numpy, exhaust_kernel, takes_memory, breaks_gpu, hides_gpu, noisy),
)


# ---- other irregular workloads --------------------------------------------------------------------------------------


def unsupported(trial: Trial, data: object) -> Steps:
    """Raise Unsupported, as for an engine that this machine lacks."""
    raise Unsupported("no such engine on this machine")


def impossible(trial: Trial, data: object) -> Steps:
    """Raise Unsupported, as for a combination that no machine can run."""
    raise Unsupported("a CPU has no such engine", "never")


def needs_compiler(trial: Trial, data: object) -> Steps:
    """Return a workload that this machine runs once a program is installed."""
    check([Rule("here", lambda _: shutil.which(COMPILER) is None, "Triton finds no C compiler")], trial)
    return Steps(trial)


def odd_facts(trial: Trial, data: object) -> Steps:
    """Return a workload with NaN among its facts, which JSON cannot represent."""
    steps = Steps(trial)
    steps.facts["share"] = float("nan")
    return steps


def settings(trial: Trial, data: object) -> Steps:
    """Return a workload whose facts hold what a process begins with: variables, frameworks, signals, start method, …"""
    steps = Steps(trial)
    loaded = [name for name in ("torch", "tensorflow", "jax", "keras") if name in sys.modules]
    told = {name: os.environ.get(name) for name in (*TOLD, *MEMORY)}
    inherited = [name for name in OF_USER if name in os.environ]
    steps.facts |= {"told": told, "inherited": inherited, "loaded": loaded, "pid": os.getpid()}
    descriptors = sorted(int(link.name) for link in Path("/proc/self/fd").iterdir())
    steps.facts |= {
        "signals": {number.name: str(signal.getsignal(number)) for number in signal.Signals},
        "start_method": multiprocessing.get_start_method(),
        "leads_group": os.getpgrp() == os.getpid(),
        "descriptors": descriptors[:-1],  # the last lists the folder of descriptors
        "folder": str(Path.cwd()),
        "threads": threading.active_count(),
    }
    return steps


def on_device(trial: Trial, data: object) -> Steps:
    """Return a workload that holds 1 GiB on the device through Keras. Its facts hold the device memory then in use."""
    import pynvml
    from keras import ops

    steps = Steps(trial)
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    kept = ops.ones((GIB // 4,), dtype="float32")
    steps.fail = lambda: kept  # keeps the tensor alive as long as the workload
    last = float(ops.convert_to_numpy(kept[-1]))  # proves the tensor is written; a reduction would take 1 GiB more
    used = int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
    pynvml.nvmlShutdown()
    steps.facts |= {"pid": os.getpid(), "used_bytes": used, "last": last}
    return steps


class Gate(Steps):
    """A workload with wrong results: its gate fails, so no step may be timed."""

    def check(self) -> None:
        raise GateError("the loss is nan")

    def step(self) -> None:
        raise AssertionError("a trial that failed its gate was timed")


class Prepared(Steps):
    """A sound workload with three ordered preparations, which states its own memory use."""

    def __init__(self, trial: Trial, data: object = None) -> None:
        super().__init__(trial)
        self.facts |= {"done": [], "memory_bytes": 12345, "memory_method": "as the workload says"}

    def preparations(self) -> Iterator[tuple[str, Callable[[], None]]]:
        for name in ("reference", "compile", "capture"):
            yield name, partial(self.prepare, name)

    def prepare(self, name: str) -> None:
        time.sleep(0.01)
        self.facts["done"].append(name)

    def check(self) -> None:
        self.facts["done"].append("check")
        super().check()


class PreparesBadly(Prepared):
    """A workload whose second preparation raises. The third and the gate must not run after that."""

    def prepare(self, name: str) -> None:
        if name == "compile":
            raise RuntimeError("the compiler gave up")
        if name == "capture":
            raise AssertionError("went on after a preparation that failed")

    def check(self) -> None:
        raise AssertionError("a trial that failed to prepare was checked")


class Epochs(Steps):
    """A training run whose epochs take no time: 10 images in batches of 4. The loss is the number of the step."""

    def __init__(self, trial: Trial, data: object = None) -> None:
        super().__init__(trial)
        self.facts["seed_of_build"] = trial.seed

    def read_loss(self) -> float:
        return float(self._steps)

    def restart(self) -> None:
        self._steps = 0

    def steps_of_epoch(self, epoch: int) -> int:
        return (3, 2)[epoch % 2]

    def learning_rate(self) -> float:
        return 1 / self._steps

    def evaluate(self) -> Scores:
        return Scores(loss=None, top1=0.25, top5=0.5, images=8)


# ---- registration ---------------------------------------------------------------------------------------------------


def elsewhere(module: str, name: str) -> Build:
    """Return the build function `name` of a submodule, which imports PyTorch and is therefore imported on call."""
    return lambda trial, data: getattr(import_module(f"{__name__}.{module}"), name)(trial, data)


TOGETHER = ("hang", "kill", "oom", "raises", "unsupported", "where")
TRAINING = ("apart", "in_buckets", "rounded")
BUILDS: dict[str, Build] = {
    **{fault.__name__: partial(Steps, fail=fault) for fault in FAULTS},
    **{build.__name__: build for build in (unsupported, impossible, needs_compiler, odd_facts, settings, on_device)},
    **{
        "ok": Steps,
        "gate": Gate,
        "with_gate": WithGate,
        "prepared": Prepared,
        "prepares_badly": PreparesBadly,
        "epochs": Epochs,
    },
    **{f"together_{how}": elsewhere("together", how) for how in TOGETHER},
    **{f"train_{how}": elsewhere("training", how) for how in TRAINING},
    "unequal": elsewhere("together", "Unequal"),
}
for _name, _build in BUILDS.items():
    _module = ModuleType(f"{__name__}.{_name}")
    _module.build = _build  # type: ignore[attr-defined]
    sys.modules[_module.__name__] = _module
