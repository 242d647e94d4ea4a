"""Fed-ISIC2019: skin lesions of eight kinds from six centres, with FLamby's table. Ogier du Terrail et al., FLamby, 2022."""

from __future__ import annotations

from pathlib import PurePosixPath

from unseen.data.reading.class_folders import SPLIT_NAMES
from unseen.data.reading.piece import Facts, ImagePiece, ReadPlan, classification_plan
from unseen.data.reading.source import Source, WrongLayout, listed
from unseen.data.reading.table import read_table, whole_number
from unseen.errors import BadInput

__all__ = ["CLASSES", "DOMAINS", "read_isic2019"]

CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
DOMAINS = ("BCN", "HAM_vidir_molemax", "HAM_vidir_modern", "HAM_rosendahl", "MSK", "HAM_vienna_dias")  # in FLamby's order of centres


def read_isic2019(source: Source) -> ReadPlan:
    """The table `train_test_split` (with or without .csv) and the images anywhere; lesions from ISIC's metadata if it is there."""
    tables = [name for name in source.names if PurePosixPath(name).name in ("train_test_split", "train_test_split.csv")]
    if len(tables) != 1:
        raise WrongLayout(f"there are {len(tables)} files train_test_split")
    rows = read_table(source.text(tables[0]), tables[0], ("image", "target", "center", "fold"))
    files = {PurePosixPath(name).stem: name for name in source.images()}
    missing = [row["image"] for row in rows if row["image"] not in files]
    if missing:
        raise BadInput(f"{tables[0]} names {len(missing)} images that are not there: {listed(missing)}")
    lesions = _lesions(source)
    pieces: dict[str, list[ImagePiece]] = {}
    for row in rows:
        if row["fold"] not in SPLIT_NAMES:
            raise BadInput(f"{tables[0]}: the fold of {row['image']} is {row['fold']!r}; expected train or test")
        domain = DOMAINS[whole_number(row["center"], len(DOMAINS), f"the center of {row['image']}")]
        label = whole_number(row["target"], len(CLASSES), f"the target of {row['image']}")
        facts = Facts(row["image"], lesions.get(row["image"], ""), SPLIT_NAMES[row["fold"]])
        pieces.setdefault(domain, []).append(ImagePiece(source, files[row["image"]], label, facts))
    return classification_plan(CLASSES, {d: pieces[d] for d in DOMAINS if d in pieces})


def _lesions(source: Source) -> dict[str, str]:
    """The lesion that an image shows: several may show the same."""
    for name in source.names:
        if PurePosixPath(name).name == "ISIC_2019_Training_Metadata.csv":
            return {row["image"]: row["lesion_id"] for row in read_table(source.text(name), name, ("image", "lesion_id"))}
    return {}
