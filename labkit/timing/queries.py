"""Latencies of queries that are sent one after the other and timed singly, for percentiles.

Each query begins when the previous query is answered (MLPerf's SingleStream). A mean over a block of steps would hide
the slow queries.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from labkit.timing.clocks import Clock

WARM_UP = 20  # untimed queries before the first timed one: the device has just run other work


def time_queries(
    query: Callable[[], object],
    clock: Clock,
    count: int,
    *,
    limit_s: float,
    on_query: Callable[[float], None] = lambda _share: None,
) -> list[int]:
    """Return latencies in nanoseconds of 1 to `count` queries. No query but the first begins after `limit_s` seconds.

    `query` returns when its answer is there. `on_query` is called between queries with the share that is done, untimed.
    """
    warm_up_ends = clock.now_s() + 0.1 * limit_s
    for _ in range(WARM_UP):
        query()
        if clock.now_s() > warm_up_ends:
            break
    latencies: list[int] = []
    began_s = clock.now_s()
    spent_s = 0.0
    while not latencies or (len(latencies) < count and spent_s < limit_s):
        before = time.perf_counter_ns()
        query()
        latencies.append(time.perf_counter_ns() - before)
        spent_s = clock.now_s() - began_s
        on_query(max(len(latencies) / count, spent_s / limit_s))
    return latencies
