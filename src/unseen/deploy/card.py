"""The model card: what a model is, what it was trained on, how well it did and what it must not be used for. JSON and Markdown."""

from __future__ import annotations

import base64
import json
import math
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unseen.data.domain import Pixels
from unseen.deploy.signing import ModelSigner, sign_card, signer_of
from unseen.errors import BadInput
from unseen.files import write_atomically
from unseen.own_code import texts_in
from unseen.report.page import size_text
from unseen.task import Classification, Segmentation, Task

__all__ = ["CARD_FILE", "ModelCard", "read_card", "style_from_text", "style_to_text"]

CARD_FILE, TEXT_FILE = "card.json", "card.md"
_FORMAT = 1
# A card may come from anybody. Some of its numbers say how much memory is taken, others what comes out.
_LARGEST_CARD = 64 * 10**6  # bytes
_MOST_CHANNELS, _MOST_SIDE, _MOST_VALUES = 1024, 4096, 2**26  # of an image
_MOST_LABELS, _LONGEST_LABEL = 65536, 200
_TEMPERATURES, _MEANS, _DEVIATIONS = (1e-3, 1e3), (-1e3, 1e3), (1e-6, 1e3)
_TURNING = "\u202a\u202b\u202d\u202e\u2066\u2067\u2068"
_LONGEST_STYLE = 200_000  # characters; that of 128 features has 44,032


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
    signer: ModelSigner | None = None  # of the card as it was read; None where nobody signed it

    @property
    def origin(self) -> str:
        """Who says that all this is so."""
        return str(self.signer) if self.signer else "not signed: anybody may have written it"

    @property
    def pixels(self) -> Pixels:
        return Pixels(self.mean, self.std)

    @property
    def what(self) -> Task:
        return Classification(self.labels) if self.task == "classification" else Segmentation(self.labels)

    def write(self, folder: Path, sign: Path | None = None) -> None:
        """As JSON and as Markdown; signed, where `sign` says with which key."""
        text = self.markdown()
        values = {name: value for name, value in asdict(self).items() if name != "signer"}
        values = values if sign is None else sign_card(values, text, sign)
        write_atomically(folder / TEXT_FILE, text)
        write_atomically(folder / CARD_FILE, json.dumps(values, indent=1, allow_nan=False) + "\n")

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
    """The card in a folder that `unseen export` wrote, whoever sent it. One that was changed after it was signed is refused."""
    file = folder / CARD_FILE
    if not file.is_file():
        raise BadInput(f"{folder} has no {CARD_FILE}; give a folder that `unseen export` wrote, or the model file in it")
    try:
        if file.stat().st_size > _LARGEST_CARD:
            raise ValueError(f"more than {_LARGEST_CARD:,} bytes")
        values = json.loads(file.read_text(encoding="utf-8"), parse_constant=_no_number)
        if values["format"] != _FORMAT:
            raise ValueError(f"format {values['format']!r}, not {_FORMAT}")
        text = folder / TEXT_FILE
        signer = signer_of(values, text.read_bytes() if text.is_file() else None)
        known = {f.name for f in fields(ModelCard)} - {"signer"}
        plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items() if k in known}
        card = ModelCard(**plain, signer=signer)
        misfits = [*_strange_texts(values), *_misfits(card)]
        if misfits:
            raise ValueError("; ".join(misfits))
        return card
    except BadInput as bad:
        raise BadInput(f"{file} is refused: {bad}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadInput(f"{file} cannot be read as a model card ({error}); export the model again") from error


def _no_number(text: str) -> float:
    raise ValueError(f"{text} among its numbers")


def _strange_texts(values: Mapping[str, Any]) -> Iterator[str]:
    """Signs that a terminal obeys, or that turn the direction of reading."""
    for text in texts_in(values):
        if any(c in _TURNING or (unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t") for c in text):
            yield f"{text[:40]!a} has signs that are no text"
            return


def _misfits(card: ModelCard) -> Iterator[str]:
    """What in a card is of another kind or another size than anything that `unseen export` writes."""
    words = ("title", "file", "kind", "sha256", "network", "data")
    yield from (f"{name} is no text" for name in words if not isinstance(getattr(card, name), str))
    if card.task not in ("classification", "segmentation"):
        yield f"task is {card.task!r}"
    sides = card.size if isinstance(card.size, tuple) and len(card.size) == 2 else (0, 0)
    whole = all(type(n) is int for n in (card.channels, *sides))
    if not whole or not (1 <= card.channels <= _MOST_CHANNELS and min(sides) >= 1 and max(sides) <= _MOST_SIDE):
        yield f"images of {card.channels!r} channels and size {card.size!r}; expected up to {_MOST_CHANNELS} and {_MOST_SIDE}"
    elif card.channels * math.prod(sides) > _MOST_VALUES:
        yield f"images of {card.channels} x {sides[0]} x {sides[1]} values; expected up to {_MOST_VALUES:,}"
    for name, low, high in (("mean", *_MEANS), ("std", *_DEVIATIONS)):
        numbers = getattr(card, name)
        if not isinstance(numbers, tuple) or len(numbers) not in (1, card.channels) or not all(_between(n, low, high) for n in numbers):
            yield f"{name} is {ascii(numbers)[:80]}; expected a number from {low:g} to {high:g} for each channel"
    if not _between(card.temperature, *_TEMPERATURES):
        yield f"temperature is {card.temperature!r}; expected {_TEMPERATURES[0]:g} to {_TEMPERATURES[1]:g}"
    for name in ("labels", "sources", "targets"):
        if not isinstance(getattr(card, name), tuple) or not all(isinstance(text, str) for text in getattr(card, name)):
            yield f"{name} are no list of texts"
    if not 1 <= len(card.labels) <= _MOST_LABELS or len(set(card.labels)) < len(card.labels):
        yield f"{len(card.labels)} labels; expected up to {_MOST_LABELS}, each once"
    elif not all(isinstance(text, str) and 0 < len(text.strip()) <= len(text) <= _LONGEST_LABEL for text in card.labels):
        yield f"a label without text, or with more than {_LONGEST_LABEL} signs"
    tables = (card.calibration, card.checked, card.travelled, *(row for part in card.metrics.values() for row in part.values()))
    if not all(isinstance(table, dict) and all(_between(n, -math.inf, math.inf) for n in table.values()) for table in tables):
        yield "something else than numbers in its tables"
    if not isinstance(card.training, dict):
        yield "no table of its training"
    if not all(isinstance(text, str) and len(text) <= _LONGEST_STYLE for text in card.styles.values()):
        yield f"a style of more than {_LONGEST_STYLE:,} signs"


def _between(number: Any, low: float, high: float) -> bool:
    """Whether it is a finite number in this range.

    >>> _between(1, 0, 2), _between(math.inf, 0, math.inf), _between(True, 0, 2), _between("1", 0, 2)
    (True, False, False, False)
    """
    return type(number) in (int, float) and abs(number) < 1e300 and low <= number <= high


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
    if not np.isfinite(values).all():
        raise BadInput("a style in the card has numbers that are not finite; export the model again")
    matrix = np.zeros((side, side))
    rows, columns = np.triu_indices(side)
    matrix[rows, columns] = values
    matrix[columns, rows] = values
    return torch.from_numpy(matrix)
