"""Runs in which the server reads sums alone: the same models within the rounding, whatever dies on the way, and never a single answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import tiny_classification
from federation_in_memory import EVERYTHING, FederationInMemory, KillingCarrier, place_of
from tiny_settings import SETTINGS
from unseen import BadInput, Experiment
from unseen.data.domain import DomainDataset
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


@pytest.mark.parametrize(("data", "every"), [(FOUR, 12), (FIVE, 15)], ids=["three sites", "four sites, who consent"])
def test_kills_between_the_steps_of_a_sum_change_no_bit(data: DomainDataset, every: int, tmp_path: Path) -> None:
    whole, _ = go("fedsb", tmp_path / "whole", True, data=data)
    target = data.names[-1]
    experiment = Experiment(build(METHODS["fedsb"], SEEDS["fedsb"], PARTS), data.name, target, rounds=2)
    federation = FederationInMemory(tmp_path / "killed", data, target)
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
