"""How far apart domains look: the domain-gap matrix of FedDAG (Che et al., Fig. 13), by the style distance of Gatys et al.

Of each domain some images are drawn; feature maps give a Gram matrix per image; the mean of these is the domain's style. The gap
of two domains is the distance of their styles on a scale from 0 to 1 (`unseen.ops.style.style_gap`). The paper does not say
which features it takes. The default here needs no weights: one layer of fixed random filters of several sizes, which is enough to
describe texture (Ustyuzhaninov et al., "What does it take to generate natural textures?", ICLR 2017). Gaps by different features,
and of data sets prepared with different pixel statistics, cannot be compared with each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor

from unseen.data.domain import Domain, DomainDataset, Pixels
from unseen.errors import BadInput
from unseen.ops.style import gram, style_gap
from unseen.randomness import generator

__all__ = ["Features", "StyleGaps", "gap_matrix", "gaps_against_chance", "picture", "random_features", "render", "style_of"]

Features = Callable[[Tensor], Tensor]  # images, normalised as a network sees them, to maps [n, channels, height, width]
_KERNELS = (3, 5, 7, 11)  # pixels
_FILTERS = 32  # of each size
_SIDE = 112  # pixels that random filters look at: more costs time and shows noise rather than style
_CHUNK = 16  # images at a time
_PICTURES = (".png", ".svg")


def gap_matrix(
    dataset: DomainDataset, *, per_domain: int = 200, seed: int = 0, features: Features | None = None
) -> tuple[list[str], Tensor]:
    """The names of the domains and the gaps between them: float64, symmetric, zero on the diagonal, from 0 to 1.

    The paper draws 1000 images a client; on PACS 200 give the same gaps within 0.03, in a fifth of the time.
    """
    problems = [f"domain {d.name!r} has no samples; a gap needs at least one" for d in dataset.domains if not len(d)]
    if per_domain < 1:
        problems.append(f"per_domain is {per_domain}; expected at least 1 image")
    if problems:
        raise BadInput(problems)
    look = features or random_features(dataset.channels, seed)
    styles = [style_of(d, dataset.pixels, look, per_domain=per_domain, seed=seed) for d in dataset.domains]
    gaps = torch.zeros(len(styles), len(styles), dtype=torch.float64)
    for i, j in combinations(range(len(styles)), 2):
        gaps[i, j] = gaps[j, i] = style_gap(styles[i], styles[j])
    return list(dataset.names), gaps


def style_of(domain: Domain, pixels: Pixels, features: Features, *, per_domain: int, seed: int) -> Tensor:
    """The mean Gram matrix (float64) of at most `per_domain` images, drawn without replacement."""
    order = torch.randperm(len(domain), generator=generator(seed, "gap", domain.name))[:per_domain].sort().values
    return _style(domain, order, pixels, features)


@dataclass(frozen=True)
class StyleGaps:
    """Gaps between domains, and between two halves of one domain: what the same number of images differ by without another style."""

    between: dict[tuple[str, str], float]
    within: dict[str, float]
    images: int  # of each half

    @property
    def times(self) -> float:
        """How many times farther apart two domains are than two halves of one, on average; infinite where halves do not differ."""
        apart, chance = fmean(self.between.values()), fmean(self.within.values())
        return apart / chance if chance > 0 else float("inf") if apart > 0 else 1.0


def gaps_against_chance(domains: Sequence[Domain], pixels: Pixels, *, per_half: int = 60, seed: int = 0) -> StyleGaps | None:
    """The gap of every two domains beside the gap of two halves of one, all from equally many images. Labels are not read.

    None where a domain has fewer than four images, or there is one domain alone.
    """
    images = min([per_half, *(len(domain) // 2 for domain in domains)])
    if images < 2 or len(domains) < 2:
        return None
    look = random_features(domains[0].images.shape[1], seed)
    halves = {}
    for domain in domains:
        order = torch.randperm(len(domain), generator=generator(seed, "halves", domain.name))[: 2 * images]
        halves[domain.name] = [_style(domain, half.sort().values, pixels, look) for half in order.split(images)]
    within = {name: float(style_gap(*pair)) for name, pair in halves.items()}
    between = {(a, b): float(style_gap(halves[a][0], halves[b][0])) for a, b in combinations(halves, 2)}
    return StyleGaps(between, within, images)


@torch.no_grad()
def _style(domain: Domain, order: Tensor, pixels: Pixels, features: Features) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for rows in torch.split(order, _CHUNK):
        images = torch.from_numpy(np.ascontiguousarray(domain.images[rows.numpy()])).float() / 255
        total = total + gram(features(pixels.normalised(images))).double().sum(0)
    return total / len(order)


def random_features(channels: int, seed: int = 0) -> Features:
    """Absolute responses of fixed random filters of several sizes; large images are shrunk first, by a whole factor.

    Half of the filters have mean zero and see texture alone, the others brightness and colour too. Responses are absolute, not
    cut at zero: a filter that hardly ever responds would count as much as any other, and add noise alone.
    """
    rng = generator(seed, "gap filters", channels)
    filters = [torch.randn(_FILTERS, channels, k, k, generator=rng) for k in _KERNELS]
    for bank in filters:
        bank[::2] -= bank[::2].mean((1, 2, 3), keepdim=True)

    def features(images: Tensor) -> Tensor:
        small = F.avg_pool2d(images, max(1, min(images.shape[2:]) // _SIDE))
        responses = [F.conv2d(small, bank, stride=2, padding=bank.shape[-1] // 2) for bank in filters]
        return torch.cat(responses, dim=1).abs_()

    return features


def render(console: Console, names: Sequence[str], gaps: Tensor) -> None:
    """The matrix as a table, the mean gap to the other domains beside it."""
    table = Table(title="Domain gap (0: one style, 1: nothing in common)")
    table.add_column("")
    for name in [*names, "mean"]:
        table.add_column(name, justify="right")
    others = max(len(names) - 1, 1)
    for name, row in zip(names, gaps.tolist(), strict=True):
        table.add_row(name, *(f"{value:.3f}" for value in row), f"{sum(row) / others:.3f}")
    console.print(table)


def picture(path: Path, names: Sequence[str], gaps: Tensor) -> None:
    """The matrix as a heat map in a PNG or SVG file."""
    if path.suffix.lower() not in _PICTURES:
        raise BadInput(f"a picture as {path.name!r}; expected a name that ends in {' or '.join(_PICTURES)}")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise BadInput("pictures need matplotlib, which is not installed; install it with: pip install 'unseen[report]'") from error
    side = 2 + 0.8 * len(names)
    figure = Figure(figsize=(side + 1, side), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(gaps.numpy(), cmap="viridis", vmin=0)
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right")
    axes.set_yticks(range(len(names)), names)
    middle = float(gaps.max()) / 2
    for row, values in enumerate(gaps.tolist()):
        for column, value in enumerate(values):
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", color="white" if value <= middle else "black")
    figure.colorbar(image, label="domain gap (Gram-matrix style distance)")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
