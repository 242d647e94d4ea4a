"""Learning-rate schedules: the rates of torch's schedulers, in every method, over a resume, between sites and in a recorded step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR, StepLR

from federation_in_memory import FederationInMemory
from one_client import LinearNet, batch_of, client_of, images
from tiny_settings import SETTINGS
from unseen import SCAFFOLD, BadInput, Client, Experiment, FedAvg, FedDAG
from unseen.client import Pool
from unseen.data.domain import DomainDataset
from unseen.device.graphs import _rates
from unseen.experiment import read_experiment
from unseen.methods import METHODS
from unseen.methods.scaffold import Control, Steered
from unseen.ops.adversarial import warmed_up
from unseen.parts import parts_of
from unseen.parts.adversaries import WarmedSGD
from unseen.parts.schedules import Cosine, Schedule, Step, WarmUp
from unseen.runs.watch import Silent
from unseen.state import same_bits, state_of
from unseen.training import train

LR, ROUNDS = 0.3, 12


def rates_of(make: Callable[[torch.optim.Optimizer], LRScheduler]) -> list[float]:
    """What torch's scheduler gives in each round when it is stepped after every one."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=LR)
    scheduler, rates = make(optimizer), []
    for _ in range(ROUNDS):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step()
    return rates


def warmed(rounds: int, then: Callable[[torch.optim.Optimizer], LRScheduler]) -> Callable[[torch.optim.Optimizer], LRScheduler]:
    def make(optimizer: torch.optim.Optimizer) -> LRScheduler:
        first = LinearLR(optimizer, start_factor=1 / (rounds + 1), total_iters=rounds)
        return SequentialLR(optimizer, [first, then(optimizer)], milestones=[rounds])

    return make


@pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step")  # SequentialLR's own
@pytest.mark.parametrize(
    ("schedule", "theirs"),
    [
        (Cosine(), lambda o: CosineAnnealingLR(o, T_max=ROUNDS)),
        (Cosine(final=0.1), lambda o: CosineAnnealingLR(o, T_max=ROUNDS, eta_min=0.1 * LR)),
        (Cosine(warmup=3, final=0.2), warmed(3, lambda o: CosineAnnealingLR(o, T_max=ROUNDS - 3, eta_min=0.2 * LR))),
        (Step(every=5, gamma=0.3), lambda o: StepLR(o, step_size=5, gamma=0.3)),
        (Step(every=1, gamma=0.9), lambda o: torch.optim.lr_scheduler.ExponentialLR(o, gamma=0.9)),
        (Step(every=4, gamma=0.5, warmup=2), warmed(2, lambda o: StepLR(o, step_size=4, gamma=0.5))),
        (WarmUp(rounds=4), lambda o: LinearLR(o, start_factor=1 / 5, total_iters=4)),
    ],
    ids=lambda thing: str(thing) if isinstance(thing, Schedule) else "torch",
)
def test_the_rates_are_those_of_torchs_schedulers(schedule: Schedule, theirs: Callable[[torch.optim.Optimizer], LRScheduler]) -> None:
    ours = [LR * schedule.share(number, ROUNDS) for number in range(1, ROUNDS + 1)]
    assert ours == pytest.approx(rates_of(theirs), rel=1e-9)
    assert len({round(rate, 9) for rate in ours}) > 1 and schedule.share(0, ROUNDS) == 1.0


def test_a_cosine_over_fewer_rounds_stays_where_it_fell_to() -> None:
    cosine = Cosine(over=4, final=0.25)
    assert [cosine.share(number, 9) for number in range(1, 5)] == [Cosine(final=0.25).share(number, 4) for number in range(1, 5)]
    assert [cosine.share(number, 9) for number in (5, 9)] == [0.25, 0.25]


@given(
    st.one_of(
        st.builds(Cosine, final=st.floats(0, 1), over=st.none() | st.integers(1, 50), warmup=st.integers(0, 50)),
        st.builds(Step, every=st.integers(1, 50), gamma=st.floats(1e-6, 1), warmup=st.integers(0, 50)),
        st.builds(WarmUp, rounds=st.integers(1, 50)),
    ),
    st.integers(1, 60),
)
def test_every_share_is_a_part_of_the_rate_and_rises_before_it_falls(schedule: Schedule, rounds: int) -> None:
    shares = [schedule.share(number, rounds) for number in range(1, rounds + 1)]
    assert all(0 <= share <= 1 for share in shares)
    top = shares.index(max(shares))
    assert shares[: top + 1] == sorted(shares[: top + 1]) and shares[top:] == sorted(shares[top:], reverse=True)


def test_as_text() -> None:
    method: Any = read_experiment({"method": "fedavg", "set": {"schedule": {"name": "cosine", "warmup": 2}}}).method
    assert method == FedAvg(schedule=Cosine(warmup=2)) and method.local.schedule == Cosine(warmup=2)
    with pytest.raises(BadInput, match="schedule is 'cosin'; did you mean 'cosine'"):
        read_experiment({"method": "fedavg", "set": {"schedule": "cosin"}})
    with pytest.raises(BadInput, match=r"gamma is 2\.0; expected a number from 1e-06 to 1"):
        Step(gamma=2.0)


def test_every_method_takes_one() -> None:
    assert {name for name, cls in METHODS.items() if parts_of(cls).get("schedule") != ["cosine", "step", "warmup"]} == set()


@pytest.mark.parametrize("name", METHODS)
def test_every_optimiser_of_a_method_has_the_rounds_share(name: str, tiny: DomainDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Generators and discriminators too. A client's own model is made by an inner step, which no schedule moves."""
    schedule, case, seen = Cosine(final=0.1), SETTINGS[name], list[tuple[int, float]]()
    plain = Client.optimizer

    def noted(self: Client, kind: Any, net: Any, *, share: float | None = None, **settings: Any) -> Any:
        made = plain(self, kind, net, share=share, **settings)
        if not (name == "perfedavg" and settings["lr"] == method.alpha):
            seen.append((self.round, made.param_groups[0]["lr"] / settings["lr"]))
        return made

    monkeypatch.setattr(Client, "optimizer", noted)
    method: Any = METHODS[name](**{**case.values, "schedule": schedule})
    train(Experiment(method, tiny, "c", rounds=3, partition=case.partition), None, watch=Silent())
    assert {number for number, _ in seen} >= {1, 2, 3}
    assert all(share == pytest.approx(schedule.share(number, 3)) for number, share in seen)


def test_a_round_at_half_the_rate_goes_half_as_far(tiny: DomainDataset) -> None:
    """With one step of SGD a round, from the same weights."""

    def after(rounds: int, schedule: Schedule | None = None) -> Any:
        method = FedAvg(lr=0.1, optimizer="sgd", batch=64, schedule=schedule)
        return train(Experiment(method, tiny, "c", rounds=rounds), None, watch=Silent()).state

    first, whole, halved = after(1), after(2), after(2, Step(every=1, gamma=0.5))
    weights = [name for name, value in first.items() if value.is_floating_point() and "running" not in name]
    for name in weights:
        assert torch.allclose(halved[name] - first[name], (whole[name] - first[name]) / 2, atol=1e-6), name
    assert any(not torch.allclose(whole[name], halved[name], atol=1e-4) for name in weights)


def test_fedadgs_warm_up_within_a_round_climbs_to_the_rounds_rate() -> None:
    client, sgd = client_of(images(), lambda: LinearNet(4, 3)), WarmedSGD(schedule=Step(every=1, gamma=0.5), warm_up=10)
    client.round, client.rounds = 3, 3
    optimizer = sgd.over(client, client.build("task", state_of(LinearNet(4, 3))), 0.4)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1)
    sgd.set_rate(client, optimizer, 0.4, 5)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(warmed_up(0.1, 5, 10))


def test_scaffold_divides_by_the_rate_of_the_round() -> None:
    domain, method = images(), SCAFFOLD(lr=0.2, steps=1, batch=12, schedule=Step(every=1, gamma=0.25))
    torch.manual_seed(0)
    net = LinearNet(4, 3)
    start = state_of(net)
    client = client_of(domain, lambda: LinearNet(4, 3))
    client.round, client.rounds = 2, 2
    up = method.train(Steered(model=start, control={name: torch.zeros_like(w) for name, w in start.items()}), client)
    x, y = batch_of(domain)
    slopes = dict(zip(start, torch.autograd.grad(nn.functional.cross_entropy(net(x), y), list(net.parameters())), strict=True))
    kept = client.remembered["Control"]
    assert isinstance(kept, Control)
    for name, slope in slopes.items():
        assert torch.allclose(up.model[name], start[name] - 0.05 * slope, atol=1e-6)
        assert torch.allclose(kept.control[name], slope, atol=1e-5)


class Cut(Silent):
    """Ends the run after a round, as a kill would."""

    def __init__(self, after: int) -> None:
        self._after = after

    def round(self, record: Any, seconds: float) -> None:
        if record["round"] == self._after:
            raise KeyboardInterrupt


def test_a_resumed_run_goes_on_to_the_same_bits(tiny: DomainDataset, tmp_path: Path) -> None:
    def experiment(schedule: Schedule | None) -> Experiment:
        return Experiment(FedAvg(lr=0.05, batch=8, schedule=schedule), tiny, "c", rounds=4)

    cosine = Cosine(warmup=1)
    train(experiment(cosine), tmp_path / "whole", watch=Silent())
    with pytest.raises(KeyboardInterrupt):
        train(experiment(cosine), tmp_path / "cut", watch=Cut(2))
    train(experiment(cosine), tmp_path / "cut", resume=True, watch=Silent())
    for file in ("records.jsonl", "model.safetensors", "best.safetensors"):
        assert (tmp_path / "cut" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    plain = train(experiment(None), None, watch=Silent()).state
    assert not same_bits(plain, train(experiment(cosine), tmp_path / "whole", resume=True, watch=Silent()).state)


@pytest.mark.parametrize(("schedule", "allowed"), [(Cosine(), False), (Cosine(over=2), True), (Step(every=1), True), (WarmUp(), True)])
def test_more_rounds_only_where_those_before_keep_their_rates(
    schedule: Schedule, allowed: bool, tiny: DomainDataset, tmp_path: Path
) -> None:
    def go(rounds: int, to: str, resume: bool = False) -> Any:
        return train(
            Experiment(FedAvg(batch=32, schedule=schedule), tiny, "c", rounds=rounds), tmp_path / to, resume=resume, watch=Silent()
        )

    go(2, "run")
    if not allowed:
        with pytest.raises(BadInput, match=r"rounds was 2 and is 3, and the learning rate was to have fallen by the last of them"):
            go(3, "run", resume=True)
        return
    go(3, "run", resume=True)
    go(3, "whole")
    assert (tmp_path / "run/records.jsonl").read_bytes() == (tmp_path / "whole/records.jsonl").read_bytes()


def noted_rates(monkeypatch: pytest.MonkeyPatch) -> set[tuple[int, float]]:
    """Every round with a rate in it, from now on."""
    rates = set[tuple[int, float]]()
    plain = Client.optimizer

    def noted(self: Client, *args: Any, **settings: Any) -> Any:
        made = plain(self, *args, **settings)
        rates.add((self.round, round(made.param_groups[0]["lr"], 9)))
        return made

    monkeypatch.setattr(Client, "optimizer", noted)
    return rates


def test_between_sites_the_study_says_how_many_rounds_there_are(
    tiny: DomainDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = FedAvg(lr=0.8, batch=8, schedule=Cosine(final=0.5))
    here = train(Experiment(method, tiny, "c", rounds=3), None, watch=Silent())
    federation, experiment = FederationInMemory(tmp_path, tiny, "c"), Experiment(method, tiny.name, "c", rounds=3)
    elsewhere, rates = federation.federate(experiment), noted_rates(monkeypatch)
    there = train(experiment, tmp_path / "there", watch=Silent(), elsewhere=elsewhere)
    assert same_bits(here.state, there.state)
    assert rates == {(1, 0.8), (2, 0.7), (3, 0.5)}  # 0.8 (0.5 + 0.5 (1 + cos(0, 60 and 120 degrees)) / 2)


def test_on_a_gpu_the_rounds_share_one_optimiser_whose_rate_is_a_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as a machine without one can tell: the pool is told that it records."""
    pool = Pool({"task": lambda: LinearNet(4, 3)}, torch.device("cpu"))
    monkeypatch.setattr(pool, "graphs", object())
    net = pool.network("task", 0)
    for kind in (torch.optim.Adam, torch.optim.SGD):
        first = pool.optimizer(kind, [net], {"lr": 0.1}, 1.0)
        recorded = _rates([first])
        second = pool.optimizer(kind, [net], {"lr": 0.1}, 0.5)
        assert second is first and isinstance(second.param_groups[0]["lr"], torch.Tensor)
        assert float(second.param_groups[0]["lr"]) == pytest.approx(0.05) and _rates([second]) == recorded
        plain = pool.optimizer(kind, [net], {"lr": 0.1})
        assert plain is not first and _rates([plain]) == (0.1,), "without a schedule it stays a number, and the results as they were"
        assert _rates([pool.optimizer(kind, [net], {"lr": 0.2})]) != _rates([plain])


def test_feddags_own_warm_up_goes_on_top(tiny: DomainDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = noted_rates(monkeypatch)
    method = FedDAG(lr=0.8, width=4, warmup=5, rate_warmup=2, schedule=Step(every=1, gamma=0.5))
    train(Experiment(method, tiny, "c", rounds=3), None, watch=Silent())
    assert rates == {(1, 0.4), (2, 0.4), (3, 0.2)}
