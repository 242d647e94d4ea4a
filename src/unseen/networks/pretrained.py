"""Weights from files: found, checked, and fitted to a network with other outputs or input channels."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from unseen.errors import BadInput
from unseen.networks.headed import HeadedNet
from unseen.state import State

__all__ = ["Official", "Pretrained", "load_weights", "read_weights"]

_HASH_IN_NAME = re.compile(r"-([0-9a-f]{8,64})\.(?:pth|pt|safetensors)$")


@dataclass(frozen=True)
class Official:
    """A published weight file; its name carries the beginning of its SHA-256."""

    file: str
    where: str  # its address, or in words where it cannot be downloaded by itself


@dataclass(frozen=True)
class Pretrained:
    """A network that comes with its weights and is never trained: a role of a method, such as a style encoder.

    Every machine of a federation finds the file itself, by its published name and hash: no message names a path.
    """

    make: Callable[[], nn.Module]
    weights: Official
    whole: bool = True  # false: the file holds further layers, which are left out

    def file(self) -> Path:
        """Where the weights are; BadInput that says what to do where they are not."""
        return _official_file(self.weights, "pretrained weights")

    def __call__(self) -> nn.Module:
        net, file = self.make(), self.file()
        state = read_weights(file)
        if not self.whole:
            state = {name: value for name, value in state.items() if name in net.state_dict()}
        try:
            net.load_state_dict(state)
        except RuntimeError as error:
            raise BadInput(f"{file} does not fit {type(net).__name__}: {_first_sentence(error)}") from error
        return net.eval().requires_grad_(False)


def load_weights(net: HeadedNet, weights: str | Path, official: Official | None) -> None:
    """Fill the network from "imagenet" or from a .pth or .safetensors file.

    A head with another number of outputs, or none in the file, leaves the fresh head. A first convolution for another number
    of channels takes the mean over the file's input channels, scaled to answer as strongly (for one channel that is their sum).
    Anything else that differs is refused.
    """
    path = _imagenet_file(official) if weights == "imagenet" else Path(weights)
    net.load_state_dict(_fit(net.translate(read_weights(path)), net, path.name))


def _imagenet_file(official: Official | None) -> Path:
    if official is None:
        raise BadInput("there are no ImageNet weights for this network; name a file of your own, or train from scratch")
    return _official_file(official, "ImageNet weights")


def _official_file(official: Official, what: str) -> Path:
    """The file in torch's cache folder, downloaded there where it is missing."""
    path = Path(torch.hub.get_dir()) / "checkpoints" / official.file
    if path.exists():
        return path
    advice = f"get {official.file} ({official.where}) and put it at {path}"
    if not official.where.startswith("https://"):
        raise BadInput(f"{what} are not on this machine; {advice}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(official.where, str(path), hash_prefix=_hash_of(path.name), progress=False)
    except (OSError, RuntimeError) as error:
        raise BadInput(f"{what} could not be downloaded ({error}); {advice}") from error
    return path


def read_weights(path: Path) -> State:
    """The tensors of a weight file, after a check of its hash where its name carries one. Nothing in it is executed."""
    if not path.is_file():
        raise BadInput(f"no weight file {path}; give a .pth or .safetensors file, or 'imagenet'")
    expected = _hash_of(path.name)
    if expected:
        found = _sha256(path)
        if not found.startswith(expected):
            raise BadInput(
                f"{path} is damaged or not what its name says: SHA-256 begins {found[: len(expected)]}, the name says {expected}; "
                "fetch it again, or rename it if the digits in its name are no hash"
            )
    try:
        content: Any = (
            safetensors.torch.load_file(path) if path.suffix == ".safetensors" else torch.load(path, map_location="cpu", weights_only=True)
        )
    except Exception as error:  # a damaged file can make the unpickler raise anything
        raise BadInput(f"{path} cannot be read as a weight file: {_first_sentence(error)}") from error
    if not isinstance(content, dict) or not content or not all(isinstance(k, str) and isinstance(v, Tensor) for k, v in content.items()):
        raise BadInput(f"{path} holds something else than weights by name; save a network's state_dict()")
    return dict(content)


def _fit(state: State, net: HeadedNet, file: str) -> State:
    """The file's entries in the network's shapes, or BadInput with the first that does not go in."""
    own = net.state_dict()
    fitted = dict(state)
    stem, head = f"{net.stem_name}.weight", f"{net.head_name}."
    if stem in state and stem in own and state[stem].shape != own[stem].shape:
        fitted[stem] = _spread(state[stem], own[stem].shape[1])
    for name, value in own.items():
        fresh_head = name.startswith(head) and (name not in state or state[name].shape != value.shape)
        if fresh_head or (name not in state and name.endswith("num_batches_tracked")):  # files before torch 0.4.1 lack these counters
            fitted[name] = value
    for name in [*own, *fitted]:
        got, expected = (f"{list(s[name].shape)}" if name in s else "nothing" for s in (fitted, own))
        if got != expected:
            raise BadInput(f"{file} does not fit {type(net).__name__}: {name} is {got} in the file, the network has {expected}")
    return fitted


def _spread(weight: Tensor, channels: int) -> Tensor:
    """Filters for another number of input channels that give the same answer to an image whose channels are equal.

    >>> _spread(torch.tensor([1.0, 2.0, 3.0]).view(1, 3, 1, 1), 2).flatten()
    tensor([3., 3.])
    """
    if weight.ndim != 4:
        return weight
    return (weight.sum(1, keepdim=True) / channels).repeat(1, channels, 1, 1)


def _hash_of(file: str) -> str | None:
    """The hash prefix in a published file's name.

    >>> _hash_of("mobilenet_v2-b0353104.pth"), _hash_of("my-model.pth")
    ('b0353104', None)
    """
    found = _HASH_IN_NAME.search(file)
    return found[1] if found else None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _first_sentence(error: Exception) -> str:
    return (str(error) or type(error).__name__).split("\n", 1)[0].split(". ", 1)[0]
