"""Styles that are mixed within a compiled pass: what they are without. The compiler traces here, and runs what it traced as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unseen.device import compiling
from unseen.device.compiling import Compiled
from unseen.networks import build_network
from unseen.parts.mixstyle import DSU, EFDMix, MapStyle, MixStyle, mixed


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The compiler without a back end; what it traced."""
    graphs: list[Any] = []

    def note(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def compiled(net: nn.Module) -> Callable[[Tensor], Tensor]:
        return torch.compile(net, backend=note, fullgraph=True, dynamic=False)

    torch._dynamo.reset()
    monkeypatch.setattr(compiling, "compiled", compiled)
    with torch._dynamo.config.patch(skip_nnmodule_hook_guards=False):
        yield graphs
    torch._dynamo.reset()


@pytest.mark.parametrize("part", [MixStyle(p=1.0), EFDMix(p=1.0), DSU(p=1.0), MixStyle(p=1.0, stages=1)], ids=str)
def test_a_compiled_pass_mixes_what_is_drawn_for_each_batch(part: MapStyle, traced: list[Any]) -> None:
    torch.manual_seed(0)
    net = build_network("small_cnn:width=4", outputs=3, channels=3, size=(16, 16)).train()
    x, rng = torch.randn(6, 3, 16, 16), torch.Generator().manual_seed(0)
    channels = _channels(net)
    draws = [part.draw(len(x), lambda: channels, rng) for _ in range(3)]
    plain = [mixed(part, net, x, drawn) for drawn in ((), *draws)]
    net.compiled_pass = Compiled(net, lambda: True)
    got = [mixed(part, net, x, drawn) for drawn in ((), *draws)]
    assert len(traced) == 2, "once with and once without mixing, whatever is drawn"
    got.append(mixed(part, net, x, ()))
    for one, other in zip(got, [*plain, plain[0]], strict=True):
        torch.testing.assert_close(one, other)
    assert not torch.allclose(plain[1], plain[2]) and not torch.allclose(plain[0], plain[1])


def _channels(net: Any) -> list[int]:
    found: list[int] = []
    hooks = [stage.register_forward_hook(lambda _, __, maps: found.append(maps.shape[1])) for stage in net.stages()]
    net(torch.zeros(2, 3, 16, 16))
    for hook in hooks:
        hook.remove()
    return found
