"""What people call from Python: `unseen.run` trains a federation, `unseen.load` brings finished runs back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from torch import nn

from unseen.data.domain import DomainDataset
from unseen.deploy.card import CARD_FILE
from unseen.deploy.finished import finished_run
from unseen.engines.workers import Workers
from unseen.errors import BadInput, nearest
from unseen.experiment import Experiment, read_experiment
from unseen.experiment_options import options
from unseen.method import Method
from unseen.report.frames import rows_below, to_frame
from unseen.report.notebook import NotebookBar, in_notebook
from unseen.report.result import Result
from unseen.runs.record import read_timings
from unseen.runs.screen import Screen, is_live
from unseen.runs.watch import Silent, Watch
from unseen.state import state_of
from unseen.training import train

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["load", "run"]


def run(
    method: Method[Any] | str,
    data: DomainDataset | str | Mapping[str, Any] | Callable[..., Any] = "styled-digits",
    target: str | None = None,
    *,
    rounds: int = 20,
    seed: int = 0,
    network: str | nn.Module | Callable[..., Any] | None = None,
    weights: str | None = None,
    protocol: Literal["leave-one-domain-out", "single-source"] = "leave-one-domain-out",
    source: str | None = None,
    sources: str | None = None,
    held_out: str | None = None,
    partition: str | Callable[..., Any] = "per-domain",
    clients: int | None = None,
    participation: float = 1.0,
    minimum: int = 2,
    validation: float = 0.1,
    size: int | None = None,
    augment: str | Callable[..., Any] = "auto",
    metric: str | Callable[..., Any] | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    precision: Literal["fp32", "bf16", "auto"] = "fp32",
    compile: Literal["auto", "on", "off"] = "auto",
    threads: int = 1,
    preset: str | None = None,
    label: str | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    workers: int = 1,
    progress: bool | None = None,
    watch: Watch | None = None,
    **unknown: Any,
) -> Result:
    """Train one federation and score it on the unseen domain.

    Args:
        method: an object such as `unseen.FedSB(lr=1e-3)` (a class of your own needs no registration), or a name.
        data: a name, a DomainDataset, or a torch Dataset for each domain by its name: `{"north": dataset, "south": dataset}`.
        target: the domain that stays unseen.
        rounds: communication rounds.
        seed: what all randomness is derived from.
        network: the task network: a name (`unseen networks` lists them), or your own module, class or function; none: the data set's.
        weights: initial weights: "imagenet", or a file; none starts from random ones.
        protocol: who is unseen: all but `source` (single-source), or `target` alone.
        source: the only source domain (single-source).
        sources: a choice of source domains, separated by commas; none: all.
        held_out: a source domain that does not train and serves to select a round.
        partition: who holds what: "per-domain", "split", "dial:X", "dirichlet:X", "pooled", "file:PATH", or your own function.
        clients: the number of clients, where the partition leaves it open.
        participation: the share of the clients that is drawn for each round.
        minimum: the fewest training samples that a partition leaves a client.
        validation: the share of each domain that clients keep for validation.
        size: image side in pixels; none: the data set's.
        augment: a recipe, or your own function; "auto": the data set's.
        metric: what selection and tables go by: a metric's name, or your own function; none: the task's.
        device: where networks run.
        precision: numbers of the forward pass; "auto": what is faster here.
        compile: compiled passes on a GPU; "auto": where they were measured to save the run more than their start.
        threads: threads of one client's task.
        preset: for a method by name: its settings as in its paper ("paper"), or as its code was released.
        label: the name in tables; none: the method's.
        out: a folder to write everything to, from which the run can be resumed. Without it nothing is kept but the result.
        resume: go on with the run in `out`.
        workers: processes that share the clients' work.
        progress: a bar while it trains; none: in a terminal and in a notebook, and not in a script whose output goes to a file.
        watch: somebody of your own who looks on, in place of the bar: an `unseen.runs.watch.Watch`.
        unknown: there are no others; a name that is not above is refused with the nearest one.

    Returns:
        A `Result`: `result.model` predicts from pixels, `result.table()` and `result.frame()` show scores, `result.records` has all.

    Raises:
        BadInput: a setting that cannot be, with everything that is wrong in one message.
    """
    given = dict(locals())
    settings = {name: given[name] for name in _SETTINGS}
    if unknown:
        known = [*_SETTINGS, "method", "data", "target", "out", "resume", "workers", "progress", "watch"]
        raise BadInput([f"run() has no setting {name!r}{nearest(name, known)}" for name in sorted(unknown)])
    if isinstance(method, str):
        method, settings = _by_name(method, settings)
    elif preset is not None:
        raise BadInput(f"preset is {preset!r}, and the method is an object, which has its fields; give its name, or the fields themselves")
    experiment = Experiment(method=method, data=data, target=target, **settings)
    with ExitStack() as stack:
        pool = stack.enter_context(Workers(workers, experiment.threads)) if workers > 1 and experiment.rebuildable else None
        looking = watch or _onlooker(stack, progress)
        return train(experiment, Path(out) if out is not None else None, resume=resume, workers=pool, watch=looking)


_SETTINGS = {setting.name: setting.default for setting in options() if setting.name not in ("data", "target")}


def _by_name(name: str, settings: Mapping[str, Any]) -> tuple[Method[Any], dict[str, Any]]:
    """The method as its preset has it, and what the preset says of the experiment where the caller says nothing."""
    read = read_experiment({"method": name, "preset": settings["preset"]}, own_code=True)
    left = {key for key, value in settings.items() if value is _SETTINGS[key] or value == _SETTINGS[key]} - {"device"}
    return read.method, {key: getattr(read, key) if key in left else value for key, value in settings.items()}


def _onlooker(stack: ExitStack, progress: bool | None) -> Watch:
    if progress is False:
        return Silent()
    if in_notebook():
        return NotebookBar()
    console = Console(stderr=True)
    return stack.enter_context(Screen(console)) if progress or is_live(console) else Silent()


def load(folder: str | Path, *, trust: bool = False) -> Result | pd.DataFrame:
    """Bring back what `unseen.run(out=...)`, `unseen run` or `unseen bench` wrote.

    Args:
        folder: a run's folder, or one with runs below it.
        trust: you know who wrote the folder, so that code which it names (FILE.py:NAME) may run with your rights.

    Returns:
        Of one run a `Result`, whose `world` has no images. Of several a pandas DataFrame with a row for each run and round, finished or
        not, with every setting: the rows of `unseen report --format csv`.
    """
    path = Path(folder)
    if (path / "run.json").is_file():
        return _loaded(path, trust)
    if (path / CARD_FILE).is_file():
        raise BadInput(f"{path} is an exported model; load it with unseen.deploy.load_model({str(path)!r})")
    return to_frame(rows_below(path))


def _loaded(path: Path, trust: bool) -> Result:
    last = finished_run(path, "last", without_data=True, trust=trust)
    best = finished_run(path, "source", without_data=True, trust=trust).net if (path / "best.safetensors").is_file() else None
    timings = read_timings(path / "timings.jsonl")
    return Result(last.world, last.records, state_of(last.net), None if best is None else state_of(best), last.about, timings)
