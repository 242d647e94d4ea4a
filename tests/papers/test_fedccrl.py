"""FedCCRL: the statistics that leave, the copies, and the three losses, each worked out another way."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cases import Case
from one_client import LinearNet, batch_of, client_of, images
from unseen import BadInput, Experiment, FedAvg
from unseen.data.domain import DomainDataset
from unseen.methods.fedccrl import Down, FedCCRL
from unseen.networks.base import Outputs
from unseen.ops.style import channel_moments, possible_moments
from unseen.payload import Nothing
from unseen.runs.watch import Silent
from unseen.state import state_of
from unseen.training import train
from unseen.world import build_world

TINY = {
    "fedccrl": Case("fedccrl", {"lr": 0.02, "batch": 8, "lambda2": 0.1}, leaves="statistics.moments train.model train.samples"),
}


def test_a_tenth_of_the_images_tells_its_channels_means_and_deviations() -> None:
    domain = images(40, side=4)
    told = FedCCRL(share=0.1).statistics(Nothing(), client_of(domain, lambda: LinearNet(16, 3))).moments
    every = torch.tensor(domain.images).float() / 255
    wanted = torch.stack([every.mean((2, 3)), every.var((2, 3), correction=0).sqrt()], 1)
    assert told.shape == (4, 2, 1)
    chosen = [int((wanted - one).abs().sum((1, 2)).argmin()) for one in told]
    assert len(set(chosen)) == 4 and torch.allclose(told, wanted[chosen], atol=1e-5)
    few = FedCCRL(share=0.001).statistics(Nothing(), client_of(domain, lambda: LinearNet(16, 3))).moments
    assert len(few) == 1


def test_copies_take_the_colours_of_others_as_far_as_the_draw_says() -> None:
    """Beta(1000, 1000) is one half: the copies' moments lie halfway between their own and the only other image's."""
    x, other = torch.rand(5, 3, 6, 6, generator=torch.Generator().manual_seed(1)), torch.tensor([[[2.0, -1.0, 0.5], [0.3, 0.7, 0.1]]])
    method = FedCCRL(style_alpha=1000.0, augmix=False, copies=2)
    made = method.copied(x, [other], torch.Generator().manual_seed(0))
    assert torch.equal(made[:5], x) and len(made) == 15
    halfway = (channel_moments(x) + other) / 2
    assert torch.allclose(channel_moments(made[5:]), halfway.repeat(2, 1, 1), atol=0.1)
    shape = [(m - m.mean((2, 3), keepdim=True)) / m.std((2, 3), keepdim=True) for m in (x, made[5:10])]
    assert torch.allclose(*shape, atol=1e-3), "the content stays"


def test_without_others_only_augmix_acts_and_without_both_copies_are_the_images() -> None:
    x = torch.rand(4, 3, 8, 8)
    made = FedCCRL(copies=1).copied(x, [], torch.Generator().manual_seed(0))
    assert torch.equal(made[:4], x) and not torch.equal(made[4:], x)
    assert torch.equal(FedCCRL(copies=1, augmix=False).copied(x, [], torch.Generator()), torch.cat([x, x]))


def test_nobody_gets_its_own_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    domain, seen = images(name="a"), list[Any]()
    monkeypatch.setattr(FedCCRL, "copied", lambda self, x, others, rng: seen.append(others) or x)
    client = client_of(domain, lambda: LinearNet(4, 3))
    state = state_of(LinearNet(4, 3))
    own, other = torch.zeros(2, 2, 1), torch.full((3, 2, 1), 0.25)
    FedCCRL(batch=12).train(Down(model=state, colours={"a": own, "b": other}), client)
    assert len(seen) == 1 and len(seen[0]) == 1 and torch.equal(seen[0][0], other)


class Deep(LinearNet):
    """A layer of features below the head, which the contrast reaches."""

    def __init__(self) -> None:
        super().__init__(4, 3)
        self.below = nn.Linear(4, 4)

    def forward(self, x: Tensor, full: bool = False) -> Tensor | Outputs:
        return super().forward(self.below(x.flatten(1)).tanh(), full)


@pytest.mark.parametrize(("lambda1", "lambda2"), [(0.3, 0.0), (0.0, 0.8), (0.3, 0.8)])
def test_a_step_descends_the_three_losses(lambda1: float, lambda2: float) -> None:
    """On three copies that differ by AugMix: cross entropy, supervised contrast anchor by anchor, and KL to the mean, by hand."""
    domain, lr, tau = images(), 0.3, 0.5
    torch.manual_seed(0)
    state = state_of(Deep())
    method = FedCCRL(lambda1=lambda1, lambda2=lambda2, tau=tau, lr=lr, batch=12, steps=1, optimizer="sgd", severity=10.0)
    client = client_of(domain, Deep)
    rng = torch.Generator()
    rng.set_state(client.rng.get_state())
    order = torch.randperm(12, generator=rng)
    x, y = batch_of(domain)
    views, labels = method.copied(x[order], [], rng).flatten(1), y[order].repeat(3)
    w = {name: value.clone().requires_grad_() for name, value in state.items()}
    features = (views @ w["below.weight"].T + w["below.bias"]).tanh()
    logits = features @ w["fc.weight"].T + w["fc.bias"]
    p = logits.softmax(1).view(3, 12, 3)
    js = sum((q * (q.log() - p.mean(0).log())).sum(1).mean() for q in p) / 3
    contrast = []
    for i in range(36):
        close = F.cosine_similarity(features[i], features) / tau
        others = torch.arange(36) != i
        contrast.append((close[others].logsumexp(0) - close[others & (labels == labels[i])]).mean())
    (F.cross_entropy(logits, labels) + lambda1 * torch.stack(contrast).mean() + lambda2 * js).backward()  # type: ignore[no-untyped-call]
    up = method.train(Down(model=state, colours={}), client)
    for name, value in w.items():
        assert value.grad is not None and torch.allclose(up.model[name], value.detach() - lr * value.grad, atol=1e-6), name


def test_without_copies_changed_and_losses_it_is_fedavg_but_for_the_batchs_size(tiny: DomainDataset) -> None:
    """Thrice the same images: the same gradient, and the same batch statistics."""
    values: dict[str, Any] = {"batch": 9, "lr": 0.01, "optimizer": "sgd", "steps": 2}
    same = FedCCRL(restyle=False, augmix=False, lambda1=0.0, lambda2=0.0, **values)
    one = train(Experiment(same, tiny, "c", rounds=1), None, watch=Silent())
    two = train(Experiment(FedAvg(**values), tiny, "c", rounds=1), None, watch=Silent())
    for name, value in two.state.items():
        if not name.endswith(("running_var", "num_batches_tracked")):  # an unbiased variance divides by one less
            assert torch.allclose(one.state[name], value, atol=1e-5), name
    sent = {row["field"] for record in one.records for row in record["travelled"] if row["direction"] == "sent"}
    assert sent == {"model", "samples"}, "without restyling no statistic leaves"


def test_a_client_alone_is_told(tiny: DomainDataset) -> None:
    with pytest.raises(BadInput, match="a single client has nobody whose colours"):
        build_world(Experiment(FedCCRL(), tiny, "c", sources="a"))
    build_world(Experiment(FedCCRL(restyle=False), tiny, "c", sources="a"))
    lonely = train(Experiment(FedCCRL(batch=8), tiny, "c", rounds=1, participation=0.5), None, watch=Silent())
    assert not lonely.records[0]["missing"]


def test_where_nobody_has_anothers_colours_it_is_told(tiny: DomainDataset) -> None:
    for values, share, warns in (({}, 0.5, True), ({"restyle": False}, 0.5, False), ({}, 1.0, False)):
        method = FedCCRL(batch=32, copies=1, **values)  # type: ignore[arg-type]
        (record,) = train(Experiment(method, tiny, "c", rounds=1, participation=share), None, watch=Silent()).records
        assert ("nobody took on another's" in record["notes"].get("warning", "")) == warns


def test_colours_that_no_image_has_do_no_more_than_the_brightest() -> None:
    """One strange site cannot make the others' images, and with them their models, run over."""
    domain = images(12, side=4)
    torch.manual_seed(0)
    state = state_of(LinearNet(16, 3))

    def trained(moments: list[float]) -> Tensor:
        colours = {"b": torch.tensor(moments).view(1, 2, 1)}
        return (
            FedCCRL(lr=0.1, batch=12)
            .train(Down(model=state, colours=colours), client_of(domain, lambda: LinearNet(16, 3)))
            .model["fc.weight"]
        )

    assert torch.equal(trained([1e12, -1e12]), trained([1.0, 0.0])) and not torch.equal(trained([0.3, 0.2]), trained([1.0, 0.0]))
    x = batch_of(domain)[0].round()  # black and white: nothing deviates further
    assert torch.equal(possible_moments(channel_moments(x), torch.zeros(1), torch.ones(1)), channel_moments(x))
