"""Every method whose server takes means, with and without sums: the same server state within the rounding. The others are refused."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from torch import Tensor

from conftest import tiny_classification, tiny_segmentation
from tiny_settings import SETTINGS
from unseen import Experiment
from unseen.client import Client
from unseen.codec import tensors_in
from unseen.engines.local import LocalEngine
from unseen.engines.tasks import Place
from unseen.federation.sums.context import SumContext
from unseen.federation.sums.encoding import decode_mean, encode_answer
from unseen.federation.sums.server import DONE, ServerSum
from unseen.federation.sums.site import SiteSum
from unseen.federation.sums.summable import is_summed, refusals
from unseen.method import Method, Refused, on_client, task_types
from unseen.methods import METHODS
from unseen.parts.aggregation import CEA, SHA, Losses, Mean, Uniform
from unseen.parts.combining import Down, Up
from unseen.parts.dynamic import DynamicUp
from unseen.parts.server_optimizers import AdamServer, MomentumServer, YogiServer
from unseen.payload import Nothing, Payload, State, carries
from unseen.world import build_world

CLASSES, MASKS = tiny_classification((30, 20, 10, 6)), tiny_segmentation((8, 6, 4, 4))


class SummingEngine(LocalEngine):
    """The clients of one process, whose answers the server gets as it would from a secure sum: one mean, for everyone."""

    summed = 0
    lost: frozenset[str] = frozenset()

    def answers(self, task: Any, downs: Any, place: Place, shared: bool) -> Iterator[tuple[str, Any]]:
        up_type = task_types(task)[1]
        ups = dict(super().answers(task, downs, place, shared))
        if not is_summed(up_type):
            yield from ups.items()
            return
        self.summed += 1
        mean, survivors = self._mean(ups, next(iter(downs.values())), place, up_type)
        yield from ((name, mean if name in survivors else Refused("lost")) for name in ups)

    def _mean(self, ups: dict[str, Any], down: Payload, place: Place, up_type: type[Any]) -> tuple[Any, list[str]]:
        keys = {name: Ed25519PrivateKey.generate() for name in ups}
        counts = {name: len(self.world.holdings[name].train) for name in ups}
        boxes = {name: X25519PrivateKey.generate() for name in ups}
        public = {name: box.public_key().public_bytes_raw() for name, box in boxes.items()}
        signing = {name: key.public_key() for name, key in keys.items()}
        context = SumContext("5" * 64, place.round, place.ask, signing, public, counts, may_lose=bool(self.lost))
        sites = {name: SiteSum(context, name, key, boxes[name].private_bytes_raw()) for name, key in keys.items()}
        asked = hashlib.sha256(down.to_bytes()).digest()
        server = ServerSum(context, asked)

        def answer(name: str, question: bytes) -> bytes:
            site = sites[name]
            if server.step == 2:
                site.take_keys(question, asked)
                return site.mask(encode_answer(ups[name], down, context, name, self.world.entries))
            return {1: lambda _: site.keys(), 3: site.consent, 4: site.unmask}[server.step](question)

        while server.step != DONE:
            for name, question in server.questions().items():
                if name not in self.lost or server.step < 2:
                    server.take(name, answer(name, question))
            server.advance()
        return decode_mean(server.result, up_type, down, context, len(server.survivors)), server.survivors


def rounds(method: Method[Any], engine: type[LocalEngine], folder: Path, number: int = 2, task: str = "classification") -> tuple[Any, Any]:
    """The server's state after some rounds."""
    data = CLASSES if task == "classification" else MASKS
    world = build_world(Experiment(method, data, "d", rounds=number, device="cpu"))
    made = engine(world, folder)
    state = method.start(world.fresh, made.cohort(0))
    for at in range(1, number + 1):
        state = method.round(state, made.cohort(at))
    return state, made


def tensors(state: Any) -> dict[str, Tensor]:
    return dict(tensors_in(state, type(state)))


CASES: dict[str, tuple[str, dict[str, Any], float]] = {
    "fedavg": ("fedavg", {}, 1e-6),
    "fedavg uniform": ("fedavg", {"aggregation": Uniform()}, 1e-6),
    "fedavg, momentum at the server": ("fedavg", {"server": MomentumServer()}, 1e-6),
    "fedavg, adam at the server": ("fedavg", {"server": AdamServer()}, 1e-5),
    "fedavg, yogi at the server": ("fedavg", {"server": YogiServer()}, 1e-5),
    "fedprox": ("fedprox", {}, 1e-6),
    "fedsam": ("fedsam", {}, 1e-6),
    "fedsb": ("fedsb", {}, 1e-6),
    "fedadg": ("fedadg", {}, 1e-6),
    "fedadg-laplace": ("fedadg-laplace", {}, 1e-6),
    "feddyn": ("feddyn", {}, 1e-6),
    "fedgca": ("fedgca", {}, 1e-6),
    "moon": ("moon", {}, 1e-6),
    "fedbn": ("fedbn", {}, 1e-6),
    "fedbn, weighted": ("fedbn", {"weighted": True}, 1e-6),
    "scaffold": ("scaffold", {}, 1e-6),
    "fednova": ("fednova", {}, 1e-6),
    "perfedavg": ("perfedavg", {}, 1e-6),
    "ddaig": ("ddaig", {"domains": 3}, 1e-6),
    "fccl": ("fccl", {"optimizer": "sgd"}, 1e-4),  # it trains on from a mean that a sum has rounded
    "elcfs": ("elcfs", {}, 1e-6),
    "elcfs-masks": ("elcfs-masks", {}, 1e-6),
    "feddag": ("feddag-no-sha", {}, 1e-6),
    "feddag, warm": ("feddag-no-sha", {"warmup": 0}, 1e-6),
    "feddag, global student": ("feddag-global-student", {"aggregation": Mean(), "warmup": 0}, 1e-6),
}


@pytest.mark.parametrize("name", CASES)
def test_plain_and_summed_agree_after_a_round(name: str, tmp_path: Path) -> None:
    setting, changed, close = CASES[name]
    case = SETTINGS[setting]
    method = METHODS[case.method](**{**case.values, **changed})
    assert [*refusals(method, 3)] == []
    plain, _ = rounds(method, LocalEngine, tmp_path / "plain", 1, case.task)
    summed, engine = rounds(method, SummingEngine, tmp_path / "summed", 1, case.task)
    assert engine.summed == (2 if case.method == "fccl" else 1)  # its clients also answer before round 1
    found, wanted = tensors(summed), tensors(plain)
    assert found.keys() == wanted.keys() and found
    for key, tensor in wanted.items():
        assert found[key].dtype == tensor.dtype and found[key].shape == tensor.shape
        if tensor.is_floating_point():
            assert torch.allclose(found[key], tensor, rtol=2e-6, atol=close), key
        else:  # batches seen: the mean of the clients', where a plain mean takes the largest
            assert bool((found[key] <= tensor).all()) and bool((found[key] > 0).all())


def test_a_site_that_is_lost_has_no_part_in_the_mean(tmp_path: Path) -> None:
    method = METHODS["fedavg"](**SETTINGS["fedavg"].values)
    data = tiny_classification((30, 20, 10, 6, 4))
    states = []
    for engine in (LocalEngine, SummingEngine):
        world = build_world(Experiment(method, data, "e", rounds=1, device="cpu"))
        made: Any = engine(world, tmp_path / engine.__name__)
        made.lost = frozenset({"b"})
        cohort = made.cohort(1)
        replies = cohort.ask(method.train, Down(model=world.fresh("task"))).all()  # type: ignore[attr-defined]
        states.append({name: up for name, up in replies.items() if name != "b"})
    plain, summed = states
    assert [*plain] == [*summed] == ["a", "c", "d"]
    weights = {name: up.samples for name, up in plain.items()}
    for key, value in plain["a"].model.items():
        if value.is_floating_point():
            mean = sum(up.model[key].double() * weights[name] for name, up in plain.items()) / sum(weights.values())
            assert all(torch.allclose(up.model[key].double(), mean, rtol=1e-6, atol=1e-6) for up in summed.values())
    assert {up.samples for up in summed.values()} == {round(sum(weights.values()) / 3)}


class Whole(Payload):
    model: State = carries("model")


def test_which_answers_are_summed() -> None:
    assert is_summed(Up) and is_summed(DynamicUp)
    assert not any(is_summed(kind) for kind in (Whole, Losses, Nothing))
    elcfs: Any = METHODS["elcfs"]
    assert is_summed(task_types(elcfs.train)[1]) and not is_summed(task_types(elcfs.spectra)[1])


@dataclasses.dataclass(frozen=True)
class Reads(METHODS["fedavg"]):  # type: ignore[misc]
    """Sends a model of which nothing is said."""

    @on_client
    def train(self, down: Down, client: Client) -> Whole:
        raise NotImplementedError


def test_methods_that_read_single_answers_are_refused() -> None:
    for method in METHODS:
        for aggregation in (SHA(), CEA()):
            if "aggregation" in {field.name for field in dataclasses.fields(METHODS[method])}:
                told = [*refusals(METHODS[method](aggregation=aggregation), 3)]
                assert (
                    f"the aggregation {aggregation.name} sends each client's model to the others, who assess it; a secure sum would hide it"
                    in told
                )
    assert [*refusals(METHODS["feddag"](), 3)] and not [*refusals(METHODS["feddag"](aggregation=Mean()), 3)]
    assert "a secure sum takes 3 sites, and there are 2" in next(iter(refusals(METHODS["fedavg"](), 2)))
    (told,) = refusals(Reads(), 3)
    assert told.startswith("Reads.train answers with model, of which it is not said that the mean is enough")
