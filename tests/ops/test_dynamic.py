"""FedDyn's penalty against FedGCA's Eq. 5, written out number by number."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unseen.ops.dynamic import buffers_of, dynamic_term, parameters_of, updated_drift


def test_alpha_times_equation_5_and_its_gradient() -> None:
    rng, alpha = np.random.default_rng(0), 0.3
    w, anchor, drift = ({"a": rng.normal(size=(2, 3)), "b": rng.normal(size=4)} for _ in range(3))
    flat = [np.concatenate([d["a"].ravel(), d["b"]]) for d in (w, anchor, drift)]
    equation_5 = -1 / alpha * flat[2] @ flat[0] + 0.5 * np.sum((flat[0] - flat[1]) ** 2)
    tensors = [{k: torch.tensor(v) for k, v in d.items()} for d in (w, anchor, drift)]
    leaves = {k: v.requires_grad_() for k, v in tensors[0].items()}
    term = dynamic_term(leaves.items(), tensors[1], tensors[2], alpha)
    assert float(term.detach()) == pytest.approx(alpha * equation_5)
    term.backward()
    for name, leaf in leaves.items():
        assert leaf.grad is not None and np.allclose(leaf.grad, alpha * (w[name] - anchor[name]) - drift[name])


def test_lambda_moves_against_the_way_the_weights_went() -> None:
    moved = updated_drift({"w": torch.tensor([1.0])}, {"w": torch.tensor([2.0])}, {"w": torch.tensor([5.0])}, 0.5)
    assert moved["w"].item() == 1 - 0.5 * 3


def test_parameters_and_buffers_make_the_state() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    assert {*parameters_of(net)} == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert {*buffers_of(net)} == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
