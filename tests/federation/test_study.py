"""Studies: read strictly, shown in words, tried at a site, and carried through whatever dies on the way."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from federation_in_memory import EVERYTHING, FederationInMemory, KillingCarrier, alone
from tiny_settings import SETTINGS
from unseen import BadInput, Experiment
from unseen.data.domain import DomainDataset
from unseen.federation.kits import read_register
from unseen.federation.membership import members, remove
from unseen.federation.messages import SignedMessage
from unseen.federation.site.policy import Policy, Rejected
from unseen.federation.site.trying import try_study
from unseen.federation.study.study import Study, read_signed_study, read_study
from unseen.federation.study.words import in_words
from unseen.report.study_page import render_study
from unseen.runs.watch import Silent
from unseen.training import train

KEY = Ed25519PrivateKey.generate()


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory, tiny: DomainDataset) -> Study:
    federation = FederationInMemory(tmp_path_factory.mktemp("federation"), tiny, "c")
    return federation.federate(Experiment(SETTINGS["feddag"].build(), "tiny", "c", rounds=3)).study


def test_a_study_is_what_was_written_and_signed(study: Study) -> None:
    signed = study.signed(KEY)
    assert read_signed_study(signed, KEY.public_key()) == study and read_study(json.loads(study.text)).digest == study.digest
    with pytest.raises(BadInput, match="not signed by this federation's server"):
        read_signed_study(signed, Ed25519PrivateKey.generate().public_key())
    changed = json.loads(signed)
    changed["study"]["experiment"]["rounds"] += 1
    with pytest.raises(BadInput, match="not signed"):
        read_signed_study(json.dumps(changed).encode(), KEY.public_key())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), value=JSON)
def test_any_study_is_read_or_refused(study: Study, data: st.DataObject, value: Any) -> None:
    """Nothing that is in the file is lost in the reading: what is read writes the same file."""
    told = copy.deepcopy(json.loads(study.text))
    where: Any = told
    for _ in range(data.draw(st.integers(1, 3))):
        keys = [*where] if isinstance(where, dict) else [*range(len(where))] if isinstance(where, list) else []
        if not keys:
            break
        key = data.draw(st.sampled_from(keys))
        inside = where[key]
        if not isinstance(inside, dict | list) or data.draw(st.booleans()):
            where[key] = value
            break
        where = inside
    try:
        found = read_study(told)
    except BadInput:
        return
    assert json.loads(found.text) == told


@settings(max_examples=200)
@given(data=st.binary(max_size=300) | st.text(max_size=100).map(str.encode))
def test_no_file_ends_the_reading_but_with_a_message(data: bytes) -> None:
    with pytest.raises(BadInput):
        read_signed_study(data, KEY.public_key())


def test_the_plan_has_what_leaves_by_round(study: Study) -> None:
    """FedDAG warms up for a round without a generator, and the others assess the perturbed teachers."""
    rows = {(row.task, row.field): row for row in study.plan}
    warmup = study.experiment["set"]["warmup"]
    assert rows["train", "teacher"].first == 1 and rows["train", "teacher"].last == 3
    assert rows["train", "generator"].first == warmup + 1 and rows["train", "generator"].role == "generator"
    assert rows["aggregation.assess", "losses"].kind == "score" and rows["scoring.score", "metrics"].phase == "score"
    assert study.task_at(1, 1) == "train" and study.task_at(1, 2) == "aggregation.assess" and study.task_at(1, -1) == "scoring.score"
    assert study.task_at(4, 1) is None and study.task_at(0, 1) is None and study.task_at(1, 3) is None
    assert study.weights.keys() == {"model"}


def test_words_say_who_what_and_how_much(study: Study) -> None:
    words = in_words(study)
    assert [name for name, _, _ in words.participants] == ["a", "b", "c"] and words.participants[2][1] == "is scored on alone"
    assert "2 sites train" in words.lead and "No image and no label leaves" in words.lead
    assert any(when == "in every round" and "teacher" in what for when, what, _, _ in words.leaves)
    page = render_study(dataclasses.replace(study, schema={**study.schema, "classes": ["<script>x</script>", "b", "c"]}), "<b>signed</b>")
    assert "<script>" not in page and "&lt;script&gt;" in page and study.digest[:8] not in page  # another text, another name


def test_the_fingerprints_are_those_that_people_compared(tiny: DomainDataset, tmp_path: Path) -> None:
    federation = FederationInMemory(tmp_path, tiny, "c")
    study = federation.federate(Experiment(SETTINGS["fedavg"].build(), "tiny", "c", rounds=1)).study
    assert {name: text for name, _, text in in_words(study).participants} == {
        m.name: m.fingerprint for m in members(federation.server.path)
    }


def test_a_site_tries_a_study_and_nothing_is_sent(study: Study, tiny: DomainDataset) -> None:
    tried = try_study(study, alone(tiny, "a"), "a", EVERYTHING, "cpu")
    assert {row["field"] for row in tried.left} >= {"teacher", "perturbed", "losses", "metrics"} and "accuracy" in tried.metrics
    assert try_study(study, alone(tiny, "c"), "c", EVERYTHING, "cpu").left


def test_a_study_that_the_rules_forbid_is_not_tried(study: Study, tiny: DomainDataset) -> None:
    for rules, named in (
        (Policy(methods=("fedsb",)), "methods"),
        (Policy(kinds=("count",)), "kinds"),
        (Policy(others_see=()), "others_see"),
    ):
        with pytest.raises(Rejected, match=named):
            try_study(study, alone(tiny, "a"), "a", rules, "cpu")


@pytest.mark.parametrize("name", ["fedsb", "elcfs", "feddag"])
def test_kills_at_any_moment_cost_time_and_no_bit(name: str, tiny: DomainDataset, tmp_path: Path) -> None:
    experiment = Experiment(SETTINGS[name].build(), "tiny", "c", rounds=3)
    here = tmp_path / "here"
    train(dataclasses.replace(experiment, data=tiny), here, watch=Silent())
    federation = FederationInMemory(tmp_path / "federation", tiny, "c")
    run = federation.federate(experiment)
    federation.carrier = killing = KillingCarrier(federation, every=8)
    there, ended = tmp_path / "there", False
    while not ended:
        try:
            train(experiment, there, watch=Silent(), resume=there.exists(), elsewhere=federation.again(run))
            ended = True
        except KeyboardInterrupt:
            assert killing.kills < 60
    assert killing.kills >= 5
    for file in ("records.jsonl", "model.safetensors", "best.safetensors"):
        assert (here / file).read_bytes() == (there / file).read_bytes()


def test_a_study_that_ended_keeps_no_memory(tiny: DomainDataset, tmp_path: Path) -> None:
    federation = FederationInMemory(tmp_path, tiny, "c")
    experiment = Experiment(SETTINGS["feddyn"].build(), "tiny", "c", rounds=2)
    run = federation.federate(experiment)
    train(experiment, tmp_path / "run", watch=Silent(), elsewhere=run)
    folder = tmp_path / "a/studies" / run.study.digest
    assert not (folder / "memory").exists() and (folder / "progress.json").exists()
    assert json.loads((folder / "progress.json").read_text())["ended"]


def test_a_removed_site_is_asked_no_more(tiny: DomainDataset, tmp_path: Path) -> None:
    federation = FederationInMemory(tmp_path, tiny, "c")
    experiment = Experiment(SETTINGS["fedsb"].build(), "tiny", "c", rounds=2)
    run = federation.federate(experiment)

    def removing(client: str, signed: SignedMessage) -> SignedMessage:
        if client == "b" and b"accuracy" in signed.payload and "b" in read_register(federation.server.path)["clients"]:
            remove(federation.server.path, "b")
        return signed

    federation.carrier.tamper = removing
    first, second = train(experiment, tmp_path / "run", watch=Silent(), elsewhere=run).records
    assert not first["missing"] and second["missing"] == {"b": "train: not in the federation any more under its key"}


def test_answers_of_an_ended_study_go_when_the_next_begins(tiny: DomainDataset, tmp_path: Path) -> None:
    federation = FederationInMemory(tmp_path, tiny, "c")
    experiment = Experiment(SETTINGS["fedsb"].build(), "tiny", "c", rounds=1)
    first = federation.federate(experiment)
    train(experiment, tmp_path / "run", watch=Silent(), elsewhere=first)
    answers = tmp_path / "a/studies" / first.study.digest / "answers"
    assert any(answers.iterdir())
    federation.federate(experiment)
    assert not answers.exists()


@pytest.mark.parametrize("text", ["{}", "[1", "\x00", '{"sums": true}'])
def test_a_study_of_another_version_hinders_no_other(tiny: DomainDataset, tmp_path: Path, text: str) -> None:
    federation = FederationInMemory(tmp_path, tiny, "c")
    experiment = Experiment(SETTINGS["fedsb"].build(), "tiny", "c", rounds=1)
    first = federation.federate(experiment)
    (tmp_path / "a/studies" / first.study.digest / "study.json").write_text(text)
    federation.carrier.responders["a"] = federation.responder("a")
    assert set(federation.federate(experiment).world.holdings) == {"a", "b"}
    federation.again(first)
    assert any("a does not take part" in line and "another version wrote it" in line for line in federation.said)
