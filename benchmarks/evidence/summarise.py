"""A benchmark's runs as text to keep: tables under every rule, differences from the baselines, and all scores round by round.

    python benchmarks/evidence/summarise.py runs/styled-digits --against "FedAvg, SGD" --against "FedAvg, Adam" --to benchmarks/results

Writes NAME.md and NAME.csv, NAME being the folder's. What was run is told in the words at the head of NAME.toml beside this program. Rates
tried by `unseen tune` are told from the folder NAME-rates beside the runs; where that is gone, as NAME.md told them before. A difference
is of runs with one unseen domain and seed; its interval is Student's t (95 %) over them.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean

from unseen.report.beside import beside
from unseen.report.collect import Run, collect
from unseen.report.statistics import Scores, compare, scores_by_method
from unseen.report.tables import Stat, comparison, to_markdown
from unseen.runs.selection import source_score

RULES = ("last", "source", "oracle")
BESIDE = {
    "accuracy": 4,
    "balanced_accuracy": 4,
    "weighted_auc": 4,
    "ece": 4,
    "hd95": 3,
}  # what is kept beside the table's metric, and digits
TRIED = "Source validation of the rates that were tried"


def differences(scores: Mapping[str, Scores], baseline: str, what: str = "") -> Iterator[str]:
    yield f"\nDifference from {baseline}{what}, last round"
    yield ""
    yield "| method | difference | 95 % interval | pairs | p (t-test, Holm) |"
    yield "|---|---|---|---|---|"
    for row in compare(scores, against=baseline):
        if row.difference is None or row.low is None or row.high is None or row.adjusted is None:
            continue
        low, high = -row.high, -row.low  # compare() has the baseline first
        yield f"| {row.second} | {-row.difference:+.2f} | {low:+.2f} to {high:+.2f} | {row.n} | {row.adjusted:.2g} |"


def others(whole: list[Run]) -> Iterator[str]:
    """Accuracy, balanced accuracy, AUC and calibration of the rows whose runs hold them: those restored from an older file do not."""
    if len({run.name for run in whole}) > 1:
        yield f"\n{to_markdown(beside([run.cell for run in whole], 'last')).rstrip()}"


def distances(runs: list[Run], baselines: list[str]) -> Iterator[str]:
    """The boundary's distance beside Dice, where there are masks: per case, like Dice, and over the cases of a domain."""
    scores: dict[str, dict[tuple[str, int], float]] = {}
    for run in runs:
        for domain, distance in run.cell.scores("last", "hd95").items():
            scores.setdefault(run.name, {})[domain, run.seed] = distance
    if not scores:
        return
    domains = sorted({domain for row in scores.values() for domain, _ in row})
    yield "\n95th percentile of the Hausdorff distance, mean over the cases of the unseen domain; last round; lower is better: in"
    yield "millimetres where a pixel's size is known, else in pixels"
    yield ""
    yield f"| method | {' | '.join(domains)} | average |"
    yield "|---" * (len(domains) + 2) + "|"
    for name, row in sorted(scores.items()):
        stats = [Stat.of(values) if (values := [v for (d, _), v in row.items() if d == domain]) else None for domain in domains]
        average = f"{fmean(s.mean for s in stats if s):.2f}" if all(stats) else "–"
        yield f"| {name} | {' | '.join(str(s) if s else '–' for s in stats)} | {average} |"
    for baseline in baselines:
        yield from differences(scores, baseline, " in that distance")


def rates(folder: Path) -> Iterator[str]:
    """What source validation said of each rate that was tried."""
    tried: dict[str, list[float]] = {}
    for run in collect(folder, force=True).finished:
        tried.setdefault(run.name, []).append(source_score(run.records[-1]) or 0.0)
    yield f"\n{TRIED} (the best is used; nothing else was tuned)"
    yield ""
    yield "| row | validation |"
    yield "|---|---|"
    yield from (f"| {name} | {100 * sum(values) / len(values):.2f} |" for name, values in tried.items())


def kept_rates(file: Path) -> Iterator[str]:
    """The same as the file told it before, where the tries are gone."""
    _, found, told = file.read_text(encoding="utf-8").partition(f"\n{TRIED}") if file.is_file() else ("", "", "")
    yield from (found + told).splitlines()


def about(benchmark: Path) -> Iterator[str]:
    """What the file says at its head, without its commands."""
    head = [line for line in benchmark.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    yield from (line.removeprefix("# ") for line in head if not line.startswith("#  "))


def write_scores(runs: list[Run], file: Path) -> None:
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        rows = [row for run in runs for record in run.records for row in record["target"].values()]
        metric = runs[0].records[0]["metric"]
        further = {name: digits for name, digits in BESIDE.items() if name != metric and any(name in row for row in rows)}
        writer.writerow(["method", "fold", "seed", "round", "source validation", "unseen domain", "score", *further])
        for run in runs:
            for record in run.records:
                for domain, row in record["target"].items():
                    scores = [
                        f"{row[record['metric']]:.4f}",
                        *(f"{row[name]:.{digits}f}" if name in row else "" for name, digits in further.items()),
                    ]
                    told = [record["round"], f"{source_score(record) or 0:.4f}", domain, *scores]
                    writer.writerow([run.name, run.fold, run.seed, *told])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", type=Path)
    parser.add_argument("--against", action="append", default=[], help="a row that the others are compared with, repeatable")
    parser.add_argument("--to", type=Path, required=True, help="folder for the two files")
    given = parser.parse_args()
    runs = collect(given.runs).finished
    seeds = ", ".join(str(seed) for seed in sorted({run.seed for run in runs}))
    told = f"`unseen bench benchmarks/evidence/{given.runs.name}.toml`: {len(runs)} runs, seeds {seeds}."
    lines = [f"# {given.runs.name}", told, ""]
    benchmark = Path(__file__).with_name(f"{given.runs.name}.toml")
    lines += [*about(benchmark), ""] if benchmark.is_file() else []
    for rule in RULES:
        lines += [to_markdown(comparison([run.cell for run in runs], rule)).rstrip(), ""]
    scores = scores_by_method([run.cell for run in runs], "last")
    for baseline in given.against:
        lines += [*differences(scores, baseline)]
    lines += [*others([run for run in runs if all("ece" in row for row in run.records[-1]["target"].values())])]
    lines += [*distances(runs, given.against)]
    tries = given.runs.with_name(f"{given.runs.name}-rates")
    file = given.to / f"{given.runs.name}.md"
    lines += [*rates(tries)] if tries.is_dir() else [*kept_rates(file)]
    file.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    write_scores(runs, given.to / f"{given.runs.name}.csv")


if __name__ == "__main__":
    main()
