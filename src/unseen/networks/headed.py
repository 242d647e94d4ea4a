"""A task network as three things: what it sees (maps), what its head reads (features), and the head."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from unseen.networks.base import Outputs, TaskNet
from unseen.state import State

__all__ = ["HeadedNet", "TwoLayerHead", "acting_after", "stage_channels"]


class HeadedNet(TaskNet):
    """Base of all our task networks. A subclass says where its first convolution and its head are, and what it sees.

    Networks draw their initial weights from torch's global generator: seed it before you build one.
    """

    stem_name: ClassVar[str]  # the convolution that reads the image
    head_name: ClassVar[str]
    head_fits_maps: ClassVar[bool] = False  # the head's input and a position of the maps are of one kind: mean, or token beside them

    def stages(self) -> tuple[nn.Module, ...]:
        """Modules after which the image has been seen at one more scale, early ones first: where styles are mixed. None: no such maps."""
        return ()

    @abstractmethod
    def look(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The features and the maps of a batch of images."""

    def forward(self, x: Tensor, full: bool = False) -> Tensor | Outputs:
        features, maps = self.look(x)
        logits: Tensor = self.head()(features)
        return Outputs(logits, features, maps) if full else logits

    def head(self) -> nn.Module:
        return self.get_submodule(self.head_name)

    def insert_hidden_layer(self, width: int) -> None:
        """Make the head two linear layers, `width` between them."""
        head = self.head()
        if not isinstance(head, nn.Linear):
            raise TypeError(f"the head of {type(self).__name__} is a {type(head).__name__}; a hidden layer needs a linear head")
        self.set_submodule(self.head_name, TwoLayerHead(head.in_features, width, head.out_features))

    def add_puzzle_head(self, orders: int) -> None:
        """A second head beside the first: which order an image's tiles are in (JiGen). The logits do not depend on it."""
        self.puzzle = nn.Linear(self.pooled_size, orders)

    @property
    def pooled_size(self) -> int:
        """How many numbers a whole image comes to: the features, or the channels of an encoder's deepest maps."""
        return self.feature_size

    def translate(self, state: State) -> State:
        """Entries of a weight file under the names that this network uses."""
        if isinstance(self.head(), TwoLayerHead):
            name = self.head_name
            renamed = {f"{name}.weight": f"{name}.inner.weight", f"{name}.bias": f"{name}.inner.bias"}
            return {renamed.get(key, key): value for key, value in state.items()}
        return state


class TwoLayerHead(nn.Module):
    """FedADG's classifier: the backbone's last layer, then an output layer, with nothing between (as in the released code).

    From a weight file the inner layer takes the backbone's own last layer where the widths agree (1000 for ImageNet).
    """

    def __init__(self, features: int, width: int, outputs: int) -> None:
        super().__init__()
        self.inner = nn.Linear(features, width)
        self.output = nn.Linear(width, outputs)

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.output(self.inner(features))
        return logits


@contextmanager
def acting_after(stage: nn.Module, act: Callable[[Tensor], Any]) -> Iterator[None]:
    """While this lasts, `act` sees what a stage gives; what it returns, unless None, takes its place."""
    hook = stage.register_forward_hook(lambda module, _, maps: act(maps))
    try:
        yield
    finally:
        hook.remove()


def stage_channels(build: Callable[[], nn.Module], shape: torch.Size) -> list[int]:
    """How many channels the maps after each stage have, for images of this shape [c, h, w]; the network is run without numbers."""
    found: list[int] = []
    with torch.device("meta"), torch.no_grad():
        net = build().eval()
        assert isinstance(net, HeadedNet)
        for stage in net.stages():
            stage.register_forward_hook(lambda _, __, maps: found.append(maps.shape[1]))
        net(torch.empty(1, *shape))
    return found
