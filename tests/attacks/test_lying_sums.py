"""A dishonest server in the middle of a secure sum, against real sites: what it tells of the sites' keys, and steps that it makes up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from conftest import tiny_classification
from dishonest_server import Answer, DishonestServer
from federation_in_memory import FederationInMemory
from unseen import Experiment, FedAvg
from unseen.data.domain import DomainDataset
from unseen.errors import NoReplies
from unseen.federation.kits import open_kit
from unseen.federation.server.exchange import Terms
from unseen.federation.server.proposing import propose
from unseen.federation.server.summing import before_question
from unseen.federation.site.policy import Policy
from unseen.federation.study.approvals import approve, read_approval
from unseen.federation.sums.context import pack
from unseen.methods.fedavg import Down
from unseen.runs.watch import Silent
from unseen.training import train

THREE = tiny_classification((80, 60, 60))
SITES = ("a", "b", "c")
FOUR = tiny_classification((80, 60, 60, 60))


class InTheMiddle(DishonestServer):
    """Begins a summed study with real sites, and asks each of them step by step. Some may allow sums to lose sites."""

    def __init__(self, folder: Path, data: DomainDataset = THREE, may_lose: str = "", rounds: int = 1) -> None:
        self.sites = data.names
        policies = {site: Policy(secure_sums=True, sums_may_lose_sites=site in may_lose) for site in self.sites}
        federation = FederationInMemory(folder, data, None, policies)
        super().__init__(federation, rounds=rounds)
        self.study = propose(self.experiment, federation.server, federation.carrier, Terms(), lambda message: None, True)
        begun = {
            site: self.deliver(site, {"task": "begin", "study": self.study.digest}, self.study.signed(self.key)) for site in self.sites
        }
        self.approvals = {site: answer.header["approval"] for site, answer in begun.items()}

    def tell(self, site: str, **others: dict[str, Any]) -> Answer:
        """Who approved, with some approvals exchanged for others."""
        approvals = [*{**self.approvals, **others}.values()]
        return self.deliver(site, {"task": "agreed", "study": self.study.digest}, json.dumps(approvals).encode())

    def step(self, site: str, step: int, content: bytes = b"", **lies: Any) -> Answer:
        payload = before_question(content) + Down(model=self.fresh()).to_bytes() if step == 2 else content
        place = {"round": 1, "ask": 1, "step": step, "versions": {}, **lies}
        return self.deliver(site, {"task": "ask", "study": self.study.digest, **place}, payload)

    def keys(self, **lies: Any) -> dict[str, dict[str, Any]]:
        """Step 1 at every site."""
        answers = {site: self.step(site, 1, **lies) for site in self.sites}
        assert all(answer.given for answer in answers.values()), [answer.header for answer in answers.values()]
        return {site: json.loads(answer.payload) for site, answer in answers.items()}

    def forged(self, site: str, box: str | None) -> dict[str, Any]:
        """The approval of a site that is on the server's side, with another key for sums."""
        kit = open_kit(self.federation.server.path / "kits" / f"{site}.kit", self.federation.folder / site)
        held = read_approval(self.approvals[site])
        return approve(self.study, site, held.train, held.validation, kit.signing, box).plain()


def words_question(shown: dict[str, dict[str, Any]], site: str) -> bytes:
    """Of three sites nobody shares a secret, so there are no boxes."""
    assert site in shown and all(told["boxes"] == {} for told in shown.values())
    return pack({"keys": {name: told["keys"] for name, told in shown.items()}, "boxes": {}})


def question_with_boxes(shown: dict[str, dict[str, Any]], site: str) -> bytes:
    """As an honest server passes on what the sites told it."""
    boxes = {name: told["boxes"][site] for name, told in shown.items() if site in told["boxes"]}
    return pack({"keys": {name: told["keys"] for name, told in shown.items()}, "boxes": boxes})


def consents(server: InTheMiddle, round_number: int, lost: str) -> list[Answer]:
    """Every site gives its words in this round; then one of them is called lost, and the others are asked to consent."""
    shown = server.keys(round=round_number)
    for site in server.sites:
        assert server.step(site, 2, question_with_boxes(shown, site), round=round_number).given
    others = [site for site in server.sites if site != lost]
    return [server.step(site, 3, pack({"survivors": others}), round=round_number) for site in others]


@pytest.mark.parametrize("may_lose", ["", "a", "abc"])
def test_no_sum_of_a_study_leaves_out_a_site(may_lose: str, tmp_path: Path) -> None:
    """With the same weights in each round, and another site called lost in each, four sums of three would tell every single answer."""
    server = InTheMiddle(tmp_path, FOUR, may_lose, rounds=2)
    assert all(server.tell(site).given for site in server.sites)
    for round_number, lost in ((1, "d"), (2, "c")):
        for refused in consents(server, round_number, lost):
            assert not refused.given and "that needs all of its 4 sites does not have" in refused.reason


def test_sums_leave_out_sites_where_all_of_them_allow_it(tmp_path: Path) -> None:
    server = InTheMiddle(tmp_path, FOUR, "abcd")
    assert all(server.tell(site).given for site in server.sites)
    assert all(answer.given for answer in consents(server, 1, "d"))


def test_the_server_cannot_allow_losses_for_a_site(tmp_path: Path) -> None:
    server = InTheMiddle(tmp_path, FOUR, "abc")
    for approval in ({**server.approvals["d"], "may_lose": True}, {**server.approvals["d"], "may_lose": 1}):
        assert not server.tell("a", d=approval).given
    without = {key: value for key, value in server.approvals["c"].items() if key != "may_lose"}
    assert not server.tell("a", c=without).given and server.tell("a").given


def test_a_site_that_allows_losses_no_more_takes_no_part_in_the_study(tmp_path: Path) -> None:
    """What it signed says so still, and the others go by that."""
    server = InTheMiddle(tmp_path, FOUR, "abcd")
    assert server.tell("a").given
    server.federation.policies = {**server.federation.policies, "a": Policy(secure_sums=True)}
    server.federation.carrier.responders["a"] = server.federation.responder("a")
    refused = server.step("a", 1)
    assert not refused.given and "sums_may_lose_sites" in refused.reason and "propose the study anew" in refused.reason


def other_box() -> str:
    return X25519PrivateKey.generate().public_key().public_bytes_raw().hex()


def test_an_honest_sum_in_its_two_steps(tmp_path: Path) -> None:
    server = InTheMiddle(tmp_path)
    assert all(server.tell(site).given for site in SITES)
    shown = server.keys()
    assert [*tmp_path.glob("a/studies/*/sums/*")]
    answers = {site: server.step(site, 2, words_question(shown, site)) for site in SITES}
    assert all(answer.given for answer in answers.values()) and not [*tmp_path.glob("*/studies/*/sums/*")]
    again = server.step("a", 2, words_question(shown, "a"))  # from the disk: its secrets are gone
    assert again.given and again.payload == answers["a"].payload


def test_a_site_whose_answer_and_secrets_are_gone_masks_nothing_again(tmp_path: Path) -> None:
    """Neither to the same question nor to one with the keys that it shows now: other words under other masks would tell the difference."""
    server = InTheMiddle(tmp_path)
    assert all(server.tell(site).given for site in SITES)
    shown = server.keys()
    assert server.step("a", 2, words_question(shown, "a")).given
    [lost] = tmp_path.glob("a/studies/*/answers/1.1.2")
    lost.unlink()
    refused = server.step("a", 2, words_question(shown, "a"))
    assert not refused.given and "of a secure sum" in refused.reason and not lost.exists()


def test_secrets_that_a_kill_left_behind_go_with_the_next_question(tmp_path: Path) -> None:
    """Killed between its answer, which is on the disk, and the secrets' end."""
    server = InTheMiddle(tmp_path)
    assert all(server.tell(site).given for site in SITES)
    shown = server.keys()
    [secrets] = tmp_path.glob("a/studies/*/sums/*")
    kept = secrets.read_bytes()
    assert server.step("a", 2, words_question(shown, "a")).given and not secrets.exists()
    secrets.write_bytes(kept)
    assert server.step("a", 2, words_question(shown, "a")).given and not secrets.exists()


def test_the_server_cannot_put_in_a_key_of_its_own(tmp_path: Path) -> None:
    """With it, it would read the shares that are meant for a site."""
    server = InTheMiddle(tmp_path)
    for lie in ({**server.approvals["b"], "box": other_box()}, {k: v for k, v in server.approvals["b"].items() if k != "box"}):
        refused = server.tell("a", b=lie)
        assert not refused.given and "does not bear its signature" in refused.reason
    exchanged = server.tell("a", b={**server.approvals["b"], "box": server.approvals["c"]["box"]})
    assert not exchanged.given and server.tell("a").given


@pytest.mark.parametrize("box", ["00" * 32, "01" + "00" * 31, "zz" * 32, "", 7, None, "AB" * 32])
def test_a_key_that_is_none_is_refused(box: Any, tmp_path: Path) -> None:
    """Also one of a site that is on the server's side, which signs it: with a key of low order the server opens what is sent to it."""
    server = InTheMiddle(tmp_path)
    refused = server.tell("a", b={**server.forged("b", box), "box": box})
    if refused.given:
        pytest.fail("such a key was taken")
    assert not server.step("a", 1).given and server.tell("a").given and server.step("a", 1).given


def test_without_a_key_there_is_no_sum(tmp_path: Path) -> None:
    server = InTheMiddle(tmp_path)
    assert server.tell("a", b=server.forged("b", None)).given
    refused = server.step("a", 1)
    assert not refused.given and "b gave no key for the sums of this study" in refused.reason
    assert not [*tmp_path.glob("a/studies/*/sums/*")]


def test_sites_that_were_told_different_keys_are_in_no_sum_together(tmp_path: Path) -> None:
    """c is on the server's side and signs two keys, one for each of the others."""
    server = InTheMiddle(tmp_path)
    assert server.tell("a").given and server.tell("b", c=server.forged("c", other_box())).given and server.tell("c").given
    shown = server.keys()
    refused = server.step("a", 2, words_question(shown, "a"))
    assert not refused.given and "b did not sign for this sum" in refused.reason
    later = server.tell("a", c=server.forged("c", other_box()))
    assert not later.given and "told before, and otherwise" in later.reason


@pytest.mark.parametrize("step", [0, 3, 4, 5, 9])
def test_steps_that_a_sum_of_three_does_not_have_are_refused(step: int, tmp_path: Path) -> None:
    server = InTheMiddle(tmp_path)
    assert all(server.tell(site).given for site in SITES)
    shown = server.keys()
    assert server.step("a", 2, words_question(shown, "a")).given
    refused = server.step("a", step, pack({"survivors": [*SITES]}))
    assert not refused.given
    assert step not in (3, 4) or "that needs all of its 3 sites does not have" in refused.reason


def test_a_place_is_not_summed_twice(tmp_path: Path) -> None:
    """Two sums of the same answers among other sites would give their difference."""
    server = InTheMiddle(tmp_path)
    assert all(server.tell(site).given for site in SITES)
    shown = server.keys()
    first = words_question(shown, "a")
    assert server.step("a", 2, first).given
    for content in (first + b" ", words_question({**shown, "c": shown["b"]}, "a")):
        refused = server.step("a", 2, content)
        assert not refused.given and "another question" in refused.reason
    assert server.step("a", 1, b"x").header["status"] == "refused"
    assert server.step("a", 1).payload == pack(shown["a"]), "the same keys, from the disk"


def test_a_site_whose_key_for_sums_is_gone_says_so(tmp_path: Path) -> None:
    server = InTheMiddle(tmp_path)
    assert all(server.tell(site).given for site in SITES)
    [secret] = tmp_path.glob("a/studies/*/box.secret")
    assert secret.stat().st_mode & 0o077 == 0
    secret.unlink()
    refused = server.step("a", 1)
    assert not refused.given and "key for the sums of this study is gone; propose the study anew" in refused.reason


class Omitting:
    """A carrier that asks one site nothing but what data it has."""

    def __init__(self, federation: FederationInMemory, left_out: str) -> None:
        self._responders, self._left_out = federation.carrier.responders, left_out

    def exchange(self, messages: Any, seconds: float) -> Any:
        for site, message in messages.items():
            asked = site != self._left_out or json.loads(message.header)["task"] == "hello"
            yield site, self._responders[site].answer(message) if asked else "not asked"


def sum_without(federation: FederationInMemory, left_out: str, out: Path) -> None:
    carrier = federation.carrier
    federation.carrier = Omitting(federation, left_out)
    experiment = Experiment(FedAvg(batch=16), "town", None, rounds=1, network="small_cnn:width=2", augment="none", device="cpu")
    try:
        train(experiment, out, watch=Silent(), elsewhere=federation.federate(experiment, sums=True))
    finally:
        federation.carrier = carrier


def test_one_experiment_summed_again_without_another_site_is_refused(tmp_path: Path) -> None:
    """Four sums of three, each without another of four sites, would tell what every site gave."""
    data = tiny_classification((80, 60, 60, 60))
    by_rule = Policy(studies="by-rule", secure_sums=True, minimum_clients=2)
    federation = FederationInMemory(tmp_path / "f", data, None, dict.fromkeys("abcd", by_rule), by_rule=False)
    sum_without(federation, "d", tmp_path / "first")
    sum_without(federation, "d", tmp_path / "again")  # the same sites: the same sum
    with pytest.raises(NoReplies, match="1 of 3 sites gave a usable answer"):
        sum_without(federation, "c", tmp_path / "other")
    entries = [*federation.carrier.responders["a"]._ledger.entries()]
    [reason] = {entry["reason"] for entry in entries if entry["kind"] == "refusal" and entry["task"] == "agreed"}
    assert "summed among a, b, c before, now it would be a, b, d" in reason
    assert [sorted(entry["sites"]) for entry in entries if entry["kind"] == "summed"] == [["a", "b", "c"]] * 2
