# mypy: disable-error-code="no-untyped-def"
"""Triton kernels of whole layers: images to squares, convolution with all that follows it, pooling (CUDA).

Activations are (N, H, W, C) in bytes or in half precision, channels innermost. So a convolution is a matrix product
whose rows are gathered: row m is an output pixel, column k a filter, and the sum runs over window and channels. All
that follows a convolution (scale, bias, the other branch of a residual, ReLU, rounding) works on its sums, in FP32, so
that nothing wider than an activation is written. Bytes are symmetric, -127 to 127; halves are rounded up. Values that
differ from layer to layer are no constants of a kernel, so that a network needs a dozen kernels and not one a layer.
"""

from __future__ import annotations

import triton
import triton.language as tl


# Triton would compile again for each of these arguments that is 1 or a multiple of 16.
@triton.jit(
    do_not_specialize=[
        *("rows", "height", "width", "out_height", "out_width", "window_height", "window_width", "stride", "pad"),
        *("other_scale", "least", "most", "worth"),
    ]
)
def convolve(
    images,  # (N, H, W, pitch)
    weights,  # (K, R, S, C)
    scales,  # for bytes only, float32 (K,): a sum's worth in steps of the output
    biases,  # float32 (K,), in steps of the output
    other,  # (N, P, Q, K), added before ReLU; `images` if nothing is added
    out,  # (N, P, Q, K)
    wide,  # float16 (N, P, Q, K): the result before it is rounded to bytes; `out` if it is not wanted
    partial,  # for SPLITS > 1, in the sums' type (tiles, SPLITS, BLOCK_M, BLOCK_K): every program's share of a sum
    arrived,  # int32 (tiles,), zeros: how many programs of a tile have written their share
    rows,  # N * P * Q
    height,
    width,
    channels,  # C: how many the window takes of each pixel, and of the pixels after it if C > pitch
    out_height,
    out_width,
    filters,
    other_scale,
    least,  # of the result: 0 with ReLU
    most,
    worth,  # of a step of the output, for `wide`
    pitch,  # elements from one pixel to the next
    window_height,  # R
    window_width,  # S
    stride,
    pad,
    POINTWISE: tl.constexpr,  # noqa: N803 - whether the window is one pixel
    PADS: tl.constexpr,  # noqa: N803 - whether windows reach beyond the image
    WHOLE_BLOCKS: tl.constexpr,  # noqa: N803 - whether BLOCK_C divides C
    ADDS: tl.constexpr,  # noqa: N803
    OF_BYTES: tl.constexpr,  # noqa: N803
    TO_BYTES: tl.constexpr,  # noqa: N803
    WIDENS: tl.constexpr,  # noqa: N803
    BLOCK_M: tl.constexpr,  # noqa: N803
    BLOCK_K: tl.constexpr,  # noqa: N803
    BLOCK_C: tl.constexpr,  # noqa: N803
    SPLITS: tl.constexpr,  # noqa: N803
):
    """Convolve, with what follows: one program computes one tile of rows and filters, or SPLITS programs do.

    Where tiles are few, each sum is split over several programs. The last to arrive adds up the shares and finishes.
    """
    tiles_of_filters = tl.cdiv(filters, BLOCK_K)
    tile_m = tl.program_id(0) // tiles_of_filters  # neighbours share rows, the larger operand
    tile_k = tl.program_id(0) % tiles_of_filters
    row = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    is_row = row < rows
    x = row % out_width
    y = (row // out_width) % out_height
    image = (row // (out_width * out_height)).to(tl.int64)
    top, left = y * stride - pad, x * stride - pad
    corner = images + ((image * height + top) * width + left) * pitch
    filter_ = tile_k * BLOCK_K + tl.arange(0, BLOCK_K)
    is_filter = filter_ < filters
    of_filter = weights + filter_.to(tl.int64) * (window_height * window_width * channels)
    block = tl.arange(0, BLOCK_C)

    blocks = tl.cdiv(channels, BLOCK_C)
    sums = tl.zeros((BLOCK_M, BLOCK_K), dtype=tl.int32 if OF_BYTES else tl.float32)
    steps = window_height * window_width * blocks
    share = tl.cdiv(steps, SPLITS)
    for step in range(tl.program_id(1) * share, tl.minimum(tl.program_id(1) * share + share, steps)):
        is_image = is_row
        if POINTWISE:
            channel = step * BLOCK_C + block
            pixel, weight = corner, of_filter
        else:
            place = step // blocks
            channel = (step % blocks) * BLOCK_C + block
            down, right = place // window_width, place % window_width
            if PADS:
                in_y = (top + down >= 0) & (top + down < height)
                is_image = is_row & in_y & (left + right >= 0) & (left + right < width)
            pixel = corner + (down * width + right) * pitch
            weight = of_filter + place * channels
        if WHOLE_BLOCKS:
            a = tl.load(pixel[:, None] + channel[None, :], mask=is_image[:, None], other=0)
            b = tl.load(weight[None, :] + channel[:, None], mask=is_filter[None, :], other=0)
        else:
            inside = channel < channels
            a = tl.load(pixel[:, None] + channel[None, :], mask=is_image[:, None] & inside[None, :], other=0)
            b = tl.load(weight[None, :] + channel[:, None], mask=is_filter[None, :] & inside[:, None], other=0)
        sums = tl.dot(a, b, sums, out_dtype=tl.int32 if OF_BYTES else tl.float32)

    is_last = True
    if SPLITS > 1:
        within = tl.arange(0, BLOCK_M)[:, None] * BLOCK_K + tl.arange(0, BLOCK_K)[None, :]
        of_tile = partial + tl.program_id(0).to(tl.int64) * (SPLITS * BLOCK_M * BLOCK_K) + within
        tl.store(of_tile + tl.program_id(1) * (BLOCK_M * BLOCK_K), sums)
        tl.debug_barrier()  # every thread has written before the counter says so
        is_last = tl.atomic_add(arrived + tl.program_id(0), 1) == SPLITS - 1
        if is_last:
            sums = tl.zeros((BLOCK_M, BLOCK_K), dtype=tl.int32 if OF_BYTES else tl.float32)
            for split in range(SPLITS):  # always in this order, so that a result is the same every time
                sums += tl.load(of_tile + split * (BLOCK_M * BLOCK_K), cache_modifier=".cg")
            tl.store(arrived + tl.program_id(0), 0)  # for the next launch
    if is_last:
        value = sums.to(tl.float32)
        if OF_BYTES:
            value *= tl.load(scales + filter_, mask=is_filter, other=0.0)[None, :]
        value += tl.load(biases + filter_, mask=is_filter, other=0.0)[None, :]
        to = row.to(tl.int64)[:, None] * filters + filter_[None, :]
        is_out = is_row[:, None] & is_filter[None, :]
        if ADDS:
            value += tl.load(other + to, mask=is_out, other=0).to(tl.float32) * other_scale
        if WIDENS:
            exact = tl.minimum(tl.maximum(value, least) * worth, 65504.0)
            tl.store(wide + to, exact.to(tl.float16), mask=is_out)
        if TO_BYTES:
            value = tl.floor(value + 0.5)
        tl.store(out + to, tl.minimum(tl.maximum(value, least), most).to(out.dtype.element_ty), mask=is_out)


@triton.jit(do_not_specialize=["elements"])
def to_squares(
    images,  # (N, 3, HEIGHT, WIDTH) in any floating type, with these strides
    out,  # (N, ROWS, COLUMNS, CHANNELS), fresh memory: every element is written
    elements,
    stride_n,
    stride_c,
    stride_y,
    stride_x,
    HEIGHT: tl.constexpr,  # noqa: N803
    WIDTH: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    COLUMNS: tl.constexpr,  # noqa: N803
    CHANNELS: tl.constexpr,  # noqa: N803
    FOLD: tl.constexpr,  # noqa: N803 - squares of FOLD x FOLD pixels become channels
    PAD: tl.constexpr,  # noqa: N803 - zeros above and to the left
    BLOCK: tl.constexpr,  # noqa: N803
):
    """Write images in half precision with squares of pixels as channels and an edge of zeros."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_out = at < elements
    channel = (at % CHANNELS).to(tl.int32)
    rest = at // CHANNELS
    column = (rest % COLUMNS).to(tl.int32)
    row = ((rest // COLUMNS) % ROWS).to(tl.int32)
    image = rest // (COLUMNS * ROWS)
    colour, square = channel % 3, channel // 3
    y = row * FOLD + square // FOLD - PAD
    x = column * FOLD + square % FOLD - PAD
    is_pixel = is_out & (square < FOLD * FOLD) & (y >= 0) & (y < HEIGHT) & (x >= 0) & (x < WIDTH)
    value = tl.load(
        images + image * stride_n + colour * stride_c + y * stride_y + x * stride_x, mask=is_pixel, other=0.0
    )
    tl.store(out + at, value.to(out.dtype.element_ty), mask=is_out)


@triton.jit(do_not_specialize=["elements", "height", "width", "out_height", "out_width"])
def max_pool(
    images,  # (N, H, W, C)
    out,  # (N, P, Q, C)
    elements,  # of `out`
    height,
    width,
    channels,
    out_height,
    out_width,
    WINDOW: tl.constexpr,  # noqa: N803
    STRIDE: tl.constexpr,  # noqa: N803
    PAD: tl.constexpr,  # noqa: N803
    LEAST: tl.constexpr,  # noqa: N803 - the type's smallest value, or less
    BLOCK: tl.constexpr,  # noqa: N803
):
    """Write the largest value of each window."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_out = at < elements
    channel = at % channels
    rest = at // channels
    x = (rest % out_width).to(tl.int32) * STRIDE - PAD
    y = ((rest // out_width) % out_height).to(tl.int32) * STRIDE - PAD
    image = rest // (out_width * out_height)
    most = tl.full((BLOCK,), LEAST, dtype=images.dtype.element_ty)
    for down in tl.static_range(WINDOW):
        for right in tl.static_range(WINDOW):
            inside = is_out & (y + down >= 0) & (y + down < height) & (x + right >= 0) & (x + right < width)
            pixel = ((image * height + y + down) * width + x + right) * channels + channel
            most = tl.maximum(most, tl.load(images + pixel, mask=inside, other=LEAST))
    tl.store(out + at, most, mask=is_out)


@triton.jit
def mean(
    images,  # (N, PIXELS, C)
    out,  # (N, C)
    channels,
    scale,  # the factor of a sum
    PIXELS: tl.constexpr,  # noqa: N803
    OF_BYTES: tl.constexpr,  # noqa: N803
    TO_BYTES: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    """Write the mean of each channel over an image's pixels."""
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < channels
    image = tl.program_id(0).to(tl.int64)
    total = tl.zeros((BLOCK,), dtype=tl.int32 if OF_BYTES else tl.float32)
    for pixel in range(PIXELS):
        value = tl.load(images + (image * PIXELS + pixel) * channels + channel, mask=inside, other=0)
        total += value.to(tl.int32 if OF_BYTES else tl.float32)
    value = total.to(tl.float32) * scale
    if TO_BYTES:
        value = tl.minimum(tl.maximum(tl.floor(value + 0.5), -127.0), 127.0)
    tl.store(out + image * channels + channel, value.to(out.dtype.element_ty), mask=inside)
