"""Metrics of epochs over images that lie in files. The first epoch shows the storage, the last the page cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import fmean, pstdev

from workbook.records import Record
from workbook.records.record import ReadEpoch, Reads
from workbook.results.missing import Missing, over


def _reads(record: Record) -> Reads:
    assert record.reads is not None
    return record.reads


def _first(record: Record) -> ReadEpoch:
    return _reads(record).epochs[0]


def _last(record: Record) -> ReadEpoch:
    return _reads(record).epochs[-1]


def _total(values: Iterable[int | None]) -> int | None:
    """Return the sum; None if a value is unknown."""
    found = list(values)
    return None if None in found else sum(value for value in found if value is not None)


def _received_minus_sent(record: Record) -> float | None:
    epoch = _first(record)
    both = epoch.received_bytes is not None and epoch.sent_bytes is not None
    return float(epoch.received_bytes - epoch.sent_bytes) if both else None  # type: ignore[operator]


def _read_bytes_per_s(record: Record) -> float | None:
    """Return the rate of reads while the first epoch ran. For a team, whose course is rank 0's, all its bytes count."""
    epoch = _first(record)
    return over(epoch.read_bytes if record.as_trial.devices > 1 else epoch.timed_read_bytes, epoch.seconds)


def _late_over_early(record: Record) -> float | None:
    """Return the rate of reads in the second half of the first epoch's time over that in the first half."""
    epoch = _first(record)
    half_s = epoch.seconds / 2
    known = list(zip(epoch.read_at_s, epoch.read_until_bytes, strict=True))
    early = [count for at_s, count in known if at_s <= half_s]
    if not early or not known[-1][1]:
        return None
    return over(known[-1][1] - early[-1], early[-1])


def _later_read_share(record: Record) -> float | None:
    """Return the bytes that a later epoch reads from storage, on average, over those of the first epoch."""
    first, *later = _reads(record).epochs
    counts = [epoch.read_bytes for epoch in later]
    return None if not later or None in counts else over(fmean(c for c in counts if c is not None), first.read_bytes)


def _first_epoch_ratio(record: Record) -> float | None:
    first, *later = _reads(record).epochs
    return first.seconds / fmean(epoch.seconds for epoch in later) if later else None


def _throughput_variation(record: Record) -> float | None:
    """Return the coefficient of variation of the throughput of the first epoch's parts."""
    rates = [1 / part for part in _first(record).parts_s]
    return pstdev(rates) / fmean(rates) if len(rates) > 1 else None


def _reread_share(record: Record) -> float | None:
    """Return the share of the set's bytes that the first epoch did not read from storage.

    An epoch delivers as many images as the set has. In a run that begins with an empty page cache, what was not read
    is what a process took from the cache because another had read it.
    """
    if record.trial.get("cache") != "cold":
        return None
    return max(0.0, 1 - over(_first(record).read_bytes, _reads(record).file_bytes))


def stall_share(record: Record) -> float | None:
    """Return the share of the time in which the steps waited for their batches. Raise Missing on a GPU."""
    if record.trial["device"] == "cuda":
        raise Missing("the host queues steps ahead, so its waiting is not the GPU's: compare with resident images")
    if record.blocks:
        waits_s = record.facts.get("waited_s") or []  # the first is that before the blocks
        return sum(waits_s[1:]) / record.blocks.timed_s if waits_s else None
    return _last(record).waited_s / _last(record).seconds if record.reads else None


FIGURES: dict[str, Callable[[Record], float | None]] = {
    "images_per_s": lambda record: _last(record).images / _last(record).seconds,
    "step_s": lambda record: _last(record).seconds / _last(record).steps,
    "epoch_s": lambda record: _last(record).seconds,
    "run_s": lambda record: sum(epoch.seconds for epoch in _reads(record).epochs),
    "read_bytes": lambda record: _first(record).read_bytes,
    "read_bytes_per_s": _read_bytes_per_s,
    "read_rate_late_over_early": _late_over_early,
    "later_read_share": _later_read_share,
    "written_bytes": lambda record: _total(epoch.written_bytes for epoch in _reads(record).epochs),
    "first_epoch_ratio": _first_epoch_ratio,
    "throughput_variation": _throughput_variation,
    "reread_share": _reread_share,
    "received_bytes": lambda record: _first(record).received_bytes,
    "sent_bytes": lambda record: _first(record).sent_bytes,
    "received_minus_sent_bytes": _received_minus_sent,
    "cpu_per_image_s": lambda record: over(_last(record).cpu_s, _last(record).images),
    "loader_memory_bytes": lambda record: _reads(record).peak_memory_bytes,
}
