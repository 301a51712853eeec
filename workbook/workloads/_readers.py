"""What workloads that read files share: reasons for which a trial cannot read, the page cache, and the readers."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from labkit.data.order import WHOLE, Shard
from workbook import ranks
from workbook.errors import Unsupported
from workbook.hardware.limits import usable_threads
from workbook.storage import StoredSet
from workbook.storage.page_cache import drop, resident_share, why_not_cold
from workbook.storage.readers import open_reader
from workbook.storage.readers.reader import Reader
from workbook.trials.trial import Trial

WARM_SHARE = 0.999  # of the files' pages that are in memory when the page cache is warm
MEMORY_SHARE = 0.8  # of the available memory, that files in the page cache may take
_AT_ONCE = 2**20


def open_readers(trial: Trial, stored: StoredSet, *, numbers: range) -> tuple[list[Reader], dict[str, Any]]:
    """Return the trial's readers with these numbers, and facts about them.

    Raise Unsupported if the trial cannot read the set here.
    """
    began, own = time.perf_counter(), trial.reader_order == "own"
    readers = [
        open_reader(
            trial.reader,
            stored,
            batch=trial.batch_of_process,
            image_px=trial.image_px,
            workers=trial.workers,
            seed=trial.seed + (number if own else 0),
            shard=WHOLE if own else Shard(number, trial.readers),
            device=trial.device,
        )
        for number in numbers
    ]
    facts = {
        "reader": trial.reader,
        "form": trial.form,
        "workers": trial.workers,
        "file_bytes": stored.file_bytes,
        "files": len(stored.files),
        "set_images": stored.images,
        "set_classes": stored.classes,
        "readers_start_s": time.perf_counter() - began,
    }
    return readers, facts


def describe(stored: StoredSet) -> str:
    """Return one sentence about a stored set."""
    return (
        f"{stored.images:,} images of {stored.classes:,} classes in {len(stored.files):,} files "
        f"of the form {stored.form}, "
        f"{stored.file_bytes / 1e9:.3g} GB in total."
    )


def bring_cache(trial: Trial, stored: StoredSet) -> float | None:
    """Drop the files from the page cache, or read them into it. Return the share that it holds afterwards.

    It is None where the system does not tell it. Every rank of a team must make this call.

    Raise Unsupported if the page cache cannot be emptied, or cannot hold the files.
    """
    team = ranks.team()
    if trial.cache == "cold":
        if reason := why_not_cold(stored.files[0]):
            raise Unsupported(f"the page cache cannot be made cold: {reason}")
        drop(stored.files)
    elif team is None or team.rank == 0:
        _warm(stored)
    if team is not None:
        team.barrier()  # no rank may read before the files of all are dropped
    try:
        return resident_share(stored.files)
    except OSError:
        return None


def _warm(stored: StoredSet) -> None:
    """Read all files that are not in memory. Raise Unsupported if memory cannot hold them."""
    available = psutil.virtual_memory().available
    if stored.file_bytes > MEMORY_SHARE * available:
        raise Unsupported(
            f"the page cache cannot be warm: the files have {stored.file_bytes / 1e9:.3g} GB, and "
            f"{available / 1e9:.3g} GB of memory are available. Read them with cache='cold'"
        )
    with suppress(OSError):
        if resident_share(stored.files) >= WARM_SHARE:
            return
    with ThreadPoolExecutor(usable_threads()) as threads:
        list(threads.map(_read, stored.files))


def _read(file: Path) -> None:
    with suppress(OSError), file.open("rb", buffering=0) as stream:  # the reader counts files that cannot be read
        while stream.read(_AT_ONCE):
            pass
