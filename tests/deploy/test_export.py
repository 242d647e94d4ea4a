"""Exported models give torch's answers; cards say what is true; files that do not fit are refused."""

from __future__ import annotations

import copy
import json
import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from typer.testing import CliRunner

from unseen.cli import app
from unseen.data.domain import DomainDataset, Pixels
from unseen.deploy import Deployed, export, exporting, load_model
from unseen.deploy.calibration import fit_temperature, nll
from unseen.deploy.card import read_card, style_from_text, style_to_text
from unseen.deploy.finished import FinishedRun
from unseen.deploy.model import Deployable
from unseen.deploy.model import _onnx as onnx_session
from unseen.errors import BadInput
from unseen.networks import build_network
from unseen.runs.record import read_records


def by_torch(run: Path, data: DomainDataset, images: np.ndarray) -> torch.Tensor:
    """Without anything of the deploy package: the network, its weights, the pixels by hand."""
    task = data.task
    net = build_network(data.network, outputs=task.outputs, channels=data.channels, size=data.size)
    net.load_state_dict(load_file(run / "best.safetensors"))
    with torch.no_grad():
        return net.eval()(torch.from_numpy(images).float() / 255)  # mean 0 and std 1


@pytest.mark.parametrize("to", ["onnx", "torchscript", "safetensors"])
@pytest.mark.parametrize("kind", ["classes", "masks"])
def test_an_exported_model_answers_as_torch_does(to: str, kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if to == "onnx":
        pytest.importorskip("onnxruntime", reason="ONNX needs the extra: export")
        pytest.importorskip("onnxscript", reason="ONNX needs the extra: export")
    data: DomainDataset = request.getfixturevalue("tiny" if kind == "classes" else "tiny_masks")
    run: Path = request.getfixturevalue(f"{kind}_run")
    out = export(run, to, tmp_path / "model", data=data)
    model = load_model(out, trust=True)
    for domain in data.domains:
        expected = by_torch(run, data, domain.images)
        for size in (1, 7, len(domain)):  # any batch, also one of a single image
            assert torch.allclose(model.logits(domain.images[:size]), expected[:size], atol=1e-4)
    assert model.card.checked["images"] == sum(len(d) for d in data.domains) and model.card.checked["largest_difference"] <= 1e-4


@pytest.mark.parametrize(("network", "side"), [("small_cnn", 32), ("digits_cnn", 32), ("unet:width=4,depth=3", 32)])
def test_onnx_answers_as_torch_does_on_a_thousand_images(network: str, side: int, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="ONNX needs the extra: export")
    pytest.importorskip("onnxscript", reason="ONNX needs the extra: export")
    torch.manual_seed(0)
    net = build_network(network, outputs=5, channels=3, size=(side, side))
    deployable = Deployable(net, Pixels((0.4, 0.5, 0.6), (0.2, 0.25, 0.3)))
    images = torch.rand(1000, 3, side, side)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        deployable.train()(images[:100])  # batch norm gets statistics of its own
        (tmp_path / "model.onnx").write_bytes(exporting._onnx(deployable.eval(), torch.zeros(2, 3, side, side)))
        expected = torch.cat([deployable(part) for part in images.split(100)])
    run = onnx_session(tmp_path / "model.onnx")
    found = torch.cat([run(part) for part in images.split(100)])
    as_probabilities = torch.sigmoid if network.startswith("unet") else lambda logits: logits.softmax(1)
    assert float(expected.std()) > 0.01  # they differ enough to be told apart
    assert torch.allclose(found, expected, rtol=0, atol=1e-4)
    assert torch.allclose(as_probabilities(found), as_probabilities(expected), rtol=0, atol=1e-4)
    if not network.startswith("unet"):
        assert torch.equal(found.argmax(1), expected.argmax(1))


def test_a_file_that_differs_from_torch_cannot_be_loaded(
    classes_run: Path, tiny: DomainDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = exporting._content

    def spoilt(deployable: Deployable, run: FinishedRun, to: str) -> bytes:
        state = {name: value.clone() for name, value in run.net.state_dict().items()}
        state[next(name for name in state if name.endswith("bias"))] += 0.05
        other = copy.deepcopy(run.net)
        other.load_state_dict(state)
        return real(deployable, replace(run, net=other), to)

    monkeypatch.setattr(exporting, "_content", spoilt)
    with pytest.raises(BadInput, match="must not be used: its probabilities differ"):
        export(classes_run, "safetensors", tmp_path / "model", data=tiny)
    with pytest.raises(BadInput, match=r"has no card\.json"):
        load_model(tmp_path / "model")


def test_rounding_that_torch_has_too_is_no_difference(
    classes_run: Path, tiny: DomainDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "_TOLERANCE", -1.0)
    card = load_model(export(classes_run, "safetensors", tmp_path / "model", data=tiny)).card
    assert card.checked["largest_difference"] == 0.0 < card.checked["tolerance"] < 1e-5


class Counting(torch.nn.Module):
    """Reads the number of images as a Python number, which an exported graph keeps for ever."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((2, 3)) + torch.zeros(1, 3).expand(len(x), -1)


@pytest.mark.parametrize("to", ["onnx", "torchscript"])
def test_a_graph_for_one_batch_size_alone_is_refused(to: str) -> None:
    if to == "onnx":
        pytest.importorskip("onnxruntime", reason="ONNX needs the extra: export")
        pytest.importorskip("onnxscript", reason="ONNX needs the extra: export")
    deployable = Deployable(Counting(), Pixels((0.0,), (1.0,))).eval()
    with pytest.raises(BadInput, match="export it --to safetensors"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (exporting._onnx if to == "onnx" else exporting._traced)(deployable, torch.zeros(2, 3, 4, 4))


def test_the_card_says_what_is_true(classifier: Deployed, classes_run: Path) -> None:
    card, records = classifier.card, read_records(classes_run / "records.jsonl")
    best = max(range(4), key=lambda n: (records[n]["source_mean"]["accuracy"], -n))
    assert card.training["round"] == best + 1 and card.metrics["target"] == records[best]["target"]
    assert (card.sources, card.targets, card.labels) == (("a", "b"), ("c",), ("x", "y", "z"))
    sent = sum(
        r["bytes"] * len(r["clients"]) for rec in records for r in rec["travelled"] if r["direction"] == "sent" and r["kind"] == "model"
    )
    assert card.travelled["model"] == sent
    text = (classes_run / "export-safetensors/card.md").read_text()
    assert card.sha256 in text and "never saw" in text and "No medical device" in text and "Departures" in text


def test_the_temperature_is_the_best_of_a_fine_grid() -> None:
    rng = torch.Generator().manual_seed(0)
    truth = torch.randint(0, 4, (400,), generator=rng)
    logits = 2 * torch.nn.functional.one_hot(truth, 4) + torch.randn(400, 4, generator=rng)
    found = fit_temperature(3 * logits, truth)
    assert found == pytest.approx(3 * fit_temperature(logits, truth), rel=1e-2)
    grid = np.exp(np.linspace(np.log(0.1), np.log(10), 400))
    best = min(grid, key=lambda t: torch.nn.functional.cross_entropy(3 * logits / t, truth).item())
    assert found == pytest.approx(best, rel=0.02) and nll(3 * logits, truth, found) < nll(3 * logits, truth)
    masks = (torch.rand(50, 40, generator=rng) < torch.sigmoid(logits[:50, :1])).float()
    wide = logits[:50, :1].expand(50, 40)
    assert fit_temperature(5 * wide, masks) == pytest.approx(5.0, rel=0.25)  # drawn from these probabilities


@given(st.integers(1, 6), st.randoms(use_true_random=False))
def test_styles_survive_the_card(side: int, random: object) -> None:
    matrix = torch.randn(side, side, dtype=torch.float64)
    gram = matrix @ matrix.T
    assert torch.allclose(style_from_text(style_to_text(gram)), gram, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("text", ["!!!", "AAAA", "AAAAAAAAAAAAAAAA" * 2 + "AAAA"])
def test_a_broken_style_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="style"):
        style_from_text(text)


def copied(classifier: Deployed, classes_run: Path, to: Path) -> Path:
    return Path(shutil.copytree(classes_run / "export-safetensors", to / "model"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 9}, "format 9"),
        ({"temperature": 0}, "temperature is 0"),
        ({"sha256": "0"}, "SHA-256 differs"),
        ({"network": "small_cnn:width=2"}, "does not hold the weights"),
        ({"kind": "pickle"}, "expected onnx"),
    ],
)
def test_a_model_that_does_not_fit_its_card_is_refused(
    change: dict[str, object], message: str, classifier: Deployed, classes_run: Path, tmp_path: Path
) -> None:
    folder = copied(classifier, classes_run, tmp_path)
    card = json.loads((folder / "card.json").read_text())
    (folder / "card.json").write_text(json.dumps({**card, **change}))
    with pytest.raises(BadInput, match=message.replace(".", r"\.")):
        load_model(folder)


def test_a_card_does_not_lead_out_of_its_folder(classifier: Deployed, classes_run: Path, tmp_path: Path) -> None:
    folder = copied(classifier, classes_run, tmp_path)
    (folder / "model.safetensors").rename(tmp_path / "outside.safetensors")  # the right file, in the wrong place
    card = json.loads((folder / "card.json").read_text())
    (folder / "card.json").write_text(json.dumps({**card, "file": "../outside.safetensors"}))
    with pytest.raises(BadInput, match="has a card but no"):
        load_model(folder)


def test_the_normalisation_is_inside_the_model() -> None:
    image = torch.tensor([[[[0.2]], [[0.6]], [[1.0]]]])
    found = Deployable(torch.nn.Identity(), Pixels((0.1, 0.2, 0.5), (0.5, 0.2, 0.25)))(image)
    assert found.flatten().tolist() == pytest.approx([0.2, 2.0, 2.0])


@given(st.binary(max_size=200) | st.recursive(st.none() | st.text() | st.integers(), st.lists).map(lambda v: json.dumps(v).encode()))
def test_any_bytes_as_a_card_give_one_message(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = tmp_path_factory.getbasetemp() / "card-bytes"
    folder.mkdir(exist_ok=True)
    (folder / "card.json").write_bytes(data)
    with pytest.raises(BadInput, match="cannot be read as a model card"):
        read_card(folder)


def unseen(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert "Traceback" not in result.output
    return result.exit_code, " ".join(result.output.split())


def test_mistakes(classes_run: Path, tmp_path: Path) -> None:
    for arguments, message in (
        ((tmp_path, "--to", "onnx"), "is no run's folder"),
        ((classes_run, "--to", "onx"), "did you mean 'onnx'"),
        ((classes_run, "--to", "onnx", "--rule", "oracle"), "no selection rule with a model"),
        ((classes_run, "--to", "onnx"), "was made in Python"),
    ):
        code, text = unseen("export", *arguments)
        assert code == 2 and message in text
    half = Path(shutil.copytree(classes_run, tmp_path / "half"))
    lines = (half / "records.jsonl").read_text().splitlines()
    (half / "records.jsonl").write_text(lines[0] + "\n")
    assert "has 1 of 4 rounds" in unseen("export", half, "--to", "onnx")[1]
    assert "unseen export" in unseen("predict", half, tmp_path)[1]
