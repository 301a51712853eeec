"""Read shards from a server over a link: how fast, and how long a training would wait.

    python -m tests.cluster.shards_over_link measure PATTERN    prints times as a JSON object
    python -m tests.cluster.shards_over_link read PATTERN       reads until an error, and prints it

A consumer takes STEP_S for each batch, as a training step does. It sleeps, so it needs no processor core.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from labkit.data.readers import open_reader
from labkit.data.stored import StoredSet
from labkit.data.stored.over_http import open_file
from labkit.data.stored.remote import open_remote
from labkit.errors import LabkitError

BATCH, LEAD_IN, BATCHES = 32, 8, 32
IMAGES = BATCH * (LEAD_IN + BATCHES + 4)  # no leg reaches the end of an epoch
STEP_S = 0.1
STREAMED_S = 2.0
READER: dict[str, Any] = {"batch": BATCH, "image_px": 64, "seed": 0, "device": "cpu", "order": "as stored"}


def streamed_bytes_per_s(stored: StoredSet) -> float:
    """Return the rate at which one connection reads shards, without decoding."""
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < STREAMED_S:
        for url, size in stored.addresses:
            with open_file(url, size) as stream:
                while part := stream.read(2**20):
                    count += len(part)
    return count / (time.perf_counter() - began)


def delivered(stored: StoredSet, *, workers: int, step_s: float) -> dict[str, float]:
    """Return images and bytes per second of a reader, and the share of the time in which the consumer waited."""
    reader, waited_s = open_reader("webdataset", stored, workers=workers, **READER), 0.0
    try:
        for number in range(LEAD_IN + BATCHES):
            if number == LEAD_IN:
                began, waited_s = time.perf_counter(), 0.0
            asked = time.perf_counter()
            reader.next_batch()
            waited_s += time.perf_counter() - asked
            time.sleep(step_s)
        seconds = time.perf_counter() - began
    finally:
        reader.close()
    images_per_s = BATCH * BATCHES / seconds
    return {
        "workers": workers,
        "step_s": step_s,
        "images_per_s": images_per_s,
        "bytes_per_s": images_per_s * stored.file_bytes / stored.images,
        "waiting_share": waited_s / seconds,
    }


def measure(stored: StoredSet) -> dict[str, Any]:
    """Return all rates over the link as it is."""
    legs = [delivered(stored, workers=workers, step_s=step_s) for workers in (0, 2) for step_s in (0.0, STEP_S)]
    return {"streamed_bytes_per_s": streamed_bytes_per_s(stored), "legs": legs}


def read_until_error(stored: StoredSet) -> None:
    """Read batches without end in two workers. Print `reading` after the first."""
    reader = open_reader("webdataset", stored, workers=2, **READER)
    try:
        reader.next_batch()
        print("reading", flush=True)
        while True:
            reader.next_batch()
    finally:
        reader.close()


def main(what: str, pattern: str) -> None:
    try:
        stored = open_remote(pattern)
        if what == "read":
            read_until_error(stored)
        print(json.dumps(measure(stored)))
    except LabkitError as error:
        print(error)


if __name__ == "__main__":
    main(*sys.argv[1:])
