"""A curious server against a site that lets ELCFS's spectra out: was this image among those that trained?

The attacker has the candidates. It compares each one's window with those that left: by distance, and by the alignment of whitened windows,
which also finds an image inside a mean. Its advantage: members recognised less others mistaken, as shares, at the best threshold.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from one_client import LinearNet, client_of, images
from unseen import ELCFS, Experiment
from unseen.data import load
from unseen.data.domain import DomainDataset
from unseen.data.partition.split import split
from unseen.ops.fourier import group_means, low_amplitudes
from unseen.parts.aggregation import SHA
from unseen.parts.amplitudes import Amplitudes
from unseen.payload import Nothing
from unseen.runs.watch import Silent
from unseen.training import train

CHANCE = 0.2  # above what the best of all thresholds finds among 300 and 300 images that are alike


def advantage(inside: Tensor, outside: Tensor) -> float:
    limits = torch.cat([inside, outside]).unique()
    found, wrong = ((scores[None] <= limits[:, None]).double().mean(1) for scores in (inside, outside))
    return float((found - wrong).max())


def by_distance(members: Tensor, others: Tensor, bank: Tensor) -> float:
    return advantage(torch.cdist(members, bank).amin(1), torch.cdist(others, bank).amin(1))


def by_alignment(members: Tensor, others: Tensor, bank: Tensor) -> float:
    everything = torch.cat([members, others])
    mean = everything.mean(0)
    _, sizes, axes = torch.linalg.svd(everything - mean, full_matrices=False)
    white = axes[sizes > 1e-3 * sizes[0]].T / sizes[sizes > 1e-3 * sizes[0]]
    known = (bank - mean) @ white
    return advantage(*(-((x - mean) @ white @ known.T).amax(1) for x in (members, others)))


@pytest.fixture(scope="module")
def windows() -> tuple[Tensor, Tensor]:
    """Of images that trained and of others, at the paper's alpha."""
    data = load("styled-digits")
    domain = data["plain"]

    def of(which: np.ndarray) -> Tensor:
        return low_amplitudes(data.pixels.normalised(torch.from_numpy(np.asarray(domain.images)[which]).float() / 255), 0.01).flatten(1)

    members, others = split(domain, 0.5, 0)
    return of(members), of(others)


@pytest.mark.parametrize(("size", "recognised"), [(1, True), (8, False), (16, False)])
def test_whoever_has_an_image_recognises_it_in_its_own_spectrum_but_not_in_a_mean(
    size: int, recognised: bool, windows: tuple[Tensor, Tensor]
) -> None:
    members, others = windows
    bank = members if size == 1 else group_means(members, size, torch.Generator().manual_seed(0))
    found = max(attack(members.double(), others.double(), bank.double()) for attack in (by_distance, by_alignment))
    assert (found > 0.99) if recognised else (found < CHANCE), found


def test_one_image_a_spectrum_is_the_papers_bank_to_the_bit() -> None:
    domain = images(samples=30, side=8)
    client = client_of(domain, lambda: LinearNet(64, 3))
    before = client.rng.get_state()
    up = ELCFS(alpha=0.2).spectra(Nothing(), client)
    assert torch.equal(up.low, low_amplitudes(torch.from_numpy(domain.images) / 255, 0.2))
    assert torch.equal(client.rng.get_state(), before), "nothing is drawn"


@pytest.mark.parametrize(("number", "size", "groups"), [(30, 8, [8, 8, 14]), (16, 8, [8, 8]), (5, 8, [5]), (9, 2, [2, 2, 2, 3])])
def test_a_spectrum_is_the_mean_of_a_group_that_the_client_draws(number: int, size: int, groups: list[int]) -> None:
    domain = images(samples=number, side=8)
    up = ELCFS(alpha=0.2, images_per_spectrum=size).spectra(Nothing(), client_of(domain, lambda: LinearNet(64, 3)))
    single = low_amplitudes(torch.from_numpy(domain.images) / 255, 0.2).double().numpy()
    order = torch.randperm(number, generator=torch.Generator().manual_seed(0)).numpy()  # the client's generator, at its beginning
    wanted = [single[rows].mean(0) for rows in np.split(order, np.cumsum(groups)[:-1])]
    assert up.low.dtype is torch.float32 and len(up.low) == len(groups)
    np.testing.assert_allclose(up.low, np.stack(wanted), rtol=1e-6)


def test_a_run_with_means_of_spectra(tiny: DomainDataset) -> None:
    method = ELCFS(batch=8, steps=2, alpha=0.2, first_order=True, images_per_spectrum=8)
    (record,) = train(Experiment(method, tiny, "c", rounds=1), None, watch=Silent(), through_bytes=True).records
    (row,) = [row for row in record["travelled"] if row["field"] == "low" and row["direction"] == "sent" and "a" in row["clients"]]
    assert not record["missing"] and row["bytes"] == 4 * 4 * 3 * 3 * 2  # 36 images in four groups: three channels, 3 x 2 bins


def test_a_policy_sees_the_window_and_the_groups() -> None:
    assert ELCFS(alpha=0.49).exposures() == {"spectrum_reach": 0.49, "images_per_spectrum": 1.0}
    assert ELCFS(images_per_spectrum=8, aggregation=SHA()).exposures() == {
        "spectrum_reach": 0.01, "images_per_spectrum": 8.0, "images_per_direction": 256.0,
    }  # fmt: skip
    assert ELCFS(interpolate=False).exposures() == {} == Amplitudes(interpolate=False).exposures()
