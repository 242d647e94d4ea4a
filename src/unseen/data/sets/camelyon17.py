"""Camelyon17-WILDS: tumour in lymph node patches of five hospitals. Bandi et al., 2019; Koh et al., 2021.

The column `split` of WILDS divides the patches of a patient, so it is not taken over: splits are drawn by patient.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from unseen.data.reading.piece import Facts, ImagePiece, ReadPlan, classification_plan
from unseen.data.reading.source import Source, WrongLayout, listed
from unseen.data.reading.table import read_table, whole_number
from unseen.errors import BadInput

__all__ = ["CLASSES", "DOMAINS", "read_camelyon17", "stratified"]

CLASSES = ("normal", "tumour")
DOMAINS = tuple(f"center{number}" for number in range(5))
_COLUMNS = ("patient", "node", "x_coord", "y_coord", "tumor", "center")


def read_camelyon17(source: Source, fraction: float = 1.0) -> ReadPlan:
    """`metadata.csv` beside `patches/`; `fraction` of the patches of each hospital and class."""
    tables = [name for name in source.names if name.rpartition("/")[2] == "metadata.csv"]
    if len(tables) != 1:
        raise WrongLayout(f"there are {len(tables)} files metadata.csv")
    root = tables[0].removesuffix("metadata.csv")
    rows = read_table(source.text(tables[0]), tables[0], _COLUMNS)
    files = [root + _patch(row) for row in rows]
    there = set(source.names)
    missing = [name for name in files if name not in there]
    if missing:
        raise BadInput(f"metadata.csv names {len(missing)} patches that are not there: {listed(missing)}")
    pieces: dict[str, list[ImagePiece]] = {}
    for i in stratified([(row["center"], row["tumor"]) for row in rows], files, fraction):
        row = rows[i]
        domain = DOMAINS[whole_number(row["center"], len(DOMAINS), "center")]
        label = whole_number(row["tumor"], 2, "tumor")
        pieces.setdefault(domain, []).append(ImagePiece(source, files[i], label, Facts(files[i], group=f"patient_{row['patient']}")))
    notes = [] if fraction == 1 else [f"a stratified {fraction:.0%} of {len(rows)} patches"]
    return classification_plan(CLASSES, dict(sorted(pieces.items())), notes)


def stratified(strata: Sequence[tuple[str, ...]], ids: Sequence[str], fraction: float) -> list[int]:
    """Positions of the given share of every stratum, at least one of each, in order. Which ones hangs on the ids alone.

    >>> stratified([("a",)] * 10 + [("b",)] * 2, [str(i) for i in range(12)], 0.5)
    [0, 3, 4, 8, 9, 10]
    """
    members: dict[tuple[str, ...], list[int]] = {}
    for position, stratum in enumerate(strata):
        members.setdefault(stratum, []).append(position)
    chosen = []
    for positions in members.values():
        lots = sorted(positions, key=lambda p: hashlib.sha256(ids[p].encode()).digest())
        chosen += lots[: max(1, round(fraction * len(lots)))]
    return sorted(chosen)


def _patch(row: dict[str, str]) -> str:
    """
    >>> _patch({"patient": "4", "node": "4", "x_coord": "3328", "y_coord": "21792"})
    'patches/patient_004_node_4/patch_patient_004_node_4_x_3328_y_21792.png'
    """
    slide = f"patient_{row['patient'].zfill(3)}_node_{row['node']}"
    return f"patches/{slide}/patch_{slide}_x_{row['x_coord']}_y_{row['y_coord']}.png"
