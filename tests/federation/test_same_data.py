"""A site notices that its data are not those of the run's first round, and only then."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from federation_in_memory import FederationInMemory, alone
from tiny_settings import SETTINGS
from unseen import Experiment
from unseen.data.domain import Domain, DomainDataset
from unseen.federation.messages import SignedMessage
from unseen.federation.site.policy import Rejected
from unseen.federation.site.process import site_data
from unseen.federation.site.same_data import refuse_other_data
from unseen.runs.watch import Silent
from unseen.task import Classification
from unseen.training import train


def with_domain(data: DomainDataset, **changes: object) -> DomainDataset:
    old = data.domains[0]
    return dataclasses.replace(data, domains=(Domain(**{**vars(old), **changes}),))  # type: ignore[arg-type]


def test_one_pixel_one_label_or_one_class_is_noticed(tiny: DomainDataset, tmp_path: Path) -> None:
    data, file = alone(tiny, "a"), tmp_path / "data.json"
    refuse_other_data(data, file)
    refuse_other_data(data, file)
    images, labels = data.domains[0].images.copy(), data.domains[0].labels.copy()
    images[-1, 0, 0, 0] ^= 1
    labels[0] = (labels[0] + 1) % 3
    others = [with_domain(data, images=images), with_domain(data, labels=labels), with_domain(data, images=images[:-1], labels=labels[:-1])]
    others.append(dataclasses.replace(data, task=Classification(("one", "two", "three"))))
    for other in others:
        with pytest.raises(Rejected, match="data: they changed since this study began"):
            refuse_other_data(other, file)
    refuse_other_data(data, file)  # put back


def test_data_that_were_prepared_again_are_the_same(tiny: DomainDataset, tmp_path: Path) -> None:
    data, file = alone(tiny, "a"), tmp_path / "data.json"
    for moment in (1, 2):
        np.save(tmp_path / "images.npy", data.domains[0].images)
        os.utime(tmp_path / "images.npy", (moment, moment))
        refuse_other_data(with_domain(data, images=np.load(tmp_path / "images.npy", mmap_mode="r")), file)
        noted = file.read_text()
    refuse_other_data(with_domain(data, images=np.load(tmp_path / "images.npy", mmap_mode="r")), file)
    assert file.read_text() == noted  # every pixel is looked at only when a file is new


def test_an_image_of_a_folder_that_is_another_after_a_restart_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path / "cache"))
    for number in range(6):
        image = tmp_path / f"data/scans/{'ab'[number % 2]}/{number}.png"
        image.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((16, 16, 3), 30 * number, np.uint8)).save(image)

    def started() -> None:
        refuse_other_data(site_data(f"folder:{tmp_path / 'data'}", None, "south", 16), tmp_path / "data.json")

    started()
    before = image.read_bytes()
    Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(image)
    with pytest.raises(Rejected, match="data: they changed since this study began"):
        started()
    image.write_bytes(before)
    started()


@pytest.mark.parametrize("content", ["", "[]", "{}", "garbage"])
def test_a_site_that_cannot_tell_refuses(content: str, tiny: DomainDataset, tmp_path: Path) -> None:
    (tmp_path / "data.json").write_text(content)
    with pytest.raises(Rejected, match="data: what this study began with"):
        refuse_other_data(alone(tiny, "a"), tmp_path / "data.json")


def test_the_run_goes_on_without_a_site_whose_data_changed(tiny: DomainDataset, tmp_path: Path) -> None:
    federation = FederationInMemory(tmp_path, tiny, "c")
    experiment = Experiment(SETTINGS["fedsb"].build(), "tiny", "c", rounds=2)
    changed = tiny["b"].images.copy()
    changed[0] ^= 1

    def exchanged(client: str, signed: SignedMessage) -> SignedMessage:
        """After its score in round 1 the site starts again over other data."""
        if client == "b" and b"accuracy" in signed.payload:
            domains = tuple(Domain("b", changed, d.labels) if d.name == "b" else d for d in tiny.domains)
            federation.dataset = dataclasses.replace(tiny, domains=domains)
            federation.carrier.responders["b"] = federation.responder("b")
        return signed

    federation.carrier.tamper = exchanged
    records = train(experiment, tmp_path / "run", watch=Silent(), elsewhere=federation.federate(experiment)).records
    assert not records[0]["missing"]
    assert records[1]["missing"] == {
        "b": "train: refused by the site: data: they changed since this study began; put them back, or agree on a new study"
    }
