"""A network with the normalisation inside: it takes pixels, so that nobody has to know how it was trained."""

from __future__ import annotations

from torch import Tensor, nn

from unseen.data.domain import Pixels, normalise

__all__ = ["Deployable"]


class Deployable(nn.Module):
    """A network that takes pixels in 0 to 1; `net` is the one inside, which takes them normalised."""

    mean: Tensor
    std: Tensor

    def __init__(self, net: nn.Module, pixels: Pixels) -> None:
        super().__init__()
        self.net = net
        for name, value in zip(("mean", "std"), pixels.tensors(), strict=True):
            self.register_buffer(name, value, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.net(normalise(images, self.mean, self.std))
        return logits
