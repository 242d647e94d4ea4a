"""A task network as three things: what it sees (maps), what its head reads (features), and the head."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unseen.networks.base import Outputs, TaskNet
from unseen.state import State

__all__ = ["EnsembleHead", "HeadedNet", "ProjectionHead", "TwoLayerHead", "acting_after", "stage_channels", "stages_of"]


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

    def insert_hidden_layer(self, width: int, relu: bool = False) -> None:
        """Make the head two linear layers, `width` between them, with or without a ReLU there."""
        head = self._linear_head()
        self.set_submodule(self.head_name, TwoLayerHead(head.in_features, width, head.out_features, relu))

    def insert_projection(self, width: int) -> None:
        """Make the head a projection to `width` numbers and an output layer."""
        head = self._linear_head()
        self.set_submodule(self.head_name, ProjectionHead(head.in_features, width, head.out_features))

    def _linear_head(self) -> nn.Linear:
        head = self.head()
        if not isinstance(head, nn.Linear):
            raise TypeError(f"the head of {type(self).__name__} is a {type(head).__name__}; a hidden layer needs a linear head")
        return head

    def multiply_head(self, number: int) -> None:
        """Make the head an ensemble of so many, equal at first."""
        self.set_submodule(self.head_name, EnsembleHead(self.head(), number))

    def add_puzzle_head(self, orders: int) -> None:
        """A second head beside the first: which order an image's tiles are in (JiGen). The logits do not depend on it."""
        self.puzzle = nn.Linear(self.pooled_size, orders)

    @property
    def pooled_size(self) -> int:
        """How many numbers a whole image comes to: the features, or the channels of an encoder's deepest maps."""
        return self.feature_size

    def translate(self, state: State) -> State:
        """Entries of a weight file under the names that this network uses."""
        name, head, places = self.head_name, self.head(), [self.head_name]
        if isinstance(head, EnsembleHead):
            places, head = [f"{name}.heads.{number}" for number in range(len(head.heads))], head.heads[0]
        if isinstance(head, ProjectionHead):  # of a file's own head there is no place in it
            places = []
        elif isinstance(head, TwoLayerHead):
            places = [f"{place}.inner" for place in places]
        renamed = {f"{name}.{entry}": [f"{place}.{entry}" for place in places] for entry in ("weight", "bias")}
        return {new: value for key, value in state.items() for new in renamed.get(key, [key])}


class TwoLayerHead(nn.Module):
    """FedADG's classifier: the backbone's last layer, then an output layer, with nothing between (as in the released code) or a ReLU.

    From a weight file the inner layer takes the backbone's own last layer where the widths agree (1000 for ImageNet).
    """

    def __init__(self, features: int, width: int, outputs: int, relu: bool = False) -> None:
        super().__init__()
        self.inner = nn.Linear(features, width)
        self.output = nn.Linear(width, outputs)
        self.relu = relu

    def forward(self, features: Tensor) -> Tensor:
        hidden = self.inner(features)
        logits: Tensor = self.output(hidden.relu() if self.relu else hidden)
        return logits


class ProjectionHead(nn.Module):
    """MOON's head as released: a projection of two layers, and the output layer on top of it, so that it takes part in prediction."""

    def __init__(self, features: int, width: int, outputs: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.Linear(features, width))
        self.output = nn.Linear(width, outputs)

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.output(self.inner(features))
        return logits


class EnsembleHead(nn.Module):
    """Several heads over the same features (COPA): the logits are such that the prediction is the mean of the heads' predictions.

    For classes that is log mean_j softmax(z_j), for masks the logit of mean_j sigmoid(z_j). `share` is how much each head counts, and
    belongs to the model; a head with share 0 has no part. A fresh ensemble has equal heads, which all count.
    """

    share: Tensor

    def __init__(self, head: nn.Module, number: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList(copy.deepcopy(head) for _ in range(number))
        self.register_buffer("share", torch.ones(number))

    def forward(self, features: Tensor) -> Tensor:
        z = torch.stack([head(features) for head in self.heads], -1)  # [n, outputs, ..., heads]
        z = z.to(torch.promote_types(z.dtype, torch.float32))  # a mean of probabilities has few digits left in 16 bits
        counted = (self.share / self.share.sum()).log()
        if z.ndim == 3:
            return (z.log_softmax(1) + counted).logsumexp(-1)
        return (F.logsigmoid(z) + counted).logsumexp(-1) - (F.logsigmoid(-z) + counted).logsumexp(-1)


@contextmanager
def acting_after(stage: nn.Module, act: Callable[[Tensor], Any]) -> Iterator[None]:
    """While this lasts, `act` sees what a stage gives; what it returns, unless None, takes its place."""
    hook = stage.register_forward_hook(lambda module, _, maps: act(maps))
    try:
        yield
    finally:
        hook.remove()


def stages_of(net: nn.Module) -> tuple[nn.Module, ...]:
    """The stages that a network names; none for one that is not of our making."""
    return net.stages() if isinstance(net, HeadedNet) else ()


def stage_channels(net: nn.Module, shape: torch.Size) -> list[int]:
    """How many channels the maps after each stage have, for images of this shape [c, h, w]. The network is run once, as it is."""
    assert isinstance(net, HeadedNet)
    found: list[int] = []
    hooks = [stage.register_forward_hook(lambda _, __, maps: found.append(maps.shape[1])) for stage in net.stages()]
    with torch.no_grad():
        net.eval()(torch.zeros(1, *shape))
    for hook in hooks:
        hook.remove()
    return found
