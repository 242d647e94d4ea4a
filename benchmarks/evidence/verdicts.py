"""Claims of the papers against our runs: the paper's difference, ours with its interval, and a verdict, as Markdown.

    python benchmarks/evidence/verdicts.py benchmarks/evidence/claims.toml --runs runs

The difference is taken between runs of the same unseen domain and seed; the interval is Student's t (95 %) over all of them. With both
turned so that the paper's difference is positive:
  reproduced      the interval lies above 0;
  not reproduced  the interval lies below half the paper's difference (an interval below 0 does);
  undecided       neither. Fewer than three seeds decide nothing.
Rows are compared at the last round; the round that source validation picks stands beside it. No verdict looks at the oracle.
"""

from __future__ import annotations

import argparse
import tomllib
from dataclasses import dataclass
from pathlib import Path

from unseen.report.collect import collect
from unseen.report.statistics import Comparison, compare, scores_by_method


@dataclass(frozen=True)
class Claim:
    """`first` is said to differ from `second` by `printed` points; `table` names the folder of our runs."""

    claim: str
    printed: float
    where: str
    table: str
    first: str
    second: str


def verdict(printed: float, ours: Comparison, seeds: int) -> str:
    """What the interval says of the claim."""
    if ours.low is None or ours.high is None or seeds < 3:
        return "undecided"
    sign = 1 if printed > 0 else -1
    low, high = sorted((sign * ours.low, sign * ours.high))
    if low > 0:
        return "reproduced"
    return "not reproduced" if high < abs(printed) / 2 else "undecided"


def number(value: float | None) -> str:
    return "" if value is None else f"{value:+.2f}"


def row(claim: Claim, runs: Path) -> str:
    told = f"| {claim.claim} ({claim.where}) | {claim.printed:+.2f}"
    cells = collect(runs / claim.table, force=True).cells if (runs / claim.table).is_dir() else []
    ours: dict[str, Comparison] = {}
    seeds = 0
    for rule in ("last", "source"):
        scores = {name: s for name, s in scores_by_method(cells, rule).items() if name in (claim.first, claim.second)}
        if len(scores) == 2:
            ours[rule] = compare({claim.first: scores[claim.first], claim.second: scores[claim.second]})[0]
            seeds = len({seed for _, seed in scores[claim.first].keys() & scores[claim.second].keys()})
    if not ours or ours["last"].n == 0:
        return f"{told} | not run | | | | |"
    last = ours["last"]
    spread = f"{number(last.low)} to {number(last.high)}" if last.low is not None else ""
    return (
        f"{told} | {number(last.difference)} | {spread} | {number(ours['source'].difference)} | {last.n} of {seeds} seeds "
        f"| {verdict(claim.printed, last, seeds)} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("claims", type=Path)
    parser.add_argument("--runs", type=Path, required=True, help="folder that holds the tables' runs")
    given = parser.parse_args()
    print("| claim | paper | ours, last round | 95 % interval | ours, round by source validation | pairs | verdict |")
    print("|---|---|---|---|---|---|---|")
    for claim in tomllib.loads(given.claims.read_text())["claims"]:
        print(row(Claim(**claim), given.runs))


if __name__ == "__main__":
    main()
