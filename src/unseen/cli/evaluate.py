"""`unseen evaluate`: will the model work at our site?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from unseen.cli.answers import answering, screen
from unseen.cli.options import SIGNER, TRUST_MODEL

__all__ = ["evaluate"]


def evaluate(
    model: Annotated[Path, typer.Argument(help="folder that `unseen export` wrote")],
    data: Annotated[str, typer.Option(help="the site's data: folder:PATH, csv:FILE or a data set's name")],
    threshold: Annotated[list[str] | None, typer.Option(help="METRIC=VALUE that must be met, such as dice=0.8; repeatable")] = None,
    domain: Annotated[list[str] | None, typer.Option(help="only this domain of the data; repeatable")] = None,
    out: Annotated[Path | None, typer.Option(help="folder for acceptance.html and acceptance.json")] = None,
    cache: Annotated[
        Path | None, typer.Option(help="where prepared data lie; default UNSEEN_CACHE, else the platform's cache folder")
    ] = None,
    signer: Annotated[str | None, typer.Option(help=SIGNER)] = None,
    trust: Annotated[bool, typer.Option("--trust", help=TRUST_MODEL)] = False,
) -> None:
    """Metrics with intervals at a new site, how unlike the training sites it looks, pass or fail. Nothing leaves the machine.

    Exit code 1 if a threshold is not met.

    Example: unseen evaluate model/ --data folder:our-images --threshold accuracy=0.9 --out acceptance
    """
    with answering():
        from unseen.deploy.evaluation import evaluate as accept
        from unseen.deploy.model import load_model

        thresholds = _thresholds(threshold or [])
        deployed = load_model(model, trust=trust, signer=signer)
        dataset, ids = _site(data, deployed.card.size, domain, cache)
        answer = accept(deployed, dataset, thresholds=thresholds, ids=ids)
        if out is not None:
            _write(out, answer)
        _say(answer, out)
    if answer.passed is False:
        raise typer.Exit(1)


def _thresholds(texts: list[str]) -> dict[str, float]:
    from unseen.errors import BadInput

    found, problems = {}, []
    for text in texts:
        name, _, value = text.partition("=")
        try:
            found[name.strip()] = float(value)
        except ValueError:
            problems.append(f"--threshold {text!r}; expected METRIC=VALUE, for example --threshold dice=0.8")
    if problems:
        raise BadInput(problems)
    return found


def _site(spec: str, size: tuple[int, int], only: list[str] | None, cache: Path | None) -> tuple[Any, dict[str, Any] | None]:
    """The data at the model's size, and the names of the cases where there are any."""
    from dataclasses import replace

    from unseen.data import DATASETS, load, prepared
    from unseen.errors import BadInput

    embedded = spec in DATASETS and DATASETS[spec].make is not None
    if not embedded and size[0] != size[1]:
        raise BadInput(f"this model takes images of {size[0]} x {size[1]} pixels; prepared data are square")
    found = None if embedded else prepared(spec, cache=cache, size=size[0])
    dataset = load(spec) if found is None else found.dataset()
    domains = tuple(dataset[name] for name in only) if only else dataset.domains
    ids = {d.name: found.ids(d.name) for d in domains} if found is not None else None
    return replace(dataset, domains=domains), ids


def _write(out: Path, answer: Any) -> None:
    from unseen.deploy.acceptance_page import render_acceptance
    from unseen.files import write_atomically

    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / "acceptance.json", json.dumps(answer.values(), indent=1) + "\n")
    write_atomically(out / "acceptance.html", render_acceptance(answer))


def _say(answer: Any, out: Path | None) -> None:
    screen.print(f"{answer.model} on {answer.data}: {len(answer.cases)} cases", markup=False)
    screen.print(f"the model is {answer.origin}", markup=False)
    for name, found in answer.metrics.items():
        interval = f"  ({found.low:.4f} to {found.high:.4f})" if found.low is not None else ""
        screen.print(f"  {name:<20} {found.value:.4f}{interval}", markup=False)
    for site, style in answer.style.items():
        screen.print(f"  style distance of {site}: " + ", ".join(f"{n} {d:.3f}" for n, d in style.distances.items()), markup=False)
    for check in answer.checks:
        verdict = "met" if check.passed else "NOT met"
        doubt = "" if check.sure == check.passed else "; the interval reaches beyond it"
        screen.print(f"  threshold {check.metric}={check.limit:g}: {verdict} ({check.value:.4f}{doubt})", markup=False)
    for text in answer.warnings:
        screen.print(f"warning: {text}", markup=False)
    if answer.passed is not None:
        screen.print("[bold green]passed[/]" if answer.passed else "[bold red]failed[/]")
    if out is not None:
        screen.print(f"{out / 'acceptance.html'}, {out / 'acceptance.json'}", markup=False)
