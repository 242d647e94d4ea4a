"""The task networks: published sizes, published names, and the shapes that methods rely on."""

import hashlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from unseen.errors import BadInput
from unseen.networks import NETWORKS, build_network
from unseen.networks.efficientnet import _SameConv2d
from unseen.networks.vit import _SelfAttention

PUBLISHED = {  # parameters with 1000 outputs, as torchvision and the Lite0 package document them
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "alexnet": 61_100_840,
    "mobilenet_v2": 3_504_872,
    "efficientnet_lite0": 4_652_008,
    "vit_b_16": 86_567_656,
    "vit_b_32": 88_224_232,
}


def on_meta(name, **changes):
    with torch.device("meta"):
        return build_network(name, **{"outputs": 1000, "channels": 3, "size": (224, 224), **changes})


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_counts_are_the_published_ones(name):
    assert sum(p.numel() for p in on_meta(name).parameters()) == PUBLISHED[name]


@pytest.mark.parametrize(
    ("name", "entries", "digest"),
    [  # taken from mobilenet_v2-b0353104.pth and efficientnet-lite0-57934424.pth
        ("mobilenet_v2", 314, "b37e2a9130e6341bc6158c07707da3e63bbde46fdbffb1ff4d42ea45ff281e7e"),
        ("efficientnet_lite0", 296, "d7f6403136a9eb8668cc14621d4cd20b5b1e93b3b80c8f792caef702f2ca8001"),
    ],
)
def test_names_and_shapes_are_those_of_the_published_files(name, entries, digest):
    lines = sorted(f"{key} {list(value.shape)}" for key, value in on_meta(name).state_dict().items())
    assert len(lines) == entries
    assert hashlib.sha256("\n".join(lines).encode()).hexdigest() == digest


def _resnet_names(depths, convolutions, first_stage_has_shortcut):
    def norm(prefix):
        return [f"{prefix}.{part}" for part in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")]

    names = ["conv1.weight", *norm("bn1"), "fc.weight", "fc.bias"]
    for stage, depth in enumerate(depths, 1):
        for block in range(depth):
            at = f"layer{stage}.{block}"
            for number in range(1, convolutions + 1):
                names += [f"{at}.conv{number}.weight", *norm(f"{at}.bn{number}")]
            if block == 0 and (stage > 1 or first_stage_has_shortcut):
                names += [f"{at}.downsample.0.weight", *norm(f"{at}.downsample.1")]
    return set(names)


def test_resnet_names_are_torchvisions():
    assert set(on_meta("resnet34").state_dict()) == _resnet_names((3, 4, 6, 3), 2, False)
    assert set(on_meta("resnet152").state_dict()) == _resnet_names((3, 8, 36, 3), 3, True)


def test_resnet50_puts_the_stride_in_the_3x3_convolution():
    block = on_meta("resnet50").layer2[0]
    assert block.conv1.stride == (1, 1) and block.conv2.stride == (2, 2) and block.downsample[0].stride == (2, 2)


def test_alexnet_and_vit_names_are_torchvisions():
    convolutions, linears = (f"features.{n}" for n in (0, 3, 6, 8, 10)), (f"classifier.{n}" for n in (1, 4, 6))
    assert set(on_meta("alexnet").state_dict()) == {f"{at}.{part}" for at in (*convolutions, *linears) for part in ("weight", "bias")}
    layer = ["ln_1", "ln_2", "self_attention.out_proj", "mlp.0", "mlp.3"]
    modules = ["conv_proj", "encoder.ln", "heads.head", *(f"encoder.layers.encoder_layer_{n}.{at}" for n in range(12) for at in layer)]
    names = {f"{at}.{part}" for at in modules for part in ("weight", "bias")} | {"class_token", "encoder.pos_embedding"}
    names |= {f"encoder.layers.encoder_layer_{n}.self_attention.in_proj_{part}" for n in range(12) for part in ("weight", "bias")}
    assert set(on_meta("vit_b_16").state_dict()) == names


@pytest.mark.parametrize(
    ("name", "size", "features", "maps"),
    [
        ("resnet18", (64, 96), (512,), [(512, 2, 3)]),
        ("resnet50", (64, 64), (2048,), [(2048, 2, 2)]),
        ("alexnet", (224, 224), (4096,), [(256, 13, 13)]),
        ("mobilenet_v2", (64, 96), (1280,), [(1280, 2, 3)]),
        ("efficientnet_lite0", (64, 70), (1280,), [(1280, 2, 3)]),
        ("vit_b_16", (32, 48), (768,), [(768, 2, 3)]),
        ("vit_b_32", (64, 64), (768,), [(768, 2, 2)]),
        ("digits_cnn", (32, 28), (1024,), [(128, 10, 8)]),
        ("small_cnn:width=4", (9, 12), (16,), [(16, 2, 3)]),
        ("unet", (64, 48), (32, 64, 48), [(64, 32, 24), (32, 64, 48)]),
        ("unet:width=4,depth=3", (21, 30), (8, 21, 30), [(16, 10, 15), (8, 21, 30)]),
    ],
)
def test_shapes_of_what_a_method_may_look_at(name, size, features, maps):
    channels = 1  # the counts above are for three
    net = on_meta(name, outputs=7, channels=channels, size=size)
    found = net(torch.empty(2, channels, *size, device="meta"), full=True)
    assert found.features.shape == (2, *features) and net.feature_size == features[0]
    assert [tuple(m.shape) for m in found.maps] == [(2, *m) for m in maps]
    assert found.logits.shape == ((2, 7, *size) if name.startswith("unet") else (2, 7))
    assert net(torch.empty(2, channels, *size, device="meta")).shape == found.logits.shape


SMALL = {
    "resnet18": 32,
    "mobilenet_v2": 32,
    "efficientnet_lite0": 32,
    "digits_cnn": 16,
    "small_cnn": 8,
    "unet:width=4,depth=3": 16,
    "alexnet": 64,
}


@pytest.mark.parametrize("name", SMALL)
def test_logits_are_the_head_of_the_features_also_in_training(name):
    torch.manual_seed(0)
    net = build_network(name, outputs=3, channels=1, size=(SMALL[name],) * 2).train()
    found = net(torch.randn(2, 1, SMALL[name], SMALL[name]), full=True)
    assert torch.equal(net.head()(found.features), found.logits)


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "efficientnet_lite0"])
def test_pooled_features_are_the_mean_of_the_maps(name):
    torch.manual_seed(0)
    net = build_network(name, outputs=3, channels=3, size=(64, 64)).eval()
    found = net(torch.randn(1, 3, 64, 64), full=True)
    by_hand = torch.stack([row.sum() / row.numel() for row in found.maps[0][0]])
    torch.testing.assert_close(found.features[0], by_hand)


def test_functional_call_reaches_features():
    net = build_network("digits_cnn", outputs=3, channels=1, size=(16, 16))
    zeros = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
    assert functional_call(net, zeros, (torch.ones(1, 1, 16, 16),), {"full": True}).features.abs().sum() == 0


@pytest.mark.parametrize("attention", ["fast", "plain"])
def test_vit_attention_is_torchs_multihead_attention(attention):
    torch.manual_seed(0)
    ours = _SelfAttention(attention)
    theirs = nn.MultiheadAttention(768, 12, batch_first=True)
    ours.in_proj_bias.data.normal_()
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 5, 768)
    torch.testing.assert_close(ours(x), theirs(x, x, x, need_weights=False)[0], atol=1e-5, rtol=1e-4)


def test_vit_layer_is_torchs_pre_norm_encoder_layer():
    torch.manual_seed(0)
    ours = build_network("vit_b_32", outputs=2, channels=1, size=(32, 32)).encoder.layers[3]
    theirs = nn.TransformerEncoderLayer(768, 12, 3072, dropout=0, activation=F.gelu, layer_norm_eps=1e-6, batch_first=True, norm_first=True)
    renames = (("self_attention", "self_attn"), ("ln_", "norm"), ("mlp.0", "linear1"), ("mlp.3", "linear2"))
    state = ours.state_dict()
    for old, new in renames:
        state = {key.replace(old, new): value for key, value in state.items()}
    theirs.load_state_dict(state)
    x = torch.randn(2, 4, 768)
    torch.testing.assert_close(ours(x), theirs(x), atol=1e-5, rtol=1e-4)


def _second_derivative(net, x):
    weight = next(net.parameters())
    (gradient,) = torch.autograd.grad(net(x).square().mean(), weight, create_graph=True)
    (second,) = torch.autograd.grad(gradient.square().sum(), weight)
    return second


def test_plain_attention_has_second_derivatives_that_agree_with_finite_differences():
    torch.manual_seed(0)
    net = build_network("vit_b_32:attention=plain", outputs=2, channels=1, size=(32, 32))
    attend = net.encoder.layers[0].self_attention.attend
    inputs = [torch.randn(1, 1, 3, 2, dtype=torch.double, requires_grad=True) for _ in range(3)]
    assert attend is not F.scaled_dot_product_attention
    assert torch.autograd.gradgradcheck(attend, inputs)
    net.head().weight.data.normal_()  # it starts at zero, where nothing has a second derivative
    assert _second_derivative(net, torch.randn(1, 1, 32, 32)).abs().sum() > 0


def test_unet_can_be_differentiated_twice():
    torch.manual_seed(0)
    net = build_network("unet:width=2,depth=3", outputs=1, channels=1, size=(8, 8)).double()
    assert _second_derivative(net, torch.randn(1, 1, 8, 8).double()).abs().sum() > 0


def test_unet_has_no_norm_entries_and_evaluates_as_it_trains():
    torch.manual_seed(0)
    net = build_network("unet:width=4,depth=3", outputs=2, channels=1, size=(16, 16))
    assert {name.rsplit(".", 1)[1] for name in net.state_dict()} == {"weight", "bias"}
    x = torch.randn(2, 1, 16, 16)
    assert torch.equal(net.train()(x), net.eval()(x))


def test_unet_levels_and_default_width():
    net = on_meta("unet", outputs=2, size=(384, 384))
    assert [block.conv3.out_channels for block in net.encoder] == [16, 32, 64, 128, 256]
    assert [block.join.out_channels for block in net.decoder] == [256, 128, 64, 32]
    assert net.decoder[0].narrow is None and net.decoder[1].narrow.in_channels == 256


def test_same_padding_puts_the_odd_pixel_at_the_bottom_right():
    conv = _SameConv2d(1, 1, 3, stride=2)
    nn.init.ones_(conv.weight)
    # 4 pixels, stride 2: positions start at 0 and 2, so the windows are rows 0-2 and 2-3 (plus one row of padding)
    assert conv(torch.ones(1, 1, 4, 4)).tolist() == [[[[9.0, 6.0], [6.0, 4.0]]]]
    # 5 pixels need one pixel on both sides
    assert conv(torch.ones(1, 1, 5, 5))[0, 0].tolist() == [[4.0, 6.0, 4.0], [6.0, 9.0, 6.0], [4.0, 6.0, 4.0]]


@pytest.mark.parametrize(
    ("name", "size", "need"),
    [
        ("alexnet", (62, 80), "63 x 63"),
        ("digits_cnn", (15, 32), "16 x 16"),
        ("vit_b_16", (224, 100), "multiples of 16"),
        ("unet", (31, 64), "32 x 32"),
    ],
)
def test_images_that_are_too_small_are_refused_when_the_network_is_built(name, size, need):
    with pytest.raises(BadInput, match=need):
        on_meta(name, size=size)


@pytest.mark.parametrize(("name", "size"), [("alexnet", (63, 63)), ("digits_cnn", (16, 17)), ("unet", (32, 33)), ("resnet18", (1, 1))])
def test_the_smallest_images_work(name, size):
    net = on_meta(name, outputs=2, size=size)
    assert net(torch.empty(2, 3, *size, device="meta")).shape[:2] == (2, 2)


def test_every_network_starts_with_outputs_of_ordinary_size():
    """Fresh weights neither vanish nor explode: training from scratch can begin."""
    for name, side in SMALL.items():
        torch.manual_seed(0)
        net = build_network(name, outputs=5, channels=3, size=(side, side)).train()
        found = net(torch.randn(4, 3, side, side), full=True)
        assert 1e-3 < found.features.std() < 30, name
        assert found.logits.isfinite().all(), name


def test_every_registered_network_is_described():
    assert all(entry.about for entry in NETWORKS.values())


@pytest.mark.parametrize(
    ("name", "block", "last_norm"),
    [
        ("resnet18", lambda net: net.layer2[1], "bn2"),
        ("resnet50", lambda net: net.layer2[1], "bn3"),
        ("mobilenet_v2", lambda net: net.features[3], "conv.3"),
        ("efficientnet_lite0", lambda net: net._blocks[2], "_bn2"),
    ],
)
def test_a_block_that_adds_nothing_passes_its_input_on(name, block, last_norm):
    chosen = block(build_network(name, outputs=2, channels=3, size=(32, 32))).eval()
    nn.init.zeros_(chosen.get_submodule(last_norm).weight)
    x = torch.rand(1, next(chosen.parameters()).shape[1], 4, 4)
    assert torch.equal(chosen(x), x)


def test_the_unets_encoder_block_by_hand():
    torch.manual_seed(0)
    block = build_network("unet:width=2,depth=3", outputs=1, channels=1, size=(8, 8)).encoder[0]

    def norm(y):
        return (y - y.mean((2, 3), keepdim=True)) / (y.var((2, 3), correction=0, keepdim=True) + 1e-5).sqrt()

    x = torch.randn(1, 1, 8, 8)
    first = norm(block.conv1(x))
    assert (first < 0).any()  # no ReLU here
    torch.testing.assert_close(block(x), norm(block.conv3(norm(block.conv2(first)).relu())).relu(), atol=1e-5, rtol=1e-4)
