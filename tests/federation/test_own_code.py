"""A site never imports code and never opens a path that a message names, wherever in the message it stands."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import tiny_classification
from federation_in_memory import FederationInMemory
from tiny_settings import SETTINGS
from unseen import BadInput, Experiment, FedAvg
from unseen.data.domain import DomainDataset
from unseen.experiment import options, read_experiment
from unseen.federation.messages import Message, sign
from unseen.federation.site.approving import experiment_of
from unseen.federation.site.policy import Rejected
from unseen.federation.study.study import Study
from unseen.methods import METHODS
from unseen.own_code import Own
from unseen.settings import settings_of

CODE = "from pathlib import Path\nPath(__file__).with_name('sentinel').write_text('imported')\nNet = Mean = augment = None\n"
NAMES = ("Net", "Mean", "augment", "Net:width=8", "Net:head=fc,width=8", "", "nowhere")
KEYS = [s.name for s in options()]
FIELDS = sorted({s.name for cls in METHODS.values() for s in settings_of(cls)})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    (folder / "evil.py").write_text(CODE)
    return folder


def study(experiment: dict[str, Any], schema: dict[str, Any]) -> Study:
    return Study("0" * 16, "", experiment, schema, {}, 1, False, (), {}, ())


def nested(text: str, draw: Any) -> Any:
    """The text somewhere inside lists and tables, as a value or a key."""
    value: Any = text
    for _ in range(draw(st.integers(0, 4))):
        other = draw(st.none() | st.integers() | st.text(max_size=5))
        value = draw(
            st.sampled_from([[other, value], {"name": value}, {"name": "cea", "of": value}, {"x": other, "y": value}, [[value]]])
            if not isinstance(value, str)
            else st.sampled_from([[value], {"name": value}, {value: other}, {"name": "mean", "more": value}, f"small_cnn:width={value}"])
        )
    return value


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_nothing_that_a_study_names_is_imported(folder: Path, data: Any) -> None:
    text = f"{folder / 'evil.py'}:{data.draw(st.sampled_from(NAMES))}"
    value = nested(text, data.draw)
    experiment: dict[str, Any] = Experiment(FedAvg(), "tiny", "c").description()
    schema: dict[str, Any] = {"name": "tiny", "classes": ["x"], "network": "small_cnn", "augment": "none"}
    place = data.draw(st.sampled_from(["method", "set", "key", "schema", *KEYS]))
    if place == "set":
        experiment["set"] = {**experiment["set"], data.draw(st.sampled_from(FIELDS)): value}
    elif place == "key":
        experiment = {**experiment, text: value}
    elif place == "schema":
        schema[data.draw(st.sampled_from(sorted(schema)))] = value
    else:
        experiment[place] = value
    with pytest.raises(Rejected, match="only what is installed here runs here"):
        experiment_of(study(experiment, schema), tiny_classification())
    if place != "schema":
        with pytest.raises(BadInput, match="only what is installed here runs here"):
            read_experiment(experiment)
    assert not (folder / "sentinel").exists()


def test_a_saved_partition_is_not_opened() -> None:
    experiment = {**Experiment(FedAvg(), "tiny", "c").description(), "partition": "file:/etc/passwd"}
    with pytest.raises(Rejected, match="partition: only what is installed here runs here"):
        experiment_of(study(experiment, {}), tiny_classification())


def test_a_study_that_names_code_is_refused_with_the_rule(tiny: DomainDataset, tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text(CODE)
    federation = FederationInMemory(tmp_path / "federation", tiny, "c")
    honest = federation.federate(Experiment(SETTINGS["fedavg"].build(), "tiny", "c", rounds=1)).study
    evil = dataclasses.replace(honest, experiment={**honest.experiment, "network": f"{tmp_path / 'evil.py'}:Net"})
    key = federation.server.signing
    header = {"federation": federation.server.id, "to": "a", "task": "begin", "study": evil.digest}
    answer = federation.carrier.responders["a"].answer(sign(Message(header, evil.signed(key)), key, "question"))
    told = json.loads(answer.header)
    assert told["status"] == "refused" and told["reason"] == "network: only what is installed here runs here"
    assert not (tmp_path / "sentinel").exists()


def test_a_server_says_so_before_it_asks_anybody(tiny: DomainDataset, tmp_path: Path) -> None:
    federation = FederationInMemory(tmp_path / "federation", tiny, "c")
    for own in ({"network": Own("/x/mine.py:Net", object)}, {"metric": lambda p, y: 1.0}):
        with pytest.raises(BadInput, match="only what is installed at the sites runs"):
            federation.federate(Experiment(FedAvg(), "tiny", "c", **own))  # type: ignore[arg-type]
    assert not federation.carrier.carried


def test_own_code_runs_for_the_user_who_typed_it_alone(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text(CODE)
    with pytest.raises(BadInput, match="only what is installed here runs here"):
        read_experiment({"method": "fedavg", "set": {"optimizer": f"{tmp_path / 'evil.py'}:Net"}})
    assert not (tmp_path / "sentinel").exists()
    with pytest.raises(BadInput, match="expected a class or a function"):
        read_experiment({"method": "fedavg", "set": {"optimizer": f"{tmp_path / 'evil.py'}:Net"}}, own_code=True)
    assert (tmp_path / "sentinel").exists()
