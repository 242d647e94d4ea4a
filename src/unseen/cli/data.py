"""`unseen data`: what data sets there are, and preparing, checking and comparing them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from unseen.cli.answers import answering, refuse_unwritable, screen
from unseen.cli.options import RECIPE_NAMES
from unseen.cli.progress import steps
from unseen.cli.tables import plain_table, show_list

if TYPE_CHECKING:
    from unseen.data.checks.check import Report

__all__ = ["data_app"]

_JSON = Annotated[bool, typer.Option("--json", help="for programs")]
_CACHE = Annotated[Path | None, typer.Option(help="where prepared data lie; default UNSEEN_CACHE, else the platform's cache folder")]
_SIZE = Annotated[int | None, typer.Option(help="image side in pixels; default the data set's own")]

data_app = typer.Typer(
    help="Data sets: list, prepare, check and compare them.",
    epilog="Example: unseen data prepare pacs --from PACS.tar",
    invoke_without_command=True,
)


@data_app.callback()
def data(context: typer.Context, as_json: _JSON = False) -> None:
    """List the data sets.

    Example: unseen data --json
    """
    if context.invoked_subcommand is not None:
        return
    with answering():
        from unseen.data import DATASETS
        from unseen.data.cache import cache_root, everything_prepared

        there = everything_prepared(cache_root())
        rows: list[dict[str, Any]] = [
            {
                "name": e.name,
                "task": e.task,
                "classes": list(e.classes or ()),
                "domains": list(e.domains or ()),
                "about": e.about,
                "prepared": there.pop(e.name, []),
                "embedded": e.embedded,
            }
            for e in DATASETS.values()
        ]
        if as_json:
            typer.echo(json.dumps(rows, indent=1))
            return
        _list(rows, there, cache_root())


def _list(rows: list[dict[str, Any]], own: dict[str, list[int]], cache: Path) -> None:
    table = plain_table("name", "labels", "prepared", "what it is, and its domains")
    for row in rows:
        sizes = "made here" if row["embedded"] else ", ".join(f"{size} px" for size in row["prepared"]) or "–"
        about = Text.assemble(row["about"], "\n", (", ".join(row["domains"]) or "domains as found", "dim"))
        table.add_row(Text(row["name"], "bold"), "masks" if row["task"] == "segmentation" else "classes", sizes, about)
    for path, found in own.items():
        table.add_row(Text("your own", "bold"), "", ", ".join(f"{size} px" for size in found), Text(path, overflow="fold"))
    show_list(table)
    lines = [
        f"prepared data lie in {cache}",
        "to prepare one: unseen data prepare NAME --from FOLDER-OR-ARCHIVE",
        "your own: folder:PATH (PATH/domain/class/image, or PATH/site/images and PATH/site/masks) or csv:FILE",
        f"augmentation recipes, for --augment: {', '.join(RECIPE_NAMES)}",
    ]
    screen.print("\n" + "\n".join(lines), markup=False, soft_wrap=not screen.is_terminal)


@data_app.command()
def prepare(
    name: Annotated[str, typer.Argument(help="a data set's name, folder:PATH or csv:FILE")],
    source: Annotated[Path | None, typer.Option("--from", help="the folder or archive that you have")] = None,
    size: _SIZE = None,
    cache: _CACHE = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="print nothing but errors")] = False,
) -> None:
    """Decode a data set once into the cache; from then on it opens at once.

    Example: unseen data prepare pacs --from PACS.tar
    """
    with answering("The same command starts over; nothing half made is left."):
        from unseen.data import prepare as prepare_dataset
        from unseen.data import prepared

        with steps(f"preparing {name}", quiet) as told:
            prepare_dataset(name, source, cache=cache, size=size, progress=told)
        found = prepared(name, cache=cache, size=size)
        if not quiet:
            counts = ", ".join(f"{d.name} {len(d):,}" for d in found.dataset().domains)
            screen.print(f"{name}: {counts}\nin {found.folder}", markup=False)
            for note in found.manifest["notes"]:
                screen.print(note, markup=False)


@data_app.command()
def check(
    name: Annotated[str, typer.Argument(help="a prepared data set's name, folder:PATH or csv:FILE")],
    size: _SIZE = None,
    cache: _CACHE = None,
    as_json: _JSON = False,
) -> None:
    """Print a card per domain and everything that looks wrong: exit code 2 on errors.

    Example: unseen data check folder:my-sites
    """
    with answering():
        report = _report(name, size, cache)
        if as_json:
            typer.echo(json.dumps(report.to_json(), indent=1))
        else:
            report.render(screen)
    if not report.ok:
        raise typer.Exit(2)


def _report(name: str, size: int | None, cache: Path | None) -> Report:
    from unseen.data import DATASETS, load, prepared
    from unseen.data.checks.check import check as check_dataset
    from unseen.data.checks.check import check_cached

    if name in DATASETS and DATASETS[name].embedded:
        return check_dataset(load(name))
    found = prepared(name, cache=cache, size=size)
    preparation: dict[str, Any] = {entry["name"]: entry.get("originals", {}) for entry in found.manifest["domains"]}
    return check_cached(found.dataset(), found.folder, preparation=preparation)


@data_app.command()
def gap(
    name: Annotated[str, typer.Argument(help="a data set's name, folder:PATH or csv:FILE")],
    out: Annotated[Path | None, typer.Option(help="a picture too: FILE.png or FILE.svg")] = None,
    per_domain: Annotated[int, typer.Option(help="images taken of each domain", min=2)] = 200,
    size: _SIZE = None,
    cache: _CACHE = None,
    as_json: _JSON = False,
) -> None:
    """How far the domains lie apart in style: a matrix of Gram-matrix distances.

    Example: unseen data gap styled-digits --out gap.png
    """
    with answering():
        from unseen.data import load
        from unseen.data.checks.gap import gap_matrix, picture, render

        refuse_unwritable(out)
        names, gaps = gap_matrix(load(name, cache=cache, size=size), per_domain=per_domain)
        if as_json:
            typer.echo(json.dumps({"domains": names, "gaps": gaps.tolist()}, indent=1))
        else:
            render(screen, names, gaps)
        if out is not None:
            picture(out, names, gaps)


@data_app.command()
def partition(
    name: Annotated[str, typer.Argument(help="a data set's name, folder:PATH or csv:FILE")],
    target: Annotated[str | None, typer.Option(help="the domain that stays unseen")] = None,
    source: Annotated[str | None, typer.Option(help="the only source domain, instead of a target")] = None,
    how: Annotated[str, typer.Option("--partition", help="per-domain, split, dial:X, dirichlet:X, pooled or file:PATH")] = "per-domain",
    clients: Annotated[int | None, typer.Option(help="number of clients, where the partition leaves it open")] = None,
    minimum: Annotated[int, typer.Option(help="the fewest training samples of a client", min=1)] = 2,
    validation: Annotated[float, typer.Option(help="share of each domain kept for validation")] = 0.1,
    seed: Annotated[int, typer.Option(help="what the draw is derived from", min=0)] = 0,
    out: Annotated[Path | None, typer.Option(help="save it as JSON, for --partition file:PATH")] = None,
    size: _SIZE = None,
    cache: _CACHE = None,
) -> None:
    """Draw who holds how much of which class and domain, and save it to be used again.

    Example: unseen data partition styled-digits --source plain --partition dirichlet:0.3 --clients 10 --out ten.json
    """
    with answering():
        from unseen.data import load
        from unseen.data.partition.partitions import by_name, draw, partition_hash, to_json
        from unseen.data.partition.protocol import choose_fold
        from unseen.files import write_atomically
        from unseen.task import Classification

        refuse_unwritable(out)
        data = load(name, cache=cache, size=size)
        fold = choose_fold(data, "single-source" if source else "leave-one-domain-out", target=target, source=source)
        holdings = by_name(how, clients=clients, validation=validation, minimum=minimum)(fold.sources, seed)
        screen.print(draw(holdings, data.task.classes if isinstance(data.task, Classification) else ()), markup=False)
        screen.print(f"hash {partition_hash(holdings)}", markup=False)
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(out, json.dumps(to_json(holdings)) + "\n")
