"""Optic disc and cup in fundus photographs of four sites, as released with DoFE. Wang et al., IEEE TMI 2020.

Domain1 is Drishti-GS, Domain2 RIM-ONE r3, Domain3 REFUGE's training part, Domain4 its validation part.
"""

from __future__ import annotations

import re

from unseen.data.reading.masks import MaskMap
from unseen.data.reading.piece import Facts, MaskedPiece, ReadPlan, segmentation_plan
from unseen.data.reading.source import Source, WrongLayout, listed
from unseen.errors import BadInput

__all__ = ["DOMAINS", "MAP", "read_fundus"]

DOMAINS = ("Domain1", "Domain2", "Domain3", "Domain4")
MAP = MaskMap({"disc": frozenset({0, 128}), "cup": frozenset({0})}, background=frozenset({255}))  # the cup lies inside the disc
CROP = 800  # pixels of the central square
_FILE = re.compile(r"(?P<root>(?:.*/)?(?P<domain>Domain\d+)/(?P<split>train|test)/ROIs/)(?P<kind>image|mask)/(?P<stem>[^/]+)\.\w+$")


def read_fundus(source: Source) -> ReadPlan:
    files = [match for name in source.images() if (match := _FILE.match(name))]
    masks = {(m["root"], m["stem"]): m[0] for m in files if m["kind"] == "mask"}
    images = [m for m in files if m["kind"] == "image"]
    if not images:
        raise WrongLayout("there is no Domain*/train/ROIs/image")
    alone = [m[0] for m in images if (m["root"], m["stem"]) not in masks]
    if alone:
        raise BadInput(f"{source.label}: {len(alone)} images have no mask of the same name: {listed(alone)}")
    pieces: dict[str, list[MaskedPiece]] = {}
    for m in images:
        piece = MaskedPiece(source, m[0], masks[m["root"], m["stem"]], MAP, Facts(m[0], split=m["split"]), crop=CROP)
        pieces.setdefault(m["domain"], []).append(piece)
    missing = [d for d in DOMAINS if d not in pieces]
    return segmentation_plan(MAP.names, pieces, [f"not found and left out: {', '.join(missing)}"] if missing else [])
