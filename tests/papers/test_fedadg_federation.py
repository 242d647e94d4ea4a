"""FedADG between the clients: who is averaged, what is kept, what stands in its way, and whether the alignment aligns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import tiny_classification
from unseen import BadInput, Experiment, FedADG
from unseen.data.domain import DomainDataset
from unseen.engines import local
from unseen.engines.local import LocalEngine
from unseen.errors import NoReplies, RefusedReply
from unseen.experiment import departures, read_experiment
from unseen.method import Refused, Replies
from unseen.methods.fedadg import Kept, Server, Up
from unseen.ops.adversarial import draw_reference, one_hot
from unseen.parts.adversaries import WarmedSGD
from unseen.parts.aggregation import Aggregate, Mean
from unseen.payload import refuse_unusable
from unseen.runs.watch import Silent
from unseen.training import train
from unseen.world import build_world

QUICK = {"lr_f": 0.1, "lr_g": 0.02, "lr_d": 0.02, "classification_epochs": 1, "alignment_epochs": 3}


class Answers:
    """A cohort whose clients answer with these numbers; None for no usable answer."""

    def __init__(self, **numbers: float | None) -> None:
        self.numbers = numbers

    @property
    def names(self) -> list[str]:
        return sorted(self.numbers)

    def ask(self, task: Any, down: Any) -> Replies[Any]:
        def stream() -> Iterator[tuple[str, Up | Refused]]:
            for name, v in self.numbers.items():
                state = {"w": torch.tensor([v or 0.0])}
                critic = {"w": 100 * state["w"]} if down.discriminator else None
                up = Up(model=state, generator={"w": 10 * state["w"]}, discriminator=critic, samples=int(v or 0), perturbed=None)
                yield name, Refused("late") if v is None else up

        return Replies(stream())


def test_step_s3_is_the_plain_mean_of_those_who_answered() -> None:
    state = Server(Aggregate({"w": torch.zeros(1)}), {"w": torch.zeros(1)})
    for answers, expected in ((Answers(a=1.0, b=4.0), 2.5), (Answers(a=1.0, b=None, c=4.0), 2.5)):
        after = FedADG().round(state, answers)
        assert after.generator is not None
        assert after.task.model["w"].item() == expected and after.generator["w"].item() == 10 * expected
    with pytest.raises(NoReplies):
        FedADG().round(state, Answers(a=None))
    weighed = FedADG(aggregation=Mean()).round(state, Answers(a=1.0, b=None, c=4.0))  # with as many samples as their numbers
    assert weighed.generator is not None
    assert weighed.task.model["w"].item() == pytest.approx(17 / 5) and weighed.generator["w"].item() == pytest.approx(34)
    assert weighed.discriminator is None


def test_a_shared_discriminator_is_averaged_like_the_generator() -> None:
    state = Server(Aggregate({"w": torch.zeros(1)}), {"w": torch.zeros(1)}, {"w": torch.zeros(1)})
    after = FedADG(discriminators="shared").round(state, Answers(a=1.0, b=None, c=4.0))
    assert after.discriminator is not None and after.discriminator["w"].item() == 250


def test_a_client_whose_answer_is_refused_keeps_the_discriminator_it_had(
    tiny: DomainDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = FedADG(**QUICK)
    world = build_world(Experiment(method, tiny, "c"))
    engine = LocalEngine(world, tmp_path)
    state = method.round(method.start(world.fresh, engine.cohort(0)), engine.cohort(1))
    before = dict(engine.memory.versions)
    answers = iter([False, True])

    def refuse_the_second(payload: Any, declared: Any) -> None:
        refuse_unusable(payload, declared)
        if next(answers):
            raise RefusedReply("broken on the way")

    monkeypatch.setattr(local, "refuse_unusable", refuse_the_second)
    cohort = engine.cohort(2)
    method.round(state, cohort)
    assert cohort.missing.keys() == {"b"}
    assert engine.memory.versions["a"] != before["a"] and engine.memory.versions["b"] == before["b"]
    assert engine.memory.recall("b", Kept) is not None


@pytest.mark.parametrize(
    ("preset", "of_task", "of_critic"),
    [
        ("released", [1, 1, 1, 2, 4, 5, 6, 7, 8, 9], [1, 1, 2, 3, 4, 5, 6]),
        ("released-vlcs", [1, 1, 1, 2, 3, 4, *range(6, 15)], [1, *range(1, 10)]),
    ],
)
def test_the_released_warm_up_never_ends(monkeypatch: pytest.MonkeyPatch, preset: str, of_task: list[int], of_critic: list[int]) -> None:
    """The learning rates of one round: 100 or 500 epochs of warm-up, of which a round has ten or fifteen."""
    sizes = {"noise": 4, "discriminator_width": 4, "lr_g": 0.5}
    method: Any = read_experiment({"method": "fedadg", "preset": preset, "set": sizes}).method
    seen: dict[float, list[float]] = {method.lr_f: [], method.lr_d: [], method.lr_g: []}
    original = WarmedSGD.set_rate

    def spy(self: Any, client: Any, optimizer: Any, lr: float, epochs: int) -> None:
        original(self, client, optimizer, lr, epochs)
        seen[lr].append(optimizer.param_groups[0]["lr"])

    monkeypatch.setattr(WarmedSGD, "set_rate", spy)
    train(Experiment(method, tiny_classification((12, 9)), "b", rounds=1), None, watch=Silent())
    for lr, counts in ((method.lr_f, of_task), (method.lr_d, of_critic), (method.lr_g, of_critic)):
        assert seen[lr] == pytest.approx([count * lr / method.warm_up for count in counts], rel=0.1)


@pytest.mark.parametrize(
    ("preset", "values"),
    [
        ("paper", (0.85, 0.15, 0.001, 0.0007, 0.0007, 3, 7, 16, 0.1, 1.0, 30, "jigen", 0.3)),
        ("paper-vlcs", (0.85, 0.15, 0.01, 0.007, 0.007, 3, 7, 16, 0.1, 1.0, 30, "jigen", 0.3)),
        ("paper-office-home", (0.85, 0.15, 0.05, 0.007, 0.001, 3, 7, 16, 0.1, 1.0, 30, "jigen", 0.3)),
        ("released", (0.15, 0.85, 0.01, 0.007, 0.007, 3, 7, 10, 0.01, 0.7, 30, "fedadg-released", 0.1)),
        ("released-vlcs", (0.15, 0.85, 0.001, 0.0, 0.0007, 5, 10, 16, 0.2, 0.6, 20, "fedadg-released", 0.3)),
    ],
)
def test_presets_are_the_papers_and_the_released_numbers(tiny: DomainDataset, preset: str, values: tuple[Any, ...]) -> None:
    e = read_experiment({"method": "fedadg", "preset": preset})
    m: Any = e.method
    own = (m.lambda0, m.lambda1, m.lr_f, m.lr_g, m.lr_d, m.classification_epochs, m.alignment_epochs, m.batch, m.smoothing, m.one_hot)
    assert (*own, e.rounds, e.augment, e.validation) == values
    told = departures(e, tiny)
    assert ("order" in told) == preset.startswith("released") and (told == {}) == (preset == "paper")


def test_what_stands_in_its_way_is_told_before_round_1(tiny: DomainDataset, tiny_masks: DomainDataset) -> None:
    cases: list[tuple[dict[str, Any], DomainDataset, str]] = [
        ({}, tiny_masks, "does classification"),
        ({}, tiny_classification(classes=1), "at least 2"),
        ({"projected": 16}, tiny, "from 16 features to 16"),
    ]
    for values, data, message in cases:
        with pytest.raises(BadInput, match=message):
            build_world(Experiment(FedADG(**values), data, "c"))
    build_world(Experiment(FedADG(projected=15), tiny, "c"))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"classification_epochs": 0, "alignment_epochs": 0}, "nothing would be trained"),
        ({"keep_momentum": True}, "momentum is 0"),
        ({"projection": "none", "projected": 8}, "projection is none"),
        ({"adversary": False, "reference": "normal"}, "adversary is false"),
        ({"adversary": False, "discriminators": "shared"}, "none to share"),
        ({"reference": "gaussian"}, "reference is 'gaussian'"),
        ({"lambda0": -0.1}, "at least 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        FedADG(**values)


def test_it_trains_in_half_precision(tiny: DomainDataset) -> None:
    result = train(Experiment(FedADG(**QUICK), tiny, "c", rounds=1, precision="bf16"), None, watch=Silent())
    assert all(v.isfinite().all() for v in result.state.values()) and not result.records[0]["missing"]


def certainty(folder: Path, rounds: int = 4, **values: Any) -> float:
    """How far the clients' discriminators end from 1/2, on the clients' own samples and as many generated ones."""
    data = tiny_classification((60, 60, 20))
    method = FedADG(**QUICK, **values)
    world = build_world(Experiment(method, data, "c"))
    engine = LocalEngine(world, folder)
    state = method.start(world.fresh, engine.cohort(0))
    for number in range(1, rounds + 1):
        state = method.round(state, engine.cohort(number))
    net, generator, critic = (world.builders[role]().eval() for role in ("task", "generator", "discriminator"))
    net.load_state_dict(method.model(state))
    generator.load_state_dict(state.generator or {})
    apart = []
    for client, holding in world.holdings.items():
        kept = engine.memory.recall(client, Kept)
        assert kept is not None
        critic.load_state_dict(kept.discriminator)
        images, labels = holding.train.take(torch.arange(len(holding.train)))
        label, z = one_hot(labels, 3, 1.0), draw_reference("generated", len(labels), 16, torch.Generator().manual_seed(0))
        with torch.no_grad():
            scores = torch.cat([critic(net(images.float() / 255, full=True).features, label), critic(generator(z, label), label)])
        apart.append(float((scores - 0.5).abs().mean()))
    return sum(apart) / len(apart)


@pytest.mark.parametrize("form", [("paper", "paper"), ("lsgan", "adversarial")])
def test_alignment_leaves_the_discriminator_undecided(tmp_path: Path, form: tuple[str, str]) -> None:
    losses = {"discriminator_loss": form[0], "generator_loss": form[1]}
    aligned, free = (certainty(tmp_path / str(weight), lambda0=weight, **losses) for weight in (0.85, 0.0))
    assert aligned < 0.75 * free
