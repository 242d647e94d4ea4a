"""Many runs in one picture: learning curves, ablation and sensitivity bars, client-count curves."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from unseen.errors import BadInput, choose
from unseen.figures.drawing import COLOURS, sheet
from unseen.report.collect import Run, collect
from unseen.report.statistics import interval_within
from unseen.report.summary import curves as learning_curves
from unseen.report.tables import AVERAGE, Stat, comparison
from unseen.runs.selection import RULES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["bars", "client_counts", "clients", "curves"]


def bars(folder: Path, rule: str = "source") -> Figure:
    """A bar per row of the table: the average over unseen domains, with its 95 % interval over seeds."""
    table = comparison(collect(folder).cells, rule)
    column = AVERAGE if AVERAGE in table.columns else table.columns[0]
    rows = {name: row[column] for name, row in table.rows.items() if column in row}
    if not rows:
        raise BadInput(f"no method in {folder} has a finished run on every unseen domain; finish them first")
    figure, ((axes,),) = sheet(1, 1, max(4.0, 1.1 * len(rows)), 3.6)
    for number, (name, stat) in enumerate(rows.items()):
        low, high = interval_within(stat) or (stat.mean, stat.mean)
        axes.bar(number, stat.mean, yerr=[[stat.mean - low], [high - stat.mean]], color=COLOURS[number % 10], capsize=3, label=name)
    axes.set_title(f"95 % intervals over seeds; selection: {rule}", fontsize=9)
    axes.set_xticks(range(len(rows)), [f"{name}: {stat.mean:.1f}" for name, stat in rows.items()], rotation=25, ha="right")
    axes.set(
        ylabel=f"{table.metric}, % ({column})",
        ylim=(0, min(100, axes.get_ylim()[1])),
    )
    return figure


def curves(folder: Path, rule: str = "source") -> Figure:
    """On each unseen domain, the score by round: the mean over seeds, shaded from the worst to the best.

    A ring is the round of a run that the rule picks.
    """
    found = collect(folder, unfinished=True, repeats=True)
    numbers = {name: number for number, name in enumerate(dict.fromkeys(run.name for run in found.runs))}
    panels = {title: lines for title, lines in learning_curves(found.runs, numbers).items() if any(line.points for line in lines)}
    if not panels:
        raise BadInput(f"no run in {folder} has a round yet; wait for the first")
    wide = 2 if len(panels) == 4 else min(len(panels), 3)
    figure, axes = sheet(-(-len(panels) // wide), wide, 4.4, 3.4)
    flat = [panel for row in axes for panel in row]
    for panel, (title, lines) in zip(flat, panels.items(), strict=False):
        for line in (one for one in lines if one.points):
            colour, xs = COLOURS[line.number % 10], [x for x, _ in line.points]
            panel.plot(xs, [y for _, y in line.points], ":" if line.open else "-", color=colour, label=line.name)
            if line.band:
                panel.fill_between(
                    xs, [low for low, _ in line.band], [high for _, high in line.band], color=colour, alpha=0.15, linewidth=0
                )
        rings = [(numbers[run.name], *point) for run in found.finished for point in _picked(run, title, rule)]
        panel.scatter(
            [x for _, x, _ in rings], [y for *_, y in rings], s=22, facecolors="none", edgecolors=[COLOURS[n % 10] for n, *_ in rings]
        )
        panel.plot([], [], "o", color="gray", fillstyle="none", markersize=5, label=f"round picked: {rule}")
        panel.set(title=f"unseen: {title}", xlabel="round", ylabel=f"{found.runs[0].about['metric']}, %")
        panel.locator_params(axis="x", integer=True)
        panel.legend(fontsize=7)
    for panel in flat[len(panels) :]:
        panel.set_axis_off()
    return figure


def _picked(run: Run, title: str, rule: str) -> list[tuple[int, float]]:
    """The round that the rule picks and the score there, on one unseen domain."""
    index = RULES[choose("selection rule", rule, RULES)].picks(run.records)
    scores = run.cell.scores(rule)
    return [(run.records[index]["round"], scores[title])] if index is not None and title in scores else []


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
