"""`unseen verdict`: what finished runs decide about two methods, or about a paper's claims."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unseen.cli.answers import answering, errors
from unseen.cli.options import among, read_toml

if TYPE_CHECKING:
    from unseen.report.verdicts import Verdict

__all__ = ["verdict"]

_FORMATS = ("text", "md", "csv")
_RULES = ("last", "source", "held-out")


def verdict(
    folder: Annotated[Path | None, typer.Argument(help="folder with runs, at any depth", show_default=False)] = None,
    rows: Annotated[list[str] | None, typer.Argument(help="a row of its table, and those to hold it against", show_default=False)] = None,
    claims: Annotated[Path | None, typer.Option(help="a TOML file of claims instead")] = None,
    runs: Annotated[Path | None, typer.Option(help="with --claims: the folder that holds the tables' runs")] = None,
    rule: Annotated[str, typer.Option(help="selection rule: last, source or held-out", autocompletion=among(*_RULES))] = "last",
    metric: Annotated[str | None, typer.Option(help="another metric of the records, such as balanced_accuracy or ece")] = None,
    over: Annotated[
        str,
        typer.Option(
            help="what an interval counts: pairs of domain and seed, seeds (averages over the domains), or domains (over the seeds)",
            autocompletion=among("pairs", "seeds", "domains"),
        ),
    ] = "pairs",
    format: Annotated[str, typer.Option(help="text, or with --claims md or csv", autocompletion=among(*_FORMATS))] = "text",
    out: Annotated[Path | None, typer.Option(help="file to write; standard output without it")] = None,
) -> None:
    """Say whether one method beats another: paired over seeds and unseen domains, with intervals, and what would decide the rest.

    Example: unseen verdict runs/demo FedSB FedAvg

    Example: unseen verdict --claims benchmarks/evidence/claims.toml --runs runs --format md
    """
    with answering():
        from unseen.errors import BadInput, choose
        from unseen.files import write_atomically

        choose("format", format, _FORMATS)
        choose("selection rule", rule, _RULES)
        choose("unit for --over", over, ("pairs", "seeds", "domains"))
        if claims is not None:
            given = [name for name, value in (("FOLDER", folder), ("--metric", metric)) if value]
            if given or rule != "last":
                raise BadInput(f"{(given or ['--rule'])[0]} is for two rows of one folder; --claims needs --runs alone")
            if runs is None:
                raise BadInput("--claims needs --runs, the folder that holds the tables' runs")
            text = _of_claims(claims, runs, format, over)
        else:
            if folder is None or not rows or len(rows) < 2 or runs is not None or format != "text":
                raise BadInput(
                    "give a folder and two rows, such as `unseen verdict runs/demo FedSB FedAvg`; or --claims FILE --runs FOLDER"
                )
            text = _of_rows(folder, rows, rule, metric, over)
        if out is None:
            typer.echo(text, nl=False)
        else:
            out.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(out, text)


def _of_claims(file: Path, runs: Path, format: str, over: Any) -> str:
    from unseen.report.claims import judge_claims, read_claims, to_csv, to_markdown, to_text

    judged = judge_claims(read_claims(read_toml(file)), runs, over, tell=lambda note: errors.print(note, markup=False))
    if format == "text":
        return "\n".join(_wrapped(line) for line in to_text(judged).split("\n")) + "\n"
    return {"md": to_markdown, "csv": to_csv}[format](judged)


def _of_rows(folder: Path, rows: list[str], rule: str, metric: str | None, over: Any) -> str:
    from unseen.errors import BadInput, choose
    from unseen.metrics import OF_CLASSES, higher_is_better
    from unseen.report.collect import collect
    from unseen.report.statistics import scores_by_method
    from unseen.report.verdicts import corrected, judge

    found = collect(folder, force=None)
    for note in found.notes:
        errors.print(note, markup=False)
    scores = scores_by_method(found.cells, rule, metric)
    for row in rows:
        choose("row", row, scores)
    if len(set(rows)) < len(rows):
        raise BadInput(f"a row is named twice: {', '.join(rows)}")
    if not any(scores.values()):
        known = sorted({key for cell in found.cells for row in cell.records[-1]["target"].values() for key in row if key != "samples"})
        told = f"no run has {metric}; they have {', '.join(known)}" if metric else f"the rule {rule} picks no round of these runs"
        raise BadInput(told)
    name = metric or found.cells[0].records[0]["metric"]
    higher = higher_is_better(name)
    share = (name in OF_CLASSES and name != "loss") or name.startswith("dice")
    if metric is not None and share:
        scores = {row: {key: 100 * value for key, value in table.items()} for row, table in scores.items()}
    unit = "points" if metric is None or share else name
    judged = [judge(rows[0], other, scores[rows[0]], scores[other], higher=higher, over=over) for other in rows[1:]]
    heading = f"{name}{'' if higher else ' (lower is better)'}, {_heading(rule)}, in {folder}"
    return "\n\n".join([heading, *(_told(v, unit) for v in (corrected(judged) if len(judged) > 1 else judged))]) + "\n"


def _heading(rule: str) -> str:
    from unseen.runs.selection import RULES

    return RULES[rule].heading


def _told(v: Verdict, unit: str) -> str:
    from unseen.report.verdicts import sentence

    lines = [_wrapped(sentence(v, unit))]
    if v.low is None or v.high is None:
        return lines[0]
    rows = {target: f"{difference:+.2f}" for target, difference in v.targets.items()}
    rows |= {f"95 % over {v.n} {v.over}": f"{v.low:+.2f} to {v.high:+.2f}  Student's t"}
    if v.drawn:
        rows["the same, drawn"] = f"{v.drawn[0]:+.2f} to {v.drawn[1]:+.2f}  bootstrap"
    rows |= {f"over {unit}": f"{bounds[0]:+.2f} to {bounds[1]:+.2f}  Student's t" for unit, bounds in v.beside.items() if bounds}
    if v.p is not None:
        rows["p"] = f"{v.p:.3f}" + (f", after Holm {v.adjusted:.3f}" if v.adjusted is not None else "")
    width = max(map(len, rows))
    return "\n".join([*lines, *(f"  {name:<{width}}  {text}" for name, text in rows.items())])


def _wrapped(text: str) -> str:
    import shutil
    import textwrap

    return textwrap.fill(text, min(shutil.get_terminal_size().columns, 100))
