"""On a GPU a round's model is scored while the next round trains, and answers are checked while the next client works: the same run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import unseen
from unseen.data.domain import DomainDataset
from unseen.device.streams import Ahead, OneBehind
from unseen.engines.local import LocalEngine
from unseen.engines.onlooker import Onlooker
from unseen.runs.record import Record
from unseen.state import same_bits

pytestmark = pytest.mark.gpu

SLOW = 20_000_000  # cycles: about ten milliseconds


def go(data: DomainDataset, out: Path, **more: Any) -> tuple[list[Record], dict[str, torch.Tensor]]:
    torch.backends.cudnn.deterministic = True
    try:
        result = unseen.run(unseen.FedAvg(lr=0.01, batch=8), data, "c", rounds=5, device="cuda", out=out, **more)
    finally:
        torch.backends.cudnn.deterministic = False
    return list(result.records), dict(result.state)


@pytest.mark.parametrize("compile", ["off", "on"])
def test_a_run_scored_behind_is_the_run_scored_at_once(
    compile: str, tiny: DomainDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind, model = go(tiny, tmp_path / "behind", compile=compile)
    monkeypatch.setattr(LocalEngine, "looks_ahead", False)
    at_once, same = go(tiny, tmp_path / "at-once", compile=compile)
    assert same_bits(model, same) and len(behind) == len(at_once) == 5
    for one, other in zip(behind, at_once, strict=True):
        for name, expected in {**other["source"], **other["target"]}.items():
            assert {**one["source"], **one["target"]}[name] == pytest.approx(expected, rel=1e-3, abs=1e-4), (one["round"], name)


def test_what_is_looked_at_is_the_model_as_it_was(tiny: DomainDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next round trains the pool's networks while the passes still wait; and the pass is recorded."""
    looks: list[Onlooker] = []
    look = Onlooker.look

    def slowly(self: Onlooker, round_number: int, model: Any) -> Any:
        with torch.cuda.stream(self._stream):
            torch.cuda._sleep(SLOW)
        looks.append(self)
        return look(self, round_number, model)

    plain, _ = go(tiny, tmp_path / "plain")
    monkeypatch.setattr(Onlooker, "look", slowly)
    slow, _ = go(tiny, tmp_path / "slow")
    assert len(looks) == 5 and looks[-1]._recorded is not None
    for one, other in zip(plain, slow, strict=True):
        assert one == other


def test_a_result_is_looked_at_while_the_next_is_made() -> None:
    checks, order = OneBehind(torch.device("cuda")), list[str]()

    def results() -> Any:
        for number in range(3):
            order.append(f"made {number}")
            torch.cuda._sleep(SLOW)
            yield torch.full((4,), float(number), device="cuda")

    for result, beside in checks.one_behind(results()):
        with beside:
            order.append(f"seen {int(result.sum() / 4)}")
    assert order == ["made 0", "made 1", "seen 0", "made 2", "seen 1", "seen 2"]


def test_what_is_made_of_a_batch_is_made_beside_the_steps() -> None:
    stream = torch.cuda.Stream()
    ahead, seen = Ahead(stream), []
    for number in range(12):
        (x,) = ahead.make(lambda number=number: (torch.full((2**20,), float(number), device="cuda"),))
        twice = ahead.go_on(lambda x=x: x * 2)
        torch.cuda._sleep(SLOW // 10)
        seen.append((twice + x).mean())
        del x, twice
    assert torch.stack(seen).tolist() == [3.0 * number for number in range(12)]
