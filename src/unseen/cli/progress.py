"""Progress: a live line in a terminal, plain lines elsewhere, nothing with -q."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from unseen.runs.record import Metrics, Record
from unseen.runs.traffic import total_bytes
from unseen.world import World

__all__ = ["Screen"]


class Screen:
    """Shows a run on a console as it goes."""

    def __init__(self, console: Console, quiet: bool = False, verbose: bool = False, title: str = "") -> None:
        self._console, self._quiet, self._verbose, self._title = console, quiet, verbose, title
        self._bar: Progress | None = None
        self._job: Any = None
        self._left: list[float] = []
        self._rounds = 0

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def begin(self, world: World, done: int) -> None:
        self._rounds, self._left = world.experiment.rounds, []
        if self._quiet:
            return
        title = self._title or f"{world.experiment.name} on {world.dataset.name}, unseen: {', '.join(d.name for d in world.fold.targets)}"
        if done:
            self._console.print(f"going on after round {done}")
        if self._console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn(), TextColumn("{task.fields[scores]}"))
            self._bar = Progress(*columns, TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), console=self._console)
            self._bar.start()
            self._job = self._bar.add_task(title, total=self._rounds, completed=done, scores="")
        else:
            self._console.print(title)

    def round(self, record: Record, seconds: float) -> None:
        if self._quiet:
            return
        scores = _scores(record)
        if record["missing"]:
            self.say("; ".join(f"{client} left out, {why}" for client, why in record["missing"].items()))
        if self._bar is not None:
            self._bar.update(self._job, completed=record["round"], scores=scores)
        else:
            self._left.append(seconds)
            rest = (self._rounds - record["round"]) * sum(self._left) / len(self._left)
            self._console.print(f"round {record['round']}/{self._rounds}  {scores}  {seconds:.1f} s, about {rest:.0f} s left")
        if self._verbose:
            up, down = (total_bytes(record["travelled"], way) / 1e6 for way in ("sent", "received"))
            self._console.print(f"  left the clients: {up:.2f} MB; reached them: {down:.2f} MB")
            for name, row in {**record["source"], **record["target"]}.items():
                self._console.print(f"  {name}: " + _listed(row))
            for name, row in record.get("own", {}).items():
                self._console.print(f"  {name}, its own model: " + _listed(row))
        if record["round"] >= self._rounds:
            self._stop()

    def say(self, message: str) -> None:
        if not self._quiet:
            self._console.print(message, markup=False)

    def _stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _listed(row: Metrics) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in row.items())


def _scores(record: Record) -> str:
    metric = record["metric"]
    means = {"source": record["source_mean"], "own": record.get("own_mean", {})}
    parts = [f"{name} {mean[metric]:.3f}" for name, mean in means.items() if metric in mean]
    parts += [f"{name} {row[metric]:.3f}" for name, row in record["target"].items() if metric in row]
    return "  ".join(parts)
