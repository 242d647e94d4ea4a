"""Predictions for image files: a row per file, with calibrated probabilities, and masks as PNG."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from unseen.deploy.images import ImageFile, Size, as_input
from unseen.deploy.model import Deployed, images_at_once
from unseen.errors import BadInput
from unseen.report.spreadsheet import as_cell

__all__ = ["predict", "to_csv", "to_json"]

Row = dict[str, Any]


def predict(model: Deployed, files: Sequence[ImageFile], *, masks: Path | None = None, batch: int = 32) -> Iterator[Row]:
    """A row per file, in order. A file that cannot be read gets a row with `error` and does not stop the others."""
    if model.card.task == "classification" and masks is not None:
        raise BadInput(f"this model tells classes ({', '.join(model.card.labels)}) and draws no masks; leave --masks out")
    if masks is not None:
        _refuse_clashes(files)
    batch = images_at_once(model.card.channels, model.card.size, batch)
    for start in range(0, len(files), batch):
        chunk = files[start : start + batch]
        read = [_read(file, model) for file in chunk]
        good = [image for image in read if isinstance(image, tuple)]
        logits = iter(model.logits(np.stack([pixels for pixels, _ in good]))) if good else iter(())
        for file, image in zip(chunk, read, strict=True):
            row: Row = {"file": str(file.path)}
            if isinstance(image, str):
                yield {**row, "error": image}
            elif model.card.task == "classification":
                yield {**row, **_classified(model, next(logits))}
            else:
                yield {**row, **_segmented(model, next(logits), file, image[1], masks)}


def _read(file: ImageFile, model: Deployed) -> tuple[NDArray[np.uint8], Size] | str:
    try:
        return as_input(file.path.read_bytes(), str(file.path), model.card)
    except (BadInput, OSError) as error:
        return str(error)


def _classified(model: Deployed, logits: torch.Tensor) -> Row:
    probability = model.probabilities(logits[None])[0]
    best = int(probability.argmax())
    each = {f"p_{label}": round(float(p), 6) for label, p in zip(model.card.labels, probability, strict=True)}
    return {"prediction": model.card.labels[best], "probability": round(float(probability[best]), 6), **each}


def _segmented(model: Deployed, logits: torch.Tensor, file: ImageFile, size: Size, folder: Path | None) -> Row:
    """Shares of the image, how sure the model is inside each mask, and the masks at the file's own size."""
    probability = model.probabilities(logits[None])[0]
    row: Row = {}
    for label, p in zip(model.card.labels, probability, strict=True):
        inside = p > 0.5
        row[f"share_{label}"] = round(float(inside.float().mean()), 6)
        row[f"probability_{label}"] = round(float(p[inside].mean()), 6) if inside.any() else None
        if folder is not None:
            place = folder / f"{file.name}.{_safe(label)}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            mask = Image.fromarray(inside.numpy().astype(np.uint8) * 255)
            mask.resize(size, Image.Resampling.NEAREST).save(place)
            row[f"mask_{label}"] = str(place)
    return row


def _safe(label: str) -> str:
    return "".join(c if c.isalnum() or c in "-_" else "_" for c in label)


def _refuse_clashes(files: Sequence[ImageFile]) -> None:
    twice = [name for name, number in Counter(file.name for file in files).items() if number > 1]
    if twice:
        raise BadInput(f"several images are called {twice[0]!r}, so their masks would overwrite each other; predict them in separate calls")


def to_csv(rows: Sequence[Row]) -> str:
    """A table; texts that a spreadsheet would run as formulas have an apostrophe in front."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="")
    writer.writerow({column: as_cell(column) for column in columns})
    writer.writerows({column: as_cell(value) for column, value in row.items()} for row in rows)
    return out.getvalue()


def to_json(rows: Sequence[Row]) -> str:
    return json.dumps(list(rows), indent=1) + "\n"
