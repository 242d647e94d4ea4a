"""From a finished run to a model file with a card."""

from __future__ import annotations

import copy
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor

from unseen.data.checks.gap import random_features, style_of
from unseen.data.deployable import Deployable
from unseen.data.domain import Domain, DomainDataset, Samples
from unseen.deploy.calibration import fit_temperature, nll, probabilities
from unseen.deploy.card import CARD_FILE, ModelCard, style_to_text
from unseen.deploy.finished import FinishedRun, finished_run
from unseen.deploy.model import file_hash, images_at_once, load_model, onnx_runtime
from unseen.deploy.signing import refuse_unusable_key
from unseen.errors import BadInput, choose
from unseen.files import write_atomically
from unseen.own_code import Own
from unseen.runs.selection import RULES
from unseen.runs.traffic import Travelled, total_bytes
from unseen.world import World

__all__ = ["KINDS", "export"]

KINDS = {"onnx": "model.onnx", "torchscript": "model.pt", "safetensors": "model.safetensors"}
_TOLERANCE = 1e-4  # between the exported file's probabilities and torch's
_ROUNDINGS = 4  # how many times torch's own distance from itself in float64 is still rounding
_PIXELS = 2**21  # of all masks together that a temperature is fitted on
_STYLE_IMAGES = 200


def export(
    folder: Path,
    to: str = "safetensors",
    out: Path | None = None,
    *,
    rule: str = "source",
    styles: bool = False,
    data: DomainDataset | None = None,
    without_data: bool = False,
    sign: Path | None = None,
    trust: bool = False,
) -> Path:
    """Write the model of a finished run with its card to `out` (default: `export-<kind>` in the run's folder); returns that folder.

    `rule` chooses the round: source (best on source validation) or last. `styles` puts a summary of each training site's
    appearance into the card, which `unseen evaluate` measures new sites by; it needs the sites' consent. Without the data, as after
    a run between sites, probabilities are not calibrated, the file is checked on noise, and there are no styles. `sign` is the key that
    signs the card: a federation's folder, a site's, or a PEM file. `trust`: code that the folder names may run.
    """
    choose("model format", to, KINDS)
    run = finished_run(folder, rule, data, without_data=without_data, trust=trust)
    if to == "safetensors" and isinstance(run.world.experiment.network, Own):
        raise BadInput(
            f"a safetensors file holds weights alone, and their network is {run.world.network}; export it --to onnx or torchscript"
        )
    if styles and not run.has_images:
        raise BadInput(f"--styles needs the training sites' images, which are not at hand for {folder}; leave it out")
    if sign is not None:
        refuse_unusable_key(sign)  # before anything is written
    usual = folder / f"export-{to}"
    if out is None and usual.is_symlink():
        raise BadInput(f"{usual} is a link, and may lead anywhere; say with --out where the model shall lie")
    out = out or usual
    if out.exists() and not out.is_dir():
        raise BadInput(f"{out} is a file; --out needs a folder")
    deployable = Deployable(run.net, run.world.dataset.pixels).eval()
    content = _content(deployable, run, to)
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / KINDS[to], content)
    card = _card(run, to, rule, file_hash(out / KINDS[to]), styles)
    card.write(out)
    checked = _differences(load_model(out, trust=True).logits, deployable, run.world, card.temperature)
    tolerance = _TOLERANCE
    if not checked["largest_difference"] <= tolerance:  # a network may amplify rounding: no file can be nearer than torch is to itself
        exact = copy.deepcopy(deployable).double()
        own = _differences(lambda images: _logits(exact, images), deployable, run.world, card.temperature, most=64)
        tolerance = max(tolerance, _ROUNDINGS * own["largest_difference"])
    if not checked["largest_difference"] <= tolerance:
        (out / CARD_FILE).unlink()  # without it the file cannot be loaded
        apart = f"its probabilities differ from torch's by up to {checked['largest_difference']:.2g}, more than {tolerance:.2g}"
        raise BadInput(f"{out / KINDS[to]} must not be used: {apart}; export it --to safetensors")
    replace(card, checked={**checked, "tolerance": tolerance}).write(out, sign)
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


def _batches(samples: Samples, most: int, dataset: DomainDataset) -> Iterator[tuple[Tensor, Tensor]]:
    size = images_at_once(dataset.channels, dataset.size)
    for start in range(0, min(most, len(samples)), size):
        yield samples.take(torch.arange(start, min(start + size, most, len(samples))))


def _logits(deployable: Deployable, images: NDArray[np.uint8]) -> Tensor:
    weights = next(deployable.parameters())
    with torch.inference_mode():
        logits: Tensor = deployable(torch.from_numpy(images).to(weights.dtype).div_(255))
    return logits.float()


def _differences(
    other: Callable[[NDArray[np.uint8]], Tensor], deployable: Deployable, world: World, temperature: float, most: int = 1000
) -> dict[str, float]:
    """The largest ones to torch, of probabilities and of logits, over real images of every domain; over noise where there are none."""
    real = [d for d in world.dataset.domains if len(d)]
    images, of_logits, of_probabilities, masks = 0, 0.0, 0.0, world.dataset.task.name == "segmentation"
    for domain in real or [_noise(world.dataset, most)]:
        everything = Samples(((domain, np.arange(len(domain), dtype=np.int64)),))
        for batch, _ in _batches(everything, -(-most // max(1, len(real))), world.dataset):
            expected, found = _logits(deployable, batch.numpy()), other(batch.numpy())
            of_logits = max(of_logits, float((found - expected).abs().max()))
            apart = probabilities(found, temperature, masks) - probabilities(expected, temperature, masks)
            of_probabilities = max(of_probabilities, float(apart.abs().max()))
            images += len(batch)
    found_on = {"images": float(images), "noise": 0.0 if real else 1.0}
    return {**found_on, "largest_difference": of_probabilities, "largest_difference_of_logits": of_logits}


def _noise(dataset: DomainDataset, images: int) -> Domain:
    images = images_at_once(dataset.channels, dataset.size, images)
    pixels = np.random.default_rng(0).integers(0, 256, (images, dataset.channels, *dataset.size), dtype=np.uint8)
    return Domain("noise", pixels, np.zeros(images, dtype=np.int64))


def _card(run: FinishedRun, to: str, rule: str, sha256: str, styles: bool) -> ModelCard:
    world, dataset, record = run.world, run.world.dataset, run.record
    temperature, calibration = _calibrated(run)
    training = {key: run.about[key] for key in ("experiment", "departures", "clients", "versions", "partition")}
    training |= {"method": run.about["name"], "round": record["round"], "rule": RULES[rule].heading}
    kinds: dict[str, list[Travelled]] = {}
    for row in (row for r in run.records for row in r["travelled"]):
        kinds.setdefault(row["kind"], []).append(row)
    return ModelCard(
        title=f"{run.about['name']} on {dataset.name}, unseen: {', '.join(d.name for d in world.fold.targets)}",
        file=KINDS[to],
        kind=to,
        sha256=sha256,
        network=world.network,
        channels=dataset.channels,
        size=dataset.size,
        mean=dataset.pixels.mean,
        std=dataset.pixels.std,
        task=dataset.task.name,
        labels=dataset.task.labels,
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
        for x, y in _batches(holding.validation, len(holding.validation), dataset):
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
