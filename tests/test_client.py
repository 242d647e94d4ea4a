"""A client's batches, networks and memory."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unseen.client import Client, Pool
from unseen.data.augment import RECIPES
from unseen.data.domain import UNIT, Domain, Holding, Pixels, Samples
from unseen.device.resident import SampleReader
from unseen.networks import build_network
from unseen.payload import Memory, Nothing, State
from unseen.state import state_of
from unseen.task import Classification


def numbered(train: int, validation: int = 4, pixels: Pixels = UNIT, parts: int = 1, seed: int = 0) -> Client:
    """A client whose labels are its samples' numbers."""
    domains = []
    for part in range(parts):
        labels = np.arange(part * 1000, part * 1000 + train + validation)
        images = np.zeros((len(labels), 3, 8, 8), dtype=np.uint8)
        images[:] = (labels % 256).astype(np.uint8)[:, None, None, None]
        domains.append(Domain(f"d{part}", images, labels.astype(np.int64)))
    first, rest = np.arange(train, dtype=np.int64), np.arange(train, train + validation, dtype=np.int64)
    holding = Holding("me", "d0", Samples(tuple((d, first) for d in domains)), Samples(tuple((d, rest) for d in domains)))
    pool = Pool({"task": lambda: build_network("small_cnn:width=2", outputs=3, channels=3, size=(8, 8))}, torch.device("cpu"))
    rng = torch.Generator().manual_seed(seed)
    reader = SampleReader(tuple(domains), torch.device("cpu"))
    return Client(holding, Classification(("a", "b", "c")), pool, reader, rng, pixels, RECIPES["none"])


@given(st.integers(1, 40), st.integers(1, 16), st.integers(1, 3))
def test_an_epoch_sees_every_sample_once(samples: int, size: int, epochs: int) -> None:
    seen = Counter(int(v) for _, y in numbered(samples).batches(size=size, epochs=epochs) for v in y)
    alone = samples > size > 1 and samples % size == 1  # an image that would be a batch by itself
    assert sum(seen.values()) == epochs * (samples - alone) and max(seen.values()) <= epochs
    assert alone or seen == dict.fromkeys(range(samples), epochs)


def test_a_network_with_batch_statistics_is_not_given_a_lone_last_image() -> None:
    net = torch.nn.BatchNorm2d(3)
    client = numbered(9)
    assert [len(y) for _, y in client.batches(size=4, epochs=2)] == [4, 4, 4, 4]
    for x, _ in client.batches(size=4, epochs=1):
        net(x.mean((2, 3), keepdim=True))  # a single image would be refused here
    assert [len(y) for _, y in numbered(1).batches(size=4, epochs=1)] == [1], "but it is better than nothing"


@given(st.integers(1, 40), st.integers(1, 16))
def test_dropping_the_last_batch_leaves_whole_ones(samples: int, size: int) -> None:
    sizes = [len(y) for _, y in numbered(samples).batches(size=size, epochs=1, drop_last=True)]
    assert sizes == ([size] * (samples // size) if samples >= size else [samples])


@given(st.integers(1, 60), st.integers(1, 12), st.floats(0.01, 2.99))
def test_a_part_of_a_pass_is_that_share_of_its_full_batches(samples: int, size: int, epochs: float) -> None:
    batches = [y for _, y in numbered(samples).batches(size=size, epochs=epochs, drop_last=True)]
    whole, share = samples // size, epochs % 1
    of_the_last = max(1, round(share * whole)) if share else 0
    assert len(batches) == int(epochs) * max(1, whole) + of_the_last
    assert {len(y) for y in batches} <= {min(size, samples)}
    last = [int(v) for y in batches[len(batches) - of_the_last :] for v in y]
    assert len(set(last)) == len(last), "no image twice in one pass"


def test_parts_of_passes_reach_every_image_in_time() -> None:
    client = numbered(50)
    rounds = [{int(v) for _, y in client.batches(size=5, epochs=0.4) for v in y} for _ in range(30)]
    assert {len(seen) for seen in rounds} == {20} and set().union(*rounds) == set(range(50))


@given(st.integers(1, 30), st.integers(1, 12), st.integers(1, 12))
def test_steps_are_full_batches_and_samples_are_used_evenly(samples: int, size: int, steps: int) -> None:
    batches = [y for _, y in numbered(samples).batches(size=size, steps=steps)]
    assert [len(y) for y in batches] == [size] * steps
    seen = Counter(int(v) for y in batches for v in y)
    counts = [seen[n] for n in range(samples)]
    assert max(counts) - min(counts) <= 1 and min(counts) == steps * size // samples


def test_batches_differ_between_rounds_unless_told_not_to() -> None:
    one, other = (torch.cat([y for _, y in numbered(50, seed=s).batches(size=8, steps=3)]) for s in (1, 2))
    assert not torch.equal(one, other)
    fixed = torch.cat([y for _, y in numbered(50, seed=1).batches(size=8, steps=3, shuffle=False)])
    assert fixed.tolist() == list(range(24))


def test_pixels_are_scaled_by_mean_and_std() -> None:
    client = numbered(3, pixels=Pixels((0.5, 0.25, 0.0), (0.5, 0.25, 1.0)))
    x, y = next(client.batches(size=1, steps=1))
    byte = float(y) / 255
    assert torch.allclose(x[0, :, 0, 0], torch.tensor([(byte - 0.5) / 0.5, (byte - 0.25) / 0.25, byte]))


def test_validation_comes_in_order_and_apart_from_training() -> None:
    client = numbered(5, validation=4)
    assert torch.cat([y for _, y in client.validation(size=3)]).tolist() == [5, 6, 7, 8]
    assert torch.cat([*client.images(size=2)]).shape[0] == 5


def test_samples_of_several_domains_keep_image_and_label_together() -> None:
    client = numbered(6, parts=3)
    assert client.samples == 18
    for x, y in client.batches(size=4, epochs=1):
        assert torch.allclose(x[:, 0, 0, 0] * 255, (y % 256).float())


def test_two_builds_give_two_networks_and_the_pool_gives_them_again() -> None:
    client = numbered(3)
    weights = state_of(client.build("task", state_of(build_network("small_cnn:width=2", outputs=3, channels=3, size=(8, 8)))))
    a, b = client.build("task", weights), client.build("task", weights)
    assert a is not b
    a.fc.weight.data.zero_()
    assert b.fc.weight.abs().sum() > 0
    a.requires_grad_(False).eval()
    again = Client(client._holding, client.task, client._pool, client._reader, client.rng, UNIT, RECIPES["none"])
    again.build("task", weights)
    same = again.build("task", weights)
    assert same is a and same.training and all(p.requires_grad and p.grad is None for p in same.parameters())
    assert torch.equal(same.fc.weight, weights["fc.weight"])


def test_a_state_that_does_not_fit_a_network_is_named() -> None:
    client = numbered(1)
    state = {name: value.clone() for name, value in client.build("task", client._pool.network("task", 0).state_dict()).state_dict().items()}
    name = next(iter(state))
    with pytest.raises(RuntimeError, match=name):
        client.build("task", {**state, name: torch.zeros(99)})
    with pytest.raises(RuntimeError, match=name):
        client.build("task", {key: value for key, value in state.items() if key != name})


def test_an_optimiser_from_the_pool_starts_afresh() -> None:
    client = numbered(3)
    net = client.build("task", state_of(build_network("small_cnn:width=2", outputs=3, channels=3, size=(8, 8))))
    optimizer = client.optimizer(torch.optim.Adam, net, lr=0.1)
    net(torch.zeros(2, 3, 8, 8)).sum().backward()
    optimizer.step()
    optimizer.param_groups[0]["lr"] = 9.0
    again = client.optimizer(torch.optim.Adam, net, lr=0.1)
    assert again is optimizer and not again.state and again.param_groups[0]["lr"] == 0.1


def test_an_unknown_role_names_the_known_ones() -> None:
    with pytest.raises(KeyError, match="task"):
        numbered(1).build("generator", {})


def test_only_a_memory_can_be_remembered() -> None:
    class Kept(Memory):
        model: State

    client = numbered(1)
    assert client.recall(Kept) is None
    client.remember(Kept(model={"w": torch.ones(1)}))
    assert client.recall(Kept) is not None
    with pytest.raises(TypeError, match="Memory"):
        client.remember(Nothing())  # type: ignore[arg-type]


def test_epochs_or_steps_not_both() -> None:
    with pytest.raises(TypeError, match="either"):
        next(numbered(1).batches(size=1))
    with pytest.raises(TypeError, match="either"):
        next(numbered(1).batches(size=1, epochs=1, steps=1))


def test_a_short_batch_is_filled_up_on_a_gpu_and_its_answers_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    client = numbered(6)
    net = client.build("task", client._pool.network("task", 0).state_dict()).eval()
    x = torch.randn(5, 3, 8, 8)
    seen: list[int] = []

    def looking(batch: torch.Tensor) -> torch.Tensor:
        seen.append(len(batch))
        return net(batch)

    with torch.no_grad():
        here = client.predict(looking, x, 8)
        monkeypatch.setattr(client._pool, "graphs", object())  # what a pool on a GPU has
        there = client.predict(looking, x, 8)
    assert seen == [5, 8] and torch.allclose(here, there, atol=1e-6) and there.shape == here.shape
