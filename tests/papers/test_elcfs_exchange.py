"""ELCFS's bank: what is in it, what travels, what restyled images carry, and what happens when somebody is missing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conftest import tiny_classification, tiny_segmentation
from unseen import ELCFS, BadInput, Experiment, FedAvg
from unseen.client import Client, Pool
from unseen.data.augment import RECIPES
from unseen.data.domain import UNIT, Domain, DomainDataset, Pixels
from unseen.data.sets.phantom_sites import phantom_sites
from unseen.device.resident import SampleReader
from unseen.engines.local import LocalEngine
from unseen.engines.tasks import Place, TaskRunner
from unseen.method import Refused, Replies
from unseen.methods.elcfs import Bank, Down, Moments, Others, Spectra, Up
from unseen.ops.fourier import low_amplitudes
from unseen.payload import carried
from unseen.runs.memory import MemoryStore
from unseen.runs.watch import Silent
from unseen.state import same_bits
from unseen.training import train
from unseen.world import World, build_world

FOUR = (10, 8, 6, 5)


def client_of(world: World, name: str, seed: int = 0, pixels: Pixels = UNIT) -> Client:
    here = torch.device("cpu")
    rng = torch.Generator().manual_seed(seed)
    pool, reader = Pool(world.builders, here), SampleReader((), here)
    return Client(world.holdings[name], task=world.dataset.task, pool=pool, reader=reader, rng=rng, pixels=pixels, augment=RECIPES["none"])


def held(world: World, name: str) -> Tensor:
    """A client's training images, from 0 to 1."""
    samples = world.holdings[name].train
    return samples.take(torch.arange(len(samples)))[0].float() / 255


def after_start(world: World, folder: Path, method: ELCFS) -> MemoryStore:
    engine = LocalEngine(world, folder)
    cohort = engine.cohort(0)
    method.start(world.fresh, cohort)
    cohort.close()
    return engine.memory


def test_a_client_gets_the_others_windows_never_its_own_and_never_the_unseen_sites(tmp_path: Path) -> None:
    method = ELCFS(alpha=0.2)
    world = build_world(Experiment(method, tiny_classification(FOUR), "d"))
    memory = after_start(world, tmp_path, method)
    for name in "abc":
        others = memory.recall(name, Others)
        assert others is not None and sorted(others.low) == sorted(set("abc") - {name})
        for other, low in others.low.items():
            whole = np.abs(np.fft.fft2(held(world, other).double().numpy()))
            rows, columns = [-1, 0, 1], [0, 1]  # 0.2 of 8 pixels reaches one bin from the centre
            assert np.allclose(low.numpy(), whole[..., rows, :][..., columns], atol=1e-3)
    assert memory.recall("d", Others) is None


def test_a_share_of_the_bank_is_drawn_once_by_each_client(tmp_path: Path) -> None:
    method = ELCFS(alpha=0.2, bank_share=0.25)
    world = build_world(Experiment(method, tiny_classification((40, 40, 40, 5)), "d"))
    memory = after_start(world, tmp_path, method)
    kept = {name: memory.recall(name, Others) for name in "abc"}
    for others in kept.values():
        assert others is not None and all(len(low) == 9 for low in others.low.values())  # a quarter of 36
        for name, low in others.low.items():
            all_of_them = low_amplitudes(held(world, name), 0.2)
            assert all((all_of_them - one).abs().amax((1, 2, 3)).min() < 1e-4 for one in low)
            assert len(low.unique(dim=0)) == 9
    assert kept["a"] and kept["b"] and not torch.equal(kept["a"].low["c"], kept["b"].low["c"])


def large(images: int = 4) -> DomainDataset:
    """Sites with RGB images of 384 pixels and one mask each."""
    rng = np.random.default_rng(0)
    tiny = tiny_segmentation()
    domains = []
    for name in "abc":
        pixels = rng.integers(0, 255, (images, 3, 384, 384), dtype=np.uint8)
        domains.append(Domain(name, pixels, np.zeros((images, 2, 384, 384), dtype=np.uint8), split=np.array(["train"] * images)))
    return replace(tiny, domains=tuple(domains))


def test_no_phase_no_image_and_nothing_at_full_resolution_leaves() -> None:
    world = build_world(Experiment(ELCFS(gamma=0.0), large(), "c"))
    up, _ = TaskRunner(world).run(ELCFS().spectra, Bank(low={}), "a", Place(0, 1), MemoryStore(Path("unused")))
    assert isinstance(up, Spectra)
    assert up.low.shape == (3, 3, 7, 4) and up.low.dtype == torch.float32 and (up.low >= 0).all()
    (row,) = carried(up)
    assert row.kind == "spectrum" and row.grows and row.bytes == 3 * 336 <= 3 * 600
    turned = held(world, "a").flip(-1).roll((5, 11), (-2, -1))  # moved and mirrored: other phases
    mirrored = low_amplitudes(turned, 0.01)
    assert torch.allclose(mirrored[..., 3:, 0], up.low[..., 3:, 0], rtol=1e-3, atol=0.5)


@functools.cache
def some_phantoms() -> DomainDataset:
    return phantom_sites()


@pytest.mark.parametrize("styles", [None, 1])
def test_restyled_images_carry_the_other_sites_mean_spectrum(styles: int | None) -> None:
    """Fundus phantoms of one site in the colours of the others, lambda = 1."""
    method = ELCFS(alpha=0.05, lam_low=1.0, restyled=styles)
    phantoms = some_phantoms()
    world = build_world(Experiment(method, phantoms, phantoms.names[-1], network="unet:width=2,depth=3"))
    me, *rest = world.clients
    chosen = rest[:1] if styles else rest
    bank = {name: low_amplitudes(held(world, name), 0.05) for name in chosen}
    x = torch.cat([held(world, me)] * 3)
    t = method.restyle(x, bank, client_of(world, me))
    assert t.shape == (len(chosen), *x.shape)
    own = low_amplitudes(x, 0.05).mean(0)
    for style, name in zip(t, sorted(bank), strict=True):
        theirs, carried_now = bank[name].mean(0), low_amplitudes(style, 0.05).mean(0)
        before = ((own - theirs).norm() / theirs.norm()).item()
        after = ((carried_now - theirs).norm() / theirs.norm()).item()
        assert after < 0.05 < 0.1 < before, (name, before, after)
        high = (slice(None), slice(None), slice(10, 54), slice(10, 54))  # beyond the window nothing changed
        assert torch.allclose(torch.fft.fft2(style)[high], torch.fft.fft2(x)[high], atol=2e-2)


def ratios(method: ELCFS, n: int = 400) -> Tensor:
    """The interpolation ratios that were used, read off the mean brightness: from 1 towards 2."""
    world = build_world(Experiment(method, tiny_classification(), "c"))
    bank = {"b": torch.full((3, 3, 1, 1), 2 * 64.0)}
    t = method.restyle(torch.ones(n, 3, 8, 8), bank, client_of(world, "a"))
    return t.mean((0, 2, 3, 4)) - 1


def test_ratios_are_uniform_in_their_range_per_image_or_fixed() -> None:
    free = ratios(ELCFS(alpha=0.0))
    assert 0 <= free.min() < 0.02 and 0.98 < free.max() <= 1 and abs(free.mean() - 0.5) < 0.05
    assert abs(free.std() - 12**-0.5) < 0.02
    half = ratios(ELCFS(alpha=0.0, lam_low=0.5))
    assert half.min() >= 0.5 - 1e-5 and half.min() < 0.52 and half.max() > 0.98
    assert torch.allclose(ratios(ELCFS(alpha=0.0, lam_low=0.4, lam_high=0.4)), torch.tensor(0.4), atol=1e-5)


def test_restyled_images_are_clipped_to_the_range_of_pixels_only_if_told() -> None:
    pixels = Pixels((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))  # inputs from -2 to 2
    world = build_world(Experiment(ELCFS(), tiny_classification(), "c"))
    bank = {"b": torch.full((1, 3, 1, 1), 5 * 64.0)}
    for clip, brightest in ((False, 5.0), (True, 2.0)):
        method = ELCFS(alpha=0.0, lam_low=1.0, clip=clip)
        t = method.restyle(torch.ones(1, 3, 8, 8), bank, client_of(world, "a", pixels=pixels))
        assert torch.allclose(t, torch.tensor(brightest), atol=1e-4)


class Fixed:
    """Clients whose answers are known."""

    def __init__(self, *answers: Mapping[str, Any]) -> None:
        self.names, self.answers, self.asked = ["a", "b", "c"], iter(answers), []

    def ask(self, task: Callable[..., Any], down: Any) -> Replies[Any]:
        self.asked.append((task.__name__, down))

        def stream() -> Iterator[tuple[str, Any]]:
            yield from next(self.answers).items()

        return Replies(stream())


def test_a_client_that_gave_no_spectra_is_in_nobodys_bank_but_gets_the_others() -> None:
    low = {name: Spectra(low=torch.rand(2, 1, 1, 1)) for name in "ac"}
    cohort = Fixed({"a": low["a"], "b": Refused("late"), "c": low["c"]}, {})
    ELCFS().start(lambda role: {}, cohort)  # type: ignore[arg-type]
    (_, _), (task, banks) = cohort.asked
    assert task == "keep" and {name: sorted(bank.low) for name, bank in banks.items()} == {"a": ["c"], "b": ["a", "c"], "c": ["a"]}


def test_the_mean_is_weighted_by_samples_over_those_who_answered() -> None:
    one, five = (Up(model={"w": torch.tensor([w])}, samples=n, perturbed=None) for w, n in ((1.0, 3), (5.0, 1)))
    state = ELCFS().round(ELCFS.server_state({"w": torch.zeros(1)}), Fixed({"a": one, "b": Refused("late"), "c": five}))  # type: ignore[arg-type]
    assert state.model["w"].item() == 2.0


def trained(method: ELCFS, data: DomainDataset, memory: MemoryStore, number: int = 1) -> tuple[Up, dict[str, str]]:
    world = build_world(Experiment(method, data, "c"))
    up, staged = TaskRunner(world).run(method.train, Down(model=world.fresh("task")), "a", Place(number, 1), memory)
    assert isinstance(up, Up)
    return up, staged


@pytest.mark.parametrize("data", [tiny_classification(), tiny_segmentation()], ids=["classes", "masks"])
def test_a_client_that_the_bank_never_reached_uses_its_raw_images_again(data: DomainDataset) -> None:
    nothing = MemoryStore(Path("unused"))
    with_bank, without = (trained(ELCFS(batch=4, steps=2, interpolate=flag), data, nothing)[0] for flag in (True, False))
    assert same_bits(with_bank.model, without.model)
    assert all(torch.isfinite(v).all() for v in with_bank.model.values())


def test_adam_goes_on_over_the_rounds_only_if_told(tmp_path: Path) -> None:
    data, steps = tiny_classification(), []
    for keep in (True, False):
        memory = MemoryStore(tmp_path / str(keep))
        for number in (1, 2):
            _, staged = trained(ELCFS(interpolate=False, batch=4, steps=3, keep_moments=keep), data, memory, number)
            memory.commit("a", staged)
        kept = memory.recall("a", Moments)
        steps.append(None if kept is None else kept.of["0.step"].item())
    assert steps == [6.0, None]


def test_adams_momenta_are_the_papers(tmp_path: Path) -> None:
    """After one step from zero, m = (1 - beta1) g and v = (1 - beta2) g^2."""
    memory = MemoryStore(tmp_path)
    _, staged = trained(ELCFS(interpolate=False, steps=1, beta1=0.8, beta2=0.95, keep_moments=True), tiny_classification(), memory)
    memory.commit("a", staged)
    kept = memory.recall("a", Moments)
    assert kept is not None
    m, v = (kept.of[f"0.{entry}"] for entry in ("exp_avg", "exp_avg_sq"))
    assert torch.allclose(m**2 / 0.2**2, v / 0.05, rtol=1e-4)


def test_a_number_of_styles_is_of_drawn_clients() -> None:
    method = ELCFS(alpha=0.0, lam_low=1.0, restyled=3)
    world = build_world(Experiment(method, tiny_classification(), "c"))
    bank = {name: torch.full((2, 3, 1, 1), level * 64.0) for name, level in (("b", 2), ("d", 3))}
    t = method.restyle(torch.ones(50, 3, 8, 8), bank, client_of(world, "a"))
    assert t.shape == (3, 50, 3, 8, 8)
    assert set(t.mean((2, 3, 4)).round().flatten().tolist()) == {2.0, 3.0}


def test_local_work_is_one_pass_in_batches_of_five_or_a_number_of_steps() -> None:
    seen: list[int] = []

    class Watched(ELCFS):
        def objective(self, net: Any, task: Any, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
            seen.append(len(x))
            return super().objective(net, task, x, t, y)

    trained(Watched(), tiny_classification((20, 10, 10)), MemoryStore(Path("unused")))
    assert seen == [5, 5, 5, 3]  # 18 training images
    seen.clear()
    trained(Watched(steps=2, batch=7), tiny_classification((20, 10, 10)), MemoryStore(Path("unused")))
    assert seen == [7, 7]


def test_with_a_fixed_ratio_of_0_nothing_is_transferred() -> None:
    """lambda = 0 restyles into the image itself, so the bank does not matter."""
    data = tiny_segmentation()
    zero, off = (
        train(Experiment(ELCFS(lam_high=0.0, steps=1, **off), data, "c", rounds=1), None, watch=Silent()).state
        for off in ({}, {"interpolate": False})
    )
    assert all(torch.allclose(zero[k], off[k], atol=1e-6) for k in zero)


def test_without_inner_step_and_styles_it_is_fedavg_with_adams_settings() -> None:
    """inner_lr = 0 on raw images doubles the loss, which Adam does not notice but for its epsilon."""
    data = tiny_segmentation()
    plain = FedAvg(lr=1e-3, batch=4, steps=1)
    ours = ELCFS(interpolate=False, inner_lr=0.0, gamma=0.0, beta2=0.999, lr=1e-3, batch=4, steps=1)
    one, two = (train(Experiment(m, data, "c", rounds=1), None, watch=Silent()).state for m in (ours, plain))
    # biases before a normalisation have no gradient but rounding, of which Adam makes whole steps
    assert all((one[k] - two[k]).abs().median() < 1e-6 for k in one if k.endswith("weight"))


def test_a_single_client_is_refused_before_round_1() -> None:
    with pytest.raises(BadInput, match="at least two clients"):
        build_world(Experiment(ELCFS(), tiny_classification(), "c", partition="pooled"))
    assert build_world(Experiment(ELCFS(interpolate=False), tiny_classification(), "c", partition="pooled"))
