"""Options of `unseen run` and keys of its TOML file: the same names, the options win."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from unseen.errors import BadInput
from unseen.experiment_options import options
from unseen.machine import cores
from unseen.methods import CLASSES

if TYPE_CHECKING:
    from unseen.experiment import Experiment

__all__ = [
    "BETWEEN",
    "DATA_NAMES",
    "MACHINE",
    "NETWORK_NAMES",
    "RECIPE_NAMES",
    "SHOWING",
    "SIGNER",
    "TRACKER_NAMES",
    "TRUST_CODE",
    "TRUST_MODEL",
    "among",
    "default_workers",
    "experiment_option",
    "merge",
    "method_option",
    "read_toml",
    "settings_from",
]

SIGNER = "refuse a model without this signature: a fingerprint, a public key, an invitation, or the folder of a federation or a site"
TRUST_CODE = "you know who wrote the folder: run the code that it names (FILE.py:NAME) with your rights"
TRUST_MODEL = "you know who made the model: run it though it is a program (TorchScript) with your rights"
TRACKER_NAMES = ("tensorboard", "wandb", "mlflow")
_SETTINGS = {setting.name: setting for setting in options()}
DATA_NAMES = (
    "styled-digits", "phantom-sites", "pacs", "vlcs", "office-home", "terra-incognita", "office-caltech10", "domainnet", "digits5",
    "camelyon17", "camelyon17-tenth", "gdrbench", "isic2019", "midog2022", "fundus", "prostate", "retinal-vessels",
)  # fmt: skip
NETWORK_NAMES = (
    "resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "alexnet", "mobilenet_v2", "efficientnet_lite0", "vit_b_16", "vit_b_32",
    "digits_cnn", "small_cnn", "unet",
)  # fmt: skip
RECIPE_NAMES = ("none", "domainbed", "jigen", "elcfs", "fedsb-released", "bigaug", "fedadg-released")
_NAMES = {  # what a setting may be called; written out, because importing what they name takes seconds
    "data": DATA_NAMES,
    "network": NETWORK_NAMES,
    "augment": ("auto", *RECIPE_NAMES),
    "protocol": ("leave-one-domain-out", "single-source"),
    "weights": ("imagenet",),
    "partition": ("per-domain", "split", "dial:", "dirichlet:", "pooled", "file:"),
    "preset": ("paper", "released"),
    "device": ("auto", "cpu", "cuda"),
    "precision": ("fp32", "bf16", "auto"),
    "compile": ("auto", "on", "off"),
}
_SHOWN_NAMES = ("data", "augment")  # where the list is no longer than the help it stands in
_PANELS = {  # of the settings of an experiment, on the help's page; the others stand under the first heading
    **dict.fromkeys(("protocol", "source", "sources", "held_out"), "Who is unseen, and who holds what"),
    **dict.fromkeys(("partition", "clients", "participation", "minimum", "validation"), "Who is unseen, and who holds what"),
    **dict.fromkeys(("size", "augment", "metric"), "Who is unseen, and who holds what"),
    **dict.fromkeys(("device", "precision", "compile", "threads"), "This machine"),
}  # fmt: skip
MACHINE = "This machine"
BETWEEN = "Between machines"
SHOWING = "What is shown"


def among(*names: str) -> Callable[[str], list[str]]:
    """Tab completion from a fixed list.

    >>> among("csv", "json")("j")
    ['json']
    """

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


def experiment_option(name: str, in_place: bool = False) -> Any:
    """The option for a field of the experiment; its help is what the experiment says that the field means, and the names there are.

    `in_place`: it stands in place of what a file says, and has no default of its own.
    """
    setting = _SETTINGS[name]
    names = f". Names: {', '.join(_NAMES[name])}" if name in _SHOWN_NAMES else ""
    return typer.Option(
        help=setting.meaning + names,
        show_default=False if in_place or setting.default is None else str(setting.default),
        autocompletion=among(*_NAMES[name]) if name in _NAMES else None,
        rich_help_panel="In place of what the file says" if in_place else _PANELS.get(name),
    )


def method_option(help: str) -> Any:
    return typer.Option(help=f"{help}: {', '.join(CLASSES)}", show_default=False, autocompletion=among(*CLASSES))


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
    return max(1, cores() // experiment.threads)


def merge(file: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """A file's values with the options that were given on top; `set` is merged field by field."""
    merged = {key.replace("-", "_"): value for key, value in file.items()}
    merged |= {key: value for key, value in given.items() if value is not None and key != "set"}
    fields = merged.get("set", {})
    if given.get("set"):
        merged["set"] = {**(fields if isinstance(fields, Mapping) else {}), **given["set"]}
    return merged
