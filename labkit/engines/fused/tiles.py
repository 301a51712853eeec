"""How a convolution is cut into programs: the ways worth trying on this device, and the fastest of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import partial

import torch

from labkit.errors import Unsupported


@dataclass(frozen=True)
class Tile:
    """Rows, filters and channels of a program, its warps, the loads in flight, and programs that share a sum."""

    rows: int
    filters: int
    channels: int
    warps: int
    stages: int
    splits: int = 1


# Few rows are what a small batch leaves of a small image.
FEW_ROWS = (
    Tile(16, 32, 128, 4, 5),
    Tile(16, 64, 128, 4, 4),
    Tile(32, 64, 128, 4, 4),
    Tile(16, 32, 128, 4, 4, splits=4),
    Tile(16, 32, 128, 4, 4, splits=8),
    Tile(32, 64, 128, 4, 4, splits=4),
)
MANY_ROWS = (
    Tile(64, 64, 64, 4, 4),
    Tile(128, 64, 64, 4, 4),
    Tile(128, 128, 64, 8, 3),
    Tile(128, 128, 128, 8, 3),
    Tile(128, 256, 64, 8, 3),
    Tile(256, 64, 64, 8, 3),
)
FEW = 512
ENOUGH_PROGRAMS = 512  # some for each of a GPU's 100 to 150 multiprocessors


def tiles_for(rows: int, filters: int, channels: int, window: int, element_bytes: int) -> list[Tile]:
    """The tiles worth trying of a convolution whose window has so many pixels.

    A block of channels is no wider than the channels are, but at least 32 bytes. The channels above are of bytes; of a
    wider type it is half as many, which take the same memory. A sum is split where each share has a few blocks left,
    and only while programs are fewer than `ENOUGH_PROGRAMS`.
    """
    widest, narrowest = 1 << (channels - 1).bit_length(), 32 // element_bytes
    most = max(16, 1 << (filters - 1).bit_length())
    found = []
    for tile in FEW_ROWS if rows <= FEW else MANY_ROWS:
        deep = max(narrowest, min(tile.channels // element_bytes, widest))
        fitting = replace(tile, filters=min(tile.filters, most), channels=deep)
        blocks = window * -(-channels // deep)
        programs = -(-rows // fitting.rows) * -(-filters // fitting.filters) * fitting.splits
        if fitting.splits == 1 or (blocks >= 2 * fitting.splits and programs <= ENOUGH_PROGRAMS):
            found.append(fitting)
    return list(dict.fromkeys(found))


_found: dict[Hashable, Tile] = {}  # of this process: layers of one shape stand in one network many times, and in others


def fastest(launch: Callable[[Tile], None], tiles: list[Tile], *, of: Hashable) -> Tile:
    """The tile whose launches take the least time of the device; the first while a graph is being captured.

    `of` says what the launch multiplies: what was found of the same before is not tried again. Unsupported where no
    tile fits into the device's shared memory.
    """
    if of in _found:
        return _found[of]
    if len(tiles) == 1 or torch.cuda.is_current_stream_capturing():
        return tiles[0]
    times: dict[Tile, float] = {}
    for tile in tiles:
        try:
            times[tile] = _time_s(partial(launch, tile))
        except Exception as error:
            if type(error).__name__ != "OutOfResources":  # Triton's, of a tile that wants more shared memory
                raise
    if not times:
        raise Unsupported("no tile of the fused kernels fits into this device's shared memory")
    _found[of] = min(times, key=times.__getitem__)
    return _found[of]


def _time_s(run: Callable[[], None], times: int = 10) -> float:
    """Seconds that one run takes, of several in one CUDA graph: their launches would take longer than they do."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            run()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    begin.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) * 1e-3 / times
