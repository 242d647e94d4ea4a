"""The model averaged over rounds: by hand, scored and deployed in place of the raw one, which goes on training."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch

from unseen import Experiment
from unseen.data.domain import DomainDataset
from unseen.method import RoundAverage
from unseen.methods import METHODS
from unseen.parts.round_averages import EMA, Polynomial, Tail
from unseen.runs.folder import RunFolder, read_checkpoint
from unseen.runs.watch import Silent
from unseen.state import State, same_bits
from unseen.training import Result, train


def model(value: float, count: int) -> State:
    return {"w": torch.tensor([value]), "count": torch.tensor(count)}


def averaged(part: RoundAverage, values: list[float]) -> list[float]:
    kept: list[State] = []
    found = []
    for number, value in enumerate(values):
        kept = part.keep(kept, model(value, number))
        now = part.model(kept)
        assert now["w"].dtype is torch.float32 and now["count"] == number, "counters are the latest"
        found.append(float(now["w"]))
    return found


def test_by_hand() -> None:
    assert averaged(EMA(decay=0.75), [4.0, 8.0, 0.0]) == [4.0, 5.0, 3.75]
    assert averaged(Tail(rounds=2), [4.0, 8.0, 0.0, 1.0]) == [4.0, 6.0, 4.0, 0.5]
    assert averaged(Polynomial(power=0.0), [4.0, 8.0, 0.0]) == [4.0, 6.0, 4.0]
    assert averaged(Polynomial(power=1.0), [4.0, 7.0, 0.0]) == [4.0, 6.0, 3.0], "weights 1, 2 and 3"
    assert averaged(EMA(decay=0.0), [4.0, 8.0]) == averaged(Tail(rounds=1), [4.0, 8.0]) == [4.0, 8.0]


def test_half_of_a_polynomial_average_lies_in_the_last_tenth_of_the_rounds() -> None:
    rounds = 1000
    steps = [0.0] * (rounds * 9 // 10) + [1.0] * (rounds // 10)
    assert averaged(Polynomial(), steps)[-1] == pytest.approx(0.5, abs=0.05)


def go(data: DomainDataset, name: str, out: Path, average: RoundAverage | None, rounds: int = 3, resume: bool = False) -> Result:
    values = {"fedavg": {"lr": 0.02, "batch": 8}, "feddyn": {"lr": 0.05, "batch": 8, "alpha": 0.1, "epochs": 1}}[name]
    return train(Experiment(METHODS[name](**values, average=average), data, "c", rounds=rounds), out, watch=Silent(), resume=resume)


@pytest.mark.parametrize("name", ["fedavg", "feddyn"])
@pytest.mark.parametrize("average", [EMA(0.5), Tail(2), Polynomial()], ids=["ema", "tail", "polynomial"])
def test_training_goes_on_from_the_raw_model_and_the_average_is_scored(
    name: str, average: RoundAverage, tiny: DomainDataset, tmp_path: Path
) -> None:
    raw = {r: go(tiny, name, tmp_path / f"raw-{r}", None, rounds=r).state for r in (1, 2, 3)}
    result = go(tiny, name, tmp_path / "run", average)
    kept: list[State] = []
    for number in (1, 2, 3):
        kept = average.keep(kept, raw[number])
    assert same_bits(result.state, average.model(kept)), "the raw models are those of a run without the average"
    assert same_bits(safetensors.torch.load_file(tmp_path / "run/model.safetensors"), result.state)
    method = METHODS[name]
    checkpoint = read_checkpoint(RunFolder(tmp_path / "run").checkpoint, method.server_state)
    assert same_bits(checkpoint.state.model, raw[3]) and not same_bits(result.state, raw[3])
    first, scored = (go(tiny, name, tmp_path / f"again-{n}", part).records for n, part in enumerate((None, average)))
    assert scored[0]["source"] == first[0]["source"] and scored[2]["source"] != first[2]["source"]


@pytest.mark.parametrize("average", [EMA(0.5), Tail(2), Polynomial()], ids=["ema", "tail", "polynomial"])
def test_a_resumed_run_averages_the_same(average: RoundAverage, tiny: DomainDataset, tmp_path: Path) -> None:
    go(tiny, "fedavg", tmp_path / "whole", average)
    go(tiny, "fedavg", tmp_path / "parts", average, rounds=1)
    go(tiny, "fedavg", tmp_path / "parts", average, resume=True)
    for file in ("records.jsonl", "model.safetensors", "best.safetensors"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "parts" / file).read_bytes()
