"""FedDyn's penalty against FedGCA's Eq. 5, written out number by number."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unseen.ops.dynamic import add_dynamic_gradient, buffers_of, dynamic_pull, parameters_of, updated_drift


class Two(torch.nn.Module):
    def __init__(self, values: dict[str, np.ndarray]) -> None:
        super().__init__()
        for name, value in values.items():
            self.register_parameter(name, torch.nn.Parameter(torch.tensor(value)))


@pytest.mark.parametrize("before", [None, 2.0])
def test_the_gradient_of_alpha_times_equation_5_is_added(before: float | None) -> None:
    rng, alpha, h = np.random.default_rng(0), 0.3, 1e-6
    w, anchor, drift = ({"a": rng.normal(size=(2, 3)), "b": rng.normal(size=4)} for _ in range(3))

    def equation_5(w: dict[str, np.ndarray]) -> float:
        flat = [np.concatenate([d["a"].ravel(), d["b"]]) for d in (w, anchor, drift)]
        return float(-1 / alpha * flat[2] @ flat[0] + 0.5 * np.sum((flat[0] - flat[1]) ** 2))

    net = Two(w)
    for parameter in net.parameters():
        parameter.grad = None if before is None else torch.full_like(parameter, before)
    tensors = [{name: torch.tensor(value) for name, value in d.items()} for d in (anchor, drift)]
    add_dynamic_gradient(net, dynamic_pull(*tensors, alpha), alpha)
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None
        for where in np.ndindex(*w[name].shape):
            moved = [{**w, name: w[name].copy()} for _ in range(2)]
            moved[0][name][where] += h
            moved[1][name][where] -= h
            slope = alpha * (equation_5(moved[0]) - equation_5(moved[1])) / (2 * h)
            assert float(parameter.grad[where]) == pytest.approx((before or 0.0) + slope, abs=1e-7)


def test_lambda_moves_against_the_way_the_weights_went() -> None:
    moved = updated_drift({"w": torch.tensor([1.0])}, {"w": torch.tensor([2.0])}, {"w": torch.tensor([5.0])}, 0.5)
    assert moved["w"].item() == 1 - 0.5 * 3


def test_parameters_and_buffers_make_the_state() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    assert {*parameters_of(net)} == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert {*buffers_of(net)} == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
