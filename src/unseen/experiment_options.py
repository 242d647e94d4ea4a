"""What an experiment says beside its method. Without torch, so that `unseen run --help` can show it at once."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from unseen.own_code import Own
from unseen.settings import Setting, hyper

if TYPE_CHECKING:
    from unseen.data.domain import DomainDataset
    from unseen.method import Method

__all__ = ["ExperimentOptions", "options"]


@dataclass(frozen=True)
class ExperimentOptions:
    """The fields of an `Experiment`, each with its meaning and range."""

    method: Method[Any]
    data: str | DomainDataset | Own | Mapping[str, Any] | Callable[..., Any] = hyper(
        "styled-digits", "data set: a name (see `unseen data`), folder:PATH, csv:FILE or FILE.py:NAME", own="data"
    )
    target: str | None = hyper(None, "the domain that stays unseen")
    rounds: int = hyper(20, "communication rounds", low=1)
    seed: int = hyper(0, "what all randomness is derived from", low=0)
    network: str | Own | Callable[..., Any] | None = hyper(
        None, "task network: a name (see `unseen networks`) or FILE.py:NAME; none takes the data set's own", own="network"
    )
    weights: str | None = hyper(None, "initial weights: imagenet, or a file; none starts from random ones")
    protocol: str = hyper("leave-one-domain-out", "who is unseen: leave-one-domain-out or single-source")
    source: str | None = hyper(None, "the only source domain (single-source)")
    sources: str | None = hyper(None, "a choice of source domains, separated by commas; none takes all")
    held_out: str | None = hyper(None, "a source domain that does not train and serves to select a round")
    partition: str | Own | Callable[..., Any] = hyper(
        "per-domain", "who holds what: per-domain, split, dial:X, dirichlet:X, pooled, file:PATH, FILE.py:NAME", own="partition"
    )
    clients: int | None = hyper(None, "number of clients, where the partition leaves it open", low=1)
    participation: float = hyper(1.0, "share of the clients that is drawn for each round", low=1e-6, high=1.0)
    minimum: int = hyper(2, "the fewest training samples that a partition leaves a client", low=1)
    validation: float = hyper(0.1, "share of each domain that clients keep for validation", low=0.0, high=0.9)
    size: int | None = hyper(None, "image side in pixels; none takes the data set's own", low=8)
    augment: str | Own | Callable[..., Any] = hyper(
        "auto", "augmentation: a recipe or FILE.py:NAME; auto takes the data set's own", own="augment"
    )
    metric: str | Own | Callable[..., Any] | None = hyper(
        None, "what selection and tables go by: a metric's name or FILE.py:NAME; none takes the task's", own="metric"
    )
    device: Literal["auto", "cpu", "cuda"] = hyper("auto", "where networks run: auto, cpu or cuda")
    precision: Literal["fp32", "bf16", "auto"] = hyper("fp32", "numbers of the forward pass: fp32, bf16, or auto: what is faster here")
    compile: Literal["auto", "on", "off"] = hyper(
        "auto", "compiled passes on a GPU: on, off, or auto: where they were measured to save the run more than their start"
    )
    threads: int = hyper(1, "threads of one client's task", low=1)
    preset: str | None = hyper(None, "the method's settings as in its paper, or as its code was released")
    label: str | None = hyper(None, "name in tables; none takes the method's")


def options() -> list[Setting]:
    """The experiment's settings other than the method: the same keys in TOML files, run.json and on the command line."""
    return list(_options())


@functools.cache
def _options() -> tuple[Setting, ...]:
    elsewhere = {"DomainDataset": object, "Method": list}  # stand-ins: to import the two takes torch
    hints = typing.get_type_hints(ExperimentOptions, localns=elsewhere)
    fields = [f for f in dataclasses.fields(ExperimentOptions) if f.name != "method"]
    plain = {"data": str}
    told = [(f, f.metadata) for f in fields]
    return tuple(
        Setting(f.name, plain.get(f.name, hints[f.name]), f.default, m["meaning"], "", m["low"], m["high"], m["own"]) for f, m in told
    )
