"""What a plan of `unseen tune` tried, as a table: each try's mean on every held-out domain, and its difference from the first try.

    python benchmarks/evidence/choice.py benchmarks/results/best-choice/more-*.csv
    python benchmarks/evidence/choice.py --effects benchmarks/results/best-choice/factors-*.csv

A file is the `tried.csv` that `unseen tune` leaves, of one row of a plan. Differences are taken between trainings that left out the same
domains under the same seed; behind them stands the standard error of their mean. `--effects`: of tries that combine changes (`half, moved,
unsmoothed`), what each change does on average over all combinations of the others.
"""

from __future__ import annotations

import csv
import math
import statistics
import sys
from collections import defaultdict
from pathlib import Path

Scores = dict[tuple[str, str], float]  # by training (the domains left out and the seed) and by the domain of them that is scored


def scores_of(file: Path) -> dict[str, Scores]:
    """By try, in percent."""
    found: dict[str, Scores] = defaultdict(dict)
    with file.open(newline="", encoding="utf-8") as stream:
        for line in csv.DictReader(stream):
            training = line["run"].split("/without-")[1]
            found[line["try"]][training, line["scored on"]] = 100 * float(line["score"])
    return dict(found)


def table(file: Path) -> str:
    tries = scores_of(file)
    first = next(iter(tries))
    domains = sorted({domain for _, domain in tries[first]})
    lines = [f"| {file.stem} | scores | {' | '.join(domains)} | mean | against {first} |", "|---|---|" + "---|" * (len(domains) + 2)]
    for name, scores in tries.items():
        single = [[score for (_, domain), score in scores.items() if domain == wanted] for wanted in domains]
        apart = [score - tries[first][key] for key, score in scores.items() if key in tries[first]]
        difference = f"{statistics.mean(apart):+.1f} ± {statistics.stdev(apart) / math.sqrt(len(apart)):.1f}" if name != first else ""
        numbers = " | ".join(f"{statistics.mean(of):.1f}" if of else "-" for of in [*single, [*scores.values()]])
        lines.append(f"| {name} | {len(scores)} | {numbers} | {difference} |")
    return "\n".join(lines)


def effects(files: list[Path]) -> str:
    """Change by change: the mean difference between tries with it and the same without, on each set and over the sets."""
    tries = {file: scores_of(file) for file in files}
    base, *changes = (name for name in tries[files[0]] if name.count(", ") < 2)
    lines = [f"| change of {base} | {' | '.join(file.stem for file in files)} | mean |", "|---|" + "---|" * (len(files) + 1)]
    for change in (name.removeprefix(base) for name in changes):
        single = []
        for of in tries.values():
            pairs = [(of[name], of[name.replace(change, "")]) for name in of if change in name]
            single.append(statistics.mean(score - without[key] for with_it, without in pairs for key, score in with_it.items()))
        lines.append(f"| {change.removeprefix(', ')} | {' | '.join(f'{e:+.2f}' for e in single)} | {statistics.mean(single):+.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    given = [Path(name) for name in sys.argv[1:] if name != "--effects"]
    print(effects(given) if "--effects" in sys.argv else "\n\n".join(map(table, given)))
