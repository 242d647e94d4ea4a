"""What clients remember: where it lay it is recalled, each recaller has their own, and the last versions make room for newer ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from unseen.codec import tensors_in
from unseen.payload import Memory
from unseen.runs import memory as memories
from unseen.runs.memory import MemoryStore, _mapped
from unseen.state import State


class Remembered(Memory):
    model: State
    further: dict[str, State]
    rows: Tensor
    none: Tensor | None
    number: int


def remembered(value: float = 1.0) -> Remembered:
    state = {"layer.weight": torch.full((2, 3), value), "layer.bias": torch.zeros(2)}
    return Remembered(model=state, further={"a.b": {"w": torch.ones(3)}}, rows=torch.ones(2), none=None, number=7)


def test_every_tensor_is_changed_under_the_path_that_the_codec_gives_it() -> None:
    one, seen = remembered(), dict[str, Tensor]()

    def note(path: str, tensor: Tensor) -> Tensor:
        seen[path] = tensor
        return tensor + 1

    changed = _mapped(one, note)
    assert seen.keys() == dict(tensors_in(one, Remembered)).keys() and len(seen) == 4
    assert all(torch.equal(tensor, seen[path] + 1) for path, tensor in tensors_in(changed, Remembered))
    assert changed.number == 7 and changed.none is None and type(changed) is Remembered


def test_what_lay_on_another_device_is_recalled_there_and_the_rest_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors that a GPU held are played by those of the model: `meta` is the device that they come back to."""
    monkeypatch.setattr(memories, "tensors_in", lambda value, hint: [("model.layer.weight", _There())])
    store = MemoryStore(tmp_path)
    store.versions = {"north": {"Remembered": store.stage("north", remembered(), "000001-001")}}
    there = store.recall("north", Remembered, torch.device("meta"))
    here = store.recall("north", Remembered)
    assert there is not None and here is not None
    assert there.model["layer.weight"].is_meta and not there.model["layer.bias"].is_meta and not there.rows.is_meta
    assert torch.equal(here.model["layer.weight"], torch.ones(2, 3))


class _There:
    is_cuda = True


def test_a_version_at_hand_is_the_recallers_own_and_counts_only_if_it_is_the_one_named(tmp_path: Path) -> None:
    store = MemoryStore(tmp_path)
    file = store.stage("north", remembered(2.0), "000001-001")
    store._keep_near("north", remembered(3.0), file, 10**6)  # told apart from the file by its numbers
    store.versions = {"north": {"Remembered": file}}
    at_hand = store.recall("north", Remembered)
    assert at_hand is not None and float(at_hand.model["layer.weight"][0, 0]) == 3.0
    at_hand.model["layer.weight"].zero_()
    again = store.recall("north", Remembered)
    assert again is not None and float(again.model["layer.weight"][0, 0]) == 3.0
    store.versions = {"north": {"Remembered": store.stage("north", remembered(4.0), "000002-001")}}
    newer = store.recall("north", Remembered)
    assert newer is not None and float(newer.model["layer.weight"][0, 0]) == 4.0


def test_the_oldest_versions_at_hand_make_room(tmp_path: Path) -> None:
    size = sum(tensor.nbytes for _, tensor in tensors_in(remembered(), Remembered))
    store = MemoryStore(tmp_path)
    for client in ("a", "b", "a", "c"):
        store._keep_near(client, remembered(), f"{client}.safetensors", 2 * size)
    assert [client for client, _ in store._near] == ["a", "c"]
