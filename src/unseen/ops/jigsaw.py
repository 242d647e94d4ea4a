"""Jigsaw puzzles of images: the permutations, and tiles put in another order. After Noroozi and Favaro, ECCV 2016."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

__all__ = ["greyed_tiles", "rearranged", "tile_orders"]

_CANDIDATES = 4096
_STRIDE = 2654435761  # a prime: ranks i * stride mod n! meet no permutation twice before all were met
_LUMA = (0.299, 0.587, 0.114)  # what red, green and blue add to it (Rec. 601)


@functools.lru_cache(maxsize=8)
def tile_orders(tiles: int, number: int) -> Tensor:
    """The order that is kept, then `number` others: [number + 1, tiles], each next one far from those before it.

    Of some thousand candidates the next one has the largest smallest Hamming distance to those chosen, then the largest sum of
    distances. No generator draws here, so that a class of the puzzle is the same order at every client.

    >>> tile_orders(4, 2).tolist()
    [[0, 1, 2, 3], [1, 0, 3, 2], [2, 3, 0, 1]]
    """
    count = math.factorial(tiles)
    ranks = [i * _STRIDE % count for i in range(1, min(_CANDIDATES, count))]
    candidates = torch.tensor([_unranked(rank, tiles) for rank in ranks])
    chosen = [torch.arange(tiles)]
    least, total = torch.full((len(candidates),), tiles + 1), torch.zeros(len(candidates), dtype=torch.long)
    for _ in range(number):
        distance = (candidates != chosen[-1]).sum(1)
        least, total = torch.minimum(least, distance), total + distance
        chosen.append(candidates[(least * (tiles * number + 1) + total).argmax()])
    return torch.stack(chosen)


def rearranged(x: Tensor, order: Tensor, grid: int) -> Tensor:
    """Images or masks [n, c, h, w] whose tile at place k is what was at place `order[k]`, order [n, grid * grid].

    Where a side does not divide by `grid`, the last pixels stay where they are.

    >>> rearranged(torch.tensor([[[[1, 2, 9], [3, 4, 9]]]]), torch.tensor([[3, 0, 1, 2]]), 2)
    tensor([[[[4, 1, 9],
              [2, 3, 9]]]])
    """
    n, c = x.shape[:2]
    tall, wide = x.shape[2] // grid, x.shape[3] // grid
    inside = x[:, :, : grid * tall, : grid * wide]
    tiles = inside.reshape(n, c, grid, tall, grid, wide).permute(0, 2, 4, 1, 3, 5).reshape(n, grid * grid, c, tall, wide)
    tiles = tiles[torch.arange(n, device=x.device)[:, None], order]
    made = x.clone()
    made[:, :, : grid * tall, : grid * wide] = (
        tiles.view(n, grid, grid, c, tall, wide).permute(0, 3, 1, 4, 2, 5).reshape(n, c, grid * tall, grid * wide)
    )
    return made


def greyed_tiles(x: Tensor, chosen: Tensor, grid: int, darkest: Tensor, brightest: Tensor) -> Tensor:
    """Colour images with the luma in place of the colours of the `chosen` tiles, bool [n, grid * grid].

    `darkest` and `brightest` [1, 3, 1, 1] say what black and full colour are in x, which may be normalised.
    """
    spread = brightest - darkest
    luma = ((x - darkest) / spread * x.new_tensor(_LUMA).view(1, 3, 1, 1)).sum(1, keepdim=True)
    tall, wide = x.shape[2] // grid, x.shape[3] // grid
    where = chosen.view(-1, 1, grid, grid).repeat_interleave(tall, 2).repeat_interleave(wide, 3)
    made = x.clone()
    inside = (slice(None), slice(None), slice(grid * tall), slice(grid * wide))
    made[inside] = torch.where(where, (darkest + spread * luma)[inside], x[inside])
    return made


def _unranked(rank: int, tiles: int) -> list[int]:
    """The permutation of that place in the order of the alphabet."""
    left, order = [*range(tiles)], []
    for size in range(tiles, 0, -1):
        place, rank = divmod(rank, math.factorial(size - 1))
        order.append(left.pop(place))
    return order
