"""`unseen runs`: what lies in a folder of runs."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unseen.cli.answers import answering, screen
from unseen.cli.options import among

if TYPE_CHECKING:
    from unseen.runs.listing import RunState

__all__ = ["runs"]

_CLEAN = ("failed", "all")
_STYLES = {"finished": "green", "running": "cyan", "stopped": "yellow", "failed": "red", "unreadable": "red", "not begun": "dim"}


def runs(
    folder: Annotated[Path, typer.Argument(help="folder with runs, at any depth")],
    clean: Annotated[
        str | None,
        typer.Option(
            help="take away what runs wrote: of those that failed, or of all; asks first", autocompletion=among(*_CLEAN), show_default=False
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="with --clean: do not ask")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="for programs")] = False,
) -> None:
    """List runs with their state, rounds and scores; say what failed and why; take runs away.

    Example: unseen runs runs/demo
    """
    with answering():
        from unseen.errors import BadInput, choose
        from unseen.runs.listing import list_runs

        if clean is not None:
            choose("kind of runs to take away:", clean, _CLEAN)
        elif yes:
            raise BadInput("--yes answers the question of --clean; add --clean failed or --clean all")
        found = list_runs(folder)
        if clean is not None:
            _take_away(folder, [run for run in found if run.state == "failed" or clean == "all"], clean, yes)
        elif as_json:
            typer.echo(json.dumps([dataclasses.asdict(run) for run in found], indent=1))
        else:
            _show(found)


def _show(found: list[RunState]) -> None:
    from rich.text import Text

    from unseen.cli.tables import plain_table, show_list

    table = plain_table("run", "state", ">rounds", ">source", ">unseen")
    for run in found:
        rounds = f"{run.done}/{run.rounds}" if run.rounds is not None else "–"
        source, target = (f"{value:.1f}" if value is not None else "–" for value in (run.source, run.target))
        table.add_row(Text(run.folder, overflow="fold"), Text(run.state, _STYLES[run.state]), rounds, source, target)
    show_list(table)
    counts = {state: sum(run.state == state for run in found) for state in _STYLES}
    screen.print("\n" + ", ".join(f"{number} {state}" for state, number in counts.items() if number))
    metric = next((run.metric for run in found if run.metric), "")
    if metric:
        screen.print(
            f"{metric} in percent in the best round by source validation: at the sources, and on the unseen domain", soft_wrap=False
        )
    reasons: dict[str, list[str]] = {}
    for run in found:
        if run.why:
            reasons.setdefault(run.why.replace(run.folder, "…"), []).append(run.folder)
    for why, folders in reasons.items():
        more = f" and {len(folders) - 1} more" if len(folders) > 1 else ""
        screen.print(Text.assemble(("\nfailed: ", "bold red"), f"{folders[0]}{more}: {why}"), soft_wrap=False)


def _take_away(folder: Path, chosen: list[RunState], clean: str, yes: bool) -> None:
    from unseen.errors import BadInput
    from unseen.runs.listing import forget_failures, remove_run

    if not chosen:
        screen.print(f"no run in {folder} failed; nothing is taken away", markup=False)
        return
    there = [run for run in chosen if (folder / run.folder).exists()]
    if there and not yes:
        if not sys.stdin.isatty():
            raise BadInput(f"--clean {clean} would take away {_counted(there)}; add --yes, or run it in a terminal, where it asks")
        for run in there:
            screen.print(f"  {run.folder}: {run.state}, {run.done} rounds", markup=False)
        if not typer.confirm(f"Take away {_counted(there)}?"):
            screen.print("nothing was taken away")
            raise typer.Exit(1)
    kept = [problem for run in there if (problem := remove_run(folder, run))]
    forget_failures(folder, {run.folder for run in chosen})
    screen.print(f"{len(there) - len(kept)} of {_counted(there)} taken away", markup=False)
    for problem in kept:
        screen.print(f"kept {problem}", markup=False)


def _counted(chosen: list[RunState]) -> str:
    return "1 run" if len(chosen) == 1 else f"{len(chosen)} runs"
