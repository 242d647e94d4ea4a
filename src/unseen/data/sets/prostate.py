"""Prostate in T2 MRI of six sites, as NIfTI volumes. Liu et al., MS-Net, IEEE TMI 2020.

A volume is normalised by its own mean and deviation and cut into axial slices. Bytes keep z-scores from -4 to 4, and `PIXELS`
turns them back, so that a network sees z-scores. A site may mark peripheral and central zone with 1 and 2: both are prostate.
"""

from __future__ import annotations

import importlib
import math
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from unseen.data.domain import Pixels
from unseen.data.reading.decode import Original
from unseen.data.reading.limits import refuse_pixels, unpacked
from unseen.data.reading.piece import Block, Facts, ReadPlan, segmentation_plan
from unseen.data.reading.source import Source, WrongLayout, listed
from unseen.errors import BadInput

__all__ = ["DOMAINS", "PIXELS", "read_prostate"]

DOMAINS = ("BIDMC", "BMC", "HK", "I2CVB", "RUNMC", "UCL")
CLIP = 4.0  # z-scores beyond this are cut off
PIXELS = Pixels(mean=(0.5,), std=(1 / (2 * CLIP),))  # byte / 255 = (z + CLIP) / (2 * CLIP)
_VOLUME = re.compile(r"(?P<case>.*?)(?P<mask>[-_]seg(?:mentation)?)?\.nii(?:\.gz)?$", re.IGNORECASE)

Volume = NDArray[np.float32]


def read_prostate(source: Source) -> ReadPlan:
    """`<site>/Case00.nii.gz` with `<site>/Case00_segmentation.nii.gz`."""
    files = [(name, match) for name in source.names if (match := _VOLUME.match(name))]
    masks = {m["case"].lower(): name for name, m in files if m["mask"]}
    images = {name: m["case"] for name, m in files if not m["mask"]}
    if not images or any("/" not in name for name in images):
        raise WrongLayout("there are no NIfTI volumes in folders of sites")
    alone = [name for name, case in images.items() if case.lower() not in masks]
    if alone:
        raise BadInput(f"{source.label}: {len(alone)} volumes have no segmentation beside them: {listed(alone)}")
    nibabel = _nibabel()
    pieces: dict[str, list[_VolumePiece]] = {}
    for name, case in images.items():
        site = PurePosixPath(name).parent.name
        pieces.setdefault(site, []).append(_VolumePiece(source, name, masks[case.lower()], f"{site}/{PurePosixPath(case).name}", nibabel))
    return segmentation_plan(["prostate"], pieces, pixels=PIXELS)


@dataclass(frozen=True)
class _VolumePiece:
    """A volume with its segmentation: all its axial slices."""

    source: Source
    file: str
    mask: str
    case: str
    nibabel: Any

    def block(self, size: int) -> Block:
        volume, spacing = self._load(self.file)
        labels, _ = self._load(self.mask)
        if labels.shape != volume.shape:
            raise BadInput(f"{self.mask} has {labels.shape} voxels, its volume {self.file} {volume.shape}; expected the same")
        strange = sorted(set(np.unique(labels).tolist()) - {0.0, 1.0, 2.0})
        if strange:
            raise BadInput(f"{self.mask} has labels {listed([f'{v:g}' for v in strange])}; expected 0, 1 and 2")
        if not volume.std() > 0:
            raise BadInput(f"{self.file} has the same value everywhere")
        scores = (volume - volume.mean()) / volume.std()
        images = np.stack([_to_bytes(_resized(plane, size, Image.Resampling.BILINEAR)) for plane in scores])[:, None]
        masks = np.stack([_resized(plane, size, Image.Resampling.NEAREST) > 0 for plane in labels])[:, None].astype(np.uint8)
        slices, height, width = volume.shape
        scale = np.array([spacing[0] * height / size, spacing[1] * width / size], dtype=np.float32)
        facts = [Facts(f"{self.case}/{number}", group=self.case) for number in range(slices)]
        return Block(images, masks, facts, np.tile(scale, (slices, 1)), [Original("NIfTI", width, height)] * slices)

    def _load(self, name: str) -> tuple[Volume, tuple[float, float]]:
        """Slices from the feet upwards, each with the patient's front on top; and millimetres per row and column."""
        data = self.source.read(name)
        try:
            image = self.nibabel.Nifti1Image.from_bytes(unpacked(data, name))
            refuse_pixels(math.prod(image.shape), len(data), name)
            image = self.nibabel.as_closest_canonical(image)
            volume = np.asarray(image.dataobj, dtype=np.float32)
        except BadInput:
            raise
        except Exception as error:  # on damaged files the decoders raise whatever they happen to run into
            raise BadInput(f"{name} cannot be read as NIfTI: {error}") from None
        if volume.ndim != 3:
            raise BadInput(f"{name} has {volume.ndim} dimensions; expected a volume of 3")
        if not np.isfinite(volume).all():
            raise BadInput(f"{name} has {int((~np.isfinite(volume)).sum())} voxels that are NaN or infinite")
        across, along = (float(z) for z in image.header.get_zooms()[:2])
        return np.ascontiguousarray(volume.transpose(2, 1, 0)[:, ::-1]), (along, across)


def _nibabel() -> Any:
    try:
        return importlib.import_module("nibabel")
    except ImportError:
        raise BadInput("NIfTI volumes are read with nibabel, which is not installed: pip install 'unseen[medical]'") from None


def _resized(plane: Volume, size: int, how: Image.Resampling) -> Volume:
    if plane.shape == (size, size):
        return plane
    return np.asarray(Image.fromarray(plane).resize((size, size), how))


def _to_bytes(scores: Volume) -> NDArray[np.uint8]:
    bytes_: NDArray[np.uint8] = np.rint((np.clip(scores, -CLIP, CLIP) + CLIP) / (2 * CLIP) * 255).astype(np.uint8)
    return bytes_
