"""What `unseen tune` leaves: the tuned file, the scores behind it, and the same as a table to read."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from unseen.report.spreadsheet import as_cell
from unseen.tuning.choosing import Choice, at_an_edge
from unseen.tuning.running import Tuned
from unseen.tuning.tries import Row, at_rate

__all__ = ["describe", "reported_elsewhere", "scores_csv", "settled", "table_of", "to_toml"]


def settled(tuned: Tuned) -> dict[str, Any]:
    """The benchmark with every choice made."""
    plan = tuned.plan
    rows = [_settled_row(tuned, row) for row in plan.rows]
    return {**{key: value for key, value in plan.values.items() if key != "tune"}, "methods": rows}


def _settled_row(tuned: Tuned, row: Row) -> Any:
    whose = row.choice_of or row.rate_of or (row.label if row.tries else None)
    if whose is None:
        return dict(row.given) if len(row.given) > 1 else row.given["method"]
    other = next(one for one in tuned.plan.rows if one.label == whose)
    taken: dict[str | None, Mapping[str, Any]] = {}
    for choice in (c for c in tuned.choices if c.row == whose):
        one = other.tries[choice.number]
        taken[choice.target] = at_rate(row.rate_fields, one.rate) if row.rate_of and one.rate is not None else one.fields
    fields = list(taken.values())
    if all(one == fields[0] for one in fields):
        return row.with_fields(fields[0])
    before = row.given.get("by_target", {})
    targets = {str(target): {**before.get(target, {}), **one} for target, one in taken.items()}
    return {**row.given, "by_target": {**before, **targets}}


def describe(tuned: Tuned) -> str:
    """How the choice was made, in a sentence for people and for the file's header."""
    plan = tuned.plan
    by = {
        "source": "source validation",
        "held-out": "held-out source, the mean",
        "held-out-worst": "held-out source, the worst",
    }[plan.rule]
    whose = {"one": "one choice for all targets", "per-target": "a choice for each target", "new-site": "one choice for a new site"}[
        plan.choice
    ]
    return f"chosen by {by}; {whose}; {_compared(tuned.choices)}"


def _compared(choices: Sequence[Choice]) -> str:
    """The rounds and seeds that choices rest on; by choice where they differ, since a search ends when one try is left."""
    found: dict[str, list[str]] = {}
    for choice in choices:
        rounds, seeds = choice.rounds[choice.number], ", ".join(map(str, choice.seeds))
        told = f"{rounds} round{'s' if rounds > 1 else ''}, seed{'s' if len(choice.seeds) > 1 else ''} {seeds}"
        found.setdefault(told, []).append(f"{choice.row} for {choice.target}" if choice.target else choice.row)
    return next(iter(found)) if len(found) == 1 else "; ".join(f"{' and '.join(whose)}: {told}" for told, whose in found.items())


def reported_elsewhere(tuned: Tuned) -> str:
    """Where every domain served the choice, its numbers on these domains flatter it."""
    if tuned.plan.choice == "per-target":
        return ""
    domains = sorted({use.on for use in tuned.scores if use.on})
    return f"chosen on these domains: report on others ({', '.join(domains)})" if domains else ""


def table_of(tuned: Tuned, row: Row) -> list[str]:
    """What was tried for a row: a line for each try, a column for each choice; the one that was taken is marked."""
    choices = [c for c in tuned.choices if c.row == row.label]
    several = any(c.target is not None for c in choices)
    heads = [str(c.target) if several else "score" for c in choices]
    rounds = len({r for c in choices for r in c.rounds.values()}) > 1
    names = [one.name for one in row.tries]
    width = min(max(len(name) for name in names), 40)
    wide = [max(len(head) + 1, 9) for head in heads]
    lines = [f"{row.label}", "  " + " ".join([" " * width, *(f"{head + ' ':>{w}}" for head, w in zip(heads, wide, strict=True))])]
    for number, name in enumerate(names):
        cells = [_standing(choice, number, w) for choice, w in zip(choices, wide, strict=True)]
        last = f"  to round {max(c.rounds.get(number, 0) for c in choices)}" if rounds else ""
        lines.append("  " + " ".join([f"{_cut(name, width):<{width}}", *cells]) + last)
    for choice in choices:
        where = f" for {choice.target}" if several else ""
        lines += [f"  at an edge{where}: {text}; a better one may lie beyond" for text in at_an_edge(row, choice)]
    return lines


def _standing(choice: Choice, number: int, width: int) -> str:
    score = choice.standings.get(number)
    text = "diverged" if score is None else f"{100 * score:.2f}"
    return f"{text + ('*' if number == choice.number else ' '):>{width}}"


def _cut(name: str, width: int) -> str:
    return name if len(name) <= width else name[: width - 1] + "…"


def scores_csv(tuned: Tuned) -> str:
    """Every score that a choice rests on, one a line. The score of a target in its own choice is not among them."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["row", "try", "for target", "scored on", "seed", "round", "score", "run"])
    rows = {row.label: row for row in tuned.plan.rows}
    for use, score in tuned.scores.items():
        name, where = rows[use.row].tries[use.number].name, use.on or "source validation"
        told = "" if score is None else repr(score)
        writer.writerow(map(as_cell, [use.row, name, use.target or "all", where, use.seed, tuned.rounds[use], told, use.cell.folder]))
    return out.getvalue()


def to_toml(values: Mapping[str, Any], header: Sequence[str]) -> str:
    """A file for `unseen bench`, its rows a line each."""
    return "\n".join([*(f"# {line}".rstrip() for line in header), *_toml_lines(values)]) + "\n"


def _toml_lines(values: Mapping[str, Any]) -> Iterator[str]:
    tables = {key: value for key, value in values.items() if isinstance(value, Mapping)}
    for key, value in values.items():
        if key == "methods":
            yield from ["methods = [", *(f"    {_inline(row)}," for row in value), "]"]
        elif key not in tables:
            yield f"{_quoted(key)} = {_inline(value)}"
    for key, table in tables.items():
        yield f"\n[{_quoted(key)}]"
        yield from (f"{_quoted(name)} = {_inline(value)}" for name, value in table.items())


def _inline(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_quoted(k)} = {_inline(v)}" for k, v in value.items()) + " }" if value else "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_inline, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value) if isinstance(value, bool | int | float) else str(value)


def _quoted(key: str) -> str:
    return key if key.isascii() and key.replace("_", "").replace("-", "").isalnum() else _inline(key)
