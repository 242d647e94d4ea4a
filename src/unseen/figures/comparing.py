"""Many runs in one picture: ablation and sensitivity bars, client-count curves."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from unseen.errors import BadInput
from unseen.figures.drawing import COLOURS, sheet
from unseen.report.collect import Run, collect
from unseen.report.statistics import interval_of
from unseen.report.tables import AVERAGE, Stat, comparison

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["bars", "client_counts", "clients"]


def bars(folder: Path, rule: str = "source") -> Figure:
    """A bar per row of the table: the average over unseen domains, with its 95 % interval over seeds."""
    table = comparison(collect(folder).cells, rule)
    column = AVERAGE if AVERAGE in table.columns else table.columns[0]
    rows = {name: row[column] for name, row in table.rows.items() if column in row}
    if not rows:
        raise BadInput(f"no method in {folder} has a finished run on every unseen domain; finish them first")
    figure, ((axes,),) = sheet(1, 1, max(4.0, 1.1 * len(rows)), 3.6)
    for number, (name, stat) in enumerate(rows.items()):
        low, high = interval_of(stat) or (stat.mean, stat.mean)
        axes.bar(number, stat.mean, yerr=[[stat.mean - low], [high - stat.mean]], color=COLOURS[number % 10], capsize=3, label=name)
    axes.set_title(f"95 % intervals over seeds; selection: {rule}", fontsize=9)
    axes.set_xticks(range(len(rows)), [f"{name}: {stat.mean:.1f}" for name, stat in rows.items()], rotation=25, ha="right")
    axes.set(
        ylabel=f"{table.metric}, % ({column})",
        ylim=(0, min(100, axes.get_ylim()[1])),
    )
    return figure


def client_counts(runs: Sequence[Run], rule: str = "source") -> dict[str, dict[int, Stat]]:
    """By method and number of clients: the score, the mean over a seed's unseen domains, then over seeds."""
    found: dict[str, dict[int, dict[int, list[float]]]] = {}
    for run in runs:
        scores = run.cell.scores(rule)
        by_seed = found.setdefault(str(run.about["experiment"]["method"]), {}).setdefault(len(run.about["clients"]), {})
        by_seed.setdefault(run.seed, []).extend(scores.values())
    return {
        method: {number: Stat.of([statistics.fmean(v) for v in seeds.values() if v]) for number, seeds in sorted(counts.items())}
        for method, counts in found.items()
    }


def clients(folder: Path, rule: str = "source") -> Figure:
    """The score against the number of clients, a line per method."""
    table = client_counts(collect(folder, repeats=True).finished, rule)
    if all(len(counts) < 2 for counts in table.values()):
        raise BadInput(f"all runs in {folder} have the same number of clients; a curve needs at least two numbers (`clients = ...`)")
    figure, ((axes,),) = sheet(1, 1, 5.0, 3.6)
    for number, (method, counts) in enumerate(table.items()):
        xs, means = list(counts), [stat.mean for stat in counts.values()]
        axes.errorbar(
            xs, means, [stat.std or 0.0 for stat in counts.values()], color=COLOURS[number % 10], marker="o", capsize=3, label=method
        )
    axes.set(xlabel="clients", ylabel="score, %", title=f"mean and standard deviation over seeds; selection: {rule}")
    axes.legend()
    return figure
