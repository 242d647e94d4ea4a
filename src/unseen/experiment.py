"""An experiment: one method, one fold of one data set, one seed. A value that can be written down, compared and rebuilt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from unseen import settings
from unseen.data.domain import DomainDataset
from unseen.data.own import dataset_of, unfit_data
from unseen.errors import BadInput, nearest
from unseen.experiment_options import ExperimentOptions, options
from unseen.method import Method
from unseen.methods import method_class, name_of_method
from unseen.own_code import MEMORY, Own, names_code, refuse_own_code, texts_in, where_it_is
from unseen.parts import PARTS
from unseen.settings import Configured, changed, part, settings_of, values_of

__all__ = ["Experiment", "defaults_of", "departures", "read_experiment"]


@dataclass(frozen=True)
class Experiment(ExperimentOptions):
    """Everything that a run's numbers depend on. Where results go and how many processes share the work is no part of it."""

    def __post_init__(self) -> None:
        problems = []
        if not isinstance(self.method, Method):
            what = f"the class {self.method.__name__}" if isinstance(self.method, type) else repr(self.method)
            made = self.method.__name__ if isinstance(self.method, type) else "FedSB"
            problems.append(f"method is {what}; give an object: {made}()")
        if isinstance(self.data, Mapping) and not names_code(self.data.get("name")):
            object.__setattr__(self, "data", dataset_of(self.data, "own"))
        for setting in options():
            if setting.name == "data" and isinstance(self.data, DomainDataset):
                continue
            value, problem = setting.read(getattr(self, setting.name))
            if problem and setting.name == "data":
                problem = unfit_data(self.data) or problem
            object.__setattr__(self, setting.name, value)
            problems += [problem] if problem else []
        if problems:
            raise BadInput(problems)
        if self.device == "cuda" and not torch.cuda.is_available():
            raise BadInput("device is 'cuda', but torch sees no GPU here; use --device cpu or auto")
        if self.device == "cpu" and self.compile == "on":
            raise BadInput("compile is 'on' and device is 'cpu', where compiling costs more than it wins; use --compile auto or off")
        object.__setattr__(self, "device", self.device if self.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu")

    def __repr__(self) -> str:
        """What differs from the defaults."""
        given = [f"{s.name}={getattr(self, s.name)!r}" for s in options() if s.name != "device" and getattr(self, s.name) != s.default]
        return f"Experiment({', '.join([repr(self.method), *given])})"

    @property
    def name(self) -> str:
        """What tables call this row."""
        return self.label or getattr(type(self.method), "title", "") or type(self.method).__name__

    def description(self) -> dict[str, Any]:
        """The experiment as plain values: the heart of run.json, and what a worker process rebuilds it from."""
        plain = {s.name: getattr(self, s.name) for s in options()}
        plain |= {name: value.spec for name, value in plain.items() if isinstance(value, Own)}
        if isinstance(self.data, DomainDataset):
            plain["data"] = f"{MEMORY}{self.data.name}"
        return {"method": name_of_method(type(self.method)), "set": values_of(self.method, _name_of_part), **plain}

    @property
    def rebuildable(self) -> bool:
        """Whether another process can make the same experiment from its description: nothing of it lives in memory alone."""
        described = {key: value for key, value in self.description().items() if key != "label"}
        return not any(text.startswith(MEMORY) for text in texts_in(described))


def _name_of_part(thing: Configured) -> str:
    cls = type(thing)
    return part(thing) if cls in PARTS.values() else where_it_is(cls)


def read_experiment(values: Mapping[str, Any], *, own_code: bool = False) -> Experiment:
    """An experiment from plain values (a TOML file, options, a description), with every mistake reported at once.

    `own_code`: the values are those of the user who runs this, so that files which they name as FILE.py:NAME are imported.
    """
    if not own_code:
        refuse_own_code(values)
    problems: list[str] = []
    known = {s.name: s for s in options()}
    ready: dict[str, Any] = {}
    for key, value in values.items():
        if key in ("method", "set"):
            continue
        if key not in known:
            problems.append(f"no key {key!r}{nearest(key, [*known, 'method', 'set'])}")
            continue
        ready[key], problem = known[key].read(value)
        problems += [problem] if problem else []
    method: Method[Any] | None = None
    try:
        method, from_preset = _read_method(values)
        ready = {**from_preset, **ready}
    except BadInput as bad:
        problems += bad.problems
    if problems or method is None:
        raise BadInput(problems)
    return Experiment(method=method, **ready)


def _read_method(values: Mapping[str, Any]) -> tuple[Method[Any], dict[str, Any]]:
    """The method with its preset and fields, and what the preset says about the experiment around it."""
    name, fields = values.get("method"), values.get("set", {})
    if not isinstance(name, str):
        raise BadInput(f"method is {name!r}; give a method's name (`unseen methods` lists them) or FILE.py:CLASS")
    if not isinstance(fields, Mapping):
        raise BadInput(f"set is {fields!r}; expected a table of the method's fields")
    cls = method_class(name)
    preset = values.get("preset")
    if preset is not None and (not isinstance(preset, str) or preset not in cls.presets):
        others = nearest(str(preset), cls.presets) if cls.presets else ", nor any other"
        raise BadInput(f"{name} has no preset {preset!r}{others}")
    chosen = dict(cls.presets[preset]) if preset is not None else {}
    own = {s.name for s in settings_of(cls)}
    misplaced = [s.name for s in options() if s.name in fields and s.name not in own]
    if misplaced:
        raise BadInput(
            [
                f"{key} is no field of {name} but a key of the experiment; give it outside `set`: --{key.replace('_', '-')}"
                for key in misplaced
            ]
        )
    method = settings.build(cls, {**{k: v for k, v in chosen.items() if k in own}, **fields}, PARTS)
    return method, {k: v for k, v in chosen.items() if k not in own}


def defaults_of(experiment: Experiment) -> dict[str, Any]:
    """What the experiment's settings and its method's fields are where nobody says otherwise."""
    return {**{s.name: s.default for s in options()}, "set": settings.default_values(type(experiment.method))}


def departures(experiment: Experiment, dataset: DomainDataset) -> dict[str, list[Any]]:
    """Where the experiment departs from the method's `paper` preset: field -> [paper, here]. Nowhere where it has none."""
    cls = type(experiment.method)
    if "paper" not in cls.presets:
        return {}
    paper = dict(cls.presets["paper"])
    own = {s.name for s in settings_of(cls)}
    reference = values_of(settings.build(cls, {k: v for k, v in paper.items() if k in own}, PARTS))
    rows = {name: [before, now] for name, (before, now) in changed(experiment.method, reference).items()}
    around = {k: v for k, v in paper.items() if k not in own}
    here = {k: str(v) if isinstance(v := getattr(experiment, k), Own) else v for k in around}
    if here.get("augment") == "auto":
        here["augment"] = dataset.augment
    if "network" in here and here["network"] is None:
        here["network"] = dataset.network
    if "size" in here and here["size"] is None:
        here["size"] = dataset.size[0]
    return rows | {k: [v, here[k]] for k, v in around.items() if here[k] != v}
