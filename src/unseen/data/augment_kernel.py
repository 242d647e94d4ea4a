"""Augmentation on a GPU in one piece: it reads the stored bytes and writes a network's input, with nothing in between.

The plain version in `data/augment.py` is the reference and what a CPU runs. It makes some fifty passes over a batch of floats; this
one makes one over the bytes for the mean luma, which contrast needs, and one for all the rest. Both draw the same numbers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from unseen.data.augment import Augment
from unseen.ops.colour import blend_map
from unseen.ops.geometry import source_map

__all__ = ["augmented_bytes"]

_PIXELS = 1024  # of one program
_FIELDS = {1: 10, 3: 20}  # numbers drawn for an image, by its channels


@torch.no_grad()
def augmented_bytes(images: Tensor, y: Tensor, mean: Tensor, std: Tensor, augment: Augment, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """What `augment` and then `normalise` make of `images` / 255, and the masks that move with them.

    `images` are uint8 [n, c, h, w] on a GPU, channels last, c being 1 or 3; `mean` and `std` have a number per channel. Equal to the
    plain version within 1e-3, except where rounding takes a hue or a mask's nearest pixel to the other side.
    """
    n, channels, height, width = images.shape
    hue, gray = (channels == 3 and knob > 0 for knob in (augment.hue, augment.grayscale))
    drawn = _drawn(augment, images, rng) if augment.does_something else mean
    x = torch.empty((n, height, width, channels), device=images.device)
    programs = triton.cdiv(height * width, _PIXELS)
    grid, size = (n, programs), (height, width, programs)
    luma = torch.empty(grid, device=images.device)
    knobs = {"C": channels, "FIELDS": _FIELDS[channels], "PIXELS": _PIXELS, "MOVES": augment.moves}
    if augment.blends:
        _mean_luma[grid](images, drawn, luma, *size, **knobs)
    last = {"PROGRAMS": triton.next_power_of_2(programs), "BLENDS": augment.blends, "HUE": hue, "GRAY": gray}
    _augmented[grid](images, drawn, luma, mean, std, x, *size, **knobs, **last)
    if y.ndim == 4 and augment.moves:
        masks, y = y.contiguous(), torch.empty_like(y, memory_format=torch.contiguous_format)
        _moved_masks[grid](masks, drawn, y, height, width, S=masks.shape[1], FIELDS=_FIELDS[channels], PIXELS=_PIXELS)
    return x.permute(0, 3, 1, 2), y


def _drawn(augment: Augment, images: Tensor, rng: torch.Generator) -> Tensor:
    """A row for each image: its `source_map`, its `blend_map`, the turn of its hue, and whether it is gray."""
    n, channels, height, width = images.shape
    of = augment.draw(n, (height, width), rng)
    moves = source_map(of.box, of.mirrored, of.degrees, of.zoom, (height, width))
    blend = blend_map(of.brightness, of.contrast, of.saturation, channels)
    together = torch.cat([moves.flatten(1), blend.flatten(1), of.hue[:, None], of.gray[:, None]], 1)
    return together.float().to(images.device, non_blocking=True)


@triton.jit
def _reflected(place, size):
    """A place in pixels brought inside the image by mirroring at its outer edges, as `grid_sample` does it."""
    from_edge = tl.abs(place + 0.5)
    turns = tl.floor(from_edge / size)
    rest = from_edge - turns * size
    odd = turns - 2 * tl.floor(turns / 2)
    inside = tl.where(odd == 0, rest, size - rest) - 0.5
    return tl.minimum(tl.maximum(inside, 0.0), size - 1.0)


@triton.jit
def _source(drawn, pixel, height, width):
    """Where a pixel of the result lies in the source, in pixels: column and row."""
    column, row = (2 * (pixel % width) + 1) / width - 1, (2 * (pixel // width) + 1) / height - 1
    across = row * tl.load(drawn + 1) + (column * tl.load(drawn) + tl.load(drawn + 2))
    down = row * tl.load(drawn + 4) + (column * tl.load(drawn + 3) + tl.load(drawn + 5))
    return _reflected(((across + 1) * width - 1) / 2, width), _reflected(((down + 1) * height - 1) / 2, height)


@triton.jit
def _sampled(image, channel, column, row, inside, height, width, C: tl.constexpr):
    """A channel between four pixels, 0 to 1."""
    left, top = tl.floor(column), tl.floor(row)
    right_part, low_part = column - left, row - top
    at = (top.to(tl.int32) * width + left.to(tl.int32)) * C + channel
    has_right, has_low = inside & (left + 1 < width), inside & (top + 1 < height)
    a = tl.load(image + at, inside, 0).to(tl.float32)
    b = tl.load(image + at + C, has_right, 0).to(tl.float32)
    c = tl.load(image + at + width * C, has_low, 0).to(tl.float32)
    d = tl.load(image + at + width * C + C, has_right & has_low, 0).to(tl.float32)
    upper, lower = a + (b - a) * right_part, c + (d - c) * right_part
    return tl.minimum(tl.maximum((upper + (lower - upper) * low_part) / 255, 0.0), 1.0)


@triton.jit
def _read(image, drawn, pixel, inside, height, width, C: tl.constexpr, MOVES: tl.constexpr):
    """The pixels of the moved image: one value where there is one channel, else red, green and blue."""
    if MOVES:
        column, row = _source(drawn, pixel, height, width)
        red = _sampled(image, 0, column, row, inside, height, width, C)
        if C == 3:
            green = _sampled(image, 1, column, row, inside, height, width, C)
            blue = _sampled(image, 2, column, row, inside, height, width, C)
            return red, green, blue
        return red, red, red
    red = tl.load(image + pixel * C, inside, 0).to(tl.float32) / 255
    if C == 3:
        green = tl.load(image + pixel * C + 1, inside, 0).to(tl.float32) / 255
        blue = tl.load(image + pixel * C + 2, inside, 0).to(tl.float32) / 255
        return red, green, blue
    return red, red, red


@triton.jit
def _mean_luma(
    images, drawn, luma, height, width, programs, C: tl.constexpr, FIELDS: tl.constexpr, PIXELS: tl.constexpr, MOVES: tl.constexpr
):  # fmt: skip
    """What this program's pixels add to the sample's weighted mean luma (the last column of `blend_map`)."""
    sample, block = tl.program_id(0), tl.program_id(1)
    drawn += sample * FIELDS
    pixel = block * PIXELS + tl.arange(0, PIXELS)
    inside = pixel < height * width
    image = images + sample.to(tl.int64) * height * width * C
    red, green, blue = _read(image, drawn, pixel, inside, height, width, C, MOVES)
    weighed = red * tl.load(drawn + 6 + C)
    if C == 3:
        weighed += green * tl.load(drawn + 6 + 7) + blue * tl.load(drawn + 6 + 11)
    tl.store(luma + sample * programs + block, tl.sum(tl.where(inside, weighed, 0.0)) / (height * width))


@triton.jit
def _turned(red, green, blue, turns):
    """`ops/colour.py: turned_hue`."""
    top, low = tl.maximum(tl.maximum(red, green), blue), tl.minimum(tl.minimum(red, green), blue)
    chroma = top - low
    per_chroma = 1 / tl.maximum(chroma, 1e-12)
    near_red, near_green, near_blue = (green - blue) * per_chroma, (blue - red) * per_chroma + 2, (red - green) * per_chroma + 4
    hue = tl.where(top == red, near_red, tl.where(top == green, near_green, near_blue)) + 6 * turns
    hue = hue - 6 * tl.floor(hue / 6)
    red = tl.minimum(tl.maximum(tl.abs(hue - 3) - 1, 0.0), 1.0) * chroma + low
    green = tl.minimum(tl.maximum(2 - tl.abs(hue - 2), 0.0), 1.0) * chroma + low
    blue = tl.minimum(tl.maximum(2 - tl.abs(hue - 4), 0.0), 1.0) * chroma + low
    return red, green, blue


@triton.jit
def _blended(red, green, blue, drawn, channel, offset, C: tl.constexpr):
    """One row of the sample's `blend_map`."""
    row = drawn + 6 + channel * (C + 1)
    value = red * tl.load(row) + offset
    if C == 3:
        value += green * tl.load(row + 1) + blue * tl.load(row + 2)
    return tl.minimum(tl.maximum(value, 0.0), 1.0)


@triton.jit
def _augmented(
    images, drawn, luma, mean, std, x, height, width, programs,
    C: tl.constexpr, FIELDS: tl.constexpr, PIXELS: tl.constexpr, MOVES: tl.constexpr,
    PROGRAMS: tl.constexpr, BLENDS: tl.constexpr, HUE: tl.constexpr, GRAY: tl.constexpr,
):  # fmt: skip
    """Moved, blended, turned in hue, turned gray, normalised."""
    sample, block = tl.program_id(0), tl.program_id(1)
    drawn += sample * FIELDS
    pixel = block * PIXELS + tl.arange(0, PIXELS)
    inside = pixel < height * width
    start = sample.to(tl.int64) * height * width * C
    red, green, blue = _read(images + start, drawn, pixel, inside, height, width, C, MOVES)
    if BLENDS:
        part = tl.arange(0, PROGRAMS)
        offset = tl.sum(tl.load(luma + sample * programs + part, part < programs, 0))
        if C == 3:
            new_red = _blended(red, green, blue, drawn, 0, offset, C)
            new_green = _blended(red, green, blue, drawn, 1, offset, C)
            blue = _blended(red, green, blue, drawn, 2, offset, C)
            red, green = new_red, new_green
        else:
            red = _blended(red, red, red, drawn, 0, offset, C)
    if HUE:
        red, green, blue = _turned(red, green, blue, tl.load(drawn + FIELDS - 2))
    if GRAY:
        gray = tl.load(drawn + FIELDS - 1) > 0
        value = tl.minimum(0.299 * red + 0.587 * green + 0.114 * blue, 1.0)
        red, green, blue = tl.where(gray, value, red), tl.where(gray, value, green), tl.where(gray, value, blue)
    to = x + start + pixel * C
    tl.store(to, (red - tl.load(mean)) / tl.load(std), inside)
    if C == 3:
        tl.store(to + 1, (green - tl.load(mean + 1)) / tl.load(std + 1), inside)
        tl.store(to + 2, (blue - tl.load(mean + 2)) / tl.load(std + 2), inside)


@triton.jit
def _moved_masks(masks, drawn, moved, height, width, S: tl.constexpr, FIELDS: tl.constexpr, PIXELS: tl.constexpr):
    """Each structure's mask, read at the nearest pixel."""
    sample = tl.program_id(0)
    pixel = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)
    inside = pixel < height * width
    column, row = _source(drawn + sample * FIELDS, pixel, height, width)
    nearest = tl.floor(row + 0.5).to(tl.int32) * width + tl.floor(column + 0.5).to(tl.int32)
    for structure in range(S):
        start = (sample.to(tl.int64) * S + structure) * height * width
        tl.store(moved + start + pixel, tl.load(masks + start + nearest, inside, 0), inside)
