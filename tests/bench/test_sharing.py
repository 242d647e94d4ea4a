"""Runs that share a GPU: how many, and the service that lets them run side by side, played by a script."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from unseen.bench import sharing
from unseen.bench.plan import BenchmarkCell, read_benchmark
from unseen.bench.sequential import run_benchmark
from unseen.bench.sharing import best_jobs, sharing_the_gpu
from unseen.runs.watch import Silent


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A service that writes down what it is asked, and where."""
    said, program = tmp_path / "said", tmp_path / "bin" / "nvidia-cuda-mps-control"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\nif [ "$1" = -d ]; then what=start; else read what; fi\necho "$what $CUDA_MPS_PIPE_DIRECTORY" >> {said}\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    return said


def test_the_service_runs_for_the_time_of_the_runs_in_a_place_of_its_own(service: Path) -> None:
    with sharing_the_gpu(3) as environment:
        folder = environment["CUDA_MPS_PIPE_DIRECTORY"]
        assert Path(folder).is_dir() and service.read_text() == f"start {folder}\n"
    assert service.read_text() == f"start {folder}\nquit {folder}\n" and not Path(folder).exists()


def test_one_run_needs_no_service_and_a_running_one_is_left_alone(service: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with sharing_the_gpu(1) as environment:
        assert environment == {}
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/somewhere")
    with sharing_the_gpu(3) as environment:
        assert environment == {}
    assert not service.exists()


def test_a_service_that_does_not_start_is_done_without(tmp_path: Path, service: Path) -> None:
    (tmp_path / "bin" / "nvidia-cuda-mps-control").write_text("#!/bin/sh\nexit 1\n")
    with sharing_the_gpu(3) as environment:
        assert environment == {}


CELLS = {"data": "styled-digits", "methods": ["fedavg"], "seeds": [0, 1], "targets": ["plain", "outline"], "rounds": 2}


def have(monkeypatch: pytest.MonkeyPatch, cores: int, memory: float = 64e9) -> None:
    monkeypatch.setattr(sharing, "cores", lambda: cores)
    monkeypatch.setattr(sharing, "memory", lambda: memory)


def test_on_a_cpu_a_run_for_each_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = read_benchmark(CELLS, None, None)
    for number, runs in ((1, 1), (2, 2), (4, 4), (16, 4)):
        have(monkeypatch, number)
        assert best_jobs(cells, tmp_path) == runs
    assert best_jobs(cells * 3, tmp_path) == 12
    assert best_jobs(cells[:3], tmp_path) == 1, "with fewer runs than a run has clients, these share the cores"
    have(monkeypatch, 16, memory=13e9)
    assert best_jobs(cells, tmp_path) == 3
    have(monkeypatch, 2)
    assert best_jobs(cells[:2], tmp_path) == 2 and best_jobs(cells[:1], tmp_path) == 1
    assert best_jobs(read_benchmark({**CELLS, "threads": 2}, None, None), tmp_path) == 1


def test_what_is_finished_needs_no_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, 2)
    cells = read_benchmark(CELLS, None, None)
    run_benchmark(cells[:3], tmp_path, 1, Silent())
    assert best_jobs(cells, tmp_path) == 1, "one run is left: its clients have both cores"
    (tmp_path / cells[0].folder / "records.jsonl").write_text("")
    assert best_jobs(cells, tmp_path) == 2


def test_on_a_gpu_as_many_runs_as_cells_cores_and_memory_allow(service: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def on_gpu(cell: BenchmarkCell) -> Any:
        experiment = SimpleNamespace(device="cuda", rounds=2, rebuildable=cell.experiment.rebuildable)
        return SimpleNamespace(experiment=experiment, folder=cell.folder)

    shared = [on_gpu(cell) for cell in read_benchmark(CELLS, None, None)] * 5
    have(monkeypatch, 16)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (140e9, 140e9))
    assert best_jobs(shared, tmp_path) == 8 and best_jobs(shared[:3], tmp_path) == 3
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (25e9, 140e9))
    assert best_jobs(shared, tmp_path) == 2
    have(monkeypatch, 2)
    assert best_jobs(shared, tmp_path) == 1
    monkeypatch.setattr(sharing, "_shares", lambda: False)
    assert best_jobs(shared, tmp_path) == 1, "without the service they would take turns"


def test_runs_in_memory_alone_stay_in_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    have(monkeypatch, 16)
    cells = read_benchmark(CELLS, None, None)
    own = SimpleNamespace(experiment=SimpleNamespace(device="cpu", rounds=2, rebuildable=False, threads=1), folder="own")
    assert best_jobs([*cells, own], tmp_path) == 1  # type: ignore[list-item]
