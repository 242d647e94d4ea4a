"""What methods do to images: FedDAG's generated ones, ELCFS's restyled ones with their spectra; and how far domains are apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unseen.data.checks.gap import gap_matrix
from unseen.deploy.finished import FinishedRun
from unseen.errors import BadInput
from unseen.figures.drawing import heat_map, sheet, show_image
from unseen.figures.outputs import drawn, normalised, server_state
from unseen.methods.elcfs import ELCFS
from unseen.methods.feddag import FedDAG
from unseen.ops import discrepancy, fourier

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["gap", "generated", "log_spectrum", "restyled"]

_ELCFS_ALPHA = 0.01  # the paper's, for runs of other methods


def gap(run: FinishedRun) -> Figure:
    """The domain-gap matrix of the run's data set (FedDAG Fig. 13)."""
    names, gaps = gap_matrix(run.world.dataset)
    figure, ((axes,),) = sheet(1, 1, 2.4 + 0.6 * len(names), 2 + 0.6 * len(names))
    heat_map(axes, gaps.numpy(), names, names, "{:.2f}")
    axes.set_title("style distance, 0 to 1")
    return figure


def _pixels(run: FinishedRun, x: Tensor) -> NDArray[np.float64]:
    """A network's input as pictures show it."""
    return run.world.dataset.pixels.restored(x).clamp(0, 1).numpy()


def generated(run: FinishedRun, images: int = 3) -> Figure:
    """FedDAG: of each source domain, originals, perturbations and the images of a novel domain (its Fig. 4)."""
    method: Any = run.world.experiment.method
    state: Any = server_state(run) if isinstance(method, FedDAG) else None
    if state is None or state.generator is None:
        raise BadInput(f"{run.folder} is a run of {run.about['name']}, which generates no images; expected FedDAG with ndag on")
    net: Any = run.world.builders["generator"]()
    net.load_state_dict(state.generator)
    sources = run.world.fold.sources
    figure, axes = sheet(len(sources), 3 * images, 1.6, 1.8)
    for row, domain in zip(axes, sources, strict=True):
        x = normalised(run, drawn(domain, images).take(torch.arange(min(images, len(domain))))[0])
        with torch.inference_mode():
            perturbation = net.eval()(x)
        novel = _pixels(run, discrepancy.perturb(x, perturbation, method.alpha))
        for number, triple in enumerate(zip(_pixels(run, x), ((perturbation + 1) / 2).numpy(), novel, strict=True)):
            for panel, title, picture in zip(row[3 * number :], (domain.name, "perturbation", "generated"), triple, strict=False):
                show_image(panel, picture, title)
    for panel in (panel for row in axes for panel in row):
        panel.set_axis_off()  # where a domain has fewer images
    return figure


def log_spectrum(image: NDArray[np.float64]) -> NDArray[np.float64]:
    """log(1 + |F|) of the grey image, the constant bin in the middle.

    >>> round(float(log_spectrum(np.ones((3, 4, 4)))[2, 2]), 4)  # log(1 + 16)
    2.8332
    """
    amplitudes: NDArray[np.float64] = np.log1p(np.abs(np.fft.fftshift(np.fft.fft2(image.mean(0)))))
    return amplitudes


def restyled(run: FinishedRun, lam: float = 1.0) -> Figure:
    """ELCFS: an image of the first source in the style of every other source, and all spectra (its Fig. 2)."""
    method: Any = run.world.experiment.method
    alpha = method.window.alpha if isinstance(method, ELCFS) else _ELCFS_ALPHA
    first, *others = run.world.fold.sources
    if not others:
        raise BadInput(f"{run.folder} has one source domain; a style needs another to come from")
    x = normalised(run, drawn(first, 1).take(torch.tensor([0]))[0])
    figure, axes = sheet(2, 1 + 2 * len(others), 2.2, 2.3)
    columns = [(first.name, x)]
    for domain in others:
        style = normalised(run, drawn(domain, 1).take(torch.tensor([0]))[0])
        new = fourier.restyle_amplitudes(x, fourier.low_amplitudes(style, alpha), torch.tensor([lam]), alpha)
        columns += [(f"{domain.name}", style), (f"{first.name} as {domain.name}", new)]
    spectra: list[NDArray[np.float64]] = []
    for column, (title, picture) in enumerate(columns):
        pixels = _pixels(run, picture)[0]
        show_image(axes[0][column], pixels, title)
        spectra.append(log_spectrum(pixels.astype(np.float64)))
    highest = max(float(spectrum.max()) for spectrum in spectra)
    for panel, spectrum in zip(axes[1], spectra, strict=True):
        shown = panel.imshow(spectrum, cmap="magma", vmin=0, vmax=highest)
        panel.set_axis_off()
    figure.colorbar(shown, ax=axes[1], shrink=0.8, label="log(1 + amplitude)")
    figure.suptitle(f"images and log amplitudes; alpha {alpha:g}, lambda {lam:g}", fontsize=10)
    return figure
