"""The result of a trace of some steps, as a record holds it: shares and totals, not the trace itself.

A trace is taken in pieces of a few steps after everything timed, since a profiler slows a step down and fills memory.
Each piece is analysed and discarded. Seconds are sums over all traced steps. On a GPU, they are of kernels, copies and
fills; on a CPU, of PyTorch's operators, each without the operators within it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

# Classes of kernels and operators. `layout`: to other memory formats or precisions; `other`: no rule matches the name.
KernelClass = Literal[
    "convolution",
    "matrix_product",
    "batch_norm",
    "layer_norm",  # group, instance and RMS norm, too; records before 28 November 2026 have them as reductions
    "pooling",
    "element_wise",
    "reduction",
    "loss",
    "optimiser",
    "layout",
    "loader",
    "collective",
    "other",
]
# Algorithms of convolutions. `tensor_core`: an implicit matrix product on tensor cores; `helper`: work of an algorithm
# on its operands before and after; `library`: chosen by the library, whose operators do not name it.
Algorithm = Literal["tensor_core", "implicit_gemm", "winograd", "fft", "direct", "helper", "library"]
CallClass = Literal["launch", "clean_up", "memory", "wait", "other"]
# Number of the rules that sort kernels into these classes and algorithms. A change that moves time raises the number.
# 2: FFT products count as `fft`, not as Winograd, implicit matrix product or element-wise. Each of the two convolutions
# of a backward pass has its own algorithm, where one by Winograd made both Winograd.
# 3: cuDNN's common engine, whose tiles are those of its implicit matrix product, does not count as direct. Its tensor
# transformations count as helpers, not as layout.
RULES = 3
ALGORITHMS_HOLD_SINCE = 2  # first rules that sort algorithms of convolutions, Winograd above all, well enough
# Sections of a training step, in order. The backward pass that the NYU paper profiled is the last two of them, with the
# zeroing of gradients, with which `update` begins here.
SECTIONS = ("load", "forward", "loss", "backward", "optimiser")
Direction = Literal["host_to_device", "device_to_host", "device_to_device", "peer_to_peer"]


class _Part(BaseModel, extra="forbid", frozen=True, allow_inf_nan=False):
    """A part of a record. Unknown fields are errors, and fields cannot be reassigned."""


class Total(_Part):
    """Seconds of all items of a kind together, and their number."""

    seconds: float
    count: int


class Kernel(Total):
    """Total of a kernel (on a CPU: of an operator), by its shortened name."""

    name: str
    kind: KernelClass
    algorithm: Algorithm | None = None  # of convolutions


class Copies(Total):
    """Total of the copies in one direction, with their bytes."""

    bytes: int
    median_bytes: int


class Section(_Part):
    """A section of the step: calls of the host in it, and device work that these calls launched."""

    host_s: float  # between the section's start and end on the host
    kernel_s: float  # sum of the durations of the kernels launched in the section
    busy_s: float  # in which any of these kernels ran
    calls: dict[CallClass, Total]


class Memory(_Part):
    """Bytes of one step by contents, None if unknown.

    Gradients appear while activations are freed. `workspace` is the part of the peak beyond the most that is held at
    once: memory of operators, and tensors that live between two operators.
    """

    weights: int
    gradients: int
    optimiser: int
    activations: int | None = None  # kept by the forward pass for the backward pass
    inputs: int | None = None
    workspace: int | None = None
    peak: int | None = None
    allocations: int | None = None  # allocator calls in a step
    allocated_bytes: int | None = None  # requested by these calls
    method: str


class Piece(_Part):
    """A few consecutive steps under the profiler."""

    steps: int
    elapsed_s: float
    busy_s: float  # in which any kernel ran (on a CPU: any operator)
    kernel_s: dict[KernelClass, float]


class Traced(_Part):
    """Sums over some steps under a profiler.

    `elapsed_s` is the time from the start of each piece's first step until its last kernel has ended. For `busy_s` of
    it, the device runs kernels; for `active_s`, kernels, copies or fills. In the rest it waits: `launch_gap_s` for the
    host to launch work, `queue_gap_s` although work is launched, and `edge_gap_s` before a piece's first kernel and
    after its last one, where a run without pieces would not wait.
    """

    kind: Literal["trace"] = "trace"
    of: Literal["kernels", "operators"]
    rules: int = 1  # records from before rules 2 lack the field
    steps: Annotated[int, Field(ge=0)]
    asked_for: int  # planned steps: fewer were traced if the time was up
    steps_before: int = 0  # steps of this trial before the first traced one
    # Number of devices. Times in which something ran, and gaps, are means over devices; sums are over all devices.
    devices: int = 1
    pieces: list[Piece]
    elapsed_s: Annotated[float, Field(gt=0)]
    busy_s: float
    active_s: float
    launch_gap_s: float | None = None
    queue_gap_s: float | None = None
    edge_gap_s: float | None = None
    kernels: dict[KernelClass, Total]
    algorithms: dict[Algorithm, Total] = {}  # of the convolutions
    longest: list[Kernel]  # the kernels that took most time together
    convolution_kernel: str | None = None  # the kernel with the most convolution time
    max_pool_backward_s: float = 0.0
    broadcast_s: float = 0.0
    overlapping_s: float = 0.0  # in which two or more kernels ran
    copies: dict[Direction, Copies] = {}
    fills: Total | None = None
    copy_s: float = 0.0  # in which any copy ran
    copy_beside_kernel_s: float = 0.0  # part of `copy_s` in which a kernel ran too
    calls: dict[CallClass, Total] = {}
    calls_by_name: dict[str, Total] = {}  # the calls that took most time
    sections: dict[str, Section] = {}
    exchange_s: float = 0.0  # in which gradients travelled between devices
    exposed_exchange_s: float = 0.0  # part of `exchange_s` in which nothing computed
    memory: Memory | None = None
    notes: list[str] = []  # for people: what is incomplete, and why

    @property
    def kernel_s(self) -> float:
        """Sum of the durations of all kernels."""
        return sum(total.seconds for total in self.kernels.values())

    @property
    def hidden_exchange_share(self) -> float | None:
        """Share of the exchange during which something computed; None without an exchange."""
        return 1 - self.exposed_exchange_s / self.exchange_s if self.exchange_s else None


class Untraced(_Part):
    """A requested trace that does not exist, with the reason."""

    kind: Literal["no_trace"] = "no_trace"
    reason: str


Trace = Annotated[Traced | Untraced, Field(discriminator="kind")]
