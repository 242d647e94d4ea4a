"""Runs that share a GPU: how many, and the service that lets them run side by side, played by a script."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from unseen.bench import sharing
from unseen.bench.plan import read_benchmark
from unseen.bench.sharing import best_jobs, sharing_the_gpu


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


def test_as_many_runs_as_cells_cores_and_memory_allow(service: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = read_benchmark({"data": "styled-digits", "methods": ["fedavg"], "seeds": [0, 1], "targets": ["plain", "outline"]}, None, None)
    assert best_jobs(cells) == 1, "a CPU's cores are the clients'"

    def on_gpu(cell: Any) -> Any:
        return SimpleNamespace(experiment=SimpleNamespace(device="cuda", rebuildable=cell.experiment.rebuildable))

    shared = [on_gpu(cell) for cell in cells] * 5
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (140e9, 140e9))
    assert best_jobs(shared) == 8 and best_jobs(shared[:3]) == 3
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (25e9, 140e9))
    assert best_jobs(shared) == 2
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    assert best_jobs(shared) == 1
    monkeypatch.setattr(sharing, "_shares", lambda: False)
    assert best_jobs(shared) == 1, "without the service they would take turns"
