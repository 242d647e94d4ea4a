"""Weights are compared with their network before either is in memory: a name such as unet:width=1024,depth=8 asks for terabytes."""

from __future__ import annotations

from pathlib import Path

import safetensors
import torch

from unseen.errors import BadInput
from unseen.networks import build_network

__all__ = ["refuse_other_weights"]


def refuse_other_weights(file: Path, network: str, *, outputs: int, channels: int, size: tuple[int, int]) -> None:
    """BadInput unless the file holds exactly the weights of that network, by name and shape."""
    with torch.device("meta"):  # shapes without numbers
        net = build_network(network, outputs=outputs, channels=channels, size=size)
    expected = {name: list(value.shape) for name, value in net.state_dict().items()}
    try:
        with safetensors.safe_open(file, "pt") as stored:
            found = {name: stored.get_slice(name).get_shape() for name in stored.keys()}  # noqa: SIM118  no dictionary
    except (OSError, safetensors.SafetensorError) as error:
        raise BadInput(f"{file} cannot be read as safetensors ({str(error).splitlines()[0]})") from error
    strange = [name for name in sorted(expected.keys() | found.keys()) if expected.get(name) != found.get(name)]
    if strange:
        raise BadInput(
            f"{file} does not hold the weights of {network}: {strange[0][:80]} is {found.get(strange[0], 'missing')} in the file, "
            f"{expected.get(strange[0], 'missing')} in the network"
        )
