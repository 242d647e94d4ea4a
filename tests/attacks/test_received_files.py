"""Whoever hands over a run's folder or a model, against whoever looks at it.

Nothing of the sender's runs, leads out of its folder or takes the machine.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from typer.testing import CliRunner

import unseen
from unseen.cli import app
from unseen.cli.report import tables_below
from unseen.data.domain import DomainDataset
from unseen.deploy import Deployed, evaluate, export, load_model, predict
from unseen.deploy.acceptance_page import render_acceptance
from unseen.deploy.card import read_card
from unseen.deploy.images import find_image_files
from unseen.deploy.prediction import to_csv
from unseen.errors import BadInput
from unseen.figures import draw
from unseen.methods.fedavg import FedAvg
from unseen.report.collect import collect
from unseen.report.frames import rows_below, rows_to_csv
from unseen.report.page import render_page
from unseen.report.tables import comparison
from unseen.report.tables import to_csv as table_to_csv

EVIL = """from dataclasses import dataclass
from pathlib import Path
Path(__file__).with_suffix(".ran").touch()
from unseen.methods.fedavg import FedAvg
@dataclass(frozen=True)
class Evil(FedAvg): pass
def evil(*_, **__): raise ValueError("evil")
"""


@pytest.fixture(scope="module")
def run(tiny: DomainDataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sent") / "run"
    unseen.run(FedAvg(lr=0.02, batch=8), tiny, "c", rounds=2, out=out, device="cpu")
    return out


@pytest.fixture(scope="module")
def honest(run: Path, tiny: DomainDataset) -> Path:
    return export(run, data=tiny, styles=True)


@pytest.fixture
def image(tiny: DomainDataset, tmp_path: Path) -> Path:
    Image.fromarray(tiny["c"].images[0].transpose(1, 2, 0)).save(tmp_path / "image.png")
    return tmp_path / "image.png"


# ---- a run's folder


def planted(run: Path, folder: Path, place: str) -> tuple[Path, Path]:
    """A copy of the run whose run.json names the sender's file at this place; and the file that shows whether it ran."""
    sent = Path(shutil.copytree(run, folder / "run"))
    (sent / "evil.py").write_text(EVIL)
    about = json.loads((sent / "run.json").read_text())
    key, _, field = place.partition(".")
    text = f"{sent / 'evil.py'}:{'Evil' if key == 'method' else 'evil'}"
    if field == "part":
        about["experiment"]["set"][key] = {"name": text, "factor": 1.0}
    elif field:
        about["experiment"][key][field] = text
    else:
        about["experiment"][key] = text
    (sent / "run.json").write_text(json.dumps(about))
    return sent, sent / "evil.ran"


PLACES = [
    "method",
    "network",
    "data",
    "partition",
    "augment",
    "metric",
    "set.optimizer",
    "aggregation.part",
    "views.part",
    "set.unheard-of",
]
WITHOUT_DATA = ["data", "partition"]  # not looked at where the run's data are not


@pytest.mark.parametrize("place", PLACES)
def test_a_runs_folder_names_code_and_it_is_not_run(place: str, run: Path, tiny: DomainDataset, tmp_path: Path) -> None:
    sent, ran = planted(run, tmp_path, place)
    given = None if place == "data" else tiny
    attempts: list[Callable[[], object]] = [
        lambda: export(sent, "safetensors", tmp_path / "one", data=given),
        lambda: draw("confusion", [sent], data=given),
        lambda: draw("plane", [sent], data=given),
        lambda: draw("cam", [sent, sent], data=given),
    ]
    attempts += [] if place in WITHOUT_DATA else [lambda: export(sent, "safetensors", tmp_path / "two", without_data=True)]
    for attempt in attempts:
        with pytest.raises(BadInput, match=r"names code in a file: .*evil\.py.* add --trust"):
            attempt()
    assert not ran.exists()


@pytest.mark.parametrize(
    "command",
    [
        "report RUN --format html --out OUT",
        "report RUN --format csv --out OUT",
        "report RUN --format csv-table --out OUT",
        "figure bars RUN --out OUT.svg",
        "figure tsne RUN --out OUT.svg",
    ],
)
def test_commands_that_look_at_a_folder_run_nothing_of_it(command: str, run: Path, tmp_path: Path) -> None:
    sent, ran = planted(run, tmp_path, "method")
    words = [word.replace("RUN", str(sent)).replace("OUT", str(tmp_path / "out")) for word in command.split()]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == (2 if "tsne" in command else 0) and "Traceback" not in done.output, done.output
    assert not ran.exists()


def test_trust_runs_it(run: Path, tiny: DomainDataset, tmp_path: Path) -> None:
    """The other attempts prove something only if the sender's file would have run."""
    sent, ran = planted(run, tmp_path, "method")
    done = CliRunner().invoke(app, ["export", str(sent), "--without-data", "--out", str(tmp_path / "model")])
    assert done.exit_code == 2 and "--trust" in done.output and not ran.exists()
    done = CliRunner().invoke(app, ["export", str(sent), "--without-data", "--trust", "--out", str(tmp_path / "model")])
    assert done.exit_code == 0 and ran.exists(), done.output
    other, ran = planted(run, tmp_path / "other", "method")
    draw("confusion", [other], data=tiny, trust=True)
    assert ran.exists()


def changed(run: Path, folder: Path, **about: Any) -> Path:
    sent = Path(shutil.copytree(run, folder / "run"))
    values = json.loads((sent / "run.json").read_text())
    (sent / "run.json").write_text(json.dumps({**values, **about, "experiment": {**values["experiment"], **about.get("experiment", {})}}))
    return sent


@pytest.mark.parametrize(
    "lies",
    [
        {"experiment": {"network": "unet:width=1024,depth=8"}},  # 300 GB
        {"experiment": {"network": "alexnet:hidden=65536"}},
        {"experiment": {"rounds": "many"}},
        {"experiment": {"rounds": None}},
        {"clients": 7},
        {"clients": {"a": 7}},
        {"targets": None},
        {"task": "mischief"},
        {"model": 7},
    ],
)
def test_a_run_that_lies_gives_one_message(lies: dict[str, Any], run: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        export(changed(run, tmp_path, **lies), "safetensors", without_data=True)


@pytest.mark.parametrize(
    "model", [{"size": [10**6, 10**6]}, {"size": [8]}, {"channels": 10**9}, {"channels": -1}, {"labels": 5}, {"mean": 1}]
)
def test_a_run_that_lies_about_its_model_takes_no_memory(model: dict[str, Any], run: Path, tmp_path: Path) -> None:
    told = json.loads((run / "run.json").read_text())["model"]
    with pytest.raises(BadInput):
        export(changed(run, tmp_path, model={**told, **model}), "safetensors", without_data=True)


def test_a_link_in_the_folder_does_not_lead_the_model_elsewhere(run: Path, tmp_path: Path) -> None:
    sent = Path(shutil.copytree(run, tmp_path / "run"))
    (tmp_path / "elsewhere").mkdir()
    shutil.rmtree(sent / "export-safetensors", ignore_errors=True)
    (sent / "export-safetensors").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadInput, match="may lead anywhere"):
        export(sent, "safetensors", without_data=True)
    assert not [*(tmp_path / "elsewhere").iterdir()]


# ---- a model that is a program


class Hostile(torch.nn.Module):
    def __init__(self, written: str, classes: int) -> None:
        super().__init__()
        self.written, self.classes = written, classes

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        file = torch.from_file(self.written, True, 8, dtype=torch.uint8)
        file[0] = 65
        return torch.zeros(images.shape[0], self.classes) + 0.0 * file.float().sum()  # or it is optimised away


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_runs_only_with_trust(honest: Path, image: Path, tiny: DomainDataset, tmp_path: Path) -> None:
    written, model = tmp_path / "written", tmp_path / "model"
    model.mkdir()
    torch.jit.script(Hostile(str(written), 3)).save(str(model / "model.pt"))
    write_card(honest, model, kind="torchscript", file="model.pt", sha256=sha256(model / "model.pt"))
    for command in (["predict", str(model), str(image)], ["evaluate", str(model), "--data", "styled-digits"]):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 2 and "is a program" in done.output and "--trust" in done.output
        assert not written.exists()
    with pytest.raises(BadInput, match="trust=True"):
        load_model(model)
    assert CliRunner().invoke(app, ["predict", str(model), str(image), "--trust"]).exit_code == 0
    assert written.exists()  # it has teeth


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def write_card(honest: Path, to: Path, **changes: Any) -> None:
    card = json.loads((honest / "card.json").read_text())
    (to / "card.json").write_text(json.dumps({**card, **changes}))


# ---- a card


def sent(honest: Path, folder: Path, **changes: Any) -> Path:
    model = Path(shutil.copytree(honest, folder / "model"))
    write_card(honest, model, **changes)
    return model


@pytest.mark.parametrize("sign", [*"=+-@\t\r", " =", "＝", '"=', "\n="])
def test_no_cell_is_a_formula(sign: str, classes: int, honest: Path, image: Path, tmp_path: Path) -> None:
    labels = [f"{sign}cmd|' /C calc'!A{n}" for n in range(classes)]
    try:
        model = load_model(sent(honest, tmp_path, labels=labels))
    except BadInput:
        assert sign == "\r"  # refused as no text
        return
    text = to_csv(list(predict(model, find_image_files([image]))))
    for delimiter in ",;\t":
        for row in csv.reader(io.StringIO(text), delimiter=delimiter):
            assert not [cell for cell in row if cell.strip(" \"'")[:1] in set("=+-@＝") and not cell.startswith("'") and not number(cell)]
    assert "'" + labels[0][0] in text


@pytest.fixture
def classes(tiny: DomainDataset) -> int:
    return len(tiny.task.labels)


def number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


def test_no_cell_of_a_report_is_a_formula(run: Path, tmp_path: Path) -> None:
    sent = changed(run, tmp_path, name="=HYPERLINK(1)", fold="@fold")
    lines = [json.loads(line) for line in (sent / "records.jsonl").read_text().splitlines()]
    lines = [{**r, "target": {f"-2+{name}": row for name, row in r["target"].items()}, "fold": "@fold"} for r in lines]
    (sent / "records.jsonl").write_text("".join(json.dumps(r) + "\n" for r in lines))
    tables, _ = tables_below(tmp_path, ["last"])
    for text in (table_to_csv(tables), rows_to_csv(rows_below(tmp_path))):
        cells = [cell for row in csv.reader(io.StringIO(text)) for cell in row]
        assert "'=HYPERLINK(1)" in cells and not [cell for cell in cells if cell[:1] in "=+-@" and cell and not number(cell)]
    assert comparison(collect(tmp_path).cells, "last").rows  # the report itself has the name as it is


@pytest.mark.parametrize("temperature", [1e-320, 0, -1.0, 1e-4, 1e4, 1e308, "1", None, True, [1.0]])
def test_no_temperature_without_reason(temperature: Any, honest: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="temperature is"):
        load_model(sent(honest, tmp_path, temperature=temperature))


@pytest.mark.parametrize("temperature", [1e-3, 0.7, 1e3])
@pytest.mark.parametrize("scale", [1.0, 1e38])
def test_probabilities_are_probabilities(temperature: float, scale: float, honest: Path, tmp_path: Path, tiny: DomainDataset) -> None:
    weights = safetensors.torch.load_file(honest / "model.safetensors")
    weights = {name: value * scale if name.startswith("fc") or "head" in name else value for name, value in weights.items()}
    model = load_model(with_weights(honest, tmp_path, weights, temperature=temperature))
    found = model.probabilities(model.logits(tiny["c"].images))
    assert bool(found.isfinite().all()) and float(found.min()) >= 0 and float(found.max()) <= 1
    assert torch.allclose(found.sum(1), torch.ones(len(found)), atol=1e-5)


def with_weights(honest: Path, folder: Path, weights: dict[str, torch.Tensor], **changes: Any) -> Path:
    model = Path(shutil.copytree(honest, folder / "model"))
    safetensors.torch.save_file(weights, model / "model.safetensors")
    write_card(honest, model, sha256=sha256(model / "model.safetensors"), **changes)
    return model


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])
def test_a_model_whose_answers_are_no_numbers_is_refused(value: float, honest: Path, image: Path, tmp_path: Path) -> None:
    weights = safetensors.torch.load_file(honest / "model.safetensors")
    weights = {n: torch.full_like(v, value) if v.is_floating_point() else v for n, v in weights.items()}
    model = with_weights(honest, tmp_path, weights)
    done = CliRunner().invoke(app, ["predict", str(model), str(image)])
    assert done.exit_code == 2 and "not finite" in done.output


@pytest.mark.parametrize(
    "lie",
    [
        {"network": "unet:width=1024,depth=8"},  # 300 GB of weights
        {"network": "alexnet:hidden=65536"},  # 2 GB
        {"network": "small_cnn:width=1024"},
        {"channels": 10**9},
        {"channels": 3.0},
        {"channels": True},
        {"size": [10**9, 10**9]},
        {"size": [4096, 4096], "channels": 1024, "mean": [0.0], "std": [1.0]},
        {"size": [0, 0]},
        {"size": [-8, -8]},
        {"size": [8, 8, 8]},
        {"labels": [str(n) for n in range(10**5)]},
        {"labels": ["x", "x", "z"]},
        {"labels": ["", "y", "z"]},
        {"labels": ["x" * 10**5, "y", "z"]},
        {"labels": "xyz"},
        {"labels": [["x"], "y", "z"]},
        {"mean": [float("nan")]},
        {"std": [0.0]},
        {"std": [1e-320]},
        {"std": [0.1] * 10**4},
        {"title": "\x1b]0;owned\x07"},
        {"sources": ["a\x1b[2J"]},
        {"title": "ab\u202egnp.exe"},
        {"title": "\ud800"},
        {"styles": {"a": "A" * 10**6}},
        {"styles": 5},
        {"metrics": {"source": {"a": {"accuracy": "<b>"}}}},
        {"metrics": []},
        {"checked": {"images": float("inf")}},
        {"training": 5},
        {"travelled": {"model": 10**400}},
        {"file": 5},
        {"kind": None},
        {"format": None},
        {"sha256": 0},
    ],
    ids=lambda lie: next(iter(lie)),
)
def test_a_card_that_lies_gives_one_message(lie: dict[str, Any], honest: Path, image: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["predict", str(sent(honest, tmp_path, **lie)), str(image)])
    assert done.exit_code == 2 and "\x1b]" not in done.output, done.output


@given(st.data())
def test_any_value_in_a_card_is_read_or_refused(honest: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    card = json.loads((honest / "card.json").read_text())
    simple = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    value = data.draw(
        st.recursive(simple, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3))
    )
    folder = tmp_path_factory.getbasetemp() / "any-card"
    folder.mkdir(exist_ok=True)
    (folder / "card.json").write_text(json.dumps({**card, data.draw(st.sampled_from(sorted(card))): value}))
    try:
        read = read_card(folder)
    except BadInput as bad:
        assert "card.json" in str(bad)
    else:
        assert 1e-3 <= read.temperature <= 1e3 and read.channels * read.size[0] * read.size[1] <= 2**26


@pytest.mark.parametrize("name", ["calibration", "metrics", "training", "travelled", "checked", "styles", "sources", "targets"])
def test_empty_tables_are_no_fault(name: str, honest: Path, tiny: DomainDataset, tmp_path: Path) -> None:
    model = load_model(sent(honest, tmp_path, **{name: [] if name in ("sources", "targets") else {}}))
    assert render_acceptance(evaluate(model, tiny, draws=2))


@pytest.mark.parametrize("style", ["", "AAAA", "////" + "f" * 4, "AADAfwAAwH8AAMB/"])  # none, one number too few, not finite
def test_a_style_that_lies_gives_one_message(style: str, honest: Path, tiny: DomainDataset, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="style"):
        evaluate(load_model(sent(honest, tmp_path, styles={"a": style})), tiny, draws=2)


def test_a_card_leads_nowhere(honest: Path, tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text(EVIL)
    for lie in ({"file": "../model/model.safetensors"}, {"file": ".."}, {"kind": "pickle"}, {"network": f"{tmp_path / 'evil.py'}:evil"}):
        model = sent(honest, tmp_path / str(len([*tmp_path.iterdir()])), **lie)
        if "file" in lie:
            (model / "model.safetensors").rename(model.parent / "model.safetensors")
        with pytest.raises(BadInput):
            load_model(model)
    assert not (tmp_path / "evil.ran").exists()


def onnx_model(location: str | None, outputs: int = 3, name: str = "images") -> bytes:
    """Logits that are the first bytes of a file outside; without one, zeros."""
    from onnx import TensorProto, helper

    leak = TensorProto(name="leak", data_type=TensorProto.FLOAT, dims=[outputs], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", "0"), ("length", str(4 * outputs))) if location else ():
        entry = leak.external_data.add()
        entry.key, entry.value = key, value
    if location is None:
        leak = helper.make_tensor("leak", TensorProto.FLOAT, [outputs], [0.0] * outputs)
    nodes = [
        helper.make_node("ReduceMean", [name], ["mean"], keepdims=0, axes=[1, 2, 3]),
        helper.make_node("Unsqueeze", ["mean", "axis"], ["column"]),
        helper.make_node("Mul", ["column", "zero"], ["nothing"]),
        helper.make_node("Add", ["nothing", "leak"], ["logits"]),
    ]
    constants = [helper.make_tensor("axis", TensorProto.INT64, [1], [1]), helper.make_tensor("zero", TensorProto.FLOAT, [1], [0.0]), leak]
    taken = helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3, 8, 8])
    given = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", outputs])
    graph = helper.make_graph(nodes, "spy", [taken], [given], constants)
    return bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8).SerializeToString())


@pytest.mark.parametrize("location", ["../secret.bin", "absolute", "link.bin"])
def test_onnx_reads_no_file_outside(location: str, honest: Path, image: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="ONNX needs the extra: export")
    pytest.importorskip("onnx")
    (tmp_path / "secret.bin").write_bytes(np.arange(3, dtype="<f4").tobytes())
    model = with_onnx(honest, tmp_path, onnx_model(str(tmp_path / "secret.bin") if location == "absolute" else location))
    (model / "link.bin").symlink_to(tmp_path / "secret.bin")
    assert CliRunner().invoke(app, ["predict", str(model), str(image)]).exit_code == 2


@pytest.mark.parametrize("graph", [{"outputs": 5}, {"name": "pictures"}])
def test_onnx_that_is_not_what_its_card_says_gives_one_message(graph: dict[str, Any], honest: Path, image: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="ONNX needs the extra: export")
    pytest.importorskip("onnx")
    good = with_onnx(honest, tmp_path / "good", onnx_model(None))
    assert CliRunner().invoke(app, ["predict", str(good), str(image)]).exit_code == 0
    done = CliRunner().invoke(app, ["predict", str(with_onnx(honest, tmp_path / "bad", onnx_model(None, **graph))), str(image)])
    assert done.exit_code == 2 and "card says" in done.output


def with_onnx(honest: Path, folder: Path, graph: bytes) -> Path:
    model = Path(shutil.copytree(honest, folder / "model"))
    (model / "model.onnx").write_bytes(graph)
    write_card(honest, model, kind="onnx", file="model.onnx", sha256=sha256(model / "model.onnx"), temperature=1.0)
    return model


# ---- pages

MARK = "planted-tag"
NAME = f"\"'><{MARK}></script></style></svg></title><{MARK} onload=alert(1)><img src=x onerror=alert(2)>"


class Page(HTMLParser):
    """Tags and attributes that the sender planted."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.planted: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == MARK or any(name in ("onload", "onerror") or name.startswith(MARK) for name, _ in attrs):
            self.planted.append(tag)


def named(value: Any) -> Any:
    if isinstance(value, dict):
        return {key + NAME: named(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [named(inner) for inner in value]
    return value + NAME if isinstance(value, str) else value


def test_no_tag_of_the_senders_is_on_a_page(run: Path, honest: Path, tiny: DomainDataset, tmp_path: Path) -> None:
    about = json.loads((run / "run.json").read_text())
    hostile = {key: named(about[key]) for key in ("name", "fold", "targets", "departures", "versions")}
    hostile["clients"] = {client + NAME: {**held, "domain": held["domain"] + NAME} for client, held in about["clients"].items()}
    hostile["experiment"] = dict.fromkeys(("method", "network", "label", "data", "target"), f"x{NAME}")
    changed(run, tmp_path / "runs", **hostile)
    page = render_page(collect(tmp_path / "runs"), "Runs")
    assert MARK in page and Page(page).planted == []
    card = json.loads((honest / "card.json").read_text())
    hostile = {key: named(card[key]) for key in ("title", "data", "sources", "targets", "metrics", "styles")}
    hostile["styles"] = {site + NAME: text for site, text in card["styles"].items()}
    hostile["labels"] = [label + NAME for label in card["labels"]]
    model = load_model(sent(honest, tmp_path, **hostile))
    page = render_acceptance(evaluate(model, renamed(tiny, model), draws=2))
    assert MARK in page and Page(page).planted == []


def renamed(tiny: DomainDataset, model: Deployed) -> DomainDataset:
    return replace(tiny, task=replace(tiny.task, classes=model.card.labels))  # type: ignore[type-var, call-arg]
