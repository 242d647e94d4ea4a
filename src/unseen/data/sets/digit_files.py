"""The four file formats in which digits are published, each to images uint8 [n, height, width(, 3)] and labels 0..9."""

from __future__ import annotations

import importlib
import io
import math
import struct

import numpy as np
from numpy.typing import NDArray

from unseen.data.reading.limits import refuse_size, unpacked
from unseen.errors import BadInput

__all__ = ["Digits", "read_h5", "read_idx", "read_libsvm", "read_mat"]

Digits = tuple[NDArray[np.uint8], NDArray[np.int64]]


def read_idx(data: bytes, name: str) -> NDArray[np.uint8]:
    """MNIST's own format: two zero bytes, the type (8: bytes), the number of dimensions, the dimensions, the values."""
    data = unpacked(data, name)
    if data[:3] != b"\0\0\x08" or len(data) < 4:
        raise BadInput(f"{name} is not in MNIST's idx format: it begins with {data[:4].hex()}, not 000008")
    head = 4 + 4 * data[3]
    if len(data) < head:
        raise BadInput(f"{name} is cut short in its header")
    shape = struct.unpack(f">{data[3]}I", data[4:head])
    if len(data) - head != np.prod(shape, dtype=object):
        raise BadInput(f"{name} holds {len(data) - head} values; its header says {shape}")
    return np.frombuffer(data, np.uint8, offset=head).reshape(shape)


def read_libsvm(data: bytes, name: str) -> Digits:
    """USPS as LIBSVM has it: `label index:value ...`, labels 1 to 10 for the digits 0 to 9, values from -1 to 1, 16 x 16."""
    lines = [line.split() for line in unpacked(data, name).decode("ascii", "replace").splitlines() if line.strip()]
    images, labels = np.full((len(lines), 256), -1.0), np.empty(len(lines), dtype=np.int64)
    for row, (label, *pairs) in enumerate(lines):
        try:
            labels[row] = int(float(label)) - 1
            index = np.array([int(pair.partition(":")[0]) for pair in pairs]) - 1
            if len(index) and not 0 <= index.min() <= index.max() < 256:
                raise ValueError(f"feature {index.max() + 1}")
            images[row, index.astype(np.int64)] = [float(pair.partition(":")[2]) for pair in pairs]
        except ValueError as error:
            raise BadInput(f"{name} line {row + 1} is not `label index:value ...` with indices 1 to 256: {error}") from None
    pixels = np.rint((images.clip(-1, 1) + 1) * 127.5).astype(np.uint8).reshape(-1, 16, 16)
    return pixels, _checked(labels, name)


def read_h5(data: bytes, name: str, part: str) -> Digits:
    """USPS as an HDF5 file: groups train and test with `data` in 0..1, [n, 256], and `target` in 0..9."""
    try:
        h5py = importlib.import_module("h5py")
    except ImportError:
        raise BadInput(f"{name} is an HDF5 file, read with h5py, which is not installed: pip install 'unseen[h5]'") from None
    try:
        with h5py.File(io.BytesIO(data), "r") as file:
            for inner in (file[part]["data"], file[part]["target"]):
                refuse_size(8 * inner.size, len(data), name)
            images, labels = np.asarray(file[part]["data"], dtype=np.float64), np.asarray(file[part]["target"])
        pixels = np.rint(images.clip(0, 1) * 255).astype(np.uint8).reshape(-1, 16, 16)
    except BadInput:
        raise
    except Exception as error:  # on damaged files the library raises whatever it happens to run into
        raise BadInput(f"{name} cannot be read as USPS in HDF5 ({part}/data, {part}/target): {error}") from None
    return pixels, _checked(labels.astype(np.int64), name)


def read_mat(data: bytes, name: str) -> Digits:
    """SVHN's and SynthDigits' MATLAB files: X [32, 32, 3, n] and y, in which SVHN writes 10 for the digit 0."""
    from scipy.io import loadmat, whosmat

    try:
        for _, shape, kind in whosmat(io.BytesIO(data)):
            refuse_size(math.prod(shape) * (1 if kind == "uint8" else 8), len(data), name)
        content = loadmat(io.BytesIO(data), variable_names=["X", "y"])
        images, labels = np.asarray(content["X"]), np.asarray(content["y"]).reshape(-1)
    except BadInput:
        raise
    except Exception as error:  # on damaged files the library raises whatever it happens to run into
        raise BadInput(f"{name} cannot be read as a MATLAB file with X and y: {error}") from None
    if images.ndim != 4 or images.shape[2] != 3 or images.dtype != np.uint8 or images.shape[3] != len(labels):
        raise BadInput(f"{name}: X is {images.dtype} {images.shape} with {len(labels)} labels; expected uint8 (height, width, 3, n) with n")
    return images.transpose(3, 0, 1, 2), _checked(labels.astype(np.int64) % 10 if labels.max(initial=0) <= 10 else labels, name)


def _checked(labels: NDArray[np.int64], name: str) -> NDArray[np.int64]:
    if len(labels) and not (labels.min() >= 0 and labels.max() <= 9):
        raise BadInput(f"{name} has labels for {labels.min()} to {labels.max()}; expected the digits 0 to 9")
    return labels
