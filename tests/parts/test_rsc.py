"""Self-challenging against a slow version over samples, and where it stops being anything but FedAvg."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from unseen import BadInput, Experiment, FedAvg
from unseen.data.domain import DomainDataset
from unseen.networks import build_network
from unseen.parts.local import Local
from unseen.parts.mixstyle import MixStyle
from unseen.parts.rsc import RSC
from unseen.parts.views import RandConv
from unseen.runs.watch import Silent
from unseen.state import same_bits
from unseen.task import Classification, Segmentation
from unseen.training import train
from unseen.world import build_world

TASK = Classification(tuple("abc"))


def batch(n: int = 7, side: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(1)
    return torch.rand(n, 3, side, side, generator=rng), torch.randint(0, 3, (n,), generator=rng)


def net_of(name: str = "resnet18", side: int = 32) -> torch.nn.Module:
    torch.manual_seed(0)
    return build_network(name, outputs=3, channels=3, size=(side, side)).eval()  # batch norms then do not join the samples


def test_the_entries_with_the_largest_gradient_of_the_most_changed_samples_are_muted() -> None:
    net, (x, y) = net_of(), batch()
    got = Local(rsc=RSC(f=0.25, b=0.4)).loss(TASK, net, x, y).detach()
    z = net(x, full=True).features.detach()
    weight, bias = net.head().weight.detach(), net.head().bias.detach()
    muted, change = z.clone(), []
    for n in range(len(x)):  # the logit of class y is linear in z: its gradient is the row of y
        muted[n, weight[y[n]].argsort(descending=True)[: math.ceil(0.25 * z.shape[1])]] = 0
        p, q = ((v @ weight.T + bias).softmax(0)[y[n]] for v in (z[n], muted[n]))
        change.append(float(p - q))
    for n in np.argsort(change)[: len(x) - math.ceil(0.4 * len(x))]:
        muted[n] = z[n]
    assert float(got) == pytest.approx(float(F.cross_entropy(muted @ weight.T + bias, y)), rel=1e-5)
    assert float(got) > float(F.cross_entropy(net(x).detach(), y))


@pytest.mark.parametrize("by_channel", [True, False])
def test_the_released_form_mutes_channels_or_positions_of_the_maps(by_channel: bool) -> None:
    net, (x, y) = net_of(side=64), batch(side=64)
    got = Local(rsc=RSC(form="map", b=0.5)).loss(TASK, net, x, y, (torch.tensor(by_channel),)).detach()
    maps = net(x, full=True).maps[-1].detach()
    weight, bias = net.head().weight.detach(), net.head().bias.detach()
    c, places = maps.shape[1], maps[0, 0].numel()
    muted, change = maps.clone(), []
    for n in range(len(x)):
        slope = weight[y[n]] / places  # of the logit, at every position
        if by_channel:
            muted[n, slope.argsort(descending=True)[: math.ceil(c / 3.2)]] = 0
        else:
            speaks = (maps[n] * slope[:, None, None]).sum(0).flatten()
            muted[n].view(c, -1)[:, speaks.argsort(descending=True)[: math.ceil(places / 3)]] = 0
        p, q = ((m.mean((1, 2)) @ weight.T + bias).softmax(0)[y[n]] for m in (maps[n], muted[n]))
        change.append(max(float(p - q) - 1e-4, 0))
    stays = [n for n in np.argsort(change)[::-1][: math.ceil(0.5 * len(x))] if change[n] > 0]
    assert stays
    for n in {*range(len(x))} - {*stays}:
        muted[n] = maps[n]
    assert float(got) == pytest.approx(float(F.cross_entropy(muted.mean((2, 3)) @ weight.T + bias, y)), rel=1e-5)


@pytest.mark.parametrize("by_channel", [True, False])
def test_a_segmentation_network_loses_its_bottleneck_where_dice_rests_on_it(by_channel: bool) -> None:
    torch.manual_seed(0)
    net = build_network("unet:width=4,depth=3", outputs=1, channels=3, size=(16, 16))
    x, task = torch.rand(3, 3, 16, 16), Segmentation(("disc",))
    y = (torch.rand(3, 1, 16, 16) < 0.4).long()
    got = Local(rsc=RSC(form="map", f=0.25, channels=0.5)).loss(task, net, x, y, (torch.tensor(by_channel),))

    def through(change: torch.Tensor, add: torch.Tensor, seen: list[torch.Tensor]) -> torch.Tensor:
        """The loss with the deepest maps changed."""
        hook = net.encoder[-1].register_forward_hook(lambda m, i, out: (seen.append(out.detach()), out * change + add)[1])
        loss = task.loss(net(x), y)
        hook.remove()
        return loss

    seen: list[torch.Tensor] = []
    add = torch.zeros(3, 16, 4, 4, requires_grad=True)
    plain = through(torch.ones(()), add, seen)
    (slope,) = torch.autograd.grad(-plain, add)
    z, keep = seen[0], torch.ones(3, 16, 4, 4)
    for n in range(3):
        if by_channel:
            keep[n, (z[n] * slope[n]).mean((1, 2)).argsort(descending=True)[:8]] = 0
        else:
            keep[n].view(16, -1)[:, (z[n] * slope[n]).sum(0).flatten().argsort(descending=True)[:4]] = 0
    want = through(keep, torch.zeros(()), [])
    assert torch.allclose(got, want, rtol=1e-5) and not torch.allclose(got, plain, rtol=1e-5)
    got.backward()
    assert all(p.grad is not None for p in net.parameters())


def test_with_nothing_muted_it_is_fedavg_to_the_bit(tiny: DomainDataset) -> None:
    plain, none, no_sample, some = (
        train(Experiment(FedAvg(batch=9, lr=0.01, rsc=rsc), tiny, "c", rounds=2), None, watch=Silent()).state
        for rsc in (None, RSC(f=0.0), RSC(b=0.0), RSC())
    )
    assert same_bits(none, plain) and same_bits(no_sample, plain) and not same_bits(some, plain)


def test_with_views_and_styles_each_view_is_challenged() -> None:
    net, (x, y) = net_of("small_cnn"), batch(4)
    local = Local(rsc=RSC(), views=RandConv(copies=1, weight=0.0), mixstyle=MixStyle(p=1.0))
    views = torch.cat([x, x.flip(3)])
    drawn = (torch.ones(2, 8), torch.arange(8).repeat(2, 1))  # everyone keeps its style
    want = Local(rsc=RSC()).loss(TASK, net, views, torch.cat([y, y]))
    assert torch.allclose(local.loss(TASK, net, views, y, drawn), want, rtol=1e-5)


def test_what_does_not_fit_is_refused(tiny: DomainDataset, tiny_masks: DomainDataset) -> None:
    with pytest.raises(BadInput, match=r"channels = 0\.5, but form = vector mutes no channels"):
        RSC(channels=0.5)
    with pytest.raises(BadInput, match="a segmentation network has no feature vector; set form = map"):
        build_world(Experiment(FedAvg(rsc=RSC()), tiny_masks, "c"))
    with pytest.raises(BadInput, match=r"b = 0\.5, and in segmentation all samples stay muted"):
        build_world(Experiment(FedAvg(rsc=RSC(form="map", b=0.5)), tiny_masks, "c"))
    with pytest.raises(BadInput, match="needs a network whose head reads the mean of its maps"):
        build_world(Experiment(FedAvg(rsc=RSC(form="map")), tiny, "c", network="small_cnn:width=4"))


def test_in_segmentation_it_trains(tiny_masks: DomainDataset) -> None:
    result = train(Experiment(FedAvg(batch=4, lr=0.01, rsc=RSC(form="map")), tiny_masks, "c", rounds=1), None, watch=Silent())
    assert all(torch.isfinite(v).all() for v in result.state.values())


def test_a_fixed_backbone_is_challenged_too() -> None:
    """Its features carry no gradient, and the head's weights say all the same which of them speak most."""
    net, (x, y) = net_of(), batch()
    local = Local(rsc=RSC(f=0.25, b=0.4))
    want = local.loss(TASK, net, x, y)
    slope = torch.autograd.grad(want, net.head().weight)[0]
    for weight in net.parameters():
        weight.requires_grad_(any(weight is own for own in net.head().parameters()))
    got = local.loss(TASK, net, x, y)
    assert torch.equal(got, want) and torch.equal(torch.autograd.grad(got, net.head().weight)[0], slope)
