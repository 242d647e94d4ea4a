"""The metrics that stand beside the one that a table goes by: accuracy alone misleads where class shares differ between sites."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from unseen.report.tables import Cell, Stat, Table

__all__ = ["Companion", "beside", "companions_of"]


@dataclass(frozen=True)
class Companion:
    """A metric as tables call it; `scale` makes it percent."""

    key: str
    title: str
    scale: float
    higher: bool  # is better


_OF_CLASSES = (
    Companion("accuracy", "accuracy", 100.0, True),
    Companion("balanced_accuracy", "balanced accuracy", 100.0, True),
    Companion("weighted_auc", "AUC", 100.0, True),
    Companion("ece", "ECE", 100.0, False),
)
_OF_MASKS = (Companion("dice", "Dice", 100.0, True), Companion("hd95", "HD95", 1.0, False))


def companions_of(cells: Sequence[Cell]) -> tuple[Companion, ...]:
    """Those of the runs' task, without the one that they go by, that some run has."""
    records = [cell.records[-1] for cell in cells if cell.records]
    known = {key for record in records for row in record["target"].values() for key in row}
    main = {record["metric"] for record in records}
    return tuple(one for one in (*_OF_CLASSES, *_OF_MASKS) if one.key in known and one.key not in main)


def beside(cells: Sequence[Cell], rule: str) -> Table:
    """Methods against these metrics: the mean over the unseen domains of a seed, then over seeds that have all of them."""
    rows: dict[str, dict[str, Stat]] = {}
    found = companions_of(cells)
    for method in dict.fromkeys(cell.method for cell in cells):
        mine = [cell for cell in cells if cell.method == method]
        for one in found:
            seeds: dict[int, list[float]] = {}
            for cell in mine:
                seeds.setdefault(cell.seed, []).extend(one.scale * value for value in cell.scores(rule, one.key).values())
            whole = max(map(len, seeds.values()), default=0)
            means = [statistics.fmean(values) for values in seeds.values() if values and len(values) == whole]
            if means:
                rows.setdefault(method, {})[one.title] = Stat.of(means)
    columns = tuple(one.title for one in found if any(one.title in row for row in rows.values()))
    lower = tuple(one.title for one in found if one.title in columns and not one.higher)
    return Table(cells[0].records[0]["metric"] if rows else "score", rule, columns, rows, {}, beside=True, lower=lower)
