"""The loss on the plane of the global model and the clients' models of the last round (FedDAG Fig. 8 and 9).

After Garipov, Izmailov, Podoprikhin, Vetrov and Wilson, "Loss surfaces, mode connectivity, and fast ensembling of DNNs", NeurIPS 2018.
Theirs goes through three models; ours is the one nearest to all clients (the principal axes of their differences to the global model).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unseen.data.domain import Samples
from unseen.deploy.finished import FinishedRun
from unseen.errors import BadInput
from unseen.figures.drawing import COLOURS, LOSSES, sheet
from unseen.figures.last_round import repeat_last_round
from unseen.figures.outputs import drawn
from unseen.figures.surface import filter_direction, levels_of, losses_around
from unseen.randomness import generator
from unseen.state import State

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Plane", "plane", "plane_of"]

_FLAT = 1e-9  # of the first axis's variance: below, the clients lie on a line


@dataclass(frozen=True)
class Plane:
    """Axes of length 1 over the trained weights, where each client lies, and the share of the clients' squared distances in it."""

    axes: tuple[State, State]
    places: dict[str, tuple[float, float]]
    share: float


def plane_of(model: State, clients: Mapping[str, State], trained: set[str]) -> Plane:
    """The axes are found over the trained weights; buffers (batch-norm statistics) go along as the same mixture of clients."""
    away = {name: {k: state[k].double() - model[k].double() for k in model} for name, state in clients.items()}
    names = list(away)
    products = np.array([[_product(away[a], away[b], trained) for b in names] for a in names])
    variances, vectors = np.linalg.eigh(products)
    order = np.argsort(variances)[::-1][:2]
    if not variances[order[0]] > 0:
        raise BadInput("the clients' models are all the global one: there is no plane to draw")
    axes, columns = [], []
    for number in order:
        if variances[number] > _FLAT * variances[order[0]]:
            length = float(np.sqrt(variances[number]))
            axes.append({k: _mixed([away[n][k] for n in names], vectors[:, number] / length, model[k]) for k in model})
            columns.append(length * vectors[:, number])
    if len(axes) == 1:
        axes.append(_across(model, axes[0], trained))
        columns.append(np.zeros(len(names)))
    places = {name: (float(columns[0][n]), float(columns[1][n])) for n, name in enumerate(names)}
    return Plane((axes[0], axes[1]), places, float(variances[order].clip(0).sum() / variances.clip(0).sum()))


def _product(one: Mapping[str, Tensor], two: Mapping[str, Tensor], names: set[str]) -> float:
    return sum(float((one[k] * two[k]).sum()) for k in one if k in names)


def _mixed(differences: list[Tensor], shares: NDArray[np.float64], like: Tensor) -> Tensor:
    return sum((float(s) * d for s, d in zip(shares, differences, strict=True)), torch.zeros_like(differences[0])).to(like.dtype)


def _across(model: State, axis: State, trained: set[str]) -> State:
    """A random direction at right angles to the axis: one or two clients about their mean span no more than a line."""
    step = {k: v.double() for k, v in filter_direction(model, trained, generator(0, "plane")).items()}
    first = {k: v.double() for k, v in axis.items()}
    along = _product(step, first, trained)
    step = {k: v - along * first[k] if k in trained else torch.zeros_like(v) for k, v in step.items()}
    length = _product(step, step, trained) ** 0.5
    return {k: (v / length).to(model[k].dtype) for k, v in step.items()}


def plane(run: FinishedRun, points: int = 13, images: int = 64) -> Figure:
    """On the sources together and on every unseen domain: the loss around the last round's models, each marked with its own loss."""
    last = repeat_last_round(run)
    found = plane_of(last.model, last.clients, {name for name, _ in run.net.named_parameters()})
    reach = 1.5 * max(abs(value) for place in found.places.values() for value in place)
    steps = np.linspace(-reach, reach, points)
    sources = [drawn(d, max(1, images // len(run.world.fold.sources))) for d in run.world.fold.sources]
    panels = {"sources": Samples(tuple(part for samples in sources for part in samples.parts))}
    panels |= {f"{d.name} (unseen)": drawn(d, images) for d in run.world.fold.targets}
    figure, axes = sheet(1, len(panels), 4.6, 4.0)
    for panel, (title, samples) in zip(axes[0], panels.items(), strict=True):
        grid = losses_around(run, samples, last.model, found.axes, steps)
        centre = _loss_of(run, samples, last.model)
        own = {name: _loss_of(run, samples, state) for name, state in last.clients.items()}
        levels = levels_of(grid, max(centre, *own.values()))
        lines = panel.contourf(steps, steps, grid.T, levels=levels, cmap=LOSSES, extend="max")
        panel.plot(0, 0, "^", color="black", markersize=9, label=f"global: {centre:.3f}")
        for number, (name, place) in enumerate(found.places.items()):
            panel.plot(*place, "o", color=COLOURS[number % 10], markeredgecolor="white", label=f"{name}: {own[name]:.3f}")
        panel.set(title=f"loss on {title}", xticks=[], yticks=[], aspect="equal")
        panel.legend(fontsize=7, loc="upper right")
        figure.colorbar(lines, ax=panel, format="%.4g", label="loss")
    title = f"{run.about['name']}, round {len(run.records)}; {100 * found.share:.0f} % of the clients' spread lies in the plane"
    figure.suptitle(title if last.same else f"{title}\n(the round, repeated here, did not give the run's very bits)", fontsize=10)
    return figure


def _loss_of(run: FinishedRun, samples: Samples, state: State) -> float:
    still = {name: torch.zeros_like(value) for name, value in state.items()}
    return float(losses_around(run, samples, state, (still, still), np.zeros(1))[0, 0])
