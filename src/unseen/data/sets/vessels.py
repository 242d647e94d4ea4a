"""Retinal vessels: a folder per source (DRIVE, HRF, STARE, CHASE, LES ...) with `images/` and `masks/`."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from unseen.data.reading.masks import deduce_map
from unseen.data.reading.piece import ReadPlan
from unseen.data.reading.site_folders import find_pairs, histograms, site_plan
from unseen.data.reading.source import Source
from unseen.errors import BadInput

__all__ = ["read_vessels"]

_EYE = re.compile(r"(.*\d+)[-_]?[LR]$", re.IGNORECASE)


def read_vessels(source: Source) -> ReadPlan:
    """One structure in any two-valued mask."""
    pairs, notes = find_pairs(source)
    mask_map, note = deduce_map(histograms(source, [p.mask for p in pairs]), structure="vessel")
    if mask_map.names != ("vessel",):
        raise BadInput(f"{source.label}: the masks have the values {', '.join(map(str, mask_map.values))}; expected 0 and 1, or 0 and 255")
    return site_plan(source, pairs, mask_map, [*notes, *([note] if note else [])], group=_patient)


def _patient(image: str) -> str:
    """Left and right eye of one patient, as CHASE names them.

    >>> _patient("chase/images/Image_01L.jpg"), _patient("hrf/images/01_h.jpg")
    ('Image_01', '')
    """
    eye = _EYE.match(PurePosixPath(image).stem)
    return eye[1] if eye else ""
