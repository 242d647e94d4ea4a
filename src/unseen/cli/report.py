"""`unseen report`: tables from finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from unseen.cli.answers import answering, errors, refuse_unwritable, screen
from unseen.cli.options import among

__all__ = ["report", "tables_below"]

_FORMATS = ("table", "md", "tex", "html", "csv", "csv-table")
_RULES = ("last", "source", "held-out", "oracle", "all")


def report(
    folder: Annotated[Path, typer.Argument(help="folder with runs, at any depth")],
    format: Annotated[
        str | None,
        typer.Option(
            help="table (drawn), md, tex, html, csv or csv-table",
            autocompletion=among(*_FORMATS),
            show_default="table in a terminal, else md",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="file to write; standard output without it")] = None,
    rule: Annotated[
        str, typer.Option(help="selection rule: last, source, held-out, oracle, or all", autocompletion=among(*_RULES))
    ] = "all",
    force: Annotated[bool, typer.Option("--force", help="mix runs of different data or protocols")] = False,
    data: Annotated[
        str | None,
        typer.Option(help="html: where the data of these runs lie, to show a few images of each domain: folder:PATH or csv:FILE"),
    ] = None,
) -> None:
    """Compare finished runs: mean and standard deviation over seeds, per unseen domain, average and worst.

    html is a page with tests, learning curves, what travelled, time, partition and settings, in one file. csv has a row for each run and
    round, with scores and every setting, finished or not, as `unseen.load(FOLDER)` in Python; csv-table has the numbers of the tables.

    Example: unseen report runs/demo --format html --out report.html
    """
    with answering():
        from unseen.errors import BadInput, choose
        from unseen.files import write_atomically
        from unseen.report.tables import to_csv, to_latex, to_markdown
        from unseen.runs.selection import RULES

        drawn = out is None and screen.is_terminal
        format = choose("format", format or ("table" if drawn else "md"), _FORMATS)
        if format == "table" and out is not None:
            raise BadInput("a drawn table is for the terminal; leave --out away, or choose --format md, tex, html or csv")
        refuse_unwritable(out)
        rules = list(RULES) if rule == "all" else [choose("selection rule", rule, [*RULES, "all"])]
        if format == "table":
            _draw(folder, rules, force)
            return
        if format == "html":
            text, notes = _page_below(folder, force, data)
        elif format == "csv":
            text, notes = _rows_below(folder)
        else:
            tables, notes = tables_below(folder, rules, force)
            text = to_csv(tables) if format == "csv-table" else "\n\n".join(map(to_markdown if format == "md" else to_latex, tables)) + "\n"
        for note in notes:
            errors.print(note, markup=False)
        if out is None:
            typer.echo(text, nl=False)
        else:
            out.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(out, text)
            errors.print(f"wrote {out}", markup=False)


def _draw(folder: Path, rules: list[str], force: bool) -> None:
    from unseen.cli.tables import say_below, show_comparison
    from unseen.report.collect import collect
    from unseen.report.saying import what_was_found
    from unseen.runs.selection import DEFAULT_RULE, RULES

    found = collect(folder, force=force)
    for rule in rules:
        show_comparison(found.cells, rule, others=True)
    for note in found.notes:
        errors.print(note, markup=False)
    rule = DEFAULT_RULE if DEFAULT_RULE in rules else rules[0]
    say_below(f"{RULES[rule].heading[0].upper()}{RULES[rule].heading[1:]}: {what_was_found(found.cells, rule)}")


def tables_below(folder: Path, rules: list[str], force: bool = False) -> tuple[list[Any], list[str]]:
    """A table per rule that the records can answer, below it other metrics and the clients' own models, and notes on runs left out."""
    from unseen.report.beside import beside
    from unseen.report.collect import collect
    from unseen.report.tables import comparison, own_comparison

    found = collect(folder, force=force)
    tables = [
        table for rule in rules for table in (comparison(found.cells, rule), beside(found.cells, rule), own_comparison(found.cells, rule))
    ]
    return [t for t in tables if t.columns], found.notes


def _rows_below(folder: Path) -> tuple[str, list[str]]:
    from unseen.report.frames import rows_below, rows_to_csv

    return rows_to_csv(rows_below(folder)), []


def _page_below(folder: Path, force: bool, data: str | None) -> tuple[str, list[str]]:
    from unseen.report.collect import collect
    from unseen.report.page import render_page

    found = collect(folder, force=force, unfinished=True)
    return render_page(found, f"Runs in {folder.absolute().name}", data=data), found.notes
