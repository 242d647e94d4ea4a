"""One image file to bytes: every kind of file has a defined answer."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from unseen.data.reading.decode import decode_rgb, read_mask
from unseen.errors import BadInput


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def decoded(image: Image.Image, kind: str = "PNG", size: int = 8, **options: object) -> np.ndarray:
    return decode_rgb(encoded(image, kind, **options), "x", size)[0]


def test_rgb_keeps_every_byte_at_its_own_size() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    np.testing.assert_array_equal(decoded(Image.fromarray(pixels)), pixels.transpose(2, 0, 1))


def test_the_whole_image_is_squeezed_to_the_square() -> None:
    ramp = np.tile(np.arange(16, dtype=np.uint8) * 10, (8, 1))  # 16 wide, 8 high
    small = decoded(Image.fromarray(ramp), size=8)
    # Column j stands for columns 2j and 2j + 1, whose mean is 20 j + 5; the borders see fewer neighbours.
    np.testing.assert_array_equal(small[0, :, 1:-1], np.tile(np.arange(1, 7) * 20 + 5, (8, 1)))


def test_grey_gets_three_equal_channels() -> None:
    out = decoded(Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)))
    assert (out[0] == out[1]).all() and (out[0] == out[2]).all() and out[0, 7, 7] == 63


def test_palette_gives_its_colours() -> None:
    image = Image.new("P", (8, 8), 1)
    image.putpalette([0, 0, 0, 10, 200, 30])
    assert decoded(image)[:, 0, 0].tolist() == [10, 200, 30]


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparency_lies_over_white(mode: str) -> None:
    colour = {"RGBA": (0, 0, 0), "LA": (0,)}[mode]
    assert decoded(Image.new(mode, (8, 8), (*colour, 0)))[:, 0, 0].tolist() == [255, 255, 255]
    assert decoded(Image.new(mode, (8, 8), (*colour, 255)))[:, 0, 0].tolist() == [0, 0, 0]
    assert decoded(Image.new(mode, (8, 8), (*colour, 51)))[0, 0, 0] == 204  # a fifth of black over white


def test_a_transparent_palette_colour_becomes_white() -> None:
    image = Image.new("P", (8, 8), 1)
    image.putpalette([0, 0, 0, 10, 200, 30])
    assert decoded(image, transparency=1)[:, 0, 0].tolist() == [255, 255, 255]


def test_cmyk_becomes_rgb() -> None:
    out = decoded(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "TIFF")  # no cyan: red
    assert out[:, 0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize(("value", "byte"), [(0, 0), (257, 1), (25700, 100), (65535, 255), (4095, 16)])
def test_sixteen_bits_are_scaled_by_the_full_range(value: int, byte: int) -> None:
    image = Image.fromarray(np.full((8, 8), value, dtype=np.uint16))
    assert (decoded(image) == byte).all()
    assert (decoded(image, "TIFF") == byte).all()


def test_floats_are_refused() -> None:
    with pytest.raises(BadInput, match="floating-point"):
        decoded(Image.fromarray(np.ones((8, 8), dtype=np.float32)), "TIFF")


def test_exif_rotation_is_applied() -> None:
    image = Image.new("RGB", (16, 8), "black")
    image.paste("white", (0, 0, 8, 8))  # the left half
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: rotate a quarter clockwise, so left becomes top
    out = decoded(image, "JPEG", exif=exif, quality=95)
    assert out[0, :3].mean() > 240 and out[0, 5:].mean() < 15
    assert decoded(image, "JPEG", quality=95)[0, :, :3].mean() > 240


def test_truncated_files_are_refused_by_name() -> None:
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8))
    for kind in ("PNG", "JPEG"):
        data = encoded(image, kind)
        with pytest.raises(BadInput, match=r"broken\.file cannot be read"):
            decode_rgb(data[: len(data) // 2], "broken.file", 8)


def test_large_jpegs_are_decoded_small_and_look_the_same() -> None:
    ramp = np.linspace(0, 255, 512).astype(np.uint8)
    image = Image.fromarray(np.stack([np.tile(ramp, (512, 1))] * 3, axis=-1))
    out, original = decode_rgb(encoded(image, "JPEG", quality=95), "x", 32)
    assert (original.width, original.height) == (512, 512)
    assert abs(out[0].astype(int) - np.asarray(image.resize((32, 32), Image.Resampling.BOX))[..., 0]).max() <= 3


@settings(max_examples=60, deadline=None)
@given(
    st.binary(max_size=200), st.sampled_from([b"", b"\xff\xd8\xff\xe0", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"II*\0", b"BM", b"P6 8 8 255 "])
)
def test_any_bytes_are_an_image_or_bad_input(tail: bytes, head: bytes) -> None:
    try:
        assert decode_rgb(head + tail, "x", 4)[0].shape == (3, 4, 4)
    except BadInput as bad:
        assert "x" in str(bad)


def mask_of(image: Image.Image, kind: str = "PNG") -> list[int]:
    return sorted(set(read_mask(encoded(image, kind), "m")[0].ravel().tolist()))


def test_masks_keep_their_values() -> None:
    values = np.array([[0, 1], [2, 255]], dtype=np.uint8)
    assert mask_of(Image.fromarray(values)) == [0, 1, 2, 255]
    assert mask_of(Image.fromarray(np.stack([values] * 3, axis=-1))) == [0, 1, 2, 255]
    assert mask_of(Image.fromarray(values.astype(np.uint16))) == [0, 1, 2, 255]
    assert mask_of(Image.fromarray(np.array([[0, 65535]], dtype=np.uint16))) == [0, 255]
    assert mask_of(Image.fromarray(np.array([[True, False]]))) == [0, 255]


def test_palette_masks_give_greys_or_else_numbers() -> None:
    image = Image.new("P", (2, 2), 1)
    image.putpalette([255, 0, 0, 0, 255, 0])
    assert mask_of(image) == [1]  # coloured labels: the number counts
    image.putpalette([0, 0, 0, 255, 255, 255])
    assert mask_of(image) == [255]


def test_colour_masks_and_large_values_are_refused() -> None:
    with pytest.raises(BadInput, match="in colours"):
        mask_of(Image.new("RGB", (2, 2), (255, 0, 0)))
    with pytest.raises(BadInput, match="300"):
        mask_of(Image.fromarray(np.array([[0, 300]], dtype=np.uint16)))
