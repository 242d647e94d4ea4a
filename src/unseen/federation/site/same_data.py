"""Are a site's data still those of the study's first round?

A file beside the study's memories holds two fingerprints: one of the files' sizes and times, which is looked at before every task, and
one of every pixel and label, which decides when the first differs: data that were prepared again from the same images are the same.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np

from unseen.data.checks.check import data_fingerprint
from unseen.data.domain import DomainDataset
from unseen.federation.site.policy import Rejected
from unseen.files import write_atomically

__all__ = ["content_hash", "refuse_other_data"]

_ROWS = 1024  # samples hashed at once


def refuse_other_data(dataset: DomainDataset, file: Path) -> None:
    """Note which data a study began with; later raise Rejected if they are others."""
    noted = _noted(file)
    if noted.get("files") == data_fingerprint(dataset):
        return
    if noted and noted.get("content") != _content(dataset):
        raise Rejected("data: they changed since this study began; put them back, or agree on a new study")
    content_hash(dataset, file)


def content_hash(dataset: DomainDataset, file: Path) -> str:
    """The hash of every pixel and label. The file remembers it, so that they are read again only where sizes or times differ."""
    now, noted = data_fingerprint(dataset), _noted(file)
    if noted.get("files") != now:
        noted = {"files": now, "content": _content(dataset)}
        write_atomically(file, json.dumps(noted))
    return noted["content"]


def _noted(file: Path) -> dict[str, str]:
    if not file.exists():
        return {}
    try:
        noted = json.loads(file.read_text())
    except ValueError:
        noted = None
    if not isinstance(noted, dict) or not noted:
        raise Rejected("data: what this study began with can no longer be read at the site; agree on a new one")
    return noted


def _content(dataset: DomainDataset) -> str:
    domain, digest = dataset.domains[0], hashlib.sha256(repr(dataset.task).encode())
    for array in (domain.images, domain.labels, domain.groups, domain.split, domain.spacing):
        if array is None:
            digest.update(b"none")
            continue
        digest.update(f"{array.dtype} {array.shape}".encode())
        for start in range(0, len(array), _ROWS):
            digest.update(np.ascontiguousarray(array[start : start + _ROWS]).tobytes())
    return digest.hexdigest()
