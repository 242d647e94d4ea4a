"""Lists of tensors, against a loop."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from unseen.networks import build_network
from unseen.networks.base import network_entries
from unseen.networks.norm import FrozenBatchNorm2d
from unseen.state import StoredState, copied, copy_all, on_the_host


def test_every_tensor_is_copied_in_the_targets_type_whatever_the_order() -> None:
    sources = [torch.tensor([1.5, -2.0]), torch.tensor(7), torch.tensor([[0.1]], dtype=torch.float64), torch.tensor([3.25])]
    targets = [torch.zeros(2, dtype=torch.float64), torch.tensor(0), torch.zeros(1, 1), torch.zeros(1)]
    copy_all(targets, sources)
    assert [t.tolist() for t in targets] == [[1.5, -2.0], 7, [[torch.tensor(0.1).item()]], [3.25]]
    assert [t.dtype for t in targets] == [torch.float64, torch.int64, torch.float32, torch.float32]


def test_lists_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        copy_all([torch.zeros(1), torch.zeros(1)], [torch.ones(1)])


def test_copies_stay_when_the_network_moves_on() -> None:
    net = nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2)).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    before = {name: value.clone() for name, value in net.state_dict().items()}
    copies = copied(dict(net.state_dict(keep_vars=True)))
    net(torch.rand(2, 3, 8, 8)).sum().backward()
    with torch.no_grad():
        for p in net.parameters():
            p.add_(1)
    assert list(copies) == list(before)
    assert all(torch.equal(copies[name], value) and copies[name].dtype == value.dtype for name, value in before.items())
    assert all(copy.is_contiguous() and not copy.requires_grad for copy in copies.values())


@pytest.mark.parametrize("name", ["small_cnn", "mobilenet_v2", "resnet18", "resnet18:norm=frozen", "vit_b_32", "unet:width=4,depth=3"])
def test_entries_are_told_apart_by_what_they_are(name: str) -> None:
    """Against a walk over every module; MobileNetV2's norms have no name that would give them away."""
    net = build_network(name, outputs=3, channels=3, size=(32, 32))
    entries = network_entries(net)
    assert [*net.state_dict()] == entries.names("whole") == [*entries.outline]
    assert {n for n, _ in net.named_parameters()} == set(entries.names("parameters"))
    assert {n for n, _ in net.named_buffers()} == set(entries.names("buffers"))
    norms, kinds = set(), (nn.BatchNorm2d, nn.LayerNorm, nn.InstanceNorm2d, FrozenBatchNorm2d)
    for prefix, module in net.named_modules():
        if isinstance(module, kinds):
            norms |= {f"{prefix}.{key}" for key in module.state_dict()}
    assert norms == set(entries.names("norms")) and norms.isdisjoint(entries.names("without-norms"))
    assert len(norms) + len(entries.names("without-norms")) == len(entries.outline)
    assert {net.state_dict()[n].data_ptr() for n in entries.names("head")} == {p.data_ptr() for p in net.head().state_dict().values()}
    assert set(entries.names("head")).isdisjoint(entries.names("backbone"))
    assert bool(norms) == (not name.startswith("unet"))


def test_a_state_on_the_host_is_the_same_one_entry_by_entry() -> None:
    state = {"w": torch.rand(2, 3, 4, 4).contiguous(memory_format=torch.channels_last), "n": torch.tensor(7), "b": torch.rand(3)}
    there = on_the_host(state)
    assert list(there) == list(state) and all(torch.equal(there[name], value) for name, value in state.items())
    outline = {name: torch.empty(value.shape, dtype=value.dtype, device="meta") for name, value in state.items()}
    stored = StoredState(outline, lambda key, first, last: state[key].reshape(-1)[first:last])
    assert all(torch.equal(value, state[name]) for name, value in on_the_host(stored).items())
