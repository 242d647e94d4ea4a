"""The loss around a trained model (FedDAG Fig. 8), along two random directions scaled filter by filter.

Li, Xu, Taylor, Studer and Goldstein, "Visualizing the loss landscape of neural nets", NeurIPS 2018, Section 4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unseen.data.domain import Samples
from unseen.deploy.finished import FinishedRun
from unseen.figures.drawing import LOSSES, sheet
from unseen.figures.outputs import drawn, normalised
from unseen.randomness import generator
from unseen.state import State

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["filter_direction", "levels_of", "loss_grid", "losses_around", "surface"]


def filter_direction(state: State, names: set[str], rng: torch.Generator) -> State:
    """A random direction whose filters have the norms of the weights' own; biases and norms (one dimension) stay put."""
    direction = {}
    for name, weight in state.items():
        step = torch.zeros_like(weight)
        if name in names and weight.ndim > 1:
            step = torch.randn(weight.shape, generator=rng)
            over = tuple(range(1, weight.ndim))
            length, own = (tensor.square().sum(over, keepdim=True).sqrt() for tensor in (step, weight))
            step = step * own / length.clamp_min(1e-12)
        direction[name] = step
    return direction


def loss_grid(run: FinishedRun, samples: Samples, steps: NDArray[np.float64], seed: int = 0) -> NDArray[np.float64]:
    """The task loss at w + a d_1 + b d_2 for all a (rows) and b (columns), along random directions."""
    state = {name: value.clone() for name, value in run.net.state_dict().items()}
    names = {name for name, _ in run.net.named_parameters()}
    one, two = (filter_direction(state, names, generator(seed, "surface", n)) for n in (1, 2))
    return losses_around(run, samples, state, (one, two), steps)


def losses_around(
    run: FinishedRun, samples: Samples, state: State, axes: tuple[State, State], steps: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The task loss at state + a axes[0] + b axes[1] for all a (rows) and b (columns)."""
    images, labels = samples.take(torch.arange(len(samples)))
    x = normalised(run, images)
    before = {name: value.clone() for name, value in run.net.state_dict().items()}
    grid = np.empty((len(steps), len(steps)))
    try:
        with torch.inference_mode():
            for (i, a), (j, b) in ((p, q) for p in enumerate(steps) for q in enumerate(steps)):
                moved = {n: _moved(n, value, axes[0][n], axes[1][n], float(a), float(b)) for n, value in state.items()}
                run.net.load_state_dict(moved)
                grid[i, j] = float(run.world.dataset.task.loss(run.net(x), labels))
    finally:
        run.net.load_state_dict(before)
    return grid


def _moved(name: str, value: Tensor, one: Tensor, two: Tensor, a: float, b: float) -> Tensor:
    if not value.is_floating_point():
        return value
    moved = value + a * one + b * two
    return torch.maximum(moved, 0.1 * value) if name.endswith("running_var") else moved  # far out, a variance would turn negative


def levels_of(grid: NDArray[np.float64], highest: float) -> NDArray[np.float64]:
    """Contours where most of the picture is, and up to the highest of the models: a few points far out may be a hundred times as high."""
    low, high = float(grid.min()), max(highest, float(np.quantile(grid, 0.8)))
    return np.linspace(low, max(high, low + 1e-6), 17)


def surface(run: FinishedRun, points: int = 13, images: int = 96, reach: float = 0.6) -> Figure:
    """Contours of the loss on every source and unseen domain around the global model."""
    steps = np.linspace(-reach, reach, points)
    domains = [*run.world.fold.sources, *run.world.fold.targets]
    unseen = {d.name for d in run.world.fold.targets}
    figure, axes = sheet(1, len(domains), 3.4, 3.1)
    for panel, domain in zip(axes[0], domains, strict=True):
        grid = loss_grid(run, drawn(domain, images), steps)
        centre = float(grid[points // 2, points // 2])
        drawn_lines = panel.contourf(steps, steps, grid.T, levels=levels_of(grid, centre), cmap=LOSSES, extend="max")
        panel.plot(0, 0, "^", color="black", markersize=9, label="global model")
        panel.legend(fontsize=7, loc="upper right")
        panel.set(title=f"{domain.name}{' (unseen)' if domain.name in unseen else ''}: {centre:.2f} at the centre")
        figure.colorbar(drawn_lines, ax=panel, format="%.4g", label="loss")
    figure.suptitle(f"{run.about['name']}: loss along two filter-normalised random directions", fontsize=10)
    return figure
