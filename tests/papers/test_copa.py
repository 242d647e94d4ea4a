"""COPA: its local step written out, its server by hand, FedAvg inside it, and the ensemble that is deployed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cases import Case
from one_client import batch_of, client_of, images
from unseen import BadInput, Experiment, FedAvg
from unseen.data.domain import DomainDataset
from unseen.deploy import export, load_model
from unseen.engines.local import LocalEngine
from unseen.federation.sums.summable import refusals
from unseen.methods.copa import COPA, Down
from unseen.networks.base import Outputs, TaskNet
from unseen.networks.headed import EnsembleHead
from unseen.parts.adjusting import GA
from unseen.parts.aggregation import SHA
from unseen.parts.robust import NormBound
from unseen.parts.server_optimizers import MomentumServer
from unseen.runs.watch import Silent
from unseen.state import State, same_bits, state_of
from unseen.training import train
from unseen.world import build_world

TINY = {
    "copa": Case("copa", {"lr": 0.02, "batch": 8, "heads": 3}, leaves="train.model train.samples"),
    "copa-masks": Case("copa", {"lr": 0.02, "batch": 4, "heads": 2}, "segmentation", 4, 0.5, leaves="train.model train.samples"),
}


class TwoLayers(TaskNet):
    """F is one matrix; three heads read it."""

    def __init__(self) -> None:
        super().__init__()
        self.feature_size = 5
        self.look = nn.Linear(4, 5, bias=False)
        self.out = EnsembleHead(nn.Linear(5, 3), 3)

    def forward(self, x: Tensor, full: bool = False) -> Tensor | Outputs:
        features = self.look(x.flatten(1))
        return Outputs(self.out(features), features, (x,)) if full else self.out(features)

    def head(self) -> nn.Module:
        return self.out


def drawn() -> State:
    torch.manual_seed(3)
    return {name: torch.randn_like(value) for name, value in state_of(TwoLayers()).items()}


def test_a_step_descends_the_losses_through_every_head_and_moves_its_own_alone() -> None:
    """d/dz CE = (softmax - one-hot) / n; through head j it reaches F as (softmax_j - one-hot) C_j."""
    domain, lr, weight = images(), 0.1, 0.7
    x, y = batch_of(domain)
    state = {**drawn(), "out.share": torch.tensor([1.0, 1.0, 0.0])}  # the third head is nobody's yet
    x, one_hot, f = x.flatten(1), F.one_hot(y, 3), state["look.weight"]
    errors = [((x @ f.T @ state[f"out.heads.{j}.weight"].T + state[f"out.heads.{j}.bias"]).softmax(1) - one_hot) / len(y) for j in range(3)]
    slope = (errors[1] @ state["out.heads.1.weight"] + weight * errors[0] @ state["out.heads.0.weight"]).T @ x
    method = COPA(weight=weight, lr=lr, optimizer="sgd", steps=1, batch=12, heads=3)
    up = method.train(Down(model=state, own=1), client_of(domain, TwoLayers)).model
    assert torch.allclose(up["look.weight"], f - lr * slope, atol=1e-6)
    assert torch.allclose(up["out.heads.1.weight"], state["out.heads.1.weight"] - lr * errors[1].T @ (x @ f.T), atol=1e-6)
    fixed = [name for name in up if name.startswith(("out.heads.0", "out.heads.2"))]
    assert len(fixed) == 4 and all(torch.equal(up[name], state[name]) for name in fixed)
    assert up["out.share"].tolist() == [1, 1, 0]


def test_the_server_averages_features_and_keeps_heads_apart(tiny: DomainDataset, tmp_path: Path) -> None:
    method = COPA(lr=0.02, batch=8, heads=3)
    world = build_world(Experiment(method, tiny, "c", rounds=2))
    engine, told = LocalEngine(world, tmp_path), []
    state = method.start(world.fresh, engine.cohort(0))
    assert state.model["fc.share"].tolist() == [0, 0, 0]
    for number, lost in ((1, frozenset({"b"})), (2, frozenset())):
        cohort, ask = engine.cohort(number), engine.cohort(number).ask

        def asked(task, down, ask=ask, lost=lost):  # type: ignore[no-untyped-def]
            replies = ask(task, {name: one for name, one in down.items() if name not in lost})
            everyone = replies.all()
            told.append(everyone)
            return type("Kept", (), {"all": lambda self: everyone})()

        cohort.ask = asked  # type: ignore[method-assign]
        before, state = state, method.round(state, cohort)
        for place, name in enumerate(("a", "b")):
            own = told[-1][name].model if name in told[-1] else before.model
            assert torch.equal(state.model[f"fc.heads.{place}.weight"], own[f"fc.heads.{place}.weight"])
        assert state.model["fc.share"].tolist() == ([1, 0, 0] if lost else [1, 1, 0])
    a, b = (told[1][name] for name in ("a", "b"))
    expected = (a.samples * a.model["conv1.weight"] + b.samples * b.model["conv1.weight"]) / (a.samples + b.samples)
    assert torch.allclose(state.model["conv1.weight"], expected, atol=1e-6)
    assert not torch.equal(state.model["fc.heads.0.weight"], state.model["fc.heads.1.weight"])


@pytest.mark.parametrize(
    "part", [{"bound": NormBound(largest=1e-3)}, {"server": MomentumServer()}, {"aggregation": GA()}, {"aggregation": SHA(rho=0.01)}]
)
def test_what_bounds_steps_or_weighs_does_so_to_f_alone(part: dict[str, Any], tiny: DomainDataset, tmp_path: Path) -> None:
    """The heads of a model that is scored are those of the ensemble, and none of their change is bounded or goes on as momentum."""
    method = COPA(lr=0.02, batch=8, heads=2, **part)
    world = build_world(Experiment(method, tiny, "c", rounds=2))
    engine, told, scored = LocalEngine(world, tmp_path), list[dict[str, State]](), list[State]()
    plain = engine.answers

    def noting(task: Any, downs: Any, place: Any, shared: bool) -> Any:
        if task == method.train:
            told.append({})
        else:  # the mean beside a client's own model, or another client's after a step uphill
            scored.extend(model for down in downs.values() for name, model in down.models.items() if name != "own")
        for name, answer in plain(task, downs, place, shared):
            if task == method.train:
                told[-1][name] = answer.model  # type: ignore[union-attr]
            yield name, answer

    engine.answers = noting  # type: ignore[method-assign]
    state = method.start(world.fresh, engine.cohort(0))
    for number in (1, 2):
        before, state = state, method.round(state, engine.cohort(number))
        assert all(torch.equal(state.model[f"fc.heads.{k}.weight"], told[-1][name][f"fc.heads.{k}.weight"]) for k, name in enumerate("ab"))
        for name, norm in state.numbers.get("norms", {}).items():
            of_f = [(told[-1][name][e] - before.model[e]).flatten() for e in world.entries("task").parameters if not e.startswith("fc.")]
            assert norm == pytest.approx(float(torch.cat(of_f).norm()), rel=1e-4)
        assert all(not moment.any() for kept in state.kept.values() for e, moment in kept.items() if e.startswith("fc."))
    if "aggregation" not in part:
        return
    if isinstance(method.aggregation, GA):
        assert len(scored) == 4 and same_bits(scored[-1], state.model), "what is scored is what is deployed"
    else:
        b_uphill = scored[-2]  # a assesses b's, in which a's head is as it is now
        assert torch.equal(b_uphill["fc.heads.0.weight"], told[-1]["a"]["fc.heads.0.weight"])
        assert not torch.equal(b_uphill["fc.heads.1.weight"], told[-1]["b"]["fc.heads.1.weight"])


def test_one_client_is_fedavg_to_the_bit(tiny: DomainDataset) -> None:
    one = train(Experiment(COPA(batch=9, lr=0.01, heads=1), tiny, "c", sources="a", rounds=2), None, watch=Silent()).state
    two = train(Experiment(FedAvg(batch=9, lr=0.01), tiny, "c", sources="a", rounds=2), None, watch=Silent()).state
    assert same_bits({name.replace("fc.heads.0", "fc"): value for name, value in one.items() if name != "fc.share"}, two)


def test_the_deployed_model_is_the_ensemble(tiny: DomainDataset, tmp_path: Path) -> None:
    method = COPA(lr=0.02, batch=8, heads=4)
    state = train(Experiment(method, tiny, "c", rounds=2), tmp_path / "run", watch=Silent()).state
    model = load_model(export(tmp_path / "run", rule="last", data=tiny))
    assert model.card.network == "small_cnn:width=4,heads=4" and state["fc.share"].tolist() == [1, 1, 0, 0]
    net = build_world(Experiment(FedAvg(), tiny, "c")).builders["task"]()
    each = []
    for number in range(2):
        plain = {name: value for name, value in state.items() if not name.startswith("fc.")}
        net.load_state_dict({**plain, "fc.weight": state[f"fc.heads.{number}.weight"], "fc.bias": state[f"fc.heads.{number}.bias"]})
        with torch.no_grad():
            each.append(net.eval()(torch.from_numpy(tiny["c"].images).float() / 255).softmax(1))
    torch.testing.assert_close(model.logits(tiny["c"].images).softmax(1), (each[0] + each[1]) / 2)


def test_what_does_not_fit_is_told_before_round_1(tiny: DomainDataset) -> None:
    with pytest.raises(BadInput, match="2 clients and room for 1 heads; set heads = 2"):
        build_world(Experiment(COPA(heads=1), tiny, "c"))
    with pytest.raises(BadInput, match="is one head; use a network by name"):
        build_world(Experiment(COPA(), tiny, "c", network=lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 3))))
    assert any("keeps each client's head apart" in why for why in refusals(COPA(), 3))
