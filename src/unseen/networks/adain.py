"""The style transfer network of AdaIN (Huang and Belongie, ICCV 2017): VGG-19 up to relu4_1, and its mirror image.

Layers have the numbers, and so the names in a weight file, of the PyTorch release naoto0804/pytorch-AdaIN. Images are RGB from 0 to 1:
the encoder's first layer, a 1 x 1 convolution, brings them to what VGG was trained on.
"""

from __future__ import annotations

from torch import nn

from unseen.networks.pretrained import Official, Pretrained

__all__ = ["SMALLEST_SIDE", "adain_decoder", "adain_encoder", "pretrained_adain"]

SMALLEST_SIDE = 9  # pixels: after three halvings, rounded up, two are left, which mirrored edges need
_RELEASE = "from the release v0.0.0 of github.com/naoto0804/pytorch-AdaIN"


def adain_encoder(width: int = 64) -> nn.Sequential:
    """Images [n, 3, h, w] to maps [n, 8 width, h / 8, w / 8], sides rounded up."""
    widths = [[1, 1], [2, 2], [4, 4, 4, 4], [8]]
    layers, entering = list[nn.Module]([nn.Conv2d(3, 3, 1)]), 3
    for level, planes in enumerate(widths):
        if level:
            layers.append(nn.MaxPool2d(2, ceil_mode=True))
        for factor in planes:
            layers += _convolved(entering, factor * width)
            entering = factor * width
    return nn.Sequential(*layers)


def adain_decoder(width: int = 64) -> nn.Sequential:
    """Maps back to images, eight times as large; no ReLU at the end."""
    widths = [[4], [4, 4, 4, 2], [2, 1], [1]]
    layers, entering = list[nn.Module](), 8 * width
    for level, planes in enumerate(widths):
        if level:
            layers.append(nn.Upsample(scale_factor=2, mode="nearest"))
        for factor in planes:
            layers += _convolved(entering, factor * width)
            entering = factor * width
    return nn.Sequential(*layers, *_convolved(entering, 3)[:-1])


def _convolved(entering: int, leaving: int) -> list[nn.Module]:
    return [nn.ReflectionPad2d(1), nn.Conv2d(entering, leaving, 3), nn.ReLU()]


def pretrained_adain() -> dict[str, Pretrained]:
    """Both by role, with the published weights. The encoder's file goes on to relu5_4."""
    return {
        "encoder": Pretrained(adain_encoder, Official("vgg_normalised.pth", _RELEASE), whole=False),
        "decoder": Pretrained(adain_decoder, Official("decoder.pth", _RELEASE)),
    }
