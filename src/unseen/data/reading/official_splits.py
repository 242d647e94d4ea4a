"""Official lists of which image trains, validates and tests: one line per image, its path and the number of its class."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from unseen.data.reading.class_folders import SPLIT_NAMES, Found
from unseen.data.reading.source import Source, listed
from unseen.errors import BadInput

__all__ = ["with_official_splits"]


def with_official_splits(source: Source, found: Sequence[Found], pattern: str, classes: Sequence[str], first: int) -> list[Found]:
    """The images with their official split, where lists are there.

    `pattern` finds a list and its `split` from the file's name; `first` is the number that the lists give to the first class.

    An image in no list of its domain is a test image: PACS tests on whole domains, so that its test lists repeat the others.
    """
    lists = [(name, match) for name in source.names if (match := re.search(pattern, name))]
    if not lists:
        return list(found)
    by_tail = {"/".join(f.file.split("/")[-3:]): f for f in found}
    official: dict[str, str] = {}
    problems: list[str] = []
    missing: list[str] = []
    for name, match in sorted(lists, key=lambda entry: SPLIT_NAMES[entry[1]["split"]] == "test"):
        for line_number, line in enumerate(source.text(name).splitlines(), 1):
            if not line.strip():
                continue
            path, _, number = line.strip().rpartition(" ")
            image = by_tail.get("/".join(path.split("/")[-3:]))
            if image is None:
                missing.append(path)
            elif not number.isdigit() or classes.index(image.label) != int(number) - first:
                problems.append(f"{name} line {line_number} gives {path} the class {number!r}; its folder says {image.label}")
            else:
                official.setdefault(image.file, SPLIT_NAMES[match["split"]])
    if missing:
        problems.append(f"the official lists name {len(missing)} images that are not there: {listed(missing)}")
    if problems:
        raise BadInput([*problems[:5], *([f"and {len(problems) - 5} more"] if len(problems) > 5 else [])])
    listed_domains = {f.domain for f in found if f.file in official}
    return [replace(f, split=official.get(f.file, "test")) if f.domain in listed_domains else f for f in found]
