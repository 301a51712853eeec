"""Run tasks in several processes, which end when this one does."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from typing import Any

from workbook.hardware.limits import usable_threads
from workbook.lifetime import end_with_parent

BYTES_PER_PROCESS = 32_000_000  # a process takes a second to start, and drawing this many bytes takes two


def in_processes(function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], *, work_bytes: int) -> Iterator[Any]:
    """Yield the results of `function` for each task as they come, from several processes if there is enough work."""
    processes = min(usable_threads(), len(tasks), 1 + work_bytes // BYTES_PER_PROCESS)
    if processes < 2:
        yield from (function(*task) for task in tasks)
        return
    # This process may have threads and a GPU, which a forked process can't use.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context, initializer=end_with_parent) as pool:
        futures: list[Future[Any]] = [pool.submit(function, *task) for task in tasks]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)
