"""Plans over four small domains, and runs of theirs that are written rather than trained: what each try scores on each domain is given."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from unseen.bench.plan import BenchmarkCell

FILE = Path(__file__).parents[1] / "four_domains.py"
DOMAINS = ("a", "b", "c", "d")
Skill = Callable[[str, str, int], float]  # (name of the try's row and try, domain, round) -> score


def plan_values(*rows: dict[str, Any], **tune: Any) -> dict[str, Any]:
    row = {"method": "fedavg", "label": "A", "try": {"smoothing": [0.0, 0.1, 0.2]}}
    return {"data": f"{FILE}:four", "rounds": 4, "network": "small_cnn:width=2", "device": "cpu"} | {
        "methods": [*(rows or (row,))],
        "tune": {"rule": "held-out", "choice": "per-target", **tune},
    }


def record(cell: BenchmarkCell, number: int, skill: Skill, source: float = 0.5) -> dict[str, Any]:
    experiment = cell.experiment

    def scored(*names: str | None) -> dict[str, Any]:
        return {name: {"accuracy": skill(experiment.name, name, number), "samples": 5} for name in names if name}

    return {
        "fold": str(experiment.target or experiment.source),
        "round": number,
        "seed": experiment.seed,
        "method": experiment.name,
        "metric": "accuracy",
        "source": {},
        "source_mean": {"accuracy": source},
        "target": scored(*([experiment.target] if experiment.target else [d for d in DOMAINS if d != experiment.source])),
        "held_out": scored(experiment.held_out),
        "travelled": [],
        "scoring": [],
        "missing": {},
        "notes": {},
    }


class Written:
    """Stands for the engine: writes the records of cells, and notes which it was asked for and to which round."""

    def __init__(self, out: Path, skill: Skill, source: Callable[[BenchmarkCell], float] = lambda cell: 0.5) -> None:
        self.out, self.skill, self.source = out, skill, source
        self.asked: list[tuple[str, int]] = []
        self.failing: dict[str, str] = {}
        self.diverging: dict[str, int] = {}  # part of a folder -> the round that gives no finite weights

    def __call__(self, cells: Sequence[BenchmarkCell]) -> dict[str, str]:
        failed = {}
        for cell in cells:
            self.asked.append((cell.folder, cell.experiment.rounds))
            why = next((why for part, why in self.failing.items() if part in cell.folder), None)
            if why:
                failed[cell.folder] = why
                continue
            rounds = cell.experiment.rounds
            ends = next((number for part, number in self.diverging.items() if part in cell.folder), rounds + 1)
            if ends <= rounds:
                failed[cell.folder] = f"round {ends}: nothing to average"
            lines = [record(cell, n, self.skill, self.source(cell)) for n in range(1, min(rounds + 1, ends))]
            folder = self.out / cell.folder
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return failed


def by_smoothing(scores: dict[float, float]) -> Skill:
    """The same score on every domain."""
    return lambda name, domain, number: scores[float(name.rpartition("=")[2])]
