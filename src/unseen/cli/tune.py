"""`unseen tune`: settings and ingredients chosen on the sources alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unseen.cli.answers import answering, errors, screen
from unseen.cli.bench import jobs_of, refuse_mixture, seeds_of
from unseen.cli.options import among, default_workers, experiment_option, read_toml, settings_from
from unseen.cli.progress import looking_on_at_many

if TYPE_CHECKING:
    from unseen.tuning.plan import TuningBudget, TuningPlan
    from unseen.tuning.running import Tuned

__all__ = ["tune"]


def tune(
    what: Annotated[str, typer.Argument(metavar="PLAN.toml|METHOD", help="a plan, or a method that declares variants")],
    out: Annotated[Path | None, typer.Option(help="folder for the tries; default runs/tune-NAME")] = None,
    write: Annotated[Path | None, typer.Option(help="the tuned file; default tuned.toml in --out")] = None,
    budget: Annotated[
        str | None, typer.Option(help="what the tries may cost: runs=40, rounds=600 or minutes=30; before the plan's")
    ] = None,
    data: Annotated[str | None, typer.Option(help="METHOD: its data, as for `unseen run`")] = None,
    target: Annotated[
        str | None, typer.Option(help="METHOD: the domain that stays unseen; none: all sites are sources of a new one")
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(
            help="METHOD: held-out (default), held-out-worst or source", autocompletion=among("held-out", "held-out-worst", "source")
        ),
    ] = None,
    rounds: Annotated[int | None, experiment_option("rounds")] = None,
    seeds: Annotated[str | None, typer.Option(help="METHOD: seeds of the tries; default 0")] = None,
    network: Annotated[str | None, experiment_option("network")] = None,
    weights: Annotated[str | None, experiment_option("weights")] = None,
    size: Annotated[int | None, experiment_option("size")] = None,
    metric: Annotated[str | None, experiment_option("metric")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="METHOD: FIELD=VALUE of all its variants, repeatable")] = None,
    device: Annotated[str | None, experiment_option("device")] = None,
    oracle: Annotated[
        bool, typer.Option("--oracle", help="when the choice is written, say what it loses against the best on the target itself")
    ] = False,
    jobs: Annotated[str, typer.Option(help="runs at the same time: a number, or auto: as many as this machine is best at")] = "auto",
    workers: Annotated[int | None, typer.Option(help="client tasks in parallel processes, of one run at a time", min=1)] = None,
    engine: Annotated[
        str, typer.Option(help="local, or ray: runs spread over a Ray cluster", autocompletion=among("local", "ray"))
    ] = "local",
    address: Annotated[str | None, typer.Option(help="the Ray cluster, such as 10.0.0.1:6379; none: one on this machine")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="print the tables alone")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="print every metric of every round")] = False,
) -> None:
    """Try what a plan leaves open, choose without the unseen domain, and write the file that `unseen bench` runs.

    By held-out source each source in turn plays the unseen one. The same command again goes on where it was stopped.

    Example: unseen tune benchmarks/evidence/pacs.plan.toml --out runs/pacs-rates --write pacs.toml

    Example: unseen tune best --data folder:ours --budget minutes=30
    """
    given = {"data": data, "target": target, "rule": rule, "rounds": rounds, "seeds": seeds, "network": network, "weights": weights}
    given |= {"size": size, "metric": metric, "device": device}
    with answering(f"To go on: the same command again{f' (runs are in {out})' if out else ''}."):
        from unseen.errors import BadInput
        from unseen.tuning.plan import read_plan
        from unseen.tuning.running import TriesFailed

        spent = _budget(budget)
        if what.endswith(".toml"):
            strange = [f"--{name}" for name, value in {**given, "set": set_}.items() if value not in (None, [])]
            if strange:
                raise BadInput(f"{', '.join(strange)}: a plan says this itself; these options are for `unseen tune METHOD`")
            plan, header = read_plan(read_toml(Path(what)), spent), _comments(Path(what))
        else:
            plan, header = read_plan(_of_method(what, given, settings_from(set_ or [])), spent), []
        folder = out or Path("runs") / f"tune-{Path(what).stem.removesuffix('.plan')}"
        file = write or folder / "tuned.toml"
        _refuse_unwritable(file, folder, what)
        try:
            tuned = _tune(plan, folder, jobs, workers, engine, address, quiet, verbose)
        except TriesFailed as failed:
            errors.print(f"[bold red]unseen:[/] {failed}", soft_wrap=True)
            raise typer.Exit(1) from None
        _write(tuned, file, folder, header, what)
        _show(tuned, file, folder, oracle)


def _budget(text: str | None) -> TuningBudget | None:
    from unseen.settings import parse_text
    from unseen.tuning.plan import read_budget

    if text is None:
        return None
    unit, _, amount = text.partition("=")
    return read_budget({unit.strip(): parse_text(amount)})


def _comments(file: Path) -> list[str]:
    """What a plan says of itself at its top goes into the file that comes of it."""
    lines = file.read_text(encoding="utf-8").splitlines()
    first = next((n for n, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return [line.removeprefix("#").removeprefix(" ") for line in lines[:first]]


def _of_method(method: str, given: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """The plan of `unseen tune METHOD`: one row, whose declared variants are open."""
    from unseen.errors import BadInput

    if given["data"] is None:
        raise BadInput("unseen tune METHOD needs --data; a plan is a file whose name ends in .toml")
    kept = ("data", "rounds", "network", "weights", "size", "metric", "device", "target")
    around = {key: given[key] for key in kept if given[key] is not None}
    how: dict[str, Any] = {"rule": given["rule"] or "held-out", "choice": "per-target" if given["target"] else "new-site"}
    if how["rule"] == "source" and not given["target"]:
        how["choice"] = "one"
    row: dict[str, Any] = {"method": method, "variants": "declared"}
    plain = {key: "none" if value is None else value for key, value in fields.items()}
    return {**around, "methods": [{**row, "set": plain} if plain else row], "tune": {**how, "seeds": seeds_of(given["seeds"]) or [0]}}


def _tune(
    plan: TuningPlan, out: Path, jobs: str, workers: int | None, engine: str, address: str | None, quiet: bool, verbose: bool
) -> Tuned:
    from collections.abc import Sequence

    from unseen.bench.cluster import on_ray
    from unseen.bench.jobs import in_processes
    from unseen.bench.plan import BenchmarkCell
    from unseen.bench.sequential import run_benchmark
    from unseen.bench.sharing import best_jobs
    from unseen.tuning.running import Blind
    from unseen.tuning.running import tune as tune_plan

    wanted = jobs_of(jobs)
    refuse_mixture(engine, wanted or 1, workers, address)
    with looking_on_at_many(quiet, verbose) as seen:
        watch = Blind(seen)

        def at_once(cells: Sequence[BenchmarkCell]) -> int:
            if engine == "ray":  # a cluster may be large enough for all
                return len(cells)
            return wanted or (1 if workers is not None else best_jobs(cells, out))

        def run(cells: Sequence[BenchmarkCell]) -> dict[str, str]:
            if engine == "ray":
                return on_ray(cells, out, address, watch)
            if at_once(cells) > 1 and len(cells) > 1:
                return in_processes(cells, out, at_once(cells), watch)
            return run_benchmark(cells, out, workers or default_workers(cells[0].experiment), watch)

        return tune_plan(plan, out, run, watch.say, at_once)


def _refuse_unwritable(file: Path, folder: Path, what: str) -> None:
    """The tuned file must have a place of its own that can be written: said before the tries, which may take hours."""
    import tempfile

    from unseen.errors import BadInput
    from unseen.tuning.running import STATE_FILE

    plan = [Path(what)] if what.endswith(".toml") else []
    for kept in [*plan, folder / STATE_FILE, folder / "tried.csv"]:
        if file.resolve() == kept.resolve():
            raise BadInput(f"--write {file} would go over {kept}, which is kept; choose another --write")
    if file.is_dir():
        raise BadInput(f"--write {file} is a folder; name a file in it, such as {file / 'tuned.toml'}")
    above = next(parent for parent in file.absolute().parents if parent.exists())  # what is missing below it is made
    try:
        with tempfile.TemporaryFile(dir=above):
            pass
    except OSError as error:
        raise BadInput(f"{file} cannot be written ({above}: {error.strerror}); choose another --write") from error


def _write(tuned: Tuned, file: Path, folder: Path, header: list[str], what: str) -> None:
    from unseen.errors import BadInput
    from unseen.files import write_atomically
    from unseen.tuning.writing import describe, reported_elsewhere, scores_csv, settled, to_toml

    values = settled(tuned)
    if not what.endswith(".toml"):  # one method: a file for `unseen run` too
        values = {**{key: value for key, value in values.items() if key != "methods"}, **values["methods"][0]}
    told = [f"Written by `unseen tune {Path(what).name}`: {describe(tuned)}.", reported_elsewhere(tuned)]
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, to_toml(values, [*header, *(line for line in told if line)]))
    except (FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError) as error:
        raise BadInput(f"{file} cannot be written ({error.strerror}); choose another --write. The tries are kept") from error
    write_atomically(folder / "tried.csv", scores_csv(tuned))


def _show(tuned: Tuned, file: Path, folder: Path, with_oracle: bool) -> None:
    from unseen.cli.tables import say_below
    from unseen.tuning.running import oracle
    from unseen.tuning.writing import describe, reported_elsewhere, table_of

    for row in tuned.plan.open_rows:
        screen.print()
        screen.print("\n".join(table_of(tuned, row)), markup=False)
    say_below(f"* {describe(tuned)}", *filter(None, [reported_elsewhere(tuned)]), f"written: {file}; every score: {folder / 'tried.csv'}")
    if with_oracle:
        found = oracle(tuned, folder)
        screen.print("\noracle (looks at the unseen domain; told after the choice was written):", markup=False)
        rows = {row.label: row for row in tuned.plan.rows}
        for choice, best, lost in found:
            where = f", {choice.target}" if choice.target else ""
            name = rows[choice.row].tries[best].name
            told = "the same choice" if best == choice.number else f"{name}; the choice loses {100 * lost:.2f}"
            screen.print(f"  {choice.row}{where}: {told}", markup=False)
        if not found:
            screen.print("  every domain served the choice itself, so none is left to compare on", markup=False)
