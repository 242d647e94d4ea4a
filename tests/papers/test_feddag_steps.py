"""FedDAG over several batches, its gradients by finite differences, and the parts it takes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from one_client import batch_of, client_of, images
from unseen import BadInput, Classification, Experiment, FedAvg, FedDAG
from unseen.data.domain import DomainDataset
from unseen.methods.feddag import Down, Kept
from unseen.networks import ImageGenerator, TaskNet, build_network
from unseen.ops.mixstyle import mix_styles
from unseen.parts.aggregation import SHA, Mean, Uniform
from unseen.parts.mixstyle import MixStyle, mixing_of
from unseen.parts.sam import SAM
from unseen.parts.views import RandConv
from unseen.runs.watch import Silent
from unseen.state import State, same_bits
from unseen.training import train

CLASSES = Classification(("0", "1", "2"))


def task_net() -> TaskNet:
    return build_network("small_cnn:width=2", outputs=3, channels=1, size=(8, 8))


def image_generator() -> ImageGenerator:
    return ImageGenerator(1, 3)


def copied(net: nn.Module, scale: float = 1.0) -> State:
    return {k: v.detach() * scale if v.is_floating_point() else v.clone() for k, v in net.state_dict().items()}


class Momentum:
    """v = 0.9 v + (g + decay w), w = w - lr v, written out."""

    def __init__(self, net: nn.Module, lr: float, decay: float) -> None:
        self.weights, self.lr, self.decay = [*net.parameters()], lr, decay
        self.v = [torch.zeros_like(w) for w in self.weights]

    def step(self, loss: Tensor) -> list[Tensor]:
        grads = [*torch.autograd.grad(loss, self.weights)]
        with torch.no_grad():
            for w, v, g in zip(self.weights, self.v, grads, strict=True):
                v.mul_(0.9).add_(g + self.decay * w)
                w -= self.lr * v
        return grads


def nll(logits: Tensor, y: Tensor) -> Tensor:
    return torch.stack([row.logsumexp(0) - row[int(c)] for row, c in zip(logits, y, strict=True)]).mean()


def distances(f: Tensor, f_hat: Tensor) -> Tensor:
    return torch.stack([(a / a.norm() - b / b.norm()).pow(2).sum() for a, b in zip(f, f_hat, strict=True)])


@pytest.mark.parametrize(("regenerate", "rate"), [(True, None), (False, None), (True, 0.25)])
def test_three_batches_of_algorithm_1_with_momentum_and_weight_decay(regenerate: bool, rate: float | None) -> None:
    """14 images in batches of 5, so that the last gradient is of an incomplete batch; the generator moves far at every step.

    A quarter of learning rates that are four times as large is the same.
    """
    lr, g_lr, decay, alpha, m, ema, rho = 0.05, 0.5, 5e-2, 0.4, 0.05, 0.7, 0.02
    domain = images(samples=14, side=8, seed=3)
    torch.manual_seed(1)
    global_model, own, first = copied(task_net()), copied(task_net()), copied(image_generator(), 10)
    rates = {"lr": lr / (rate or 1), "generator_lr": g_lr / (rate or 1)}
    fields: dict[str, Any] = {"alpha": alpha, "m": m, "ema": ema, "weight_decay": decay, "batch": 5, **rates}
    method = FedDAG(**fields, width=3, regenerate=regenerate, aggregation=SHA(rho=rho, direction="last-batch"))
    client = client_of(domain, task_net, recall=lambda kind: Kept(teacher=own), generator=image_generator)
    up = method.train(Down(model=global_model, generator=first, student=None, rate=rate), client)

    teacher, student, g = task_net().eval(), task_net(), image_generator()
    for net, state in ((teacher, own), (student, global_model), (g, first)):
        net.load_state_dict(state)
    for_student, for_generator = Momentum(student, lr, decay), Momentum(g, g_lr, decay)
    everything, labels = batch_of(domain)
    order = torch.randperm(14, generator=torch.Generator().manual_seed(0))
    for rows in order.split(5):
        x, y = everything[rows], labels[rows]
        f = teacher(x, full=True).features.detach()
        before = (x + alpha * g(x)).detach()
        seen = student.eval()(x + alpha * g(x), full=True)
        for_generator.step(nll(seen.logits, y) - torch.stack([min(d, torch.tensor(m)) for d in distances(f, seen.features)]).mean())
        x_hat = (x + alpha * g(x)).detach() if regenerate else before
        seen, n = student.train()(torch.cat([x, x_hat]), full=True), len(x)
        both = (nll(seen.logits[:n], y) + nll(seen.logits[n:], y)) / 2
        grads = for_student.step(both + distances(f, seen.features[n:]).mean())
        follows = student.state_dict()
        for name, value in teacher.state_dict().items():
            value.copy_(ema * value + (1 - ema) * follows[name] if value.is_floating_point() else follows[name])

    assert up.generator is not None and up.perturbed is not None
    assert all(torch.allclose(up.generator[k], v, atol=2e-4) for k, v in g.state_dict().items())
    assert all(torch.allclose(up.teacher[k], v, atol=1e-4) for k, v in teacher.state_dict().items())
    norm = math.sqrt(sum(float(v.double().square().sum()) for v in grads))
    for (name, _), gradient in zip(student.named_parameters(), grads, strict=True):
        assert torch.allclose(up.perturbed[name] - up.teacher[name], rho * gradient / norm, atol=1e-4), name


def test_both_losses_by_finite_differences() -> None:
    """Eq. 1 to 4 with weights of their own, in float64: the values by loops over instances, the gradients by differences."""
    torch.manual_seed(0)
    net, g = task_net().double().eval(), ImageGenerator(1, 2).double()
    for w in g.parameters():
        w.data.mul_(8)
    x, y = torch.rand(5, 1, 8, 8, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1])
    f = torch.randn(5, net.feature_size, dtype=torch.float64)
    method = FedDAG(alpha=0.6, m=2.0, label_weight=0.7, discrepancy_weight=1.9, similarity_weight=0.4, smoothing=0.2)

    def by_loops(row: int, seen: Any) -> tuple[float, float]:
        """The smoothed cross entropy and the distance of an instance."""
        z = seen.logits[row].tolist()
        log_p = [v - math.log(sum(map(math.exp, z))) for v in z]
        a, b = f[row % 5].numpy(), seen.features[row].numpy()
        distance = float(np.square(a / np.linalg.norm(a) - b / np.linalg.norm(b)).sum())
        return -(0.8 * log_p[int(y[row % 5])] + 0.2 * sum(log_p) / 3), distance

    @torch.no_grad()
    def generators() -> float:
        seen = net(x + 0.6 * g(x), full=True)
        return sum(0.7 * label - 1.9 * min(distance, 2.0) for label, distance in (by_loops(i, seen) for i in range(5))) / 5

    @torch.no_grad()
    def students() -> float:
        clean, made = net(x, full=True), net(x + 0.6 * g(x), full=True)
        labels = [by_loops(i, seen)[0] for seen in (clean, made) for i in range(5)]
        return sum(labels) / 10 + 0.4 * sum(by_loops(i, made)[1] for i in range(5)) / 5

    for learner, value, loss in (
        (g, generators, method.generator_loss(net, CLASSES, f, x, g(x), y)),
        (net, students, method.student_loss(net, CLASSES, f, x, g(x).detach(), y)),
    ):
        assert float(loss.detach()) == pytest.approx(value(), rel=1e-9)
        weights = [*learner.parameters()]
        for w, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
            flat, at, step = w.data.view(-1), w.numel() // 2, 1e-6
            start, ends = float(flat[at]), []
            for moved in (start + step, start - step):
                flat[at] = moved
                ends.append(value())
            flat[at] = start
            assert float(gradient.flatten()[at]) == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-4, abs=1e-8)


def test_every_view_is_generated_from_and_all_are_bound_together() -> None:
    """Two views of three images, so twelve rows pass the student; its maps are mixed, its labels smoothed."""
    torch.manual_seed(2)
    net, task = task_net().double(), CLASSES
    x, y = torch.rand(6, 1, 8, 8, dtype=torch.float64), torch.tensor([2, 0, 1])
    p, f = torch.rand_like(x) - 0.5, torch.randn(6, net.feature_size, dtype=torch.float64)
    draws = mixing_of(MixStyle(p=1.0, alpha=1.0, stages=1), x, torch.Generator().manual_seed(0), list, times=2)
    method = FedDAG(alpha=0.5, smoothing=0.3, views=RandConv(copies=1, weight=0.7), mixstyle=MixStyle(p=1.0, stages=1))
    got = method.student_loss(net, task, f, x, p, y, *draws)

    seen = net.pool(net.relu(mix_styles(net.bn1(net.conv1(torch.cat([x, x + 0.5 * p]))), draws[0][0], draws[1][0])))
    maps = net.relu(net.bn3(net.conv3(net.pool(net.relu(net.bn2(net.conv2(seen)))))))
    features = net.pool(maps).flatten(1)
    log_p = net.fc(features).log_softmax(1)
    smooth = torch.full_like(log_p, 0.1).scatter_(1, y.repeat(4)[:, None], 0.8)
    views = log_p.exp().float().view(4, 3, 3)
    bond = sum(torch.nn.functional.binary_cross_entropy(views.mean(0), view) for view in views)
    want = -(smooth * log_p).sum(1).mean() + 0.7 * bond + distances(f, features[6:]).mean()
    assert float(got.detach()) == pytest.approx(float(want.detach()), rel=1e-6)

    plain = FedDAG(alpha=0.5, smoothing=0.3, m=4.0).generator_loss(net.eval(), task, f, x, p, y)
    made = net(x + 0.5 * p, full=True)
    label = -(smooth[:6] * made.logits.log_softmax(1)).sum(1).mean()
    assert float(plain.detach()) == pytest.approx(float((label - distances(f, made.features).mean()).detach()), rel=1e-6)


PARTS: dict[str, Any] = {"smoothing": 0.1, "views": RandConv(copies=1), "mixstyle": MixStyle(p=1.0), "sam": SAM(0.1)}
SETTINGS: dict[str, Any] = {"batch": 8, "lr": 0.05, "weight_decay": 5e-4}


def test_without_ndag_it_is_fedavg_with_the_same_parts(tiny: DomainDataset) -> None:
    one = train(Experiment(FedDAG(ndag=False, aggregation=Mean(), **SETTINGS, **PARTS), tiny, "c", rounds=2), None, watch=Silent())
    two = train(Experiment(FedAvg(optimizer="momentum", **SETTINGS, **PARTS), tiny, "c", rounds=2), None, watch=Silent())
    assert same_bits(one.state, two.state)


@pytest.mark.parametrize("part", PARTS)
def test_every_part_acts_where_images_are_generated(tiny: DomainDataset, part: str) -> None:
    settings: dict[str, Any] = {**SETTINGS, "warmup": 0, "width": 4, "ema": 0.5, "aggregation": Uniform()}
    plain, with_part = (
        train(Experiment(FedDAG(**settings, **taken), tiny, "c", rounds=1), None, watch=Silent()).state
        for taken in ({}, {part: PARTS[part]})
    )
    assert not same_bits(plain, with_part)


def test_perturbations_alone_need_a_generator() -> None:
    with pytest.raises(BadInput, match="ndag is off and nothing is generated"):
        FedDAG(ndag=False, train_on="perturbations")
