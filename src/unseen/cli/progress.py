"""What commands show while they work. How a command uses it:

- **One run**: `with looking_on_at_one(quiet=quiet) as watch: train(experiment, out, watch=watch)`.
- **Many runs** (rows of a table, tries of a rate): `with looking_on_at_many(quiet=quiet) as watch:` and hand `watch` to
  `run_benchmark(cells, out, workers, watch)`, `in_processes(cells, out, jobs, watch)` or `on_ray(...)`. They tell it which runs there are
  (`planned`), when one begins (`started` gives a `Watch` for it) and ends (`ended`, with why it failed). A command that trains by itself
  tells it the same.
- **Other steps** (images that are read, cases that are timed): `with steps("preparing pacs", quiet=quiet) as told: told(done, of)`.

In a terminal each is a live view that is gone when the block ends; what `watch.say(...)` is told stays, above it. In a file or a pipe each
writes plain lines, with `quiet` nothing. Print results after the block, never inside it. The drawing itself is in `unseen.runs.screen`,
where `unseen.run` finds it too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from unseen.cli.answers import errors, screen

if TYPE_CHECKING:
    from unseen.runs.screen import Board, Screen

__all__ = ["looking_on_at_many", "looking_on_at_one", "steps"]


def looking_on_at_one(quiet: bool = False, verbose: bool = False, show_target: bool = False) -> Screen:
    from unseen.runs.screen import Screen

    return Screen(screen, quiet, verbose, show_target=show_target)


def looking_on_at_many(quiet: bool = False, verbose: bool = False, show_target: bool = False) -> Board:
    from unseen.runs.screen import Board

    return Board(screen, quiet, verbose, show_target)


@contextmanager
def steps(title: str, quiet: bool = False) -> Iterator[Callable[..., None]]:
    """A bar beside the results, on standard error: `told(3, 12)`, and with `told(3, 12, "fedsb")` what is worked on now."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from unseen.runs.screen import is_live

    columns = (TextColumn("{task.description}"), BarColumn(None), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True, expand=True, disable=quiet or not is_live(errors)) as bar:
        job = bar.add_task(title, total=None)

        def told(done: int, of: int | None = None, now: str = "") -> None:
            bar.update(job, completed=done, total=of, description=f"{title}: {now}" if now else title)

        yield told
