"""ELCFS's local objective against its equations: the inner step, the meta objective, the boundary term, both derivatives."""

from __future__ import annotations

import copy
import math
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import ndimage
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from cases import Case, own
from unseen import ELCFS, BadInput, Classification, Segmentation
from unseen.experiment import read_experiment
from unseen.method import Shapes, Surroundings
from unseen.networks import build_network
from unseen.networks.base import TaskNet
from unseen.networks.headed import HeadedNet
from unseen.networks.mobilenet import _InvertedResidual
from unseen.networks.unet import UNet
from unseen.networks.vit import _SelfAttention
from unseen.optimizers import moments_of, restore_moments
from unseen.parts.aggregation import SHA
from unseen.parts.sam import SAM
from unseen.task import dice_loss

TINY = {
    "elcfs": Case("elcfs", {"lr": 0.02, "batch": 8, "alpha": 0.2}, leaves="spectra.low train.model train.samples"),
    "elcfs-masks": Case(
        "elcfs",
        {"lr": 0.02, "batch": 4, "alpha": 0.1},
        task="segmentation",
        rounds=10,
        reaches=0.5,
        leaves="spectra.low train.model train.samples",
    ),
    "elcfs-released": Case(
        "elcfs",
        {**own("elcfs", "released"), "lr": 0.02, "batch": 4},
        task="segmentation",
        rounds=8,
        reaches=0.6,
        leaves="spectra.low train.model train.samples",
    ),
    "elcfs-sha": Case(
        "elcfs",
        {"lr": 0.02, "batch": 8, "alpha": 0.2, "aggregation": SHA(rho=1e-3)},
        leaves="assess.losses spectra.low train.model train.perturbed",
    ),
    "elcfs+sam": Case(
        "elcfs",
        {"lr": 0.02, "batch": 4, "alpha": 0.1, "sam": SAM()},
        task="segmentation",
        rounds=8,
        reaches=0.5,
        leaves="spectra.low train.model train.samples",
    ),
    "elcfs-no-interpolation": Case("elcfs", {"lr": 0.02, "batch": 8, "interpolate": False}, leaves="train.model train.samples"),
    "elcfs-no-episodes": Case(
        "elcfs",
        {"lr": 0.02, "batch": 4, "episodic": False, "gamma": 0.0},
        task="segmentation",
        rounds=8,
        reaches=0.6,
        leaves="spectra.low train.model train.samples",
    ),
}

MASKS = Segmentation(("disc", "cup"))
CLASSES = Classification(("x", "y", "z"))
PAPER = ELCFS(inner_lr=0.3, tau=0.5, gamma=0.7)
RELEASED_TERM = replace(PAPER, first_order=True, contrast="batch", feature_maps=1, features_of_x="old")


def unet() -> TaskNet:
    torch.manual_seed(0)
    return UNet(2, channels=1, width=2, depth=2).double()


def batch(n: int = 3, styles: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """Images, their restyled versions and masks of a disc with a cup."""
    rng = torch.Generator().manual_seed(1)
    y = torch.zeros(n, 2, 12, 12, dtype=torch.uint8)
    for row in range(n):
        y[row, 0, 2 + row : 9 + row, 2:9] = 1
        y[row, 1, 4 + row : 7 + row, 4:7] = 1
    x = torch.rand(n, 1, 12, 12, generator=rng, dtype=torch.float64) + y[:, :1]
    return x, x + 0.3 * torch.rand(styles, n, 1, 12, 12, generator=rng, dtype=torch.float64), y


def objective(method: ELCFS, net: TaskNet, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
    return method.objective(net, MASKS, x, t, y)


def updated(net: TaskNet, x: Tensor, y: Tensor, lr: float) -> TaskNet:
    """Eq. 4 on a copy of the network."""
    moved = copy.deepcopy(net)
    gradients = torch.autograd.grad(MASKS.loss(net(x), y), [*net.parameters()])
    with torch.no_grad():
        for w, g in zip(moved.parameters(), gradients, strict=True):
            w -= lr * g
    return moved


def regions(net: TaskNet, x: Tensor, masks: list[np.ndarray], maps: int) -> list[Tensor]:
    """Eq. 5 with whole enlarged maps, one vector per image."""
    large = [F.interpolate(z, size=(12, 12), mode="bilinear", align_corners=False) for z in net(x, full=True).maps[-maps:]]
    z = torch.cat(large, 1).detach()
    return [z[n][:, torch.from_numpy(mask)].mean(1) for n, mask in enumerate(masks)]


def edges(y: Tensor, structure: int, inside: int = 1, outside: int = 5) -> tuple[list[np.ndarray], list[np.ndarray]]:
    masks = [m.numpy().astype(bool) for m in y[:, structure]]
    background = [ndimage.binary_dilation(m, iterations=outside) & ~m for m in masks]
    return [m & ~ndimage.binary_erosion(m, iterations=inside) for m in masks], background


def cosine(a: Tensor, b: Tensor, tau: float) -> float:
    return math.exp(float(F.cosine_similarity(a, b, dim=0)) / tau)


def equation_7(h: list[list[Tensor]], tau: float) -> float:
    """One image: h[kind][version]."""
    versions = len(h[0])
    total = 0.0
    for kind in (0, 1):
        for m in range(versions):
            below = sum(cosine(h[kind][m], negative, tau) for negative in h[1 - kind])
            total += sum(-math.log(cosine(h[kind][m], h[kind][p], tau) / below) for p in range(m + 1, versions))
    return total / (math.comb(versions, 2) * 2)


@pytest.mark.parametrize(("inside", "outside"), [(1, 5), (2, 3)])
def test_the_objective_is_equation_9_with_equation_8_at_the_updated_weights(inside: int, outside: int) -> None:
    net, (x, t, y) = unet(), batch()
    moved = updated(net, x, y, 0.3)
    boundary = 0.0
    for structure in (0, 1):
        h = [[regions(moved, images, masks, 2) for images in (x, *t)] for masks in edges(y, structure, inside, outside)]
        boundary += sum(equation_7([[version[n] for version in kind] for kind in h], 0.5) for n in range(3)) / 3
    wanted = MASKS.loss(net(x), y) + sum(MASKS.loss(moved(style), y) for style in t) / 2 + 0.7 * boundary
    method = replace(PAPER, boundary_steps=inside, background_steps=outside)
    got = objective(method, net, x, t, y)
    assert got.item() == pytest.approx(wanted.item(), rel=1e-9)
    assert got.item() != pytest.approx(objective(replace(method, inner_lr=0.1), net, x, t, y).item(), rel=1e-4)


def test_the_released_form_takes_the_last_map_the_old_features_of_x_and_the_whole_batch() -> None:
    net, (x, t, y) = unet(), batch(styles=1)
    moved = updated(net, x, y, 0.3)
    boundary = 0.0
    for structure in (0, 1):
        kinds = [[*regions(net, x, masks, 1), *regions(moved, t[0], masks, 1)] for masks in edges(y, structure)]
        losses = []
        for kind in (0, 1):
            for a, anchor in enumerate(kinds[kind]):
                negatives = sum(cosine(anchor, h, 0.5) for h in kinds[1 - kind])
                positives = [cosine(anchor, h, 0.5) for p, h in enumerate(kinds[kind]) if p != a]
                losses += [-math.log(s / (s + negatives)) for s in positives]
        boundary += sum(losses) / len(losses)
    wanted = MASKS.loss(net(x), y) + MASKS.loss(moved(t[0]), y) + 0.7 * boundary
    assert objective(RELEASED_TERM, net, x, t, y).item() == pytest.approx(wanted.item(), rel=1e-9)


def slope(method: ELCFS, direction: list[Tensor], h: float = 1e-6) -> float:
    """The objective's derivative along a direction, by central differences."""
    values = []
    for sign in (1, -1):
        net, (x, t, y) = unet(), batch()
        with torch.no_grad():
            for w, d in zip(net.parameters(), direction, strict=True):
                w += sign * h * d
        values.append(objective(method, net, x, t, y).item())
    return (values[0] - values[1]) / (2 * h)


@pytest.mark.parametrize(
    "method", [PAPER, replace(PAPER, gamma=0.0), replace(RELEASED_TERM, first_order=False), replace(PAPER, inner_clamp=0.05)]
)
def test_the_second_order_gradient_agrees_with_finite_differences(method: ELCFS) -> None:
    net, (x, t, y) = unet(), batch()
    gradient = torch.autograd.grad(objective(method, net, x, t, y), [*net.parameters()])
    first_order = replace(method, first_order=True)
    other = torch.autograd.grad(objective(first_order, net, x, t, y), [*net.parameters()])
    torch.manual_seed(2)
    for _ in range(2):
        direction = [torch.randn_like(g) for g in gradient]
        along, along_other = (sum(float((g * d).sum()) for g, d in zip(gs, direction, strict=True)) for gs in (gradient, other))
        assert along == pytest.approx(slope(method, direction), rel=1e-4)
        assert abs(along_other - along) > 1e-3 * abs(along)


def test_the_first_order_gradient_is_the_sum_at_both_weights() -> None:
    net, (x, t, y) = unet(), batch()
    method = replace(PAPER, first_order=True, gamma=0.0)
    got = torch.autograd.grad(objective(method, net, x, t, y), [*net.parameters()])
    moved = updated(net, x, y, 0.3)
    inner = torch.autograd.grad(MASKS.loss(net(x), y), [*net.parameters()])
    outer = torch.autograd.grad((MASKS.loss(moved(t[0]), y) + MASKS.loss(moved(t[1]), y)) / 2, [*moved.parameters()])
    assert all(torch.allclose(g, a + b, atol=1e-10) for g, a, b in zip(got, inner, outer, strict=True))


def test_the_inner_gradient_is_clamped_entry_by_entry() -> None:
    w = torch.tensor([1.0, 1.0, 1.0], requires_grad=True)
    moved = ELCFS(inner_lr=0.5, inner_clamp=2.0).inner_step((w * torch.tensor([1.0, 3.0, -9.0])).sum(), {"w": w})
    assert moved["w"].tolist() == [0.5, 0.0, 2.0]


def test_without_episodic_learning_all_images_are_trained_on_at_the_same_weights() -> None:
    net, (x, t, y) = unet(), batch()
    got = objective(replace(PAPER, episodic=False, gamma=0.0), net, x, t, y)
    wanted = MASKS.loss(net(x), y) + (MASKS.loss(net(t[0]), y) + MASKS.loss(net(t[1]), y)) / 2
    assert torch.allclose(got, wanted, rtol=1e-12)
    with_boundary = objective(replace(PAPER, episodic=False), net, x, t, y)
    assert with_boundary.item() == pytest.approx(objective(replace(PAPER, inner_lr=0.0), net, x, t, y).item(), rel=1e-12)


@pytest.mark.parametrize("method", [PAPER, RELEASED_TERM])
@pytest.mark.parametrize("fill", [0, 1])
def test_an_image_with_an_empty_or_a_full_mask_has_no_boundary_term(method: ELCFS, fill: int) -> None:
    net, (x, t, y) = unet(), batch()
    y[1] = fill
    loss = objective(method, net, x, t, y)
    gradient = torch.autograd.grad(loss, [*net.parameters()])
    assert all(torch.isfinite(g).all() for g in gradient)
    maps = net(torch.cat([x[None], t]).flatten(0, 1), full=True).maps
    kept = [row for version in range(3) for row in (3 * version, 3 * version + 2)]
    alone = method.edges.loss([tuple(z[kept] for z in maps)], y[[0, 2]])
    assert method.edges.loss([maps], y).item() == pytest.approx(alone.item(), rel=1e-9)
    assert method.edges.loss([maps], torch.full_like(y, fill)).item() == 0


def test_a_structure_that_an_image_lacks_takes_the_term_from_that_structure_alone() -> None:
    """Image 1 has no cup, image 2 is all disc: the disc's term is that of images 0 and 1, the cup's that of 0 and 2."""
    net, (x, t, y) = unet(), batch()
    y[0, 0, :, :6] = 1  # reaches the image's border
    y[1, 1], y[2, 0] = 0, 1
    maps = net(torch.cat([x[None], t]).flatten(0, 1), full=True).maps
    wanted = 0.0
    for structure, images in ((0, (0, 1)), (1, (0, 2))):
        h = [[regions(net, version, masks, 2) for version in (x, *t)] for masks in edges(y, structure)]
        wanted += sum(equation_7([[version[n] for version in kind] for kind in h], 0.5) for n in images) / 2
    assert PAPER.edges.loss([maps], y).item() == pytest.approx(wanted, rel=1e-9)


def linear(weight: Tensor) -> TaskNet:
    """A network whose only weights are a linear layer's, on images of two pixels."""
    from unseen.networks.base import Outputs

    class Linear(TaskNet):
        feature_size = 2

        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 3, bias=False, dtype=torch.float64)
            self.fc.weight = nn.Parameter(weight.clone())

        def forward(self, x: Tensor, full: bool = False) -> Tensor | Outputs:
            features = x.flatten(1)
            return Outputs(self.fc(features), features, (x,)) if full else self.fc(features)

        def head(self) -> nn.Module:
            return self.fc

    return Linear()


def test_classification_has_cross_entropy_in_both_places_and_no_boundary_term() -> None:
    """Softmax regression: the inner gradient is (p - onehot) x', worked out here with numpy."""
    rng = np.random.default_rng(0)
    w, x, t, y = rng.normal(size=(3, 2)), rng.normal(size=(4, 2)), rng.normal(size=(2, 4, 2)), np.array([0, 1, 2, 1])

    def cross_entropy(weight: np.ndarray, inputs: np.ndarray) -> tuple[float, np.ndarray]:
        e = np.exp(inputs @ weight.T)
        p = e / e.sum(1, keepdims=True)
        return float(-np.log(p[np.arange(4), y]).mean()), (p - np.eye(3)[y]).T @ inputs / 4

    loss, gradient = cross_entropy(w, x)
    wanted = loss + np.mean([cross_entropy(w - 0.3 * gradient, style)[0] for style in t])
    net = linear(torch.from_numpy(w))
    images, styles = torch.from_numpy(x).view(4, 1, 1, 2), torch.from_numpy(t).view(2, 4, 1, 1, 2)
    assert PAPER.objective(net, CLASSES, images, styles, torch.from_numpy(y)).item() == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("first_order", [True, False])
def test_batch_statistics_are_renewed_once_a_batch_by_the_raw_images(first_order: bool) -> None:
    net = build_network("small_cnn:width=2", outputs=3, channels=3, size=(8, 8)).train()
    alone = copy.deepcopy(net)
    x, t, y = torch.rand(4, 3, 8, 8), torch.rand(2, 4, 3, 8, 8) + 3, torch.arange(4) % 3
    replace(PAPER, first_order=first_order).objective(net, CLASSES, x, t, y).backward()
    alone(x)
    assert net.bn1.num_batches_tracked == 1
    for (name, buffer), wanted in zip(net.named_buffers(), alone.buffers(), strict=True):
        assert torch.equal(buffer, wanted), name
    assert all(w.grad is not None and torch.isfinite(w.grad).all() for w in net.parameters())


class Depthwise(HeadedNet):
    """Two blocks of MobileNetV2, one of each stride; `made` is what made the convolutions' outputs."""

    head_name = "fc"

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.feature_size = width
        self.blocks = nn.Sequential(
            nn.Conv2d(3, width, 1, bias=False), _InvertedResidual(width, width, 1, 2), _InvertedResidual(width, width, 2, 2)
        )
        self.fc = nn.Linear(width, 3)
        self.made: list[str] = []
        for conv in (m for m in self.modules() if isinstance(m, nn.Conv2d)):
            conv.register_forward_hook(lambda _module, _x, y: self.made.append(y.grad_fn.name()))

    def look(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        maps = self.blocks(x)
        return maps.mean((2, 3)), (maps,)


def depthwise_gradient(net: Depthwise, method: ELCFS = PAPER) -> tuple[Tensor, ...]:
    rng = torch.Generator().manual_seed(1)
    images = torch.rand(3, 4, 3, 7, 7, generator=rng, dtype=torch.float64)
    loss = method.objective(net.double(), CLASSES, images[0], images[1:], torch.arange(4) % 3)
    return torch.autograd.grad(loss, [*net.parameters()])


def test_the_second_derivative_is_the_one_by_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, first_order = depthwise_gradient(Depthwise()), depthwise_gradient(Depthwise(), replace(PAPER, first_order=True))
    monkeypatch.setattr("unseen.methods.elcfs.DifferentiatedTwice", nullcontext)
    pytorchs = depthwise_gradient(Depthwise())
    assert all(torch.allclose(a, b, rtol=1e-9, atol=1e-12) for a, b in zip(ours, pytorchs, strict=True))
    assert not any(torch.allclose(a, b, rtol=1e-3) for a, b in zip(first_order, pytorchs, strict=True) if a.dim() == 4)


def test_plain_convolutions_are_used_wherever_one_derivative_is_enough() -> None:
    net, once = Depthwise(), Depthwise()
    depthwise_gradient(net)
    depthwise_gradient(once, replace(PAPER, first_order=True))
    raw, restyled = net.made[: len(net.made) // 2], net.made[len(net.made) // 2 :]
    assert len(raw) == len(restyled) and all(name.startswith("_Convolution") for name in raw)
    assert set(restyled) == set(once.made) == {"ConvolutionBackward0"}


def test_the_second_derivative_takes_no_more_operations_for_more_groups() -> None:
    class Count(TorchDispatchMode):
        operations = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.operations += 1
            return func(*args, **(kwargs or {}))

    counts = []
    for width in (4, 8):
        with Count() as count:
            depthwise_gradient(Depthwise(width))
        counts.append(count.operations)
    assert counts[0] == counts[1]


def test_the_dice_loss_is_over_the_batch_and_then_over_structures() -> None:
    probability, mask = torch.rand(3, 2, 4, 4, dtype=torch.float64), (torch.rand(3, 2, 4, 4) > 0.5).double()
    each = [1 - (2 * (probability[:, s] * mask[:, s]).sum() + 1e-5) / (probability[:, s].sum() + mask[:, s].sum() + 1e-5) for s in (0, 1)]
    assert float(dice_loss(probability, mask)) == pytest.approx(float(sum(each)) / 2)


def test_an_optimiser_goes_on_where_it_was() -> None:
    def step(w: nn.Parameter, optimizer: torch.optim.Optimizer) -> None:
        w.grad = w.detach() ** 2
        optimizer.step()

    whole, parts = (nn.Parameter(torch.tensor([1.0, -2.0])) for _ in range(2))
    one, first = torch.optim.Adam([whole], lr=0.1), torch.optim.Adam([parts], lr=0.1)
    for optimizer, w in ((one, whole), (first, parts), (one, whole)):
        step(w, optimizer)
    second = torch.optim.Adam([parts], lr=0.1)
    kept = moments_of(first)
    restore_moments(second, kept)
    step(parts, second)
    assert torch.equal(whole, parts) and kept["0.step"] == 1


def around(task: str = "segmentation", net: nn.Module | None = None, **training: int) -> Surroundings:
    net = net or UNet(2, channels=1, width=2, depth=2)
    return Surroundings(task, Shapes(2, 1, (12, 12), 4, lambda outputs: net), net, training or {"a": 3, "b": 3}, {"a": 1, "b": 1})


def test_what_stands_in_the_way_is_said_before_round_1() -> None:
    assert not [*ELCFS().obstacles(around())]
    assert "single client" in next(iter(ELCFS().obstacles(around(a=3))))
    assert not [*ELCFS(interpolate=False).obstacles(around(a=3))]
    assert "'b' has no training image" in next(iter(ELCFS().obstacles(around(a=3, b=0))))
    shallow = build_network("small_cnn:width=2", outputs=2, channels=1, size=(12, 12))
    assert "2 decoder maps, the network has 1" in next(iter(ELCFS().obstacles(around(net=shallow))))
    assert not [*ELCFS(feature_maps=1).obstacles(around(net=shallow))] and not [*ELCFS(gamma=0.0).obstacles(around(net=shallow))]


def test_fast_attention_is_refused_only_where_it_is_differentiated_twice() -> None:
    fast, plain = (around("classification", nn.Sequential(_SelfAttention(kind))) for kind in ("fast", "plain"))
    assert "attention=plain" in next(iter(ELCFS().obstacles(fast)))
    assert not [*ELCFS().obstacles(plain)]
    assert not [*ELCFS(first_order=True).obstacles(fast)] and not [*ELCFS(episodic=False).obstacles(fast)]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"lam_low": 0.6, "lam_high": 0.2}, "goes up"),
        ({"interpolate": False, "episodic": False}, "use fedavg"),
        ({"alpha": 0.5}, "from 0 to 0.49"),
        ({"tau": 0.0}, "tau"),
        ({"contrast": "image "}, "did you mean 'image'"),
    ],
)
def test_bad_settings_are_refused(values: dict[str, object], told: str) -> None:
    with pytest.raises(BadInput, match=told):
        ELCFS(**values)  # type: ignore[arg-type]


def test_presets_are_the_papers_and_the_released_numbers() -> None:
    paper, released = (read_experiment({"method": "elcfs", "preset": preset}) for preset in ("paper", "released"))
    assert paper.method == ELCFS() and (paper.rounds, paper.augment) == (100, "elcfs")
    p, r = paper.method, released.method
    assert isinstance(p, ELCFS) and isinstance(r, ELCFS)
    assert (p.alpha, p.lam_low, p.lam_high, p.inner_lr, p.lr, p.tau, p.gamma, p.batch, p.epochs) == (
        0.01,
        0,
        1,
        1e-3,
        1e-3,
        0.05,
        0.1,
        5,
        1,
    )
    assert (p.beta1, p.beta2, p.first_order, p.restyled, p.bank_share) == (0.9, 0.99, False, None, 1.0)
    assert (r.alpha, r.lam_low, r.lam_high, r.restyled, r.bank_share) == (0.0, 1.0, 1.0, 1, 0.125)
    assert (r.first_order, r.inner_clamp, r.clip, r.beta2, r.keep_moments) == (True, 100.0, True, 0.999, True)
    assert (r.feature_maps, r.features_of_x, r.contrast, r.gamma) == (1, "old", "batch", 0.1)
    assert (released.rounds, released.augment) == (100, "none")
