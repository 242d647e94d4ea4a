"""Memory format and precision: which networks get which, and that the choice changes no result beyond rounding."""

from __future__ import annotations

import pytest
import torch

from unseen.client import Client, Pool
from unseen.data.augment import RECIPES
from unseen.data.domain import UNIT, Domain, DomainDataset, Holding, Samples
from unseen.device.formats import fast_precision, memory_format
from unseen.device.resident import SampleReader
from unseen.networks import ImageGenerator, build_network
from unseen.state import copied, state_of

CPU, GPU = torch.device("cpu"), torch.device("cuda")
LAST, PLAIN = torch.channels_last, torch.contiguous_format


def network(name: str) -> torch.nn.Module:
    return build_network(name, outputs=3, channels=3, size=(32, 32))


@pytest.mark.parametrize(
    ("name", "form"),
    [("resnet18", LAST), ("mobilenet_v2", LAST), ("digits_cnn", LAST), ("small_cnn", LAST), ("unet:width=2,depth=3", PLAIN)],
)
def test_instance_norm_decides_on_a_cpu(name: str, form: torch.memory_format) -> None:
    assert memory_format(network(name), CPU) == form
    assert memory_format(network(name), GPU) == LAST


def test_the_generator_stays_plain_beside_a_network_that_does_not() -> None:
    assert memory_format(ImageGenerator(3, 4), CPU) == PLAIN


def test_bf16_needs_a_processor_that_multiplies_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for amx, avx, resnet in ((False, False, "fp32"), (True, False, "bf16"), (False, True, "bf16")):
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda amx=amx: amx)
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda avx=avx: avx)
        assert fast_precision(network("resnet18"), CPU) == resnet
        assert fast_precision(network("mobilenet_v2"), CPU) == "fp32"  # depthwise
    assert fast_precision(network("mobilenet_v2"), GPU) == "bf16"


def a_client(tiny: DomainDataset, name: str, precision: str = "fp32") -> Client:
    domain: Domain = tiny.domains[0]
    samples = Samples(((domain, torch.arange(8).numpy()),))
    pool = Pool({"task": lambda: build_network(name, outputs=3, channels=3, size=(8, 8))}, CPU)
    rng = torch.Generator().manual_seed(0)
    return Client(
        Holding("me", "a", samples, samples), tiny.task, pool, SampleReader((domain,), CPU), rng, UNIT, RECIPES["none"], precision
    )  # type: ignore[arg-type]


def test_networks_and_batches_lie_alike_and_what_leaves_is_plain(tiny: DomainDataset) -> None:
    client = a_client(tiny, "small_cnn:width=4")
    fresh = state_of(build_network("small_cnn:width=4", outputs=3, channels=3, size=(8, 8)))
    net = client.build("task", fresh)
    x, _ = next(client.batches(size=4, epochs=1))
    assert x.is_contiguous(memory_format=LAST) and net.conv2.weight.is_contiguous(memory_format=LAST)
    assert not net.conv2.weight.is_contiguous()
    left = state_of(net)
    assert all(value.is_contiguous() and torch.equal(value, fresh[name]) for name, value in left.items())
    plain = build_network("small_cnn:width=4", outputs=3, channels=3, size=(8, 8)).train()
    plain.load_state_dict(fresh)
    assert torch.allclose(net(x), plain(x.contiguous()), atol=1e-5)


def test_a_unets_batches_stay_plain(tiny: DomainDataset) -> None:
    x, _ = next(a_client(tiny, "unet:width=2,depth=3").batches(size=4, epochs=1))
    assert x.is_contiguous()


def test_auto_is_the_rules_precision(tiny: DomainDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    for avx, dtype in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda avx=avx: avx)
        client = a_client(tiny, "small_cnn:width=4", "auto")
        net = client.build("task", state_of(build_network("small_cnn:width=4", outputs=3, channels=3, size=(8, 8))))
        seen: list[torch.dtype] = []

        @client.step
        def step(x: torch.Tensor, net: torch.nn.Module = net, seen: list[torch.dtype] = seen) -> None:
            seen.append(net.conv1(x).dtype)

        step(next(client.images(4)))
        assert seen == [dtype]


def test_a_copy_lies_as_bytes_would() -> None:
    tensor = torch.rand(2, 3, 4, 5).contiguous(memory_format=LAST)
    copy = copied({"w": tensor})["w"]
    assert copy.is_contiguous() and torch.equal(copy, tensor) and copy.data_ptr() != tensor.data_ptr()
