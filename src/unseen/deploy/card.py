"""The model card: what a model is, what it was trained on, how well it did and what it must not be used for. JSON and Markdown."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unseen.data.domain import Pixels
from unseen.errors import BadInput
from unseen.files import write_atomically
from unseen.report.page import size_text
from unseen.task import Classification, Segmentation, Task

__all__ = ["CARD_FILE", "ModelCard", "read_card", "style_from_text", "style_to_text"]

CARD_FILE = "card.json"
_FORMAT = 1


@dataclass(frozen=True)
class ModelCard:
    """Everything that a model's user must know, and everything that loading it needs."""

    title: str
    file: str  # the model's, beside the card
    kind: str  # onnx, torchscript or safetensors
    sha256: str
    network: str
    channels: int
    size: tuple[int, int]  # height, width
    mean: tuple[float, ...]  # of the pixels, in 0 to 1
    std: tuple[float, ...]
    task: str
    labels: tuple[str, ...]  # classes, or structures
    temperature: float
    calibration: dict[str, float]
    data: str
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    metrics: dict[str, dict[str, dict[str, float]]]  # source, target, held_out -> name -> metric
    training: dict[str, Any]  # method, experiment, departures, round, rule, clients, versions, partition
    travelled: dict[str, int]  # kind -> bytes that left all clients in the whole run
    checked: dict[str, float]  # against torch: images, largest difference
    styles: dict[str, str] = field(default_factory=dict)  # by training site, where the sites agreed
    format: int = _FORMAT

    @property
    def pixels(self) -> Pixels:
        return Pixels(self.mean, self.std)

    @property
    def what(self) -> Task:
        return Classification(self.labels) if self.task == "classification" else Segmentation(self.labels)

    def write(self, folder: Path) -> None:
        write_atomically(folder / CARD_FILE, json.dumps(asdict(self), indent=1) + "\n")
        write_atomically(folder / "card.md", self.markdown())

    def markdown(self) -> str:
        experiment = self.training["experiment"]
        about = {
            "method": self.training["method"],
            "data": self.data,
            "trained at": ", ".join(self.sources),
            "never seen in training": ", ".join(self.targets),
            "network": f"{self.network}, {self.channels} x {self.size[0]} x {self.size[1]} pixels",
            "task": f"{self.task}: {', '.join(self.labels)}",
            "round": f"{self.training['round']} of {experiment['rounds']} ({self.training['rule']})",
            "seed": experiment["seed"],
            "file": f"{self.file} ({self.kind}), SHA-256 {self.sha256}",
            "checked": _check(self.checked),
            "versions": ", ".join(f"{name} {version}" for name, version in self.training["versions"].items()),
        }
        parts = [f"# {_plain(self.title)}", "", "| | |", "| --- | --- |"]
        parts += [f"| {name} | {_plain(value)} |" for name, value in about.items()]
        parts += ["", "## Intended use", "", *_INTENDED, "", "## Limits", "", *_LIMITS]
        for part, heading in (
            ("source", "At the training sites (validation parts)"),
            ("target", "At sites it never saw"),
            ("held_out", "Held out"),
        ):
            parts += ["", f"## {heading}", "", *_metric_table(self.metrics[part])] if self.metrics.get(part) else []
        parts += [
            "",
            "## Probabilities",
            "",
            f"Divide logits by the temperature {self.temperature:.4f} first. {_calibration(self.calibration)}",
        ]
        parts += ["", "## What left the sites", "", *(f"- {kind}: {size_text(size)}" for kind, size in self.travelled.items())]
        styles = "of " + ", ".join(self.styles) if self.styles else "none"
        parts += [f"- style statistics in this card (mean Gram matrices of fixed random filters): {_plain(styles)}"]
        parts += ["", "## Settings", "", *(f"- {k}: {_plain(v)}" for k, v in {**experiment, **experiment["set"]}.items() if k != "set")]
        departures = [f"- {k}: {_plain(here)} instead of {_plain(paper)}" for k, (paper, here) in self.training["departures"].items()]
        parts += ["", "## Departures from the paper", "", *(departures or ["none recorded"])]
        return "\n".join(parts) + "\n"


_INTENDED = [
    "Research, and the assessment at a new site with `unseen evaluate` before any other use.",
    "Images like those of the training sites, prepared the same way; the card's size and pixel statistics are part of the model.",
]
_LIMITS = [
    "- No medical device; nobody has approved it for patients.",
    "- It answers for every image, also for one that shows something else, and it knows only the labels above.",
    "- Results at a site that differs in devices, staining or population can be worse than anything printed here.",
]


def _plain(value: Any) -> str:
    """Text that Markdown shows as it is."""
    text = "none" if value is None else str(value)
    return "".join(f"\\{c}" if c in "\\|*_<>[]`#" else c for c in " ".join(text.split()))


def _metric_table(rows: Mapping[str, Mapping[str, float]]) -> list[str]:
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    lines = [f"| site | {' | '.join(map(_plain, names))} |", "| --- " * (len(names) + 1) + "|"]
    for site, row in rows.items():
        cells = ["–" if name not in row else f"{row[name]:.0f}" if name == "samples" else f"{row[name]:.4f}" for name in names]
        lines.append(f"| {_plain(site)} | {' | '.join(cells)} |")
    return lines


def _check(numbers: Mapping[str, float]) -> str:
    if not numbers:
        return "not yet"
    kind = "images of noise" if numbers.get("noise") else "images of the data"
    return f"torch's probabilities within {numbers['largest_difference']:.1e} on {numbers['images']:.0f} {kind}"


def _calibration(numbers: Mapping[str, float]) -> str:
    if not numbers:
        return "There were no validation samples to fit it on: probabilities are as the network gives them, not calibrated."
    return (
        f"On {numbers['samples']:.0f} source validation samples the log loss went from {numbers['before']:.4f} to {numbers['after']:.4f}."
    )


def read_card(folder: Path) -> ModelCard:
    """The card in a folder that `unseen export` wrote."""
    file = folder / CARD_FILE
    if not file.is_file():
        raise BadInput(f"{folder} has no {CARD_FILE}; give a folder that `unseen export` wrote, or the model file in it")
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        if values["format"] != _FORMAT:
            raise ValueError(f"format {values['format']!r}, not {_FORMAT}")
        known = {f.name for f in fields(ModelCard)}
        plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items() if k in known}
        card = ModelCard(**plain)
        size, temperature = card.size, card.temperature
        if len(size) != 2 or not temperature > 0 or not card.labels or card.task not in ("classification", "segmentation"):
            raise ValueError("size, temperature, labels or task make no sense")
        return card
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{file} cannot be read as a model card ({error}); export the model again") from error


def style_to_text(gram: Tensor) -> str:
    """The upper triangle of a symmetric matrix as base64 of float32: 44 kB for 128 features."""
    rows, columns = np.triu_indices(len(gram))
    return base64.b64encode(gram.numpy()[rows, columns].astype("<f4").tobytes()).decode()


def style_from_text(text: str) -> Tensor:
    """The inverse: the whole matrix in float64."""
    try:
        values = np.frombuffer(base64.b64decode(text, validate=True), dtype="<f4")
    except ValueError as error:
        raise BadInput(f"a style in the card cannot be read ({error}); export the model again") from error
    side = int((np.sqrt(8 * len(values) + 1) - 1) / 2)
    if side * (side + 1) // 2 != len(values):
        raise BadInput(f"a style in the card has {len(values)} numbers, which are no half of a matrix; export the model again")
    matrix = np.zeros((side, side))
    rows, columns = np.triu_indices(side)
    matrix[rows, columns] = values
    matrix[columns, rows] = values
    return torch.from_numpy(matrix)
