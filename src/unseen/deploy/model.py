"""An exported model, ready to predict: the same answers from ONNX, TorchScript and safetensors."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unseen.data.deployable import Deployable
from unseen.deploy.calibration import probabilities
from unseen.deploy.card import CARD_FILE, ModelCard, read_card
from unseen.deploy.signing import refuse_other_signer
from unseen.deploy.weights import refuse_other_weights
from unseen.errors import BadInput
from unseen.networks import build_network

__all__ = ["Deployed", "file_hash", "images_at_once", "load_model"]

_VALUES_AT_ONCE = 2**27


@dataclass(frozen=True)
class Deployed:
    """A model and its card."""

    card: ModelCard
    run: Callable[[Tensor], Tensor]  # images in 0 to 1 to logits

    def __repr__(self) -> str:
        channels, height, width = self.card.channels, *self.card.size
        return f"Deployed({self.card.title!r}: {self.card.kind}, images {channels} x {height} x {width}, {len(self.card.labels)} outputs)"

    def logits(self, images: NDArray[np.uint8]) -> Tensor:
        """Of a batch of bytes [n, channels, height, width], as `unseen.deploy.images.as_input` makes them."""
        expected = (self.card.channels, *self.card.size)
        if images.ndim != 4 or images.dtype != np.uint8 or images.shape[1:] != expected:
            raise BadInput(f"images are {images.dtype} {list(images.shape)}; this model takes uint8 [n, {', '.join(map(str, expected))}]")
        try:
            logits = self.run(torch.from_numpy(np.array(images)).float().div_(255))
        except Exception as error:  # whatever a program or a graph that somebody sent runs into
            raise BadInput(f"{self.card.file} fails on images as its card says it takes ({_first_line(error)})") from error
        answers = (len(images), len(self.card.labels), *(self.card.size if self.card.task == "segmentation" else ()))
        if not isinstance(logits, Tensor) or tuple(logits.shape) != answers or not logits.is_floating_point():
            raise BadInput(f"{self.card.file} does not answer as its card says: {list(answers)} numbers were expected")
        if not bool(logits.isfinite().all()):
            raise BadInput(f"{self.card.file} answers with numbers that are not finite; it cannot be used")
        return logits.float()

    def probabilities(self, logits: Tensor) -> Tensor:
        """Calibrated on the source sites' validation parts."""
        return probabilities(logits, self.card.temperature, masks=self.card.task == "segmentation")


def images_at_once(channels: int, size: tuple[int, int], wanted: int = 32) -> int:
    """A batch of at most `wanted` images, fewer where they are large.

    >>> images_at_once(3, (224, 224)), images_at_once(3, (4096, 4096))
    (32, 2)
    """
    return max(1, min(wanted, _VALUES_AT_ONCE // (channels * size[0] * size[1])))


def load_model(path: Path, *, trust: bool = False, signer: str | None = None) -> Deployed:
    """The model in a folder that `unseen export` wrote, or its file. A file that does not fit its card is refused.

    `trust`: you know who made it, so that a TorchScript program may run with your rights. `signer`: the key, or its fingerprint, or a
    file that names it, without whose signature the model is refused.
    """
    if not path.exists():
        raise BadInput(f"no model {path}; give a folder that `unseen export` wrote")
    folder = path if path.is_dir() else path.parent
    if path.is_dir() and (path / "run.json").exists() and not (path / CARD_FILE).exists():
        raise BadInput(f"{path} is a run; make a model of it first: unseen export {path} --to onnx")
    card = read_card(folder)
    if signer is not None:
        refuse_other_signer(card.signer, signer, folder / CARD_FILE)
    file = folder / Path(card.file).name  # a card must not lead out of its folder
    if not path.is_dir() and path.name != file.name:
        raise BadInput(f"the card beside {path} is of {card.file}; give that file, or its folder")
    if not file.is_file():
        raise BadInput(f"{folder} has a card but no {card.file}; export the model again")
    if file_hash(file) != card.sha256:
        raise BadInput(f"{file} is not the file that its card describes (SHA-256 differs); export the model again")
    if card.kind == "onnx":
        return Deployed(card, _onnx(file))
    if card.kind == "torchscript":
        if not trust:
            raise BadInput(
                f"{file} is TorchScript, and that is a program: it may read and write your files. It is not run unless you know who made "
                "it; if you do, add --trust (in Python trust=True). Models in ONNX or safetensors need no trust"
            )
        return Deployed(card, _torchscript(file))
    if card.kind == "safetensors":
        return Deployed(card, _safetensors(file, card))
    raise BadInput(f"{folder / CARD_FILE} is of a {card.kind!r} model; expected onnx, torchscript or safetensors")


def file_hash(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def onnx_runtime() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise BadInput("ONNX needs onnxruntime, which is not installed; install it with: pip install 'unseen[export]'") from error
    return onnxruntime


def _onnx(file: Path) -> Callable[[Tensor], Tensor]:
    runtime = onnx_runtime()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        session = runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the library's errors share no class of their own
        raise BadInput(f"{file} cannot be read as an ONNX model ({error})") from error

    def run(images: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {"images": images.numpy()})[0])

    return run


def _torchscript(file: Path) -> Callable[[Tensor], Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # TorchScript is deprecated, and still what some sites can load
        try:
            net = torch.jit.load(str(file), map_location="cpu").eval()
        except RuntimeError as error:
            raise BadInput(f"{file} cannot be read as TorchScript ({error})") from error
    return _without_gradients(net)


def _safetensors(file: Path, card: ModelCard) -> Callable[[Tensor], Tensor]:
    import safetensors.torch

    refuse_other_weights(file, card.network, outputs=len(card.labels), channels=card.channels, size=card.size)
    net = build_network(card.network, outputs=len(card.labels), channels=card.channels, size=card.size)
    try:
        net.load_state_dict(safetensors.torch.load_file(file))
    except (RuntimeError, safetensors.SafetensorError) as error:
        raise BadInput(f"{file} does not hold the weights of {card.network} ({str(error).splitlines()[0]})") from error
    return _without_gradients(Deployable(net, card.pixels).eval())


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


def _without_gradients(net: nn.Module) -> Callable[[Tensor], Tensor]:
    def run(images: Tensor) -> Tensor:
        with torch.inference_mode():
            logits: Tensor = net(images)
            return logits

    return run
