"""PyTorch's compiler is not imported by a run that compiles nothing, and is there, whole, for one that does."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

RUN = """
import sys
import torch, unseen, unseen.client
from unseen.device.compiler import _Later

def steps(kind, **settings):
    torch.manual_seed(0)
    w = torch.nn.Parameter(torch.randn(5))
    optimizer = kind([w], **settings)
    for _ in range(3):
        optimizer.zero_grad()
        (w ** 3).sum().backward()
        optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    return w.detach()

before = [steps(torch.optim.Adam, lr=0.1), steps(torch.optim.SGD, lr=0.1, momentum=0.9)]
assert type(sys.modules["torch._dynamo"]) is _Later, "the compiler was imported"
assert not any(name.startswith(("torch._dynamo.", "sympy")) for name in sys.modules)
"""


def go(more: str) -> str:
    done = subprocess.run([sys.executable, "-c", RUN + textwrap.dedent(more)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_run_on_a_cpu_does_not_import_the_compiler() -> None:
    go(
        """
        network = "small_cnn:width=2"
        unseen.run(unseen.FedAvg(lr=1e-3, batch=32), "styled-digits", "outline", rounds=1, network=network)
        assert type(sys.modules["torch._dynamo"]) is _Later, "the compiler was imported"
        assert not any(name == "sklearn" or name.startswith("sympy") for name in sys.modules)
        """
    )


@pytest.mark.parametrize("first", ["torch._dynamo.config", "torch.onnx"])
def test_whoever_asks_for_the_compiler_has_it(first: str) -> None:
    """By a part of it, or by `torch.compile`; optimisers go on as before, those too that were made without it."""
    go(
        f"""
        import importlib
        importlib.import_module({first!r})
        net = torch.nn.Linear(3, 2)
        assert torch.equal(torch.compile(net, backend="eager")(torch.ones(1, 3)), net(torch.ones(1, 3)))
        assert type(sys.modules["torch._dynamo"]) is not _Later and torch._dynamo.config is sys.modules["torch._dynamo.config"]
        after = [steps(torch.optim.Adam, lr=0.1), steps(torch.optim.SGD, lr=0.1, momentum=0.9)]
        assert all(torch.equal(one, other) for one, other in zip(before, after))
        """
    )
