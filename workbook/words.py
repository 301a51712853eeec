"""The words of pages: numbers, columns, values, configurations and lists as text, for messages and plans too.

Only this module rounds: to at most 3 digits, 2 if the 95 % interval exceeds ±10 %. The effect of a
claim and its interval have 3 or 4, because an end of the interval decides (`workbook.claims.words.shown_effect`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any

from labkit.models import MODELS
from workbook.registry import FRAMEWORK_TITLES, METRICS, Metric
from workbook.trials.recipes import is_plain
from workbook.trials.today import TODAY
from workbook.trials.trial import OF_NETWORKS, OWN, WORDS, Trial

MISSING = "–"  # in place of a number
NOT_MEASURED = "not measured"  # in a sentence
LEAST_PERCENT = 0.01  # that is written in digits
NAN = float("nan")
DIGITS = 3
VAGUE_DIGITS = 2
VAGUE = 0.10  # relative half width of an interval above which the third digit means nothing
WIDE = 0.05  # relative half width above which tables show the interval beside the number
INVERTED_BELOW = 0.45  # smaller ratios are shown as inverses: 0.143 as 1/6.99


def is_missing(value: Any) -> bool:
    """Return whether a cell holds no value: None, NaN or pandas' NA."""
    return value is None or (isinstance(value, float) and math.isnan(value)) or type(value).__name__ == "NAType"


def lacks_subject(title: str) -> bool:
    """Return whether a title lacks more than its value: what is largest among nothing has no name either.

    >>> lacks_subject("INT8 over BF16 at batch 64: not measured"), lacks_subject("Largest at batch –: not measured")
    (False, True)
    >>> lacks_subject("Slowest: not measured (not measured)")
    True
    """
    subject = title.removesuffix(NOT_MEASURED)
    return NOT_MEASURED in subject or bool(re.search(rf"(^|\s){MISSING}(\W|$)", subject))


def lacks_value(text: str) -> bool:
    """Return whether a text says "not measured" and has no value after its bold label, parentheses aside.

    A number in a part of a sentence that is not measured is a setting, as in "At batch 64,", and one in ResNet-50 a
    name. "No clear difference" is a value.

    >>> lacks_value("**At batch 64:** VGG-16 not measured."), lacks_value("VGG-16 not measured, ResNet-50 3 images/s")
    (True, False)
    >>> lacks_value("At batch 64, FP32 computes for not measured of the time")
    True
    """
    parts = re.split(r"[:;] |[.,](?= |$)", re.sub(r"\*\*.*?\*\*|\([^)]*\)", "", text))
    values = [part for part in parts if NOT_MEASURED not in part and not re.fullmatch(r"(At|After)( \S+){1,2}", part)]
    return NOT_MEASURED in text and not any(re.search(r"(?<![\w-])\d|clear difference", value) for value in values)


# ---- numbers --------------------------------------------------------------------------------------------------------


def metric_of(name: str) -> Metric:
    """Return the registry's metric, or a metric without unit and scale for any other column of numbers."""
    return METRICS.get(name) or Metric(name, name.replace("_", " "), "", "neither")


def half_width(value: float, low: float, high: float) -> float:
    """Return half the interval's width over `value` (0.02 = ±2 %); NaN without an interval, or for a value of 0.

    >>> half_width(100, 98, 102)
    0.02
    """
    return (high - low) / 2 / abs(value) if value and math.isfinite(high - low) else NAN


def digits_of(value: float, low: float, high: float) -> int:
    """Return the number of significant digits to show.

    >>> digits_of(14_700, 14_600, 14_800), digits_of(14_700, 7_900, 27_100)
    (3, 2)
    """
    return VAGUE_DIGITS if half_width(value, low, high) > VAGUE else DIGITS


def number(value: float | None, digits: int = DIGITS) -> str:
    """Return `digits` significant digits with thousands separators; a dash for a missing value, never 0.

    >>> number(14_733), number(0.0345678), number(float("nan")), number(0.0)
    ('14,700', '0.0346', '–', '0')
    >>> number(14_733, 2), number(6.98e-4), number(1.2e-7), number(-0.5, 2)
    ('15,000', '0.000698', '1.20e-07', '−0.50')
    """
    if value is None or not math.isfinite(value):
        return MISSING
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits}g}")
    size = abs(rounded)
    if not 1e-6 <= size < 1e15:
        return f"{rounded:.{digits - 1}e}"
    decimals = digits - 1 - math.floor(math.log10(size))
    return f"{'−' if rounded < 0 else ''}{size:,.{max(decimals, 0)}f}"


def amount(value: float, metric: str, digits: int = DIGITS) -> str:
    """Return a stored SI value in its display unit. Only `%` and `x` are written: headings and axes name other units.

    >>> amount(0.0208, "energy_per_image_j"), amount(0.613, "utilisation"), amount(7.16, "speedup")
    ('20.8', '61.3 %', '7.16x')
    >>> amount(2.8e-6, "utilisation")
    '<0.01 %'
    """
    unit = metric_of(metric).unit
    if unit == "x":
        return factor(value, digits)
    shown = value * metric_of(metric).scale
    text = f"<{LEAST_PERCENT}" if unit == "%" and 0 < shown < LEAST_PERCENT else number(shown, digits)
    return f"{text} %" if unit == "%" and text != MISSING else text


def quantity(value: float, metric: str, digits: int = DIGITS) -> str:
    """Return a stored SI value with its unit, for sentences.

    >>> quantity(0.0208, "energy_per_image_j"), quantity(14_733, "images_per_s", 2)
    ('20.8 mJ', '15,000 images/s')
    """
    text, unit = amount(value, metric, digits), metric_of(metric).unit
    return text if text == MISSING or unit in ("%", "x", "") else f"{text} {unit}"


def factor(value: float, digits: int = DIGITS) -> str:
    """Return a ratio as text, below 0.45 as its inverse.

    >>> factor(7.16), factor(1.9846), factor(29.1, 2), factor(0.1434), factor(0.904)
    ('7.16x', '1.98x', '29x', '1/6.97', '0.904x')
    """
    if 0 < value < INVERTED_BELOW:
        return f"1/{number(1 / value, digits)}"
    text = number(value, digits)
    return text if text == MISSING else f"{text}x"


def points(value: float, *beside: float) -> str:
    """Return a difference of shares as text in percentage points, with its sign.

    The largest of `value` and of the shares `beside` it (an interval's ends) has two digits, or up to two more if they
    tell the ends apart. All have its decimals.

    >>> points(-0.0016), points(0.123), points(0.0)
    ('−0.16', '+12', '0')
    >>> points(0.0000004, 0.00074, 0.0015)
    '0.00'
    >>> points(-0.14, -0.1413, -0.1387), points(-0.14, -0.14, -0.14 - 1e-9), points(0.123, NAN, float("nan"))
    ('−14.0', '−14', '+12')
    """
    if not math.isfinite(value):
        return MISSING
    ends = {share for share in beside if math.isfinite(share)}
    largest = 100 * max(abs(share) for share in (value, *ends))
    decimals = max(0, VAGUE_DIGITS - 1 - math.floor(math.log10(largest))) if largest else 0
    finer = range(decimals, decimals + VAGUE_DIGITS + 1)
    decimals = next((more for more in finer if len({f"{100 * end:.{more}f}" for end in ends}) == len(ends)), decimals)
    text = f"{abs(100 * value):.{decimals}f}"
    return text if not float(text) else f"{'+' if value > 0 else '−'}{text}"


# ---- columns and their values ---------------------------------------------------------------------------------------

_HEADINGS = MappingProxyType(
    {
        **{"model": "network", "mode": "execution mode", "engine": "mode", "image_px": "input", "devices": "GPUs"},
        **{"device": "processor", "device_name": "device", "side": "variant", "pass_number": "run", "passes": "runs"},
        **{"host": "machine", "hosts": "machines", "profile": "device file", "memory_format": "layout"},
        **{"gradient_precision": "gradients", "form": "form on disk", "cache": "page cache"},
        **{"compiler_cache": "compiler's cache", "reader_order": "order of readers", "time_s": "time, s"},
        **{"needed_mb_per_s": "needed, MB/s", "consumed_mb_per_s": "JPEG data consumed, MB/s"},
        **{"copies": "copies to and from the GPU", "images_per_s": "images/s"},
        **{"low": "95 % interval from", "high": "to"},
    }
)
# Column -> value -> its title on pages. Precision is shown beside a mode; only records have host settings.
TITLES: MappingProxyType[str, Mapping[str, str]] = MappingProxyType(
    {
        "engine": {
            **{"eager": "eager", "compile": "compiled", "graph": "CUDA graph", "function": "tf.function", "xla": "XLA"},
            **{"compile+graph": "compiled + CUDA graph", "triton+graph": "fused Triton kernels + CUDA graph"},
            "openvino": "OpenVINO",
        },
        "host_setting": {
            **{"calling_thread": "backward on the calling thread", "two_cores": "two cores"},
            "calling_thread+two_cores": "backward on the calling thread, two cores",
            "no_benchmark": "no cuDNN benchmark",
        },
        "device": {"cuda": "GPU", "cpu": "CPU"},
        "workload": {
            **{"train": "training", "infer": "inference", "gan": "adversarial training", "load": "loading"},
            **{"own_training": "training", "own_prediction": "prediction"},
            **{"matmul": "matrix product", "memory_copy": "memory copy", "launch_rate": "launch rate"},
            **{"all_reduce": "all-reduce", "peer_copy": "copy to the next device"},
        },
        "data": {
            **{"synthetic32": "synthetic images", "digits": "handwritten digits", "ilsvrc2012": "ImageNet images"},
            **{"imagenet32": "downsampled ImageNet images", "drawn_jpegs": "drawn JPEG images"},
            **{"own_jpegs": "own JPEG images", "reuters": "Reuters documents", "reuters_shaped": "drawn documents"},
        },
        "memory_format": {"contiguous": "NCHW", "channels_last": "NHWC"},
        "optimizer": {"sgd": "SGD", "sgd_fused": "fused SGD", "sgd_master": "SGD, FP32 master weights"},
        "loader": {"device": "GPU data loader", "indexed": "host data loader"},
        "schedule": {"one_cycle": "one-cycle", "warm_up": "warm-up"},
        "interconnect": {"host": "through host memory"},
        "network": {"any": "network", "ethernet": "Ethernet", "infiniband": "InfiniBand"},
        "precision": {"default": "FP32, TF32 in convolutions"},
        "updates": {"asynchronous": "asynchronous SGD", "synchronous": "synchronous SGD"},
        "arrangement": {"at_once": "concurrent", "in_sequence": "sequential"},
        "status": {"oom": "out of memory", "timeout": "timed out", "unsupported": "not run"},
        "form": {
            **{"embedded": "labkit's cache", "jpeg": "JPEG files", "shards": "tar shards", "tfrecord": "TFRecord"},
            **{"parquet": "Parquet", "cache": "decoded, 256 px"},
        },
        "reader": {
            **{"own": "labkit's loader", "torch_pil": "DataLoader, Pillow", "torch_decode": "DataLoader, torchvision"},
            **{"torch_nvjpeg": "DataLoader, nvJPEG", "tf_data": "tf.data", "grain": "Grain", "dali": "DALI"},
            **{"webdataset": "WebDataset", "mapped": "memory map", "resident": "images in memory"},
        },
        "cache": {"warm": "warm page cache", "cold": "cold page cache"},
        "reader_order": {"own": "own order", "shared": "shared order"},
        "parallel": {"ranks": "process per GPU", "one_process": "DataParallel"},
        "framework": FRAMEWORK_TITLES,
        "model": {
            **{name: of.title for name, of in TODAY.items()},
            **{name: entry.title for name, entry in MODELS.items()},
        },
    }
)
# Columns whose values are unclear without a word: `256` may be a batch or a number of pixels.
_PHRASES = MappingProxyType(
    {
        **{"devices": "{} GPUs", "scaling": "{} scaling", "gradient_precision": "{} gradients"},
        **{"traced_iterations": "{} traced steps", "steps_before": "after {} steps"},
        "learning_rate": "learning rate {}",
        **{name: f"{{}} {name}" for name in ("threads", "nodes", "epochs", "workers", "readers")},
    }
)
_LISTED = MappingProxyType(
    {"model": (*MODELS, *TODAY), "precision": WORDS["precision"], "framework": tuple(FRAMEWORK_TITLES)}
)
_STAGES = ("baseline", "", "between", "optimised")  # roles of execution modes, from the least optimised on
_STAGED = ("mode", "engine", "side")  # columns whose values have a role


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
    title = within_sentence(metric.label)
    is_said = metric.unit in ("%", "x") or title.startswith(metric.unit)  # "epochs to the target accuracy"
    return title if is_said else f"{title}, {metric.unit}"


def label(column: str, value: Any) -> str:
    """Return a value of a column as pages show it.

    >>> label("model", "resnet50"), label("batch", 2048), label("image_px", 32), label("learning_rate", 0.1)
    ('ResNet-50', '2,048', '32 px', '0.1')
    """
    if is_missing(value):
        return MISSING
    if column in ("precision", "gradient_precision"):
        return TITLES["precision"].get(value, str(value).upper())
    if isinstance(value, str):
        return TITLES.get(column, {}).get(value, value)
    if column == "threads" and value == 0:
        return "default"
    if column == "image_px":
        return f"{value:.0f} px"
    if type(value).__name__ in ("bool", "bool_"):
        return "yes" if value else "no"
    if isinstance(value, Real):
        text = f"{value:,.0f}" if float(value).is_integer() else number(float(value))
        return text.rstrip("0") if "." in text else text
    return str(value)


def phrase(column: str, value: Any, text: str = "") -> str:
    """Return a value as text that is clear without its column. `text` stands for several values.

    >>> phrase("batch", 256), phrase("devices", 1), phrase("model", "vgg16"), phrase("devices", 8, "4 or 8")
    ('batch 256', '1 GPU', 'VGG-16', '4 or 8 GPUs')
    """
    is_count = isinstance(value, Integral) and column not in ("", "image_px")
    form = _PHRASES.get(column) or (f"{heading(column)} {{}}" if is_count else "{}")
    text = form.format(text or label(column, value))
    return text.removesuffix("s") if text.startswith("1 ") else text


def in_order(values: Iterable[Any], column: str = "") -> list[Any]:
    """Return the different values in display order: modes from strict FP32 on, networks as listed, numbers by size.

    Records are in random order. Other texts keep the order of their first appearance.

    >>> in_order(["compiled", "strict FP32", "CUDA graph"], "mode"), in_order([256, 64])
    (['strict FP32', 'CUDA graph', 'compiled'], [64, 256])
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

    The column `side` holds the roles themselves. Values that a paper printed (`source`) are grey like strict FP32.

    >>> role("mode", "strict FP32"), role("mode", "compiled + CUDA graph"), role("model", "resnet50")
    ('baseline', 'optimised', None)
    """
    if column == "source":
        return "baseline" if str(value).endswith(" paper") else None
    if column not in _STAGED or not isinstance(value, str):
        return None
    if value == "strict FP32" or value == "eager loop":  # the latter in any precision, beside CUDA graphs
        return "baseline"
    if value == "optimised" or "compiled" in value:
        return "optimised"
    return "between" if value.startswith("CUDA graph") else None


# ---- configurations -------------------------------------------------------------------------------------------------

# The fields that a configuration's name may hold, in its order. The first are named at their default too.
_NAMED = (
    *("batch", "size", "epochs", "image_px", "precision", "engine", "optimizer", "memory_format", "copies", "weights"),
    *("threads", "constraint", "device", "framework", "workers", "cache", "readers"),
)
_NAMED_IF_CHANGED = (
    *("devices", "nodes", "network", "scaling", "arrangement", "updates", "interconnect", "gradient_precision"),
    *("schedule", "learning_rate", "parallel", "host_setting", "traced_iterations", "steps_before", "form", "reader"),
    *("reader_order",),
)
_DEFAULT = Trial()


# Names of the references. `CAREFUL` names an eager loop with PyTorch's own means, in any precision.
STRICT, AS_INSTALLED, CAREFUL = "strict FP32", "PyTorch as installed", "tuned eager"
EAGER_LOOPS = (STRICT, AS_INSTALLED, CAREFUL, TITLES["engine"]["eager"])  # the last has PyTorch's default SGD


QUANTISED = {"int8": "INT8 weights", "fp8": "FP8 weights"}  # of a network in samples


def mode_name(trial: Trial) -> str:
    """Return the name of a trial's execution mode: `strict FP32` is `plain` (eager, no TF32, PyTorch's default SGD).

    Different modes have different names: a step that updates FP32 weights is not a step that keeps FP32 masters.

    >>> mode_name(Trial()), mode_name(Trial(engine="graph", optimizer="sgd_fused"))
    ('strict FP32', 'CUDA graph, fused SGD')
    """
    if is_plain(trial):
        return STRICT
    if trial.engine == "eager" and trial.host_setting == "default":
        if trial.precision == "default":
            return AS_INSTALLED
        predicts = trial.workload in ("infer", "own_prediction")
        if trial.optimizer == "sgd_fused" or (predicts and trial.memory_format == "channels_last"):
            return CAREFUL
    if trial.workload in OWN:  # its tuned modes all have the fused kernels of the optimiser that its file names
        return _joined((label("engine", trial.engine), QUANTISED.get(trial.precision, "")))
    fused = label("optimizer", trial.optimizer) if trial.optimizer == "sgd_fused" else ""
    return _joined((label("engine", trial.engine), fused, TITLES["host_setting"].get(trial.host_setting, "")))


def _joined(parts: Iterable[str]) -> str:
    return ", ".join(filter(None, parts))


# Every name of an execution mode.
_ENGINES = TITLES["engine"].values()
_COMPOSED = map(_joined, product(_ENGINES, ("", "fused SGD"), ("", *TITLES["host_setting"].values())))
MODE_NAMES = (STRICT, AS_INSTALLED, CAREFUL, *(name for name in _COMPOSED if name != "eager, fused SGD"))
MODE_NAMES += tuple(map(_joined, product(_ENGINES, QUANTISED.values())))


def configuration_name(trial: Trial, beside: Iterable[Trial] = (), fields: Sequence[str] = ()) -> str:
    """Return the shortest name that distinguishes a configuration from those `beside` it.

    It has the network and its batch, or the workload, and what differs: of `fields`, or of all but a rare field's usual
    value.

    >>> configuration_name(Trial(batch=256, precision="bf16"), [Trial()]), configuration_name(Trial(workload="matmul"))
    ('ResNet-50, batch 256, BF16', 'matrix product')
    >>> configuration_name(Trial(workload="infer"), [Trial()])
    'ResNet-50, inference, batch 64'
    """
    beside, has_network = list(beside), trial.workload in OF_NETWORKS
    texts = [label("model", trial.model)] if has_network else []
    if not has_network or (not fields and len({of.workload for of in [trial, *beside]} & {*OF_NETWORKS}) > 1):
        texts.append(label("workload", trial.workload))
    for name in fields or (*_NAMED, *_NAMED_IF_CHANGED):
        value = getattr(trial, name)
        is_named = any(getattr(other, name) != value for other in beside)
        if name == "devices":
            is_named = is_named or any(other.placement != trial.placement for other in beside)
        if not fields:
            is_named = is_named and (name in _NAMED or value != getattr(_DEFAULT, name))
            is_named = is_named if name not in ("size", "epochs") else bool(value)
        if is_named or (name == "batch" and has_network):
            texts.append(field_text(trial, name))
    return ", ".join(texts)


def field_text(trial: Trial, name: str) -> str:
    """Return a field of a trial as text that is clear without its name."""
    if name == "devices":
        return devices_name(trial.device, trial.devices, placement=trial.placement)
    return phrase(name, getattr(trial, name))


def devices_name(device: str, devices: int, nodes: int = 1, placement: str = "apart") -> str:
    """Return a number of devices: `1 GPU`, `2 processes`, `8 GPUs of 2 nodes`, `4 workers on one device`."""
    if placement == "together":
        return f"{devices} workers on one device"
    of_nodes = f" of {nodes} nodes" if nodes > 1 else ""
    return plural(devices, "GPU" if device == "cuda" else "process") + of_nodes


# ---- lists and sentences --------------------------------------------------------------------------------------------


def listing(texts: Iterable[object], last: str = "and") -> str:
    """Return the texts as `a`, `a and b` or `a, b and c`; `none` without any.

    >>> listing(["a", "b", "c"]), listing([32, 224], "or"), listing([])
    ('a, b and c', '32 or 224', 'none')
    """
    *others, final = map(str, texts) if (texts := list(texts)) else ["none"]
    return f"{', '.join(others)} {last} {final}" if others else final


def plural(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> plural(1, "machine"), plural(1_000, "run"), plural(2, "process")
    ('1 machine', '1,000 runs', '2 processes')
    """
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{ending}"


def within_sentence(name: str) -> str:
    """Return a label in its form within a sentence: `Board power` becomes `board power`, `API time` stays.

    >>> within_sentence("Board power (all GPUs)"), within_sentence("API time"), within_sentence("Top-1 accuracy")
    ('board power (all GPUs)', 'API time', 'top-1 accuracy')
    """
    return name if name[1:2].isupper() else f"{name[:1].lower()}{name[1:]}"


def sentence(text: str) -> str:
    """Return a text as a sentence; a name such as cuDNN keeps its small letter."""
    first, *rest = text.split(" ", 1)
    text = " ".join([first[:1].upper() + first[1:] if first.islower() else first, *rest])
    return f"{text}." if text and not text.endswith(".") else text
