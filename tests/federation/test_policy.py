"""A site's policy: read from its file, and enforced at the site before anything is sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from federation_in_memory import EVERYTHING, FederationInMemory
from tiny_settings import SETTINGS
from unseen import Experiment
from unseen.data.domain import DomainDataset
from unseen.errors import BadInput, NoReplies
from unseen.federation.site.ledger import read_ledger, verify
from unseen.federation.site.policy import Policy, Privacy, read_policy
from unseen.runs.watch import Silent
from unseen.training import Result, train


def go(tmp_path: Path, data: DomainDataset, name: str = "fedsb", policy: Policy | None = None, rounds: int = 1, who: str = "a") -> Result:
    federation = FederationInMemory(tmp_path, data, "c", {who: policy} if policy else None)
    experiment = Experiment(SETTINGS[name].build(), data.name, "c", rounds=rounds)
    return train(experiment, tmp_path / "run", watch=Silent(), elsewhere=federation.federate(experiment))


def test_the_default_lets_out_models_counts_and_scores_only() -> None:
    assert (
        Policy().kinds == ("model", "update", "control", "count", "number", "score")
        and not Policy().fields_that_grow
        and not Policy().privacy.on
    )


@pytest.mark.parametrize(
    ("policy", "rule"),
    [
        (Policy(methods=("fedavg",)), "methods"),
        (Policy(kinds=("count", "score")), "kinds"),
        (Policy(most_megabytes_a_round=1e-6), "most_megabytes_a_round"),
        (Policy(minimum_samples=1000), "minimum_samples"),
        (Policy(minimum_clients=3), "minimum_clients"),
    ],
)
def test_a_refusal_names_its_rule_and_the_others_go_on(policy: Policy, rule: str, tiny: DomainDataset, tmp_path: Path) -> None:
    record = go(tmp_path, tiny, policy=policy).records[0]
    assert record["missing"].keys() == {"a"} and f"refused by the site: {rule}" in record["missing"]["a"]
    sent = {client for row in record["travelled"] if row["direction"] == "sent" for client in row["clients"]}
    assert sent == {"b"}
    left = [entry for entry in read_ledger(tmp_path / "a" / "ledger.jsonl") if entry["task"] == "train"]
    assert not left


def test_spectra_are_refused_by_default_and_may_grow_only_if_told(tiny: DomainDataset, tmp_path: Path) -> None:
    both = dict.fromkeys("ab", Policy())
    federation = FederationInMemory(tmp_path, tiny, "c", both)
    experiment = Experiment(SETTINGS["elcfs"].build(), "tiny", "c", rounds=1)
    with pytest.raises(NoReplies, match="kinds: low is a spectrum"):
        train(experiment, tmp_path / "run", watch=Silent(), elsewhere=federation.federate(experiment))
    grows = Policy(kinds=EVERYTHING.kinds)
    federation = FederationInMemory(tmp_path / "again", tiny, "c", dict.fromkeys("ab", grows))
    with pytest.raises(NoReplies, match="fields_that_grow: low"):
        train(experiment, tmp_path / "again/run", watch=Silent(), elsewhere=federation.federate(experiment))


def test_a_site_may_give_its_score_after_the_last_round_alone(tiny: DomainDataset, tmp_path: Path) -> None:
    first, last = go(tmp_path, tiny, policy=Policy(scores="last-round"), rounds=2, who="c").records
    assert first["target"] == {} and last["target"].keys() == {"c"}


def test_everything_that_left_is_in_the_ledger(tiny: DomainDataset, tmp_path: Path) -> None:
    records = go(tmp_path, tiny, "feddag", rounds=2).records
    rows = [row for record in records for row in [*record["travelled"], *record["scoring"]]]
    told = sorted((row["field"], row["kind"], row["bytes"]) for row in rows if row["direction"] == "sent" and "a" in row["clients"])
    entries = [entry for entry in read_ledger(tmp_path / "a" / "ledger.jsonl") if entry["task"] != "hello"]
    assert sorted((e["field"], e["kind"], e["bytes"]) for e in entries) == told
    assert verify(tmp_path / "a" / "ledger.jsonl") == len(entries) + 1


def test_privacy_is_spent_recorded_and_ends(tiny: DomainDataset, tmp_path: Path) -> None:
    privacy = Privacy(on=True, clip=1.0, noise=4.0, most_epsilon=6.0)
    records = go(tmp_path, tiny, policy=Policy(privacy=privacy), rounds=4).records
    spent = [record["notes"]["epsilon"]["a"] for record in records]
    assert 0 < spent[0] < spent[1] <= 6.0 and max(spent) <= 6.0
    assert "privacy: epsilon would be" in records[-1]["missing"]["a"]


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text('methods = ["fedsb"]\nminimum_clients = 3\nmost_megabytes_a_round = 5\n[privacy]\non = true\nclip = 2\n')
    policy = read_policy(file)
    assert policy.methods == ("fedsb",) and policy.most_megabytes_a_round == 5.0 and policy.privacy == Privacy(on=True, clip=2.0)
    assert read_policy(None) == Policy()
    file.write_text('method = ["fedsb"]\nkinds = ["modle"]\nminimum_clients = "3"\nscores = "never"\nprivacy = 3\n')
    with pytest.raises(BadInput) as bad:
        read_policy(file)
    text = str(bad.value)
    assert "did you mean 'methods'" in text and "did you mean 'model'" in text and "minimum_clients is '3'" in text and "5 problems" in text
    for number in ("0", "-1", "inf", "nan"):
        file.write_text(f"[privacy]\nnoise = {number}\n")
        with pytest.raises(BadInput, match="privacy: expected"):
            read_policy(file)
    for content in (b"\xff", b"= 3"):
        file.write_bytes(content)
        with pytest.raises(BadInput, match="not a TOML file"):
            read_policy(file)
    with pytest.raises(BadInput, match="no file"):
        read_policy(tmp_path / "none.toml")
