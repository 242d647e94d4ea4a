"""Claims of papers, or of a user, in a TOML file: two rows of a table, the difference that is claimed, and where it is printed."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from unseen.errors import BadInput, nearest
from unseen.report.collect import collect
from unseen.report.spreadsheet import as_cell
from unseen.report.statistics import scores_by_method
from unseen.report.tables import in_a_cell
from unseen.report.verdicts import UNITS, Over, Verdict, corrected, judge, sentence

__all__ = ["Claim", "Judged", "judge_claims", "read_claims", "to_csv", "to_markdown", "to_text"]


@dataclass(frozen=True)
class Claim:
    """`first` is said to differ from `second` by `printed` points; `table` names the folder of our runs below --runs."""

    claim: str
    printed: float
    where: str
    table: str
    first: str
    second: str


@dataclass(frozen=True)
class Judged:
    """A claim with the verdict at the last round, and beside it the difference in the round that source validation picks."""

    claim: Claim
    last: Verdict
    source: float | None


def read_claims(values: Mapping[str, Any]) -> list[Claim]:
    """`claims = [{ claim, printed, where, table, first, second }, ...]`, every mistake told at once."""
    problems = [f"no key {key!r}; expected claims alone" for key in values if key != "claims"]
    rows = values.get("claims")
    if not isinstance(rows, list) or not rows:
        raise BadInput([*problems, f"claims is {rows!r}; expected a list of tables such as {{ claim = ..., printed = 4.5, ... }}"])
    known = [field.name for field in fields(Claim)]
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            problems.append(f"claim {number} is {row!r}; expected a table")
            continue
        problems += [f"claim {number} has no {key}" for key in known if key not in row]
        problems += [f"claim {number}: no key {key!r}{nearest(str(key), known)}" for key in row if key not in known]
        printed = row.get("printed", 1.0)
        if type(printed) not in (int, float) or not math.isfinite(printed) or printed == 0:
            problems.append(f"claim {number}: printed is {printed!r}; expected the difference in points, above or below 0")
        texts = [key for key in known if key != "printed" and not (isinstance(row.get(key, "x"), str) and row.get(key, "x"))]
        problems += [f"claim {number}: {key} is {row[key]!r}; expected text" for key in texts]
        table = row.get("table", "x")
        if isinstance(table, str) and (Path(table).is_absolute() or ".." in Path(table).parts):
            problems.append(f"claim {number}: table is {table!r}; expected a folder below --runs")
        if row.get("first") == row.get("second") and "first" in row:
            problems.append(f"claim {number}: first and second are both {row['first']!r}; expected two rows")
    if problems:
        raise BadInput(problems)
    return [Claim(**{**row, "printed": float(row["printed"])}) for row in rows]


def judge_claims(
    claims: Sequence[Claim], runs: Path, over: Over = "pairs", tell: Callable[[str], None] = lambda note: None
) -> list[Judged]:
    """Each claim against the finished runs of its table. Holm's correction is over all that were run; `tell` gets what was left out."""
    if not runs.is_dir():
        raise BadInput(f"no folder {runs}; give the one that holds the tables' runs")
    scores: dict[tuple[str, str], dict[str, dict[tuple[str, int], float]]] = {}
    for table in dict.fromkeys(c.table for c in claims):
        found = collect(runs / table, force=None, unfinished=True) if any((runs / table).rglob("run.json")) else None
        for note in found.notes if found else ():
            tell(f"{table}: {note}")
        known = list(dict.fromkeys(run.name for run in found.runs)) if found else []
        asked = dict.fromkeys(row for c in claims if c.table == table for row in (c.first, c.second))
        for row in asked if known else ():
            if row not in known:
                tell(f"{table} has no row {row!r}{nearest(row, known)}")
        for rule in ("last", "source"):
            scores[table, rule] = scores_by_method(found.cells if found else (), rule)
    last, source = [], []
    for c in claims:
        at = {rule: [scores[c.table, rule].get(row, {}) for row in (c.first, c.second)] for rule in ("last", "source")}
        last.append(judge(c.first, c.second, *at["last"], claimed=c.printed, over=over))
        source.append(judge(c.first, c.second, *at["source"], claimed=c.printed, over=over).difference)
    return [Judged(c, v, s) for c, v, s in zip(claims, corrected(last), source, strict=True)]


def to_text(judged: Sequence[Judged]) -> str:
    """A sentence for each claim, and how many are decided."""
    lines = [f"{j.claim.claim} ({j.claim.where}). {sentence(j.last)}" for j in judged]
    run = [j for j in judged if j.last.pairs]
    decided = [j for j in run if j.last.decision != "undecided"]
    count = {word: sum(j.last.decision == word for j in run) for word in ("reproduced", "not reproduced", "undecided")}
    told = ", ".join(f"{number} {word}" for word, number in count.items())
    stand = sum(j.last.stands for j in decided)
    lines.append(
        f"{len(run)} of {len(judged)} claims were run: {told}. After Holm's correction {stand} of the {len(decided)} decided ones stand."
    )
    return "\n\n".join(lines)


def _heads(over: Over) -> list[str]:
    told = ["claim", "paper", "ours, last round", f"95 % interval over {over}", "ours, round by source validation", over, "verdict"]
    needed = f"{'domains' if over == 'domains' else 'seeds'} that would decide"
    return [*told, needed, "p after Holm", "by bootstrap", *(f"over {unit}" for unit in UNITS if unit != over)]


def _row(judged: Judged) -> list[str]:
    c, v = judged.claim, judged.last
    told = [f"{c.claim} ({c.where})", _number(c.printed)]
    if not v.pairs:
        return [*told, "not run", *[""] * (len(_heads(v.over)) - 3)]
    by_t = (v.low, v.high) if v.low is not None and v.high is not None else None
    by_t_told, *others = (f"{bounds[0]:+.2f} to {bounds[1]:+.2f}" if bounds else "" for bounds in (by_t, v.drawn, *v.beside.values()))
    pairs = f"{v.n} of {v.seeds} seed{'' if v.seeds == 1 else 's'}" if v.over == "pairs" else str(v.n)
    wanted = "" if v.decision != "undecided" else "beyond reach" if v.needed is None else str(v.needed)
    p = "" if v.adjusted is None else f"{v.adjusted:.3f}"
    return [*told, _number(v.difference), by_t_told, _number(judged.source), pairs, v.decision, wanted, p, *others]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:+.2f}"


def to_markdown(judged: Sequence[Judged]) -> str:
    heads = _heads(judged[0].last.over)
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    lines += ["| " + " | ".join(map(in_a_cell, _row(j))) + " |" for j in judged]
    return "\n".join(lines) + "\n"


def to_csv(judged: Sequence[Judged]) -> str:
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(_heads(judged[0].last.over))
    writer.writerows([as_cell(cell) for cell in _row(j)] for j in judged)
    return out.getvalue()
