"""MixStyle, EFDMix and DSU against loops over samples and channels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch

from unseen.networks import build_network
from unseen.networks.headed import stage_channels
from unseen.ops.mixstyle import draw_mixing, draw_noise, mix_ranks, mix_styles, noisy_styles
from unseen.parts.mixstyle import DSU, EFDMix, MapStyle, MixStyle, mixed, mixing_of


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_each_sample_takes_part_of_its_partners_statistics() -> None:
    maps = torch.randn(4, 3, 5, 6, generator=rng(), dtype=torch.float64) * 3 + 1
    keep, partner = torch.tensor([0.2, 1.0, 0.0, 0.7], dtype=torch.float64), torch.tensor([2, 0, 1, 3])
    got = mix_styles(maps, keep, partner)
    x = maps.numpy()
    for n in range(4):
        for c in range(3):
            own, other = x[n, c], x[int(partner[n]), c]
            sd_own, sd_other = (np.sqrt(m.var(ddof=1) + 1e-6) for m in (own, other))
            share = float(keep[n])
            mean, sd = share * own.mean() + (1 - share) * other.mean(), share * sd_own + (1 - share) * sd_other
            assert np.allclose(got[n, c], (own - own.mean()) / sd_own * sd + mean)


def test_what_keeps_everything_stays_to_the_bit() -> None:
    maps = torch.randn(3, 2, 4, 4, generator=rng(1)) * 7 - 2
    assert torch.equal(mix_styles(maps, torch.ones(3), torch.tensor([1, 2, 0])), maps)


def test_no_gradient_flows_through_the_statistics() -> None:
    maps = torch.randn(2, 1, 3, 3, generator=rng(2), dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(mix_styles(maps, torch.tensor([0.0, 0.0]), torch.tensor([1, 0])).sum(), maps)
    sd = (maps.detach().var((1, 2, 3)) + 1e-6).sqrt()
    assert torch.allclose(grad[0], (sd[1] / sd[0]).expand(1, 3, 3)) and torch.allclose(grad[1], (sd[0] / sd[1]).expand(1, 3, 3))


def test_one_position_has_a_mean_to_mix() -> None:
    maps = torch.tensor([[[[1.0]]], [[[3.0]]]])
    assert mix_styles(maps, torch.tensor([0.5, 1.0]), torch.tensor([1, 0])).flatten().tolist() == [2.0, 3.0]


def test_draws_have_the_moments_of_beta() -> None:
    keep, partner = draw_mixing(4000, 2, 1.0, 0.1, rng())
    assert float(keep.mean()) == pytest.approx(0.5, abs=0.02)
    assert float(keep.var()) == pytest.approx(1 / (4 * (2 * 0.1 + 1)), abs=0.01)  # of Beta(a, a): 1 / (4 (2 a + 1))
    assert all(sorted(row.tolist()) == [*range(4000)] for row in partner) and not torch.equal(*partner)


def test_a_layer_acts_with_probability_p() -> None:
    generator = rng()
    acted = [bool((draw_mixing(8, 2, 0.5, 0.1, generator)[0] != 1).any(1)[layer]) for _ in range(500) for layer in (0, 1)]
    assert np.mean(acted) == pytest.approx(0.5, abs=0.05)
    assert torch.equal(draw_mixing(8, 2, 0.0, 0.1, generator)[0], torch.ones(2, 8))


@pytest.mark.parametrize(
    "name", ["small_cnn:width=4", "digits_cnn", "mobilenet_v2", "efficientnet_lite0", "resnet18", "alexnet", "unet:width=4"]
)
@pytest.mark.parametrize("kind", [partial(MixStyle, alpha=1.0), partial(EFDMix, alpha=1.0), DSU], ids=["mixstyle", "efdmix", "dsu"])
def test_it_acts_after_the_first_stages_while_training(name: str, kind: Callable[..., MapStyle]) -> None:
    torch.manual_seed(0)
    side = 64
    net = build_network(name, outputs=2, channels=3, size=(side, side))
    for module in net.modules():  # so that two passes in training mode agree
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    x = torch.randn(4, 3, side, side, generator=rng(3))
    part, off = kind(p=1.0), kind(p=0.0)

    def channels() -> list[int]:
        return stage_channels(build_network(name, outputs=2, channels=3, size=(side, side)), x.shape[1:])

    draws = mixing_of(part, x, rng(4), channels)
    with torch.no_grad():
        plain, with_style = net(x), mixed(part, net, x, draws)
        assert not torch.allclose(plain, with_style, atol=1e-6)
        assert torch.equal(mixed(off, net, x, mixing_of(off, x, rng(4), channels)), plain)
        assert torch.equal(net(x), plain)  # the hooks are gone
        net.eval()
        assert torch.equal(mixed(part, net, x, draws), net(x))


def test_a_resnet_mixes_after_layer1_and_layer2_alone() -> None:
    torch.manual_seed(0)
    net = build_network("resnet18", outputs=2, channels=3, size=(64, 64))
    x, seen = torch.randn(3, 3, 64, 64, generator=rng(5)), {}
    part = MixStyle(p=1.0, alpha=1.0)
    draws = mixing_of(part, x, rng(6), list)
    hooks = [
        getattr(net, f"layer{n}").register_forward_hook(lambda _m, args, out, n=n: seen.update({f"in{n}": args[0], f"out{n}": out}))
        for n in (1, 2, 3, 4)
    ]
    with torch.no_grad():
        mixed(part, net, x, draws)
    for hook in hooks:
        hook.remove()
    keep, partner = draws
    assert torch.allclose(seen["in2"], mix_styles(seen["out1"], keep[0], partner[0]))
    assert torch.allclose(seen["in3"], mix_styles(seen["out2"], keep[1], partner[1]))
    assert torch.equal(seen["in4"], seen["out3"]) and not torch.allclose(seen["in3"], seen["out2"])


def test_a_value_moves_towards_the_partners_value_of_the_same_rank() -> None:
    maps = torch.randn(3, 2, 4, 5, generator=rng(), dtype=torch.float64).relu()  # zeros are ties: the earlier position ranks lower
    keep, partner = torch.tensor([0.3, 1.0, 0.0], dtype=torch.float64), torch.tensor([1, 2, 0])
    got, x = mix_ranks(maps, keep, partner), maps.numpy().reshape(3, 2, 20)
    for n in range(3):
        for c in range(2):
            own, other = x[n, c], np.sort(x[int(partner[n]), c])
            rank = [sum((v < own[i]) or (v == own[i] and j < i) for j, v in enumerate(own)) for i in range(20)]
            want = [float(keep[n]) * own[i] + (1 - float(keep[n])) * other[rank[i]] for i in range(20)]
            assert np.allclose(got[n, c].flatten(), want)
    assert torch.equal(got[1], maps[1])
    assert torch.allclose(got[2].flatten(1).sort(1).values, maps[0].flatten(1).sort(1).values)  # the partner's distribution, exactly


def test_the_gradient_of_mixed_ranks_flows_through_the_sample_alone() -> None:
    maps = torch.randn(2, 1, 3, 3, generator=rng(2), requires_grad=True)
    (grad,) = torch.autograd.grad((mix_ranks(maps, torch.tensor([0.2, 0.7]), torch.tensor([1, 0])) * 3).sum(), maps)
    assert torch.equal(grad, torch.full_like(maps, 3.0))


@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_statistics_are_drawn_around_a_samples_own(scale: float) -> None:
    maps = torch.randn(4, 3, 5, 6, generator=rng(), dtype=torch.float64) * torch.arange(1, 5).view(4, 1, 1, 1) + 1
    noise = torch.randn(2, 4, 3, generator=rng(1), dtype=torch.float64)
    got, x = noisy_styles(maps, noise, scale), maps.numpy()
    mean, sd = x.mean((2, 3)), np.sqrt(x.var((2, 3)) + 1e-6)
    for n in range(4):
        for c in range(3):
            new_mean = mean[n, c] + float(noise[0, n, c]) * np.sqrt(scale * mean[:, c].var() + 1e-6)
            new_sd = sd[n, c] + float(noise[1, n, c]) * np.sqrt(scale * sd[:, c].var() + 1e-6)
            assert np.allclose(got[n, c], (x[n, c] - mean[n, c]) / sd[n, c] * new_sd + new_mean)
    few = maps[:, :2, :2, :2].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda m: noisy_styles(m, noise[:, :, :2], scale), few)  # gradients flow through the statistics too


def test_without_spread_or_noise_a_style_stays() -> None:
    maps = torch.randn(3, 2, 4, 4, generator=rng(1)) * 7 - 2
    assert torch.equal(noisy_styles(maps, torch.zeros(2, 3, 2)), maps)
    assert torch.equal(noisy_styles(maps[:1], torch.ones(2, 1, 2)), maps[:1])
    dead = torch.zeros(3, 2, 4, 4, requires_grad=True)  # a channel that says nothing varies in nothing
    (grad,) = torch.autograd.grad(noisy_styles(dead, torch.ones(2, 3, 2)).sum(), dead)
    assert torch.isfinite(grad).all()


def test_noise_fits_the_maps_of_every_stage() -> None:
    acts, *noise = draw_noise(500, [4, 8], 0.5, rng())
    assert acts.shape == (2,) and [tuple(e.shape) for e in noise] == [(2, 500, 4), (2, 500, 8)]
    assert float(noise[1].mean()) == pytest.approx(0, abs=0.05) and float(noise[1].std()) == pytest.approx(1, abs=0.05)
    net = build_network("resnet50", outputs=2, channels=3, size=(64, 64))
    assert stage_channels(net, torch.Size([3, 64, 64])) == [256, 512, 1024, 2048]
