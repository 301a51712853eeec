"""A trace as tables of one step, for `labkit trace FILE`: kernels, waits, copies and calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from workbook.records.traced import Total, Traced


def sentence(traced: Traced) -> str:
    """Return a sentence on the traced steps: their number, device and time."""
    device = "a CPU" if traced.of == "operators" else "a GPU" if traced.devices == 1 else f"{traced.devices} GPUs"
    steps = f"{traced.steps} step{'' if traced.steps == 1 else 's'}"
    return f"{steps} of {device}, {traced.elapsed_s / traced.steps * 1e3:.4g} ms each under the profiler."


def tables(traced: Traced) -> dict[str, pd.DataFrame]:
    """Return title -> table, in ms of a step; empty tables are left out."""
    longest = {f"{kernel.name} ({kernel.algorithm or kernel.kind})": kernel for kernel in traced.longest}
    by_title = {
        "Time of a step (parts overlap)": _time(traced),
        f"What the {traced.of} do": _totals(traced, traced.kernels),
        "Algorithms of convolutions": _totals(traced, traced.algorithms),
        f"Longest {traced.of}": _totals(traced, longest, of_s=traced.kernel_s),
        "Copies": _copies(traced),
        "Calls of CUDA by class": _totals(traced, traced.calls),
        "Longest calls": _totals(traced, traced.calls_by_name),
        "Sections of a step": _sections(traced),
    }
    return {title: table for title, table in by_title.items() if len(table)}


def _time(traced: Traced) -> pd.DataFrame:
    parts = {
        f"any of the {traced.of} ran": traced.busy_s,
        "only copies and fills": traced.active_s - traced.busy_s,
        "waiting for a launch": traced.launch_gap_s,
        "waiting though launched": traced.queue_gap_s,
        "before the first and after the last": traced.edge_gap_s,
        f"two {traced.of} or more at once": traced.overlapping_s,
        "copies": traced.copy_s,
        "copies beside kernels": traced.copy_beside_kernel_s,
        "collectives": traced.exchange_s,
        "collectives alone": traced.exposed_exchange_s,
    }
    rows = [(name, *_share(traced, seconds, traced.elapsed_s)) for name, seconds in parts.items() if seconds]
    return pd.DataFrame(rows, columns=["", "ms", "%"])


def _totals(traced: Traced, totals: Mapping[Any, Total], of_s: float = 0.0) -> pd.DataFrame:
    """Return each total with its share of `of_s`, by default of their sum."""
    whole_s = of_s or sum(total.seconds for total in totals.values())
    rows = [
        (_words(name), *_share(traced, total.seconds, whole_s), total.count / traced.steps)
        for name, total in totals.items()
    ]
    return pd.DataFrame(rows, columns=["", "ms", "%", "count"])


def _copies(traced: Traced) -> pd.DataFrame:
    sizes = [(copies.bytes / traced.steps / 1e6, copies.median_bytes) for copies in traced.copies.values()]
    return _totals(traced, traced.copies).join(pd.DataFrame(sizes, columns=["MB", "median bytes"]))


def _sections(traced: Traced) -> pd.DataFrame:
    step_ms = 1e3 / traced.steps
    rows = [
        (name, section.host_s * step_ms, section.kernel_s * step_ms, section.busy_s * step_ms)
        for name, section in traced.sections.items()
    ]
    return pd.DataFrame(rows, columns=["", "host ms", f"{traced.of} ms", "any of them ms"])


def _share(traced: Traced, seconds: float, of_s: float) -> tuple[float, float]:
    return seconds / traced.steps * 1e3, 100 * seconds / of_s if of_s else float("nan")


def _words(name: str) -> str:
    """Return a class of the code (`matrix_product`) in words; names of kernels and calls stay unchanged."""
    return name.replace("_", " ") if name.replace("_", "").isalpha() and name.islower() else name
