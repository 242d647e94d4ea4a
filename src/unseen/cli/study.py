"""`unseen federation propose` and `unseen study`: a study is written down, looked at and tried before anybody approves it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unseen.cli.answers import answering, say, screen
from unseen.cli.options import merge, read_toml, settings_from

if TYPE_CHECKING:
    from unseen.federation.study.study import Study

__all__ = ["propose", "study_app"]

study_app = typer.Typer(help="Look at a study and try it, before you approve it.", no_args_is_help=True)
_DIGITS = re.compile(r"[0-9a-f]{4,64}")
_MOST_CELL = 4000  # characters; a data set may have many classes
_STUDY = Annotated[
    Path, typer.Argument(metavar="STUDY", help="the file that `unseen federation propose` wrote; with --site also the study's first digits")
]
_SITE = Annotated[Path | None, typer.Option("--site", help="this site's folder or kit: then the study's signature is checked")]


def propose(
    file: Annotated[Path, typer.Argument(help="the experiment, a TOML file as for `unseen run`")],
    federation: Annotated[Path, typer.Option(help="the federation's folder")],
    out: Annotated[Path, typer.Option(help="where to write the study")] = Path("study.json"),
    set_: Annotated[list[str] | None, typer.Option("--set", help="FIELD=VALUE of the method, repeatable")] = None,
    sums: Annotated[bool, typer.Option("--secure-sums", help="the server reads sums over the sites alone")] = False,
    carrier: Annotated[str, typer.Option(help="flower, or folder:PATH: how the sites are asked what data they have")] = "flower",
    deadline: Annotated[float, typer.Option(help="seconds that sites have to answer")] = 600.0,
    minimum_clients: Annotated[int, typer.Option(help="answers without which a round does not count")] = 2,
) -> None:
    """Write down a whole study: what is done, who takes part, and what will leave, after a rehearsal on made-up images.

    Example: unseen federation propose experiment.toml --federation consortium --out study.json
    """
    with answering():
        from unseen.cli.between import carrier_of, terms_of
        from unseen.errors import BadInput
        from unseen.experiment import read_experiment
        from unseen.federation.activity import BoundedLog
        from unseen.federation.kits import read_federation
        from unseen.federation.server.proposing import propose as write_study
        from unseen.federation.server.standing import StudyFile, log_of

        if out.exists():
            raise BadInput(f"{out} is there already; choose another --out")
        values = merge(read_toml(file), {"set": settings_from(set_ or [])})
        experiment = read_experiment({k: v for k, v in values.items() if k not in ("out", "workers", "track")}, own_code=True)
        known = read_federation(federation)
        with carrier_of(carrier, known, say) as carried:
            log = BoundedLog(log_of(known.path))
            study = write_study(experiment, known, carried, terms_of(deadline, minimum_clients), say, sums, log)
        out.write_bytes(study.signed(known.signing))
        StudyFile(known.path, study)
        _print(study, "signed by this federation's server")
        say(f"\nthe study is in {out}; send it to the sites. There: `unseen study show`, `unseen study approve`")


@study_app.command()
def show(
    file: _STUDY,
    site: _SITE = None,
    page: Annotated[Path | None, typer.Option(help="write a page to read in a browser")] = None,
) -> None:
    """A study in plain words: who takes part, what is done, what leaves, who reads it.

    Example: unseen study show study.json --site site-north --page study.html
    """
    with answering():
        study, signed = _read(file, site)
        _print(study, signed)
        if page is not None:
            from unseen.errors import BadInput
            from unseen.report.study_page import render_study

            if page.exists():
                raise BadInput(f"{page} is there already; choose another --page")
            page.write_text(render_study(study, signed))
            say(f"\nthe page is in {page}")


@study_app.command("try")
def try_(
    file: _STUDY,
    kit: Annotated[Path, typer.Option("--site", help="this site's folder or kit")],
    data: Annotated[str, typer.Option(help="this site's data, as for `unseen join`")],
    policy: Annotated[Path | None, typer.Option(help="this site's rules")] = None,
    domain: Annotated[str | None, typer.Option(help="which domain of the data is this site's")] = None,
    size: Annotated[int | None, typer.Option(help="image side in pixels")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
) -> None:
    """Run round 1 of a study on this site's own data, send nothing, and say what would have left.

    Example: unseen study try study.json --site site-north --data folder:scans --policy policy.toml
    """
    with answering():
        from rich.table import Table

        from unseen.errors import BadInput
        from unseen.federation.activity import amount
        from unseen.federation.kits import open_kit
        from unseen.federation.site.policy import Rejected, read_policy
        from unseen.federation.site.process import site_data
        from unseen.federation.site.trying import try_study

        study, _ = _read(file, kit)
        own = open_kit(kit, _home(kit))
        if own.client not in study.participants:
            raise BadInput(f"{own.client} is not in the study; it has {', '.join(sorted(study.participants))}")
        say(f"trying study {study.digest[:16]} on the data of {own.client}; nothing is sent")
        try:
            tried = try_study(study, site_data(data, domain, own.client, size), own.client, read_policy(policy), device)
        except Rejected as refusal:
            raise BadInput(f"this site's rules forbid it: {refusal}") from None
        table = Table("task", "field", "kind", "size", title="what would leave in round 1", title_justify="left")
        for row in tried.left:
            table.add_row(row["task"], row["field"], row["kind"], amount(row["bytes"]))
        screen.print(table)
        say(f"it took {tried.seconds:.1f} s; " + ", ".join(f"{name} {value:.3f}" for name, value in tried.metrics.items()))


@study_app.command()
def approve(
    file: _STUDY,
    kit: Annotated[Path, typer.Option("--site", help="this site's folder or kit")],
    wait: Annotated[float, typer.Option(help="seconds to wait for a running `unseen join` to take it up", min=0)] = 60.0,
) -> None:
    """Approve a study for this site. A running `unseen join` takes it up at once, without a pause.

    Example: unseen study approve study.json --site site-north
    """
    with answering():
        from unseen.errors import BadInput
        from unseen.federation.kits import open_kit
        from unseen.federation.site.by_hand import approve_by_hand, is_at_work
        from unseen.federation.study.words import in_words

        study, signed = _read(file, kit)
        own = open_kit(kit, _home(kit))
        if own.client not in study.participants:
            raise BadInput(f"{own.client} is not in the study; it has {', '.join(sorted(study.participants))}")
        words = in_words(study)
        say(f"study {words.name}\n{signed}\n\n{words.lead}\n")
        if sys.stdin.isatty() and not typer.confirm(f"Does {own.client} approve it?"):
            say("not approved")
            raise typer.Exit(1)
        approve_by_hand(own, _find(file, kit).read_bytes())
        if not is_at_work(own.path):
            say(f"signed. The next `unseen join {kit} ...` checks it against your rules and data, and answers from then on")
            return
        say(_taken_up(own.path, study.digest, wait))


def _taken_up(site: Path, digest: str, wait: float) -> str:
    """What the site's running process made of an approval."""
    import time

    from unseen.errors import BadInput
    from unseen.federation.site.by_hand import clear_outcome, outcome

    until = time.monotonic() + wait
    while (told := outcome(site, digest)) is None and time.monotonic() < until:
        time.sleep(0.1)
    if told is None:
        return "signed. The site is at work on a question; it takes the approval up when that is answered"
    clear_outcome(site, digest)
    if told:
        raise BadInput(f"not approved, {told}")
    return "approved; the running `unseen join` answers from now on"


def _home(kit: Path) -> Path:
    return kit if kit.is_dir() else Path(f"site-{kit.stem}")


def _find(file: Path, site: Path | None) -> Path:
    """The file; or that of a study which waits at the site, by its first digits."""
    if file.exists() or site is None or not _DIGITS.fullmatch(str(file)):
        return file
    from unseen.errors import BadInput
    from unseen.federation.site.by_hand import waiting_studies

    found = [one for one in waiting_studies(_home(site)) if one.stem.startswith(str(file)[:16])]
    if len(found) > 1:
        raise BadInput(f"{len(found)} studies that wait at {site} begin with {file}; give more digits")
    return found[0] if found else file


def _read(file: Path, site: Path | None) -> tuple[Study, str]:
    """The study, and what can be said of its signature."""
    import json

    from unseen.errors import BadInput
    from unseen.federation.kits import open_kit
    from unseen.federation.study.study import MOST_STUDY, read_signed_study, read_study

    file = _find(file, site)
    try:
        if file.stat().st_size > MOST_STUDY:
            raise BadInput(f"{file} is too large for a study")
        data = file.read_bytes()
    except OSError as error:
        raise BadInput(f"no study {file} ({error.strerror})") from None
    if site is not None:
        kit = open_kit(site, _home(site))
        return read_signed_study(data, kit.server_key), f"signed by the server of your federation ({kit.federation})"
    try:
        told = json.loads(data)["study"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BadInput(f"{file} is not a study: expected a file that `unseen federation propose` wrote") from None
    return read_study(told), "its signature was not checked: add --site with your site's folder"


def _print(study: Study, signed: str) -> None:
    from rich.table import Table
    from rich.text import Text

    from unseen.federation.activity import printable
    from unseen.federation.study.words import in_words

    words = in_words(study)
    say(f"study {words.name}\n{signed}\n\n{words.lead}\n")
    tables: list[tuple[str, tuple[str, ...], Any]] = [
        ("what leaves a site, and nothing else", ("when", "what", "how much", "who reads it"), words.leaves),
        ("who takes part", ("site", "what it does", "fingerprint"), words.participants),
        ("what is done", ("", ""), words.facts),
    ]
    for title, columns, rows in tables:
        table = Table(*columns, title=title, title_justify="left", show_header=any(columns))
        for row in rows:
            table.add_row(*(Text(printable(cell, _MOST_CELL)) for cell in row))
        screen.print(table, soft_wrap=False)
