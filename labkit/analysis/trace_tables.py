"""A trace as tables: where the time of its steps went, by what ran, waited, was copied and was called."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from labkit.analysis.format import MISSING, number, percent
from labkit.analysis.table import Table
from labkit.traced import Traced

TITLES = {
    "matrix_product": "matrix product",
    "batch_norm": "batch norm",
    "element_wise": "element-wise",
    "tensor_core": "on tensor cores",
    "implicit_gemm": "without tensor cores",
    "winograd": "Winograd",
    "fft": "FFT",
    "helper": "before and after another",
    "library": "the library's choice",
    "host_to_device": "host to device",
    "device_to_host": "device to host",
    "device_to_device": "within a device",
    "peer_to_peer": "device to device",
    "clean_up": "clean-up",
    "memory": "memory and device",
}


def tables(traced: Traced) -> list[Table]:
    """All that a trace says, in tables; those that would be empty are left out."""
    made = [_time(traced), _classes(traced), _algorithms(traced), _longest(traced), _copies(traced), _calls(traced)]
    made += [_calls_by_name(traced), _sections(traced)]
    return [table for table in made if len(table.frame)]


def sentence(traced: Traced) -> str:
    """What the trace is of."""
    steps = f"{traced.steps} step{'' if traced.steps == 1 else 's'}"
    device = "a CPU" if traced.of == "operators" else "a GPU" if traced.devices == 1 else f"{traced.devices} GPUs"
    return f"{steps} of {device}, {number(traced.elapsed_s / traced.steps * 1e3, 4)} ms each under the profiler."


def title(word: str) -> str:
    """A class as people say it."""
    return TITLES.get(word, word)


def _ms(seconds: float, traced: Traced) -> str:
    return number(seconds / traced.steps * 1e3, 4)


def _what(traced: Traced) -> str:
    return "kernels" if traced.of == "kernels" else "operators"


def _row(name: str, seconds: float, traced: Traced, of_s: float, **more: Any) -> dict[str, str]:
    share = percent(seconds / of_s, 3) if of_s else MISSING
    return {"": name, "ms a step": _ms(seconds, traced), "share": share, **more}


def _table(rows: Iterable[dict[str, str]], caption: str) -> Table:
    return Table(pd.DataFrame(list(rows)), caption)


def _a_step(count: int, traced: Traced) -> str:
    return number(count / traced.steps, 4)


def _time(traced: Traced) -> Table:
    parts: dict[str, float | None] = {
        f"any of the {_what(traced)} ran": traced.busy_s,
        "only copies and fills": traced.active_s - traced.busy_s,
        "waiting for a launch": traced.launch_gap_s,
        "waiting though launched": traced.queue_gap_s,
        "before the first and after the last": traced.edge_gap_s,
        f"two {_what(traced)} or more at once": traced.overlapping_s,
        "copies": traced.copy_s,
        "copies beside kernels": traced.copy_beside_kernel_s,
        "collectives": traced.exchange_s,
        "collectives alone": traced.exposed_exchange_s,
    }
    on_cpu = ("only copies and fills", "copies", "copies beside kernels")
    rows = [
        _row(name, seconds, traced, traced.elapsed_s)
        for name, seconds in parts.items()
        if seconds is not None and not (traced.of == "operators" and name in on_cpu)
    ]
    parts_of_it = (
        "the first five rows are its parts" if traced.of == "kernels" else "the first row is what is busy of it"
    )
    return _table(rows, f"Time of a step: {parts_of_it}, the others overlap them.")


def _classes(traced: Traced) -> Table:
    rows = [
        _row(title(kind), total.seconds, traced, traced.kernel_s, **{"a step": _a_step(total.count, traced)})
        for kind, total in traced.kernels.items()
    ]
    return _table(rows, f"What the {_what(traced)} do, in shares of their time added up.")


def _algorithms(traced: Traced) -> Table:
    whole_s = sum(total.seconds for total in traced.algorithms.values())
    rows = [
        _row(title(kind), total.seconds, traced, whole_s, **{"a step": _a_step(total.count, traced)})
        for kind, total in traced.algorithms.items()
    ]
    return _table(rows, "How convolutions are done, in shares of their time.")


def _longest(traced: Traced) -> Table:
    rows = [
        _row(one.name, one.seconds, traced, traced.kernel_s, does=title(one.algorithm or one.kind))
        for one in traced.longest
    ]
    return _table(rows, f"The {_what(traced)} that took most time together.")


def _copies(traced: Traced) -> Table:
    rows = [
        {
            "": title(direction),
            "a step": _a_step(one.count, traced),
            "ms a step": _ms(one.seconds, traced),
            "MB a step": number(one.bytes / traced.steps / 1e6, 4),
            "median bytes": f"{one.median_bytes:,}",
            "GB/s": number(one.bytes / one.seconds / 1e9, 3) if one.seconds else MISSING,
        }
        for direction, one in traced.copies.items()
    ]
    return _table(rows, "Copies.")


def _calls(traced: Traced) -> Table:
    whole_s = sum(total.seconds for total in traced.calls.values())
    rows = [
        _row(title(kind), total.seconds, traced, whole_s, **{"a step": _a_step(total.count, traced)})
        for kind, total in traced.calls.items()
    ]
    return _table(rows, "The host's calls of CUDA, in shares of their time.")


def _calls_by_name(traced: Traced) -> Table:
    whole_s = sum(total.seconds for total in traced.calls.values())
    rows = [
        _row(name, total.seconds, traced, whole_s, **{"a step": _a_step(total.count, traced)})
        for name, total in traced.calls_by_name.items()
    ]
    return _table(rows, "The calls that took most time together.")


def _sections(traced: Traced) -> Table:
    called = traced.of == "kernels"
    rows = [
        {
            "": name,
            "host ms": _ms(one.host_s, traced),
            f"{_what(traced)} ms": _ms(one.kernel_s, traced),
            "any of them ms": _ms(one.busy_s, traced),
            **({"calls ms": _ms(sum(total.seconds for total in one.calls.values()), traced)} if called else {}),
        }
        for name, one in traced.sections.items()
    ]
    return _table(rows, "Sections of a step: what the host did in them, and what ran because of it.")
