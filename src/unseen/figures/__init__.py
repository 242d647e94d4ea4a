"""Pictures from finished runs, each a function and a command: `unseen figure NAME DIR --out FILE.png`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from unseen.data.domain import DomainDataset
from unseen.deploy.finished import FinishedRun, finished_run
from unseen.errors import BadInput, choose
from unseen.figures.attention import cam
from unseen.figures.classes import confusion, reliability
from unseen.figures.comparing import bars, clients, curves
from unseen.figures.drawing import save
from unseen.figures.embedding import tsne
from unseen.figures.masks import overlays
from unseen.figures.plane import plane
from unseen.figures.styles import gap, generated, restyled
from unseen.figures.surface import surface

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "FIGURES", "bars", "cam", "clients", "confusion", "curves", "draw", "finished_run", "gap", "generated", "overlays",
    "plane", "reliability", "restyled", "save", "surface", "tsne",
]  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """A figure by name: of one run, of several side by side, or of a folder of runs."""

    about: str
    of_run: Callable[[FinishedRun], Figure] | None = None
    of_runs: Callable[[Sequence[FinishedRun]], Figure] | None = None
    of_folder: Callable[[Path, str], Figure] | None = None  # and the selection rule


FIGURES: Mapping[str, Kind] = {
    "curves": Kind("learning curves on each unseen domain, of one run or of many", of_folder=curves),
    "confusion": Kind("confusion matrix on each unseen domain", of_run=confusion),
    "reliability": Kind("reliability diagram on each unseen domain", of_run=reliability),
    "tsne": Kind("t-SNE of features by class and domain, with FedADG's reference", of_run=tsne),
    "overlays": Kind("segmentations with errors marked: best, median, worst case", of_run=overlays),
    "gap": Kind("how far the domains look apart", of_run=gap),
    "cam": Kind("class activation maps on unseen images; several runs stand side by side", of_runs=cam),
    "generated": Kind("FedDAG's perturbations and generated images", of_run=generated),
    "restyled": Kind("images in other domains' styles as in ELCFS, and their spectra", of_run=restyled),
    "surface": Kind("the loss around the global model", of_run=surface),
    "plane": Kind("the loss on the plane of the global and the clients' models; repeats the last round", of_run=plane),
    "bars": Kind("a bar per row of a benchmark's table (ablation, sensitivity)", of_folder=bars),
    "clients": Kind("score against the number of clients", of_folder=clients),
}


def draw(
    name: str, folders: Sequence[Path], *, rule: str = "source", data: DomainDataset | str | None = None, trust: bool = False
) -> Figure:
    """The figure of that name. `data` is needed where runs were made between sites, or on a data set that exists only in Python.

    `trust`: you know who wrote the folders, so that code which they name may run.
    """
    kind = FIGURES[choose("figure", name, FIGURES)]
    if kind.of_runs is None and len(folders) != 1:
        raise BadInput(f"figure {name!r} is of one folder; got {len(folders)}")
    if kind.of_folder is not None:
        return kind.of_folder(folders[0], rule)
    runs = [finished_run(folder, rule, data, trust=trust) for folder in folders]
    for run in runs:
        if not run.has_images:
            raise BadInput(f"the data of {run.folder} stayed at its sites; give images to look at, such as --data folder:our-images")
        if not run.world.fold.targets:
            raise BadInput(f"every domain of the data given took part in {run.folder}; a figure needs one that stayed unseen")
    if kind.of_runs is not None:
        return kind.of_runs(runs)
    assert kind.of_run is not None
    return kind.of_run(runs[0])
