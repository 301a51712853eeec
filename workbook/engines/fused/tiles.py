"""Tiles, which cut a convolution into programs: those worth trying on this device, and the fastest of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import partial

import torch

from workbook.errors import Unsupported


@dataclass(frozen=True)
class Tile:
    """Rows, filters and channels of a program, its warps, the loads in flight, and programs that share a sum."""

    rows: int
    filters: int
    channels: int
    warps: int
    stages: int
    splits: int = 1


# A small batch of small images has few rows.
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
ENOUGH_PROGRAMS = 512  # several for each of a GPU's 100 to 150 multiprocessors


def tiles_for(rows: int, filters: int, channels: int, window: int, element_bytes: int) -> list[Tile]:
    """Return the tiles worth trying for a convolution whose window has so many pixels.

    A block of channels is no wider than the channels are, but at least 32 bytes. The tables' channels are for bytes;
    half precision gets half as many, which take the same memory. A sum is split only if each share keeps two blocks or
    more, and the programs are no more than `ENOUGH_PROGRAMS`.
    """
    widest, narrowest = 1 << (channels - 1).bit_length(), 32 // element_bytes
    most = max(16, 1 << (filters - 1).bit_length())
    fit = []
    for tile in FEW_ROWS if rows <= FEW else MANY_ROWS:
        deep = max(narrowest, min(tile.channels // element_bytes, widest))
        fitting = replace(tile, filters=min(tile.filters, most), channels=deep)
        blocks = window * -(-channels // deep)
        programs = -(-rows // fitting.rows) * -(-filters // fitting.filters) * fitting.splits
        if fitting.splits == 1 or (blocks >= 2 * fitting.splits and programs <= ENOUGH_PROGRAMS):
            fit.append(fitting)
    return list(dict.fromkeys(fit))


_found: dict[Hashable, Tile] = {}  # of this process: a network has many layers of one shape, and others have the same


def fastest(launch: Callable[[Tile], None], tiles: list[Tile], *, of: Hashable) -> Tile:
    """Return the tile whose launches take the least device time; the first tile while a graph is being captured.

    `of` says what the launch multiplies: for the same product, the earlier choice is returned. Raise Unsupported if no
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
            if type(error).__name__ != "OutOfResources":  # Triton's, for a tile that needs more shared memory
                raise
    if not times:
        raise Unsupported("no tile of the fused kernels fits into this device's shared memory", "never")
    _found[of] = min(times, key=times.__getitem__)
    return _found[of]


def _time_s(run: Callable[[], None], times: int = 10) -> float:
    """Return the seconds of one run, of several in one CUDA graph: their launches would take longer than the runs."""
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
