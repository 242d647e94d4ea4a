"""A site's policy: read from its file, and enforced at the site before anything is sent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from federation_in_memory import EVERYTHING, FederationInMemory
from tiny_settings import SETTINGS
from unseen import Experiment
from unseen.data.domain import DomainDataset
from unseen.errors import BadInput
from unseen.federation.site.ledger import read_ledger
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
    ("rules", "rule"),
    [
        ({"methods": ("fedavg",)}, "methods"),
        ({"kinds": ("count", "score")}, "kinds"),
        ({"networks": ("generator",)}, "networks"),
        ({"most_rounds": 0}, "most_rounds"),
        ({"minimum_samples": 1000}, "minimum_samples"),
        ({"minimum_clients": 3}, "minimum_clients"),
        ({"secure_sums": True}, "secure_sums"),
        ({"fewest_images": 100}, "fewest_images"),
        ({"fewest_validation": 100}, "fewest_validation"),
        ({"fewest_classes": 9}, "fewest_classes"),
    ],
)
def test_a_study_that_breaks_a_rule_is_not_approved_and_the_others_go_on(
    rules: dict[str, Any], rule: str, tiny: DomainDataset, tmp_path: Path
) -> None:
    federation = FederationInMemory(tmp_path, tiny, "c", {"a": replace(EVERYTHING, **rules)})
    experiment = Experiment(SETTINGS["fedsb"].build(), tiny.name, "c", rounds=1)
    record = train(experiment, tmp_path / "run", watch=Silent(), elsewhere=federation.federate(experiment)).records[0]
    assert any(f"a does not take part: refused by the site: {rule}" in said for said in federation.said)
    sent = {client for row in record["travelled"] if row["direction"] == "sent" for client in row["clients"]}
    assert sent == {"b"}
    assert not [
        entry for entry in read_ledger(tmp_path / "a" / "ledger.jsonl") if entry.get("task") == "ask" and entry["kind"] != "refusal"
    ]


@pytest.mark.parametrize(
    ("rules", "rule"),
    [
        ({"most_megabytes_a_round": 1e-6}, "most_megabytes_a_round"),
        ({"smallest_batch": 1000}, "smallest_batch"),
        ({"most_passes": 0.01}, "most_passes"),
        ({"most_minutes": 0.0}, "most_minutes"),
    ],
)
def test_a_rule_about_the_work_refuses_the_answer(rules: dict[str, Any], rule: str, tiny: DomainDataset, tmp_path: Path) -> None:
    record = go(tmp_path, tiny, policy=replace(EVERYTHING, **rules)).records[0]
    assert record["missing"].keys() == {"a"} and f"refused by the site: {rule}" in record["missing"]["a"]
    refusals = [entry for entry in read_ledger(tmp_path / "a" / "ledger.jsonl") if entry["kind"] == "refusal"]
    assert any(rule in entry["reason"] for entry in refusals)


@pytest.mark.parametrize(
    ("rules", "rule"),
    [
        ({"kinds": Policy().kinds}, "kinds: low is a spectrum"),
        ({"fields_that_grow": False}, "fields_that_grow: low"),
        ({"images_per_spectrum": 8}, "images_per_spectrum: 1, at least 8"),
        ({"spectrum_reach": 0.01}, "spectrum_reach"),
        ({"others_see": ("model",)}, "others_see: other sites would get a spectrum"),
    ],
)
def test_spectra_leave_only_where_every_rule_lets_them(rules: dict[str, Any], rule: str, tiny: DomainDataset, tmp_path: Path) -> None:
    federation = FederationInMemory(tmp_path, tiny, "c", dict.fromkeys("ab", replace(EVERYTHING, **rules)))
    with pytest.raises(BadInput, match="0 sites are there to train"):
        federation.federate(Experiment(SETTINGS["elcfs"].build(), "tiny", "c", rounds=1))
    assert any(rule in said for said in federation.said)


def test_a_site_may_give_its_score_after_the_last_round_alone(tiny: DomainDataset, tmp_path: Path) -> None:
    first, last = go(tmp_path, tiny, policy=replace(EVERYTHING, scores="last-round"), rounds=2, who="c").records
    assert first["target"] == {} and last["target"].keys() == {"c"}


def test_everything_that_left_is_in_the_ledger(tiny: DomainDataset, tmp_path: Path) -> None:
    records = go(tmp_path, tiny, "feddag", rounds=2).records
    rows = [row for record in records for row in [*record["travelled"], *record["scoring"]]]
    told = sorted((row["field"], row["kind"], row["bytes"]) for row in rows if row["direction"] == "sent" and "a" in row["clients"])
    entries = [entry for entry in read_ledger(tmp_path / "a" / "ledger.jsonl") if "round" in entry]
    assert sorted((e["field"], e["kind"], e["bytes"]) for e in entries) == told
    assert {entry["noise"] for entry in entries} == {0.0} and len({entry["study"] for entry in entries}) == 1


def test_privacy_is_spent_recorded_and_ends(tiny: DomainDataset, tmp_path: Path) -> None:
    privacy = Privacy(on=True, clip=1.0, noise=4.0, most_epsilon=6.0)
    records = go(tmp_path, tiny, policy=replace(EVERYTHING, privacy=privacy), rounds=4).records
    spent = [record["notes"]["epsilon"]["a"] for record in records]
    assert 0 < spent[0] < spent[1] <= 6.0 and max(spent) <= 6.0
    assert "privacy: epsilon would be" in records[-1]["missing"]["a"]


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text('methods = ["fedsb"]\nminimum_clients = 3\nmost_megabytes_a_round = 5\n[privacy]\non = true\nclip = 2\n')
    policy = read_policy(file)
    assert policy.methods == ("fedsb",) and policy.most_megabytes_a_round == 5.0 and policy.privacy == Privacy(on=True, clip=2.0)
    assert read_policy(None) == Policy() and Policy().studies == "by-hand"
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
