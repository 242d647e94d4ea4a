"""`unseen report`: tables from finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from unseen.cli.answers import answering, errors

__all__ = ["report", "tables_below"]

_FORMATS = ("md", "tex", "html", "csv")


def report(
    folder: Annotated[Path, typer.Argument(help="folder with runs, at any depth")],
    format: Annotated[str, typer.Option(help="md, tex, html or csv")] = "md",
    out: Annotated[Path | None, typer.Option(help="file to write; standard output without it")] = None,
    rule: Annotated[str, typer.Option(help="selection rule: last, source, held-out, oracle, or all")] = "all",
) -> None:
    """Compare finished runs: mean and standard deviation over seeds, per unseen domain, average and worst.

    Example: unseen report runs/demo --format tex --out table.tex
    """
    with answering():
        from unseen.errors import choose
        from unseen.files import write_atomically
        from unseen.report.select import RULES
        from unseen.report.tables import to_csv, to_html, to_latex, to_markdown

        choose("format", format, _FORMATS)
        rules = list(RULES) if rule == "all" else [choose("selection rule", rule, [*RULES, "all"])]
        tables, notes = tables_below(folder, rules)
        if format == "csv":
            text = to_csv(tables)
        elif format == "html":
            text = to_html(tables, notes)
        else:
            text = "\n\n".join(map(to_markdown if format == "md" else to_latex, tables)) + "\n"
        for note in notes:
            errors.print(note, markup=False)
        if out is None:
            typer.echo(text, nl=False)
        else:
            out.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(out, text)


def tables_below(folder: Path, rules: list[str]) -> tuple[list[Any], list[str]]:
    """A table per rule that the records can answer, and notes on runs that were left out."""
    from unseen.report.collect import collect
    from unseen.report.tables import comparison

    found = collect(folder)
    tables = [comparison(found.cells, rule) for rule in rules]
    return [t for t in tables if t.columns], found.notes
