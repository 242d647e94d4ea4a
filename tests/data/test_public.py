"""Public images: the same ones everywhere, in the task's shape, or one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from one_client import LinearNet, client_of, images
from unseen import BadInput
from unseen.data import load
from unseen.data.public import open_public


def test_they_are_spread_over_the_set_in_its_order() -> None:
    found = open_public("styled-digits", 3, (32, 32), 30)
    everything = torch.cat([torch.from_numpy(domain.images) for domain in load("styled-digits").domains])
    assert torch.equal(found, everything[[place * len(everything) // 30 for place in range(30)]])
    small = open_public("styled-digits", 3, (8, 8), 30)
    assert small.shape == (30, 3, 8, 8) and small.dtype is torch.uint8
    means = [one.float().mean((2, 3)) for one in (small, found)]
    torch.testing.assert_close(*means, atol=1.5, rtol=0.0)  # resized, not cut


def test_what_cannot_be_public_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path))
    with pytest.raises(BadInput, match="whose images have 3 channels; the data have 1"):
        open_public("styled-digits", 1, (8, 8), 30)
    with pytest.raises(BadInput, match="'pacs', which is not prepared on this machine; run unseen data prepare pacs") as told:
        open_public("pacs", 3, (8, 8), 30)
    assert str(tmp_path) not in str(told.value), "a site tells this to others"
    with pytest.raises(BadInput, match="no data set 'nowhere'"):
        open_public("nowhere", 3, (8, 8), 30)


def test_a_client_gets_them_in_even_batches_with_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = torch.arange(10, dtype=torch.uint8).view(10, 1, 1, 1).expand(10, 1, 2, 2)
    monkeypatch.setattr("unseen.client.open_public", lambda *asked: shown if asked == ("some", 1, (2, 2), 10) else None)
    client = client_of(images(), lambda: LinearNet(4, 3))
    batches = [*client.public("some", 10, 4)]
    assert [len(x) for _, x in batches] == [4, 3, 3]
    places = torch.cat([where for where, _ in batches])
    assert sorted(places.tolist()) == [*range(10)] != places.tolist()
    for where, x in batches:
        torch.testing.assert_close(x[:, 0, 0, 0] * 255, where.float())
    answers = client.said_of_public(torch.nn.Flatten(), "some", 10, 4)
    torch.testing.assert_close(answers[:, 0] * 255, torch.arange(10.0))
