"""Every figure is drawn, and what it shows is checked against independent values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import confusion_matrix
from typer.testing import CliRunner

from synthetic_runs import write_bench, write_run
from unseen.cli import app
from unseen.cli.figures import NAMES
from unseen.data.domain import DomainDataset
from unseen.deploy.finished import FinishedRun
from unseen.errors import BadInput
from unseen.figures import FIGURES, draw, save
from unseen.figures.attention import activation_maps, cam
from unseen.figures.classes import confusion_counts, reliability_bins
from unseen.figures.comparing import client_counts
from unseen.figures.drawing import LOSSES
from unseen.figures.embedding import reference_features
from unseen.figures.masks import marked
from unseen.figures.outputs import drawn, look
from unseen.figures.styles import log_spectrum
from unseen.figures.surface import filter_direction, loss_grid
from unseen.metrics import calibration_error
from unseen.report.collect import collect

Finished = Callable[[str], FinishedRun]
OF_RUNS = {
    "confusion": "fedavg",
    "reliability": "fedavg",
    "tsne": "fedadg",
    "overlays": "masks",
    "gap": "fedavg",
    "cam": "fedavg",
    "generated": "feddag",
    "restyled": "elcfs",
    "surface": "fedavg",
    "plane": "feddag",
}


def test_every_figure_is_tried() -> None:
    assert set(OF_RUNS) | {"bars", "clients", "curves"} == set(FIGURES) and set(NAMES) == set(FIGURES)


@pytest.mark.parametrize("name", OF_RUNS)
def test_it_is_drawn(name: str, folders: Callable[[str], Path], tiny: DomainDataset, tiny_masks: DomainDataset, tmp_path: Path) -> None:
    figure = draw(name, [folders(OF_RUNS[name])], data=tiny_masks if OF_RUNS[name] == "masks" else tiny)
    save(figure, tmp_path / "x.png")
    with Image.open(tmp_path / "x.png") as image:
        assert min(image.size) > 200 and np.asarray(image.convert("L")).std() > 5
    save(figure, tmp_path / "x.svg")
    assert (tmp_path / "x.svg").read_text().count("<path") > 5
    save(figure, tmp_path / "x.pdf")
    assert (tmp_path / "x.pdf").read_bytes()[:5] == b"%PDF-"


def test_the_confusion_matrix_is_scikit_learns(finished: Finished, tiny: DomainDataset) -> None:
    seen = look(finished("fedavg"), drawn(tiny["c"], 10**6))
    predicted = seen.logits.argmax(1)
    assert torch.equal(seen.labels, torch.from_numpy(tiny["c"].labels))
    assert np.array_equal(confusion_counts(seen.labels, predicted, 3), confusion_matrix(seen.labels, predicted, labels=[0, 1, 2]))


def test_the_reliability_bins_add_up_to_the_ece() -> None:
    rng = torch.Generator().manual_seed(0)
    confidence = torch.rand(500, generator=rng, dtype=torch.float64)
    correct = (torch.rand(500, generator=rng) < 0.7).double()
    rows = reliability_bins(confidence, correct)
    assert sum(n for *_, n in rows) == 500
    assert sum(abs(mean - accuracy) * n / 500 for _, mean, accuracy, n in rows) == pytest.approx(calibration_error(confidence, correct))


def test_fedadgs_reference_is_its_generators(finished: Finished) -> None:
    run = finished("fedadg")
    features = reference_features(run, torch.tensor([0, 1, 2, 2]))
    assert features is not None and features.shape == (4, run.net.feature_size) and bool((features >= 0).all())  # it ends in a ReLU
    assert reference_features(finished("fedavg"), torch.tensor([0])) is None


def test_errors_are_marked_in_their_colours() -> None:
    image = np.zeros((3, 1, 4), dtype=np.uint8)
    found, truth = np.array([[True, True, False, False]]), np.array([[True, False, True, False]])
    assert marked(image, found, truth)[:, 0].T.tolist() == [[22, 85, 40], [120, 30, 25], [20, 55, 128], [0, 0, 0]]


def test_activation_maps_fit_their_images(finished: Finished, tiny: DomainDataset) -> None:
    images, labels = torch.from_numpy(tiny["c"].images[:4]), torch.from_numpy(tiny["c"].labels[:4])
    maps, _ = activation_maps(finished("fedavg"), images, labels)
    assert maps.shape == (4, 8, 8) and float(maps.min()) == 0 and float(maps.max()) == 1
    assert len(cam([finished("fedavg"), finished("fedadg")], images=2).axes) == 6 + 1  # and the key of the colours


def test_the_spectrum_is_that_of_a_wave() -> None:
    wave = np.cos(2 * np.pi * 3 * np.arange(16) / 16)[None, None].repeat(16, 1)
    spectrum = log_spectrum(wave)
    assert sorted(map(tuple, np.argwhere(spectrum > 1).tolist())) == [(8, 5), (8, 11)]  # three bins left and right of the middle
    assert spectrum[8, 5] == pytest.approx(np.log1p(128))


def test_the_loss_surface_has_the_models_loss_at_its_centre_and_leaves_it_alone(finished: Finished, tiny: DomainDataset) -> None:
    run = finished("fedavg")
    before = {name: value.clone() for name, value in run.net.state_dict().items()}
    samples = drawn(tiny["c"], 20)
    seen = look(run, samples)
    grid = loss_grid(run, samples, np.array([-1.0, 0.0, 1.0]))
    assert grid[1, 1] == pytest.approx(float(torch.nn.functional.cross_entropy(seen.logits, seen.labels)), rel=1e-5)
    assert grid.shape == (3, 3) and grid[0, 0] != grid[1, 1]
    assert all(torch.equal(value, before[name]) for name, value in run.net.state_dict().items())


def test_directions_have_the_filters_norms() -> None:
    state = {"w": torch.randn(4, 3, 2, 2), "b": torch.ones(4), "n": torch.tensor(3)}
    step = filter_direction(state, {"w", "b"}, torch.Generator().manual_seed(0))
    assert torch.allclose(step["w"].flatten(1).norm(dim=1), state["w"].flatten(1).norm(dim=1))
    assert not step["b"].any() and not step["n"].any()


def test_bars_and_client_counts(tmp_path: Path) -> None:
    write_bench(tmp_path / "b", methods=2, seeds=2, rounds=3)
    save(draw("bars", [tmp_path / "b"]), tmp_path / "bars.svg")
    with pytest.raises(BadInput, match="same number of clients"):
        draw("clients", [tmp_path / "b"])
    for fold in ("art", "photo"):
        write_run(tmp_path / "c" / fold, "FedAvg", fold)
    write_run(tmp_path / "c/more", "FedAvg", "art", clients=8)
    run = tmp_path / "c/more/run.json"
    run.write_text(run.read_text().replace('"clients": {', '"clients": {"extra": {"domain": "cartoon", "train": 1, "validation": 1}, '))
    found = collect(tmp_path / "c", repeats=True)
    counts = client_counts(found.finished, "last")["fedavg"]
    scores = {(r.fold, len(r.about["clients"])): 100 * r.records[-1]["target"][r.fold]["accuracy"] for r in found.runs}
    assert counts[3].mean == pytest.approx((scores["art", 3] + scores["photo", 3]) / 2) and counts[4].mean == pytest.approx(
        scores["art", 4]
    )
    save(draw("clients", [tmp_path / "c"]), tmp_path / "clients.png")


def test_equal_figures_are_equal_files(finished: Finished, tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg", "a.png", "b.png", "a.pdf", "b.pdf"):
        save(FIGURES["confusion"].of_run(finished("fedavg")), tmp_path / name)  # type: ignore[misc]
    for kind in ("svg", "png", "pdf"):
        assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()


def test_mistakes(
    finished: Finished, folders: Callable[[str], Path], tiny: DomainDataset, tiny_masks: DomainDataset, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match="did you mean 'confusion'"):
        draw("confusoin", [tmp_path])
    with pytest.raises(BadInput, match="is for segmentation"):
        draw("overlays", [folders("fedavg")], data=tiny)
    with pytest.raises(BadInput, match="is for classification"):
        draw("confusion", [folders("masks")], data=tiny_masks)
    with pytest.raises(BadInput, match="generates no images"):
        draw("generated", [folders("fedavg")], data=tiny)
    with pytest.raises(BadInput, match="is of one folder; got 2"):
        draw("gap", [tmp_path, tmp_path])
    with pytest.raises(BadInput, match="ends in"):
        save(draw("gap", [folders("fedavg")], data=tiny), tmp_path / "x.gif")


def test_the_command(tmp_path: Path) -> None:
    listed = CliRunner().invoke(app, ["figure"])
    assert listed.exit_code == 0 and all(name in listed.output for name in FIGURES)
    assert CliRunner().invoke(app, ["figure", "gap"]).exit_code == 2
    typed = CliRunner().invoke(app, ["figure", "confusoin", str(tmp_path)])
    assert typed.exit_code == 2 and "did you mean 'confusion'" in typed.output and "--out confusoin" not in typed.output
    write_bench(tmp_path / "b", methods=2, seeds=1, rounds=2)
    done = CliRunner().invoke(app, ["figure", "bars", str(tmp_path / "b"), "--out", str(tmp_path / "sub/bars.png")])
    assert done.exit_code == 0 and (tmp_path / "sub/bars.png").exists(), done.output
    assert "bars.png" in done.output.replace("\n", "")


def test_learning_curves_are_the_means_over_seeds(tmp_path: Path) -> None:
    write_bench(tmp_path / "b", methods=2, seeds=2, rounds=3)
    write_run(tmp_path / "b/early", "FedAvg", "art", 7, 3, done=2)
    found = collect(tmp_path / "b")
    figure = draw("curves", [tmp_path / "b"], rule="last")
    panel = next(p for p in figure.axes if p.get_title() == "unseen: photo")
    line = next(one for one in panel.get_lines() if one.get_label() == "FedProx (2 seeds)")
    runs = [r for r in found.runs if r.name == "FedProx" and r.fold == "photo"]
    means = [50 * sum(r.records[n]["target"]["photo"]["accuracy"] for r in runs) for n in range(3)]
    assert list(line.get_ydata()) == pytest.approx(means) and list(line.get_xdata()) == [1, 2, 3]
    rings = next(c for c in panel.collections if len(c.get_offsets()) == 4)  # two methods, two seeds
    assert {x for x, _ in rings.get_offsets().tolist()} == {3.0}
    key = {text.get_text() for text in next(p for p in figure.axes if p.get_title() == "unseen: art").get_legend().get_texts()}
    assert key == {"FedAvg (2 seeds)", "FedProx (2 seeds)", "FedAvg, seed 7: 2 of 3 rounds", "round picked: last"}
    with pytest.raises(BadInput, match="did you mean 'last'"):
        draw("curves", [tmp_path / "b"], rule="lats")


def test_pictures_of_losses_agree_on_what_is_low_and_every_mark_has_a_key(finished: Finished) -> None:
    maps = {FIGURES[name].of_run(finished("fedavg")).axes[0].collections[0].get_cmap().name for name in ("surface", "plane")}  # type: ignore[misc]
    assert maps == {LOSSES}
    key = {text.get_text() for text in FIGURES["tsne"].of_run(finished("fedadg")).axes[0].get_legend().get_texts()}  # type: ignore[misc]
    assert {"a", "b", "c (unseen)", "FedADG's reference"} < key and len(key) == 4 + 3  # domains by marker, classes by colour
