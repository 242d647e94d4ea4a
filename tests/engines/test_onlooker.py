"""Models looked at while the next round trains: the same scores, and a run that is whole after a cut at any moment.

On a CPU nothing is looked at ahead by itself; here it is made to, so that all of it but the stream is tested without a GPU.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import methods_for_tests as own
from test_training import Killed, contents, cut_at, go
from unseen import Experiment, FedAvg, FedBN
from unseen.data.domain import DomainDataset
from unseen.engines import onlooker
from unseen.engines.cohort import scored
from unseen.engines.local import LocalEngine, _overlaps
from unseen.method import Method
from unseen.runs.record import read_records
from unseen.scoring import Model
from unseen.world import build_world


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalEngine, "looks_ahead", True)


@pytest.mark.parametrize("size", [3, 256])  # a batch of three holds samples of two clients now and then
def test_it_sees_what_scoring_sees(tiny: DomainDataset, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onlooker, "scoring_batch", lambda client: size)
    world = build_world(Experiment(FedAvg(), data=tiny, target="c"))
    engine, model = LocalEngine(world, tmp_path), Model(model=world.fresh("task"))
    expected, _ = scored(engine, world, 1, model)
    engine.look_ahead(1, model)
    torch.rand(5)  # whatever goes on in between
    seen, traffic = engine.score(1, model)
    assert seen.keys() == expected.keys() == {"a", "b", "c"}
    for name, scores in expected.items():
        assert seen[name].samples == scores.samples > 0
        assert seen[name].metrics == pytest.approx(scores.metrics, rel=1e-5, abs=1e-6)
    assert {row["task"] for row in traffic.rows()} == {"score"}


def test_a_run_that_scores_behind_is_the_same_run(tiny: DomainDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go(tiny, tmp_path / "plain")
    monkeypatch.setattr(LocalEngine, "looks_ahead", True)
    go(tiny, tmp_path / "ahead")
    for name in ("model.safetensors", "best.safetensors"):
        assert (tmp_path / "ahead" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()
    plain, behind = (json.dumps(read_records(tmp_path / run / "records.jsonl")) for run in ("plain", "ahead"))
    assert numbers(behind) == pytest.approx(numbers(plain), rel=1e-5) and len(read_records(tmp_path / "ahead" / "records.jsonl")) == 4


def numbers(text: str) -> list[float]:
    found: list[float] = []
    json.loads(text, parse_float=lambda number: found.append(float(number)))
    return found


@pytest.mark.usefixtures("ahead")
def test_it_resumes_after_a_cut_at_any_moment(tiny: DomainDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go(tiny, tmp_path / "whole")
    whole, moment, done = contents(tmp_path / "whole"), 3, False
    while not done:
        folder = tmp_path / str(moment)
        with monkeypatch.context() as patch:
            cut_at(patch, moment)
            try:
                go(tiny, folder)
                done = True
            except Killed:
                pass
        go(tiny, folder, resume=True)
        assert contents(folder) == whole, f"cut at moment {moment}"
        moment += 4


@pytest.mark.usefixtures("ahead")
def test_a_round_that_fails_leaves_the_one_before_it(tiny: DomainDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, rounds = own.Exercise.round, [0]

    def failing(self: Method[Any], state: Any, clients: Any) -> Any:
        rounds[0] += 1
        if rounds[0] == 3:
            raise KeyboardInterrupt
        return plain(self, state, clients)  # type: ignore[arg-type]

    monkeypatch.setattr(own.Exercise, "round", failing)
    with pytest.raises(KeyboardInterrupt):
        go(tiny, tmp_path / "run")
    assert [record["round"] for record in read_records(tmp_path / "run" / "records.jsonl")] == [1, 2]
    go(tiny, tmp_path / "run", resume=True)
    assert rounds[0] == 5, "two rounds were left, and none was trained again"


@pytest.mark.parametrize(
    ("device", "method", "masks", "ahead"),
    [
        ("cuda", FedAvg(), False, True),
        ("cpu", FedAvg(), False, False),
        ("cuda", FedBN(), False, False),  # its clients have models of their own
        ("cuda", FedAvg(), True, False),
    ],
)
def test_only_a_classifier_on_a_gpu_without_models_of_the_clients_own_is_looked_at_ahead(
    device: str, method: Method[Any], masks: bool, ahead: bool, tiny: DomainDataset, tiny_masks: DomainDataset
) -> None:
    world = build_world(Experiment(method, data=tiny_masks if masks else tiny, target="c"))
    object.__setattr__(world, "device", torch.device(device))
    assert _overlaps(world) is ahead


def test_an_engine_on_a_cpu_does_not_look_ahead(tiny: DomainDataset, tmp_path: Path) -> None:
    assert not LocalEngine(build_world(Experiment(FedAvg(), data=tiny, target="c")), tmp_path).looks_ahead
