"""Options of `unseen run` and keys of its TOML file: the same names, the options win."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from unseen.errors import BadInput
from unseen.experiment_options import options

if TYPE_CHECKING:
    from unseen.experiment import Experiment

__all__ = [
    "SIGNER",
    "TRACKER_NAMES",
    "TRUST_CODE",
    "TRUST_MODEL",
    "among",
    "default_workers",
    "experiment_option",
    "merge",
    "read_toml",
    "settings_from",
]

SIGNER = "refuse a model without this signature: a fingerprint, a public key, an invitation, or the folder of a federation or a site"
TRUST_CODE = "you know who wrote the folder: run the code that it names (FILE.py:NAME) with your rights"
TRUST_MODEL = "you know who made the model: run it though it is a program (TorchScript) with your rights"
TRACKER_NAMES = ("tensorboard", "wandb", "mlflow")
_MEANINGS = {setting.name: setting.meaning for setting in options()}


def among(*names: str) -> Callable[[str], list[str]]:
    """Tab completion from a fixed list.

    >>> among("csv", "json")("j")
    ['json']
    """

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


def experiment_option(name: str) -> Any:
    """The option for a field of the experiment; its help is what the experiment says that the field means."""
    return typer.Option(help=_MEANINGS[name])


def read_toml(file: Path) -> dict[str, Any]:
    """A TOML file as plain values."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(f"no file {file}") from None
    except (IsADirectoryError, PermissionError) as error:
        raise BadInput(f"{file} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{file} is not a TOML file: {error}") from None


def settings_from(pairs: list[str]) -> dict[str, Any]:
    """`--set smoothing=0.2 --set budget=none` as values."""
    from unseen.settings import parse_text

    values, problems = {}, []
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if equals and key.strip():
            values[key.strip()] = parse_text(text)
        else:
            problems.append(f"--set {pair!r}; expected FIELD=VALUE, for example --set smoothing=0.2")
    if problems:
        raise BadInput(problems)
    return values


def default_workers(experiment: Experiment) -> int:
    """One process per core; one on a GPU, where tasks share the device."""
    if experiment.device == "cuda" or not experiment.rebuildable:
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // experiment.threads)


def merge(file: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """A file's values with the options that were given on top; `set` is merged field by field."""
    merged = {key.replace("-", "_"): value for key, value in file.items()}
    merged |= {key: value for key, value in given.items() if value is not None and key != "set"}
    fields = merged.get("set", {})
    if given.get("set"):
        merged["set"] = {**(fields if isinstance(fields, Mapping) else {}), **given["set"]}
    return merged
