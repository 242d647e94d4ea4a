"""GDRBench: diabetic retinopathy, five grades, up to eight sites. Che et al., Towards Generalizable Diabetic Retinopathy Grading, 2023."""

from __future__ import annotations

from unseen.data.reading.class_folders import find_images, folder_plan, with_known_classes
from unseen.data.reading.official_splits import with_official_splits
from unseen.data.reading.piece import ReadPlan
from unseen.data.reading.source import Source

__all__ = ["DOMAINS", "GRADES", "read_gdrbench"]

DOMAINS = ("APTOS", "DEEPDR", "FGADR", "IDRID", "MESSIDOR", "RLDR", "DDR", "EYEPACS")
GRADES = {"nodr": ("0",), "mild_npdr": ("1",), "moderate_npdr": ("2",), "severe_npdr": ("3",), "pdr": ("4",)}
_LISTS = r"(?:^|/)splits/(?P<domain>[^/]+)_(?P<split>train|crossval|test)\.txt$"


def read_gdrbench(source: Source) -> ReadPlan:
    """`images/<site>/<grade>/...`; the eye masks beside them have the same folders and are not wanted."""
    found, notes = find_images(source, dict.fromkeys(DOMAINS, ()))
    images = with_known_classes([f for f in found if "masks" not in f.file.split("/")], GRADES)
    return folder_plan(source, with_official_splits(source, images, _LISTS, list(GRADES), first=0), list(GRADES), notes)
