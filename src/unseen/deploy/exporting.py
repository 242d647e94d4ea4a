"""From a finished run to a model file with a card."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from unseen.data.domain import Domain, DomainDataset, Samples
from unseen.data.gap import random_features, style_of
from unseen.deploy.calibration import fit_temperature, nll
from unseen.deploy.card import Card, style_to_text
from unseen.deploy.model import Deployable, file_hash, load_model, onnx_runtime
from unseen.errors import BadInput, choose
from unseen.experiment import read_experiment
from unseen.files import write_atomically
from unseen.folder import read_run
from unseen.networks.base import TaskNet
from unseen.report.record import Record, read_records
from unseen.report.select import RULES
from unseen.report.traffic import total_bytes
from unseen.world import World, build_world

__all__ = ["KINDS", "FinishedRun", "export", "finished_run"]

KINDS = {"onnx": "model.onnx", "torchscript": "model.pt", "safetensors": "model.safetensors"}
_FILES = {"source": "best.safetensors", "last": "model.safetensors"}
_TOLERANCE = 1e-4  # between the exported file's probabilities and torch's
_PIXELS = 2**21  # of all masks together that a temperature is fitted on
_STYLE_IMAGES = 200


@dataclass(frozen=True)
class FinishedRun:
    """A run's folder brought back to life: its world, its records and the network of one of its rounds."""

    folder: Path
    about: dict[str, Any]
    world: World
    records: Sequence[Record]
    index: int  # of the record of the chosen round
    net: TaskNet

    @property
    def record(self) -> Record:
        return self.records[self.index]


def finished_run(folder: Path, rule: str = "source", data: DomainDataset | None = None) -> FinishedRun:
    """Read a run. `data` is needed where the run was made on a data set that exists only in Python."""
    choose("selection rule with a model", rule, _FILES)
    about = read_run(folder) if folder.is_dir() else None
    if about is None:
        raise BadInput(f"{folder} is no run's folder; give the --out of `unseen run`, or a run inside that of `unseen bench`")
    records = read_records(folder / "records.jsonl")
    if len(records) < about["experiment"]["rounds"]:
        raise BadInput(f"{folder} has {len(records)} of {about['experiment']['rounds']} rounds; resume it first")
    index = RULES[rule].picks(records)
    file = folder / _FILES[rule]
    if index is None or not file.is_file():
        raise BadInput(f"{folder} has no {file.name}; choose another --rule")
    world = _world(about, data)
    net = world.builders["task"]()
    try:
        net.load_state_dict(safetensors.torch.load_file(file))
    except (RuntimeError, safetensors.SafetensorError) as error:
        raise BadInput(f"{file} does not hold this run's network ({str(error).splitlines()[0]})") from error
    assert isinstance(net, TaskNet)
    return FinishedRun(folder, about, world, records, index, net.eval())


def _world(about: Mapping[str, Any], data: DomainDataset | None) -> World:
    described = {**about["experiment"], "device": "cpu"}
    name = str(described["data"])
    if name.startswith("memory:") and data is None:
        raise BadInput(f"this run's data set {name.removeprefix('memory:')!r} was made in Python; call the function and give it as data=")
    experiment = read_experiment({**described, "data": "styled-digits"} if data is not None else described)
    return build_world(replace(experiment, data=data) if data is not None else experiment)


def export(
    folder: Path, to: str, out: Path | None = None, *, rule: str = "source", styles: bool = False, data: DomainDataset | None = None
) -> Path:
    """Write the model of a finished run with its card to `out` (default: `export-<kind>` in the run's folder); returns that folder.

    `rule` chooses the round: source (best on source validation) or last. `styles` puts a summary of each training site's
    appearance into the card, which `unseen evaluate` measures new sites by; it needs the sites' consent.
    """
    choose("model format", to, KINDS)
    run = finished_run(folder, rule, data)
    out = out or folder / f"export-{to}"
    if out.exists() and not out.is_dir():
        raise BadInput(f"{out} is a file; --out needs a folder")
    deployable = Deployable(run.net, run.world.dataset.pixels).eval()
    content = _content(deployable, run, to)
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / KINDS[to], content)
    card = _card(run, to, rule, file_hash(out / KINDS[to]), styles)
    card.write(out)
    checked = _differences(out, deployable, run.world)
    if not checked["largest_difference"] <= _TOLERANCE:
        raise RuntimeError(f"{out / KINDS[to]} differs from torch by {checked['largest_difference']:.2g}; it must not be used")
    replace(card, checked={**checked, "tolerance": _TOLERANCE}).write(out)
    return out


def _content(deployable: Deployable, run: FinishedRun, to: str) -> bytes:
    if to == "safetensors":
        state = {name: value.contiguous() for name, value in run.net.state_dict().items()}
        return bytes(safetensors.torch.save(state))
    example = torch.zeros(2, run.world.dataset.channels, *run.world.dataset.size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporters, about themselves
        return _traced(deployable, example) if to == "torchscript" else _onnx(deployable, example)


def _traced(deployable: Deployable, example: Tensor) -> bytes:
    traced: Any = torch.jit.trace(deployable, example)
    try:
        with torch.inference_mode():
            traced(example.repeat(2, 1, 1, 1)[:3])  # another number than it was traced with
    except RuntimeError as error:
        raise _fixed_batch("TorchScript") from error
    stream = io.BytesIO()
    torch.jit.save(traced, stream)
    return stream.getvalue()


def _fixed_batch(format: str) -> BadInput:
    return BadInput(f"this network reads the number of images in a way that {format} cannot follow; export it --to safetensors")


def _onnx(deployable: Deployable, example: Tensor) -> bytes:
    onnx_runtime()
    talkative = logging.getLogger("torch.onnx")
    before = talkative.level
    talkative.setLevel(logging.ERROR)
    try:
        program: Any = torch.onnx.export(
            deployable,
            (example,),
            dynamo=True,
            verbose=False,
            input_names=["images"],
            output_names=["logits"],
            dynamic_shapes={"images": {0: torch.export.Dim("batch", min=1)}},
        )
    except ImportError as error:
        raise BadInput(f"ONNX export needs {error.name}, which is not installed; install it with: pip install 'unseen[export]'") from error
    finally:
        talkative.setLevel(before)
    if isinstance(program.model.graph.inputs[0].shape[0], int):  # the exporter gave up on batches of any size without a word
        raise _fixed_batch("ONNX")
    return bytes(program.model_proto.SerializeToString())


def _batches(samples: Samples, most: int, size: int = 32) -> Iterator[tuple[Tensor, Tensor]]:
    for start in range(0, min(most, len(samples)), size):
        yield samples.take(torch.arange(start, min(start + size, most, len(samples))))


def _differences(out: Path, deployable: Deployable, world: World, most: int = 1000) -> dict[str, float]:
    """The largest ones to torch, of probabilities and of logits, over real images of every domain."""
    exported = load_model(out)
    each = -(-most // len(world.dataset.domains))
    images, of_logits, of_probabilities = 0, 0.0, 0.0
    for domain in world.dataset.domains:
        everything = Samples(((domain, np.arange(len(domain), dtype=np.int64)),))
        for batch, _ in _batches(everything, each):
            with torch.inference_mode():
                expected = deployable(batch.float().div_(255))
            found = exported.logits(batch.numpy())
            of_logits = max(of_logits, float((found - expected).abs().max()))
            apart = exported.probabilities(found) - exported.probabilities(expected)
            of_probabilities = max(of_probabilities, float(apart.abs().max()))
            images += len(batch)
    return {"images": float(images), "largest_difference": of_probabilities, "largest_difference_of_logits": of_logits}


def _card(run: FinishedRun, to: str, rule: str, sha256: str, styles: bool) -> Card:
    world, dataset, record = run.world, run.world.dataset, run.record
    temperature, calibration = _calibrated(run)
    training = {key: run.about[key] for key in ("experiment", "departures", "clients", "versions", "partition")}
    training |= {"method": run.about["name"], "round": record["round"], "rule": RULES[rule].heading}
    kinds = {row["kind"]: [] for r in run.records for row in r["travelled"]}  # type: dict[str, list[Any]]
    for row in (row for r in run.records for row in r["travelled"]):
        kinds[row["kind"]].append(row)
    task: Any = dataset.task
    return Card(
        title=f"{run.about['name']} on {dataset.name}, unseen: {', '.join(d.name for d in world.fold.targets)}",
        file=KINDS[to],
        kind=to,
        sha256=sha256,
        network=world.experiment.network or dataset.network,
        channels=dataset.channels,
        size=dataset.size,
        mean=dataset.pixels.mean,
        std=dataset.pixels.std,
        task=task.name,
        labels=task.classes if task.name == "classification" else task.structures,
        temperature=temperature,
        calibration=calibration,
        data=dataset.name,
        sources=tuple(d.name for d in world.fold.sources),
        targets=tuple(d.name for d in world.fold.targets),
        metrics={part: record[part] for part in ("source", "target", "held_out")},
        training=training,
        travelled={kind: total_bytes(rows, "sent") for kind, rows in kinds.items()},
        checked={},
        styles=_styles(dataset, world.fold.sources) if styles else {},
    )


def _calibrated(run: FinishedRun) -> tuple[float, dict[str, float]]:
    """The temperature, fitted on the clients' validation parts together."""
    dataset = run.world.dataset
    deployable = Deployable(run.net, dataset.pixels).eval()
    masks = dataset.task.name == "segmentation"
    images = sum(len(h.validation) for h in run.world.holdings.values())
    share = _PIXELS / max(1, images * dataset.task.outputs * dataset.size[0] * dataset.size[1]) if masks else 1.0
    logits, labels = [], []
    for holding in run.world.holdings.values():
        for x, y in _batches(holding.validation, len(holding.validation)):
            with torch.inference_mode():
                found = deployable(x.float().div_(255))
            step = max(1, round(1 / share))
            logits.append(found.flatten()[::step] if masks else found)
            labels.append(y.flatten()[::step] if masks else y)
    if not logits:
        return 1.0, {}
    everything, truth = torch.cat(logits), torch.cat(labels)
    temperature = fit_temperature(everything, truth)
    numbers = {"samples": float(images), "before": nll(everything, truth), "after": nll(everything, truth, temperature)}
    return temperature, numbers


def _styles(dataset: DomainDataset, sources: Sequence[Domain]) -> dict[str, str]:
    features = random_features(dataset.channels)
    return {d.name: style_to_text(style_of(d, dataset.pixels, features, per_domain=_STYLE_IMAGES, seed=0)) for d in sources}
