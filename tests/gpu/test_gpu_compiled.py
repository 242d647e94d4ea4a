"""Compiled passes on a GPU: the same training to rounding, the same bits again and after resume, and `auto` where it pays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import unseen
from unseen.data.domain import DomainDataset
from unseen.device.bare_step import made_up_labels
from unseen.device.compiling import Work, compiling_pays
from unseen.networks import build_network
from unseen.parts.mixstyle import MixStyle
from unseen.state import same_bits
from unseen.task import Classification

pytestmark = pytest.mark.gpu


def go(
    data: DomainDataset, out: Path, rounds: int = 4, compile: str = "on", resume: bool = False, mixstyle: MixStyle | None = None
) -> dict[str, torch.Tensor]:
    method = unseen.FedAvg(lr=0.01, batch=8, mixstyle=mixstyle)
    return dict(unseen.run(method, data, "c", rounds=rounds, device="cuda", compile=compile, out=out, resume=resume).state)


@pytest.mark.parametrize("mixstyle", [None, MixStyle(p=1.0, stages=1)], ids=str)
def test_a_compiled_run_is_repeatable_resumable_and_says_so(mixstyle: MixStyle | None, tiny: DomainDataset, tmp_path: Path) -> None:
    torch.backends.cudnn.deterministic = True
    how: dict[str, Any] = {"mixstyle": mixstyle}
    try:
        once, again, plain = (
            go(tiny, tmp_path / "a", **how),
            go(tiny, tmp_path / "b", **how),
            go(tiny, tmp_path / "c", compile="off", **how),
        )
        go(tiny, tmp_path / "d", rounds=2, **how)
        resumed = go(tiny, tmp_path / "d", resume=True, **how)
    finally:
        torch.backends.cudnn.deterministic = False
    assert same_bits(once, again) and same_bits(once, resumed)
    assert max(float((once[k].double() - v.double()).abs().max()) for k, v in plain.items()) < 1e-2
    told = [json.loads((tmp_path / run / "run.json").read_text())["compiled"] for run in "abcd"]
    assert told == [True, True, False, True]


def test_auto_compiles_where_the_run_is_long_enough(tmp_path: Path) -> None:
    task = Classification(tuple("abc"))

    def work(steps: int) -> Work:
        def make() -> torch.nn.Module:
            return build_network("resnet18", outputs=3, channels=3, size=(64, 64))

        return Work("resnet18", make, task.loss, (16, 3, 64, 64), made_up_labels(task, 16, (64, 64)), "bf16", steps)

    said: list[str] = []
    device = torch.device("cuda")
    assert not compiling_pays(work(10), device, tmp_path, said.append) and not said and not [*tmp_path.iterdir()]
    compiling_pays(work(10**6), device, tmp_path, said.append)
    (file,) = tmp_path.iterdir()
    kept = json.loads(file.read_text())
    assert len(said) == 1 and kept["plain"] > 0 and kept["compiled"] > 0 and kept["start"] > 0
    assert compiling_pays(work(10**6), device, tmp_path, said.append) == (kept["compiled"] < kept["plain"]) and len(said) == 1
    file.write_text(json.dumps({**kept, "plain": 2.0, "compiled": 1.0, "start": 5.0}))
    assert compiling_pays(work(6), device, tmp_path, said.append) and not compiling_pays(work(5), device, tmp_path, said.append)
