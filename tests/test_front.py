"""Unseen from Python: what a person calls, what the answers print as, and a model that takes pixels."""

from __future__ import annotations

import inspect
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import unseen
from tiny_settings import SETTINGS
from unseen import BadInput, Classification, Domain, DomainDataset, Experiment, FedAvg, FedSB
from unseen.data.domain import IMAGENET
from unseen.deploy import export, load_model
from unseen.deploy.finished import finished_run
from unseen.experiment_options import options
from unseen.methods import METHODS
from unseen.parts.aggregation import SHA
from unseen.parts.sam import SAM
from unseen.parts.schedules import Cosine
from unseen.report.collect import collect
from unseen.report.result import PixelModel, Result
from unseen.scoring import Model
from unseen.settings import values_of
from unseen.state import same_bits
from unseen.world import build_world


@pytest.fixture(scope="module")
def trained(tiny: DomainDataset, tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    """Pixels normalised as in ImageNet, so that who forgets it goes wrong."""
    out = tmp_path_factory.mktemp("front") / "run"
    data = replace(tiny, pixels=IMAGENET, augment="none")
    return unseen.run(FedSB(lr=0.01, batch=16, budget=4), data, "c", rounds=6, out=out), out


def test_the_model_takes_pixels_and_scores_as_its_record(trained: tuple[Result, Path], tiny: DomainDataset) -> None:
    result, _ = trained
    images, labels = torch.from_numpy(tiny["c"].images), torch.from_numpy(tiny["c"].labels)
    with torch.no_grad():
        right = (result.model(images.float() / 255).argmax(1) == labels).float().mean()
        assert torch.equal(result.model(images), result.model(images / 255)), "bytes are bytes"
        inside = result.network(IMAGENET.normalised(images / 255))
        assert torch.allclose(result.model(images), inside, atol=1e-6) and not result.model.training
        assert not torch.allclose(result.network(images / 255), inside, atol=1e-2), "else the test tells nothing"
        assert result.model(images / 255, full=True).features.ndim == 2
    assert float(right) == pytest.approx(result.records[-1]["target"]["c"]["accuracy"])
    assert "3 x 8 x 8 of numbers from 0 to 1, gives 3 logits (x, y, z)" in repr(result.model)


def test_the_best_model_is_of_the_round_that_source_validation_picks(trained: tuple[Result, Path], tiny: DomainDataset) -> None:
    result, _ = trained
    chosen = max(result.records, key=lambda record: record["source_mean"]["accuracy"])  # the first of equals
    with torch.no_grad():
        said = result.best(torch.from_numpy(tiny["c"].images)).argmax(1).numpy()
    assert float((said == tiny["c"].labels).mean()) == pytest.approx(chosen["target"]["c"]["accuracy"])
    assert f"after round {chosen['round']} of 6" in repr(result.best)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (torch.rand(3, 8, 8), r"given \[3, 8, 8\]; it takes images \[n, 3, 8, 8\].*add the first dimension: images\[None\]"),
        (torch.rand(2, 8, 8, 3), r"put the channels first: images\.permute\(0, 3, 1, 2\)"),
        (torch.rand(2, 3, 9, 8), r"given \[2, 3, 9, 8\]; it takes"),
        (torch.linspace(-2, 2.6, 384).view(2, 3, 8, 8), r"numbers from -2 to 2\.6;.*The normalisation is inside: leave it out"),
        (torch.linspace(0, 255, 384).view(2, 3, 8, 8), r"numbers from 0 to 255;.*divide bytes by 255"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.int64), r"given torch\.int64; it takes"),
        (np.zeros((2, 3, 8, 8), np.float32), r"given a ndarray; it takes a tensor"),
    ],
)
def test_other_input_is_one_sentence(given: Any, says: str, trained: tuple[Result, Path]) -> None:
    with pytest.raises(BadInput, match=says):
        trained[0].model(given)


def test_a_little_beyond_the_range_is_taken(trained: tuple[Result, Path]) -> None:
    """Interpolation overshoots."""
    assert trained[0].model(torch.rand(2, 3, 8, 8) * 1.4 - 0.2).shape == (2, 3)


def test_a_finished_run_is_loaded_as_its_result(trained: tuple[Result, Path]) -> None:
    result, out = trained
    loaded = unseen.load(out)
    assert isinstance(loaded, Result) and same_bits(loaded.state, result.state) and loaded.records == result.records
    assert loaded.best_state is not None and result.best_state is not None and same_bits(loaded.best_state, result.best_state)
    x = torch.rand(3, 3, 8, 8)
    with torch.no_grad():
        assert torch.equal(loaded.model(x), result.model(x)) and torch.equal(loaded.best(x), result.best(x))
    assert repr(loaded) == repr(result) and str(loaded.table()) == str(result.table())
    assert loaded.frame().equals(result.frame()) and loaded.timings == result.timings


def test_loading_runs_no_code_of_the_folder(trained: tuple[Result, Path], tmp_path: Path) -> None:
    sent, ran = tmp_path / "sent", tmp_path / "ran"
    sent.mkdir()
    for file in trained[1].iterdir():
        if file.is_file():
            (sent / file.name).write_bytes(file.read_bytes())
    (tmp_path / "evil.py").write_text(f"open({str(ran)!r}, 'w')\nclass Net: pass\n")
    about = json.loads((sent / "run.json").read_text())
    about["experiment"]["network"] = f"{tmp_path}/evil.py:Net"
    (sent / "run.json").write_text(json.dumps(about))
    with pytest.raises(BadInput, match=r"names code in a file: .*trust=True"):
        unseen.load(sent)
    assert not ran.exists()


def test_an_unfinished_run_is_said(trained: tuple[Result, Path], tmp_path: Path) -> None:
    for name in ("run.json", "model.safetensors"):
        (tmp_path / name).write_bytes((trained[1] / name).read_bytes())
    with pytest.raises(BadInput, match="has 0 of 6 rounds; resume it first"):
        unseen.load(tmp_path)


def test_everything_prints_short(trained: tuple[Result, Path], tiny: DomainDataset) -> None:
    result, _ = trained
    world = result.world
    things = [result, result.records, result.model, result.table(), world, world.experiment, world.dataset, world.fold, tiny["a"]]
    things += [*world.holdings.values(), world.holdings["a"].train, world.experiment.method]
    found = collect(trained[1].parent)
    things += [found, found.runs[0], found.cells[0], finished_run(trained[1], without_data=True), Model(model=result.state)]
    things += [load_model(export(trained[1], without_data=True))]
    for thing in things:
        assert 10 < len(repr(thing)) < 800, repr(thing)
    assert repr(tiny["a"]) == "Domain('a': 40 images 3 x 8 x 8 with labels)"
    assert repr(tiny) == "DomainDataset('tiny': a (40), b (30), c (20); classification of x, y, z; images 3 x 8 x 8)"
    assert repr(world.fold) == "Fold(train: a, b; unseen: c)"
    assert repr(world.holdings["a"].train) == "Samples(36 of a)"
    assert "FedSB on tiny, unseen: c; 6 rounds, seed 0" in repr(result) and max(map(len, repr(result).splitlines())) <= 80
    html = result._repr_html_()
    assert "<table>" in html and "FedSB" in html and len(html) < 3000
    assert replace(result, about={**result.about, "name": "<script>"})._repr_html_().count("<script>") == 0


@pytest.mark.parametrize("name", METHODS)
def test_a_method_prints_what_makes_it_again(name: str) -> None:
    """What differs from the defaults, and nothing else."""
    assert repr(METHODS[name]()) == f"{METHODS[name].__name__}()"
    import unseen.parts as parts

    method, names = SETTINGS[name].build(), {cls.__name__: cls for cls in (*parts.PARTS.values(), METHODS[name])}
    again = eval(repr(method), names)
    assert again == method and values_of(again) == values_of(method) and len(repr(method)) < 400


def test_an_experiment_prints_what_differs() -> None:
    assert repr(Experiment(FedAvg(lr=0.5), target="plain", rounds=3)) == "Experiment(FedAvg(lr=0.5), target='plain', rounds=3)"


def test_the_signature_has_every_setting_with_its_default_and_the_help_a_line_for_each() -> None:
    taken = inspect.signature(unseen.run).parameters
    for setting in options():
        assert taken[setting.name].default == setting.default, setting.name
    described = inspect.getdoc(unseen.run) or ""
    assert [name for name in taken if f"\n    {name}: " not in described] == []
    hints = inspect.get_annotations(unseen.run)
    assert all(hints[name] not in ("Any", Any) for name in taken if name != "unknown")


def test_names_are_found_by_completion() -> None:
    shown = dir(unseen)
    assert {"run", "load", "FedSB", "Method", "Result", "Domain"} <= set(shown)
    assert all(hasattr(unseen, name) for name in shown)
    assert not {"Any", "TYPE_CHECKING", "importlib", "annotations"} & set(shown)


def test_a_method_by_name_has_the_preset_and_what_the_caller_says_counts(tiny: DomainDataset) -> None:
    result = unseen.run("fedsb", tiny, "c", rounds=1, preset="paper", augment="none")
    assert result.world.experiment.augment == "none" and result.about["experiment"]["preset"] == "paper"
    experiment = unseen.run("fedsb", tiny, "c", rounds=1, preset="paper").world.experiment
    assert experiment.augment == "domainbed"  # the preset's
    with pytest.raises(BadInput, match="preset is 'paper', and the method is an object"):
        unseen.run(FedSB(), tiny, "c", rounds=1, preset="paper")


DATASET = TensorDataset(torch.rand(6, 3, 16, 16), torch.arange(6) % 3)
IMAGES, LABELS = np.zeros((4, 3, 8, 8), np.uint8), np.zeros(4, np.int64)


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        (lambda: unseen.run(FedSB), r"method is the class FedSB; give an object: FedSB\(\)"),  # type: ignore[arg-type]
        (lambda: unseen.run(None), r"method is None; give an object"),  # type: ignore[arg-type]
        (lambda: unseen.run("fedavgg"), "no method 'fedavgg'; did you mean 'fedavg'"),
        (lambda: unseen.run("fedavg", round=3), r"run\(\) has no setting 'round'; did you mean 'rounds'"),
        (lambda: unseen.run("fedavg", rounds="3"), "rounds is '3'"),  # type: ignore[arg-type]
        (lambda: unseen.run("fedavg", target="outlin"), "did you mean 'outline'"),
        (lambda: FedSB(smothing=0.1), "FedSB has no field 'smothing'; did you mean 'smoothing'"),  # type: ignore[call-arg]
        (lambda: FedAvg(sam=SAM), r"sam is the class SAM; give an object: SAM\(\)"),  # type: ignore[arg-type]
        (lambda: FedAvg(schedule="cosin"), "schedule is 'cosin'; did you mean 'cosine'"),  # type: ignore[arg-type]
        (lambda: FedAvg(schedule=3), "schedule is 3; expected a Schedule, or none"),  # type: ignore[arg-type]
        (lambda: unseen.run("fedavg", DATASET), "data is a TensorDataset; give a torch Dataset for each domain, by its name"),  # type: ignore[arg-type]
        (lambda: unseen.run("fedavg", [DATASET]), "data is a list of TensorDatasets; give a torch Dataset for each domain"),  # type: ignore[arg-type]
        (lambda: unseen.run("fedavg", Domain("a", IMAGES, LABELS)), r"data is a Domain; give them with their task: DomainDataset\("),  # type: ignore[arg-type]
        (lambda: unseen.run("fedavg", IMAGES), r"data is a ndarray; give a name"),  # type: ignore[arg-type]
        (lambda: Domain("a", np.zeros((4, 32, 32, 3), np.uint8), LABELS), r"channels last; give images\.transpose\(0, 3, 1, 2\)"),
        (lambda: Domain("a", torch.randn(4, 3, 8, 8), LABELS), r"images are float32 .*expected uint8 \[n, c, h, w\], or 0 to 1"),  # type: ignore[arg-type]
        (lambda: Domain("a", [[1]], [1]), r"expected uint8 \[n, c, h, w\]"),  # type: ignore[arg-type]
        (lambda: DomainDataset("x", "classification", (Domain("a", IMAGES, LABELS),)), r"the task of 'x' is 'classification'; give Class"),  # type: ignore[arg-type]
        (lambda: DomainDataset("x", Classification(("a",)), ("a",)), r"the domains of 'x' are str; give a tuple of Domain"),  # type: ignore[arg-type]
        (lambda: DomainDataset("x", Classification(("a",)), ()), r"the domains of 'x' are none"),
    ],
)
def test_a_mistake_is_one_sentence(mistake: Any, says: str) -> None:
    with pytest.raises(BadInput, match=says) as told:
        mistake()
    assert len(str(told.value)) < 300


def test_what_a_person_expects_is_taken() -> None:
    assert FedAvg(schedule="cosine", aggregation="sha") == FedAvg(schedule=Cosine(), aggregation=SHA())  # type: ignore[arg-type]
    floats = Domain("a", torch.linspace(0, 1, 4 * 3 * 8 * 8).view(4, 3, 8, 8), torch.zeros(4, dtype=torch.int64))  # type: ignore[arg-type]
    assert floats.images.dtype == np.uint8 and floats.images.min() == 0 and floats.images.max() == 255
    listed = DomainDataset("x", Classification(("a",)), [floats])  # type: ignore[arg-type]
    assert listed.domains == (floats,)
    world = build_world(Experiment(FedAvg(), {"north": DATASET, "south": DATASET}, "south"))
    assert world.clients == ["north"]
    named = Experiment(FedAvg(), {"north": floats, "south": floats}).data
    assert isinstance(named, DomainDataset) and named.names == ("north", "south")


def test_a_script_is_quiet_and_a_bar_can_be_asked_for(tiny: DomainDataset, capfd: pytest.CaptureFixture[str]) -> None:
    unseen.run(FedAvg(steps=1), tiny, "c", rounds=1)
    assert capfd.readouterr() == ("", "")
    unseen.run(FedAvg(steps=1), tiny, "c", rounds=1, progress=True)
    told = capfd.readouterr()
    assert told.out == "" and "FedAvg on tiny, unseen: c" in told.err


class Kernel:
    """Stands for IPython in a notebook: what was displayed, and how it changed."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        shell, page = SimpleNamespace(kernel=object()), SimpleNamespace(HTML=str, display=self.display)
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell, display=page))
        monkeypatch.setitem(sys.modules, "IPython.display", page)

    def display(self, html: str, display_id: bool) -> Kernel:
        assert display_id and not self.shown, "displayed once, updated from then on"
        self.shown.append(html)
        return self

    def update(self, html: str) -> None:
        self.shown.append(html)


def test_a_notebook_has_a_bar_by_itself(tiny: DomainDataset, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    kernel = Kernel()
    kernel.install(monkeypatch)
    result = unseen.run(FedAvg(steps=1), tiny, "c", rounds=3, label="<b>")
    source = f"{100 * result.records[-1]['source_mean']['accuracy']:.1f} %"
    assert "round 0 of 3" in kernel.shown[0] and 'value="3" max="3"' in kernel.shown[-1] and source in kernel.shown[-1]
    assert "&lt;b&gt; on tiny, unseen: c" in kernel.shown[-1] and "left" in kernel.shown[-2] and "left" not in kernel.shown[-1]
    assert capfd.readouterr() == ("", "")
    kernel.shown.clear()
    unseen.run(FedAvg(steps=1), tiny, "c", rounds=1, progress=False)
    assert not kernel.shown


def test_pixel_models_can_be_trained_on_and_moved(trained: tuple[Result, Path]) -> None:
    model = trained[0].model.train()
    model(torch.rand(4, 3, 8, 8)).sum().backward()
    assert all(p.grad is not None for p in model.parameters()) and isinstance(model, PixelModel)
    assert same_bits({n.removeprefix("net."): v for n, v in model.state_dict().items() if "running" not in n and "batches" not in n},
                     {n: v for n, v in trained[0].state.items() if "running" not in n and "batches" not in n})  # fmt: skip
