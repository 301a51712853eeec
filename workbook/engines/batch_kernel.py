# mypy: disable-error-code="no-untyped-def"
"""One Triton kernel (CUDA) that makes a batch: gather by the shuffled order, flip, crop, normalise, scale, write.

As separate operators, the same work takes a dozen launches and passes over the batch. Here each program makes a tile
of one image. The program looks up its sample in the order and draws flip and crop from the sample's position in the
run (Philox, without state). It writes each pixel once, in the type and memory format of the model's input.
"""

from __future__ import annotations

import triton
import triton.language as tl

TILE = 1024  # pixels of one image that one program makes: all of 32x32


@triton.jit
def make_batch(  # noqa: D103 - comments explain the arguments
    source,  # uint8 (N, 3, SIDE, SIDE)
    source_labels,  # int64 (N,)
    order,  # int32 (capacity,), a ring of sample numbers
    step_at,  # int64 scalar: number of the batch in the run
    images,  # out: (B, 3, EDGE, EDGE)
    labels,  # out: int64 (B,)
    capacity,
    seed,
    rank,
    ranks,  # each rank takes a batch of this size in a step
    mean_r,
    mean_g,
    mean_b,
    scale_r,
    scale_g,
    scale_b,
    BATCH: tl.constexpr,  # noqa: N803
    SIDE: tl.constexpr,  # noqa: N803
    EDGE: tl.constexpr,  # noqa: N803
    PAD: tl.constexpr,  # noqa: N803
    FLIP: tl.constexpr,  # noqa: N803
    CHANNELS_LAST: tl.constexpr,  # noqa: N803
    TILE: tl.constexpr,  # noqa: N803
):
    image = tl.program_id(0).to(tl.int64)
    at = tl.load(step_at) * BATCH + image
    sample = tl.load(order + at % capacity).to(tl.int64)
    if tl.program_id(1) == 0:
        tl.store(labels + image, tl.load(source_labels + sample))
    # The remainder maps 2**32 draws to 9 shifts per direction: its bias is under 1e-8.
    drawn = (tl.load(step_at) * ranks + rank) * BATCH + image  # position among the samples of all ranks
    down, right, mirror, _ = tl.randint4x(seed, drawn.to(tl.int32))
    shift_y = (down.to(tl.uint32, bitcast=True) % (2 * PAD + 1)).to(tl.int32) - PAD
    shift_x = (right.to(tl.uint32, bitcast=True) % (2 * PAD + 1)).to(tl.int32) - PAD
    flipped = ((mirror & 1) == 1) & FLIP

    pixel = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = pixel < EDGE * EDGE
    y, x = pixel // EDGE, pixel % EDGE
    base = source + sample * (3 * SIDE * SIDE)
    for channel in tl.static_range(3):
        if channel == 0:
            mean, scale = mean_r, scale_r
        elif channel == 1:
            mean, scale = mean_g, scale_g
        else:
            mean, scale = mean_b, scale_b
        plane = base + channel * SIDE * SIDE
        if EDGE == SIDE:
            value = _grey(plane, y, x, shift_y, shift_x, flipped, inside, SIDE)
        else:  # bilinear with align_corners=False, as in torch.nn.functional.interpolate
            source_y = tl.maximum((y.to(tl.float32) + 0.5) * (SIDE / EDGE) - 0.5, 0.0)
            source_x = tl.maximum((x.to(tl.float32) + 0.5) * (SIDE / EDGE) - 0.5, 0.0)
            top, left = source_y.to(tl.int32), source_x.to(tl.int32)
            part_y, part_x = source_y - top, source_x - left
            bottom, beside = tl.minimum(top + 1, SIDE - 1), tl.minimum(left + 1, SIDE - 1)
            upper = _grey(plane, top, left, shift_y, shift_x, flipped, inside, SIDE) * (1 - part_x)
            upper += _grey(plane, top, beside, shift_y, shift_x, flipped, inside, SIDE) * part_x
            lower = _grey(plane, bottom, left, shift_y, shift_x, flipped, inside, SIDE) * (1 - part_x)
            lower += _grey(plane, bottom, beside, shift_y, shift_x, flipped, inside, SIDE) * part_x
            value = upper * (1 - part_y) + lower * part_y
        if CHANNELS_LAST:
            to = images + (image * (EDGE * EDGE) + pixel) * 3 + channel
        else:
            to = images + (image * 3 + channel) * (EDGE * EDGE) + pixel
        tl.store(to, ((value - mean) * scale).to(images.dtype.element_ty), mask=inside)


@triton.jit
def probe(seen):
    """Write a 1, to show that kernels run at all."""
    tl.store(seen, 1)


@triton.jit
def _grey(plane, y, x, shift_y, shift_x, flipped, inside, SIDE: tl.constexpr):  # noqa: N803
    """Return the float32 grey levels at (y, x) of the flipped and shifted image, black (0) outside the image."""
    y = y + shift_y
    x = tl.where(flipped, SIDE - 1 - x, x) + shift_x
    in_image = inside & (y >= 0) & (y < SIDE) & (x >= 0) & (x < SIDE)
    return tl.load(plane + y * SIDE + x, mask=in_image, other=0).to(tl.float32)
