"""What a person sees while runs go: a live view in a terminal, plain lines elsewhere, nothing if asked for quiet.

`Screen` shows one run, `Board` many. Both are context managers, and leave nothing of the live view behind. The score on the unseen
domain is shown only if asked for: whoever watches it while training soon selects by it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import RLock
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from unseen.runs.record import Metrics, Record
from unseen.runs.traffic import total_bytes
from unseen.runs.watch import Within
from unseen.world import World

__all__ = ["Board", "Screen", "clock", "in_words", "is_live", "working_line"]

_SHOWN = 6  # runs that have a line of their own
_A_SECOND = 5  # times that the view is drawn


def is_live(console: Console) -> bool:
    """Whether what is on this console can be drawn over: a terminal, and one that can."""
    return console.is_terminal and not console.is_dumb_terminal


def clock(seconds: float) -> str:
    """Seconds as a clock shows them.

    >>> clock(5.4), clock(75), clock(3 * 3600 + 62)
    ('0:05', '1:15', '3:01:02')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def in_words(where: Within) -> str:
    """Where a round stands.

    >>> in_words(Within(3, "train", 1, 4, 14, 26)), in_words(Within(3, "scoring.score", 0, 4))
    ('train 1/4 clients, batch 14/26', 'scoring 0/4')
    """
    if where.task.startswith("scoring."):
        return f"scoring {where.answered}/{where.clients}"
    batches = f", batch {where.batches}/{where.of}" if where.of else ""
    return f"{where.task} {where.answered}/{where.clients} clients{batches}"


def working_line(share: float, words: str, began: float, left: float | None) -> RenderableType:
    """A bar as wide as there is room, and beside it what is done and how long it takes."""
    rest = f", about {clock(left)} left" if left is not None else ""
    line = Table.grid(expand=True, padding=(0, 2, 0, 0))
    line.add_column(ratio=1)
    line.add_column(no_wrap=True)
    line.add_row(ProgressBar(1, share), Text(f"{words} · {clock(time.monotonic() - began)}{rest}"))
    return line


class _View:
    """A part of the screen that is drawn anew a few times a second, and gone at the end."""

    def __init__(self, console: Console, draw: Callable[[], RenderableType]) -> None:
        self._live = Live(console=console, get_renderable=draw, refresh_per_second=_A_SECOND, transient=True, vertical_overflow="crop")
        self._live.start()

    def stop(self) -> None:
        self._live.stop()


class _OneRun:
    """What is known of a run that goes on."""

    def __init__(self, title: str, rounds: int) -> None:
        self.title, self.rounds, self.done = title, rounds, 0
        self.began = time.monotonic()
        self.where: Within | None = None
        self.scores = ""
        self.seconds: list[float] = []  # of the rounds trained now

    def went_on(self, where: Within) -> None:
        self.where, self.done = where, max(self.done, where.round - 1)

    def trained(self, record: Record, seconds: float, scores: str) -> None:
        self.done, self.where, self.scores = record["round"], None, scores
        self.seconds.append(seconds)

    @property
    def left(self) -> float | None:
        return (self.rounds - self.done) * sum(self.seconds) / len(self.seconds) if self.seconds else None

    @property
    def stands(self) -> str:
        """`round 3/10, train 1/3 clients, batch 14/26, source 0.81`: the last is of the round before."""
        number = f"round {min(self.done + 1, self.rounds)}/{self.rounds}"
        if self.where is not None and self.where.round == 0:
            number = "before round 1"
        return ", ".join(filter(None, (number, in_words(self.where) if self.where is not None else "", self.scores)))


class _Pace:
    """How long rounds take, of all runs together. The first one counts as little as it can: processes start in it."""

    def __init__(self) -> None:
        self._began, self._ends = time.monotonic(), (0.0, 0.0)  # of the first round, of the last
        self._rounds = 0

    def round(self) -> None:
        now = time.monotonic()
        self._ends = (self._ends[0] if self._rounds else now, now)
        self._rounds += 1

    def left(self, rounds: int) -> float | None:
        if not self._rounds:
            return None
        first, last = self._ends
        each = (last - first) / (self._rounds - 1) if self._rounds > 1 else first - self._began
        return max(0.0, rounds * each - (time.monotonic() - last))


class Screen:
    """Shows one run on a console as it goes: a `Watch`."""

    def __init__(self, console: Console, quiet: bool = False, verbose: bool = False, title: str = "", show_target: bool = False) -> None:
        self._console, self._quiet, self._verbose, self._title, self._show_target = console, quiet, verbose, title, show_target
        self._view: _View | None = None
        self._run: _OneRun | None = None

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *_: object) -> None:
        if self._view is not None:
            self._view.stop()
            self._view = None

    def begin(self, world: World, done: int) -> None:
        title = self._title or f"{world.experiment.name} on {world.dataset.name}, unseen: {', '.join(d.name for d in world.fold.targets)}"
        self._run = _OneRun(title, world.experiment.rounds)
        self._run.done = done
        if self._quiet or done >= world.experiment.rounds:
            return
        if done:
            self.say(f"going on after round {done}")
        if is_live(self._console):
            self._view = self._view or _View(self._console, self._draw)
        else:
            self._console.print(title, markup=False)

    def within(self, where: Within) -> None:
        if self._run is not None:
            self._run.went_on(where)

    def round(self, record: Record, seconds: float) -> None:
        if self._quiet or self._run is None:
            return
        self._run.trained(record, seconds, scores(record, self._show_target))
        for line in left_out(record):
            self.say(line)
        if self._view is None:
            self.say(round_line(self._run, record, seconds))
        if self._verbose:
            for line in every_metric(record, self._show_target):
                self.say(line)
        if record["round"] >= self._run.rounds:
            self.__exit__()

    def say(self, message: str) -> None:
        if not self._quiet:
            self._console.print(message, markup=False, soft_wrap=not is_live(self._console))

    def _draw(self) -> RenderableType:
        run = self._run
        if run is None:
            return Text("")
        words = in_words(run.where) if run.where is not None else "starting" if not run.scores else ""
        now = " · ".join(filter(None, (words, run.scores and f"after round {run.done}: {run.scores}")))
        bar = working_line(run.done / run.rounds, f"round {min(run.done + 1, run.rounds)} of {run.rounds}", run.began, run.left)
        return Group(_short(run.title), bar, _short(now))


class Board:
    """Shows many runs on a console as they go: a `ManyWatch`. One bar for all, and a line for each that is at work."""

    def __init__(self, console: Console, quiet: bool = False, verbose: bool = False, show_target: bool = False) -> None:
        self._console, self._quiet, self._verbose, self._show_target = console, quiet, verbose, show_target
        self._view: _View | None = None
        self._lock = RLock()
        self._began = time.monotonic()
        self._rounds: dict[str, int] = {}
        self._running: dict[str, _OneRun] = {}
        self._ended = 0
        self._of_ended = 0  # rounds of the runs that ended
        self._before = 0  # runs that were finished before
        self._pace = _Pace()
        self._reasons: dict[str, int] = {}

    def __enter__(self) -> Board:
        return self

    def __exit__(self, *_: object) -> None:
        if self._view is not None:
            self._view.stop()
            self._view = None

        if self._before and is_live(self._console):
            self.say(f"{self._before} of {len(self._rounds)} runs were finished already")

    def planned(self, rounds: dict[str, int]) -> None:
        with self._lock:
            self._rounds, self._ended, self._of_ended, self._before = dict(rounds), 0, 0, 0

    @property
    def has_one_seed(self) -> bool:
        return len({run.rpartition("/")[2] for run in self._rounds}) < 2

    def started(self, run: str) -> _BoardLine:
        with self._lock:
            self._rounds.setdefault(run, 1)
            one = self._running[run] = _OneRun(run, self._rounds[run])
        return _BoardLine(self, run, one)

    def ended(self, run: str, failed: str = "") -> None:
        with self._lock:
            one = self._running.pop(run, None)
            self._ended += 1
            self._of_ended += self._rounds.get(run, 0)
            reason = failed.replace(run, "")
            known = reason in self._reasons
            if failed:
                self._reasons[reason] = self._reasons.get(reason, 0) + 1
        if self._quiet or (failed and known):  # one failure many times over is told once
            return
        if failed:
            self.say(f"[{self._ended}/{len(self._rounds)}] {run} failed: {failed}")
        elif not one or not one.seconds:
            self._before += 1
            if not is_live(self._console):
                self.say(f"[{self._ended}/{len(self._rounds)}] {run}: finished already")
        elif not is_live(self._console):
            trained = f"{len(one.seconds)} rounds in {clock(sum(one.seconds))}"
            self.say(f"[{self._ended}/{len(self._rounds)}] {run}: {trained}")

    def say(self, message: str) -> None:
        if not self._quiet:
            self._console.print(message, markup=False, soft_wrap=not is_live(self._console))

    def tell(self, one: _OneRun, record: Record, seconds: float) -> None:
        """A round of one of the runs."""
        with self._lock:
            one.trained(record, seconds, scores(record, self._show_target, digits=2))
            self._pace.round()
        lines = [f"{one.title}: {line}" for line in left_out(record)]
        if self._verbose:
            lines += [f"{one.title}: {round_line(one, record, seconds)}", *every_metric(record, self._show_target)]
        for line in lines:
            self.say(line)

    def show(self) -> None:
        """From now on there is something to see: a run that is trained, not one that was finished long ago."""
        if self._view is None and not self._quiet and is_live(self._console):
            self._began, self._pace = time.monotonic(), _Pace()
            self._view = _View(self._console, self._draw)

    def _draw(self) -> RenderableType:
        with self._lock:
            running, failed = list(self._running.values()), sum(self._reasons.values())
            whole = max(1, sum(self._rounds.values()))
            done = self._of_ended + sum(one.done for one in running)
            left = self._pace.left(whole - done)
            words = f"{self._ended} of {len(self._rounds)} runs" + (f", {len(running)} at work" if len(running) > 1 else "")
            words += f", {failed} failed" if failed else ""
            lines = [working_line(done / whole, words, self._began, left)]
            lines += [_short(f"{one.title}: {one.stands}") for one in running[:_SHOWN]]
            if len(running) > _SHOWN:
                lines.append(_short(f"and {len(running) - _SHOWN} more"))
        return Group(*lines)


class _BoardLine:
    """A `Watch` of one of the runs on a board."""

    def __init__(self, board: Board, run: str, one: _OneRun) -> None:
        self._board, self._name, self._one = board, run, one

    def begin(self, world: World, done: int) -> None:
        seed = "" if self._board.has_one_seed else f", seed {world.experiment.seed}"
        self._one.title = f"{world.experiment.name}, {world.fold.name}{seed}"
        self._one.done, self._one.rounds = done, world.experiment.rounds
        if done < self._one.rounds:
            self._board.show()

    def within(self, where: Within) -> None:
        self._one.went_on(where)
        self._board.show()

    def round(self, record: Record, seconds: float) -> None:
        self._board.tell(self._one, record, seconds)

    def say(self, message: str) -> None:
        if not message.startswith("finished already"):  # the board counts them
            self._board.say(f"{self._name}: {message}")


def scores(record: Record, show_target: bool, digits: int = 3) -> str:
    """`source 0.812`, and with `show_target` what the unseen domains give too."""
    metric = record["metric"]
    means: dict[str, Metrics] = {"source": record["source_mean"], "own": record.get("own_mean", {})}
    parts = [f"{name} {mean[metric]:.{digits}f}" for name, mean in means.items() if metric in mean]
    if show_target:
        parts += [f"{name} {row[metric]:.{digits}f}" for name, row in record["target"].items() if metric in row]
    return "  ".join(parts)


def round_line(run: Any, record: Record, seconds: float) -> str:
    rest = f", about {clock(run.left)} left" if record["round"] < run.rounds else ""
    return f"round {record['round']}/{run.rounds}  {run.scores}  {seconds:.1f} s{rest}"


def left_out(record: Record) -> list[str]:
    return ["; ".join(f"{client} left out, {why}" for client, why in record["missing"].items())] if record["missing"] else []


def every_metric(record: Record, show_target: bool) -> list[str]:
    up, down = (total_bytes(record["travelled"], way) / 1e6 for way in ("sent", "received"))
    rows = {**record["source"], **record["held_out"], **(record["target"] if show_target else {})}
    return [
        f"  left the clients: {up:.2f} MB; reached them: {down:.2f} MB",
        *(f"  {name}: {_listed(row)}" for name, row in rows.items()),
        *(f"  {name}, its own model: {_listed(row)}" for name, row in record.get("own", {}).items()),
    ]


def _listed(row: Metrics) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in row.items())


def _short(text: str) -> Text:
    """One line, cut where the terminal ends."""
    return Text(text, no_wrap=True, overflow="ellipsis")
