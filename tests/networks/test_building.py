"""Networks by name: options, mistakes, frozen batch norm, two-layer heads."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from unseen import ELCFS, Experiment, FedAvg
from unseen.errors import BadInput
from unseen.networks import NETWORKS, ProjectionHead, TaskNet, TwoLayerHead, build_network, freeze_batch_norm
from unseen.networks.norm import FrozenBatchNorm2d
from unseen.world import build_world


def small(name, **changes):
    return build_network(name, **{"outputs": 2, "channels": 1, "size": (32, 32), **changes})


def test_options_reach_the_network():
    net = small("unet: width = 4 , depth=3")
    assert [block.conv1.out_channels for block in net.encoder] == [4, 8, 16]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet81", "did you mean 'resnet18'"),
        ("zebra", "there are: alexnet, digits_cnn"),
        ("unet:wdith=8", "did you mean 'width'"),
        ("unet:width=0", "width is 0; expected a whole number from 1 to 1024"),
        ("unet:width=8.5", "whole number"),
        ("unet:depth=2", "depth is 2; expected a whole number from 3 to 8"),
        ("unet:width", "is no option"),
        ("unet:", "is no option"),
        ("unet:width=", "is no option"),
        ("unet:width=4,width=8", "is no option"),
        ("unet:name=resnet18", "no field 'name'"),
        ("digits_cnn:hidden=99999999999999", "expected a whole number from 0 to 65536"),
        ("unet:norm=frozen", "no field 'norm'"),
        ("unet:hidden=4", "no field 'hidden'"),
        ("resnet18:norm=frozn", "did you mean 'frozen'"),
        ("vit_b_32:attention=slow", "attention is 'slow'"),
    ],
)
def test_mistakes_in_a_name_are_explained(name, message):
    with pytest.raises(BadInput, match=message):
        small(name)


@pytest.mark.parametrize("changes", [{"outputs": 0}, {"channels": -1}, {"size": (0, 32)}])
def test_impossible_shapes_are_refused(changes):
    with pytest.raises(BadInput, match="at least 1"):
        small("digits_cnn", **changes)


@settings(max_examples=40, deadline=None)
@given(
    st.text(max_size=30) | st.builds("{}:{}".format, st.sampled_from(sorted(NETWORKS)), st.text("=,:.-0123456789abdehnorstw", max_size=20))
)
def test_any_name_gives_a_network_or_one_clear_refusal(name):
    with torch.device("meta"):
        try:
            net = build_network(name, outputs=2, channels=3, size=(256, 256))
        except BadInput as refusal:
            assert str(refusal)
        else:
            assert isinstance(net, TaskNet)


def test_the_callers_seed_decides_the_weights():
    def first():
        torch.manual_seed(3)
        return small("resnet18").state_dict()

    again = first()
    assert all(torch.equal(value, again[name]) for name, value in first().items())


def test_frozen_batch_norm_stays_frozen_whatever_is_done_to_the_network():
    torch.manual_seed(0)
    net = small("resnet18:norm=frozen")
    before = {name: value.clone() for name, value in net.state_dict().items() if "bn" in name or "downsample.1" in name}
    net.requires_grad_(True).train()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, weight_decay=0.1)
    net(torch.randn(4, 1, 32, 32)).square().sum().backward()
    optimizer.step()
    after = net.state_dict()
    assert len(before) == 20 * 5  # 20 batch norms of five entries
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert not any(isinstance(module, nn.BatchNorm2d) for module in net.modules())


def test_batch_norm_that_is_not_frozen_does_move():
    net = small("resnet18").train()
    net(torch.randn(4, 1, 32, 32))
    assert net.bn1.running_mean.abs().sum() > 0


def test_a_frozen_network_has_the_same_entries_and_answers_as_its_ordinary_form_in_evaluation():
    torch.manual_seed(0)
    net = small("mobilenet_v2")
    x = torch.randn(4, 1, 32, 32)
    net.train()(x)  # statistics away from their start
    expected, entries = net.eval()(x), net.state_dict()
    frozen = small("mobilenet_v2:norm=frozen")
    frozen.load_state_dict(entries)
    frozen.train()
    frozen.classifier[0].eval()  # dropout apart
    torch.testing.assert_close(frozen(x), expected)


def test_freezing_keeps_epsilon():
    net = nn.Sequential(nn.BatchNorm2d(2, eps=0.5))
    net[0].running_var.fill_(3.5)
    freeze_batch_norm(net)
    assert isinstance(net[0], FrozenBatchNorm2d)
    torch.testing.assert_close(net(torch.full((1, 2, 1, 1), 4.0)), torch.full((1, 2, 1, 1), 2.0))  # 4 / sqrt(3.5 + 0.5)


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "efficientnet_lite0", "digits_cnn", "vit_b_32"])
def test_a_hidden_layer_makes_a_two_layer_head_without_a_non_linearity(name):
    with torch.device("meta"):
        net = small(f"{name}:hidden=6", outputs=4)
    head = net.head()
    assert isinstance(head, TwoLayerHead)
    assert tuple(head.inner.weight.shape) == (6, net.feature_size) and tuple(head.output.weight.shape) == (4, 6)


def test_the_two_layer_head_is_linear():
    torch.manual_seed(0)
    net = small("digits_cnn:hidden=6")
    head, features = net.head(), torch.randn(5, 1024)
    by_hand = features @ (head.output.weight @ head.inner.weight).T + head.output.weight @ head.inner.bias + head.output.bias
    torch.testing.assert_close(head(features), by_hand, atol=1e-5, rtol=1e-5)
    assert torch.equal(net(torch.ones(1, 1, 32, 32)), head(net(torch.ones(1, 1, 32, 32), full=True).features))


def test_a_relu_may_stand_between_the_two_layers():
    torch.manual_seed(0)
    head, features = small("digits_cnn:hidden=6,relu=true").head(), torch.randn(5, 1024)
    by_hand = (features @ head.inner.weight.T + head.inner.bias).clamp_min(0) @ head.output.weight.T + head.output.bias
    torch.testing.assert_close(head(features), by_hand, atol=1e-5, rtol=1e-5)
    with pytest.raises(BadInput, match="no hidden layer that it could follow"):
        small("digits_cnn:relu=true")


def test_a_projection_is_two_layers_with_a_relu_and_part_of_prediction():
    torch.manual_seed(0)
    net = small("small_cnn:width=2,projection=6", outputs=4)
    head, features = net.head(), torch.randn(5, net.feature_size)
    assert isinstance(head, ProjectionHead)
    first, _, second = head.inner
    assert first.weight.shape == (net.feature_size, net.feature_size) and second.weight.shape == (6, net.feature_size)
    by_hand = (features @ first.weight.T + first.bias).clamp_min(0) @ second.weight.T + second.bias
    torch.testing.assert_close(head(features), by_hand @ head.output.weight.T + head.output.bias)
    with pytest.raises(BadInput, match="hidden is 3 and projection 6; a head has one of them"):
        small("small_cnn:hidden=3,projection=6")


@pytest.mark.parametrize("name", ["digits_cnn:heads=3", "digits_cnn:hidden=6,heads=3"])
def test_an_ensemble_predicts_the_mean_of_its_heads(name):
    torch.manual_seed(0)
    net = small(name, outputs=4)
    head, features = net.head(), torch.randn(5, 1024)
    assert all(torch.equal(a, b) for a, b in zip(head.heads[0].parameters(), head.heads[2].parameters(), strict=True)), "equal at first"
    for parameter in head.parameters():
        parameter.data.normal_()
    each = [one(features).softmax(1) for one in head.heads]
    torch.testing.assert_close(head(features).softmax(1), sum(each) / 3)
    torch.testing.assert_close(head(features).exp(), sum(each) / 3)  # the logits are log probabilities
    head.share.copy_(torch.tensor([1.0, 0.0, 3.0]))
    torch.testing.assert_close(head(features).exp(), (each[0] + 3 * each[2]) / 4)
    (slope,) = torch.autograd.grad(head(features)[:, 0].sum(), head.heads[1].parameters().__next__())
    assert not slope.any(), "a head without a share has no part"


def test_an_ensemble_of_segmenting_heads_averages_at_every_pixel():
    torch.manual_seed(0)
    net = small("unet:width=2,depth=3,heads=2")
    for parameter in net.head().parameters():
        parameter.data.normal_()
    seen = net(torch.randn(2, 1, 32, 32), full=True)
    one, two = (head(seen.features).sigmoid() for head in net.head().heads)
    torch.testing.assert_close(seen.logits.sigmoid(), (one + two) / 2)


def test_every_head_of_an_ensemble_takes_the_files_last_layer(tmp_path):
    donor = small("digits_cnn", outputs=2)
    torch.save(donor.state_dict(), tmp_path / "donor.pth")
    net = small("digits_cnn:heads=2", weights=tmp_path / "donor.pth")
    assert all(torch.equal(head.weight, donor.fc3.weight) for head in net.head().heads)
    torch.testing.assert_close(net(torch.ones(1, 1, 32, 32)), donor(torch.ones(1, 1, 32, 32)).log_softmax(1))


def test_a_network_for_the_other_task_is_refused_before_round_1(tiny, tiny_masks):
    with pytest.raises(BadInput, match="'unet:width=2,depth=3' gives one answer per pixel; tiny is a data set for classification"):
        build_world(Experiment(FedAvg(), tiny, "c", network="unet:width=2,depth=3"))
    with pytest.raises(BadInput, match=r"'small_cnn' gives one answer per image.*use unet:width=4,depth=3"):
        build_world(Experiment(ELCFS(gamma=0.0), tiny_masks, "c", network="small_cnn"))
