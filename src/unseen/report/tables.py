"""Tables: methods against unseen domains, or against clients, mean and standard deviation over seeds, the selection rule in the heading."""

from __future__ import annotations

import csv
import html
import io
import statistics
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from unseen.errors import choose
from unseen.report.spreadsheet import as_cell
from unseen.report.telling import best_of
from unseen.runs.record import Record
from unseen.runs.selection import RULES

__all__ = ["Cell", "Stat", "Table", "comparison", "in_a_cell", "in_words", "own_comparison", "to_csv", "to_html", "to_latex", "to_markdown"]

AVERAGE, WORST, WORST_CLIENT = "average", "worst domain", "worst client"


@dataclass(frozen=True)
class Cell:
    """One run: a method, a fold, a seed, and its records."""

    method: str
    fold: str
    seed: int
    records: Sequence[Record]

    def __repr__(self) -> str:
        return f"Cell({self.method!r}, fold {self.fold}, seed {self.seed}, {len(self.records)} rounds)"

    @classmethod
    def of(cls, method: str, records: Sequence[Record]) -> Cell:
        return cls(method, records[0]["fold"], records[0]["seed"], records)

    def scores(self, rule: str, metric: str | None = None) -> dict[str, float]:
        """The run's metric on each unseen domain, in percent, at the round that the rule picks; or another one, as it is."""
        record = self._picked(rule)
        if record is None:
            return {}
        named = {(t if t == self.fold else f"{self.fold} → {t}"): row for t, row in record["target"].items()}
        key, factor = (record["metric"], 100) if metric is None else (metric, 1)
        return {name: factor * row[key] for name, row in named.items() if key in row}

    def own_scores(self, rule: str) -> dict[str, float]:
        """The run's metric of each client's own model at that client, in percent, at the round that the rule picks."""
        record = self._picked(rule)
        if record is None:
            return {}
        return {client: 100 * row[record["metric"]] for client, row in record.get("own", {}).items() if record["metric"] in row}

    def _picked(self, rule: str) -> Record | None:
        index = RULES[rule].picks(self.records)
        return None if index is None else self.records[index]


@dataclass(frozen=True)
class Stat:
    """Mean and standard deviation (n - 1) over seeds.

    >>> Stat.of([80.0, 82.0])
    Stat(mean=81.0, std=1.4142135623730951, n=2)
    """

    mean: float
    std: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Stat:
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))

    def __str__(self) -> str:
        return f"{self.mean:.2f}" + (f" ± {self.std:.2f}" if self.std is not None else "")


def in_words(metric: str) -> str:
    """A metric as one says it.

    >>> in_words("balanced_accuracy")
    'balanced accuracy'
    """
    return metric.replace("_", " ")


@dataclass(frozen=True)
class Table:
    """A comparison under one selection rule. `marks` has a 1 for the row that is best in a column, where these runs can tell."""

    metric: str
    rule: str
    columns: tuple[str, ...]
    rows: dict[str, dict[str, Stat]]
    marks: dict[tuple[str, str], int]
    own: bool = False  # of the clients' own models
    beside: bool = False  # its columns are other metrics, each a mean over the unseen domains
    lower: tuple[str, ...] = ()  # columns in which lower is better

    @property
    def heading(self) -> str:
        if self.beside:
            told = f"; lower is better in {' and '.join(self.lower)}" if self.lower else ""
            return f"beside {in_words(self.metric)}, mean over the unseen domains{told}; {RULES[self.rule].heading}"
        where = "of each client's own model, at that client" if self.own else "on the unseen domain"
        return f"{in_words(self.metric)} in percent {where}; {RULES[self.rule].heading}"

    def __str__(self) -> str:
        return to_markdown(self)

    def __repr__(self) -> str:
        return to_markdown(self)

    def _repr_html_(self) -> str:
        """As notebooks show it."""
        return to_html(self)


def comparison(cells: Iterable[Cell], rule: str) -> Table:
    """Group runs by method and unseen domain. Average and worst domain are taken per seed, over seeds that have every domain."""
    choose("selection rule", rule, RULES)
    return _table([(cell, cell.scores(rule)) for cell in cells], rule)


def own_comparison(cells: Iterable[Cell], rule: str) -> Table:
    """The same by client, of methods whose clients have models of their own. A client of several folds has a column for each."""
    choose("selection rule", rule, RULES)
    scored = [(cell, scores) for cell in cells if (scores := cell.own_scores(rule))]
    if len({cell.fold for cell, _ in scored}) > 1:
        scored = [(cell, {f"{client}, unseen: {cell.fold}": v for client, v in scores.items()}) for cell, scores in scored]
    return _table(scored, rule, own=True)


def _table(scored: Iterable[tuple[Cell, dict[str, float]]], rule: str, own: bool = False) -> Table:
    by_method: dict[str, dict[int, dict[str, float]]] = {}
    metric, columns = "score", []
    for cell, scores in scored:
        by_method.setdefault(cell.method, {}).setdefault(cell.seed, {}).update(scores)
        columns += [c for c in scores if c not in columns]
        metric = cell.records[0]["metric"] if cell.records else metric
    worst = WORST_CLIENT if own else WORST
    rows = {method: _row(seeds, columns, worst) for method, seeds in by_method.items()}
    extra = (AVERAGE, worst) if len(columns) > 1 else ()
    everything = (*columns, *extra)
    return Table(metric, rule, everything, rows, _marks(by_method, columns, worst), own)


def _row(seeds: dict[int, dict[str, float]], columns: Sequence[str], worst: str) -> dict[str, Stat]:
    row = {}
    for column in columns:
        values = [scores[column] for scores in seeds.values() if column in scores]
        if values:
            row[column] = Stat.of(values)
    whole = [[scores[c] for c in columns] for scores in seeds.values() if all(c in scores for c in columns)]
    if whole and len(columns) > 1:
        row[AVERAGE] = Stat.of([statistics.fmean(values) for values in whole])
        row[worst] = Stat.of([min(values) for values in whole])
    return row


def _marks(by_method: Mapping[str, Mapping[int, Mapping[str, float]]], columns: Sequence[str], worst: str) -> dict[tuple[str, str], int]:
    """The best row of a column where it is clearly above all others: over seeds, the average over pairs of unseen domain and seed."""
    marks: dict[tuple[str, str], int] = {}
    for column in (*columns, AVERAGE, worst) if len(columns) > 1 else columns:
        best = best_of({method: _compared(seeds, columns, column, worst) for method, seeds in by_method.items()})
        marks |= {(best.name, column): 1} if best is not None and best.clear else {}
    return marks


def _compared(seeds: Mapping[int, Mapping[str, float]], columns: Sequence[str], column: str, worst: str) -> dict[tuple[str, int], float]:
    """The scores of a method that one column is compared by. The last two columns are over seeds that have every domain, as in the row."""
    whole = {seed: scores for seed, scores in seeds.items() if all(c in scores for c in columns)}
    if column == AVERAGE:
        return {(c, seed): scores[c] for seed, scores in whole.items() for c in columns}
    if column == worst:
        return {(worst, seed): min(scores.values()) for seed, scores in whole.items()}
    return {(column, seed): scores[column] for seed, scores in seeds.items() if column in scores}


def _text(table: Table, method: str, column: str) -> str:
    stat = table.rows[method].get(column)
    return "–" if stat is None else str(stat)


def to_markdown(table: Table, heading: str = "") -> str:
    """The best in bold, where these runs can tell. It has a heading of its own, unless another is given."""
    lines = [heading or f"{table.heading[0].upper()}{table.heading[1:]}", ""]
    lines.append("| method | " + " | ".join(map(in_a_cell, table.columns)) + " |")
    lines.append("|---" * (len(table.columns) + 1) + "|")
    for method in table.rows:
        cells = [f"**{_text(table, method, c)}**" if (method, c) in table.marks else _text(table, method, c) for c in table.columns]
        lines.append(f"| {in_a_cell(method)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def to_html(table: Table) -> str:
    """A table of its own, without a style but that of the page around it: best in bold."""

    def cell(method: str, column: str) -> str:
        text = html.escape(_text(table, method, column))
        return f"<td>{f'<b>{text}</b>' if table.marks.get((method, column)) == 1 else text}</td>"

    heads = "".join(f"<th>{html.escape(column)}</th>" for column in ("method", *table.columns))
    rows = "".join(f"<tr><th>{html.escape(m)}</th>{''.join(cell(m, c) for c in table.columns)}</tr>" for m in table.rows)
    caption = html.escape(f"{table.heading[0].upper()}{table.heading[1:]}")
    return f"<table><caption>{caption}</caption><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"


def in_a_cell(text: str) -> str:
    """A name that stays in its cell."""
    return " ".join(text.split()).replace("|", r"\|").replace("<", "&lt;")


def to_latex(table: Table) -> str:
    """A booktabs table: the best in bold, where these runs can tell."""
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{_tex(table.heading[0].upper() + table.heading[1:])}.}}"]
    lines += [rf"\begin{{tabular}}{{l{'c' * len(table.columns)}}}", r"\toprule"]
    lines += ["Method & " + " & ".join(_tex(c) for c in table.columns) + r" \\", r"\midrule"]
    for method in table.rows:
        cells = [_tex_bold(_tex(_text(table, method, c)), (method, c) in table.marks) for c in table.columns]
        lines.append(f"{_tex(method)} & " + " & ".join(cells) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    return "\n".join(lines)


def _tex_bold(text: str, bold: bool) -> str:
    return rf"\textbf{{{text}}}" if bold else text


_TEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}"}
_TEX |= {"|": r"\textbar{}", "[": "{[}", "±": r"$\pm$", "–": "--", "→": r"$\to$", "≥": r"$\geq$", "≤": r"$\leq$", "×": r"$\times$"}
_TEX |= {"−": "$-$", "≈": r"$\approx$", "≠": r"$\neq$", "∞": r"$\infty$"} | {c: rf"\{c}" for c in "&%$#_{}"}
_KNOWN_TO_TEX = "æÆœŒøØßłŁ¡¿§©£“”‘’…—·²³¹µ°÷"
_ACCENTS = "\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030a\u030b\u030c\u0327"


def _tex(text: str) -> str:
    """Text that any LaTeX sets as it is. A `[` would be an option where it follows a row's end."""
    return "".join(_tex_character(c) for c in unicodedata.normalize("NFC", " ".join(text.split())))


def _tex_character(c: str) -> str:
    """As it is, as a command, or as its code point where plain LaTeX has no glyph.

    >>> [_tex_character(c) for c in ("a", "é", "_", "λ", "日")]
    ['a', 'é', '\\\\_', '$\\\\lambda$', '(U+65E5)']
    """
    if c in _TEX:
        return _TEX[c]
    base, *accents = list(unicodedata.normalize("NFD", c))
    if (" " <= base <= "~" and c < "\u0180" and all(accent in _ACCENTS for accent in accents)) or c in _KNOWN_TO_TEX:
        return c
    letter = unicodedata.name(c, "").removeprefix("GREEK SMALL LETTER ")
    if "α" <= c <= "ω" and letter.isalpha() and letter != "OMICRON":
        return f"${chr(92)}{letter.lower().replace('lamda', 'lambda')}$"
    return f"(U+{ord(c):04X})"


def to_csv(tables: Iterable[Table]) -> str:
    """Long form: one line per method, column and rule. Of the clients' own models, `target` is the client."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["method", "target", "rule", "metric", "mean", "std", "seeds", "model"])
    for table in tables:
        for method, row in table.rows.items():
            for column, stat in row.items():
                numbers = [repr(stat.mean), "" if stat.std is None else repr(stat.std), stat.n]
                target, metric = (AVERAGE, column) if table.beside else (column, table.metric)
                writer.writerow(map(as_cell, [method, target, table.rule, metric, *numbers, "own" if table.own else "global"]))
    return out.getvalue()
