"""Records: what one trial gave in one pass on one host, as one JSON line."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, BeforeValidator, Field, PlainSerializer

from labkit.hardware.frameworks import version_of
from labkit.records.observed import Telemetry
from labkit.records.packed import packed, unpacked
from labkit.records.scored import Scored
from labkit.records.traced import Trace
from labkit.trial import Trial, trial_from_dict

SCHEMA = 1
PROTOCOL = 2  # raised when what is timed changes: records of another protocol never count as done

PACKED_FROM = 1000  # a longer list of integers stands packed in its line
_WORD = "<i8"

Status = Literal["ok", "oom", "timeout", "crashed", "unsupported"]
# A trial that ran out of memory or cannot run here will do so again; a crash or a hang may pass, so it is tried anew.
FINAL: frozenset[str] = frozenset({"ok", "oom", "unsupported"})


def _integers(values: Any) -> Any:
    """A list of integers from its packed form; anything else as it is."""
    return np.frombuffer(unpacked(values), _WORD).tolist() if isinstance(values, str) else values


def _packed_integers(values: list[int]) -> list[int] | str:
    """A long list of integers packed, a short one as it is."""
    return values if len(values) <= PACKED_FROM else packed(np.array(values, _WORD).tobytes())


class _Part(BaseModel, extra="forbid", frozen=True):
    """A part of a record: an unknown field is an error, and nothing changes it after reading."""


class Queries(_Part):
    """Latencies of queries of `images` images each, one after the other: each began when the last was answered.

    Nanoseconds on the host's clock from handing a query over until its answer is there. Every query is kept.
    """

    images: int
    latency_ns: Annotated[list[int], BeforeValidator(_integers), PlainSerializer(_packed_integers)]
    asked_for: int  # how many were planned: fewer were run where their time was up


class Blocks(_Part):
    """Times of blocks of `steps_per_block` steps each. Every block is kept; rates are derived, never stored.

    `host_s` is the host's clock around a block with one synchronise at its end, `device_s` the device's own events
    around the same block (None where the device has none). `warmup_s` are the blocks before, each with its own steps.

    `began_s` is the first timed block's start on that host's monotonic clock, `at_s` the start of each block after it,
    `warmup_at_s` and `warmup_end_s` those of the warm-up (negative). `energy_blocks` are the long energy windows: the
    first block of each and the one after its last.
    """

    kind: Literal["blocks"] = "blocks"
    steps_per_block: int
    images_per_step: int | None = None
    flop_per_step: int | None = None
    bytes_per_step: int | None = None
    host_s: list[float]
    device_s: list[float] | None = None
    began_s: float | None = None
    at_s: list[float] = []
    warmup_at_s: float | None = None
    warmup_end_s: float | None = None
    energy_blocks: list[tuple[int, int]] = []
    warmup_s: list[float]
    warmup_steps: list[int]
    steady: bool
    stopped_by: Literal["precision", "time"]
    loss: list[float | None] = []  # mean loss of each timed block, None where it was not finite
    warmup_loss: list[float | None] = []
    queries: Queries | None = None  # after the timed blocks
    scored: Scored | None = None  # after the queries
    trace: Trace | None = None  # after everything else that is timed

    @property
    def timed_s(self) -> float:
        """Seconds in timed blocks, stalls included."""
        return sum(self.host_s)

    @property
    def step_s(self) -> float:
        """Seconds of a step over the whole timed part."""
        return self.timed_s / (self.steps_per_block * len(self.host_s))

    def rate(self, per_step: int | None) -> float | None:
        """Units per second over the whole timed part (`per_step` units a step); None where there is no such unit."""
        return None if per_step is None else per_step * self.steps_per_block * len(self.host_s) / self.timed_s


class Epoch(_Part):
    """One pass over the training images, and the validation after it. Accuracies are fractions of 1."""

    steps: int
    images: int
    train_s: float
    train_loss: float | None  # mean over its steps, None where it was not finite
    learning_rate: float  # of its last step
    val_s: float
    val_images: int
    val_loss: float | None
    top1: float
    top5: float


class Epochs(_Part):
    """A training run. `seed` is the trial's seed plus the number of the pass less one: passes differ in it.

    An epoch whose images are no whole number of batches ends with the step that completes it.
    """

    kind: Literal["epochs"] = "epochs"
    seed: int
    epochs: list[Epoch]


class Process(_Part):
    """The worker process that made a record: passes are fresh processes, and a crash is succeeded by another."""

    id: str
    position: int  # of the trial in this process, 0 = first
    startup_s: float  # from the start of the process to the first trial


class Planned(_Part):
    """What the pass was to hold, so that a reader can tell whether a study is complete, and what is of an older plan.

    `keys` are the short hashes (`short_hash`) of its trials' keys.
    """

    keys: list[str]
    passes: int
    order_seed: int


class Record(_Part):
    """One trial in one pass on one host."""

    schema_version: int = SCHEMA
    protocol: int = PROTOCOL
    study: str
    scale: str
    key: str
    trial: dict[str, Any]
    pass_number: int
    planned: Planned
    process: Process
    host: str
    devices_used: int
    versions: dict[str, str]
    status: Status
    reason: str | None = None
    started_at: str
    wall_s: float
    phases_s: dict[str, float] = {}
    facts: dict[str, Any] = {}  # what the workload says of itself: parameters, FLOP, stem, memory, threads
    result: Annotated[Blocks | Epochs, Field(discriminator="kind")] | None = None
    telemetry: Telemetry | None = None

    @property
    def blocks(self) -> Blocks | None:
        """The result, if it is times of blocks."""
        return self.result if isinstance(self.result, Blocks) else None

    @property
    def epochs(self) -> Epochs | None:
        """The result, if it is a training run."""
        return self.result if isinstance(self.result, Epochs) else None

    @property
    def as_trial(self) -> Trial:
        """The trial that was measured."""
        return trial_from_dict(self.trial)

    @property
    def framework(self) -> str:
        """The framework the trial names."""
        return str(self.trial["framework"])

    @property
    def framework_version(self) -> str | None:
        """Its version, of all that it needs; None when it was not installed."""
        return version_of(self.framework, self.versions)

    @property
    def is_final(self) -> bool:
        """Whether the (trial, pass) pair needs no further attempt."""
        return self.status in FINAL

    def line(self) -> str:
        """The record as the JSON line that stands in the file, with the field names of the contract."""
        values = self.model_dump(mode="json")
        ordered = {"schema": values.pop("schema_version"), **values}
        ordered = {("pass" if name == "pass_number" else name): value for name, value in ordered.items()}
        return json.dumps(ordered, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def parse_line(line: str) -> Record:
    """The record of a JSON line. ValueError for one that is none (pydantic's errors are ValueErrors too)."""
    values = json.loads(line)
    if not isinstance(values, dict) or "schema" not in values:
        raise ValueError("not a record: it has no `schema`")
    if values["schema"] > SCHEMA:
        raise ValueError(f"written by a newer labkit (schema {values['schema']}, this one reads {SCHEMA})")
    values["schema_version"], values["pass_number"] = values.pop("schema"), values.pop("pass", None)
    record = Record.model_validate(values)
    profiled = record.framework == "torch" and record.trial.get("traced_iterations") and "trace" in record.phases_s
    if profiled and "traced_steps" not in record.phases_s:
        # Until 23 November 2026 the profiler's phase was named as that in which Keras and JAX trace what they compile.
        record.phases_s["traced_steps"] = record.phases_s.pop("trace")
    return record


def short_hash(key: str) -> str:
    """Eight hexadecimal digits that stand for a trial's key in a plan."""
    return hashlib.sha256(key.encode()).hexdigest()[:8]


def utc_now() -> str:
    """The time as ISO 8601 in UTC, to the second."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
