"""FedGCA against its equations, its ablations and the methods it contains."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cases import Case
from one_client import Fixed, LinearNet, batch_of, client_of, images
from unseen import BadInput, Experiment, FedDyn, FedGCA
from unseen.data.domain import Domain, DomainDataset
from unseen.experiment import read_experiment
from unseen.methods import fedgca
from unseen.networks import Outputs, build_network
from unseen.parts.combining import Down
from unseen.parts.dynamic import Drift, Dynamic, DynamicUp
from unseen.parts.mixstyle import MixStyle
from unseen.parts.sam import SAM
from unseen.parts.views import RandConv
from unseen.runs.watch import Silent
from unseen.state import State, same_bits
from unseen.task import Classification
from unseen.training import train
from unseen.world import build_world

TINY = {
    "fedgca": Case("fedgca", {"lr": 0.02, "batch": 8, "epochs": 2, "copies": 2}, leaves="train.buffers train.parameters"),
    "fedgca-kl": Case(
        "fedgca",
        {"lr": 0.02, "batch": 8, "epochs": 2, "copies": 1, "consistency": "kl", "stop_mean": True, "alpha": 1.0, "beta": 1.0},
        leaves="train.buffers train.parameters",
    ),
    "fedgca-local": Case(
        "fedgca",
        {"lr": 0.05, "batch": 8, "epochs": 2, "copies": 1, "global_predictions": False, "global_maps": False},
        leaves="train.buffers train.parameters",
    ),
    "fedgca+mixstyle+sam": Case(
        "fedgca",
        {"lr": 0.05, "batch": 8, "epochs": 2, "copies": 1, "mixstyle": MixStyle(), "sam": SAM(), "smoothing": 0.1},
        leaves="train.buffers train.parameters",
    ),
}

SGD: dict[str, Any] = {"optimizer": "sgd", "lr": 0.1, "steps": 1, "batch": 12}


def net() -> nn.Module:
    return build_network("small_cnn:width=2", outputs=3, channels=1, size=(16, 16))


@pytest.fixture
def setting(monkeypatch: pytest.MonkeyPatch) -> tuple[Domain, State, State]:
    """Data, weights and a lambda; the restyled copy is the negative, so that the views are known."""
    monkeypatch.setattr(fedgca, "restyled_views", lambda x, copies, styles, rng: torch.cat([x, 1 - x]) if copies else x)
    torch.manual_seed(0)
    model = {k: v.detach().clone() for k, v in net().state_dict().items()}
    drift = {name: 0.1 * torch.randn_like(w) for name, w in net().named_parameters()}
    return images(side=16), model, drift


def contributions(of: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Logits, and how much each position of small_cnn's maps adds to its own class, through the pooling's winners."""
    x = of.pool(of.relu(of.bn1(of.conv1(x))))
    x = of.pool(of.relu(of.bn2(of.conv2(x))))
    maps = of.relu(of.bn3(of.conv3(x)))
    pooled, winners = F.max_pool2d(maps, 2, return_indices=True)
    logits = of.fc(pooled.flatten(1))
    shares = pooled * of.fc.weight[y].view_as(pooled)
    at = torch.zeros_like(maps.flatten(2)).scatter_add(2, winners.flatten(2), shares.flatten(2))
    return logits, maps.shape[2] * maps.shape[3] * at.sum(1)


@pytest.mark.parametrize("switches", [(0, 0, 0, 0), (1, 0, 0, 0), (1, 1, 0, 0), (1, 1, 1, 0), (1, 1, 1, 1), (0, 0, 1, 1), (1, 0, 1, 1)])
@pytest.mark.parametrize("form", ["bce", "kl"])
def test_a_local_step_descends_equation_6(setting: tuple[Domain, State, State], switches: tuple[int, ...], form: str) -> None:
    """Every term written out again: cross entropy over X+, Eq. 2, Eq. 3, Eq. 5; one step of gradient descent on their sum."""
    domain, model, drift = setting
    p, p_g, m, m_g = map(bool, switches)
    alpha, beta = 0.7, 1.3
    named = {"local_predictions": p, "global_predictions": p_g, "local_maps": m, "global_maps": m_g}
    method = FedGCA(alpha=alpha, beta=beta, copies=1, consistency=form, **named, **SGD)  # type: ignore[arg-type]
    up = method.train(Down(model=model), client_of(domain, net, recall=lambda kind: Drift(drift=drift)))

    x, y = batch_of(domain)
    local, guide = net(), net().eval()
    local.load_state_dict(model)
    guide.load_state_dict(model)
    logits, cams = contributions(local, torch.cat([x, 1 - x]), torch.cat([y, y]))
    with torch.no_grad():
        told, guides = contributions(guide, torch.cat([x, 1 - x]), torch.cat([y, y]))
    loss = F.cross_entropy(logits, torch.cat([y, y]))
    views, others = logits.softmax(1).chunk(2), told.softmax(1).chunk(2) if p_g else ()
    average = sum([*views, *others]) / (2 + len(others))
    for view in views if p else ():
        bce = -(view * average.log() + (1 - view) * (1 - average).log()).mean()
        loss = loss + beta * (bce if form == "bce" else (view * (view / average).log()).sum(1).mean())
    looks, others = cams.flatten(1).softmax(1).chunk(2), guides.flatten(1).softmax(1).chunk(2) if m_g else ()
    average = sum([*looks, *others]) / (2 + len(others))
    for look in looks if m else ():
        loss = loss + beta * (look * (look / average).log()).sum(1).mean()
    loss = loss - sum((drift[name] * w).sum() for name, w in local.named_parameters())  # |w - w_t|^2 is still flat
    for (name, w), g in zip(local.named_parameters(), torch.autograd.grad(loss, [*local.parameters()]), strict=True):
        assert torch.allclose(up.parameters[name], w - 0.1 * g, atol=2e-5), name


@pytest.mark.parametrize(
    ("form", "over", "stop", "summed"), [("bce", "sum", False, "local"), ("kl", "mean", True, "local"), ("kl", "mean", False, "all")]
)
def test_three_steps_with_momentum_and_two_copies(monkeypatch: pytest.MonkeyPatch, form: Any, over: Any, stop: bool, summed: Any) -> None:
    """|w - w_t|^2 is no longer flat, the guide no longer the local model; maps by one differentiation for each image."""
    alpha, beta, lr, n = 3.0, 0.8, 0.02, 6
    monkeypatch.setattr(fedgca, "restyled_views", lambda x, copies, styles, rng: torch.cat([x, 1 - x, x.flip(3) / 2]))
    domain = images(samples=n, side=16, seed=5)
    torch.manual_seed(2)
    model = {k: v.detach().clone() for k, v in net().state_dict().items()}
    drift = {name: 0.01 * torch.randn_like(w) for name, w in net().named_parameters()}
    reading: dict[str, Any] = {"consistency": form, "over_classes": over, "stop_mean": stop, "summed": summed}
    method = FedGCA(alpha=alpha, beta=beta, copies=2, steps=3, batch=n, lr=lr, **reading)
    up = method.train(Down(model=model), client_of(domain, net, recall=lambda kind: Drift(drift=drift)))

    local, guide = net(), net().eval()
    local.load_state_dict(model)
    guide.load_state_dict(model)

    def look(of: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        seen, rows = of(x, full=True), []
        for i in range(len(x)):
            (slope,) = torch.autograd.grad(seen.logits[i, y[i]], seen.maps[-1], create_graph=True)
            rows.append((seen.maps[-1][0, 0].numel() * (slope[i] * seen.maps[-1][i]).sum(0)).flatten())
        return seen.logits, torch.stack(rows)

    everything, labels = batch_of(domain)
    draws, velocity = torch.Generator().manual_seed(0), [torch.zeros_like(w) for w in local.parameters()]
    for _ in range(3):
        order = torch.randperm(n, generator=draws)
        x, y = everything[order], labels[order].repeat(3)
        views = torch.cat([x, 1 - x, x.flip(3) / 2])
        logits, maps = look(local, views, y)
        loss = F.cross_entropy(logits, y)
        for kind, ours, theirs in zip("pm", (logits, maps), look(guide, views, y), strict=True):
            mine = ours.softmax(1).view(3, n, -1)
            yours = theirs.detach().softmax(1).view(3, n, -1)
            average = (mine.sum(0) + yours.sum(0)) / 6
            average = average.detach() if stop else average
            for view in [*mine, *yours] if kind == "p" and summed == "all" else mine:
                if kind == "p" and form == "bce":
                    loss = loss - beta * (view * average.log() + (1 - view) * (1 - average).log()).sum(1).mean()
                else:
                    loss = loss + beta * (view * (view / average).log()).sum(1).mean()
        for name, w in local.named_parameters():
            loss = loss - (drift[name] * w).sum() + alpha / 2 * ((w - model[name]) ** 2).sum()
        for w, v, g in zip(local.parameters(), velocity, torch.autograd.grad(loss, [*local.parameters()]), strict=True):
            v.mul_(0.9).add_(g)
            w.data -= lr * v
    for name, w in local.named_parameters():
        assert torch.allclose(up.parameters[name], w, atol=1e-4), name


def test_the_client_renews_its_lambda(setting: tuple[Domain, State, State]) -> None:
    domain, model, drift = setting
    client = client_of(domain, net, recall=lambda kind: Drift(drift=drift))
    up = FedGCA(alpha=3.0, copies=1, **{**SGD, "steps": 3}).train(Down(model=model), client)
    kept = client.remembered["Drift"]
    assert isinstance(kept, Drift) and kept.drift.keys() == drift.keys() == up.parameters.keys()
    assert {*up.parameters} | {*up.buffers} == {*model} and not {*up.parameters} & {*up.buffers}
    for name, value in kept.drift.items():
        assert torch.allclose(value, drift[name] - 3.0 * (up.parameters[name] - model[name]), atol=1e-6)


def test_without_beta_and_copies_it_is_feddyn_to_the_bit(tiny: DomainDataset) -> None:
    common: dict[str, Any] = {"alpha": 0.1, "epochs": 2, "batch": 8, "optimizer": "momentum", "lr": 0.02}
    one = train(Experiment(FedGCA(beta=0.0, copies=0, **common), tiny, "c", rounds=3), None, watch=Silent())
    two = train(Experiment(FedDyn(**common), tiny, "c", rounds=3), None, watch=Silent())
    assert same_bits(one.state, two.state)
    none = {"local_predictions": False, "global_predictions": False, "local_maps": False, "global_maps": False}
    row = train(Experiment(FedGCA(copies=0, **none, **common), tiny, "c", rounds=3), None, watch=Silent())
    assert same_bits(row.state, two.state)  # the tables' first row
    parts: dict[str, Any] = {"smoothing": 0.1, "mixstyle": MixStyle(p=1.0), "sam": SAM(0.1)}
    taken = train(Experiment(FedGCA(beta=0.0, copies=0, **common, **parts), tiny, "c", rounds=2), None, watch=Silent())
    dyn = train(Experiment(FedDyn(**common, **parts), tiny, "c", rounds=2), None, watch=Silent())
    assert same_bits(taken.state, dyn.state)


@pytest.mark.parametrize("form", ["bce", "kl"])
def test_with_local_predictions_alone_it_is_feddyn_with_randconv(tiny: DomainDataset, form: Any) -> None:
    common: dict[str, Any] = {"alpha": 0.1, "epochs": 1, "batch": 8, "optimizer": "momentum", "lr": 0.02}
    off = {"global_predictions": False, "local_maps": False, "global_maps": False}
    one = train(Experiment(FedGCA(beta=0.4, copies=2, consistency=form, **off, **common), tiny, "c", rounds=2), None, watch=Silent())
    part = RandConv(copies=2, weight=0.4, consistency=form)
    two = train(Experiment(FedDyn(views=part, **common), tiny, "c", rounds=2), None, watch=Silent())
    assert same_bits(one.state, two.state)


@pytest.mark.parametrize("part", [{"smoothing": 0.2}, {"mixstyle": MixStyle(p=1.0)}, {"sam": SAM(0.2)}], ids=lambda part: next(iter(part)))
def test_parts_do_what_they_do_in_feddyn_on_every_view(tiny: DomainDataset, part: dict[str, Any]) -> None:
    common: dict[str, Any] = {"alpha": 0.1, "epochs": 1, "batch": 8, "optimizer": "momentum", "lr": 0.02, **part}
    off = {"global_predictions": False, "local_maps": False, "global_maps": False}
    one = train(Experiment(FedGCA(beta=0.4, copies=1, **off, **common), tiny, "c", rounds=1), None, watch=Silent())
    two = train(Experiment(FedDyn(views=RandConv(copies=1, weight=0.4), **common), tiny, "c", rounds=1), None, watch=Silent())
    assert same_bits(one.state, two.state)


def test_the_global_model_stays_as_it_was_and_in_evaluation_mode(setting: tuple[Domain, State, State]) -> None:
    """Several steps on: the guide still answers with the round's weights and statistics."""
    domain, model, _ = setting
    told: list[Tensor] = []

    class Listening(FedGCA):
        def guidance(self, *given: Any) -> Any:
            said = super().guidance(*given)
            told.append(said[0].flatten(0, 1))
            return said

    Listening(copies=1, **{**SGD, "steps": 3}).train(Down(model=model), client_of(domain, net))
    guide = net().eval()
    guide.load_state_dict(model)
    x, _ = batch_of(domain)
    want = guide(torch.cat([x, 1 - x])).detach().softmax(1)
    for p in told:  # batches differ in their order alone
        assert torch.allclose(p.sort(0).values, want.sort(0).values, atol=1e-6)


def test_the_server_does_feddyns_update_with_a_missing_client() -> None:
    state = Dynamic({"w": torch.zeros(1)}, {"w": torch.tensor([1.0])})
    ups = {"a": DynamicUp(parameters={"w": torch.tensor([2.0])}, buffers={}), "b": "gone"}
    after = FedGCA(alpha=4.0).round(state, Fixed(ups))
    assert after.drift["w"].item() == pytest.approx(1 - 4 / 2 * 2) and after.model["w"].item() == pytest.approx(2 + 3 / 4)


def test_single_source_clients_hold_one_domain_and_skewed_labels() -> None:
    rng = np.random.default_rng(0)
    domains = tuple(
        Domain(name, rng.integers(0, 255, (600, 3, 8, 8)).astype(np.uint8), np.arange(600).astype(np.int64) % 3) for name in ("s", "t")
    )
    from dataclasses import replace

    from conftest import tiny_classification

    data = replace(tiny_classification(), domains=domains)
    around = {"protocol": "single-source", "source": "s", "partition": "dirichlet:0.3", "clients": 10}
    world = build_world(Experiment(FedGCA(copies=1), data, **around))  # type: ignore[arg-type]
    assert len(world.holdings) == 10 and {h.domain for h in world.holdings.values()} == {"s"}
    shares = []
    for holding in world.holdings.values():
        labels = holding.train.take(torch.arange(len(holding.train)))[1]
        shares.append(np.bincount(labels.numpy(), minlength=3) / len(labels))
    assert np.std(shares) > 0.2  # even shares would have 0


@pytest.mark.parametrize(
    ("form", "summed", "expected"),
    [
        ("kl", "local", 0.5 * math.log(4 / 3)),  # p = (1/2, 1/2), p^G = (1, 0), mean (3/4, 1/4)
        ("kl", "all", 0.5 * math.log(4 / 3) + math.log(4 / 3)),
        ("bce", "local", 0.5 * math.log(16 / 3)),  # both classes have 1/2 (log 4/3 + log 4)
        ("bce", "all", 0.5 * math.log(16 / 3) + math.log(4 / 3)),
    ],
)
def test_equation_2_sums_over_the_local_predictions_or_the_global_ones_too(form: Any, summed: Any, expected: float) -> None:
    method = FedGCA(consistency=form, summed=summed, local_maps=False, global_maps=False)
    seen, told = Outputs(torch.zeros(1, 2), torch.zeros(1, 1), ()), torch.tensor([[[1.0, 0.0]]])
    found = method.semantic_consistency(Classification(("a", "b")), net(), seen, (told, None), torch.tensor([0]), 1)  # type: ignore[arg-type]
    assert float(found) == pytest.approx(expected, rel=1e-5)


def test_switches_that_compare_nothing_are_refused() -> None:
    with pytest.raises(BadInput, match="summed is all, but global_predictions is off"):
        FedGCA(summed="all", global_predictions=False)
    with pytest.raises(BadInput, match="global_maps is on and local_maps off"):
        FedGCA(local_maps=False)
    with pytest.raises(BadInput, match="global_predictions is on and local_predictions off"):
        FedGCA(local_predictions=False)
    with pytest.raises(BadInput, match="did you mean 'texture'"):
        FedGCA(styles="randconv, textur")
    with pytest.raises(BadInput, match="divides by it"):
        FedGCA(alpha=0.0)


def test_a_network_with_a_single_position_is_an_obstacle(tiny: DomainDataset) -> None:
    small: dict[str, Any] = {"network": "resnet18"}  # 8 pixels leave one position
    with pytest.raises(BadInput, match="a single position"):
        build_world(Experiment(FedGCA(), tiny, "c", **small))
    off = FedGCA(local_maps=False, global_maps=False)
    assert build_world(Experiment(off, tiny, "c", **small)).clients == ["a", "b"]


def test_presets_are_the_papers() -> None:
    digits = read_experiment({"method": "fedgca", "preset": "paper"})
    pacs = read_experiment({"method": "fedgca", "preset": "pacs"})
    assert (digits.method.alpha, digits.method.beta, digits.rounds) == (0.1, 0.1, 100)  # type: ignore[attr-defined]
    assert (pacs.method.alpha, pacs.method.beta, pacs.rounds, pacs.network) == (10.0, 8.0, 50, "resnet18")  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", [FedGCA, RandConv])
def test_a_sum_over_classes_that_nothing_reads_is_refused(kind: Any) -> None:
    with pytest.raises(BadInput, match="over_classes is sum, but of consistency = kl there is one number"):
        kind(consistency="kl", over_classes="sum")


def test_maps_that_rest_on_nothing_trained_have_no_gradient(tiny: DomainDataset) -> None:
    with pytest.raises(
        BadInput, match="nothing before the maps of LinearNet is trained, and they are compared by their gradients; set local_maps"
    ):
        build_world(Experiment(FedGCA(), tiny, "c", network=lambda: LinearNet(192, 3)))
