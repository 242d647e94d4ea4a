"""AugMix's operations against PIL, and its mixture by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch import Tensor

from unseen.ops.augmix import COLOURS, MOVES, Chains, applied, augmix, batch_range, draw_chains

NAMES = [*COLOURS, *MOVES]


def pictures(side: int = 24) -> np.ndarray:
    """A smooth one, a dark one, an even one."""
    y, x = np.mgrid[:side, :side]
    smooth = np.stack([8 * x + 2 * y, 200 - 5 * y, 40 + 3 * (x + y)])
    dark = np.random.default_rng(0).integers(10, 90, (3, side, side))
    return np.stack([smooth, dark, np.full_like(dark, 70)]).clip(0, 255).astype(np.uint8)


def through(name: str, strength: float, sign: float = 1.0, images: np.ndarray | None = None) -> np.ndarray:
    u = torch.tensor(pictures() if images is None else images).double() / 255
    number, rows = NAMES.index(name), len(u)
    made = applied(u, torch.full((rows,), number), torch.full((rows,), strength), torch.full((rows,), sign))
    return made.mul(255).numpy()


def by_pil(change: Callable[[Image.Image], Image.Image]) -> np.ndarray:
    channels = [[np.asarray(change(Image.fromarray(channel))) for channel in image] for image in pictures()]
    return np.stack([np.stack(image) for image in channels]).astype(float)


@pytest.mark.parametrize(
    ("name", "strength", "change", "within"),
    [
        ("autocontrast", 0.3, ImageOps.autocontrast, 1.0),  # PIL rounds down
        ("equalize", 0.3, ImageOps.equalize, 1e-9),
        ("posterize", 0.1, lambda i: ImageOps.posterize(i, 4), 1e-9),
        ("posterize", 0.3, lambda i: ImageOps.posterize(i, 3), 1e-9),
        ("posterize", 0.9, lambda i: ImageOps.posterize(i, 1), 1e-9),
        ("solarize", 0.3, lambda i: ImageOps.solarize(i, 179), 1e-9),
    ],
)
def test_colours_are_pils(name: str, strength: float, change: Callable[[Image.Image], Image.Image], within: float) -> None:
    found, wanted = through(name, strength), by_pil(change)
    assert np.abs(found - wanted).max() <= within and np.abs(wanted - pictures()).max() > 10


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(("name", "matrix"), [("shear_x", (1, 0.15, 0, 0, 1, 0)), ("shear_y", (1, 0, 0, 0.15, 1, 0))])
def test_shears_are_pils_inside_the_image(name: str, matrix: tuple[float, ...], sign: float) -> None:
    signed = tuple(sign * value if value == 0.15 else value for value in matrix)
    wanted = by_pil(lambda i: i.transform(i.size, Image.Transform.AFFINE, signed, Image.Resampling.BILINEAR))
    found = through(name, 0.5, sign)
    assert np.abs(found - wanted)[0, :, 8:16, 8:16].max() <= 1.0 and np.abs(wanted - pictures())[0, :, 8:16, 8:16].max() > 5


def test_a_shift_is_a_third_of_the_image_at_most_and_a_turn_thirty_degrees() -> None:
    smooth = pictures()
    right = through("translate_x", 0.5)  # a sixth of 24 pixels
    down = through("translate_y", 0.5, -1.0)
    np.testing.assert_allclose(right[..., :-4], smooth[..., 4:], atol=1e-4)
    np.testing.assert_allclose(down[:, :, 4:], smooth[:, :, :-4], atol=1e-4)
    turned = through("rotate", 1.0)
    wanted = by_pil(lambda i: i.rotate(30, Image.Resampling.BILINEAR))
    assert np.abs(turned - wanted)[0, :, 9:15, 9:15].max() <= 1.0 and np.abs(wanted - smooth)[0, :, 9:15, 9:15].max() > 5


def test_a_turn_keeps_its_shape_on_an_image_that_is_not_square() -> None:
    wide = np.zeros((1, 1, 16, 32), dtype=np.uint8)
    wide[0, 0, 4:12, 10:22] = 200
    found = through("rotate", 0.5, -1.0, wide)
    wanted = np.asarray(Image.fromarray(wide[0, 0]).rotate(-15, Image.Resampling.BILINEAR)).astype(float)
    assert np.abs(found[0, 0] - wanted)[2:14, 6:26].max() <= 1.5


def test_each_image_has_its_own_operation_and_an_ended_chain_none() -> None:
    u = torch.rand(3, 2, 6, 6)
    made = applied(u, torch.tensor([-1, NAMES.index("solarize"), NAMES.index("translate_x")]), torch.full((3,), 0.3), torch.ones(3))
    assert torch.equal(made[0], u[0]) and torch.equal(made[1], torch.where(u[1] >= 0.7, 1 - u[1], u[1])) and not torch.equal(made[2], u[2])


def test_the_mixture_by_hand_in_any_scale() -> None:
    """(1 - m) x + m (w_1 solarize(x) + w_2 x), where x is normalised."""
    u = torch.rand(2, 3, 4, 4)
    mean, std = torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1), 0.25
    x, low, high = (u - mean) / std, (0 - mean) / std, (1 - mean) / std
    weight, mixed = torch.tensor([[0.3, 0.8], [0.7, 0.2]]), torch.tensor([0.0, 0.6])
    operation = torch.tensor([[NAMES.index("solarize")] * 2 + [-1] * 2])
    made = augmix(x, Chains(operation, torch.full((1, 4), 0.5), torch.ones(1, 4), weight, mixed), low, high)
    inverted = torch.where(u >= 0.5, 1 - u, u)
    wanted = 0.4 * u[1] + 0.6 * (0.8 * inverted[1] + 0.2 * u[1])
    assert torch.equal(made[0], x[0]) and torch.allclose(made[1], (wanted - mean) / std, atol=1e-5)


def test_what_is_drawn() -> None:
    drawn = draw_chains(4000, torch.Generator().manual_seed(0), width=2, depth=3, severity=5.0)
    length = (drawn.operation >= 0).sum(0)
    assert [int((length == k).sum()) for k in (1, 2, 3)] == pytest.approx([8000 / 3] * 3, rel=0.1)
    assert (drawn.operation.diff(dim=0)[drawn.operation[:-1] < 0] <= 0).all(), "a chain that ended does not go on"
    assert set(drawn.operation.unique().tolist()) == set(range(-1, 9)) and set(drawn.sign.unique().tolist()) == {-1.0, 1.0}
    assert (
        float(drawn.strength.min()) >= 0.01
        and float(drawn.strength.max()) <= 0.5
        and float(drawn.strength.mean()) == pytest.approx(0.255, abs=0.01)
    )
    assert torch.allclose(drawn.weight.sum(0), torch.ones(4000)) and float(drawn.weight.var()) == pytest.approx(1 / 12, rel=0.1)
    assert float(drawn.mixed.mean()) == pytest.approx(0.5, abs=0.02) and float(drawn.mixed.var()) == pytest.approx(1 / 12, rel=0.1)
    assert int(draw_chains(500, torch.Generator(), operations="colours").operation.max()) == len(COLOURS) - 1


def test_an_even_batch_stays_as_it_is_and_the_range_is_the_batchs() -> None:
    x = torch.full((3, 2, 5, 5), -1.5)
    made = augmix(x, draw_chains(3, torch.Generator().manual_seed(0), severity=10.0), *batch_range(x))
    assert made.isfinite().all() and torch.allclose(made, x, atol=1e-5)
    some: Tensor = torch.arange(16.0).view(2, 2, 2, 2)
    assert [t.flatten().tolist() for t in batch_range(some)] == [[0, 4], [11, 15]]
