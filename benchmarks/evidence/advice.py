"""What `unseen advise` may say: every row of the committed tables against FedAvg, with its interval.

    python benchmarks/evidence/advice.py

Writes src/unseen/advice/evidence.toml and, of `best` and the papers' methods, the table in docs/which-method.md, from
benchmarks/results/NAME.csv and again/NAME.csv and the rows of NAME.toml beside this program. Run it again whenever a table changes.
"""

from __future__ import annotations

import csv
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from unseen.data.sets.registry import DATASETS
from unseen.report.verdicts import judge

ROOT = Path(__file__).parents[2]
FILE = ROOT / "src/unseen/advice/evidence.toml"
PAGE = ROOT / "docs/which-method.md"
TABLES = {  # and the row that others are held against
    "pacs": "FedAvg",
    "styled-digits": "FedAvg, Adam",
    "digits": "FedAvg",
    "rotated": "FedAvg",
    "letters": "FedAvg",
    "icons": "FedAvg",
    "patches": "FedAvg",
    "digits-single-source": "FedAvg",
    "pacs-single-source": "FedAvg",
    "pacs-single-source-mild": "FedAvg",
    "phantom-sites": "FedAvg",
    "vessels": "FedAvg",
    "polyps": "FedAvg",
    "cells": "FedAvg",
}
FOLDERS = {
    "folder:polyps": "segmentation",
    "folder:cells": "segmentation",
    "folder:rotated": "classification",
    "folder:letters": "classification",
    "folder:icons": "classification",
    "folder:patches": "classification",
}
WITH_SGD = "FedAvg, SGD"  # for these, which train so, where the table has it
OF_SGD = (
    "FedProx",
    "FedADG",
    "FedADG, adversarial",
    "FedADG, normal reference",
    "FedAvg++",
    "FedDAG",
    "FedDAG without SHA",
    "FedDAG without NDAG",
)
OF_SGD += ("FedDyn", "FedSAM", "FedGCA", "FedAvg + RandConv")
EQUAL_WORK = "FedAvg, four times the steps"  # against it `best` stands too, which visits each image four times
ON_THE_PAGE = ("best", "best, gentle", "FedSB", "FedADG", "FedDAG", "ELCFS", "ELCFS, as released", "FedGCA")
PARTS = ("views", "smoothing", "mixstyle", "sam", "average")
Scores = dict[tuple[str, int], float]  # by unseen domain and seed
BEGIN, END = "<!-- evidence: made by benchmarks/evidence/advice.py -->\n", "<!-- end of evidence -->"


def last_scores(*files: Path) -> dict[str, Scores]:
    """Row -> unseen domain and seed -> the score in the last round, in percent."""
    last: dict[tuple[str, str, int], tuple[int, float]] = {}
    for file in files:
        with file.open(newline="", encoding="utf-8") as stream:
            for line in csv.DictReader(stream):
                key = line["method"], line["unseen domain"], int(line["seed"])
                number = int(line["round"])
                if number >= last.get(key, (0, 0.0))[0]:
                    last[key] = number, 100 * float(line["score"])
    scores: dict[str, Scores] = {}
    for (row, target, seed), (_, score) in last.items():
        scores.setdefault(row, {})[target, seed] = score
    return scores


def of_whole_seeds(one: Scores, other: Scores) -> tuple[Scores, Scores]:
    """Both rows over seeds that both have on every unseen domain: a seed that was cut would make some domains count for more."""
    domains = {target for target, _ in (*one, *other)}
    whole = {seed for _, seed in one if all((target, seed) in row for target in domains for row in (one, other))}
    first, second = ({key: score for key, score in row.items() if key[1] in whole} for row in (one, other))
    return first, second


def task_of(data: str) -> str:
    """A folder's task is not in the registry."""
    return FOLDERS.get(data) or DATASETS[data].task


def findings() -> Iterator[dict[str, Any]]:
    for table, plain in TABLES.items():
        first, later = (ROOT / f"benchmarks/results/{where}{table}.csv" for where in ("", "again/"))
        if not first.is_file():
            continue  # planned, not run
        benchmark = tomllib.loads((ROOT / f"benchmarks/evidence/{table}.toml").read_text(encoding="utf-8"))
        rows = {row["label"]: row for row in benchmark["methods"]}
        scores = last_scores(first, *([later] if later.is_file() else []))
        for label, row in rows.items():
            against = [WITH_SGD if label in OF_SGD and WITH_SGD in scores else plain]
            against += [EQUAL_WORK] if label == "best" and EQUAL_WORK in scores else []
            if label not in (plain, WITH_SGD) and label in scores:
                yield from (found for other in against if (found := finding(table, task_of(benchmark["data"]), row, other, scores)))


def finding(table: str, task: str, row: dict[str, Any], against: str, scores: dict[str, Scores]) -> dict[str, Any] | None:
    """One row against another; None where there is no interval."""
    label, fields = row["label"], row.get("set", {})
    found = judge(label, against, *of_whole_seeds(scores[label], scores[against]))
    if found.low is None or found.high is None or found.difference is None:
        return None
    return {
        "table": table,
        "task": task,
        "row": label,
        "against": against,
        "method": row["method"],
        "parts": [part for part in PARTS if fields.get(part, "none") not in ("none", 0.0)],
        "difference": round(found.difference, 2),
        "low": round(found.low, 2),
        "high": round(found.high, 2),
        "domains": len(found.targets),
        "seeds": found.seeds,
        "decision": found.decision,
    }


def to_toml(rows: list[dict[str, Any]]) -> str:
    lines = [
        "# Written by benchmarks/evidence/advice.py: rows of the tables against FedAvg, last round, points, 95 % intervals over pairs."
    ]
    told = ["{ " + ", ".join(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in row.items()) + " }" for row in rows]
    return "\n".join([*lines, "findings = [", *(f"    {row}," for row in told), "]"]) + "\n"


def to_page(rows: list[dict[str, Any]]) -> str:
    lines = ["| table | row | against | points | 95 % interval | domains, seeds | |", "| --- | --- | --- | --- | --- | --- | --- |"]
    for r in (row for row in rows if row["row"] in ON_THE_PAGE):
        size = f"{r['difference']:+.1f} | {r['low']:+.1f} to {r['high']:+.1f} | {r['domains']}, {r['seeds']}"
        lines.append(f"| {r['table']} | {r['row']} | {r['against']} | {size} | {r['decision']} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    rows = [*findings()]
    FILE.write_text(to_toml(rows), encoding="utf-8")
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    PAGE.write_text(before + BEGIN + to_page(rows) + END + rest.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    main()
