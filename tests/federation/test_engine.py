"""Between sites as in one process: the same bits; what is missing or refused is left out and recorded."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any, ClassVar

import pytest

from federation_in_memory import FederationInMemory
from tiny_settings import SETTINGS
from unseen import Experiment
from unseen.data.domain import DomainDataset
from unseen.engines import checking
from unseen.engines.child import ChildEnded
from unseen.errors import SiteProcessLost
from unseen.federation.messages import SignedMessage
from unseen.federation.site.join import SiteProcess, SiteSettings
from unseen.methods.fedsb import Down, Up
from unseen.payload import refuse_unusable
from unseen.runs.watch import Silent
from unseen.state import same_bits
from unseen.training import train

METHODS_BETWEEN_SITES = ("fedsb", "elcfs", "feddag", "fedadg", "fedavg-sha", "feddyn", "elcfs-masks", "fedbn", "scaffold", "fednova", "g2g")


@pytest.mark.parametrize("name", METHODS_BETWEEN_SITES)
def test_the_same_bits_as_in_process(name: str, tiny: DomainDataset, tiny_masks: DomainDataset, tmp_path: Path) -> None:
    case = SETTINGS[name]
    data = tiny if case.task == "classification" else tiny_masks
    here = train(Experiment(case.build(), data, "c", rounds=2), tmp_path / "here", watch=Silent())
    federation = FederationInMemory(tmp_path, data, "c")
    experiment = Experiment(case.build(), data.name, "c", rounds=2)
    there = train(experiment, tmp_path / "there", watch=Silent(), elsewhere=federation.federate(experiment))
    assert same_bits(here.state, there.state)
    for file in ("records.jsonl", "model.safetensors", "best.safetensors"):
        assert (tmp_path / "here" / file).read_bytes() == (tmp_path / "there" / file).read_bytes()


def test_answers_are_checked_once_wait_on_disk_and_are_read_one_at_a_time(
    tiny: DomainDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation, experiment = FederationInMemory(tmp_path, tiny, None), Experiment(SETTINGS["fedsb"].build(), "tiny", rounds=1)
    run, answers = federation.federate(experiment), tmp_path / "run/answers"
    (answers / "000000.1").mkdir(parents=True)  # of another round
    engine = run.engine(tmp_path / "run")
    checked = list[type]()
    monkeypatch.setattr(checking, "refuse_unusable", lambda answer, kind: checked.append(kind) or refuse_unusable(answer, kind))
    down = Down(model=engine.world.fresh("task"))
    read: list[weakref.ref[Up]] = []
    names = []
    for name, up in engine.cohort(1).ask(experiment.method.train, down).items():  # type: ignore[attr-defined]
        assert checked == [Up] * 3, "each, before the first is read"
        assert not any(ref() is not None for ref in read)
        assert [one.name for one in answers.iterdir()] == ["000001.1"] and len(list(answers.glob("*/*.answer"))) == 3
        names.append(name)
        read.append(weakref.ref(up))
        del up
    assert names == ["a", "b", "c"]
    asked = len(federation.carrier.carried)
    again = run.engine(tmp_path / "run").cohort(1).ask(experiment.method.train, down)  # type: ignore[attr-defined]
    assert again.all().keys() == {"a", "b", "c"} and len(federation.carrier.carried) == asked, "a killed server goes by what it had"
    run.end(tmp_path / "run")
    assert not answers.exists()


class Dying:
    """A site's process that ends over every question."""

    history: ClassVar[list[str]]

    def __init__(self, module: str, log: Path) -> None:
        self.history.append("started")

    def call(self, header: dict[str, Any], body: bytes = b"", tell: Any = None) -> tuple[dict[str, Any], bytes]:
        if "kit" in header:
            return {"samples": 1, "approved": []}, b""
        self.history.append("asked")
        raise ChildEnded(-9)

    def stop(self) -> None:
        self.history.append("stopped")


def test_a_site_whose_process_keeps_ending_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without enough memory is killed over the same question again; the site says so instead of trying for ever."""
    Dying.history = []
    monkeypatch.setattr("unseen.federation.site.join.ChildProcess", Dying)
    process = SiteProcess(SiteSettings("x.kit", str(tmp_path), "styled-digits"))
    with pytest.raises(SiteProcessLost, match="ended twice over one question"):
        process.answer(SignedMessage("", b"", b""))
    assert Dying.history == ["started", "asked", "stopped", "started", "asked"]
    process.close()
    Dying.history.clear()
    with pytest.raises(SiteProcessLost, match="the site left"):
        process.answer(SignedMessage("", b"", b""))
    assert "started" not in Dying.history, "a site that leaves starts nothing"
