"""A whole table against the bare step, in one run: images a second from the command to the table, over those of the network's step alone.

    python benchmarks/table_of_runs.py                                       # benchmarks/table-of-48.toml
    python benchmarks/table_of_runs.py --set rounds=3 --set targets=sketch   # options of `unseen bench`, to make it smaller
    python benchmarks/table_of_runs.py --table benchmarks/evidence/pacs.toml --set row=best --out runs/pacs

First `unseen speed` times the bare step (recorded or compiled, whichever is faster), alone. Then `unseen bench` runs the table, and
chooses how many runs go at once. Its time holds everything: starts, scoring, files. It is for methods that make one pass through the
network for each image that a client draws (FedAvg, FedSB, best).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

UNSEEN = [sys.executable, "-m", "unseen"]


def bare_rate(plan: dict[str, Any], compile: str, scratch: Path) -> float:
    """Images a second of the bare step of the table's network."""
    found = scratch / "speed.json"
    command = [
        *UNSEEN,
        "speed",
        "-q",
        "--no-start",
        "--methods",
        "fedavg",
        "--networks",
        plan["network"],
        "--batch",
        str(plan["set"]["batch"]),
    ]
    command += [
        "--compile",
        compile,
        "--data",
        plan["data"],
        "--target",
        plan["targets"][0],
        "--size",
        str(plan["size"]),
        "--precision",
        plan["precision"],
    ]
    subprocess.run([*command, "--json", str(found)], check=True)
    return float(json.loads(found.read_text())["measured"][0]["bare"])


def images_of(run: Path) -> int:
    """How many a finished run has trained on: whole batches, but for the last one of a pass."""
    rounds, about = len((run / "records.jsonl").read_text().splitlines()), json.loads((run / "run.json").read_text())
    chosen = about["experiment"]["set"]
    steps, visits = chosen.get("budget") or chosen.get("steps"), chosen.get("visits", 1)
    images = 0
    for client in about["clients"].values():
        passes, share = divmod(visits * chosen.get("epochs", 0), 1)
        some = int(passes) * client["train"] + bool(share) * max(1, round(share * (client["train"] // chosen["batch"]))) * chosen["batch"]
        images += visits * steps * chosen["batch"] if steps else some
    return rounds * images


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--table", type=Path, default=Path(__file__).with_name("table-of-48.toml"))
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help="an option of `unseen bench`")
    parser.add_argument("--compile", default="auto", help="off: the bare step is recorded alone, and not held against a compiled one")
    parser.add_argument("--out", type=Path, help="where the runs stay; otherwise they go")
    given = parser.parse_args()
    plan = tomllib.loads(given.table.read_text())
    smaller = [part for setting in given.set for part in ("--" + setting.split("=", 1)[0], setting.split("=", 1)[1])]
    with tempfile.TemporaryDirectory() as folder:
        bare, out = bare_rate(plan, given.compile, Path(folder)), given.out or Path(folder) / "table"
        began = time.perf_counter()
        subprocess.run([*UNSEEN, "bench", str(given.table), "--out", str(out), "-q", *smaller], check=True)
        seconds = time.perf_counter() - began
        runs = [file.parent for file in out.rglob("records.jsonl")]
        images = sum(images_of(run) for run in runs)
    print(f"{len(runs)} runs, {images:,} images in {seconds:.1f} s from the command to the table: {images / seconds:,.0f} a second")
    print(f"bare step alone: {bare:,.0f} a second; the table's ratio to it: {images / seconds / bare:.2f}")


if __name__ == "__main__":
    main()
