"""Data sets that are folders of images: `<domain>/<class>/<image>`, whatever they are called and however deep they begin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from unseen.data.reading.piece import Facts, ImagePiece, ReadPlan, classification_plan
from unseen.data.reading.source import Source, WrongLayout, listed
from unseen.errors import BadInput

__all__ = ["CLASS_LAYOUT", "SPLIT_NAMES", "Found", "find_images", "folder_plan", "in_order", "normal", "read_classes", "with_known_classes"]

CLASS_LAYOUT = "<domain>/<class>/<image>; a folder train, val or test may stand below the domain, a patient's folder below the class"
SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "crossval": "val",
    "test": "test",
    "testing": "test",
}


@dataclass(frozen=True)
class Found:
    """An image file and what its folders say of it."""

    file: str
    domain: str
    label: str
    split: str = ""
    group: str = ""

    @property
    def facts(self) -> Facts:
        return Facts(self.file, self.group, self.split)


def read_classes(
    source: Source, *, domains: Mapping[str, Sequence[str]] | None = None, classes: Mapping[str, Sequence[str]] | None = None
) -> ReadPlan:
    """Domains and classes from folders. Known ones are given with the other names under which people have them."""
    found, notes = find_images(source, domains)
    if classes is not None:
        found = with_known_classes(found, classes)
    return folder_plan(source, found, list(classes) if classes else None, notes)


def find_images(source: Source, domains: Mapping[str, Sequence[str]] | None = None) -> tuple[list[Found], list[str]]:
    """Every image with its domain and class, and notes on what is missing."""
    paths = [name.split("/") for name in source.images()]
    notes: list[str] = []
    if domains is None:
        below = _below_the_root(paths)
    else:
        below, notes = _below_known_domains(paths, domains)
    return [_sorted_in(parts, name) for parts, name in _without_copies(below)], notes


def folder_plan(source: Source, found: Sequence[Found], classes: list[str] | None, notes: Iterable[str] = ()) -> ReadPlan:
    """The plan for these images; `classes` in their order where it is known."""
    classes = classes or in_order({f.label for f in found})
    _refuse_empty_classes(source, found)
    number = {name: i for i, name in enumerate(classes)}
    pieces: dict[str, list[ImagePiece]] = {}
    for f in found:
        pieces.setdefault(f.domain, []).append(ImagePiece(source, f.file, number[f.label], f.facts))
    lacking = [
        f"{domain} has no image of {listed([c for c in classes if number[c] not in {p.label for p in items}])}"
        for domain, items in pieces.items()
        if len({p.label for p in items}) < len(classes)
    ]
    return classification_plan(classes, pieces, [*notes, *lacking])


def in_order(names: Iterable[str]) -> list[str]:
    """Sorted; by number where all are numbers.

    >>> in_order(["10", "9"]), in_order(["b", "a", "10"])
    (['9', '10'], ['10', 'a', 'b'])
    """
    names = set(names)
    return sorted(names, key=int) if all(n.isascii() and n.isdigit() for n in names) else sorted(names)


def normal(name: str) -> str:
    """A name without case, spaces and signs, to compare by.

    >>> normal("Real World") == normal("real_world")
    True
    """
    return "".join(letter for letter in name.lower() if letter.isalnum())


Located = list[tuple[list[str], str]]  # the folders from the domain on, and the whole name


def _below_the_root(paths: list[list[str]]) -> Located:
    """Leave out the folders that all images share, as long as a domain and a class remain."""
    depth = min((len(parts) - 1 for parts in paths), default=0)
    if depth < 2:
        shallow = [parts for parts in paths if len(parts) < 3]
        raise WrongLayout(f"{'/'.join(shallow[0])} is not in a class folder of a domain folder" if shallow else "there is no image in it")
    shared = 0
    while shared < depth - 2 and len({parts[shared] for parts in paths}) == 1:
        shared += 1
    return [(parts[shared:-1], "/".join(parts)) for parts in paths]


def _below_known_domains(paths: list[list[str]], domains: Mapping[str, Sequence[str]]) -> tuple[Located, list[str]]:
    called = {normal(name): domain for domain, others in domains.items() for name in (domain, *others)}
    located: Located = []
    for parts in paths:
        level = next((i for i, part in enumerate(parts[:-2]) if normal(part) in called), None)
        if level is not None:
            located.append(([called[normal(parts[level])], *parts[level + 1 : -1]], "/".join(parts)))
    there = {folders[0] for folders, _ in located}
    missing = [domain for domain in domains if domain not in there]
    if len(there) < min(2, len(domains)):
        raise WrongLayout(f"no images in class folders of {listed(missing)}")
    return located, [f"not found and left out: {', '.join(missing)}"] if missing else []


def _without_copies(located: Located) -> Located:
    """Some releases hold `full` beside train, crossval and test: the same images again."""
    second = {folders[1].lower() for folders, _ in located}
    if "full" in second and second - {"full"} and second - {"full"} <= SPLIT_NAMES.keys():
        return [(folders, name) for folders, name in located if folders[1].lower() != "full"]
    return located


def _sorted_in(folders: list[str], name: str) -> Found:
    domain, *rest = folders
    split = SPLIT_NAMES.get(rest[0].lower(), "") if len(rest) > 1 else ""
    label, *below = rest[1:] if split else rest
    return Found(name, domain, label, split, "/".join(below))


def with_known_classes(found: list[Found], classes: Mapping[str, Sequence[str]]) -> list[Found]:
    called = {normal(name): label for label, others in classes.items() for name in (label, *others)}
    strange = sorted({f"{f.domain}/{f.label}" for f in found if normal(f.label) not in called})
    if strange:
        raise WrongLayout(f"unknown classes {listed(strange)}; the classes are {', '.join(classes)}")
    return [Found(f.file, f.domain, called[normal(f.label)], f.split, f.group) for f in found]


def _refuse_empty_classes(source: Source, found: Sequence[Found]) -> None:
    """A class folder that is empty in one domain and filled in another is a site without that class; empty everywhere, a mistake."""
    folders = {f.file.rpartition("/")[0] for f in found}
    beside = {folder.rpartition("/")[0] for folder in folders}
    labels = {f.label for f in found}
    empty = sorted(e for e in source.empty_folders if e.rpartition("/")[0] in beside and e.rpartition("/")[2] not in labels)
    if empty:
        raise BadInput(f"{source.label}: no images in the class folder {listed(empty)}, nor in another domain; fill it or remove it")
