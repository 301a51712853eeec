"""A trial: one configuration to measure, its stable key, and grids of trials.

The key is the canonical JSON of the fields that differ from their defaults. So a field added later, with the old
behaviour as its default, changes no key in a committed record (`tests/workbook/test_trial.py` pins some).
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from functools import cache, lru_cache
from numbers import Integral
from types import MappingProxyType
from typing import Any

from labkit.errors import UserError, one_of, unknown
from workbook.trials import parts
from workbook.trials.own_module import source_hash_of
from workbook.trials.parts import PARTS, fields_of
from workbook.trials.rules import Rule, refusal

# PyTorch itself, or Keras 3 on one of its three back ends.
FRAMEWORKS = ("torch", "keras-torch", "keras-tensorflow", "keras-jax")
NO_DATA = "none"  # for workloads that take no images
OF_NETWORKS = tuple(workload for workload, part in PARTS.items() if issubclass(part, parts.Steps))
OWN = tuple(workload for workload, part in PARTS.items() if issubclass(part, parts.Own))  # networks that users bring
MESSAGES = tuple(workload for workload, part in PARTS.items() if part is parts.Messages)  # between devices
WINDOWS, SUSTAINED_WINDOWS = "energy_windows", 12  # a field, and its value for windows of a minute
# Fields of measurements after the timed blocks. Comparisons of trials ignore them.
ASKED_AFTER = ("queries", "samples", *fields_of(parts.Tracing))
_OF_USER = "A module of yours has a dot in its name: `folder/module.py` is workload='folder.module'."


@dataclass(frozen=True, kw_only=True)
class Trial(parts.Training, parts.Inference, parts.Adversarial, parts.Loading, parts.Messages):
    """One configuration to measure, as flat fields; `PARTS` has the parts of each workload.

    Raise UserError for invalid values, and for a field that the workload does not use. `workbook.describe` shows the
    meanings of the fields.
    """

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
        is_own = "." in self.workload
        if not is_own:
            one_of("workload", self.workload, PARTS, hint=_OF_USER)
        for name, valid in WORDS.items():
            if getattr(self, name) not in valid:
                raise unknown(f"trial {name}", getattr(self, name), measured(name))
        if self.framework not in FRAMEWORKS and not is_own:  # a user's own module may use another
            raise unknown("trial framework", self.framework, FRAMEWORKS)
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                raise UserError(f"a trial's {name} must be at least {least}, not {getattr(self, name)}.")
        for name, default in _UNUSED.get(self.workload, ()):
            if getattr(self, name) != default:
                uses = ", ".join(workload for workload, part in PARTS.items() if name in fields_of(part))
                raise UserError(
                    f"{name}={getattr(self, name)!r} has no effect on the workload {self.workload}: leave {name}, or "
                    f"give a workload that uses it ({uses}, or a module of yours)."
                )
        if refused := refusal(INVALID, self):
            raise UserError(f"{refused}.")

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
    def is_sustained(self) -> bool:
        """Whether the trial lasts for a minute, so that it shows how a device drifts; one run of it is enough."""
        return self.energy_windows >= SUSTAINED_WINDOWS

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
        blank: dict[str, Any] = dict.fromkeys((*ASKED_AFTER, WINDOWS, "scored"), 0) | {"counted": self.counted}
        return replace(self, **blank)

    @property
    def key(self) -> str:
        """Canonical JSON of the fields that differ from their defaults."""
        changed = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        return json.dumps(changed, sort_keys=True, separators=(",", ":"))

    def as_dict(self) -> dict[str, Any]:
        """Return every field, with those at their defaults, as JSON values."""
        return asdict(self)


_OWN = {field.name: field for field in fields(Trial)}
# The valid values of the fields that hold one of several words.
WORDS: MappingProxyType[str, tuple[str, ...]] = MappingProxyType(
    {name: field.metadata["words"] for name, field in _OWN.items() if "words" in field.metadata}
)
# Of these, the values that only earlier records have: nothing plans or runs them.
RETIRED: MappingProxyType[str, tuple[str, ...]] = MappingProxyType(
    {name: retired for name in WORDS if (retired := _OWN[name].metadata["retired"])}
)
# The fields, with their defaults, that a workload does not use.
_UNUSED = {
    workload: [(name, field.default) for name, field in _OWN.items() if name not in fields_of(part)]
    for workload, part in PARTS.items()
}
_LEAST = {name: field.metadata["least"] for name, field in _OWN.items() if "least" in field.metadata}


def measured(name: str) -> tuple[str, ...]:
    """Return the values of a field of `WORDS` that trials are measured with."""
    return tuple(word for word in WORDS[name] if word not in RETIRED.get(name, ()))


def _needs(name: str, word: str, **only: Any) -> Rule:
    """Return the rule that a field has a word only beside these values of others."""

    def other(trial: Trial) -> str | None:
        values = only.items() if getattr(trial, name) == word else ()
        return next((f"{n}={v!r}, not {getattr(trial, n)!r}" for n, v in values if getattr(trial, n) != v), None)

    return Rule("never", other, f"{name}={word!r} needs {{value}}")


def _of_reader(trial: Trial) -> str | None:
    """Return the field, with its value, that a trial without a form gives its reader."""
    values = ((name, getattr(trial, name)) for name in fields_of(parts.Storage))
    return next((f"{name}={value!r}" for name, value in values if value != _OWN[name].default), None)


# With `one_process`, PyTorch splits a batch among one machine's GPUs, in step. With `together`, processes exchange in
# their machine's memory.
_OF_ONE_MACHINE: dict[str, Any] = {"framework": "torch", "nodes": 1, "arrangement": "alone"}
# fmt: off
# Values that make no sense together in any version and on any machine.
INVALID = (
    Rule("never", lambda t: t.devices % t.nodes, "{devices} devices can't be shared by {nodes} nodes evenly"),
    Rule("never", lambda t: t.network != "any" and t.nodes == 1,
        "network {network!r} connects nodes, and the trial has one: give nodes=2 or more"),
    Rule("never", lambda t: t.scaling == "strong" and t.batch % t.devices,
        "a batch of {batch} images can't be shared by {devices} devices evenly"),
    Rule("never", lambda t: t.arrangement == "at_once" and t.devices > 1 and t.devices % 2,
        "two jobs at once need an even number of devices, or one device, not {devices}"),
    Rule("never", lambda t: not 0 <= t.target_top1 < 1,
        "a trial's target_top1 must be at least 0 and below 1, not {target_top1}"),
    Rule("never", lambda t: t.epochs and (t.energy_windows or t.traced_iterations),
        "a trial trains whole epochs, or uses energy windows and traced steps, not both"),
    Rule("never", lambda t: t.parallel == "one_process" and t.devices == 1,
        "parallel='one_process' needs two devices or more: give devices=2, or leave out parallel"),
    Rule("never", lambda t: t.placement == "together" and (t.devices == 1 or not t.epochs),
        "placement='together' needs at least two processes and whole epochs: set devices=2 and epochs=1 or more, or "
        "leave out placement"),
    Rule("never", lambda t: t.form == "embedded" and _of_reader(t),
        f"{{value}} needs images in files: give form= {' or '.join(measured('form')[1:])}"),
    Rule("never", lambda t: t.cache == "cold" and not t.epochs,
        "cache='cold' needs whole epochs, since it is cold only once: set epochs=1 or more"),
    Rule("never", lambda t: t.form != "embedded" and t.reader == "own",
        f"form={{form!r}} needs a reader: give reader= {' or '.join(measured('reader')[1:])}"),
    _needs("parallel", "one_process", **_OF_ONE_MACHINE, scaling="strong", updates="synchronous"),
    _needs("placement", "together", **_OF_ONE_MACHINE, interconnect="direct", parallel="ranks"),
)
# fmt: on


# Fields that trials no longer have, with the value that records have for them.
_FORMER = MappingProxyType({"stem": "imagenet"})


@cache
def _kinds() -> dict[str, type]:
    """Return the type of each field of a trial. `fields` itself is too slow for every trial of every record."""
    return {name: type(field.default) for name, field in _OWN.items()}


def trial_from_dict(values: dict[str, Any]) -> Trial:
    """Return the trial of a record. Raise UserError for unknown fields, which come from a newer labkit."""
    known = {name: value for name, value in values.items() if name not in _FORMER or value != _FORMER[name]}
    _check_fields(known, hint="The record was written by a newer labkit: update this one.")
    return Trial(**known)


_OF_MODE = "A mode is several fields: pass, for example, `**workbook.trials.recipes.recipes('cuda')['graph']`."


@lru_cache(maxsize=8192)  # a plan asks for that of every record, and a new trial is checked
def without_data(trial: Trial) -> Trial:
    """Return the trial with blank data fields: a plan without the images knows neither them nor how many it scores."""
    bare = replace(trial, data=Trial.data, data_checksum=Trial.data_checksum, classes=Trial.classes, counted=False)
    return replace(bare, image_px=Trial.image_px, batch=Trial.batch, scored=1) if trial.scored else bare


def configuration(trial: Trial) -> Trial:
    """Return the trial as tables compare it: `without_data`, and without what follows its timed blocks."""
    return replace(without_data(trial), **{name: getattr(Trial, name) for name in ASKED_AFTER})


def windows_alike(windows: int, *, of_step: bool = False) -> int:
    """Return the number of energy windows as comparisons see it: 0, 1 for some, or `SUSTAINED_WINDOWS` for a minute.

    A run's energy is the mean of its windows, and the first window of a run has that mean. Metrics `of_step`, a single
    step's time or kernels, do not depend on a few windows. A test asks the records for both.

    >>> [windows_alike(windows) for windows in (0, 1, 3, 12)]
    [0, 1, 1, 12]
    >>> [windows_alike(windows, of_step=True) for windows in (0, 1, 3, 12)]
    [0, 0, 0, 12]
    """
    return min(windows, 0 if of_step else 1) if windows < SUSTAINED_WINDOWS else SUSTAINED_WINDOWS


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
