"""A user's own network: any torch module, wrapped so that methods find features, maps and a head in it."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unseen.errors import BadInput, nearest
from unseen.networks.base import Outputs, TaskNet
from unseen.networks.pretrained import read_weights
from unseen.own_code import Own, telling_where
from unseen.task import Task

__all__ = ["OwnNet", "build_own_network"]

_GIVEN = ("outputs", "channels", "size")
_CONVOLUTIONS = (nn.Conv2d, nn.ConvTranspose2d)


def build_own_network(own: Own, *, task: Task, channels: int, size: tuple[int, int], weights: str | Path | None = None) -> TaskNet:
    """The network that a class or function makes, called with those of outputs, channels and size (height, width) that it takes.

    An object is copied. The option `head` names the module that turns features into logits; without it that is the last linear
    layer which a forward pass runs, in segmentation the last convolution.
    """
    options = dict(own.options)
    head = options.pop("head", None)
    net = _made(own, options, {"outputs": task.outputs, "channels": channels, "size": size})
    if weights is not None:
        _fill(net, weights, own)
    x = torch.zeros(2, channels, *size)
    if isinstance(net, TaskNet):
        with telling_where(f"network {own} failed on two images of {list(x.shape[1:])}"), _looking(net):
            seen = net(x, full=True)
        _refuse_other_shape(own, seen.logits, x, task)
        return net
    return OwnNet(net, own, x, task, head)


class OwnNet(TaskNet):
    """The wrapper; `net` is the user's own module, and computes the logits as it always does."""

    def __init__(self, net: nn.Module, own: Own, x: Tensor, task: Task, head: str | None) -> None:
        super().__init__()
        self.net = net
        seen = _look_inside(net, own, x)
        _refuse_other_shape(own, seen.logits, x, task)
        self._head_name = seen.find_head(net, own, task, head)
        self._map_name = seen.maps_before.get(self._head_name)
        features = seen.read[self._head_name]
        expected = 4 if task.name == "segmentation" else 2
        if features.ndim != expected:
            wants = "[n, channels, height, width]" if expected == 4 else "[n, features]"
            raise BadInput(f"network {own}: its head {self._head_name!r} reads {list(features.shape)}; expected {wants}. {_name_it(own)}")
        self.feature_size = int(features.shape[1])

    def forward(self, x: Tensor, full: bool = False) -> Tensor | Outputs:
        if not full:
            logits: Tensor = self.net(x)
            return logits
        caught = _Caught()
        with caught.watching(self.head(), self.net.get_submodule(self._map_name) if self._map_name is not None else None):
            logits = self.net(x)
        assert caught.features is not None
        return Outputs(logits, caught.features, (x if caught.maps is None else caught.maps,))

    def head(self) -> nn.Module:
        return self.net.get_submodule(self._head_name)


@dataclass
class _Caught:
    """What one forward pass shows of a network: what its head read, and the last maps before that."""

    features: Tensor | None = None
    maps: Tensor | None = None
    _latest: Tensor | None = None

    @contextmanager
    def watching(self, head: nn.Module, before: nn.Module | None) -> Iterator[None]:
        hooks = [head.register_forward_pre_hook(self._at_the_head)]
        if before is not None:
            hooks.append(before.register_forward_hook(self._at_the_maps))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _at_the_head(self, _: nn.Module, given: tuple[Any, ...]) -> None:
        self.features, self.maps = given[0], self._latest

    def _at_the_maps(self, _: nn.Module, __: Any, made: Any) -> None:
        if _is_map(made):
            self._latest = made


@dataclass
class _Seen:
    """Which modules a forward pass ran, in order; what each read, and which gave the last maps before it."""

    logits: Any = None
    ran: list[str] = field(default_factory=list)
    read: dict[str, Tensor] = field(default_factory=dict)
    maps_before: dict[str, str] = field(default_factory=dict)

    def find_head(self, net: nn.Module, own: Own, task: Task, named: str | None) -> str:
        modules = dict(net.named_modules())
        if named is not None:
            if named not in modules or not named:
                raise BadInput(f"network {own} has no module {named!r}{nearest(named, [name for name in modules if name])}")
            return self._that_reads(named, own)
        masks = task.name == "segmentation"
        fitting = [name for name in self.ran if isinstance(modules[name], _CONVOLUTIONS if masks else nn.Linear)]
        what = "convolution" if masks else "linear layer"
        if not fitting:
            raise BadInput(f"network {own} runs no {what}, so it is not known what its head is. {_name_it(own)}")
        last = modules[fitting[-1]]
        gives = getattr(last, "out_channels" if masks else "out_features")
        if gives != task.outputs:
            raise BadInput(
                f"network {own}: the last {what}, {fitting[-1]!r}, gives {gives} outputs and not {task.outputs}. {_name_it(own)}"
            )
        return self._that_reads(fitting[-1], own)

    def _that_reads(self, name: str, own: Own) -> str:
        if name not in self.read:
            raise BadInput(f"network {own}: its forward pass hands no tensor to the module {name!r}, so there are no features")
        return name


def _look_inside(net: nn.Module, own: Own, x: Tensor) -> _Seen:
    seen, latest = _Seen(), ""

    def before(name: str) -> Any:
        def note(_: nn.Module, given: tuple[Any, ...]) -> None:
            if given and isinstance(given[0], Tensor):
                seen.read[name] = given[0]
            if latest:
                seen.maps_before[name] = latest

        return note

    def after(name: str) -> Any:
        def note(_: nn.Module, __: Any, made: Any) -> None:
            nonlocal latest
            seen.ran.append(name)
            if _is_map(made):
                latest = name

        return note

    hooks: list[Any] = []
    for name, module in net.named_modules():
        if name:
            hooks += [module.register_forward_pre_hook(before(name)), module.register_forward_hook(after(name))]
    try:
        with telling_where(f"network {own} failed on two images of {list(x.shape[1:])}"), _looking(net):
            seen.logits = net(x)
    finally:
        for hook in hooks:
            hook.remove()
    return seen


@contextmanager
def _looking(net: nn.Module) -> Iterator[None]:
    """A pass that changes nothing: no gradients, no statistics, and afterwards every module in the mode in which it was."""
    modes = [(module, module.training) for module in net.modules()]
    net.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def _made(own: Own, options: dict[str, Any], shape: dict[str, Any]) -> nn.Module:
    if isinstance(own.thing, nn.Module):
        if options:
            raise BadInput(f"network {own} is an object, which takes no option but `head`")
        return copy.deepcopy(own.thing)
    takes = inspect.signature(own.thing).parameters
    anything = any(p.kind is p.VAR_KEYWORD for p in takes.values())
    strange = [name for name in options if name not in takes and not anything]
    if strange:
        raise BadInput(f"network {own} takes no option {strange[0]!r}{nearest(strange[0], [*takes, 'head'])}")
    given = {name: value for name, value in shape.items() if name in takes} | options
    loose = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    missing = [name for name, p in takes.items() if p.kind not in loose and p.default is p.empty and name not in given]
    if missing:
        raise BadInput(
            f"network {own} needs {missing[0]!r}; what it is given by itself are those of {', '.join(_GIVEN)} that it takes. "
            f"Give it a default, or write FILE.py:NAME:{missing[0]}=VALUE"
        )
    with telling_where(f"network {own} cannot be made"):
        net = own.thing(**given)
    if not isinstance(net, nn.Module):
        raise BadInput(f"network {own} makes a {type(net).__name__}; expected a torch.nn.Module")
    return net


def _fill(net: nn.Module, weights: str | Path, own: Own) -> None:
    if weights == "imagenet":
        raise BadInput(f"there are no ImageNet weights for {own}; name a file, or load them where the network is made")
    try:
        net.load_state_dict(read_weights(Path(weights)))
    except RuntimeError as error:
        raise BadInput(f"{weights} does not fit network {own}: {' '.join(str(error).split())}") from error


def _refuse_other_shape(own: Own, logits: Any, x: Tensor, task: Task) -> None:
    masks = task.name == "segmentation"
    expected = [len(x), task.outputs, *(x.shape[2:] if masks else ())]
    if not isinstance(logits, Tensor) or list(logits.shape) != expected:
        gives = list(logits.shape) if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        per = "structure and pixel" if masks else "class"
        raise BadInput(f"network {own} gives {gives} for two images of {list(x.shape[1:])}; expected logits {expected}, one for each {per}")


def _name_it(own: Own) -> str:
    return f"Name the module that turns features into logits: {own.spec.partition(':head=')[0]}:head=MODULE"


def _is_map(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 4
