"""Records: the result of one trial in one pass on one host, as one JSON line."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import re
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeAlias, get_args

import numpy as np
from pydantic import BaseModel, BeforeValidator, Field, PlainSerializer, TypeAdapter, model_validator

from labkit.errors import UserError
from labkit.telemetry.summary import Telemetry
from labkit.timing.blocks import Blocks as _Blocks
from labkit.timing.blocks import Count, Seconds
from workbook.errors import Cause
from workbook.hardware.frameworks import version_of
from workbook.records.scored import Scored, packed, unpacked
from workbook.records.traced import Trace
from workbook.trials.trial import Trial, trial_from_dict


class ReadEpoch(BaseModel, extra="forbid", frozen=True, allow_inf_nan=False):
    """One epoch over images in files. It is timed in parts of equally many steps, so that its course can be seen.

    Counters that the machine does not have are None. Bytes are those of all processes of the trial.
    """

    steps: Annotated[Count, Field(ge=1)]
    images: Count
    parts_s: Annotated[list[Seconds], Field(min_length=1)]
    waited_s: float  # in which the steps waited for their batches
    read_bytes: Count | None = None  # from storage, not from the page cache
    asked_bytes: Count | None = None  # by calls of read, from storage or the page cache; mapped files do not count
    written_bytes: Count | None = None  # to storage
    received_bytes: Count | None = None  # over the network, without the loopback
    sent_bytes: Count | None = None
    cpu_s: float | None = None
    minor_faults: Count | None = None  # page faults that needed no storage
    major_faults: Count | None = None  # page faults that waited for storage
    # Seconds since the epoch began, and the bytes read since then, by rank 0 of a team. In records of 2026-11-25, bytes
    # that readers had read ahead before the epoch began count too.
    read_at_s: list[float] = []
    read_until_bytes: list[Count] = []

    @model_validator(mode="after")
    def _has_a_whole_course(self) -> ReadEpoch:
        if len(self.read_at_s) != len(self.read_until_bytes):
            raise ValueError("read_at_s and read_until_bytes are of different lengths")
        return self

    @property
    def timed_read_bytes(self) -> int | None:
        """The bytes read while the epoch ran; all bytes of the epoch if its course is unknown, None without either."""
        return self.read_until_bytes[-1] if self.read_until_bytes else self.read_bytes

    @property
    def seconds(self) -> float:
        """The time of the epoch."""
        return sum(self.parts_s)


class Reads(BaseModel, extra="forbid", frozen=True, allow_inf_nan=False):
    """Epochs over a stored set of images, from an empty page cache or a full one."""

    kind: Literal["reads"] = "reads"
    file_bytes: Count  # of the set
    cached_share_before: float | None  # of the set in the page cache before the first epoch
    skipped: Count  # images that could not be read or decoded
    peak_memory_bytes: Count | None  # of the trial's processes
    epochs: Annotated[list[ReadEpoch], Field(min_length=1)]


SCHEMA = 3  # 3: `fingerprint` and `node`
PROTOCOL = 3  # raised when the timed work changes: records of another protocol never count as done

PACKED_FROM = 1000  # a longer list of integers is packed in its line
_WORD = "<i8"

LARGEST_FACT = 1e100  # with larger numbers, products would not be finite
MOST_PASSES = 10_000  # of a trial in a plan
# The fields of a trial that every record has had, and that pages read without a default.
_OF_EVERY_TRIAL = ("workload", "model", "classes", "data", "framework", "device", "devices")

# `withdrawn`: a result that was found to be wrong after it was recorded, and removed, with the reason.
Status = Literal["ok", "oom", "timeout", "crashed", "unsupported", "withdrawn"]
# A trial that runs out of memory will fail again. A crash or a hang may pass, so it is tried again.
TRIED: frozenset[str] = frozenset(get_args(Status)) - {"timeout", "crashed"}


def _integers(values: Any) -> Any:
    """Return a list of integers from its packed form, any other value unchanged."""
    return np.frombuffer(unpacked(values), _WORD).tolist() if isinstance(values, str) else values


def _packed_integers(values: list[int]) -> list[int] | str:
    """Return a long list of integers packed, a short one unchanged."""
    return values if len(values) <= PACKED_FROM else packed(np.array(values, _WORD).tobytes())


class _Part(BaseModel, extra="forbid", frozen=True, allow_inf_nan=False):
    """A part of a record. Unknown fields are errors, and fields cannot be reassigned."""


class Queries(_Part):
    """Latencies of queries of `images` images each. Each query began when the previous query was answered.

    A latency is the time from sending a query until its answer, in ns on the host's clock. Every query is kept.
    """

    images: Count
    latency_ns: Annotated[list[Count], BeforeValidator(_integers), PlainSerializer(_packed_integers)]
    asked_for: Count  # planned queries: fewer were run if the time was up


class Blocks(_Blocks):
    """Times of blocks, and what was measured after them."""

    queries: Queries | None = None  # measured after the timed blocks
    scored: Scored | None = None  # measured after the queries
    trace: Trace | None = None  # taken after everything else that is timed


class Epoch(_Part):
    """One pass over the training images, and the validation after it. Accuracies are fractions of 1."""

    steps: Annotated[Count, Field(ge=1)]
    images: Count
    train_s: Seconds
    train_loss: float | None  # mean over the epoch's steps, None if it was not finite
    learning_rate: float  # of the epoch's last step
    val_s: float
    val_images: int
    val_loss: float | None
    top1: float
    top5: float


class Epochs(_Part):
    """A training run. `seed` is the trial's seed plus the pass number minus one, so that it differs between passes.

    If an epoch's images are no whole number of batches, the epoch ends with the step that completes it.
    """

    kind: Literal["epochs"] = "epochs"
    seed: int
    epochs: Annotated[list[Epoch], Field(min_length=1)]


class Process(_Part):
    """The worker process that made a record. Each pass has a fresh process, and a new one replaces a crashed one."""

    id: str
    position: int  # of the trial in this process, 0 = first
    startup_s: float  # from the start of the process to the first trial


class Planned(_Part):
    """The plan of the pass. It shows whether a study is complete, and which records are of an older plan.

    `passes` maps the short hash (`short_hash`) of each planned trial's key to the trial's number of passes. `extra`
    plans were measured in JupyterLab, beside the reports: they do not change what a page shows.
    """

    passes: Annotated[dict[str, Annotated[int, Field(ge=1, le=MOST_PASSES)]], Field(min_length=1)]
    order_seed: int
    extra: bool = False


Result: TypeAlias = Annotated[Blocks | Epochs | Reads, Field(discriminator="kind")]

_RESULT: TypeAdapter[Result] = TypeAdapter(Result)


def result_of(values: dict[str, Any]) -> Result:
    """Return a worker's result as the record of its kind. Raise ValidationError for another one."""
    return _RESULT.validate_python(values)


_GATE = re.compile(r"(?:rank (\d+) of (\d+): )?correctness gate: ")
_BEYOND = re.compile(r" by (\S+) of it, more than (\S+)$")


def _for_readers(reason: str) -> str:
    """Return a recorded reason, with that of a correctness gate as one sentence that says first by how much.

    >>> _for_readers("rank 1 of 2: correctness gate: the loss differs by 0.1 of it, more than 0.05")
    'the correctness check refused it, by 10 % where 5 % is allowed (process 1 of 2: the loss differs)'
    """
    if not (gate := _GATE.match(reason)):
        return reason
    who = f"process {gate[1]} of {gate[2]}: " if gate[1] else ""
    shares = _BEYOND.search(reason)
    apart, most = (100 * float(share) for share in shares.groups()) if shares else (0, 0)
    by = f", by {apart:.2g} % where {most:.3g} % is allowed" if shares else ""
    return f"the correctness check refused it{by} ({who}{_BEYOND.sub('', reason[gate.end() :])})"


class Record(_Part):
    """One trial in one pass on one host."""

    schema_version: int = SCHEMA
    protocol: int = PROTOCOL
    study: str
    scale: str
    key: str
    trial: dict[str, Any]
    pass_number: Annotated[int, Field(ge=1, le=MOST_PASSES)]
    short: bool = False  # a pass with neither gate, trace, queries nor energy windows, for trials that the host delays
    timing: dict[str, float] = {}  # planned seconds: `warmup_s`, `timed_s`, `block_s`; empty before protocol 3
    planned: Planned
    process: Process
    host: str
    fingerprint: str | None = None  # of the host's hardware; older records have that of their host's description
    node: str | None = None  # of a Slurm job: the hash of its own node, since equal nodes are one host
    devices_used: Annotated[Count, Field(ge=1)]
    versions: dict[str, str]
    environment: dict[str, str] = {}  # variables that frameworks read; empty before 27 November 2026
    status: Status
    reason: str | None = None
    cause: Cause | None = None  # of an unsupported trial; none in records before 27 November 2026
    started_at: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d")]
    wall_s: float
    phases_s: dict[str, float] = {}
    facts: dict[str, Any] = {}  # reported by the workload: parameters, FLOP, head, memory, threads
    result: Result | None = None
    telemetry: Telemetry | None = None

    @model_validator(mode="after")
    def _has_a_trial(self) -> Record:
        if self.protocol > PROTOCOL:  # a newer labkit's trial may have other fields, and its records are not shown
            return self
        if lacking := [name for name in _OF_EVERY_TRIAL if name not in self.trial]:
            raise ValueError(f"its trial lacks {', '.join(lacking)}")
        try:
            _trial_of(json.dumps(self.trial))
        except UserError as error:
            raise ValueError(str(error)) from error
        return self

    @property
    def blocks(self) -> Blocks | None:
        """The result if it is times of blocks, else None."""
        return self.result if isinstance(self.result, Blocks) else None

    @property
    def epochs(self) -> Epochs | None:
        """The result if it is a training run, else None."""
        return self.result if isinstance(self.result, Epochs) else None

    @property
    def reads(self) -> Reads | None:
        """The result if it is epochs over files, else None."""
        return self.result if isinstance(self.result, Reads) else None

    @property
    def as_trial(self) -> Trial:
        """The trial that was measured."""
        return _trial_of(json.dumps(self.trial))

    def number(self, fact: str) -> float | None:
        """Return a number that the workload reported; None without it, and for any other value."""
        value = self.facts.get(fact)
        return float(value) if isinstance(value, (int, float)) and abs(value) < LARGEST_FACT else None

    @property
    def framework(self) -> str:
        """The framework that the trial names."""
        return str(self.trial["framework"])

    @property
    def framework_version(self) -> str | None:
        """Versions of the framework's packages; None if one was not installed."""
        return version_of(self.framework, self.versions)

    @property
    def is_final(self) -> bool:
        """Whether the (trial, pass) pair needs no further attempt. The state of a machine may change."""
        return self.status in TRIED and (self.status != "unsupported" or self.cause in ("never", "version"))

    @property
    def dated_reason(self) -> str:
        """The reason of a failure for readers: it has the day if a state of the machine is the cause; else empty."""
        dated = f" (tried on {self.started_at[:10]})" if self.reason and self.cause == "here" else ""
        return f"{_for_readers(self.reason or '')}{dated}"

    @property
    def failure(self) -> str:
        """Status and reason of a failure for readers; the reason alone if a correctness gate refused the trial."""
        if not self.reason or _GATE.match(self.reason):
            return self.dated_reason or self.status
        return f"{self.status}: {self.dated_reason}"

    def line(self) -> str:
        """Return the record as its JSON line in the file, with the file's field names (`schema`, `pass`)."""
        values = self.model_dump(mode="json")
        if self.cause is None:
            del values["cause"]
        ordered = {"schema": values.pop("schema_version"), **values}
        ordered = {("pass" if name == "pass_number" else name): value for name, value in ordered.items()}
        return json.dumps(ordered, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


@lru_cache(maxsize=8192)  # checking a trial takes longer than reading its line, and a site asks for each often
def _trial_of(values: str) -> Trial:
    return trial_from_dict(json.loads(values))


_LONG_NUMBER = re.compile(r"\d{19}")  # only such an integer may have more than 64 bits


def parse_line(line: str) -> Record:
    """Return the record of a JSON line. Raise ValueError if it is no record (pydantic's errors are ValueErrors too)."""
    try:
        values = json.loads(line, parse_int=_integer if _LONG_NUMBER.search(line) else None)
        if "\\ud" in line.lower():  # half a pair is no character, and no file can hold it
            json.dumps(values, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise ValueError(f"it begins with {line[:20]!r} and is not JSON: {error.msg}") from error
    except RecursionError as error:
        raise ValueError("not a record: it is nested too deeply") from error
    except UnicodeEncodeError as error:
        raise ValueError("not a record: it holds half a character") from error
    if not isinstance(values, dict) or type(values.get("schema")) is not int:
        raise ValueError("not a record: it has no `schema`")
    if values["schema"] > SCHEMA:
        raise ValueError(f"written by a newer labkit (schema {values['schema']}, this one reads {SCHEMA})")
    planned = values.get("planned")
    if values.pop("schema") == 1 and isinstance(planned, dict) and isinstance(planned.get("keys"), list):
        # Until schema 2 all trials of a plan had equally many passes.
        planned["passes"] = {str(key): planned.get("passes") for key in planned.pop("keys")}
    values["schema_version"], values["pass_number"] = SCHEMA, values.pop("pass", None)
    record = Record.model_validate(values)
    profiled = (
        record.trial.get("framework") == "torch"
        and record.trial.get("traced_iterations")
        and "trace" in record.phases_s
    )
    if profiled and "traced_steps" not in record.phases_s:
        # Until 23 November 2026 the profiler's phase was `trace`, like the one in which Keras and JAX trace to compile.
        record.phases_s["traced_steps"] = record.phases_s.pop("trace")
    return record


def _integer(digits: str) -> int:
    value = int(digits) if len(digits) < 20 else 2**63
    if not -(2**63) <= value < 2**63:
        raise ValueError("an integer of more than 64 bits")
    return value


@lru_cache(maxsize=8192)  # a plan asks for the hashes of all records of a host, once for each of its studies
def short_hash(key: str) -> str:
    """Return the eight hexadecimal digits that stand for a trial's key in a plan."""
    return hashlib.sha256(key.encode()).hexdigest()[:8]


def utc_now() -> str:
    """Return the current time as ISO 8601 in UTC, to the second."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
