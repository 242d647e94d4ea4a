"""A dishonest server against a site under its own rules: facts that it makes up, questions beyond the study, work without end."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import tiny_classification
from dishonest_server import Answer, DishonestServer
from federation_in_memory import EVERYTHING, FederationInMemory
from unseen.data.domain import DomainDataset
from unseen.federation.site.policy import Policy
from unseen.methods.fedavg import Down
from unseen.payload import Nothing
from unseen.scoring import Model

FOUR = tiny_classification((80, 60, 60, 60))
SITE = "a"


def scene(folder: Path, policy: Policy | None = None, data: DomainDataset = FOUR, target: str | None = None) -> FederationInMemory:
    """Sites under the default rules, or under these, that approve by rule."""
    return FederationInMemory(folder, data, target, {name: policy or Policy() for name in data.names})


def train(server: DishonestServer, study: Any = None, at: tuple[int, int] = (1, 1), **lies: Any) -> Answer:
    return server.ask(SITE, Down(model=server.fresh()), study, at, **lies)


def test_an_honest_question_is_answered(tmp_path: Path) -> None:
    assert train(DishonestServer(scene(tmp_path))).given


@pytest.mark.parametrize(("asked_for", "made_up"), [(4, 0), (4, 3), (50, 99), (5, 1)])
def test_sites_that_a_site_does_not_know_do_not_count(asked_for: int, made_up: int, tmp_path: Path) -> None:
    """The server asks one site alone, or invents others with keys of its own."""
    server = DishonestServer(scene(tmp_path, Policy(minimum_clients=asked_for)))
    known = server.study.participants
    crowd = {**known, **server.made_up(made_up)} if asked_for > 4 else {SITE: known[SITE], **server.made_up(made_up)}
    answer = train(server, server.changed(participants=crowd))
    assert not answer.given and "minimum_clients" in answer.reason
    assert asked_for > 4 or train(server).given


def test_a_site_that_did_not_sign_does_not_count(tmp_path: Path) -> None:
    """Four are in the study; the approvals of two are shown, or one twice, or one of another study."""
    server = DishonestServer(scene(tmp_path, Policy(minimum_clients=4)))
    study, other = server.changed(), server.changed()
    begun = server.deliver(SITE, {"task": "begin", "study": study.digest}, study.signed(server.key))
    own, b, c = begun.header["approval"], *(server._approval(study, name).plain() for name in "bc")
    foreign = {**server._approval(other, "d").plain(), "study": study.digest}
    for shown in ([own, b, c], [own, b, c, c], [own, b, c, foreign], [own, b, c, {**c, "site": "d"}], [b, c]):
        agreed = server.deliver(SITE, {"task": "agreed", "study": study.digest}, json.dumps(shown).encode())
        assert not agreed.given
        assert not server.question(SITE, Down(model=server.fresh()), study).given
    assert train(server).given


def test_the_last_round_is_the_studys(tmp_path: Path) -> None:
    server = DishonestServer(scene(tmp_path, Policy(scores="last-round")), rounds=20)
    model = Model(model=server.fresh())
    early = server.ask(SITE, model, at=(1, -1))
    assert not early.given and "scores" in early.reason
    assert "other entries" in server.ask(SITE, model, at=(1, -1), last=True).reason
    assert server.ask(SITE, model, at=(20, -1)).given


@pytest.mark.parametrize("at", [(3, 1), (999_999, 1), (2, 2), (2, 7), (0, 1), (0, -1), (2, 0), (-1, 1), (2, -2), (2**40, 1)])
def test_there_is_nothing_beyond_the_plan(at: tuple[int, int], tmp_path: Path) -> None:
    server = DishonestServer(scene(tmp_path), rounds=2)
    assert not train(server, at=at).given


@pytest.mark.parametrize("lie", [{"round": True}, {"ask": 1.0}, {"step": 1}, {"step": "0"}, {"versions": []}, {"versions": {"K": "../x"}}])
def test_a_place_of_another_kind_is_refused(lie: dict[str, Any], tmp_path: Path) -> None:
    assert not train(DishonestServer(scene(tmp_path)), **lie).given


def test_one_place_is_answered_once(tmp_path: Path) -> None:
    """However many different questions name it, in order or by turns, before and after a restart."""
    federation = scene(tmp_path)
    server = DishonestServer(federation, rounds=9)
    study = server.changed(weights={})
    assert server.begin(SITE, study).given
    given = 0
    for number in range(12):
        torch.manual_seed(number)
        state = {k: torch.randn_like(v) if v.is_floating_point() else v for k, v in server.fresh().items()}
        given += server.question(SITE, Down(model=state), study, at=(1 + number % 2, 1)).given
        if number == 5:
            federation.carrier.responders[SITE] = federation.responder(SITE)
    assert given == 2
    assert not server.question(SITE, Down(model=server.fresh()), study, at=(1, 1)).given
    assert server.question(SITE, Down(model=server.fresh()), study, at=(5, 1)).given, "rounds may be missed"
    assert not server.question(SITE, Down(model=server.fresh()), study, at=(4, 1)).given, "but not made up for"


def test_first_weights_are_those_of_the_study(tmp_path: Path) -> None:
    server = DishonestServer(scene(tmp_path))
    crafted = {k: v + 1 if v.is_floating_point() else v for k, v in server.fresh().items()}
    refused = server.ask(SITE, Down(model=crafted))
    assert not refused.given and "other first weights" in refused.reason


@pytest.mark.parametrize(
    "settings",
    [
        {"batch": 1, "steps": 1},
        {"batch": 1, "epochs": 1.0},
        {"batch": 2, "steps": 1},
        {"batch": 8, "steps": 1},
        {"batch": 15, "epochs": 0.01},
    ],
)
def test_no_update_rests_on_few_images(settings: dict[str, Any], tmp_path: Path) -> None:
    server = DishonestServer(scene(tmp_path))
    answer = train(server, server.changed(set=settings))
    assert not answer.given and ("smallest_batch" in answer.reason or "fewest_images" in answer.reason)


@pytest.mark.parametrize(
    "settings", [{"epochs": 1e15}, {"steps": 10**15}, {"epochs": 1e308}, {"steps": 10**6, "batch": 64}, {"steps": 2**62, "batch": 2**40}]
)
def test_work_without_end_is_refused_before_it_begins(settings: dict[str, Any], tmp_path: Path) -> None:
    server = DishonestServer(scene(tmp_path))
    study, began = server.changed(set=settings), time.monotonic()
    answer = train(server, study)
    assert not answer.given and "most_passes" in answer.reason and time.monotonic() - began < 5


def test_scores_rest_on_enough_images(tmp_path: Path) -> None:
    server = DishonestServer(scene(tmp_path))
    for validation in (1e-6, 0.01, 0.03):
        study = server.changed(experiment={"validation": validation, "seed": 7})
        answer = server.ask(SITE, Model(model=server.fresh()), study, at=(1, -1))
        assert not answer.given and "fewest_" in answer.reason


def test_by_rule_the_data_are_parted_once(tmp_path: Path) -> None:
    """Studies that differ in which images validate would tell class sizes, and single images, by what changes."""
    federation = FederationInMemory(tmp_path, FOUR, None, dict.fromkeys("abcd", Policy(studies="by-rule")), by_rule=False)
    server = DishonestServer(federation)
    assert train(server).given
    for split in ({"seed": 1}, {"validation": 0.11}, {"validation": 0.1001}, {"validation": 0.5}):
        answer = train(server, server.changed(experiment=split, weights={}))
        assert not answer.given and "most_splits" in answer.reason
    federation.carrier.responders[SITE] = federation.responder(SITE)
    assert not train(server, server.changed(experiment={"seed": 2}, weights={})).given, "after a restart too"


def test_by_rule_there_are_so_many_studies(tmp_path: Path) -> None:
    federation = FederationInMemory(tmp_path, FOUR, None, dict.fromkeys("abcd", Policy(studies="by-rule", most_studies=3)), by_rule=False)
    server = DishonestServer(federation)
    assert [train(server).given for _ in range(5)] == [True, True, True, False, False]


def test_by_hand_nothing_is_answered_before_a_person_agrees(tmp_path: Path) -> None:
    federation = FederationInMemory(tmp_path, FOUR, None, dict.fromkeys("abcd", Policy()), by_rule=False)
    server = DishonestServer(federation)
    study, other = server.changed(), server.changed()
    refused = train(server, study)
    assert not refused.given and "nobody here has approved" in refused.reason
    federation.carrier.responders[SITE].approve(study.signed(server.key))
    assert train(server, study).given and not train(server, other).given


def test_hello_tells_no_numbers(tmp_path: Path) -> None:
    server = DishonestServer(scene(tmp_path, Policy(kinds=("model",))))
    card = server.deliver(SITE, {"task": "hello", "nonce": "0"}).header["card"]
    numbers = [value for value in card.values() if isinstance(value, int) and not isinstance(value, bool)]
    assert numbers == [card["channels"]] and card["size"] == list(FOUR.size)
    for lie in ({"seed": 0}, {"validation": 0.5}, {"seed": 0, "validation": 0.5}):
        assert not server.deliver(SITE, {"task": "hello", "nonce": "0", **lie}).given
    study = server.changed()
    told = server.deliver(SITE, {"task": "begin", "study": study.digest}, study.signed(server.key))
    assert not told.given or told.header["approval"]["train"] is None


@pytest.mark.parametrize("alpha", [0.11, 0.2, 0.49])
def test_a_site_bounds_the_window_of_spectra(alpha: float, tmp_path: Path) -> None:
    policy = Policy(methods=("elcfs",), kinds=("model", "count", "score", "spectrum"), fields_that_grow=True, others_see=("spectrum",))
    server = DishonestServer(scene(tmp_path, policy), "elcfs", {"images_per_spectrum": 8, "batch": 8})
    assert server.ask(SITE, Nothing(), at=(0, 1)).given
    answer = server.ask(SITE, Nothing(), server.changed(set={"alpha": alpha}), at=(0, 1))
    assert not answer.given and "spectrum_reach" in answer.reason
    single = server.ask(SITE, Nothing(), server.changed(set={"images_per_spectrum": 1}), at=(0, 1))
    assert not single.given and "images_per_spectrum" in single.reason


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_a_question_that_is_not_finite_is_refused(number: float, tmp_path: Path) -> None:
    server = DishonestServer(scene(tmp_path))
    state = server.fresh()
    state["bn1.running_mean"] = state["bn1.running_mean"].clone()
    state["bn1.running_mean"][0] = number
    refused = server.ask(SITE, Down(model=state), server.changed(weights={}))
    assert not refused.given and "not finite" in refused.reason


def test_megabytes_count_by_round_whatever_the_order(tmp_path: Path) -> None:
    server = DishonestServer(scene(tmp_path, dataclasses.replace(EVERYTHING, most_megabytes_a_round=0.001)))
    answer = train(server)
    assert not answer.given and "most_megabytes_a_round" in answer.reason


def test_a_place_stays_taken_after_a_failed_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a server could try questions until one works."""
    server = DishonestServer(scene(tmp_path))
    study = server.changed(weights={})
    assert server.begin(SITE, study).given
    huge = {k: torch.full_like(v, 3e38) if v.is_floating_point() else v for k, v in server.fresh().items()}
    broken = server.question(SITE, Down(model=huge), study)
    assert broken.header["status"] in ("refused", "failed") and not broken.payload
    assert not server.question(SITE, Down(model=server.fresh()), study).given


def test_an_own_order_cannot_be_known(tmp_path: Path) -> None:
    """With the seed alone a server knows which images are in a step, unless the site draws in secret."""
    answers = []
    for number, own in enumerate((False, False, True)):
        policy = dataclasses.replace(EVERYTHING, own_order=own)
        server = DishonestServer(FederationInMemory(tmp_path / str(number), FOUR, None, dict.fromkeys("abcd", policy)), set={"batch": 8})
        answers.append(train(server, server.study).payload)
    assert answers[0] == answers[1] != answers[2]
    assert np.frombuffer(answers[2], np.uint8).size == np.frombuffer(answers[0], np.uint8).size
