"""Runs from the scores that were kept of them, so that a table can grow where the folders of its first runs are gone.

    python benchmarks/evidence/restore.py benchmarks/results/pacs-paper-scale.csv --to runs

Writes runs/NAME/restored/ROW/FOLD/seed-N, NAME being the file's: what `summarise.py` and `unseen verdict` read, with four digits of every
score, and no models. A run that is below runs/NAME already is left as it is.
"""

from __future__ import annotations

import argparse
import csv
import json
import tomllib
from pathlib import Path
from typing import Any

from unseen.report.collect import collect
from unseen.runs.record import Record

BESIDE = ("accuracy", "balanced_accuracy", "weighted_auc", "ece", "hd95")  # what a file may hold beside the table's metric
Key = tuple[str, str, int]  # row, fold and seed


def read_scores(file: Path, counted: str | None = None) -> dict[Key, list[Record]]:
    """The records of every run of which the file has scores, in the file's order, with what it knows of them.

    `counted` is the metric, where it is not the task's own.
    """
    runs: dict[Key, list[Record]] = {}
    with file.open(newline="", encoding="utf-8") as stream:
        for line in csv.DictReader(stream):
            key = line["method"], line["fold"], int(line["seed"])
            records, number = runs.setdefault(key, []), int(line["round"])
            metric = counted or ("dice" if "hd95" in line else "accuracy")
            if len(records) < number:
                records.append(_record(key, number, metric, float(line["source validation"])))
            further = {name: float(line[name]) for name in BESIDE if line.get(name)}
            records[-1]["target"][line["unseen domain"]] = {metric: float(line["score"]), **further}
    return runs


def _record(key: Key, number: int, metric: str, source: float) -> Record:
    name, fold, seed = key
    return {
        "fold": fold,
        "round": number,
        "seed": seed,
        "method": name,
        "metric": metric,
        "source": {},
        "source_mean": {metric: source},
        "target": {},
        "held_out": {},
        "travelled": [],
        "scoring": [],
        "missing": {},
        "notes": {},
    }


def about(key: Key, records: list[Record], benchmark: dict[str, Any]) -> dict[str, Any]:
    """run.json, as far as tables read it."""
    name, fold, seed = key
    metric = records[0]["metric"]
    common = {"data": benchmark["data"], "size": benchmark.get("size"), "protocol": benchmark.get("protocol", "leave-one-domain-out")}
    return {
        "name": name,
        "fold": fold,
        "targets": [*records[0]["target"]],
        "task": "segmentation" if metric == "dice" else "classification",
        "metric": metric,
        "experiment": {**common, "seed": seed, "rounds": benchmark["rounds"], "set": {}},
    }


def restore(file: Path, benchmark: dict[str, Any], to: Path) -> int:
    """Write the runs that are not there; returns how many."""
    there = {(run.name, run.fold, run.seed) for run in collect(to).finished} if to.is_dir() else set()
    lost = {key: records for key, records in read_scores(file, benchmark.get("metric")).items() if key not in there}
    for key, records in lost.items():
        name, fold, seed = key
        folder = to / "restored" / name / fold / f"seed-{seed}"
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps(about(key, records, benchmark)) + "\n", encoding="utf-8")
        (folder / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return len(lost)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("scores", type=Path, help="benchmarks/results/NAME.csv")
    parser.add_argument("--to", type=Path, required=True, help="folder that holds the tables' runs")
    given = parser.parse_args()
    name = given.scores.stem
    benchmark = tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8"))
    print(f"{restore(given.scores, benchmark, given.to / name)} runs restored in {given.to / name}")


if __name__ == "__main__":
    main()
