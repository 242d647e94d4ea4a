"""Another user of the server's machine against the sites: what they sent to the server alone must not lie readable in the run's folder."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from federation_in_memory import FederationInMemory
from tiny_settings import SETTINGS
from unseen import Experiment
from unseen.data.domain import DomainDataset
from unseen.files import write_atomically
from unseen.runs.watch import Silent
from unseen.training import train


@pytest.fixture(params=[0o022, 0o000, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def files_in(run: Path) -> list[Path]:
    return [file for file in run.rglob("*") if file.is_file() and file.name != "federation-run"]


def test_a_run_between_sites_is_its_owners_alone(umask: int, tiny: DomainDataset, tmp_path: Path) -> None:
    federation, experiment = FederationInMemory(tmp_path, tiny, "c"), Experiment(SETTINGS["feddag"].build(), "tiny", "c", rounds=2)
    run = tmp_path / "run"
    train(experiment, run, watch=Silent(), elsewhere=federation.federate(experiment))
    assert mode(run) == 0o700
    written = {file.name: mode(file) for file in files_in(run)}
    assert {"checkpoint.safetensors", "checkpoint.previous.safetensors", "records.jsonl", "run.json", "best.safetensors"} <= written.keys()
    assert {name: number for name, number in written.items() if number & 0o177} == {}


def test_a_folder_that_was_open_is_closed_when_the_run_goes_on(tiny: DomainDataset, tmp_path: Path) -> None:
    federation, run = FederationInMemory(tmp_path, tiny, "c"), tmp_path / "run"
    run.mkdir(mode=0o777)
    experiment = Experiment(SETTINGS["fedsb"].build(), "tiny", "c", rounds=1)
    sites = federation.federate(experiment)
    train(experiment, run, watch=Silent(), elsewhere=sites)
    assert mode(run) == 0o700
    for path in (run, *files_in(run)):
        path.chmod(0o777)  # as a run of an older version left them
    train(experiment, run, resume=True, watch=Silent(), elsewhere=sites)
    assert mode(run) == 0o700 and not [file for file in files_in(run) if mode(file) & 0o177]


def test_a_run_on_one_machine_goes_by_the_umask(tiny: DomainDataset, tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        train(Experiment(SETTINGS["fedsb"].build(), tiny, "c", rounds=1), tmp_path / "run", watch=Silent())
    finally:
        os.umask(before)
    assert mode(tmp_path / "run") == 0o755 and mode(tmp_path / "run/records.jsonl") == 0o644


def test_a_file_is_closed_before_anything_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda number: seen.append(stat.S_IMODE(os.fstat(number).st_mode)) or real(number))
    write_atomically(tmp_path / "secret", b"x", 0o600)
    assert seen[0] == 0o600 and mode(tmp_path / "secret") == 0o600  # after it the folder is written, for the name
