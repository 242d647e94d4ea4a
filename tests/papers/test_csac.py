"""CSAC: its loss against one written out, what the client keeps, and the order of its stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cases import Case
from one_client import LinearNet, batch_of, client_of, images
from unseen import BadInput, Experiment, FedAvg
from unseen.client import Client
from unseen.data.domain import DomainDataset
from unseen.engines.local import LocalEngine
from unseen.method import Refused
from unseen.methods.csac import CSAC, Down, Kept
from unseen.networks import build_network
from unseen.networks.alignment import alignment_of
from unseen.ops.alignment import fuse_by_divergence, kernel_discrepancy, layer_attention
from unseen.parts.combining import Down as Plain
from unseen.runs.watch import Silent
from unseen.state import State, same_bits, state_of
from unseen.training import train
from unseen.world import build_world

FAST: dict[str, Any] = {"lr": 0.05, "batch": 8, "private_steps": 6, "steps": 4, "width": 3}
TINY = {
    "csac": Case("csac", {**FAST, "strength": 0.05, "momentum": 0.9, "private_steps": 10, "steps": 10}, leaves="prepare.model train.model"),
    "csac-masks": Case(
        "csac", {**FAST, "lr": 0.2, "batch": 4, "strength": 0.05, "calibration": "logits", "momentum": 0.9}, "segmentation", 5, 0.5,
        leaves="prepare.model train.model",
    ),
}  # fmt: skip


def small() -> Any:
    return build_network("small_cnn:width=2", outputs=3, channels=1, size=(8, 8))


def projections() -> nn.Module:
    return alignment_of(small(), 1, (8, 8), layers=3, width=3, side=7)


def drawn(make: Any, seed: int) -> State:
    torch.manual_seed(seed)
    return state_of(make())


def client_with(private: State | None) -> Client:
    return client_of(images(side=8), small, recall=lambda kind: private and Kept(private=private), alignment=projections)


@pytest.mark.parametrize("calibration", ["layers", "logits"])
def test_a_step_descends_the_loss_of_layers_across_depths(calibration: str) -> None:
    model, private, first = drawn(small, 0), drawn(small, 1), drawn(projections, 2)
    lr, layers = 0.1, calibration == "layers"
    net, fixed, align = small(), small().eval(), projections()
    net.load_state_dict(model)
    fixed.load_state_dict(private)
    align.load_state_dict(first)
    x, y = batch_of(images(side=8))
    maps: dict[Any, list[torch.Tensor]] = {net: [], fixed: []}
    for one, seen in maps.items():  # the three stages, written out
        z = x
        for convolve, norm in ((one.conv1, one.bn1), (one.conv2, one.bn2), (one.conv3, one.bn3)):
            seen.append(norm(convolve(z)))
            z = one.pool(one.relu(seen[-1]))
    logits, answers = net.fc(one_row(maps[net], net)), fixed.fc(one_row(maps[fixed], fixed))
    apart = kernel_discrepancy(logits, answers)
    if layers:
        t = [conv(F.adaptive_avg_pool2d(m, 2)) for conv, m in zip(align.trained, maps[net], strict=True)]  # the last maps are 2 x 2
        s = [conv(F.adaptive_avg_pool2d(m, 2)) for conv, m in zip(align.fixed, maps[fixed], strict=True)]
        alpha = layer_attention(t, s)
        for i in range(3):
            for j in range(3):
                apart = apart + float(alpha[i, j]) * kernel_discrepancy(t[i], s[j])
    slopes = torch.autograd.grad(F.cross_entropy(logits, y) + 0.6 * apart, [*net.parameters()])
    method = CSAC(lr=lr, momentum=0.0, steps=1, batch=12, width=3, calibration=calibration)  # type: ignore[arg-type]
    client = client_with(private)
    up = method.train(Down(model=model, alignment=first if layers else None), client)
    for (name, w), slope in zip(net.named_parameters(), slopes, strict=True):
        assert torch.allclose(up.model[name], w - lr * slope, atol=2e-6), name
    assert not client.remembered, "the private model stays as it is"


def one_row(maps: list[torch.Tensor], net: Any) -> torch.Tensor:
    return net.pool(net.relu(maps[-1])).flatten(1)  # type: ignore[no-any-return]


def test_without_calibration_a_client_trains_as_in_fedavg_to_the_bit() -> None:
    model = drawn(small, 0)
    values: dict[str, Any] = {"lr": 0.05, "batch": 5, "steps": 7}
    ours = CSAC(strength=0.0, momentum=0.9, width=3, **values).train(Down(model=model, alignment=drawn(projections, 2)), client_with(model))
    plain = FedAvg(optimizer="momentum", **values).train(Plain(model=model), client_with(None))
    assert same_bits(ours.model, plain.model)


def test_who_was_missing_before_round_1_trains_alone_first() -> None:
    model, method = drawn(small, 0), CSAC(calibration="logits", **FAST)
    early, late = client_with(None), client_with(None)
    alone = method.prepare(Down(model=model, alignment=None), early)
    assert same_bits(early.remembered["Kept"].private, alone.model)  # type: ignore[attr-defined]
    method.train(Down(model=model, alignment=None), late)
    assert same_bits(late.remembered["Kept"].private, alone.model), "the same training from the same weights"  # type: ignore[attr-defined]


def test_the_server_fuses_private_models_then_trained_copies_of_whoever_answered(tmp_path: Path, tiny: DomainDataset) -> None:
    method = CSAC(**FAST)
    world = build_world(Experiment(method, tiny, "c", partition="split", clients=3, rounds=2))
    engine, told = LocalEngine(world, tmp_path), list[dict[str, State]]()
    plain = engine.answers

    def noting(task: Any, downs: Any, place: Any, shared: bool) -> Any:
        told.append({})
        for name, answer in plain(task, downs, place, shared):
            if len(told) == 3 and name == world.clients[1]:
                yield name, Refused("gone")
            else:
                told[-1][name] = answer.model  # type: ignore[union-attr]
                yield name, answer

    engine.answers = noting  # type: ignore[method-assign]
    state = method.start(world.fresh, engine.cohort(0))
    assert same_bits(state.model, fuse_by_divergence(told[0])) and len(told[0]) == 3
    for number in (1, 2):
        state = method.round(state, engine.cohort(number))
        assert same_bits(state.model, fuse_by_divergence(told[number])) and len(told[number]) == 4 - number
    assert state.alignment is not None and same_bits(state.alignment, world.fresh("alignment"))


def test_the_released_form_has_no_projections_and_what_does_not_fit_is_told(tiny: DomainDataset) -> None:
    world = train(Experiment(CSAC(calibration="logits", **FAST), tiny, "c", rounds=1), None, watch=Silent()).world
    assert set(world.builders) == {"task"}
    with pytest.raises(BadInput, match="batch is 1, and a discrepancy is of pairs"):
        CSAC(batch=1)
    own = {"network": lambda: LinearNet(192, 3)}
    with pytest.raises(BadInput, match="3 stages are compared, and LinearNet names 0; use another one, or calibration = logits"):
        build_world(Experiment(CSAC(), tiny, "c", **own))  # type: ignore[arg-type]
    build_world(Experiment(CSAC(calibration="logits"), tiny, "c", **own))  # type: ignore[arg-type]
    assert any("distance from the mean" in why for why in CSAC().needs_each())
