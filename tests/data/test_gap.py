"""The domain-gap matrix: its form, what it sees, and how it is shown."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from rich.console import Console

from unseen.data.checks.gap import gap_matrix, picture, random_features, render
from unseen.data.domain import IMAGENET, UNIT, Domain, DomainDataset
from unseen.errors import BadInput
from unseen.ops.style import gram, style_gap
from unseen.task import Classification


def textured(name: str, *, samples: int = 12, blur: int = 1, shift: int = 0, seed: int = 0) -> Domain:
    """Noise, averaged over blur x blur pixels: the coarser it is, the more another style."""
    rng = np.random.default_rng(seed)
    noise = torch.from_numpy(rng.normal(size=(samples, 3, 32, 32)))
    smooth = F.avg_pool2d(F.pad(noise, (0, blur - 1, 0, blur - 1), mode="circular"), blur, stride=1) * blur
    images = (128 + shift + 40 * smooth).clamp(0, 255).byte().numpy()
    return Domain(name, images, np.zeros(samples, dtype=np.int64))


def dataset_of(*domains: Domain) -> DomainDataset:
    return DomainDataset("textures", Classification(("a",)), domains, pixels=UNIT)


def test_symmetric_with_zero_diagonal_and_the_names_in_order():
    names, gaps = gap_matrix(dataset_of(textured("fine"), textured("coarse", blur=3), textured("bright", shift=60)))
    assert names == ["fine", "coarse", "bright"]
    assert torch.equal(gaps, gaps.T)
    assert gaps.diagonal().tolist() == [0, 0, 0]
    assert bool((gaps <= 1).all())


def test_another_style_is_farther_than_another_draw_of_the_same_style():
    fine, same = textured("fine", samples=40), textured("same", samples=40, seed=1)
    texture, brightness = textured("coarse", samples=40, blur=3, seed=2), textured("bright", samples=40, shift=60, seed=3)
    _, gaps = gap_matrix(dataset_of(fine, same, texture, brightness))
    assert gaps[0, 2] > 5 * gaps[0, 1]
    assert gaps[0, 3] > 5 * gaps[0, 1]


def test_the_same_seed_gives_the_same_matrix_and_another_one_nearly_so():
    dataset = dataset_of(textured("fine", samples=40), textured("coarse", samples=40, blur=3))
    first, again, other = (gap_matrix(dataset, per_domain=20, seed=seed)[1] for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert abs(first[0, 1] - other[0, 1]) < 0.2


def test_equals_the_distance_of_mean_gram_matrices():
    """With the pixels themselves as features, computed image by image."""
    domains = (textured("fine", samples=20), textured("coarse", samples=9, blur=3))
    dataset = DomainDataset("textures", Classification(("a",)), domains, pixels=IMAGENET)
    _, gaps = gap_matrix(dataset, features=lambda images: images)
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (IMAGENET.mean, IMAGENET.std))
    styles = []
    for domain in domains:
        inputs = [(torch.from_numpy(image)[None].float() / 255 - mean) / std for image in domain.images]
        styles.append(torch.stack([gram(x.double())[0] for x in inputs]).mean(0))
    assert float(gaps[0, 1]) == pytest.approx(float(style_gap(*styles)), rel=1e-4)


def test_random_filters_look_at_small_images_as_they_are_and_shrink_large_ones():
    features = random_features(3)
    assert features(torch.zeros(2, 3, 32, 32)).shape == (2, 128, 16, 16)
    assert features(torch.zeros(1, 3, 224, 224)).shape == (1, 128, 56, 56)
    assert torch.equal(features(torch.ones(1, 3, 8, 8)), random_features(3)(torch.ones(1, 3, 8, 8)))


def test_nothing_to_compare_is_bad_input():
    empty = Domain("empty", np.zeros((0, 3, 32, 32), dtype=np.uint8), np.zeros(0, dtype=np.int64))
    with pytest.raises(BadInput, match=r"(?s)'empty' has no samples.*per_domain is 0"):
        gap_matrix(dataset_of(textured("fine"), empty), per_domain=0)


def test_the_table_names_every_domain_and_the_mean_gap():
    console = Console(file=io.StringIO(), width=100)
    render(console, ["a", "b", "c"], torch.tensor([[0, 0.2, 0.4], [0.2, 0, 0.6], [0.4, 0.6, 0]]))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "0.300" in text and "0.400" in text and "0.500" in text


@pytest.mark.parametrize(("ending", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_the_picture_is_written(tmp_path: Path, ending: str, start: bytes):
    pytest.importorskip("matplotlib")
    path = tmp_path / "new" / f"gap.{ending}"
    picture(path, ["a", "b"], torch.tensor([[0, 0.2], [0.2, 0]]))
    assert path.read_bytes().startswith(start)


def test_a_picture_of_another_kind_is_bad_input(tmp_path: Path):
    with pytest.raises(BadInput, match=r"gap\.bmp.*\.png or \.svg"):
        picture(tmp_path / "gap.bmp", ["a"], torch.zeros(1, 1))


def test_without_matplotlib_a_picture_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(BadInput, match=r"unseen\[report\]"):
        picture(tmp_path / "gap.png", ["a"], torch.zeros(1, 1))
