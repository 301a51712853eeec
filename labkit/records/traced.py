"""What a trace of some steps said, as it stands in a record: shares and totals, not the trace itself.

A trace is taken in pieces of a few steps after everything timed, since a profiler slows a step down and fills memory;
each piece is analysed and forgotten. Seconds are of all its steps together. On a GPU kernels, copies and fills ran; on
a CPU PyTorch's operators did, each without the operators within it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

# What a kernel or an operator does. `layout`: to other memory formats or precisions; `other`: no rule knows its name.
KernelClass = Literal[
    "convolution",
    "matrix_product",
    "batch_norm",
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
# How a convolution is done. `tensor_core`: an implicit matrix product on tensor cores; `helper`: what an algorithm
# does to its operands before and after; `library`: the library's own choice, where its operators have no more names.
Algorithm = Literal["tensor_core", "implicit_gemm", "winograd", "fft", "direct", "helper", "library"]
CallClass = Literal["launch", "clean_up", "memory", "wait", "other"]
# Which rules sorted kernels into the two above; a change that moves time between them is another number.
# 2: what an FFT multiplies is its own, where it counted as Winograd, as implicit matrix product or as element-wise; and
# of a backward pass's two convolutions each has its own algorithm, where one by Winograd made both.
# 3: cuDNN's common engine, whose tiles are those of its implicit matrix product, is none that convolves directly; its
# tensor transformations are helpers where they counted as layout.
RULES = 3
ALGORITHMS_HOLD_SINCE = 2  # rules by which algorithms of convolutions, Winograd's above all, are sorted well enough
# Of a training step, in their order. What the NYU paper profiled as the backward pass is the last two of them, with
# the zeroing of gradients that `update` begins with here.
SECTIONS = ("load", "forward", "loss", "backward", "optimiser")
Direction = Literal["host_to_device", "device_to_host", "device_to_device", "peer_to_peer"]


class _Part(BaseModel, extra="forbid", frozen=True):
    """A part of a record: an unknown field is an error, and nothing changes it after reading."""


class Total(_Part):
    """How long things of a kind took together, and how many there were."""

    seconds: float
    count: int


class Kernel(Total):
    """A kernel (of a CPU: an operator) by its name, which is shortened."""

    name: str
    kind: KernelClass
    algorithm: Algorithm | None = None  # of convolutions


class Copies(Total):
    """Copies in one direction."""

    bytes: int
    median_bytes: int


class Section(_Part):
    """A part of the step: what the host called in it, and what the device did because of these calls."""

    host_s: float  # between its beginning and its end on the host
    kernel_s: float  # of the kernels that were launched in it, their durations added up
    busy_s: float  # in which any of them ran
    calls: dict[CallClass, Total]


class Memory(_Part):
    """Bytes of one step by what they hold, None where it can't be told.

    Gradients come as activations go. `workspace` is what the peak has beyond the most that is held at once: operators'
    own and what lives between two of them.
    """

    weights: int
    gradients: int
    optimiser: int
    activations: int | None = None  # that the forward pass keeps for the backward pass
    inputs: int | None = None
    workspace: int | None = None
    peak: int | None = None
    allocations: int | None = None  # calls of the allocator in a step
    allocated_bytes: int | None = None  # that these asked for
    method: str


class Piece(_Part):
    """A few steps in a row under the profiler."""

    steps: int
    elapsed_s: float
    busy_s: float  # in which any kernel ran (of a CPU: any operator)
    kernel_s: dict[KernelClass, float]


class Traced(_Part):
    """Some steps under a profiler.

    `elapsed_s` is from the first step's beginning until its last kernel has ended, over all pieces. The device is
    `busy_s` of it in kernels and `active_s` in kernels, copies or fills; of the rest it waited `launch_gap_s` for
    something that the host had not launched yet, `queue_gap_s` though something was, and `edge_gap_s` before a piece's
    first kernel and after its last one, where a run without pieces would not wait.
    """

    kind: Literal["trace"] = "trace"
    of: Literal["kernels", "operators"]
    rules: int = 1  # records before 2 did not say
    steps: int
    asked_for: int  # steps that were to be traced: fewer are where the time was up
    steps_before: int = 0  # steps of this trial before the first traced one
    # Whose kernels these are. Times in which something ran, and gaps, are the mean of them; what is added up is of all.
    devices: int = 1
    pieces: list[Piece]
    elapsed_s: float
    busy_s: float
    active_s: float
    launch_gap_s: float | None = None
    queue_gap_s: float | None = None
    edge_gap_s: float | None = None
    kernels: dict[KernelClass, Total]
    algorithms: dict[Algorithm, Total] = {}  # of the convolutions
    longest: list[Kernel]  # the kernels that took most time together
    convolution_kernel: str | None = None  # the one that most convolution time was spent in
    max_pool_backward_s: float = 0.0
    broadcast_s: float = 0.0
    overlapping_s: float = 0.0  # in which two kernels or more ran
    copies: dict[Direction, Copies] = {}
    fills: Total | None = None
    copy_s: float = 0.0  # in which any copy ran
    copy_beside_kernel_s: float = 0.0  # of it, in which a kernel ran too
    calls: dict[CallClass, Total] = {}
    calls_by_name: dict[str, Total] = {}  # those that took most
    sections: dict[str, Section] = {}
    exchange_s: float = 0.0  # in which gradients were on their way between devices
    exposed_exchange_s: float = 0.0  # of it, in which nothing computed
    memory: Memory | None = None
    notes: list[str] = []  # what is incomplete and why, for people

    @property
    def kernel_s(self) -> float:
        """Durations of all kernels, added up."""
        return sum(total.seconds for total in self.kernels.values())

    @property
    def hidden_exchange_share(self) -> float | None:
        """The share of the exchange during which something computed; None where nothing was exchanged."""
        return 1 - self.exposed_exchange_s / self.exchange_s if self.exchange_s else None


class Untraced(_Part):
    """A trace was asked for, and there is none."""

    kind: Literal["no_trace"] = "no_trace"
    reason: str


Trace = Annotated[Traced | Untraced, Field(discriminator="kind")]
