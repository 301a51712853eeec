"""A loader's own memory on the host is at most twice its data set, or 64 MB where that is more.

    python benchmarks/loader_memory.py [--device cuda|cpu] [--images 50000]        (Linux)

For both kinds of loader, at batch 64 and 256: the resident set of a fresh process that opens the data and steps the
loader, flip and crop on, through one whole epoch, less that of a process that does the same without a loader (the same
imports, the data opened, as many output tensors of the same size made and dropped). Prints it as shares of the data
set, in all (Rss, and at its peak), and apart: what the process has for itself (Anonymous), and the pages of mapped
files, which the system takes back when it needs the memory. On a GPU also prints the device memory that the loader took
at its peak. Judges Rss, at the end and at its peak; exit code 1 when the bound is broken.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from labkit.data import open_data
from labkit.data.augment import Augment
from labkit.data.loaders import make_loader, resident_bytes

BATCHES = (64, 256)
KINDS = {"resident": None, "streaming": 0}  # the free memory that make_loader is told of
WITHOUT = "without"
LARGEST_SHARE, ALWAYS_ALLOWED_BYTES = 2.0, 64e6


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--epoch", metavar=("KIND", "BATCH"), nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not Path("/proc/self/smaps_rollup").exists():
        print("This benchmark reads /proc/self/smaps_rollup, which only Linux has.")
        return 2
    if options.epoch is not None:
        print(json.dumps(epoch(options.epoch[0], int(options.epoch[1]), options.device, options.images)))
        return 0
    data = open_data("synthetic32", train_images=options.images)
    size = resident_bytes(data.train)
    allowed = max(LARGEST_SHARE * size, ALWAYS_ALLOWED_BYTES)
    fine = True
    for batch in BATCHES:
        without = in_fresh_process(WITHOUT, batch, options)
        for kind in KINDS:
            found = in_fresh_process(kind, batch, options)
            own = {name: found[name] - without[name] for name in found}
            within = max(own["rss"], own["peak_rss"]) <= allowed
            print(
                f"{options.device}, {kind}, batch {batch}: {own['rss'] / size:.2f} of the data set's "
                f"{size / 1e6:.1f} MB (at its peak {own['peak_rss'] / size:.2f}): its own "
                f"{own['anonymous'] / size:.3f}, mapped files {own['files'] / size:.2f}"
                + (f"; device {own['device'] / size:.2f}" if options.device == "cuda" else "")
                + f"; n = 1; the bound of {allowed / size:.2f} {'holds' if within else 'is broken'}"
            )
            fine &= within
    return 0 if fine else 1


def in_fresh_process(kind: str, batch: int, options: argparse.Namespace) -> dict[str, int]:
    """What `epoch` finds in a process of its own."""
    command = [sys.executable, __file__, "--device", options.device, "--images", str(options.images)]
    ran = subprocess.run([*command, "--epoch", kind, str(batch)], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(ran.stdout)  # type: ignore[no-any-return]


def epoch(kind: str, batch: int, device: str, images: int) -> dict[str, int]:
    """Bytes of this process after one epoch of batches, made by a loader or, without one, just allocated."""
    data = open_data("synthetic32", train_images=images)
    loader = None
    if kind != WITHOUT:
        loader = make_loader(
            data.train,
            batch=batch,
            device=device,
            mean=data.mean,
            std=data.std,
            augment=Augment(flip=True, crop=True),
            free_bytes=KINDS[kind],
        )
        assert loader.kind == kind
    made: Any = None
    for _ in range(-(-images // batch)):
        if loader is None:
            made = torch.ones(batch, 3, 32, 32, device=device), torch.ones(batch, dtype=torch.int64, device=device)
        else:
            made = loader.next_batch()
    if device == "cuda":
        torch.cuda.synchronize()
    found = memory_of_this_process() | {"device": torch.cuda.max_memory_allocated() if device == "cuda" else 0}
    assert len(made[1]) == batch
    if loader is not None:
        loader.close()
    return found


def memory_of_this_process() -> dict[str, int]:
    """Bytes: in all, at the peak, private to the process, and of mapped files (what is resident and not anonymous)."""
    sizes = {}
    for file in ("smaps_rollup", "status"):
        for line in Path("/proc/self", file).read_text().splitlines():
            name, _, value = line.partition(":")
            if value.endswith(" kB"):
                sizes[name] = 1024 * int(value.split()[0])
    return {
        "rss": sizes["Rss"],
        "peak_rss": sizes["VmHWM"],
        "anonymous": sizes["Anonymous"],
        "files": sizes["Rss"] - sizes["Anonymous"],
    }


if __name__ == "__main__":
    sys.exit(main())
