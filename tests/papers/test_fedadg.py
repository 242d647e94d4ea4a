"""FedADG's client update, worked out again from Algorithm 1, and the checks that tell it from a look-alike."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cases import Case, own
from unseen import Experiment, FedADG, FedAvg
from unseen.data.domain import DomainDataset
from unseen.engines.tasks import Place, TaskRunner
from unseen.methods.fedadg import Down, Kept, Up
from unseen.ops import adversarial as ops
from unseen.parts.aggregation import Uniform
from unseen.parts.views import RandConv
from unseen.randomness import generator as seeded
from unseen.runs.memory import MemoryStore
from unseen.runs.watch import Silent
from unseen.state import State, same_bits, state_of
from unseen.training import train
from unseen.world import World, build_world

FEDADG = {"lr_f": 0.05, "lr_g": 0.01, "lr_d": 0.01, "classification_epochs": 1, "alignment_epochs": 2, "batch": 8}
TINY = {
    "fedadg": Case("fedadg", FEDADG, rounds=4, leaves="train.generator train.model"),
    "fedadg-released": Case(
        "fedadg",
        {**own("fedadg", "released"), **FEDADG, "noise": 8, "discriminator_width": 8, "lr_f": 0.02, "warm_up": 4},
        rounds=4,
        leaves="train.generator train.model",
    ),
    "fedadg-laplace": Case("fedadg", {**FEDADG, "reference": "laplace"}, rounds=4, leaves="train.model"),
    "fedadg-shared+randconv": Case(
        "fedadg",
        {
            **FEDADG,
            "alignment_epochs": 1,
            "class_wise": False,
            "projection": "none",
            "discriminators": "shared",
            "momentum": 0.5,
            "keep_momentum": True,
            "views": RandConv(copies=1),
        },
        leaves="train.discriminator train.generator train.model",
    ),
    "fedadg-no-gd": Case("fedadg", {**FEDADG, "adversary": False}, rounds=4, leaves="train.model"),
    "fedadg-mini-batches": Case(
        "fedadg",
        {**FEDADG, "classification_epochs": 3, "alignment_epochs": 7, "epoch": "batch"},
        rounds=5,
        leaves="train.generator train.model",
    ),
}


@dataclass
class Bench:
    """One client's task with everything that goes in and comes out."""

    world: World
    memory: MemoryStore

    def run(self, down: Down, client: str = "a", number: int = 1) -> Up:
        task = self.world.experiment.method.train  # type: ignore[attr-defined]
        up, staged = TaskRunner(self.world).run(task, down, client, Place(number, 1), self.memory)
        self.memory.commit(client, staged)
        assert isinstance(up, Up)
        return up

    def down(self, critic: State | None = None) -> Down:
        return Down(model=self.world.fresh("task"), generator=self.world.fresh("generator"), discriminator=critic)

    def keep(self, momentum: float | None = None, client: str = "a") -> Kept:
        """Give the client a discriminator, and momentum for it."""
        torch.manual_seed(5)
        net = self.world.builders["discriminator"]()
        speed = {} if momentum is None else {f"{n}.momentum_buffer": torch.full_like(w, momentum) for n, w in enumerate(net.parameters())}
        kept = Kept(discriminator=state_of(net), momentum=speed)
        self.memory.commit(client, {"Kept": self.memory.stage(client, kept, "start")})
        return kept

    def kept(self, client: str = "a") -> Kept:
        kept = self.memory.recall(client, Kept)
        assert kept is not None
        return kept


def bench(data: DomainDataset, folder: Path, **values: Any) -> Bench:
    return Bench(build_world(Experiment(FedADG(**values), data, "c")), MemoryStore(folder))


def mlp(state: State, x: Tensor, leak: float) -> Tensor:
    """Two layers with a ReLU between, leaking in the released form, from the numbers alone."""
    hidden = x @ state["fc1.weight"].T + state["fc1.bias"]
    return torch.where(hidden > 0, hidden, leak * hidden) @ state["fc2.weight"].T + state["fc2.bias"]


def judge(state: State, h: Tensor, label: Tensor, leak: float) -> Tensor:
    return 1 / (1 + torch.exp(-mlp(state, torch.cat([h @ state["project.matrix"], label], 1), leak)[:, 0]))


def dream(state: State, z: Tensor, label: Tensor, leak: float) -> Tensor:
    return mlp(state, torch.cat([z, label], 1), leak).clamp(min=0)


def moved(state: State, loss: Tensor, leaves: State, lr: float, speed: State | None = None) -> State:
    grads = dict(zip(leaves, torch.autograd.grad(loss, [*leaves.values()]), strict=True))
    if speed:
        grads = {n: 0.5 * speed[n] + g for n, g in grads.items()}
    return {**state, **{n: (leaves[n] - lr * g).detach() for n, g in grads.items()}}


def leaves_of(state: State) -> State:
    return {n: v.clone().requires_grad_() for n, v in state.items() if n not in ("project.matrix",)}


class ByHand:
    """Steps c5, c7 and c8 on one batch, with Eq. 2 to 5 written out; with a view, on the images and their negatives."""

    def __init__(self, b: Bench, down: Down, kept: Kept) -> None:
        self.method: Any = b.world.experiment.method
        self.net = b.world.builders["task"]()
        self.net.load_state_dict(down.model)
        assert down.generator is not None
        self.g, self.d = dict(down.generator), dict(kept.discriminator)
        names = [name for name, _ in b.world.builders["discriminator"]().named_parameters()]
        self.speed = {name: kept.momentum[f"{n}.momentum_buffer"] for n, name in enumerate(names) if kept.momentum}
        rng = seeded(0, "draws", 1, 1, "a")
        images, self.y = b.world.holdings["a"].train.take(torch.randperm(36, generator=rng))
        self.x = images.float() / 255
        if self.method.views:
            self.x, self.y = torch.cat([self.x, 1 - self.x]), self.y.repeat(2)
        self.z = torch.rand(len(self.x), 16, generator=rng)  # the small network has 16 features
        self.label = torch.eye(3)[self.y] * self.method.one_hot
        self.leak = 0.2 if self.method.order == "d-fc-g" else 0.0

    def fc(self) -> None:
        out = self.net(self.x, full=True)
        smooth = torch.full_like(out.logits, 0.1 / 3).scatter_(1, self.y[:, None], 0.9 + 0.1 / 3)
        error = -(smooth * out.logits.log_softmax(1)).sum(1).mean()
        if self.method.views:
            one, other = out.logits.softmax(1).chunk(2)
            average = (one + other) / 2
            error = error + 3.0 * sum((view * (view / average).log()).sum(1).mean() for view in (one, other))
        fooled = ((1 - judge(self.d, out.features, self.label, self.leak)) ** 2).mean()  # Eq. 3
        grads = torch.autograd.grad(0.85 * fooled + 0.15 * error, [*self.net.parameters()])
        for weight, grad in zip(self.net.parameters(), grads, strict=True):
            weight.data -= 0.1 * grad

    def discriminator(self) -> None:
        with torch.no_grad():
            self.net.train(self.method.extract == "training")
            h = self.net(self.x, full=True).features
            self.net.train()
        leaves = leaves_of(self.d)
        both = {**self.d, **leaves}
        of_h = judge(both, h, self.label, self.leak)
        of_ref = judge(both, dream(self.g, self.z, self.label, self.leak), self.label, self.leak)
        printed = -(((1 - of_h) ** 2).mean() + (of_ref**2).mean())  # Eq. 2
        released = ((1 - of_ref) ** 2).mean() + (of_h**2).mean()
        self.d = moved(self.d, printed if self.method.discriminator_loss == "paper" else released, leaves, 0.3, self.speed)

    def generator(self) -> None:
        leaves = leaves_of(self.g)
        score = judge(self.d, dream(leaves, self.z, self.label, self.leak), self.label, self.leak)
        printed, released = ((1 - score) ** 2).mean(), (score**2).mean()  # Eq. 4
        self.g = moved(self.g, printed if self.method.generator_loss == "paper" else released, leaves, 0.7)


ONE_STEP = {"lr_f": 0.1, "lr_d": 0.3, "lr_g": 0.7, "classification_epochs": 0, "alignment_epochs": 1, "batch": 36}
RELEASED = {
    "order": "d-fc-g", "extract": "evaluation", "one_hot": 0.7, "discriminator_loss": "lsgan", "generator_loss": "adversarial",
    "leak": 0.2,
}  # fmt: skip


@pytest.mark.parametrize(("values", "momentum"), [({}, None), (RELEASED, None), ({"momentum": 0.5, "keep_momentum": True}, 0.2)])
def test_one_alignment_step_by_hand(tiny: DomainDataset, tmp_path: Path, values: dict[str, Any], momentum: float | None) -> None:
    b = bench(tiny, tmp_path, **ONE_STEP, **values)
    down, kept = b.down(), b.keep(momentum)
    up = b.run(down)
    hand = ByHand(b, down, kept)
    for step in (hand.discriminator, hand.fc) if values.get("order") else (hand.fc, hand.discriminator):
        step()
    hand.generator()
    assert up.generator is not None
    for name, value in hand.net.state_dict().items():
        assert torch.allclose(up.model[name], value, atol=1e-6), name
    for got, expected in ((b.kept().discriminator, hand.d), (up.generator, hand.g)):
        assert got.keys() == expected.keys()
        assert all(torch.allclose(got[name], expected[name], atol=1e-6) for name in got)
    changed = [n for n in kept.discriminator if not torch.equal(kept.discriminator[n], b.kept().discriminator[n])]
    assert sorted(changed) == ["fc1.bias", "fc1.weight", "fc2.bias", "fc2.weight"]  # the projection is fixed
    assert (b.kept().momentum != {}) == bool(momentum)


def test_a_shared_discriminator_goes_on_from_the_servers_and_leaves(tiny: DomainDataset, tmp_path: Path) -> None:
    """The same step by hand from the D that was sent; the client keeps nothing of it."""
    b = bench(tiny, tmp_path, **ONE_STEP, discriminators="shared")
    torch.manual_seed(5)
    sent = Kept(discriminator=state_of(b.world.builders["discriminator"]()), momentum={})
    down = b.down(sent.discriminator)
    up, hand = b.run(down), ByHand(b, down, sent)
    for step in (hand.fc, hand.discriminator, hand.generator):
        step()
    assert up.discriminator is not None and up.generator is not None and b.memory.recall("a", Kept) is None
    assert up.discriminator.keys() == hand.d.keys() and not torch.equal(up.discriminator["fc1.weight"], sent.discriminator["fc1.weight"])
    assert all(torch.allclose(up.discriminator[name], hand.d[name], atol=1e-6) for name in hand.d)
    assert all(torch.allclose(up.generator[name], hand.g[name], atol=1e-6) for name in hand.g)


def test_views_are_classified_and_aligned_with_the_labels_of_their_images(
    tiny: DomainDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RandConv, "views", lambda self, x, rng: torch.cat([x, 1 - x]))
    b = bench(tiny, tmp_path, **ONE_STEP, views=RandConv(copies=1, weight=3.0, consistency="kl"))
    down, kept = b.down(), b.keep()
    up, hand = b.run(down), ByHand(b, down, kept)
    for step in (hand.fc, hand.discriminator, hand.generator):
        step()
    assert up.generator is not None
    for got, expected in ((up.model, hand.net.state_dict()), (b.kept().discriminator, hand.d), (up.generator, hand.g)):
        assert all(torch.allclose(got[name], expected[name], atol=1e-6) for name in got)


@pytest.mark.parametrize("adversary", [True, False])
def test_without_alignment_it_is_label_smoothed_fedavg_to_the_bit(tiny: DomainDataset, adversary: bool) -> None:
    views = None if adversary else RandConv(copies=1)
    method = FedADG(lambda0=0.0, classification_epochs=2, alignment_epochs=0, batch=8, lr_f=0.05, adversary=adversary, views=views)
    one = train(Experiment(method, tiny, "c", rounds=2, augment="jigen"), None, watch=Silent())
    fedavg = FedAvg(epochs=2, batch=8, optimizer="sgd", lr=0.05, smoothing=0.1, aggregation=Uniform(), views=views)
    two = train(Experiment(fedavg, tiny, "c", rounds=2, augment="jigen"), None, watch=Silent())
    assert same_bits(one.state, two.state)


def test_without_generator_and_discriminator_the_alignment_epochs_classify_with_lambda1(tiny: DomainDataset, tmp_path: Path) -> None:
    """Half the loss is half the learning rate."""
    half = bench(tiny, tmp_path, adversary=False, lambda1=0.5, lr_f=0.1, classification_epochs=0, alignment_epochs=2)
    whole = bench(tiny, tmp_path, adversary=False, lr_f=0.05, classification_epochs=2, alignment_epochs=0)
    down = Down(model=half.world.fresh("task"), generator=None, discriminator=None)
    one, two = half.run(down), whole.run(down)
    assert one.generator is None and half.memory.recall("a", Kept) is None and set(half.world.builders) == {"task"}
    assert all(torch.allclose(one.model[name], two.model[name], atol=1e-5) for name in one.model)


def test_the_generator_learns_unless_its_learning_rate_is_zero(tiny: DomainDataset, tmp_path: Path) -> None:
    for lr_g, warm_up, learns in ((0.1, 0, True), (0.0, 0, False), (0.0, 5, False)):
        b = bench(tiny, tmp_path, lr_g=lr_g, warm_up=warm_up, classification_epochs=0, alignment_epochs=1)
        down = b.down()
        up = b.run(down)
        assert down.generator is not None and up.generator is not None
        moved = [n for n in down.generator if not torch.equal(down.generator[n], up.generator[n])]
        assert (set(moved) == set(down.generator)) == learns and (learns or not moved)


def test_exactly_f_c_and_g_are_uploaded_and_every_client_has_a_discriminator_of_its_own(tiny: DomainDataset, tmp_path: Path) -> None:
    b = bench(tiny, tmp_path, classification_epochs=0, alignment_epochs=1)
    ups = {client: b.run(b.down(), client) for client in ("a", "b")}
    assert all(up.model.keys() == b.world.fresh("task").keys() for up in ups.values())
    assert all(
        up.generator is not None and set(up.generator) == {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"} for up in ups.values()
    )
    first, second = (b.kept(client).discriminator["project.matrix"] for client in ("a", "b"))
    assert first.shape == (16, 4) and not torch.equal(first, second)
    b.run(b.down(), "a", number=2)
    assert torch.equal(b.kept("a").discriminator["project.matrix"], first)  # the same one in every round


@pytest.mark.parametrize(("epoch", "batches"), [("pass", 3 * 5 + 7 * 5), ("batch", 3 + 7)])
def test_an_epoch_is_a_pass_or_a_mini_batch(
    tiny: DomainDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epoch: str, batches: int
) -> None:
    sizes: list[int] = []
    original = ops.smoothed_cross_entropy

    def spy(logits: Tensor, *rest: Any) -> Tensor:
        sizes.append(len(logits))
        return original(logits, *rest)

    monkeypatch.setattr(ops, "smoothed_cross_entropy", spy)
    b = bench(tiny, tmp_path, epoch=epoch, batch=8)
    b.run(b.down())
    assert len(sizes) == batches and sum(sizes) == (360 if epoch == "pass" else 80)  # 36 samples: four batches of 8 and one of 4


def test_fixed_references_are_what_the_discriminator_sees(tiny: DomainDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []
    b = bench(tiny, tmp_path, reference="uniform", projection="none", classification_epochs=0, alignment_epochs=1, batch=36)
    critic = type(b.world.builders["discriminator"]())
    forward = critic.forward

    def spy(self: Any, features: Tensor, label: Tensor) -> Tensor:
        seen.append(features.detach())
        return forward(self, features, label)

    monkeypatch.setattr(critic, "forward", spy)
    start: Any = b.world.experiment.method.start(b.world.fresh, Any)  # type: ignore[arg-type]
    up = b.run(Down(model=start.task.model, generator=start.generator, discriminator=start.discriminator))
    assert up.generator is None and len(seen) == 3  # h for F; h and h' for D
    assert seen[2].shape == (36, 16) and seen[2].min() < -0.5 and seen[2].max() > 0.5 and seen[2].abs().max() <= 1
    assert seen[0].min() >= 0  # features come after a ReLU


def test_without_one_hot_neither_generator_nor_discriminator_reads_the_label(tiny: DomainDataset) -> None:
    with_label, without = (build_world(Experiment(FedADG(class_wise=v), tiny, "c")).builders for v in (True, False))
    for role, wide, narrow in (("generator", 16 + 3, 16), ("discriminator", 4 + 3, 4)):
        assert with_label[role]().fc1.in_features == wide and without[role]().fc1.in_features == narrow  # type: ignore[union-attr]
