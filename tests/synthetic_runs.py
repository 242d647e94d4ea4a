"""Run folders without any training: what reports and pages are tested on."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

DOMAINS = ("art", "cartoon", "photo", "sketch")
CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")


def write_run(
    folder: Path,
    method: str = "FedAvg",
    fold: str = "art",
    seed: int = 0,
    rounds: int = 5,
    *,
    done: int | None = None,
    skill: float = 0.7,
    task: str = "classification",
    own: dict[str, float] | None = None,
    **experiment: Any,
) -> None:
    """A run of `rounds` rounds of which `done` are recorded; scores rise towards `skill`, a little different under each seed.

    `own` are the scores of the clients' own models.
    """
    metric, beside = ("accuracy", "ece") if task == "classification" else ("dice", "hd95")
    rng = random.Random(f"{method} {fold} {seed}")
    sources = [d for d in DOMAINS if d != fold]
    clients: dict[str, dict[str, Any]] = {d: {"domain": d, "train": 90 + 40 * n, "validation": 10 + 4 * n} for n, d in enumerate(sources)}
    if task == "classification":
        for client in clients.values():
            drawn = random.Random(f"{client['domain']} {seed}").choices(range(len(CLASSES)), k=client["train"])
            client["classes"] = [drawn.count(number) for number in range(len(CLASSES))]
    described = {"method": method.lower(), "set": {"lr": 1e-3, "aggregation": {"name": "mean"}}, "data": "pacs", "size": None} | {
        "protocol": "leave-one-domain-out",
        "rounds": rounds,
        "seed": seed,
        "target": fold,
        "network": "resnet18",
        **experiment,
    }
    about = {"name": method, "fold": fold, "targets": [fold], "task": task, "metric": metric, "experiment": described}
    about |= {"between_sites": False, "model": {"labels": list(CLASSES) if task == "classification" else ["disc", "cup"]}}
    about |= {"departures": {"lr": [1e-4, 1e-3]}, "partition": "0" * 64, "clients": clients, "versions": {"torch": "2.13.0"}}
    lines, timings = [], []
    for number in range(1, (rounds if done is None else done) + 1):
        score = min(1.0, max(0.0, skill * (1 - math.exp(-4 * number / rounds)) + rng.gauss(0, 0.015)))
        row = {metric: score, beside: 0.3 * (1 - score), "samples": 100}
        travelled = [
            {"task": "train", "direction": way, "field": "model", "kind": "model", "bytes": 44_700_000, "grows": False, "clients": sources}
            for way in ("received", "sent")
        ]
        record = {"fold": fold, "round": number, "seed": seed, "method": method, "metric": metric, "source": {}, "held_out": {}}
        record |= {
            "source_mean": {metric: score + 0.1},
            "target": {fold: row},
            "travelled": travelled,
            "scoring": [],
            "missing": {},
            "notes": {},
        }
        if own is not None:
            mean = {metric: sum(own.values()) / len(own)}
            record |= {"own": {client: {metric: value, "samples": 10} for client, value in own.items()}, "own_mean": mean}
        lines.append(json.dumps(record))
        timings.append(json.dumps({"round": number, "train": 2 + rng.random(), "score": 0.5}))
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(about))
    (folder / "records.jsonl").write_text("".join(line + "\n" for line in lines))
    (folder / "timings.jsonl").write_text("".join(line + "\n" for line in timings))


def write_bench(folder: Path, methods: int, seeds: int, rounds: int) -> None:
    """methods x four domains x seeds."""
    names = [
        "FedAvg",
        "FedProx",
        "FedSB",
        "FedADG",
        "ELCFS",
        "FedDAG",
        "FedGCA",
        "FedDyn",
        "FedSAM",
        "FedSB + MixStyle, no balanced budget",
    ]
    names += [f"variant {n}" for n in range(len(names), methods)]
    for number, method in enumerate(names[:methods]):
        for fold in DOMAINS:
            for seed in range(seeds):
                where = folder / f"m{number}" / fold / f"seed-{seed}"
                write_run(where, method, fold, seed, rounds, skill=0.6 + 0.02 * number + 0.03 * DOMAINS.index(fold))
