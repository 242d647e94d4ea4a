"""Runs in which the server reads sums alone: the same models within the rounding, whatever dies on the way, and never a single answer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import tiny_classification
from federation_in_memory import EVERYTHING, DirectCarrier, FederationInMemory, KillingCarrier, place_of
from tiny_settings import SETTINGS
from unseen import BadInput, Experiment
from unseen.data.domain import DomainDataset
from unseen.errors import NoReplies
from unseen.federation.messages import SignedMessage
from unseen.federation.server.exchange import Terms
from unseen.federation.site.policy import Policy, Privacy
from unseen.methods import METHODS
from unseen.parts import PARTS
from unseen.runs.watch import Silent
from unseen.settings import build
from unseen.state import same_bits
from unseen.training import Result, train

FOUR = tiny_classification((24, 20, 16, 12))  # three sites that train and one that stays unseen
FIVE = tiny_classification((24, 20, 16, 12, 12))
SEEDS: dict[str, dict[str, Any]] = {
    "fedsb": {"budget": 2, "batch": 8},
    "fedadg": {"batch": 8},
    "fedgca": {"batch": 8, "epochs": 1.0, "beta": 0.0, "copies": 1, "styles": "randconv"},
    "feddag": {"batch": 8, "width": 2, "warmup": 1, "aggregation": "mean"},
    "elcfs": {"batch": 8, "first_order": True, "alpha": 0.1},
    "fedavg": {"batch": 8, "optimizer": "sgd", "server": "momentum"},
}


def go(name: str, out: Path, sums: bool, rounds: int = 2, data: DomainDataset = FOUR) -> tuple[Result, FederationInMemory]:
    """The last domain stays unseen."""
    federation = FederationInMemory(out / "federation", data, data.names[-1])
    experiment = Experiment(build(METHODS[name], SEEDS[name], PARTS), data.name, data.names[-1], rounds=rounds)
    return train(experiment, out / "run", watch=Silent(), elsewhere=federation.federate(experiment, sums=sums)), federation


@pytest.mark.parametrize("name", SEEDS)
def test_one_summed_round_is_the_plain_one_within_the_rounding(name: str, tmp_path: Path) -> None:
    (plain, _), (summed, federation) = (go(name, tmp_path / str(sums), sums, rounds=1) for sums in (False, True))
    for key, value in plain.state.items():
        if not value.is_floating_point():
            continue  # of a counter of batches, a sum gives the mean, and the plain way the largest
        torch.testing.assert_close(
            summed.state[key].double(), value.double(), rtol=1e-5, atol=2e-6, msg=lambda text, key=key: f"{key}: {text}"
        )
    assert summed.records[0]["missing"] == plain.records[0]["missing"] == {}
    single = plain.state["fc.weight"].numpy().tobytes() if "fc.weight" in plain.state else b"-"
    words = [answer.payload for _, question, answer in federation.carrier.carried if place_of(question) == (1, 1)]
    assert len(words) >= 6 and not any(single in payload for payload in words)


def test_a_method_with_memories_finds_them_in_the_next_round(tmp_path: Path) -> None:
    """What a site wrote with its answer outlives the steps that follow it."""
    result, _ = go("feddag", tmp_path, True, rounds=3)
    assert [record["missing"] for record in result.records] == [{}, {}, {}]


def test_a_file_that_a_kill_left_half_written_stops_no_later_round(tmp_path: Path) -> None:
    federation = FederationInMemory(tmp_path / "federation", FOUR, FOUR.names[-1])
    experiment = Experiment(build(METHODS["fedsb"], SEEDS["fedsb"], PARTS), FOUR.name, FOUR.names[-1], rounds=4)
    run = federation.federate(experiment, sums=True)
    [study] = (tmp_path / "federation" / "a").glob("studies/*/")
    (study / "sums").mkdir()
    left = study / "sums" / ".1.1.4711.tmp"
    left.write_bytes(b"half of the secrets")
    result = train(experiment, tmp_path / "run", watch=Silent(), elsewhere=run)
    assert [record["missing"] for record in result.records] == [{}] * 4 and not left.exists()


@pytest.mark.parametrize(
    ("data", "every", "may_lose"),
    [(FOUR, 12, False), (FIVE, 15, False), (FIVE, 15, True)],
    ids=["three sites", "four sites", "four sites, who consent"],
)
def test_kills_between_the_steps_of_a_sum_change_no_bit(data: DomainDataset, every: int, may_lose: bool, tmp_path: Path) -> None:
    whole, _ = go("fedsb", tmp_path / "whole", True, data=data)
    target = data.names[-1]
    experiment = Experiment(build(METHODS["fedsb"], SEEDS["fedsb"], PARTS), data.name, target, rounds=2)
    rules = replace(EVERYTHING, sums_may_lose_sites=may_lose)
    federation = FederationInMemory(tmp_path / "killed", data, target, dict.fromkeys(data.names, rules))
    run = federation.federate(experiment, sums=True)
    federation.carrier = killing = KillingCarrier(federation, every=every)
    ended = False
    while not ended:
        try:
            out = tmp_path / "there"
            result = train(experiment, out, watch=Silent(), resume=out.exists(), elsewhere=federation.again(run))
            ended = True
        except KeyboardInterrupt:
            assert killing.kills < 40
    assert killing.kills >= 5 and same_bits(result.state, whole.state)
    assert steps_asked(federation, 2) == ({1, 2, 3, 4} if may_lose else {1, 2})
    kept = [*(tmp_path / "killed").glob("*/studies/*/sums/*"), *(tmp_path / "killed").glob("*/studies/*/box.secret")]
    assert not kept, "secrets of a sum that is done are gone, and those of a study"


@pytest.mark.parametrize(
    ("settings", "why"),
    [({"aggregation": "sha"}, "sha"), ({"aggregation": "cea"}, "cea"), ({"aggregation": "median"}, "median"), ({"bound": "norm"}, "bound")],
)
def test_a_method_that_needs_single_answers_is_refused_with_a_sentence(settings: dict[str, Any], why: str, tmp_path: Path) -> None:
    federation = FederationInMemory(tmp_path, FOUR, "d")
    with pytest.raises(BadInput, match=why):
        federation.federate(Experiment(build(METHODS["fedavg"], settings, PARTS), FOUR.name, "d", rounds=1), sums=True)


@pytest.mark.parametrize("share", [0.3, 0.75, 0.99])
def test_sums_of_rounds_that_draw_their_sites_are_not_proposed(share: float, tmp_path: Path) -> None:
    federation = FederationInMemory(tmp_path, FIVE, "e")
    experiment = Experiment(build(METHODS["fedavg"], {"batch": 8}, PARTS), FIVE.name, "e", rounds=1, participation=share)
    with pytest.raises(BadInput, match=rf"participation is {share} under secure sums, expected 1"):
        federation.federate(experiment, Terms(minimum_clients=1), sums=True)


class LosingCarrier(DirectCarrier):
    """One site cannot be reached from a round and a step on, until it is back."""

    def __init__(self, federation: FederationInMemory, site: str, lost_from: tuple[int, int]) -> None:
        super().__init__(federation.carrier.responders)
        self.site, self.lost_from, self.back = site, lost_from, False

    def exchange(self, messages: Mapping[str, SignedMessage], seconds: float) -> Iterator[tuple[str, SignedMessage | str]]:
        for client, message in messages.items():
            header = json.loads(message.header)
            if client == self.site and not self.back and (header.get("round", 0), header.get("step", 0)) >= self.lost_from:
                yield client, "no answer in time"
            else:
                yield from super().exchange({client: message}, seconds)


def steps_asked(federation: FederationInMemory, round_number: int) -> set[int]:
    headers = [json.loads(question.header) for _, question, _ in federation.carrier.carried]
    return {header["step"] for header in headers if header.get("round") == round_number and header["ask"] == 1}


@pytest.mark.parametrize(("rules", "step"), [("", 1), ("", 2), ("abc", 2)])
def test_a_sum_waits_for_a_site_that_is_lost(rules: str, step: int, tmp_path: Path) -> None:
    """Unless every site allows sums to lose one. When it is back, the run goes on to the same bits."""
    whole, _ = go("fedsb", tmp_path / "whole", True, data=FIVE)
    policies = dict.fromkeys(rules, replace(EVERYTHING, sums_may_lose_sites=True))
    federation = FederationInMemory(tmp_path / "lost", FIVE, "e", policies)
    federation.carrier = losing = LosingCarrier(federation, "d", (2, step))
    experiment = Experiment(build(METHODS["fedsb"], SEEDS["fedsb"], PARTS), FIVE.name, "e", rounds=2)
    run = federation.federate(experiment, sums=True)
    with pytest.raises(
        NoReplies, match=r"3 of 4 sites .*4 are needed \(d: no answer in time\); no site may be left out .*sums_may_lose_sites"
    ):
        train(experiment, tmp_path / "run", watch=Silent(), elsewhere=run)
    assert steps_asked(federation, 2) == {*range(1, step + 1)}, "nobody is asked for words before all keys are there"
    losing.back = True
    result = train(experiment, tmp_path / "run", watch=Silent(), resume=True, elsewhere=federation.again(run))
    assert same_bits(result.state, whole.state) and [record["missing"] for record in result.records] == [{}, {}]


@pytest.mark.parametrize("step", [1, 2])
def test_where_every_site_allows_it_a_sum_loses_a_site(step: int, tmp_path: Path) -> None:
    policies = dict.fromkeys(FIVE.names, replace(EVERYTHING, sums_may_lose_sites=True))
    federation = FederationInMemory(tmp_path / "lost", FIVE, "e", policies)
    federation.carrier = LosingCarrier(federation, "d", (2, step))
    experiment = Experiment(build(METHODS["fedsb"], SEEDS["fedsb"], PARTS), FIVE.name, "e", rounds=2)
    result = train(experiment, tmp_path / "run", watch=Silent(), elsewhere=federation.federate(experiment, sums=True))
    assert [record["missing"] for record in result.records] == [{}, {"d": "train: no answer in time"}]


def test_two_sites_are_too_few(tiny: DomainDataset, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="takes 3 sites"):
        FederationInMemory(tmp_path, tiny, "c").federate(Experiment(SETTINGS["fedsb"].build(), "tiny", "c", rounds=1), sums=True)


def test_a_site_may_ask_for_sums(tmp_path: Path) -> None:
    strict = Policy(**{**vars(EVERYTHING), "secure_sums": True})
    federation = FederationInMemory(tmp_path, FOUR, "d", dict.fromkeys("abc", strict))
    experiment = Experiment(build(METHODS["fedsb"], SEEDS["fedsb"], PARTS), FOUR.name, "d", rounds=1)
    with pytest.raises(BadInput, match="0 sites are there to train"):
        federation.federate(experiment)
    assert any("secure_sums: the study lets the server read single models" in said for said in federation.said)
    assert federation.federate(experiment, sums=True).world.clients == ["a", "b", "c"]


def test_noise_goes_on_before_the_masks(tmp_path: Path) -> None:
    noisy = replace(EVERYTHING, privacy=Privacy(on=True, noise=2.0, most_epsilon=1e6))
    federation = FederationInMemory(tmp_path, FOUR, "d", dict.fromkeys("abc", noisy))
    experiment = Experiment(build(METHODS["fedsb"], SEEDS["fedsb"], PARTS), FOUR.name, "d", rounds=1)
    result = train(experiment, tmp_path / "run", watch=Silent(), elsewhere=federation.federate(experiment, sums=True))
    assert result.records[0]["notes"]["epsilon"].keys() == {"a", "b", "c"} and result.records[0]["missing"] == {}
