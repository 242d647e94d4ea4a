"""Samples read from a device are the samples read from memory."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from unseen.data.domain import Domain, Samples
from unseen.device.resident import SampleReader

CPU = torch.device("cpu")


def domains() -> tuple[Domain, ...]:
    rng = np.random.default_rng(0)
    return tuple(Domain(n, rng.integers(0, 255, (9, 3, 4, 4), dtype=np.uint8), np.arange(9) + 10 * i) for i, n in enumerate("ab"))


@given(st.integers(1, 2), st.lists(st.integers(0, 4), min_size=1, max_size=8))
def test_resident_and_read_are_equal(parts: int, positions: list[int]) -> None:
    held = domains()
    index = np.array([8, 2, 5, 0, 3])
    samples = Samples(tuple((domain, index) for domain in held[:parts]))
    where = torch.tensor([p + (5 if parts == 2 and p % 2 else 0) for p in positions])
    read = SampleReader(held, CPU)
    resident = SampleReader(held, CPU)
    for domain in held:
        resident.hold(domain)  # as on a device
    for a, b in zip(read.take(samples, where), resident.take(samples, where), strict=True):
        assert torch.equal(a, b) and a.dtype == b.dtype
