"""Steps of one network among several."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from unseen.ops.descent import own_step
from unseen.optimizers import moments_of, restore_moments


def test_only_the_optimisers_own_network_moves_or_gets_a_gradient() -> None:
    mover, judge = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    mover.weight.data.fill_(2.0)
    judge.weight.data.fill_(3.0)
    own_step(torch.optim.SGD(mover.parameters(), lr=0.1), judge(mover(torch.tensor([[5.0]]))).sum())
    assert mover.weight.item() == pytest.approx(2 - 0.1 * 3 * 5)
    assert judge.weight.item() == 3.0 and judge.weight.grad is None


def test_momentum_goes_on_where_it_was() -> None:
    net, twin = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    one = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)
    own_step(one, 4 * net.weight.sum())
    kept = moments_of(one)
    assert kept["0.momentum_buffer"].item() == 4.0
    other = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.5)
    restore_moments(other, kept)
    twin.weight.data.fill_(1.0)
    own_step(other, twin.weight.sum())
    assert twin.weight.item() == pytest.approx(1 - 0.1 * (0.5 * 4 + 1))
    assert kept["0.momentum_buffer"].item() == 4.0  # a copy went in
    assert moments_of(torch.optim.SGD(net.parameters(), lr=0.1)) == {}


def test_momentum_that_is_there_already_is_written_in_place() -> None:
    """A step recorded on a GPU goes on using the buffer it was recorded with."""
    net = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)
    own_step(optimizer, net(torch.ones(1, 2)).sum())
    recorded = optimizer.state[net.weight]["momentum_buffer"]
    restore_moments(optimizer, {"0.momentum_buffer": torch.tensor([[7.0, 8.0]]), "1.momentum_buffer": torch.zeros(1)})
    assert recorded.tolist() == [[7.0, 8.0]] and optimizer.state[net.weight]["momentum_buffer"] is recorded


def test_under_bf16_a_network_is_asked_with_its_new_weights_afterwards() -> None:
    """DDAIG and FedDAG show what the generator makes after its step."""
    net, x = nn.Linear(3, 3), torch.ones(2, 3)
    with torch.autocast("cpu", torch.bfloat16):
        before = net(x)
        own_step(torch.optim.SGD(net.parameters(), lr=1.0), before.float().square().sum())
        with torch.no_grad():
            after = net(x)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        assert torch.equal(after, net(x)) and not torch.equal(after, before)
