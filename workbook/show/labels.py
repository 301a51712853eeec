"""Display text of columns and values, in the terms of the field, and the order in which pages show values."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from numbers import Real
from types import MappingProxyType
from typing import Any

from labkit.models import MODELS
from workbook.registry import FRAMEWORK_TITLES, METRICS
from workbook.show.quantities import MISSING, number
from workbook.trials.recipes import HOST_SETTING_TITLES
from workbook.trials.trial import WORDS

_HEADINGS = MappingProxyType(
    {
        "model": "network",
        "mode": "execution mode",
        "image_px": "input",
        "devices": "GPUs",
        "device": "processor",
        "device_name": "device",
        "side": "variant",
        "pass_number": "run",
        "passes": "runs",
        "host": "machine",
        "hosts": "machines",
        "profile": "device file",
        "memory_format": "layout",
        "gradient_precision": "gradients",
        "form": "form on disk",
        "cache": "page cache",
        "compiler_cache": "compiler's cache",
        "reader_order": "order of readers",
        "needed_mb_per_s": "needed, MB/s",
        "consumed_mb_per_s": "JPEG data consumed, MB/s",
        "copies": "copies to and from the GPU",
        "time_s": "time, s",
        "low": "95 % interval from",
        "high": "to",
        "images_per_s": "images/s",
    }
)
_VALUES: MappingProxyType[tuple[str, Hashable], str] = MappingProxyType(
    {
        ("device", "cuda"): "GPU",
        ("device", "cpu"): "CPU",
        ("workload", "train"): "training",
        ("workload", "infer"): "inference",
        ("memory_format", "contiguous"): "NCHW",
        ("memory_format", "channels_last"): "NHWC",
        ("optimizer", "sgd"): "SGD",
        ("optimizer", "sgd_fused"): "fused SGD",
        ("optimizer", "sgd_master"): "SGD, FP32 master weights",
        ("loader", "device"): "GPU data loader",
        ("loader", "indexed"): "host data loader",
        ("updates", "asynchronous"): "asynchronous SGD",
        ("updates", "synchronous"): "synchronous SGD",
        ("arrangement", "at_once"): "concurrent",
        ("arrangement", "in_sequence"): "sequential",
        ("status", "oom"): "out of memory",
        ("status", "timeout"): "timed out",
        ("status", "unsupported"): "not run",
        ("form", "embedded"): "labkit's cache",
        ("form", "jpeg"): "JPEG files",
        ("form", "shards"): "tar shards",
        ("form", "tfrecord"): "TFRecord",
        ("form", "parquet"): "Parquet",
        ("form", "cache"): "decoded, 256 px",
        ("reader", "own"): "labkit's loader",
        ("reader", "torch_pil"): "DataLoader, Pillow",
        ("reader", "torch_decode"): "DataLoader, torchvision",
        ("reader", "torch_nvjpeg"): "DataLoader, nvJPEG",
        ("reader", "tf_data"): "tf.data",
        ("reader", "grain"): "Grain",
        ("reader", "webdataset"): "WebDataset",
        ("reader", "dali"): "DALI",
        ("reader", "mapped"): "memory map",
        ("reader", "resident"): "images in memory",
        ("cache", "warm"): "warm page cache",
        ("cache", "cold"): "cold page cache",
        ("reader_order", "own"): "own order",
        ("reader_order", "shared"): "shared order",
        ("parallel", "ranks"): "process per GPU",
        ("parallel", "one_process"): "DataParallel",
        **{("host_setting", name): title for name, title in HOST_SETTING_TITLES.items()},
        **{("framework", name): title for name, title in FRAMEWORK_TITLES.items()},
        **{("model", name): entry.title for name, entry in MODELS.items()},
    }
)
# Columns whose values are unclear without a word: `256` may be a batch or a number of pixels.
_PHRASES = MappingProxyType(
    {"batch": "batch {}", "devices": "{} GPUs", "threads": "{} threads", "nodes": "{} nodes", "epochs": "{} epochs"}
    | {"workers": "{} workers", "readers": "{} readers"}
)

_LISTED: MappingProxyType[str, tuple[str, ...]] = MappingProxyType(
    {"model": tuple(MODELS), "precision": WORDS["precision"], "framework": tuple(FRAMEWORK_TITLES)}
)
_STAGES = ("baseline", "", "between", "optimised")  # roles of execution modes, from the least optimised on
_STAGED = ("mode", "engine", "side")  # columns whose values have a role


def is_missing(value: Any) -> bool:
    """Return whether a cell holds no value: None, NaN or pandas' NA."""
    return value is None or (isinstance(value, float) and math.isnan(value)) or type(value).__name__ == "NAType"


def heading(column: str) -> str:
    """Return a column's heading. For a metric it includes the unit, except `%` and `x`, which stand at each value.

    >>> heading("devices"), heading("images_per_s"), heading("energy_per_image_j"), heading("sm_activity")
    ('GPUs', 'images/s', 'energy per image, mJ', 'SM activity')
    """
    if column in _HEADINGS:
        return _HEADINGS[column]
    if column not in METRICS:
        return column.replace("_", " ")
    metric = METRICS[column]
    title = metric.label if metric.label[1].isupper() else metric.label[0].lower() + metric.label[1:]
    return title if metric.unit in ("%", "x", "") else f"{title}, {metric.unit}"


def label(column: str, value: Any) -> str:
    """Return a value of a column as pages show it.

    >>> label("model", "resnet50"), label("batch", 2048), label("image_px", 32), label("learning_rate", 0.1)
    ('ResNet-50', '2,048', '32 px', '0.1')
    """
    if is_missing(value):
        return MISSING
    if column in ("precision", "gradient_precision"):
        return str(value).upper()
    if isinstance(value, str):
        return _VALUES.get((column, value), value)
    if column == "image_px":
        return f"{value:.0f} px"
    if type(value).__name__ in ("bool", "bool_"):
        return "yes" if value else "no"
    if isinstance(value, Real):
        text = f"{value:,.0f}" if float(value).is_integer() else number(float(value))
        return text.rstrip("0") if "." in text else text
    return str(value)


def phrase(column: str, value: Any) -> str:
    """Return a value as text that is clear without its column, for rows and sentences.

    >>> phrase("batch", 256), phrase("devices", 1), phrase("model", "vgg16")
    ('batch 256', '1 GPU', 'VGG-16')
    """
    text = _PHRASES.get(column, "{}").format(label(column, value))
    return text.removesuffix("s") if text.startswith("1 ") else text


def in_order(values: Iterable[Any], column: str = "") -> list[Any]:
    """Return the different values in display order: modes from the baseline on, networks as listed, numbers by size.

    Records are in random order. Other texts keep the order of their first appearance.

    >>> in_order(["compiled", "baseline", "CUDA graph"], "mode"), in_order([256, 64])
    (['baseline', 'CUDA graph', 'compiled'], [64, 256])
    """
    distinct = [value for value in dict.fromkeys(values) if not is_missing(value)]
    if column in _STAGED:
        return sorted(distinct, key=lambda mode: _STAGES.index(role(column, mode) or ""))
    listed = _LISTED.get(column, ())
    if listed:
        return sorted(distinct, key=lambda value: listed.index(value) if value in listed else len(listed))
    return sorted(distinct) if all(isinstance(value, Real) for value in distinct) else distinct


def role(column: str, value: Any) -> str | None:
    """Return the role of an execution mode in all figures: `baseline`, `between`, `optimised`; None for other values.

    The column `side` holds the roles themselves. Values that a paper printed (`source`) are grey like the baseline.

    >>> role("mode", "baseline"), role("mode", "compiled + CUDA graph"), role("model", "resnet50")
    ('baseline', 'optimised', None)
    """
    if column == "source":
        return "baseline" if str(value).endswith(" paper") else None
    if column not in _STAGED or not isinstance(value, str):
        return None
    if value.startswith("baseline") or value == "eager loop":  # the latter in any precision, beside CUDA graphs
        return "baseline"
    if value == "optimised" or "compiled" in value:
        return "optimised"
    return "between" if value.startswith("CUDA graph") else None
