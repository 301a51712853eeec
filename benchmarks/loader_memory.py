"""A loader's own memory on the host is at most twice its data set, or 64 MB for a small set.

    python benchmarks/loader_memory.py [--device cuda|cpu] [--images 50000]        (Linux)

Measures both kinds of loader at batch 64 and 256. A loader's memory is the difference of two resident sets. One fresh
process opens the data and steps the loader, with flip and crop, through one epoch. Another does the same without a
loader (same imports, open data, the same number and size of output tensors made and dropped). Prints the difference as
a share of the data set: in total (Rss, also at its peak), private memory of the process (Anonymous), and pages of
mapped files, which the system reclaims when it needs memory. On a GPU also prints the loader's peak device memory. The
bound applies to Rss at the end and at its peak. The exit code is 1 if the bound is broken.
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
KINDS = {"resident": None, "streaming": 0}  # `free_bytes` of make_loader, which decides the kind
WITHOUT = "without"
LARGEST_SHARE, ALWAYS_ALLOWED_BYTES = 2.0, 64e6


def main() -> int:
    """Measure and print. Return 1 if the bound is broken, 2 if not on Linux, else 0."""
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
            memory = in_fresh_process(kind, batch, options)
            own = {name: memory[name] - without[name] for name in memory}
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
    """Run `epoch` in a process of its own and return its result."""
    command = [sys.executable, __file__, "--device", options.device, "--images", str(options.images)]
    ran = subprocess.run([*command, "--epoch", kind, str(batch)], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(ran.stdout)  # type: ignore[no-any-return]


def epoch(kind: str, batch: int, device: str, images: int) -> dict[str, int]:
    """Return the memory of this process in bytes after one epoch of batches from a loader, or only allocated."""
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
    memory = memory_of_this_process() | {"device": torch.cuda.max_memory_allocated() if device == "cuda" else 0}
    assert len(made[1]) == batch
    if loader is not None:
        loader.close()
    return memory


def memory_of_this_process() -> dict[str, int]:
    """Return bytes in total, at the peak, private to the process, and of mapped files (resident minus anonymous)."""
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
