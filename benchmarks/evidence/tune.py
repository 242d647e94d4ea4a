"""Learning rates chosen on source validation: reads a plan, tries each row's rates, writes the benchmark with the best.

    python benchmarks/evidence/tune.py benchmarks/evidence/pacs.plan.toml --out runs/pacs-rates --write benchmarks/evidence/pacs.toml

A plan is a file for `unseen bench` in which a row may say `rates = [...]` (tried as its lr), `rate_fields = { lr_f = 1.0, lr_g = 0.7 }`
(those multiples of a rate, in place of lr) or `rate_of = "LABEL"` (another row's choice). `[tune]` says what the tries are made with
(rounds, seeds, targets); `[tune.set]` holds further fields of the tries. The best rate is that of the highest mean validation metric of
the source domains in the last round; the unseen domain is not looked at.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

from unseen.bench.jobs import in_processes
from unseen.bench.plan import read_benchmark, write_plan
from unseen.report.collect import collect
from unseen.runs.selection import source_score
from unseen.runs.watch import Silent

DIVERGED = "nothing to average"  # what a run says that ended since no client gave finite weights: its rate is no good
OF_THE_PLAN = ("rates", "rate_fields", "rate_of")


class Lines(Silent):
    def say(self, message: str) -> None:
        print(message, flush=True)

    def ended(self, run: str, failed: str = "") -> None:
        print(run, f"failed: {failed}" if failed else "", flush=True)


def with_rate(row: dict[str, Any], rate: float) -> dict[str, Any]:
    """The row as `unseen bench` reads it, at that rate."""
    fields = {name: float(f"{factor * rate:.6g}") for name, factor in row.get("rate_fields", {"lr": 1.0}).items()}
    kept = {key: value for key, value in row.items() if key not in OF_THE_PLAN}
    return {**kept, "set": {**row.get("set", {}), **fields}}


def tries(plan: dict[str, Any]) -> dict[str, Any]:
    """The benchmark of all rows at all their rates."""
    how = plan["tune"]
    methods = []
    for row in plan["methods"]:
        for rate in row.get("rates", []):
            tried = with_rate(row, rate)
            own = how.get("set", {}).get(row["method"], {})
            methods.append({**tried, "label": f"{row['label']} @ {rate:g}", "set": {**tried["set"], **own}})
    around = {key: value for key, value in plan.items() if key not in ("tune", "methods", "paper_numbers")}
    return {**around, **{key: value for key, value in how.items() if key != "set"}, "methods": methods}


def best_rates(plan: dict[str, Any], runs: Path) -> dict[str, float]:
    """Label -> the rate whose runs score best on source validation in their last round."""
    scores: dict[str, list[float]] = {}
    for run in collect(runs, force=True).finished:
        scores.setdefault(run.name, []).append(source_score(run.records[-1]) or 0.0)
    means = {name: sum(values) / len(values) for name, values in scores.items()}
    best = {}
    for row in plan["methods"]:
        if "rates" in row:
            tried = {rate: means.get(f"{row['label']} @ {rate:g}", 0.0) for rate in row["rates"]}
            best[row["label"]] = max(tried, key=lambda rate: tried[rate])
            print(f"{row['label']:28s} " + "  ".join(f"{rate:g}: {100 * score:.2f}" for rate, score in tried.items()), flush=True)
    return best


def settled(plan: dict[str, Any], best: dict[str, float]) -> dict[str, Any]:
    rows = [with_rate(row, best[row.get("rate_of", row["label"])]) if set(row) & set(OF_THE_PLAN) else row for row in plan["methods"]]
    return {**{key: value for key, value in plan.items() if key != "tune"}, "methods": rows}


def to_toml(values: dict[str, Any], header: str) -> str:
    plain = [f"{key} = {inline(value)}" for key, value in values.items() if not isinstance(value, dict) and key != "methods"]
    rows = ["methods = [", *(f"    {inline(row)}," for row in values["methods"]), "]"]
    tables = [
        f"\n[{key}]\n" + "\n".join(f"{quoted(k)} = {inline(v)}" for k, v in value.items())
        for key, value in values.items()
        if isinstance(value, dict)
    ]
    return "\n".join([header, *plain, *rows, *tables]) + "\n"


def inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{quoted(k)} = {inline(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(inline(v) for v in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def quoted(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else json.dumps(key, ensure_ascii=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("plan", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="folder for the tries")
    parser.add_argument("--write", type=Path, required=True, help="the benchmark file to write")
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    plan = tomllib.loads(given.plan.read_text())
    values = tries(plan)
    cells = read_benchmark(values)
    write_plan(values, cells, given.out)
    failed = in_processes(cells, given.out, given.jobs, Lines())
    for folder, reason in failed.items():
        print(f"failed: {folder}: {reason}")
    if any(DIVERGED not in reason for reason in failed.values()):
        sys.exit("some tries failed for another reason than their rate; nothing is chosen. The same command again goes on with them")
    comment = [line for line in given.plan.read_text().splitlines() if line.startswith("#")]
    comment.append(f"# Written by benchmarks/evidence/tune.py from {given.plan.name}: the rates are the best on source validation.")
    given.write.write_text(to_toml(settled(plan, best_rates(plan, given.out)), "\n".join(comment)))


if __name__ == "__main__":
    main()
