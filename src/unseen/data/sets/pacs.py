"""PACS: photos, art paintings, cartoons and sketches. Li et al., Deeper, Broader and Artier Domain Generalization, 2017."""

from __future__ import annotations

from unseen.data.reading.class_folders import find_images, folder_plan, with_known_classes
from unseen.data.reading.official_splits import with_official_splits
from unseen.data.reading.piece import ReadPlan
from unseen.data.reading.source import Source

__all__ = ["CLASSES", "DOMAINS", "read_pacs"]

DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
_LISTS = r"(?:^|/)(?P<domain>[^/]+)_(?P<split>train|crossval|test)_kfold\.txt$"


def read_pacs(source: Source) -> ReadPlan:
    """Folders, and the official lists (`art_painting_train_kfold.txt` ...; classes counted from 1) where they are there."""
    found, notes = find_images(source, dict.fromkeys(DOMAINS, ()))
    found = with_known_classes(found, dict.fromkeys(CLASSES, ()))
    return folder_plan(source, with_official_splits(source, found, _LISTS, CLASSES, first=1), list(CLASSES), notes)
