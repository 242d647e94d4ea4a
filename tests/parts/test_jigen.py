"""JiGen: tiles and permutations by hand, its loss by hand, and FedAvg inside it."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from one_client import LinearNet, client_of
from unseen import BadInput, Experiment, FedAvg
from unseen.data.domain import Domain, DomainDataset
from unseen.networks import build_network
from unseen.ops.jigsaw import greyed_tiles, rearranged, tile_orders
from unseen.parts.jigen import JiGen
from unseen.parts.local import Local
from unseen.parts.rsc import RSC
from unseen.parts.views import RandConv
from unseen.runs.watch import Silent
from unseen.state import same_bits
from unseen.task import Classification, Segmentation
from unseen.training import train
from unseen.world import build_world


def test_the_permutations_are_distinct_far_apart_and_none_is_the_identity() -> None:
    orders = tile_orders(9, 30)
    assert orders[0].tolist() == [*range(9)] and len({tuple(o) for o in orders.tolist()}) == 31
    assert all(sorted(o) == [*range(9)] for o in orders.tolist())
    apart = [int((a != b).sum()) for a, b in itertools.combinations(orders, 2)]
    assert min(apart) >= 7 and np.mean(apart) > 8
    assert len({tuple(o) for o in tile_orders(4, 23).tolist()}) == 24


@pytest.mark.parametrize(("side", "grid"), [(9, 3), (11, 3), (8, 2)])
def test_tiles_move_as_a_loop_moves_them_and_back(side: int, grid: int) -> None:
    x = torch.rand(23, 2, side, side + 1)
    orders = tile_orders(grid**2, 22)
    got, tall, wide = rearranged(x, orders, grid), side // grid, (side + 1) // grid
    want = x.clone()
    for n in range(23):
        for place, source in enumerate(orders[n].tolist()):
            (r, c), (a, b) = divmod(place, grid), divmod(source, grid)
            tile = x[n, :, a * tall : (a + 1) * tall, b * wide : (b + 1) * wide]
            want[n, :, r * tall : (r + 1) * tall, c * wide : (c + 1) * wide] = tile
    assert torch.equal(got, want) and not torch.equal(got[1:], x[1:]) and torch.equal(got[0], x[0])
    assert torch.equal(rearranged(got, orders.argsort(1), grid), x)


def test_a_grey_tile_has_the_luma_of_its_pixels() -> None:
    mean, std = torch.tensor([0.4, 0.5, 0.6]).view(1, 3, 1, 1), torch.tensor([0.2, 0.3, 0.25]).view(1, 3, 1, 1)
    pixels = torch.rand(1, 3, 7, 6)
    chosen = torch.zeros(1, 9, dtype=torch.bool)
    chosen[0, 5] = True  # second row, last column
    got = greyed_tiles((pixels - mean) / std, chosen, 3, -mean / std, (1 - mean) / std) * std + mean
    want = pixels.clone()
    red, green, blue = pixels[0, :, 2:4, 4:6]
    want[0, :, 2:4, 4:6] = 0.299 * red + 0.587 * green + 0.114 * blue
    assert torch.allclose(got, want, atol=1e-6)


def test_what_is_drawn_is_what_was_done() -> None:
    domain = Domain("a", np.random.default_rng(0).integers(0, 255, (200, 3, 6, 6)).astype(np.uint8), np.arange(200) % 3)
    client = client_of(domain, lambda: LinearNet(108, 3))
    x, y = torch.rand(200, 3, 6, 6), torch.arange(200)
    made, labels, number = JiGen(beta=0.7, grey=0.0).puzzled(client, x, y)
    assert torch.equal(made, rearranged(x, tile_orders(9, 30)[number], 3)) and labels is y
    assert float((number == 0).float().mean()) == pytest.approx(0.7, abs=0.08) and int(number.max()) <= 30
    masks = torch.rand(200, 2, 6, 6)
    moved, masks_moved, number = JiGen(beta=0.0, grey=0.0).puzzled(client, torch.cat([masks, masks[:, :1]], 1), masks)
    assert torch.equal(moved[:, :2], masks_moved) and bool((number > 0).all())
    grey = JiGen(beta=1.0, grey=0.3).puzzled(client, x, y)[0].view(200, 3, 3, 2, 3, 2)
    share = (grey[:, 0] - grey[:, 1]).abs().amax((2, 4)) < 1e-6
    assert float(share.float().mean()) == pytest.approx(0.3, abs=0.04)


def test_the_loss_is_the_tasks_on_all_images_and_the_puzzles() -> None:
    torch.manual_seed(0)
    net = build_network("resnet18:puzzle=5", outputs=3, channels=3, size=(32, 32)).eval()
    x, y, number = torch.rand(4, 3, 32, 32), torch.tensor([0, 2, 1, 1]), torch.tensor([0, 4, 2, 0])
    task = Classification(tuple("abc"))
    features = net(x, full=True).features.detach()
    told = features @ net.puzzle.weight.T + net.puzzle.bias
    want = F.cross_entropy(net(x), y) + 0.3 * F.cross_entropy(told, number)
    part = JiGen(alpha=0.3, permutations=4)
    assert torch.allclose(Local(jigen=part).loss(task, net, x, y, (number,)), want)
    both = torch.cat([x, x])
    assert torch.allclose(Local(jigen=part, views=RandConv(copies=1, weight=0.0)).loss(task, net, both, y, (number,)), want, rtol=1e-5)
    muted = Local(rsc=RSC(form="map")).loss(task, net, x, y, (torch.tensor(True),))  # with rsc: the puzzle reads what is not muted
    together = Local(jigen=part, rsc=RSC(form="map")).loss(task, net, x, y, (number, torch.tensor(True)))
    assert torch.allclose(together, muted + 0.3 * F.cross_entropy(told, number), rtol=1e-5)


def test_in_segmentation_the_puzzle_is_read_from_the_bottleneck() -> None:
    torch.manual_seed(0)
    net = build_network("unet:width=4,depth=3,puzzle=5", outputs=1, channels=3, size=(16, 16))
    x, y, number, task = torch.rand(2, 3, 16, 16), torch.ones(2, 1, 16, 16), torch.tensor([1, 3]), Segmentation(("disc",))
    deepest = x
    for level, down in enumerate(net.encoder):
        deepest = down(F.max_pool2d(deepest, 2) if level else deepest)
    want = task.loss(net(x), y) + 0.7 * F.cross_entropy(net.puzzle(deepest.mean((2, 3))), number)
    assert torch.allclose(Local(jigen=JiGen(permutations=4)).loss(task, net, x, y, (number,)), want)


def test_with_every_order_kept_and_no_weight_it_is_fedavg_to_the_bit(tiny: DomainDataset) -> None:
    plain, whole, puzzled = (
        train(Experiment(FedAvg(batch=9, lr=0.01, epochs=2, jigen=jigen), tiny, "c", rounds=2), None, watch=Silent()).state
        for jigen in (None, JiGen(alpha=0.0, beta=1.0, grey=0.0), JiGen(beta=0.5))
    )
    shared = {name: value for name, value in whole.items() if not name.startswith("puzzle.")}
    assert same_bits(shared, plain) and len(whole) == len(plain) + 2
    assert not same_bits({name: puzzled[name] for name in plain}, plain)


def test_the_puzzle_head_leaves_with_the_model_and_is_averaged(tiny: DomainDataset, tmp_path: Path) -> None:
    method = FedAvg(batch=9, lr=0.01, jigen=JiGen(beta=0.5))
    result = train(Experiment(method, tiny, "c", rounds=2), tmp_path / "run", watch=Silent(), through_bytes=True)
    plain = train(Experiment(FedAvg(batch=9, lr=0.01), tiny, "c", rounds=1), None, watch=Silent())
    sizes = [{row["field"]: row["bytes"] for row in r.records[0]["travelled"] if row["direction"] == "sent"} for r in (result, plain)]
    assert sizes[0].keys() == sizes[1].keys() and sizes[0]["model"] - sizes[1]["model"] == 4 * 31 * (16 + 1)
    fresh = result.world.fresh("task")
    assert same_bits({n: v for n, v in fresh.items() if not n.startswith("puzzle.")}, plain.world.fresh("task"))
    assert not torch.equal(result.state["puzzle.weight"], fresh["puzzle.weight"])


def test_a_weight_file_fills_the_network_beside_its_puzzle_head(tmp_path: Path) -> None:
    torch.manual_seed(1)
    plain = build_network("small_cnn:width=4", outputs=3, channels=3, size=(8, 8))
    save_file(dict(plain.state_dict()), tmp_path / "net.safetensors")
    net = build_network("small_cnn:width=4,puzzle=7", outputs=3, channels=3, size=(8, 8), weights=tmp_path / "net.safetensors")
    assert all(torch.equal(net.state_dict()[name], value) for name, value in plain.state_dict().items())
    assert net.puzzle.out_features == 7


def test_in_segmentation_it_trains(tiny_masks: DomainDataset) -> None:
    result = train(Experiment(FedAvg(batch=4, lr=0.01, jigen=JiGen(beta=0.5)), tiny_masks, "c", rounds=1), None, watch=Silent())
    assert "puzzle.weight" in result.state and all(torch.isfinite(v).all() for v in result.state.values())


def test_what_does_not_fit_is_refused(tiny: DomainDataset) -> None:
    with pytest.raises(BadInput, match="permutations = 24, but 4 tiles have 23 other orders"):
        JiGen(grid=2, permutations=24)
    with pytest.raises(BadInput, match="jigen adds a head to a network of the package"):
        build_world(
            Experiment(FedAvg(jigen=JiGen()), tiny, "c", network=lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 3)))
        )
