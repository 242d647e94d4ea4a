"""Bring your own by a table: one line per image, with path, domain, label or mask, and where known split and patient."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from unseen.data.reading.class_folders import SPLIT_NAMES, in_order
from unseen.data.reading.masks import deduce_map
from unseen.data.reading.piece import Facts, ImagePiece, MaskedPiece, ReadPlan, classification_plan, segmentation_plan
from unseen.data.reading.site_folders import histograms
from unseen.data.reading.source import Source, files_fingerprint, listed, read_file
from unseen.data.reading.table import read_table
from unseen.errors import BadInput

__all__ = ["CSV_LAYOUT", "TableSource", "read_manifest"]

CSV_LAYOUT = "a CSV file with the columns path, domain and either label or mask; split (train, val, test) and patient may follow"
_KNOWN = ("path", "domain", "label", "mask", "split", "patient")

Row = Mapping[str, str]


class TableSource(Source):
    """The files that a table names, by its own words: absolute, or as seen from the table's folder."""

    def __init__(self, table: Path) -> None:
        super().__init__(str(table))
        self.folder = table.parent
        try:
            text = table.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"{table} cannot be read as a table: {error}") from None
        self.rows = read_table(text, table.name, ("path", "domain"))
        self.names = tuple(sorted({row[key] for row in self.rows for key in ("path", "mask") if row.get(key)}))
        missing = [name for name in self.names if not (self.folder / name).is_file()]
        if missing:
            raise BadInput(f"{table.name} names {len(missing)} files that are not there: {listed(missing)}")

    def read(self, name: str) -> bytes:
        return read_file(self.folder / name, name)

    def fingerprints(self) -> list[str]:
        """One for each file, so that a changed image is noticed as well as a changed line."""
        return [f"{name} {files_fingerprint(self.folder / name)}" for name in self.names]


def read_manifest(source: Source) -> ReadPlan:
    """The plan of a table; classes are sorted by name, or by number where all are numbers."""
    assert isinstance(source, TableSource)
    rows = source.rows
    _refuse_bad_rows(source.label, rows)
    if "mask" in rows[0]:
        mask_map, note = deduce_map(histograms(source, [row["mask"] for row in rows]))
        masked: dict[str, list[MaskedPiece]] = {}
        for row in rows:
            masked.setdefault(row["domain"], []).append(MaskedPiece(source, row["path"], row["mask"], mask_map, _facts(row)))
        return segmentation_plan(mask_map.names, masked, [note] if note else [])
    classes = in_order(row["label"] for row in rows)
    labelled: dict[str, list[ImagePiece]] = {}
    for row in rows:
        labelled.setdefault(row["domain"], []).append(ImagePiece(source, row["path"], classes.index(row["label"]), _facts(row)))
    return classification_plan(classes, labelled)


def _facts(row: Row) -> Facts:
    return Facts(row["path"], row.get("patient", ""), SPLIT_NAMES.get(row.get("split", "").lower(), ""))


def _refuse_bad_rows(label: str, rows: Sequence[Row]) -> None:
    if ("label" in rows[0]) == ("mask" in rows[0]):
        raise BadInput(f"{label} has {'both' if 'label' in rows[0] else 'neither'} of the columns label and mask; expected one of them")
    unknown = [name for name in rows[0] if name and name not in _KNOWN]
    problems = [f"{label} has the unknown column {listed(unknown)}; known are {', '.join(_KNOWN)}"] if unknown else []
    needed = [name for name in ("path", "domain", "label", "mask") if name in rows[0]]
    problems += _in_rows("no value for one of " + ", ".join(needed), [not all(row[name] for name in needed) for row in rows])
    if "split" in rows[0]:
        strange = [bool(row["split"]) and row["split"].lower() not in SPLIT_NAMES for row in rows]
        problems += _in_rows("a split other than train, val and test", strange)
        for domain in sorted({row["domain"] for row in rows}):
            given = {bool(row["split"]) for row in rows if row["domain"] == domain}
            if len(given) > 1:
                problems.append(f"domain {domain!r} has a split for some images and none for others")
    times = Counter(row["path"] for row in rows)
    problems += _in_rows("a path that is there twice", [times[row["path"]] > 1 for row in rows])
    if problems:
        raise BadInput(problems)


def _in_rows(what: str, wrong: Sequence[bool]) -> list[str]:
    numbers = [f"row {number}" for number, bad in enumerate(wrong, 1) if bad]
    return [f"{what}: {listed(numbers)}"] if numbers else []
