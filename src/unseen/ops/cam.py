"""Class activation maps: where a network looks for a class (Zhou et al., 2016), as FedGCA compares them (Eq. 3).

A map says how much each position speaks for the class. Networks differ in what lies between their maps and their head:

- The head reads the mean of the maps over positions (ResNet, MobileNetV2, EfficientNet-Lite0): M = sum_l W_l F_l, as printed.
- A vision transformer's head reads the class token; its patch tokens after the last norm live in the same space, so that the head is
  read at each of them: the same formula.
- Between maps and head lie other layers (max pooling in small_cnn; pooling and hidden layers in digits_cnn and AlexNet): W_l becomes
  the gradient of the logit at that position times the number of positions, M = P sum_l dz / dF_l(x) F_l(x) (Draelos and Carin, 2020).
  Where the maps are averaged this is the printed formula again; where a linear layer reads them it is that layer's contribution.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unseen.networks.base import Outputs
from unseen.networks.headed import HeadedNet, TwoLayerHead

__all__ = ["class_activation", "gradient_activation", "head_weight", "map_distribution", "reads_positions"]


def class_activation(maps: Tensor, weight: Tensor, y: Tensor) -> Tensor:
    """M = sum_l W_l F_l(x) of class y: maps [n, l, h, w] and the head's weights [classes, l] to [n, h, w].

    >>> class_activation(torch.tensor([[[[1.0, 2.0]], [[3.0, 4.0]]]]), torch.tensor([[1.0, 0.0], [1.0, 10.0]]), torch.tensor([1]))
    tensor([[[31., 42.]]])
    """
    return torch.einsum("nl,nlhw->nhw", weight[y], maps)


def gradient_activation(seen: Outputs, y: Tensor, *, again: bool = True) -> Tensor:
    """P sum_l dz_y / dF_l(x) F_l(x), [n, h, w]; it can be differentiated `again`."""
    maps = seen.maps[-1]
    of_class = seen.logits.gather(1, y[:, None]).sum()  # a sample's logit depends on its own maps alone
    (slope,) = torch.autograd.grad(of_class, maps, create_graph=again)
    return maps.shape[2] * maps.shape[3] * (slope * maps).sum(1)


def map_distribution(net: nn.Module, seen: Outputs, y: Tensor, *, again: bool = True) -> Tensor:
    """The class activation map of class y as a distribution: softmax over positions, [n, positions]."""
    weight = head_weight(net)
    activation = gradient_activation(seen, y, again=again) if weight is None else class_activation(seen.maps[-1], weight, y)
    return activation.float().flatten(1).softmax(1)


def reads_positions(net: nn.Module) -> bool:
    """Whether the head's weights can be applied to the maps position by position."""
    if not (isinstance(net, HeadedNet) and net.head_fits_maps):
        return False
    head = net.head()
    return isinstance(head, nn.Linear) or (isinstance(head, TwoLayerHead) and not head.relu)


def head_weight(net: nn.Module) -> Tensor | None:
    """The weights [classes, channels] by which the head reads the maps, or None where other layers lie between."""
    if not reads_positions(net):
        return None
    assert isinstance(net, HeadedNet)
    head = net.head()
    if isinstance(head, TwoLayerHead):
        return head.output.weight @ head.inner.weight  # nothing non-linear between the two
    assert isinstance(head, nn.Linear)
    return head.weight
