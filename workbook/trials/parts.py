"""The parts of a trial: each has the fields of one kind of work, with their valid values, and no workload uses all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any


def _word(*valid: str, retired: Iterable[str] = ()) -> Any:
    """Return a field for one of several words, the first by default. Only earlier records have `retired` words."""
    return field(default=valid[0], metadata={"words": (*valid, *retired), "retired": tuple(retired)})


def _count(default: int, least: int, meaning: str = "") -> Any:
    return field(default=default, metadata={"least": least, "meaning": meaning})


def _about(default: Any, meaning: str) -> Any:
    return field(default=default, metadata={"meaning": meaning})


@dataclass(frozen=True, kw_only=True)
class Common:
    """What every trial has: its task, the device, the arithmetic and the data."""

    workload: str = "train"
    workload_source: str = _about("", "hash of a user's workload and the user's modules that it imports")
    seed: int = 0
    energy_windows: int = _count(0, 0, "long windows over which energy is measured, instead of the usual timed part")
    # `fp32` is strict: without TF32. `default` leaves PyTorch's own settings: on GPUs since Ampere TF32 in convolutions
    # and not in matrix products, and cuDNN's algorithms by rules.
    precision: str = _word("fp32", "default", "tf32", "fp16", "bf16", "fp8", "int8")
    device: str = _word("cuda", "cpu")
    threads: int = _count(0, 0, "CPU threads of one operation; 0 leaves the number to the library")
    data: str = "synthetic32"
    data_checksum: str = _about("", "checksum of the data; records on other data never count as done")
    classes: int = _count(1000, 1)


@dataclass(frozen=True, kw_only=True)
class Sized(Common):
    """The size of work without a network."""

    size: int = _about(0, "without a model: matrix edge (matmul), bytes (copy) or operations (launch_rate)")


@dataclass(frozen=True, kw_only=True)
class Batches(Common):
    """Images that come in batches. `batch` is per device (see `scaling`)."""

    image_px: int = _count(32, 1, "edge of the images; networks that take words keep the default")
    batch: int = _count(64, 1)


@dataclass(frozen=True, kw_only=True)
class Steps(Batches):
    """A network's steps and how they are executed."""

    model: str = "resnet50"
    # `openvino` (a CPU library) and `triton+graph` (labkit's kernels on a GPU, also in INT8) only predict. `function`
    # and `xla` are for Keras: TensorFlow's traced function without a compiler, and XLA's programs.
    engine: str = _word(
        *("eager", "compile", "graph", "compile+graph", "openvino", "triton+graph", "function", "xla"),
    )
    memory_format: str = _word("contiguous", "channels_last")


@dataclass(frozen=True, kw_only=True)
class Network(Steps):
    """A network of the catalogue."""

    head: str = _about("torchvision", "last layers of VGGs at 32 px: torchvision's, 4096 wide, or `head512`")


@dataclass(frozen=True, kw_only=True)
class Inference(Network):
    """Predictions, and what is asked of them after the timed blocks."""

    # `excluded`: normalised images are on the device, and results stay there; `included`: image bytes come from the
    # host's memory, and the predicted classes return to it.
    copies: str = _word("excluded", "included")
    weights: str = _word("initial", "trained")  # speed does not depend on weights, accuracy does
    scored: int = _count(0, 0, "validation images that trained weights classify; each hit is recorded")
    queries: int = _count(0, 0, "batches timed one at a time after the timed blocks, fewer if time runs out")


@dataclass(frozen=True, kw_only=True)
class Tracing:
    """Steps under a profiler, after the timed blocks."""

    traced_iterations: int = _count(0, 0, "steps under a profiler after the timed part; no other number uses them")
    traced_s: int = _count(0, 0, "seconds after which the profiled steps end; 0 is the usual limit")
    steps_before: int = _count(0, 0, "fewest steps before the trace and the samples")
    counted: bool = _about(False, "without effect: part of the keys of older records")


@dataclass(frozen=True, kw_only=True)
class Updates(Common):
    """How weights are updated."""

    optimizer: str = "sgd"


@dataclass(frozen=True, kw_only=True)
class Own(Tracing, Updates, Steps):
    """A network that the user brings: `model` is its file's name or its name, and `workload_source` the file's hash."""


@dataclass(frozen=True, kw_only=True)
class Learning(Updates, Network):
    """Weights that change."""

    learning_rate: float = 0.01
    # `indexed`: the host sends each batch's sample numbers, PyTorch's operators gather and normalise; `device`: the
    # order is on the device too, and one kernel makes the batch.
    loader: str = _word("indexed", "device")


@dataclass(frozen=True, kw_only=True)
class Adversarial(Tracing, Learning):
    """A WGAN. The critic's slope is bounded by clipping its weights, in earlier records also by a penalty."""

    constraint: str = _word("clipping", retired=("gradient_penalty",))
    samples: int = _count(0, 0, "images that a WGAN generates after all other measurements")


@dataclass(frozen=True, kw_only=True)
class Devices:
    """Several devices. `devices` counts those of all `nodes`, equally many on each (but see `placement`)."""

    devices: int = _count(1, 1)
    # Between GPUs. `direct`: from GPU to GPU over the link they have; `host`: through the host's memory; `sockets`:
    # through the operating system's network, as between machines.
    interconnect: str = _word("direct", "host", "sockets")
    nodes: int = _count(1, 1)
    # Between nodes. `any`: the library's choice; `ethernet`: sockets over Ethernet; `infiniband`: InfiniBand's verbs.
    network: str = _word("any", "ethernet", "infiniband")


@dataclass(frozen=True, kw_only=True)
class Messages(Devices, Sized):
    """Messages between devices."""


@dataclass(frozen=True, kw_only=True)
class Exchange(Devices):
    """How the devices of a training share batches and exchange gradients."""

    scaling: str = _word("weak", "strong")  # each device gets `batch` images per step, or all devices share `batch`
    # Gradients of several devices are averaged, or applied in turn, when they are stale.
    updates: str = _word("synchronous", "asynchronous")
    # For whole training runs. `apart`: one device per process; `together`: all processes share one device, which shows
    # what several devices learn, but not how fast they are.
    placement: str = _word("apart", "together")
    gradient_precision: str = _word("fp32", "fp16", "bf16")  # in which several devices exchange gradients
    # On a machine. `ranks`: one process per device, gradients averaged; `one_process`: one process that copies the
    # weights to all devices in each step (PyTorch's DataParallel).
    parallel: str = _word("ranks", "one_process")


@dataclass(frozen=True, kw_only=True)
class Storage:
    """Images that a reader takes from the disk; `workbook.storage` and `workbook.storage.readers` explain the words."""

    # `embedded`: in labkit's own cache, as for all trials without a reader.
    form: str = _word("embedded", "jpeg", "shards", "tfrecord", "cache", retired=("parquet",))
    # `own`: labkit's loaders (`loader`).
    reader: str = _word(
        *("own", "torch_pil", "tf_data", "webdataset", "mapped", "resident"),
        retired=("torch_decode", "torch_nvjpeg", "grain", "dali"),
    )
    workers: int = _count(0, 0, "processes or threads that read and decode; `workbook.storage.readers` explains 0")
    cache: str = _word("warm", "cold")  # whether the operating system's page cache holds the files before an epoch
    readers: int = _count(1, 1, "readers that each read the whole data set and deliver a batch per step")
    # With several readers. `own`: each takes all images, in an order of its own; `shared`: each takes its part of one.
    reader_order: str = _word("own", "shared")


@dataclass(frozen=True, kw_only=True)
class Epochs:
    """Whole epochs, instead of blocks of steps."""

    epochs: int = _count(0, 0, "whole epochs to train, each with a validation, instead of timing blocks of steps")
    schedule: str = _word("constant", "one_cycle", "warm_up")  # of the learning rate over the epochs
    target_top1: float = _about(0.0, "accuracy whose first epoch is wanted; the training run continues after it")


@dataclass(frozen=True, kw_only=True)
class Loading(Epochs, Storage, Batches):
    """Delivery of images without a network."""


@dataclass(frozen=True, kw_only=True)
class Training(Tracing, Epochs, Storage, Exchange, Learning):
    """The training of a classifier."""

    framework: str = "torch"
    augment: bool = False
    # One job on all devices; two equal jobs at once, each on half of the devices (one device holds both); two jobs that
    # take turns on all devices.
    arrangement: str = _word("alone", "at_once", "in_sequence")
    # Process around an eager loop. `calling_thread`: the backward pass ran on the thread that called it, not on a
    # thread of autograd's; `two_cores`: all threads of the process ran on two cores; `no_benchmark`: cuDNN chose its
    # algorithms by rules, as is PyTorch's default, instead of timing them first.
    host_setting: str = _word(
        "default", retired=("calling_thread", "two_cores", "calling_thread+two_cores", "no_benchmark")
    )


# The parts of each workload's trials in one. A user's own workload has all of them.
PARTS: MappingProxyType[str, type[Common]] = MappingProxyType(
    {
        **{"train": Training, "infer": Inference, "gan": Adversarial, "load": Loading, "idle": Common},
        **dict.fromkeys(("own_training", "own_prediction"), Own),
        **dict.fromkeys(("matmul", "memory_copy", "launch_rate"), Sized),
        **dict.fromkeys(("all_reduce", "peer_copy"), Messages),
    }
)


def fields_of(part: type) -> tuple[str, ...]:
    """Return the names of the fields of a part."""
    return tuple(each.name for each in fields(part))
