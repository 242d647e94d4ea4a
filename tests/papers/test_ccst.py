"""CCST: what a client's style is, which versions of an image are made, and the paper's networks with files of the right shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cases import Case
from conftest import tiny_classification
from one_client import LinearNet, client_of, images
from unseen import BadInput, Experiment, FedAvg
from unseen.client import Client
from unseen.data.domain import Domain, DomainDataset
from unseen.methods.ccst import CCST, OthersStyles, StyleBank
from unseen.networks.adain import adain_decoder, adain_encoder
from unseen.ops.style import channel_moments
from unseen.parts.aggregation import Uniform
from unseen.payload import Nothing
from unseen.runs.watch import Silent
from unseen.state import same_bits, state_of
from unseen.training import train
from unseen.world import build_world

TINY = {
    "ccst": Case("ccst", {"lr": 0.1, "batch": 8}, leaves="tell.overall train.model"),
    "ccst-single-masks": Case(
        "ccst",
        {"lr": 1.0, "batch": 4, "style": "single", "styles": 1},
        "segmentation",
        rounds=8,
        reaches=0.5,
        leaves="tell.single train.model",
    ),
}


def client(domain: Domain | None = None) -> Client:
    return client_of(domain or images(12, side=4), lambda: LinearNet(16, 3))


def test_the_overall_style_is_over_all_positions_and_the_single_one_of_each_image() -> None:
    domain = images(12, side=4)
    pixels = torch.tensor(domain.images).double() / 255
    overall = CCST().tell(Nothing(), client(domain))
    assert overall.single is None and overall.overall is not None and overall.overall.shape == (1, 2, 1)
    assert overall.overall.flatten().tolist() == pytest.approx([float(pixels.mean()), float(pixels.std(correction=0))], abs=1e-5)
    single = CCST(style="single").tell(Nothing(), client(domain))
    assert single.overall is None and single.single is not None
    wanted = torch.stack([pixels.mean((2, 3)), pixels.std((2, 3), correction=0)], 1)
    torch.testing.assert_close(single.single.double(), wanted, atol=1e-5, rtol=0)


def test_every_version_is_the_image_or_has_a_drawn_clients_style_and_none_twice() -> None:
    x = 0.4 + 0.2 * torch.rand(40, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    others = [torch.tensor([[[0.3], [0.01]]]), torch.tensor([[[0.5], [0.02]]]), torch.tensor([[[0.7], [0.03]]])]
    for styles, versions in ((None, 4), (4, 4), (2, 2), (1, 1)):
        made = CCST(styles=styles).restyled(x, others, client(), torch.Generator().manual_seed(1)).view(versions, 40, 1, 4, 4)
        own = (made == x).flatten(2).all(2)
        means = [(channel_moments(made.flatten(0, 1)) - style).abs().amax((1, 2)).view(versions, 40) < 1e-3 for style in others]
        counts = torch.stack([own, *means]).long()
        assert (counts.sum(0) == 1).all(), "each version is one of the four"
        assert (counts.sum(1) <= 1).all() and (versions < 4 or (counts.sum(1) == 1).all()), "no client twice for one image"
        assert torch.allclose(counts.sum((1, 2)).float(), torch.full((4,), 10.0 * versions), atol=11), "all are equally likely"


def test_a_single_style_is_one_of_the_clients_images() -> None:
    x, pool = 0.5 + 0.1 * torch.rand(30, 1, 4, 4), torch.tensor([[[0.3], [0.01]], [[0.6], [0.01]]])
    made = CCST(style="single").restyled(x, [pool], client(), torch.Generator().manual_seed(0))
    changed = channel_moments(made)[(made != torch.cat([x, x])).flatten(1).any(1)][:, 0, 0]
    assert len(changed) == 30
    near = [int(((changed - mean).abs() < 1e-3).sum()) for mean in (0.3, 0.6)]
    assert sum(near) == 30 and min(near) > 5


def test_alpha_goes_part_of_the_way_and_pixels_stay_in_their_range() -> None:
    x, style = torch.rand(5, 1, 4, 4), torch.tensor([[[0.9], [0.6]]]).expand(5, 2, 1)
    full = CCST().transferred(x, style, client())
    assert full.min() >= 0 and full.max() == 1
    calm = torch.tensor([[[0.5], [0.1]]]).expand(5, 2, 1)
    part = channel_moments(CCST(alpha=0.25).transferred(x, calm, client()))
    torch.testing.assert_close(part, 0.75 * channel_moments(x) + 0.25 * calm, atol=0.02, rtol=0)
    torch.testing.assert_close(CCST().transferred(x, channel_moments(x), client()), x, atol=1e-4, rtol=0)


def test_a_client_keeps_the_others_styles_and_a_bank_of_itself_changes_nothing() -> None:
    one = client()
    CCST().keep(StyleBank(styles={"a": torch.zeros(1, 2, 1), "b": torch.ones(1, 2, 1)}), one)
    kept = one.recall(OthersStyles)
    assert kept is not None and set(kept.styles) == {"b"}
    x = torch.rand(3, 1, 4, 4)
    assert torch.equal(CCST().restyled(x, [], one, torch.Generator()), x)


def test_the_unseen_domains_style_is_in_no_bank_and_without_styles_it_is_fedavg(
    tiny: DomainDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    banks = list[set[str]]()
    plain = CCST.restyled

    def spy(self: CCST, x: Tensor, others: list[Tensor], client: Client, rng: torch.Generator) -> Tensor:
        kept = client.recall(OthersStyles)
        banks.append(set(kept.styles) if kept else set())
        plain(self, x, others, client, torch.Generator().manual_seed(0))
        return x  # what FedAvg would train on

    monkeypatch.setattr(CCST, "restyled", spy)
    values: dict[str, Any] = {"batch": 64, "lr": 0.1, "optimizer": "sgd"}
    one = train(Experiment(CCST(**values), tiny, "c", rounds=2), None, watch=Silent())
    two = train(Experiment(FedAvg(aggregation=Uniform(), **values), tiny, "c", rounds=2), None, watch=Silent())
    assert same_bits(one.state, two.state) and banks == [{"b"}, {"a"}] * 2


def test_what_stands_in_the_way_is_told(tiny: DomainDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    for method, data, sources, told in (
        (CCST(), tiny, "a", "a single client has nobody whose style"),
        (CCST(styles=3), tiny, None, "styles is 3, and there are 2 clients"),
        (CCST(space="adain"), tiny_classification(side=16), None, r"not on this machine; get vgg_normalised.pth \(from the release"),
    ):
        with pytest.raises(BadInput, match=told):
            build_world(Experiment(method, data, "c", sources=sources))


def test_styles_do_not_leave_for_nothing() -> None:
    with pytest.raises(BadInput, match="alpha is 0, so styles would leave and no image change"):
        CCST(alpha=0.0)


def files(folder: Path) -> None:
    """Files of the published shapes: the encoder's goes on behind relu4_1."""
    (folder / "checkpoints").mkdir()
    torch.manual_seed(0)
    encoder, decoder = adain_encoder(), adain_decoder()
    further = {"32.weight": torch.zeros(512, 512, 3, 3), "32.bias": torch.zeros(512)}
    torch.save({**state_of(encoder), **further}, folder / "checkpoints/vgg_normalised.pth")
    torch.save(state_of(decoder), folder / "checkpoints/decoder.pth")


def test_the_papers_networks_have_the_published_names_and_shapes() -> None:
    with torch.device("meta"):
        encoder, decoder = adain_encoder(), adain_decoder()
    planes = {"0": (3, 3), "2": (64, 3), "5": (64, 64), "9": (128, 64), "12": (128, 128), "16": (256, 128)}
    planes |= dict.fromkeys(("19", "22", "25"), (256, 256)) | {"29": (512, 256)}
    assert {k.removesuffix(".weight"): tuple(v.shape[:2]) for k, v in encoder.state_dict().items() if k.endswith("weight")} == planes
    back = {"1": (256, 512), "5": (256, 256), "8": (256, 256), "11": (256, 256), "14": (128, 256), "18": (128, 128), "21": (64, 128)}
    back |= {"25": (64, 64), "28": (3, 64)}
    assert {k.removesuffix(".weight"): tuple(v.shape[:2]) for k, v in decoder.state_dict().items() if k.endswith("weight")} == back
    assert len(encoder) == 31 and len(decoder) == 29
    assert encoder(torch.empty(1, 3, 30, 17, device="meta")).shape == (1, 512, 4, 3)
    assert decoder(torch.empty(1, 512, 4, 3, device="meta")).shape == (1, 3, 32, 24)


def test_in_adains_space_a_run_goes_through_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    files(tmp_path)
    data = tiny_classification((6, 4, 2), side=9)
    result = train(Experiment(CCST(space="adain", batch=4), data, "c", rounds=1), None, watch=Silent())
    (record,) = result.records
    assert not record["missing"] and all(torch.isfinite(v).all() for v in result.state.values())
    sent = {row["field"]: row["bytes"] for row in record["travelled"] if row["direction"] == "sent"}
    assert sent["overall"] == 4 * 1024, "512 means and deviations"


def test_a_style_in_adains_space_is_that_of_the_decoders_input() -> None:
    """decode(AdaIN(encode(u))), written out on pixels from 0 to 1, of images with one channel; sides are cut back from 16 to 10."""
    torch.manual_seed(0)
    encoder, decoder = adain_encoder(4).eval(), adain_decoder(4).eval()
    for layer in (*encoder, *decoder):
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight)  # fresh weights would let an image fade
    domain = images(6, side=10)
    one = client_of(domain, lambda: LinearNet(100, 3), encoder=lambda: encoder, decoder=lambda: decoder)
    x = torch.tensor(domain.images).float() / 255
    style = torch.rand(6, 2, 32) + 0.1
    with torch.no_grad():
        maps = encoder(x.repeat(1, 3, 1, 1))
        mu, sigma = maps.mean((2, 3), keepdim=True), (maps.var((2, 3), correction=0, keepdim=True) + 1e-6).sqrt()
        styled = style[:, 1, :, None, None] * (maps - mu) / sigma + style[:, 0, :, None, None]
        wanted = decoder(styled)[..., :10, :10].mean(1, keepdim=True).clamp(0, 1)
        found = CCST(space="adain").transferred(x, style, one)
    assert found.shape == x.shape and float(wanted.std()) > 1e-3
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)
    told = CCST(space="adain").tell(Nothing(), one).overall
    assert told is not None and np.allclose(told[0, 0].numpy(), maps.mean((0, 2, 3)).numpy(), atol=1e-5)
