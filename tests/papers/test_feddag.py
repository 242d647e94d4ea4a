"""FedDAG against its equations and the checks that tell it from a look-alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import unseen.methods.feddag as module
from cases import Case
from conftest import tiny_classification
from unseen import BadInput, Experiment, FedAvg, FedDAG
from unseen.client import Batch, Client
from unseen.data.domain import DomainDataset
from unseen.engines.local import LocalEngine
from unseen.engines.tasks import Place, TaskRunner
from unseen.experiment import departures, read_experiment
from unseen.method import Refused, Replies
from unseen.methods.feddag import Down, Kept, Server, Up
from unseen.ops.discrepancy import discrepancy
from unseen.parts.aggregation import CEA, SHA, Mean, Uniform
from unseen.parts.local import Local
from unseen.parts.mixstyle import MixStyle
from unseen.parts.sam import SAM
from unseen.parts.views import RandConv
from unseen.payload import Nothing
from unseen.randomness import generator
from unseen.runs.memory import MemoryStore
from unseen.runs.watch import Silent
from unseen.state import State, same_bits, state_of
from unseen.training import train
from unseen.world import World, build_world

FEDDAG: dict[str, Any] = {"lr": 0.05, "batch": 8, "width": 4, "warmup": 1, "ema": 0.5}
TINY = {
    "feddag": Case(
        "feddag",
        {**FEDDAG, "aggregation": SHA(float64=True, k=2)},
        rounds=10,
        leaves="assess.losses train.generator train.perturbed train.teacher",
    ),
    "feddag-no-ndag": Case(
        "feddag",
        {**FEDDAG, "ndag": False, "aggregation": SHA(eps="sign", rho=1e-3)},
        leaves="assess.losses train.perturbed train.teacher",
    ),
    "feddag-no-sha": Case("feddag", {**FEDDAG, "aggregation": Mean()}, rounds=10, leaves="train.generator train.samples train.teacher"),
    "feddag-global-student": Case(
        "feddag",
        {**FEDDAG, "distribution": "global_student", "feature": "logits", "statistics": "copy", "rate_warmup": 2},
        leaves="assess.losses train.generator train.perturbed train.student train.teacher",
    ),
    "feddag-ats": Case(
        "feddag",
        {**FEDDAG, "task_loss": "generated", "head": "fixed", "distribution": "global_student", "aggregation": Mean()},
        leaves="train.generator train.samples train.student train.teacher",
    ),
    "feddag-sam": Case(
        "feddag",
        {**FEDDAG, "distribution": "copy", "sam": SAM(0.01), "aggregation": CEA(evaluators=1, own=True)},
        leaves="assess.losses train.generator train.teacher",
    ),
    "feddag-perturbations": Case(
        "feddag",
        {**FEDDAG, "warmup": 1, "train_on": "perturbations", "aggregation": Uniform()},
        reaches=None,
        leaves="train.generator train.teacher",
    ),
    "feddag+rc+mixstyle+sam": Case(
        "feddag",
        {**FEDDAG, "views": RandConv(copies=1), "mixstyle": MixStyle(), "sam": SAM(0.01), "smoothing": 0.1, "aggregation": Mean()},
        leaves="train.generator train.samples train.teacher",
    ),
}

SMALL: dict[str, Any] = {"width": 4, "warmup": 0, "batch": 64}


class Remembering(MemoryStore):
    """A client's memory with one thing in it."""

    def __init__(self, kept: State | None) -> None:
        super().__init__(Path("unused"))
        self._kept = kept

    def recall(self, client: str, kind: type[Any], device: Any) -> Any:
        return None if self._kept is None else Kept(teacher=self._kept)


def client_of(world: World, name: str = "a", kept: State | None = None) -> Client:
    caught: list[Client] = []

    def catch(down: Nothing, client: Client) -> Nothing:
        caught.append(client)
        return down

    TaskRunner(world).run(catch, Nothing(), name, Place(1, 1), Remembering(kept))
    caught[0].rng = generator(0)
    return caught[0]


def ask(method: FedDAG, data: DomainDataset, kept: State | None = None, student: State | None = None) -> tuple[Up, World]:
    world = build_world(Experiment(method, data, "c"))
    down = Down(model=world.fresh("task"), generator=world.fresh("generator"), student=student, rate=None)
    return method.train(down, client_of(world, kept=kept)), world


def other_weights(world: World) -> State:
    """A trained-looking model: other weights, and running statistics that are not the first ones."""
    state = world.fresh("task")
    draw = torch.Generator().manual_seed(5)
    return {k: v + 0.1 * torch.rand(v.shape, generator=draw) if v.is_floating_point() else v + 3 for k, v in state.items()}


def nll(logits: Tensor, y: Tensor) -> Tensor:
    return (logits.exp().sum(1).log() - logits[torch.arange(len(y)), y]).mean()


def distances(f: Tensor, f_hat: Tensor) -> Tensor:
    return torch.stack([(a / a.norm() - b / b.norm()).pow(2).sum() for a, b in zip(f, f_hat, strict=True)])


def descended(net: nn.Module, loss: Tensor, lr: float) -> list[Tensor]:
    """Plain SGD, by autograd alone; returns the gradient."""
    grads = [*torch.autograd.grad(loss, [*net.parameters()])]
    with torch.no_grad():
        for p, g in zip(net.parameters(), grads, strict=True):
            p -= lr * g
    return grads


def test_algorithm_1_worked_out_for_one_batch(tiny: DomainDataset) -> None:
    """Both steps, the teacher and the perturbed teacher, by autograd alone, from a teacher that differs from the student."""
    lr, m, alpha, ema, rho = 0.5, 0.28, 0.3, 0.8, 0.01
    method = FedDAG(
        **SMALL, lr=lr, m=m, alpha=alpha, ema=ema, optimizer="sgd", weight_decay=0.0, aggregation=SHA(rho=rho, direction="last-batch")
    )
    world = build_world(Experiment(method, tiny, "c"))
    kept = other_weights(world)
    up, _ = ask(method, tiny, kept)

    teacher, student, g = world.builders["task"]().eval(), world.builders["task"](), world.builders["generator"]()
    teacher.load_state_dict(kept)
    student.load_state_dict(world.fresh("task"))
    g.load_state_dict(world.fresh("generator"))
    images, y = world.holdings["a"].train.take(torch.randperm(36, generator=generator(0)))
    x = images.float() / 255
    f = teacher(x, full=True).features.detach()

    seen = student.eval()(x + alpha * g(x), full=True)  # step 1
    d = distances(f, seen.features)
    assert d.min() < m < d.max()  # the clip matters for some instances, not for all
    descended(g, nll(seen.logits, y) - torch.minimum(d, torch.tensor(m)).mean(), lr)

    x_hat = (x + alpha * g(x)).detach()  # step 2
    seen = student.train()(torch.cat([x, x_hat]), full=True)
    loss = nll(seen.logits[:36], y) / 2 + nll(seen.logits[36:], y) / 2 + distances(f, seen.features[36:]).mean()
    grads = descended(student, loss, lr)

    norm = torch.cat([v.flatten() for v in grads]).norm()
    for name, value in g.state_dict().items():
        assert up.generator is not None and torch.allclose(up.generator[name], value, atol=1e-5), name
    assert up.perturbed is not None
    buffers = dict(student.named_buffers())
    for name, value in student.state_dict().items():
        followed = ema * kept[name] + (1 - ema) * value if value.is_floating_point() else value
        assert torch.allclose(up.teacher[name], followed, atol=1e-5), name
        if name in buffers:
            assert torch.equal(up.perturbed[name], up.teacher[name])
    for (name, _), gradient in zip(student.named_parameters(), grads, strict=True):
        assert torch.allclose(up.perturbed[name] - up.teacher[name], rho * gradient / norm, atol=1e-6), name
    assert up.samples is None and up.student is None


def test_each_step_changes_its_own_network_alone(tiny: DomainDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    method = FedDAG(**{**SMALL, "batch": 9}, lr=0.1)
    world = build_world(Experiment(method, tiny, "c"))
    client = client_of(world)
    nets = {
        "teacher": client.build("task", other_weights(world)).eval(),
        "student": client.build("task", world.fresh("task")),
        "generator": client.build("generator", world.fresh("generator")),
    }
    learnt = []

    def spying(original: Callable[..., None]) -> Callable[..., None]:
        def spy(*args: Any, **kwargs: Any) -> None:
            before = {name: state_of(net) for name, net in nets.items()}
            original(*args, **kwargs)
            learnt.append([name for name, net in nets.items() if not same_bits(before[name], state_of(net))])

        return spy

    monkeypatch.setattr(module, "own_step", spying(module.own_step))
    monkeypatch.setattr(Local, "descend", spying(Local.descend))
    monkeypatch.setattr(module, "follow", spying(module.follow))
    step = method.ndag_step(nets["teacher"], nets["student"], nets["generator"], client, rate=1.0)
    for x, y in client.batches(size=9, epochs=1):
        step(x, y)
    assert learnt == [["generator"], ["student"], ["teacher"]] * 4  # running statistics included


def doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Client.batches

    def batches(self: Client, **settings: Any) -> Iterator[Batch]:
        return ((torch.cat([x, x]), torch.cat([y, y])) for x, y in original(self, **settings))

    monkeypatch.setattr(Client, "batches", batches)


def test_with_all_of_it_off_a_round_is_fedavg_on_doubled_batches(tiny: DomainDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    off = SHA(rho=0.0, k=0, beta=0.0)
    settings: dict[str, Any] = {"batch": 8, "lr": 0.05, "optimizer": "momentum", "weight_decay": 5e-4}
    method = FedDAG(alpha=0.0, ema=0.0, warmup=0, similarity_weight=0.0, width=4, aggregation=off, **settings)
    one = train(Experiment(method, tiny, "c", rounds=2), None, watch=Silent())
    doubled(monkeypatch)
    two = train(Experiment(FedAvg(aggregation=Uniform(), **settings), tiny, "c", rounds=2), None, watch=Silent())
    assert same_bits(one.state, two.state)


@pytest.mark.parametrize(
    "method", [FedDAG(ndag=False, batch=8, lr=0.05, aggregation=Mean()), FedDAG(warmup=2, batch=8, lr=0.05, aggregation=Mean())]
)
def test_without_ndag_and_in_warm_up_it_is_fedavg(tiny: DomainDataset, method: FedDAG) -> None:
    one = train(Experiment(method, tiny, "c", rounds=2), None, watch=Silent())
    plain = FedAvg(batch=8, lr=0.05, optimizer="momentum", weight_decay=5e-4)
    two = train(Experiment(plain, tiny, "c", rounds=2), None, watch=Silent())
    assert same_bits(one.state, two.state)


def test_scores_are_computed_in_warm_up_and_generation_begins_after_it(tiny: DomainDataset) -> None:
    records = train(Experiment(FedDAG(warmup=2, width=4, batch=8), tiny, "c", rounds=3), None, watch=Silent()).records
    sent = [{r["field"] for r in record["travelled"] if r["direction"] == "sent"} for record in records]
    assert sent == [{"teacher", "perturbed", "losses"}] * 2 + [{"teacher", "generator", "perturbed", "losses"}]
    assert all(set(r["notes"]["scores"]) == {"a", "b"} for r in records)


@pytest.mark.parametrize("distribution", ["student", "copy", "global_student"])
def test_who_gets_the_aggregate(tiny: DomainDataset, distribution: str) -> None:
    """With nothing learnt and the teacher kept still, what comes back is what the networks began with."""
    still: dict[str, Any] = {**SMALL, "lr": 0.0, "ema": 1.0, "weight_decay": 0.0}
    method = FedDAG(**still, distribution=distribution, aggregation=Uniform())  # type: ignore[arg-type]
    world = build_world(Experiment(method, tiny, "c"))
    own, global_student = other_weights(world), {k: v + 1 for k, v in world.fresh("task").items()}
    up, _ = ask(method, tiny, own, global_student if distribution == "global_student" else None)
    weights = [n for n, _ in world.builders["task"]().named_parameters()]
    expected = own if distribution == "student" else world.fresh("task")
    assert all(torch.equal(up.teacher[n], expected[n]) for n in weights)
    assert (up.student is not None) == (distribution == "global_student")
    assert up.student is None or all(torch.equal(up.student[n], global_student[n]) for n in weights)


class Lossy:
    """A cohort in which some answers get lost: (round, task, client)."""

    heard: ClassVar[dict[tuple[int, str], dict[str, Any]]] = {}

    def __init__(self, engine: LocalEngine, number: int, lost: set[tuple[int, str, str]]) -> None:
        self._cohort, self._number, self._lost = engine.cohort(number), number, lost
        self.names, self.entries, self.rng = self._cohort.names, self._cohort.entries, self._cohort.rng

    def ask(self, task: Any, down: Any) -> Replies[Any]:
        answers = self._cohort.ask(task, down).all()
        self.heard[self._number, task.__name__] = answers
        gone = {c for r, t, c in self._lost if (r, t) == (self._number, task.__name__)}
        return Replies(iter([(c, Refused("lost") if c in gone else a) for c, a in answers.items()]))


def rounds(data: DomainDataset, method: FedDAG, tmp_path: Any, lost: set[tuple[int, str, str]]) -> Iterator[Server]:
    world = build_world(Experiment(method, data, "c"))
    engine = LocalEngine(world, tmp_path)
    state = method.start(world.fresh, engine.cohort(0))
    for number in (1, 2, 3):
        state = method.round(state, Lossy(engine, number, lost))
        yield state


@pytest.mark.parametrize(("distribution", "stays"), [("student", True), ("copy", False)])
def test_the_teacher_goes_on_from_the_clients_own(tiny: DomainDataset, tmp_path: Any, distribution: str, stays: bool) -> None:
    """A decay of 1 keeps the teacher as it begins: a client's own from the warm-up round, or else the aggregate."""
    method = FedDAG(width=4, warmup=1, batch=8, lr=0.05, ema=1.0, distribution=distribution, aggregation=Uniform())  # type: ignore[arg-type]
    one, *_ = rounds(tiny, method, tmp_path, set())
    for name in "ab":
        first, second = (Lossy.heard[number, "train"][name].teacher["fc.weight"] for number in (1, 2))
        assert torch.equal(second, first) == stays
        assert torch.equal(second, one.teachers.model["fc.weight"]) != stays


def test_a_missing_client_waits_with_its_history_and_does_not_weigh(tiny: DomainDataset, tmp_path: Any) -> None:
    method = FedDAG(width=4, warmup=0, batch=8, lr=0.05)
    one, two, three = rounds(tiny, method, tmp_path, {(2, "train", "b")})
    assert set(one.teachers.weights) == {"a", "b"} and set(two.teachers.weights) == {"a"}
    assert two.teachers.numbers["scores"] == {}  # nobody was left to assess a
    assert two.teachers.history == one.teachers.history
    assert two.generator is not None and one.generator is not None and not same_bits(two.generator, one.generator)
    assert set(three.teachers.numbers["scores"]) == {"a", "b"} and len(three.teachers.history["b"]) == 2


def test_without_any_assessment_teachers_and_generators_weigh_the_same(tiny: DomainDataset, tmp_path: Any) -> None:
    method = FedDAG(width=4, warmup=0, batch=8, lr=0.05)
    *_, three = rounds(tiny, method, tmp_path, {(n, "assess", c) for n in (1, 2, 3) for c in "ab"})
    assert three.teachers.weights == {"a": 0.5, "b": 0.5} and three.teachers.history == {}


def test_generators_are_averaged_by_the_teachers_weights(tiny: DomainDataset) -> None:
    method = FedDAG(width=4, warmup=0, batch=8, lr=0.05, aggregation=Mean())
    world = build_world(Experiment(method, tiny, "c"))
    one = {"w": torch.tensor([1.0])}

    class Two:
        names = ["a", "b"]

        def ask(self, task: Any, down: Down) -> Replies[Any]:
            ups = [
                Up(teacher=one, generator={"g": torch.tensor([v])}, perturbed=None, student=None, samples=n)
                for v, n in ((2.0, 1), (6.0, 3))
            ]
            return Replies(iter(zip(self.names, ups, strict=True)))

    state = method.round(method.start(world.fresh, Two()), Two())
    assert state.generator == {"g": torch.tensor([5.0])}  # (1 x 2 + 3 x 6) / 4


def trained_task(data: DomainDataset) -> State:
    return train(Experiment(FedAvg(batch=8, lr=0.02), data, "c", rounds=6), None, watch=Silent()).state


def after_generation(data: DomainDataset, model: State, **settings: Any) -> tuple[float, float, float]:
    """Train the generator alone against a fixed network: discrepancy before and after, accuracy on what it makes."""
    chosen: dict[str, Any] = {"alpha": 0.5, "m": 0.1, "lr": 0.0, "ema": 1.0, "generator_lr": 0.05, "epochs": 40, "batch": 12, **settings}
    method = FedDAG(**{**SMALL, **chosen}, distribution="global_student", aggregation=Uniform(), weight_decay=0.0)
    world = build_world(Experiment(method, data, "c"))
    up = method.train(Down(model=model, generator=world.fresh("generator"), student=model, rate=None), client_of(world))
    assert up.student is not None
    teacher, student, g = world.builders["task"]().eval(), world.builders["task"]().eval(), world.builders["generator"]()
    teacher.load_state_dict(up.teacher)
    images, y = world.holdings["a"].train.take(torch.arange(36))
    x = images.float() / 255
    found = []
    with torch.no_grad():
        for state, seer in ((world.fresh("generator"), model), (up.generator, up.student)):
            g.load_state_dict(state)
            student.load_state_dict(seer)
            seen = student(x + method.alpha * g(x), full=True)
            found.append(float(discrepancy(teacher(x, full=True).features, seen.features).mean()))
            accuracy = float((seen.logits.argmax(1) == y).float().mean())
    return found[0], found[1], accuracy


def test_the_generator_raises_the_discrepancy_up_to_m_and_keeps_the_label(tiny: DomainDataset) -> None:
    model = trained_task(tiny)
    before, after, accuracy = after_generation(tiny, model)
    assert before < 0.01 and 0.05 < after < 0.2 and accuracy == 1.0
    _, unlimited, careless = after_generation(tiny, model, m=4.0, label_weight=0.0, alpha=1.0)
    assert unlimited > 2 * after  # m is what held it
    assert careless < 0.9  # and the label was kept by its loss


def test_options_change_the_loss_as_they_say(tiny: DomainDataset) -> None:
    world = build_world(Experiment(FedDAG(**SMALL), tiny, "c"))
    task, net = world.dataset.task, world.builders["task"]().eval()
    images, y = world.holdings["a"].train.take(torch.arange(6))
    x, p = images.float() / 255, torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    f = torch.rand(6, net.feature_size, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        clean, made, bare = net(x, full=True), net(x + 0.3 * p, full=True), net(0.3 * p)
    near = distances(f, made.features).mean()

    def student(**settings: Any) -> float:
        features = clean.logits if settings.get("feature") == "logits" else f
        return float(FedDAG(**SMALL, **settings).student_loss(net, task, features, x, p, y).detach())

    both = (nll(clean.logits, y) + nll(made.logits, y)) / 2
    assert student() == pytest.approx(float(both + near), rel=1e-5)
    assert student(similarity_weight=0.25) == pytest.approx(float(both + near / 4), rel=1e-5)
    assert student(task_loss="sum") == pytest.approx(float(2 * both + near), rel=1e-5)
    assert student(task_loss="generated") == pytest.approx(float(nll(made.logits, y) + near), rel=1e-5)
    assert student(feature="logits") == pytest.approx(float(both + distances(clean.logits, made.logits).mean()), rel=1e-5)
    assert student(train_on="perturbations") == pytest.approx(float(nll(bare, y)), rel=1e-5)
    weighed = FedDAG(**SMALL, label_weight=0.5, discrepancy_weight=2.0, m=4.0).generator_loss(net, task, f, x, p, y)
    assert float(weighed.detach()) == pytest.approx(float(0.5 * nll(made.logits, y) - 2 * near), rel=1e-5)


def test_sam_moves_the_student_alone(tiny: DomainDataset) -> None:
    plain, _ = ask(FedDAG(**SMALL, lr=0.1, ema=0.0), tiny)
    sharp, _ = ask(FedDAG(**SMALL, lr=0.1, ema=0.0, sam=SAM(0.1)), tiny)
    assert plain.generator is not None and sharp.generator is not None and same_bits(plain.generator, sharp.generator)
    assert not same_bits(plain.teacher, sharp.teacher)


def test_presets_and_what_stands_in_the_way(tiny: DomainDataset, tiny_masks: DomainDataset) -> None:
    paper = read_experiment({"method": "feddag", "preset": "paper"})
    method = paper.method
    assert isinstance(method, FedDAG) and isinstance(method.aggregation, SHA)
    assert (method.alpha, method.m, method.lr, method.batch, method.warmup, paper.rounds) == (0.3, 0.1, 1e-3, 32, 5, 35)
    assert (method.aggregation.beta, method.aggregation.k, method.aggregation.rho) == (0.3, 4, 1e-7)
    large = read_experiment({"method": "feddag", "preset": "paper-224"})
    assert (large.method.lr, large.method.batch, large.rounds, large.size) == (5e-3, 16, 50, 224)  # type: ignore[attr-defined]
    assert paper.size == 96 and departures(Experiment(FedDAG(), tiny, "c"), tiny)["size"] == [96, 8]  # MIDOG's own would be 128
    assert "size" not in departures(Experiment(FedDAG(), tiny_classification(side=96), "c"), tiny_classification(side=96))
    with pytest.raises(BadInput, match="there is one client"):
        build_world(Experiment(FedDAG(), tiny, "c", sources="a"))
    with pytest.raises(BadInput, match="validation samples"):
        build_world(Experiment(FedDAG(), tiny, "c", validation=0.0))
    with pytest.raises(BadInput, match="classification"):
        build_world(Experiment(FedDAG(), tiny_masks, "c"))
    build_world(Experiment(replace(FedDAG(), aggregation=Mean()), tiny, "c", sources="a"))
