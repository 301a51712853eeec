"""Epochs over images in files, from an empty page cache or a full one, with the bytes read, written and sent."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from labkit.timing import Clock
from workbook import ranks
from workbook.records.record import ReadEpoch, Reads
from workbook.storage.counters import Counters, Series, Snapshot
from workbook.trials.trial import Trial
from workbook.workloads import Workload

PARTS = 20  # of an epoch
_OF_PROCESSES = ("read_bytes", "asked_bytes", "written_bytes", "cpu_s", "minor_faults", "major_faults")
_OF_HOST = ("received_bytes", "sent_bytes")


def read_epochs(trial: Trial, workload: Workload, clock: Clock, on_share: Callable[[float], None]) -> Reads:
    """Run `trial.epochs` epochs of a workload over its stored set. `on_share` receives the progress.

    The first epoch begins with the page cache that the trial names. Its bytes include those that the readers read ahead
    while they start; its time does not. Every rank of a team must make this call, and counts for all.

    Raise Unsupported where the page cache cannot be emptied or filled.
    """
    assert workload.stored
    workload.close()  # its readers read ahead
    cached_share = workload.bring_cache()
    counters = Counters()
    before = counters.now()
    workload.restart()
    epochs: list[ReadEpoch] = []
    for number in range(trial.epochs):
        epoch, before = _epoch(number, workload, clock, counters, before)
        epochs.append(epoch)
        on_share((number + 1) / trial.epochs)
    return Reads(
        file_bytes=workload.stored.file_bytes,
        cached_share_before=cached_share,
        skipped=sum(_of_all_ranks(workload.skipped())),
        peak_memory_bytes=_summed(before, ("peak_rss_bytes",), ())["peak_rss_bytes"],
        epochs=epochs,
    )


def _epoch(
    number: int, workload: Workload, clock: Clock, counters: Counters, before: Snapshot
) -> tuple[ReadEpoch, Snapshot]:
    """Return an epoch whose bytes count from `before`, and the counters at its end."""
    steps, waited_before_s = workload.steps_of_epoch(number), workload.waited_s()
    ends = [steps * part // PARTS for part in range(PARTS + 1)]
    with Series(counters) as series:
        parts_s = [_block_s(workload, clock, end - begin) for begin, end in pairwise(ends) if end > begin]
    began, *later = series.snapshots
    course = [
        (at.time_s - began.time_s, at.read_bytes - began.read_bytes)
        for at in later
        if at.read_bytes is not None and began.read_bytes is not None and at.read_bytes >= began.read_bytes
    ]
    grown = _summed(later[-1] - before, _OF_PROCESSES, _OF_HOST)
    waits_s = _of_all_ranks(workload.waited_s() - waited_before_s)
    epoch = ReadEpoch(
        steps=steps,
        images=steps * (workload.images_per_step or 0),
        parts_s=parts_s,
        waited_s=sum(waits_s) / len(waits_s),
        **grown,
        read_at_s=[at_s for at_s, _ in course],
        read_until_bytes=[until for _, until in course],
    )
    return epoch, later[-1]


def _block_s(workload: Workload, clock: Clock, steps: int) -> float:
    team = ranks.team()
    if team is not None and not team.leads:
        team.hear()
    return clock.time_block(workload.step, steps)[0]


def _of_all_ranks(value: Any) -> list[Any]:
    team = ranks.team()
    return [value] if team is None else team.gather(value)


def _summed(counted: Snapshot, of_processes: Sequence[str], of_host: Sequence[str]) -> dict[str, Any]:
    """Return counters of all ranks together; None where a rank lacks the counter. A host's count once.

    A count that fell is unknown: a process ended, and nobody waited for it.
    """
    own = {name: getattr(counted, name) for name in of_processes}
    if os.environ.get("LOCAL_RANK", "0") == "0":
        own |= {name: getattr(counted, name) for name in of_host}
    of_ranks = _of_all_ranks(own)
    total = {}
    for name in (*of_processes, *of_host):
        values = [of_rank[name] for of_rank in of_ranks if name in of_rank]
        total[name] = None if None in values or min(values) < 0 else sum(values)
    return total
