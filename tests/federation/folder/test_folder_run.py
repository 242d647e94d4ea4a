"""A whole study through a folder of letters: the bits of one process, and the models of one process within the rounding of secure sums."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from conftest import tiny_classification
from federation_in_memory import FederationInMemory
from unseen import Experiment
from unseen.federation.folder.carrier import FolderCarrier
from unseen.federation.folder.site import SiteLetters
from unseen.federation.kits import open_kit
from unseen.federation.server.exchange import Terms
from unseen.federation.server.proposing import federate
from unseen.federation.waiting import Pause
from unseen.methods import METHODS
from unseen.parts import PARTS
from unseen.runs.watch import Silent
from unseen.settings import build
from unseen.state import same_bits
from unseen.training import Result, train

FOUR = tiny_classification((24, 20, 16, 12))


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pause, "least", 0.001)
    monkeypatch.setattr(Pause, "most", 0.01)


def through_letters(experiment: Experiment, folder: Path, sums: bool) -> Result:
    """Each site's end of the folder in a thread of its own."""
    federation, share, done = FederationInMemory(folder / "sites", FOUR, "d"), folder / "share", threading.Event()
    share.mkdir()
    said: list[str] = []

    def work(name: str) -> None:
        kit = open_kit(federation.server.path / f"kits/{name}.kit", federation.folder / name)
        letters, pause = SiteLetters(kit, share, federation.carrier.responders[name].answer, said.append), Pause()
        while not done.is_set():
            pause.rest(letters.look())

    threads = [threading.Thread(target=work, args=(name,), daemon=True) for name in FOUR.names]
    for thread in threads:
        thread.start()
    try:
        with closing(FolderCarrier(federation.server, share, said.append)) as carrier:
            run = federate(experiment, federation.server, carrier, Terms(120.0, 3), lambda text: None, sums)
            result = train(experiment, folder / "there", watch=Silent(), elsewhere=run)
    finally:
        done.set()
        for thread in threads:
            thread.join(60)
    assert not said and not [*share.glob("q-*")]
    assert all(not record["missing"] and record["source"].keys() == {*"abc"} for record in result.records)
    return result


def test_a_study_through_a_folder(tmp_path: Path) -> None:
    experiment = Experiment(build(METHODS["fedavg"], {"batch": 8, "optimizer": "sgd"}, PARTS), FOUR.name, "d", rounds=2)
    here = train(replace(experiment, data=FOUR), tmp_path / "here", watch=Silent())
    (tmp_path / "plain").mkdir()
    plain = through_letters(experiment, tmp_path / "plain", sums=False)
    assert same_bits(plain.state, here.state)
    for file in ("records.jsonl", "model.safetensors", "best.safetensors"):
        assert (tmp_path / "plain/there" / file).read_bytes() == (tmp_path / "here" / file).read_bytes(), file
    (tmp_path / "summed").mkdir()
    summed = through_letters(experiment, tmp_path / "summed", sums=True)
    for key, value in here.state.items():
        if value.is_floating_point():
            torch.testing.assert_close(summed.state[key], value, rtol=1e-4, atol=1e-4)
    assert not same_bits(summed.state, here.state)
