"""A trial: one configuration to measure, its stable key, and grids of trials.

The key is the canonical JSON of the fields that differ from their defaults. So a field added later, with the old
behaviour as its default, changes no key in a committed record (`tests/workbook/test_trial.py` pins some).
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable
from dataclasses import MISSING, asdict, dataclass, fields, replace
from functools import cache
from numbers import Integral
from types import MappingProxyType
from typing import Annotated, Any

from labkit.errors import UserError, one_of, unknown
from workbook.trials.own_module import source_hash_of

# PyTorch itself, or Keras 3 on one of its three back ends.
FRAMEWORKS = ("torch", "keras-torch", "keras-tensorflow", "keras-jax")
# `openvino` (a CPU library) and `triton+graph` (labkit's kernels on a GPU, also in INT8) only predict.
# `function` and `xla` are for Keras: TensorFlow's traced function without a compiler, and XLA's programs.
ENGINES = ("eager", "compile", "graph", "compile+graph", "openvino", "triton+graph", "function", "xla")
# `fp32` is strict: without TF32. `default` leaves PyTorch's own settings: on GPUs since Ampere TF32 in convolutions and
# not in matrix products, and cuDNN's algorithms by rules.
PRECISIONS = ("fp32", "default", "tf32", "fp16", "bf16", "fp8", "int8")
DEVICES = ("cuda", "cpu")
# Between GPUs. `direct`: from GPU to GPU over the link they have; `host`: through the host's memory; `sockets`: through
# the operating system's network, as between machines.
INTERCONNECTS = ("direct", "host", "sockets")
# Between nodes. `any`: the library's choice; `ethernet`: sockets over Ethernet; `infiniband`: InfiniBand's verbs.
NETWORKS = ("any", "ethernet", "infiniband")
# For training: one job on all devices; two equal jobs at once, each on half of the devices (one device holds both); two
# jobs that take turns on all devices.
ARRANGEMENTS = ("alone", "at_once", "in_sequence")
# The valid values of the fields that hold one of several words.
WORDS = MappingProxyType(
    {
        "engine": ENGINES,
        "precision": PRECISIONS,
        "memory_format": ("contiguous", "channels_last"),
        "device": DEVICES,
        "schedule": ("constant", "one_cycle", "warm_up"),
        # `indexed`: the host sends each batch's sample numbers, PyTorch's operators gather and normalise; `device`:
        # the order is on the device too, and one kernel makes the batch.
        "loader": ("indexed", "device"),
        # For inference. `excluded`: normalised images are on the device, and results stay there; `included`: image
        # bytes come from the host's memory, and the predicted classes return to it.
        "copies": ("excluded", "included"),
        # For inference. `initial`: speed does not depend on weights; `trained`: accuracy does.
        "weights": ("initial", "trained"),
        # On several devices. `weak`: each device gets `batch` images per step; `strong`: all devices share `batch`.
        "scaling": ("weak", "strong"),
        "arrangement": ARRANGEMENTS,
        # Gradients of several devices are averaged, or applied in turn, when they are stale.
        "updates": ("synchronous", "asynchronous"),
        # For whole training runs. `apart`: one device per process; `together`: all processes share one device, which
        # shows what several devices learn, but not how fast they are.
        "placement": ("apart", "together"),
        "interconnect": INTERCONNECTS,
        "network": NETWORKS,
        "gradient_precision": ("fp32", "fp16", "bf16"),  # in which several devices exchange gradients
        # For training on several devices of a machine. `ranks`: one process per device, gradients averaged;
        # `one_process`: one process that copies the weights to all devices in each step (PyTorch's DataParallel).
        "parallel": ("ranks", "one_process"),
        # For a WGAN: the critic's slope is bounded by clipping its weights, or by a penalty on its gradients.
        "constraint": ("clipping", "gradient_penalty"),
        # For eager training in one process. `calling_thread`: the backward pass ran on the thread that called it, not
        # on a thread of autograd's; `two_cores`: all threads of the process ran on two cores; `no_benchmark`: cuDNN
        # chose its algorithms by rules, as is PyTorch's default, instead of timing them first.
        "host_setting": ("default", "calling_thread", "two_cores", "calling_thread+two_cores", "no_benchmark"),
        # How the images lie on the disk. `embedded`: in labkit's own cache, as for all trials without a reader.
        # `workbook.storage` explains the others.
        "form": ("embedded", "jpeg", "shards", "tfrecord", "parquet", "cache"),
        # Who reads them. `own`: labkit's loaders (`loader`). `workbook.storage.readers` explains the others.
        "reader": (
            *("own", "torch_pil", "torch_decode", "torch_nvjpeg", "tf_data", "grain", "webdataset", "dali"),
            *("mapped", "resident"),
        ),
        "cache": ("warm", "cold"),  # whether the operating system's page cache holds the files before an epoch
        # With several readers. `own`: each takes all images, in an order of its own; `shared`: each takes its part of
        # one order.
        "reader_order": ("own", "shared"),
    }
)
# Of these, the values that only earlier records have: nothing plans or runs them.
RETIRED: MappingProxyType[str, tuple[str, ...]] = MappingProxyType(
    {
        "constraint": ("gradient_penalty",),
        "host_setting": WORDS["host_setting"][1:],
        "form": ("parquet",),
        "reader": ("torch_decode", "torch_nvjpeg", "grain", "dali"),
    }
)
NO_DATA = "none"  # for workloads that take no images
OF_NETWORKS = ("train", "infer", "gan")  # the workloads with a network
# Fields of measurements after the timed blocks. Comparisons of trials ignore them.
ASKED_AFTER = ("queries", "traced_iterations", "traced_s", "steps_before", "samples", "counted")

# Fields of trials whose images lie on the disk in a form that others read too.
OF_READERS = ("reader", "workers", "cache", "readers", "reader_order")


def measured(name: str) -> tuple[str, ...]:
    """Return the values of a field of `WORDS` that trials are measured with."""
    return tuple(word for word in WORDS[name] if word not in RETIRED.get(name, ()))


FORMS, READERS = measured("form"), measured("reader")

_AT_LEAST = MappingProxyType(
    {
        **dict.fromkeys(("batch", "devices", "nodes", "image_px", "classes", "readers"), 1),
        **dict.fromkeys(("energy_windows", "epochs", "queries", "threads", "scored", "workers", *ASKED_AFTER[1:]), 0),
    }
)
# With `one_process`, PyTorch splits a batch among one machine's GPUs, in step. With `together`, processes exchange in
# their machine's memory.
_OF_ONE_MACHINE = {"framework": "torch", "nodes": 1, "arrangement": "alone"}
_GOES_ONLY_WITH = MappingProxyType(
    {
        ("parallel", "one_process"): {**_OF_ONE_MACHINE, "scaling": "strong", "updates": "synchronous"},
        ("placement", "together"): {**_OF_ONE_MACHINE, "interconnect": "direct", "parallel": "ranks"},
    }
)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One configuration to measure. `batch` is per device (see `scaling`); sizes are counts; `image_px` is an edge.

    `devices` counts the devices of all `nodes`, equally many on each (but see `placement`). `workload` names a module
    of `workbook.workloads`, or, if it contains a dot, any importable module with `build`. Invalid values raise
    UserError. `workbook.describe` shows the texts beside the types.
    """

    workload: str = "train"
    model: str = "resnet50"
    image_px: Annotated[int, "edge of the images; networks that take words keep the default"] = 32
    classes: int = 1000
    head: Annotated[str, "last layers of VGGs at 32 px: torchvision's, 4096 wide, or `head512`"] = "torchvision"
    batch: int = 64
    precision: str = "fp32"
    engine: str = "eager"
    memory_format: str = "contiguous"
    optimizer: str = "sgd"
    learning_rate: float = 0.01
    framework: str = "torch"
    device: str = "cuda"
    devices: int = 1
    data: str = "synthetic32"
    data_checksum: Annotated[str, "checksum of the data; records on other data never count as done"] = ""
    augment: bool = False
    seed: int = 0
    size: Annotated[int, "without a model: matrix edge (matmul), bytes (copy) or operations (launch_rate)"] = 0
    energy_windows: Annotated[int, "long windows over which energy is measured, instead of the usual timed part"] = 0
    loader: str = "indexed"
    epochs: Annotated[int, "whole epochs to train, each with a validation, instead of timing blocks of steps"] = 0
    schedule: Annotated[str, "learning rate over the epochs"] = "constant"
    target_top1: Annotated[float, "accuracy whose first epoch is wanted; the training run continues after it"] = 0.0
    copies: str = "excluded"
    queries: Annotated[int, "batches timed one at a time after the timed blocks, fewer if time runs out"] = 0
    threads: Annotated[int, "CPU threads of one operation; 0 leaves the number to the library"] = 0
    weights: str = "initial"
    scaling: str = "weak"
    arrangement: str = "alone"
    updates: str = "synchronous"
    placement: str = "apart"
    interconnect: str = "direct"
    gradient_precision: str = "fp32"
    nodes: int = 1
    network: str = "any"
    traced_iterations: Annotated[int, "steps under a profiler after the timed part; no other number uses them"] = 0
    traced_s: Annotated[int, "seconds after which the profiled steps end; 0 is the usual limit"] = 0
    steps_before: Annotated[int, "fewest steps before the trace and the samples"] = 0
    counted: Annotated[bool, "without effect: part of the keys of older records"] = False
    parallel: str = "ranks"
    constraint: str = "clipping"
    samples: Annotated[int, "images that a WGAN generates after all other measurements"] = 0
    scored: Annotated[int, "validation images that trained weights classify; each hit is recorded"] = 0
    host_setting: Annotated[str, "process around an eager loop, in earlier records"] = "default"
    form: str = "embedded"
    reader: str = "own"
    workers: Annotated[int, "processes or threads that read and decode; `workbook.storage.readers` explains 0"] = 0
    cache: str = "warm"
    readers: Annotated[int, "readers that each read the whole data set and deliver a batch per step"] = 1
    reader_order: str = "own"
    workload_source: Annotated[str, "hash of a user's workload and the user's modules that it imports"] = ""

    def __post_init__(self) -> None:
        for name, kind in _kinds().items():
            value = getattr(self, name)
            if kind is float and type(value) is int:  # equal, but not the same JSON: one trial would have two keys
                object.__setattr__(self, name, float(value))
            elif kind is int and type(value) not in (int, bool) and isinstance(value, Integral):  # NumPy's
                object.__setattr__(self, name, int(value))
            elif not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
                article = "an" if kind is int else "a"
                raise UserError(f"a trial's {name} must be {article} {kind.__name__}, not {value!r}.")
            if kind is float and not math.isfinite(value):
                raise UserError(f"a trial's {name} must be a finite number, not {value}.")  # JSON has no other
        for name, valid in WORDS.items():
            if getattr(self, name) not in valid:
                raise unknown(f"trial {name}", getattr(self, name), measured(name))
        if self.framework not in FRAMEWORKS and "." not in self.workload:  # a user's own module may use another
            raise unknown("trial framework", self.framework, FRAMEWORKS)
        for name, least in _AT_LEAST.items():
            if getattr(self, name) < least:
                raise UserError(f"a trial's {name} must be at least {least}, not {getattr(self, name)}.")
        if self.devices % self.nodes:
            raise UserError(f"{self.devices} devices can't be shared by {self.nodes} nodes evenly.")
        if self.network != "any" and self.nodes == 1:
            raise UserError(f"network {self.network!r} connects nodes, and the trial has one: give nodes=2 or more.")
        if self.scaling == "strong" and self.batch % self.devices:
            raise UserError(f"a batch of {self.batch} images can't be shared by {self.devices} devices evenly.")
        if self.arrangement == "at_once" and self.devices > 1 and self.devices % 2:
            raise UserError(f"two jobs at once need an even number of devices, or one device, not {self.devices}.")
        if not 0 <= self.target_top1 < 1:
            raise UserError(f"a trial's target_top1 must be at least 0 and below 1, not {self.target_top1}.")
        if self.epochs and (self.energy_windows or self.traced_iterations):
            raise UserError("a trial trains whole epochs, or uses energy windows and traced steps, not both.")
        if self.parallel == "one_process" and self.devices == 1:
            raise UserError("parallel='one_process' needs two devices or more: give devices=2, or leave out parallel.")
        if self.placement == "together" and (self.devices == 1 or not self.epochs):
            raise UserError(
                "placement='together' needs at least two processes and whole epochs: set devices=2 and epochs=1 or "
                "more, or leave out placement."
            )
        if self.form == "embedded":
            for name in OF_READERS:
                if getattr(self, name) != getattr(type(self), name):
                    raise UserError(
                        f"{name}={getattr(self, name)!r} needs images in files: give form= {' or '.join(FORMS[1:])}."
                    )
        elif self.cache == "cold" and not self.epochs:
            raise UserError("cache='cold' needs whole epochs, since it is cold only once: set epochs=1 or more.")
        elif self.reader == "own":
            raise UserError(f"form={self.form!r} needs a reader: give reader= {' or '.join(READERS[1:])}.")
        for (field, word), beside in _GOES_ONLY_WITH.items():
            for name, only in beside.items():
                if getattr(self, field) == word and getattr(self, name) != only:
                    raise UserError(f"{field}={word!r} needs {name}={only!r}, not {getattr(self, name)!r}.")

    @property
    def devices_taken(self) -> int:
        """The number of physical devices that the trial needs: one if all its processes share a device."""
        return 1 if self.placement == "together" else self.devices

    @property
    def has_time(self) -> bool:
        """Whether the trial's seconds describe its devices.

        Processes that share a device take turns on it. In a training run with stale updates every device repeats all.
        """
        return self.placement == "apart" and not (self.updates == "asynchronous" and self.epochs)

    @property
    def is_host_bound(self) -> bool:
        """Whether the host may decide the trial's time, which then varies between processes and machines.

        That holds for everything on a CPU, and for loops in which the host launches each kernel of a GPU. It does not
        hold for captured steps, ceilings and messages. Training runs are compared by their accuracy.
        """
        if self.epochs or self.workload == "idle":
            return False
        if self.form != "embedded":  # the host reads and decodes
            return True
        launches = self.workload in (*OF_NETWORKS, "launch_rate") or "." in self.workload
        return self.device == "cpu" or (launches and "graph" not in self.engine)

    @property
    def batch_of_device(self) -> int:
        """Images that each device processes in a step."""
        return self.batch // self.devices if self.scaling == "strong" else self.batch

    @property
    def batch_of_process(self) -> int:
        """Images that each process of the trial gets in a step."""
        return self.batch_of_step if self.parallel == "one_process" else self.batch_of_device

    @property
    def batch_of_step(self) -> int:
        """Images of a step, on all devices together."""
        return self.batch_of_device * self.devices

    @property
    def devices_of_node(self) -> int:
        """The number of physical devices that the trial needs on each node."""
        return self.devices_taken // self.nodes

    @property
    def processes(self) -> int:
        """The number of processes: one per device, two if two jobs share a device, one for Keras and `one_process`."""
        if self.framework.startswith("keras-") or self.parallel == "one_process":
            return 1
        return 2 if self.arrangement == "at_once" and self.devices == 1 else self.devices

    def only_timed(self) -> Trial:
        """Return the trial without what it asks for beside its timed blocks, as a short pass runs it."""
        blank: dict[str, Any] = dict.fromkeys((*ASKED_AFTER, "energy_windows", "scored"), 0) | {"counted": self.counted}
        return replace(self, **blank)

    @property
    def key(self) -> str:
        """Canonical JSON of the fields that differ from their defaults."""
        changed = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        return json.dumps(changed, sort_keys=True, separators=(",", ":"))

    def as_dict(self) -> dict[str, Any]:
        """Return every field, with those at their defaults, as JSON values."""
        return asdict(self)


# Fields that trials no longer have, with the value that records have for them.
_FORMER = MappingProxyType({"stem": "imagenet"})


@cache
def _kinds() -> dict[str, type]:
    """Return the type of each field of a trial. `fields` itself is too slow for every trial of every record."""
    return {field.name: type(field.default) for field in fields(Trial)}


def trial_from_dict(values: dict[str, Any]) -> Trial:
    """Return the trial of a record. Raise UserError for unknown fields, which come from a newer labkit."""
    known = {name: value for name, value in values.items() if name not in _FORMER or value != _FORMER[name]}
    _check_fields(known, hint="The record was written by a newer labkit: update this one.")
    return Trial(**known)


_OF_MODE = "A mode is several fields: pass, for example, `**workbook.trials.recipes.recipes('cuda')['graph']`."


def without_data(trial: Trial) -> Trial:
    """Return the trial with blank data fields: a plan without the images knows neither them nor how many it scores."""
    blank = Trial()
    bare = replace(trial, data=blank.data, data_checksum=blank.data_checksum, classes=blank.classes, counted=False)
    return replace(bare, image_px=blank.image_px, batch=blank.batch, scored=1) if trial.scored else bare


def configuration(trial: Trial) -> Trial:
    """Return the trial as tables compare it: `without_data`, and without what follows its timed blocks."""
    blank = Trial()
    return replace(without_data(trial), **{name: getattr(blank, name) for name in ASKED_AFTER})


def refuse_retired(trials: Iterable[Trial]) -> None:
    """Raise UserError for a trial with a value in `RETIRED`."""
    for trial, (name, retired) in itertools.product(trials, RETIRED.items()):
        if (value := getattr(trial, name)) in retired:
            raise UserError(
                f"{name}={value!r} is valid only for reading earlier records and is not measured any more: "
                f"give {name}={' or '.join(map(repr, measured(name)))}."
            )


def as_on_disk(trial: Trial) -> Trial:
    """Return the trial with the hash of its workload as it is on the disk now, if that is a module of the user."""
    return replace(trial, workload_source=source_hash_of(trial.workload)) if "." in trial.workload else trial


def _check_fields(names: Iterable[str], hint: str = "") -> None:
    valid = _kinds()
    for name in names:
        if name not in valid:
            raise unknown("trial field", name, valid, hint=_OF_MODE if name == "mode" else hint)


def grid(**axes: Any) -> list[Trial]:
    """Return every combination of the given fields. An axis is a list, tuple, range or array; other values are held.

    >>> [t.batch for t in grid(model="vgg16", batch=[64, 256])]
    [64, 256]
    """
    _check_fields(axes)
    values = [_axis(value) for value in axes.values()]
    return [Trial(**dict(zip(axes, combination, strict=True))) for combination in itertools.product(*values)]


def _axis(value: Any) -> list[Any]:
    if hasattr(value, "tolist"):  # an array, or a number of NumPy's
        value = value.tolist()
    return list(value) if isinstance(value, (list, tuple, range)) else [value]


THREADS = ("ends", "powers")


def thread_counts(asked: object, cores: int) -> list[int]:
    """Return an axis of `threads` on a CPU: `ends` is 1 and all cores, `powers` powers of two up to all; or a list.

    >>> thread_counts("powers", 12), thread_counts("ends", 12), thread_counts([1, 6], 12)
    ([1, 2, 4, 8, 12], [1, 12], [1, 6])
    """
    if isinstance(asked, (list, tuple)):
        if not all(isinstance(n, int) and not isinstance(n, bool) and n >= 1 for n in asked):
            raise UserError(f"a sweep of threads must be a list of whole numbers of at least 1, not {asked!r}.")
        return list(dict.fromkeys(asked))
    one_of("sweep of threads", asked, THREADS, hint="A list of numbers is valid too.")
    between = [2**power for power in range(1, cores.bit_length()) if 2**power < cores] if asked == "powers" else []
    return sorted({1, *between, cores})


assert all(f.default is not MISSING for f in fields(Trial)), "each field needs a default, or keys are not stable"
