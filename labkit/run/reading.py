"""Epochs over images in files, from an empty page cache or a full one, with the bytes read, written and sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path

from labkit.data.stored import page_cache
from labkit.data.stored.counters import Counters, Series
from labkit.errors import Unsupported
from labkit.measure import Clock
from labkit.records.reads import ReadEpoch, Reads
from labkit.trial import Trial
from labkit.workloads import ReadsFiles

PARTS = 20  # of an epoch
_CHUNK_BYTES = 2**22


def read_epochs(trial: Trial, workload: ReadsFiles, clock: Clock, on_share: Callable[[float], None]) -> Reads:
    """Run `trial.epochs` epochs of a workload over its stored set. `on_share` receives the progress.

    The first epoch begins with the page cache that the trial names. Raise Unsupported where the page cache of the set's
    file system cannot be emptied.
    """
    stored = workload.stored
    cached_share = None
    if stored.addresses:
        if trial.cache == "cold":
            raise Unsupported(page_cache.ON_A_SERVER)
    elif trial.cache == "cold":
        if reason := page_cache.why_not_cold(stored.folder):
            raise Unsupported(reason)
        page_cache.drop(stored.files)
    else:
        _fill(stored.files)
    if not stored.addresses:
        cached_share = page_cache.resident_share(stored.files)
    counters = Counters(stored.folder)
    workload.restart()
    epochs = []
    for number in range(trial.epochs):
        epochs.append(_epoch(number, trial, workload, clock, counters))
        on_share((number + 1) / trial.epochs)
    return Reads(
        file_bytes=stored.file_bytes,
        cached_share_before=cached_share,
        skipped=workload.skipped,
        peak_memory_bytes=counters.now().peak_rss_bytes,
        epochs=epochs,
    )


def _epoch(number: int, trial: Trial, workload: ReadsFiles, clock: Clock, counters: Counters) -> ReadEpoch:
    steps, waited_before_s = workload.steps_of_epoch(number), workload.waited_s
    ends = [steps * part // PARTS for part in range(PARTS + 1)]
    with Series(counters) as series:
        parts_s = [
            clock.time_block(workload.step, after - before)[0] for before, after in pairwise(ends) if after > before
        ]
    before, *later = series.snapshots
    grown = [snapshot - before for snapshot in later]
    counted, course = grown[-1], [each for each in grown if each.read_bytes is not None]
    return ReadEpoch(
        steps=steps,
        images=steps * trial.batch_of_step,
        parts_s=parts_s,
        waited_s=workload.waited_s - waited_before_s,
        read_bytes=counted.read_bytes,
        asked_bytes=counted.rchar,
        written_bytes=counted.write_bytes,
        received_bytes=counted.network_received_bytes,
        sent_bytes=counted.network_sent_bytes,
        cpu_s=counted.cpu_s,
        major_faults=counted.major_faults,
        read_at_s=[each.time_s for each in course],
        read_until_bytes=[each.read_bytes for each in course if each.read_bytes is not None],
    )


def _fill(files: Iterable[Path]) -> None:
    """Read files once, so that the page cache holds them."""
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.read(_CHUNK_BYTES):
                pass
