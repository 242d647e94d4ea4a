"""The in-process engine: the same bits in every mode, bad answers left out, faults of a method told plainly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import methods_for_tests as own
from unseen import Experiment, Method
from unseen.codec import decode, notes_in
from unseen.data.domain import DomainDataset
from unseen.engines.workers import Workers
from unseen.errors import BadInput, ClientFailed, NoReplies
from unseen.method import Replies
from unseen.methods import method_class
from unseen.runs.watch import Silent
from unseen.state import same_bits
from unseen.training import Result, train

EXERCISE = f"{own.__file__}:Exercise"


def go(method: Method[Any], data: DomainDataset | str, out: Path | None = None, rounds: int = 3, **settings: Any) -> Result:
    target = settings.pop("target", "c")
    modes = {k: settings.pop(k) for k in ("workers", "through_bytes", "resume") if k in settings}
    return train(Experiment(method=method, data=data, target=target, rounds=rounds, **settings), out, watch=Silent(), **modes)


def equal(a: Result, b: Result) -> bool:
    return same_bits(a.state, b.state) and list(a.records) == list(b.records)


def test_through_bytes_gives_the_same_bits(tiny: DomainDataset) -> None:
    assert equal(go(own.Exercise(), tiny), go(own.Exercise(), tiny, through_bytes=True))


def test_workers_give_the_same_bits_and_tell_faults_plainly_too() -> None:
    """One test, because to start workers takes longer than what they do here."""
    exercise, careless = method_class(EXERCISE)(), method_class(f"{own.__file__}:Careless")
    settings = {"target": "outline", "network": "small_cnn:width=2", "rounds": 2}
    with Workers(2) as workers:
        parallel = go(exercise, "styled-digits", workers=workers, **settings)
        other_seed = go(exercise, "styled-digits", workers=workers, seed=1, **settings)
        alone = go(exercise, "styled-digits", **settings)
        assert equal(parallel, alone)
        assert not same_bits(other_seed.state, alone.state)
        with pytest.raises(ClientFailed, match=r"failed in train: ZeroDivisionError: in round 1[\s\S]*Traceback"):
            go(careless(fault="crash"), "styled-digits", workers=workers, **settings)
        with pytest.raises(BadInput, match="only the client can see"):
            go(careless(fault="mistake"), "styled-digits", workers=workers, **settings)
        assert equal(go(exercise, "styled-digits", workers=workers, seed=1, **settings), other_seed), "nothing is left of another run"
        with pytest.raises(ClientFailed, match=r"worker process ended \(exit code -9\)"):
            go(careless(fault="killed"), "styled-digits", workers=workers, **settings)
        assert equal(go(exercise, "styled-digits", workers=workers, seed=1, **settings), other_seed), "another process took its place"


def test_the_seed_decides_everything(tiny: DomainDataset) -> None:
    assert equal(go(own.Exercise(), tiny), go(own.Exercise(), tiny))
    torch.manual_seed(99)  # the caller's own randomness is neither used nor moved
    before = torch.get_rng_state()
    assert not same_bits(go(own.Exercise(), tiny).state, go(own.Exercise(), tiny, seed=1).state)
    assert torch.equal(torch.get_rng_state(), before)


def test_every_message_is_recorded(tiny: DomainDataset) -> None:
    first, second, _ = go(own.Exercise(), tiny).records
    tasks = [(r["task"], r["direction"], r["field"]) for r in first["travelled"]]
    exchange = [
        ("train", "received", "model"),
        ("train", "sent", "model"),
        ("train", "sent", "noise"),
        ("assess", "received", "models"),
        ("assess", "sent", "of"),
    ]
    assert tasks == exchange  # `hello` carries nothing, so it leaves no row
    assert [r["clients"] for r in first["travelled"]] == [["a", "b"]] * 5
    assert {r["field"] for r in first["scoring"]} == {"model", "metrics", "samples"}
    assert second["travelled"] == first["travelled"]


def test_a_bad_update_is_left_out_recorded_and_forgotten(tiny: DomainDataset, tmp_path: Path) -> None:
    result = go(own.Poisoned(), tiny, tmp_path / "run", rounds=4)
    assert [sorted(r["missing"]) for r in result.records] == [[], ["a"], ["a"], ["a"]]
    assert "fc.bias is not finite" in result.records[1]["missing"]["a"]
    assert all(torch.isfinite(v).all() for v in result.state.values())
    versions = json.loads(notes_in((tmp_path / "run/checkpoint.safetensors").read_bytes())["versions"])
    kept = {c: decode(own.Visits, (tmp_path / "run/memory" / versions[c]["Visits"]).read_bytes()).count for c in "ab"}
    assert kept == {"a": 1, "b": 4}  # what a client remembered beside a refused answer does not count


def test_all_updates_bad_stops_with_the_last_good_state_kept(tiny: DomainDataset, tmp_path: Path) -> None:
    with pytest.raises(NoReplies, match=r"round 2.*a: train.*not finite.*round 1 is kept"):
        go(own.Poisoned(bad="ab"), tiny, tmp_path / "run")
    assert len((tmp_path / "run/records.jsonl").read_text().splitlines()) == 1
    assert (tmp_path / "run/checkpoint.safetensors").exists()


@pytest.mark.parametrize(
    ("fault", "error", "says"),
    [
        ("live", ClientFailed, r"model\.conv1\.weight by reference"),
        ("rebound", ClientFailed, r"model\.conv1\.weight by reference"),
        ("crash", ClientFailed, "client 'a' failed in train: ZeroDivisionError: in round 1"),
        ("mistake", BadInput, "only the client can see"),
        ("other", NoReplies, "answered with a Nothing; Model was declared"),
        ("stranger", KeyError, "asked nobody; the clients are a, b"),
        ("unmarked", TypeError, "not marked with @on_client"),
    ],
)
def test_faults_of_a_method_are_told_plainly(tiny: DomainDataset, fault: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        go(own.Careless(fault), tiny)


def test_a_method_may_give_its_network_other_tensors(tiny: DomainDataset) -> None:
    """Their old addresses are free then, and copies that come to lie there are no references."""
    result = go(own.Careless("rebound, copied"), tiny, rounds=3)
    before = result.world.fresh("task")
    for name, _ in result.network.named_parameters():  # each client of each round adds one
        assert torch.allclose(result.state[name], before[name] + 3, atol=1e-5), name


def test_replies_are_read_once_and_missing_is_known_afterwards() -> None:
    replies = Replies(iter([("a", own.Nothing()), ("b", own.Nothing())]))
    with pytest.raises(RuntimeError, match="read the replies"):
        _ = replies.missing
    assert next(replies.items())[0] == "a"
    assert list(replies.all()) == ["b"] and replies.missing == {}
