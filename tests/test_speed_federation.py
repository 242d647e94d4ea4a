"""`unseen speed --federation`: what is measured and told. The processes themselves are those of tests/federation/folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from federation_in_memory import EVERYTHING, DirectCarrier, alone
from unseen.cli import app
from unseen.cli import speed_federation as told
from unseen.data import load
from unseen.errors import BadInput
from unseen.federation.kits import Federation, open_kit
from unseen.federation.site.responder import Responder
from unseen.speed import federation
from unseen.speed.federation import SITES, TARGET, ExchangeMeasured, Say, measure_exchange


@contextmanager
def in_this_process(server: Federation, folder: Path, carrier: str, say: Say) -> Iterator[DirectCarrier]:
    """The same sites without processes."""
    data = load("styled-digits")
    kits = {name: open_kit(server.path / "kits" / f"{name}.kit", folder / name) for name in (*SITES, TARGET)}
    yield DirectCarrier(
        {n: Responder(kit, alone(data, n), EVERYTHING, folder / n, evaluates=n == TARGET, device="cpu") for n, kit in kits.items()}
    )


def test_an_exchange_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(federation, "_running", in_this_process)
    one = measure_exchange("folder", 0.05, 1, said.append)
    assert 0.02 < one.megabytes < 0.2 and one.work > 0 and one.plain > 0 and one.summed > 0
    assert any("summed rounds" in text for text in said)


def test_the_work_is_shared_among_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(federation.os, "cpu_count", lambda: 2)
    assert ExchangeMeasured("folder", 1.0, 3.0, 5.0, 6.0).beyond == 3.5
    monkeypatch.setattr(federation.os, "cpu_count", lambda: 64)  # no more than there are sites
    assert ExchangeMeasured("folder", 1.0, 3.0, 5.0, 6.0).beyond == 4.0


@pytest.mark.parametrize(("megabytes", "rounds"), [(0.0, 1), (-1.0, 1), (float("nan"), 1), (1.0, 0)])
def test_nothing_is_started_for_a_size_that_is_none(megabytes: float, rounds: int) -> None:
    with pytest.raises(BadInput, match="expected a size above 0"):
        measure_exchange("folder", megabytes, rounds, lambda text: None)


def test_the_command_tells_and_writes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    measured = ExchangeMeasured("folder", 100.0, 3.0, 5.0, 6.0)
    monkeypatch.setattr(told, "find_spec", lambda name: None)
    monkeypatch.setattr(federation, "measure_exchange", lambda *given: measured)
    done = CliRunner().invoke(app, ["speed", "--federation", "--json", str(tmp_path / "speed.json"), "-q"])
    assert done.exit_code == 0 and "100.0 MB down to and up from three sites: 5.00 s a round" in done.output
    assert "in a secure sum 6.00 s, 1.20 of the plain round" in done.output
    assert json.loads((tmp_path / "speed.json").read_text())["exchange"]["folder"]["summed"] == 6.0
