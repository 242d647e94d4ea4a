"""The last round is repeated to its very bits, and the plane goes through the models it shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import unseen
from unseen.data.domain import DomainDataset
from unseen.deploy.finished import FinishedRun
from unseen.errors import BadInput
from unseen.figures import finished_run
from unseen.figures.last_round import client_model, repeat_last_round
from unseen.figures.outputs import drawn
from unseen.figures.plane import plane_of
from unseen.figures.surface import levels_of, losses_around
from unseen.methods.feddyn import FedDyn
from unseen.parts.combining import Up
from unseen.parts.dynamic import DynamicUp
from unseen.state import State, same_bits, state_of

Finished = Callable[[str], FinishedRun]


def files(folder: Path) -> dict[str, tuple[int, bytes]]:
    """What is there and when it was written: the same bits written again would be a change too."""
    return {str(f.relative_to(folder)): (f.stat().st_mtime_ns, f.read_bytes()) for f in folder.rglob("*") if f.is_file()}


@pytest.mark.parametrize("name", ["fedavg", "elcfs", "fedadg", "feddag", "masks"])
def test_the_round_comes_out_as_it_did_and_the_folder_stays_as_it_was(name: str, finished: Finished) -> None:
    run = finished(name)
    before = files(run.folder)
    last = repeat_last_round(run)
    assert last.same and set(last.clients) == {"a", "b"} and files(run.folder) == before
    assert not same_bits(last.clients["a"], last.clients["b"])


def test_fedavgs_global_model_is_the_weighted_mean_of_the_clients_found(finished: Finished) -> None:
    run = finished("fedavg")
    last = repeat_last_round(run)
    weights = {name: client["train"] for name, client in run.about["clients"].items()}
    for key in (k for k, v in last.model.items() if v.is_floating_point()):
        mean = sum(weights[c] * last.clients[c][key].double() for c in weights) / sum(weights.values())
        assert torch.allclose(last.model[key].double(), mean, atol=1e-6)


def test_a_model_in_two_fields_is_put_together(tiny: DomainDataset, tmp_path: Path) -> None:
    weights, buffers = {"w": torch.ones(2)}, {"m": torch.zeros(1)}
    assert client_model(DynamicUp(parameters=weights, buffers=buffers), {"w", "m"}) == {**weights, **buffers}
    assert client_model(Up(model=weights, samples=None, perturbed=weights), {"w", "m"}) is None
    unseen.run(FedDyn(lr=0.02, batch=8), tiny, "c", rounds=2, out=tmp_path / "run", device="cpu")
    last = repeat_last_round(finished_run(tmp_path / "run", "last", tiny))  # FedDyn's clients remember: the memory of round 1 is used
    assert last.same and set(last.clients) == {"a", "b"}


def test_a_run_without_its_previous_checkpoint_is_refused(tiny: DomainDataset, tmp_path: Path) -> None:
    from unseen.methods.fedavg import FedAvg

    unseen.run(FedAvg(lr=0.02, batch=8), tiny, "c", rounds=1, out=tmp_path / "run", device="cpu")
    run = finished_run(tmp_path / "run", "last", tiny)
    assert repeat_last_round(run).same  # from the state before round 1
    (tmp_path / "run/checkpoint.previous.safetensors").write_bytes((tmp_path / "run/checkpoint.safetensors").read_bytes())
    with pytest.raises(BadInput, match="is of round 1, expected 0"):
        repeat_last_round(run)
    (tmp_path / "run/checkpoint.previous.safetensors").unlink()
    with pytest.raises(BadInput, match="cannot be read"):
        repeat_last_round(run)


def toy(*rows: list[float]) -> list[State]:
    return [{"w": torch.tensor([row]).float(), "running_mean": 10.0 * torch.tensor(row[:1]), "n": torch.tensor(3)} for row in rows]


def test_the_plane_goes_through_clients_whose_differences_span_two_dimensions() -> None:
    model, *others = toy([0, 0, 0], [2, 0, 0], [0, 1, 0], [-2, -1, 0])
    clients = dict(zip("abc", others, strict=True))
    found = plane_of(model, clients, {"w"})
    assert found.share == pytest.approx(1)
    for name, state in clients.items():
        for key in ("w", "running_mean"):
            there = model[key] + found.places[name][0] * found.axes[0][key] + found.places[name][1] * found.axes[1][key]
            assert torch.allclose(there, state[key], atol=1e-5)
    one, two = (axis["w"] for axis in found.axes)
    assert float(one.norm()) == pytest.approx(1) == float(two.norm()) and float((one * two).sum()) == pytest.approx(0, abs=1e-6)


def test_what_the_plane_leaves_out_is_said() -> None:
    model, *others = toy([0, 0, 0], [2, 0, 0], [0, 2, 0], [0, 0, 1])
    assert plane_of(model, dict(zip("abc", others, strict=True)), {"w"}).share == pytest.approx(8 / 9)  # squares 4, 4 and 1


def test_clients_on_a_line_get_a_random_second_axis() -> None:
    model, *others = toy([1, 1, 1], [2, 1, 1], [0, 1, 1])
    found = plane_of(model, dict(zip("ab", others, strict=True)), {"w"})
    one, two = (axis["w"] for axis in found.axes)
    assert sorted(round(abs(place[0]), 5) for place in found.places.values()) == [1, 1] and {p[1] for p in found.places.values()} == {0.0}
    assert float(two.norm()) == pytest.approx(1) and float((one * two).sum()) == pytest.approx(0, abs=1e-6)
    assert not found.axes[1]["running_mean"].any()
    with pytest.raises(BadInput, match="no plane to draw"):
        plane_of(model, {"a": model}, {"w"})


def test_the_loss_at_a_clients_place_is_that_clients(finished: Finished, tiny: DomainDataset) -> None:
    run = finished("fedavg")
    last = repeat_last_round(run)
    found = plane_of(last.model, last.clients, {name for name, _ in run.net.named_parameters()})
    before, samples = state_of(run.net), drawn(tiny["c"], 20)
    images, labels = samples.take(torch.arange(20))
    for name, place in found.places.items():
        moved = {k: v.clone() for k, v in last.clients[name].items()}
        run.net.load_state_dict(moved)
        with torch.no_grad():
            own = float(torch.nn.functional.cross_entropy(run.net(images.float() / 255), labels))
        run.net.load_state_dict(before)
        assert losses_around(run, samples, last.model, found.axes, np.array([place[0], place[1]]))[0, 1] == pytest.approx(own, rel=1e-3)
    assert same_bits(state_of(run.net), before)


def test_contours_reach_the_models_and_not_the_heights_far_out() -> None:
    grid = np.ones((10, 10))
    grid[0, 0] = 500
    assert levels_of(grid, 3.0)[[0, -1]].tolist() == [1.0, 3.0]
    assert (np.diff(levels_of(np.ones((2, 2)), 1.0)) > 0).all()
