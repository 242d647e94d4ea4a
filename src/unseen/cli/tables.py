"""Tables as a person meets them: drawn in a terminal, Markdown in a file or a pipe; below them what they say and what one would do next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from unseen.cli.answers import screen

if TYPE_CHECKING:
    from rich.table import Table as Drawn

    from unseen.report.tables import Cell, Stat, Table

__all__ = ["in_shell", "next_steps", "plain_table", "say_below", "say_where_others_are", "show_comparison", "show_list", "show_table"]

_GAP = 3  # columns of air between two of the table


def plain_table(*headings: str) -> Drawn:
    """A table without a frame, for lists: headings in bold, a rule below them. Headings that begin with > are of numbers."""
    from rich import box
    from rich.table import Table as Drawn

    table = Drawn(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for heading in headings:
        number = heading.startswith(">")
        table.add_column(heading.removeprefix(">"), justify="right" if number else "left", no_wrap=number)
    return table


def show_list(table: Drawn) -> None:
    """A list as wide as the terminal; in a file or a pipe as wide as it is useful."""
    screen.print(table, width=None if screen.is_terminal else 160, soft_wrap=False)


def show_comparison(cells: Sequence[Cell], rule: str, markdown: bool = False, others: bool = False) -> None:
    """Rows against unseen domains, and where clients have models of their own, against clients; with what the numbers are.

    `others`: other metrics in a table of their own.
    """
    from unseen.report.beside import beside
    from unseen.report.saying import what_the_numbers_are
    from unseen.report.tables import comparison, own_comparison

    told = what_the_numbers_are(cells, rule)
    shown = [(comparison(cells, rule), told), (own_comparison(cells, rule), "")]
    for table, heading in [*shown[:1], *([(beside(cells, rule), "")] if others else []), *shown[1:]]:
        if table.columns:
            screen.print()
            show_table(table, heading, markdown)


def show_table(table: Table, heading: str = "", markdown: bool = False) -> None:
    """Draw a comparison, in pieces where it is wider than the terminal; a number is never broken. It may have another heading."""
    from unseen.report.tables import to_markdown

    if markdown or not screen.is_terminal:
        screen.print(to_markdown(table, heading), markup=False)
        return
    screen.print(heading or f"{table.heading[0].upper()}{table.heading[1:]}", markup=False, soft_wrap=False)
    name = min(max([len(method) for method in table.rows] + [6]), max(12, screen.width // 3))
    compact = any(_width(table, column, False) for column in table.columns) and not _fits(table, table.columns, name, False)
    for piece in _pieces(table, name, compact):
        screen.print()
        screen.print(_drawn(table, piece, name, compact), soft_wrap=False)


def _text(stat: Stat | None, compact: bool) -> str:
    """
    >>> from unseen.report.tables import Stat
    >>> _text(Stat(81.04, 1.52, 3), False), _text(Stat(81.04, 1.52, 3), True), _text(Stat(81.04, None, 1), True), _text(None, False)
    ('81.04 ± 1.52', '81.0±1.5', '81.0', '–')
    """
    if stat is None:
        return "–"
    if not compact:
        return str(stat)
    return f"{stat.mean:.1f}" + (f"±{stat.std:.1f}" if stat.std is not None else "")


def _width(table: Table, column: str, compact: bool) -> int:
    """What the widest number of a column, and the widest word of its heading, take."""
    numbers = [len(_text(row.get(column), compact)) for row in table.rows.values()]
    return max([*numbers, *map(len, column.split())])


def _fits(table: Table, columns: Sequence[str], name: int, compact: bool) -> bool:
    return name + sum(_GAP + _width(table, column, compact) for column in columns) <= screen.width


def _pieces(table: Table, name: int, compact: bool) -> list[list[str]]:
    """The columns in groups that fit the terminal, each at least one column wide."""
    pieces: list[list[str]] = [[]]
    for column in table.columns:
        if pieces[-1] and not _fits(table, [*pieces[-1], column], name, compact):
            pieces.append([])
        pieces[-1].append(column)
    return pieces


def _drawn(table: Table, columns: Sequence[str], name: int, compact: bool) -> Drawn:
    from rich import box
    from rich.table import Table as Drawn
    from rich.text import Text

    drawn = Drawn(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    drawn.add_column("method", min_width=min(name, 12), max_width=name, overflow="fold")
    for column in columns:
        width = _width(table, column, compact)
        drawn.add_column(column, justify="right", min_width=width, overflow="fold")
    for method, row in table.rows.items():
        cells = [Text(_text(row.get(c), compact), "bold green" if (method, c) in table.marks else "", no_wrap=True) for c in columns]
        drawn.add_row(Text(method), *cells)
    return drawn


def say_below(*sentences: str) -> None:
    """What a table means, in whole words on every line."""
    screen.print()
    for sentence in sentences:
        screen.print(sentence, markup=False, soft_wrap=not screen.is_terminal)


def say_where_others_are(cells: Sequence[Cell], out: Any) -> None:
    """The table stays narrow: other metrics are one command away."""
    from unseen.report.beside import companions_of

    titles = [one.title for one in companions_of(cells)]
    if titles:
        several = f"{', '.join(titles[:-1])} and {titles[-1]}" if len(titles) > 1 else titles[0]
        screen.print(f"{several[0].upper()}{several[1:]}: {in_shell('unseen', 'report', out)}", markup=False)


def next_steps(steps: Sequence[tuple[str, str]]) -> None:
    """Commands to copy, each with what it is for below it."""
    screen.print("\nNext:")
    for command, why in steps:
        screen.print(f"  {command}", style="bold", markup=False)
        screen.print(f"      {why}", markup=False)


def in_shell(*words: Any) -> str:
    """Words as a shell takes them.

    >>> in_shell("unseen", "report", "my runs")
    "unseen report 'my runs'"
    """
    return shlex.join(str(word) for word in words)
