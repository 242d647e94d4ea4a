"""`unseen bench`: methods x targets x seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unseen.cli.answers import answering, errors, screen
from unseen.cli.options import default_workers, read_toml

__all__ = ["bench"]


def bench(
    file: Annotated[Path, typer.Argument(help="a TOML file: the keys of `unseen run`, and methods, targets, seeds")],
    out: Annotated[Path, typer.Option(help="folder for all runs")],
    seeds: Annotated[str | None, typer.Option(help="narrow to these seeds: 0,1,2")] = None,
    workers: Annotated[int | None, typer.Option(help="client tasks in parallel processes; default one per core", min=1)] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="print the table alone")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="print every metric of every round")] = False,
) -> None:
    """Run methods x targets x seeds, skipping what is finished and resuming what is half done; then print the table.

    Example: unseen bench experiments/demo.toml --out runs/demo --seeds 0
    """
    with answering(f"To go on: the same command again (runs are in {out})."):
        from unseen.benchmark import read_benchmark, run_benchmark, write_plan
        from unseen.cli.progress import Screen
        from unseen.cli.report import tables_below
        from unseen.report.tables import to_markdown

        values = read_toml(file)
        cells = read_benchmark(values, _seeds(seeds))
        number = workers or default_workers(cells[0].experiment)
        write_plan(values, cells, out)
        with Screen(screen, quiet, verbose) as watch:
            failed = run_benchmark(cells, out, number, watch)
        for name, reason in failed.items():
            errors.print(f"[bold red]failed:[/] {name}: {reason}")
        if len(failed) < len(cells):
            table, notes = tables_below(out, ["source"], force=True)
            screen.print()
            screen.print(to_markdown(table[0]), markup=False)
            for note in notes:
                screen.print(note, markup=False)
    if failed:
        raise typer.Exit(1)


def _seeds(text: str | None) -> list[int] | None:
    from unseen.errors import BadInput

    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise BadInput(f"--seeds {text!r}; expected whole numbers separated by commas, such as 0,1,2") from None
