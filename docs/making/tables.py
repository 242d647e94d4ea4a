"""Writes the documents' tables from what they speak of, so that no number is typed: `make format` runs it, a test compares.

A table stands between `<!-- table: NAME ... -->` and `<!-- end of table -->`. Lines inside the first comment are what it is asked for.
"""

from __future__ import annotations

import csv
import dataclasses
import inspect
import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

from unseen.cli import app
from unseen.experiment_options import options
from unseen.federation.site.policy import Policy, Privacy
from unseen.methods import METHODS
from unseen.report.statistics import Comparison, compare
from unseen.report.verdicts import judge

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks/results"
PLACE = re.compile(r"(<!-- table: (\w+)\n?(.*?)-->\n)(.*?)(<!-- end of table -->)", re.DOTALL)


def lines_of(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (heading, ["---"] * len(heading), *rows)) + "\n"


def methods(asked: Sequence[str]) -> str:
    """Every method with its paper, file and card."""
    rows = [
        (f"[{cls.title}]({name}.md)", cls.paper, f"[{name}.py](../../src/unseen/methods/{name}.py)", (cls.__doc__ or "").splitlines()[0])
        for name, cls in METHODS.items()
    ]
    return lines_of(("method", "paper", "file", "idea"), rows)


def demo(asked: Sequence[str]) -> str:
    """The demo's table as it was committed, and what it shows in words."""
    _, _, text = (RESULTS / "demo.md").read_text(encoding="utf-8").partition("\n\n")
    return text[text.index("|") :]


def _rows_of(file: Path) -> list[str]:
    return [line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("|")]


@dataclasses.dataclass(frozen=True)
class Verdict:
    """A line of verdicts.md."""

    claim: str
    paper: str
    printed: str
    ours: str
    interval: str
    by_source: str
    pairs: str
    verdict: str


@cache
def verdicts(file: Path) -> list[Verdict]:
    rows = []
    for line in _rows_of(file)[2:]:
        claim, printed, ours, interval, by_source, pairs, verdict, *_ = (cell.strip() for cell in line.strip("|").split("|"))
        said, _, where = claim.rpartition(" (")
        rows.append(Verdict(said, where.removesuffix(")"), printed, ours, interval, by_source, pairs, verdict))
    return rows


def claims(asked: Sequence[str]) -> str:
    """All claims, the decided ones first, and how many there are of each kind."""
    rows = verdicts(RESULTS / "verdicts.md")
    order = ("reproduced", "not reproduced", "undecided")
    counts = {word: sum(row.verdict == word for row in rows) for word in order}
    told = f"{len(rows)} claims: {', '.join(f'{counts[word]} {word}' for word in order)}.\n\n"
    table = [
        (f"**{row.verdict}**" if row.verdict != "undecided" else row.verdict, row.claim, row.paper, row.printed, row.ours, row.interval)
        for row in sorted(rows, key=lambda row: order.index(row.verdict))
    ]
    return told + lines_of(("verdict", "claim", "printed in", "printed", "ours", "95 % interval"), table)


def again(asked: Sequence[str]) -> str:
    """The verdicts of other seeds beside those of the first, where three seeds of both are finished."""
    before = {(row.claim, row.paper): row for row in verdicts(RESULTS / "again/verdicts-first.md")}
    rows = []
    for row in verdicts(RESULTS / "again/verdicts.md"):
        first, (pairs, _, seeds, _) = before[row.claim, row.paper], row.pairs.split()
        if int(seeds) >= 3:
            told = f"{row.verdict}, {'as before' if row.verdict == first.verdict else f'before: {first.verdict}'}"
            rows.append((row.claim, f"{first.ours} ({first.interval})", f"{row.ours} ({row.interval})", f"{pairs} of {seeds} seeds", told))
    return lines_of(("claim", "seeds 0 to 2", "later seeds", "pairs", "verdict of the latter"), rows)


@cache
def scores(name: str, rule: str, later: bool = False) -> dict[str, dict[tuple[str, int], float]]:
    """The kept scores of a table, in percent: by row, then by unseen domain and seed; with `later`, those of later seeds too.

    They are those of the last round (`last`), or of the one that source validation picks (`source`).
    """
    best: dict[tuple[str, str, str, int], tuple[float, int, float]] = {}
    for row in _kept(name, later):
        key = (row["method"], row["fold"], row["unseen domain"], int(row["seed"]))
        number, source = int(row["round"]), float(row["source validation"] or 0)
        rank = (0.0, number) if rule == "last" else (source, -number)  # of equal rounds the first
        if key not in best or rank > best[key][:2]:
            best[key] = (*rank, 100 * float(row["score"]))
    table: dict[str, dict[tuple[str, int], float]] = {}
    for (method, fold, domain, seed), (_, _, score) in best.items():
        table.setdefault(method, {})[f"{fold} → {domain}", seed] = score
    return table


def _kept(name: str, later: bool) -> Iterator[dict[str, str]]:
    files = [RESULTS / f"{name}.csv", *([RESULTS / f"again/{name}.csv"] if later else [])]
    for file in files:
        if file.is_file():
            with file.open(encoding="utf-8", newline="") as stream:
                yield from csv.DictReader(stream)


def difference(name: str, first: str, second: str, rule: str = "last", without: str = "", later: bool = False) -> Comparison:
    """Row `first` less row `second` over the pairs of unseen domain and seed that both have."""
    both = {
        row: {key: value for key, value in scores(name, rule, later)[row].items() if not without or without not in key[0]}
        for row in (first, second)
    }
    return compare(both)[0]


def differences(asked: Sequence[str]) -> str:
    """A line `table | first | second | words` for each row; after the table's name may stand `, by source`,
    `, all seeds` (later ones too) or `, without DOMAIN`."""
    rows = []
    for line in asked:
        where, first, second, *words = (part.strip() for part in line.split("|"))
        name, *extra = where.split(", ")
        rule = "source" if "by source" in extra else "last"
        without = next((word.removeprefix("without ") for word in extra if word.startswith("without ")), "")
        later = "all seeds" in extra
        found = difference(name, first, second, rule, without, later)
        assert found.difference is not None and found.low is not None and found.high is not None, line
        interval = f"{found.low:+.1f} to {found.high:+.1f}"
        notes = {"round by source validation": rule == "source", f"without {without}": without, "all seeds": later}
        about = ", ".join([*words, *(note for note, holds in notes.items() if holds)])
        rows.append((first, second, f"{found.difference:+.1f}", interval, str(found.n), about))
    heading = ("row", "against", "difference", "95 % interval", "pairs", "note")
    return lines_of(heading, rows) if any(row[-1] for row in rows) else lines_of(heading[:-1], [row[:-1] for row in rows])


def counted(asked: Sequence[str]) -> str:
    """A line `table | first | second` for each row: the difference, and its interval over pairs, over seeds and over domains."""
    rows = []
    for line in asked:
        name, *both = (part.strip() for part in line.split("|"))
        found = scores(name, "last", later=True)
        verdict = judge(*both, found[both[0]], found[both[1]])
        assert verdict.difference is not None and verdict.low is not None and verdict.high is not None, line
        bounds = [(verdict.low, verdict.high), verdict.beside["seeds"], verdict.beside["domains"]]
        told = [f"{low:+.1f} to {high:+.1f}" for low, high in (one or (math.nan, math.nan) for one in bounds)]
        rows.append((name, both[1], f"{verdict.difference:+.1f}", *told, f"{len(verdict.targets)}, {verdict.seeds}"))
    return lines_of(("data", "against", "difference", "over pairs", "over seeds", "over domains", "domains, seeds"), rows)


def forms(asked: Sequence[str]) -> str:
    """A line `table | row | row | ...` for each row: the average over domains of each of these rows in the last round."""
    rows = []
    for line in asked:
        name, *labels = (part.strip() for part in line.split("|"))
        rows.append((name, *(_one(sum(v) / len(v)) if (v := [*scores(name, "last").get(label, {}).values()]) else "" for label in labels)))
    heading = ("data", "first form", "second form", "present form", "FedAvg")
    return lines_of(heading, rows)


def means(asked: Sequence[str]) -> str:
    """A line `table | row | words` for each row: the mean over seeds on each unseen domain in the last round, and their average."""
    columns, rows = _by_domain(asked)
    table = [(row, seeds, *map(_one, values), _one(sum(values) / len(values)), *words) for row, seeds, values, words in rows]
    extra = ("printed",) if len(table[0]) > len(columns) + 3 else ()
    return lines_of(("last round", "seeds", *columns, "average", *extra), table)


def worst(asked: Sequence[str]) -> str:
    """A line `table | row` for each row: as `means`, and the lowest of the domains."""
    columns, rows = _by_domain(asked)
    table = [(row, seeds, *map(_one, values), _one(sum(values) / len(values)), _one(min(values))) for row, seeds, values, _ in rows]
    return lines_of(("last round", "seeds", *columns, "average", "worst"), table)


def _one(value: float) -> str:
    return f"{value:.1f}"


def _by_domain(asked: Sequence[str]) -> tuple[list[str], list[tuple[str, str, list[float], list[str]]]]:
    """The domains; and of each row its name, its seeds, the mean on each domain, and words beside it."""
    rows = []
    columns: list[str] = []
    for line in asked:
        name, row, *words = (part.strip() for part in line.split("|"))
        found: dict[str, list[float]] = {}
        for (domain, _), value in scores(name, "last")[row].items():
            source, _, target = domain.partition(" → ")
            found.setdefault(target if source != target else source, []).append(value)
        columns = columns or list(found)
        rows.append((row, str(max(map(len, found.values()))), [sum(found[c]) / len(found[c]) for c in columns], words))
    return columns, rows


def ends(asked: Sequence[str]) -> str:
    """A line `table | row` for each row: where it ends on its sources' validation and on the unseen domains, the mean over runs."""
    rows = []
    for line in asked:
        name, row = (part.strip() for part in line.split("|"))
        with (RESULTS / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            found = [one for one in csv.DictReader(file) if one["method"] == row]
        last = [one for one in found if one["round"] == max(found, key=lambda other: int(other["round"]))["round"]]
        rows.append((row, *(f"{100 * sum(float(one[key]) for one in last) / len(last):.0f}" for key in ("source validation", "score"))))
    return lines_of(("row", "source, %", "unseen, %"), rows)


def commands(asked: Sequence[str]) -> str:
    """Every command with the first sentence of its help."""
    import typer

    def told(function: Callable[..., object] | None) -> str:
        return " ".join(inspect.cleandoc(function.__doc__ or "").split("\n\n")[0].split()) if function else ""

    group = typer.main.get_command(app)
    rows = []
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        parts = getattr(command, "commands", {})
        rows += [(f"`unseen {name} {part}`", told(inner.callback)) for part, inner in parts.items()]
        rows += [] if parts else [(f"`unseen {name}`", told(command.callback))]
    return lines_of(("command", "what it does"), rows)


def settings(asked: Sequence[str]) -> str:
    """Every setting of an experiment."""
    rows = [(f"`{s.name}`", "none" if s.default is None else f"`{s.default}`", s.meaning) for s in options()]
    return lines_of(("key", "default", "meaning"), rows)


def policy(asked: Sequence[str]) -> str:
    """Every rule with its default; what it is for is read from the guide's table."""
    guide = (ROOT / "docs/between-sites.md").read_text(encoding="utf-8")
    purpose = dict(re.findall(r"^\| `([a-z_.]+)` \| `[^`]+` \| (.+?) \|", guide, flags=re.MULTILINE))
    rules = {field.name: getattr(Policy(), field.name) for field in dataclasses.fields(Policy) if field.name != "privacy"}
    rules |= {f"privacy.{field.name}": getattr(Privacy(), field.name) for field in dataclasses.fields(Privacy)}
    kinds = {bool: "true or false", int: "whole number", float: "number", str: "text", tuple: "list of names"}
    plain = {name: re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", text) for name, text in purpose.items()}  # links there lead elsewhere from here
    rows = [(f"`{name}`", kinds[type(value)], f"`{_toml(value)}`", plain.get(name, "")) for name, value in rules.items()]
    return lines_of(("rule", "type", "default", "what it is for"), rows)


def _toml(value: object) -> str:
    """A value as TOML has it."""
    if isinstance(value, tuple):
        return json.dumps(list(value))
    return json.dumps(value) if isinstance(value, bool | str) else repr(value)


TABLES: dict[str, Callable[[Sequence[str]], str]] = {
    table.__name__: table
    for table in (methods, demo, claims, again, differences, counted, forms, means, worst, ends, commands, settings, policy)
}


def with_tables(text: str) -> str:
    """A document with its tables as they should be."""

    def filled(found: re.Match[str]) -> str:
        return found[1] + TABLES[found[2]]([line for line in found[3].splitlines() if line.strip()]) + found[5]

    return PLACE.sub(filled, text)


def documents() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


if __name__ == "__main__":
    stale = {file: new for file in documents() if (new := with_tables(old := file.read_text(encoding="utf-8"))) != old}
    if "--check" in sys.argv and stale:
        sys.exit(f"tables that are not as they should be in {', '.join(file.name for file in stale)}; run: make format")
    for file, text in stale.items():
        file.write_text(text, encoding="utf-8")
