"""Digits-5 from small files in the five published formats."""

from __future__ import annotations

import bz2
import gzip
import io
import struct
import sys
import tarfile
from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.io
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from unseen.data import load, prepare, recognise
from unseen.data.sets.digit_files import read_h5, read_idx, read_libsvm, read_mat
from unseen.errors import BadInput


def idx(array: np.ndarray) -> bytes:
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_mnist(root: Path, n: int = 4, pack: bool = True) -> None:
    root.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", n), ("t10k", n - 1)):
        images = np.arange(count, dtype=np.uint8)[:, None, None] * np.ones((28, 28), dtype=np.uint8) * 10
        for name, data in (
            (f"{part}-images-idx3-ubyte", idx(images)),
            (f"{part}-labels-idx1-ubyte", idx(np.arange(count, dtype=np.uint8))),
        ):
            (root / (name + ".gz" * pack)).write_bytes(gzip.compress(data) if pack else data)


def libsvm_line(label: int, values: np.ndarray) -> str:
    return f"{label} " + " ".join(f"{i}:{v:g}" for i, v in enumerate(values, 1) if v != -1)


def write_usps(root: Path) -> None:
    lines = [libsvm_line(1, np.full(256, -1.0)), libsvm_line(10, np.full(256, 1.0)), libsvm_line(4, np.zeros(256))]
    (root / "usps.bz2").write_bytes(bz2.compress(("\n".join(lines) + "\n").encode()))
    (root / "usps.t.bz2").write_bytes(bz2.compress((lines[0] + "\n").encode()))


def mnist_m_tar(path: Path, parts: tuple[str, ...] = ("train", "test")) -> None:
    with tarfile.open(path, "w:gz") as tar:

        def put(name: str, data: bytes) -> None:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))

        for part in parts:
            put(f"mnist_m/mnist_m_{part}_labels.txt", b"00000000.png 7\n00000001.png 2\n")
            for n in range(2):
                buffer = io.BytesIO()
                Image.new("RGB", (32, 32), (100, 20 * n, 0)).save(buffer, "PNG")
                put(f"mnist_m/mnist_m_{part}/{n:08}.png", buffer.getvalue())


def write_mat(path: Path, labels: list[int]) -> None:
    images = np.arange(len(labels), dtype=np.uint8)[None, None, None, :] * np.ones((32, 32, 3, 1), dtype=np.uint8)
    images[0, 1, 2, :] = 77  # row 0, column 1, blue
    scipy.io.savemat(path, {"X": images, "y": np.array(labels, dtype=np.uint8)[:, None]})


def test_all_five(tmp_path: Path) -> None:
    root = tmp_path / "digits"
    write_mnist(root / "mnist")
    write_usps(root)
    mnist_m_tar(root / "mnist_m.tar.gz")
    for part in ("train", "test"):
        write_mat(root / f"{part}_32x32.mat", [10, 1, 9])
        write_mat(root / f"synth_{part}_32x32.mat", [0, 1, 9])
    assert recognise(root) == "digits5"
    prepare("digits5", root, cache=tmp_path / "cache")
    data = load("digits5", cache=tmp_path / "cache")
    assert data.names == ("mnist", "mnist_m", "svhn", "synth", "usps") and data.notes == () and data.size == (32, 32)
    assert data["mnist"].labels.tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert data["mnist"].split is not None and data["mnist"].split.tolist() == ["train"] * 4 + ["test"] * 3
    assert (data["mnist"].images[3] == 30).all()
    assert data["mnist_m"].labels.tolist() == [7, 2, 7, 2] and data["mnist_m"].images[1, :, 0, 0].tolist() == [100, 20, 0]
    assert data["svhn"].labels.tolist() == [0, 1, 9] * 2 and data["svhn"].images[2, 2, 0, 1] == 77 and data["svhn"].images[2, 0, 0, 1] == 2
    assert data["synth"].labels.tolist() == [0, 1, 9] * 2
    assert data["usps"].labels.tolist() == [0, 9, 3, 0]
    assert [data["usps"].images[i, 0, 5, 5] for i in range(3)] == [0, 255, 128]


def test_two_are_enough_and_one_is_not(tmp_path: Path) -> None:
    root = tmp_path / "digits"
    write_mnist(root, pack=False)
    with pytest.raises(BadInput, match="only mnist of the five"):
        prepare("digits5", root, cache=tmp_path / "cache")
    mnist_m_tar(root / "mnist_m_test.tar.gz", ("test",))
    prepare("digits5", root, cache=tmp_path / "cache")
    data = load("digits5", cache=tmp_path / "cache")
    assert data.names == ("mnist", "mnist_m") and data.notes == ("not found and left out: svhn, synth, usps",)


def test_usps_in_hdf5(tmp_path: Path) -> None:
    root = tmp_path / "digits"
    write_mnist(root)
    with h5py.File(root / "usps.h5", "w") as file:
        for part in ("train", "test"):
            group = file.create_group(part)
            group["data"], group["target"] = np.array([[0.0] * 256, [1.0] * 256]), np.array([3, 8])
    prepare("digits5", root, cache=tmp_path / "cache")
    usps = load("digits5", cache=tmp_path / "cache")["usps"]
    assert usps.labels.tolist() == [3, 8, 3, 8] and (usps.images[0] == 0).all() and (usps.images[1] == 255).all()


def test_hdf5_without_its_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(BadInput, match=r"pip install 'unseen\[h5\]'"):
        read_h5(b"", "usps.h5", "train")


def test_usps_pixels_stand_in_rows() -> None:
    values = np.full(256, -1.0)
    values[17] = 1.0  # second row, second column
    images, labels = read_libsvm((libsvm_line(1, values) + "\n").encode(), "usps")
    assert images[0, 1, 1] == 255 and images.sum() == 255 and labels.tolist() == [0]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"PK", "not in MNIST's idx format"),
        (idx(np.zeros((2, 3), dtype=np.uint8))[:-1], r"holds 5 values; its header says \(2, 3\)"),
        (b"\0\0\x08\x03\0\0", "cut short in its header"),
        (gzip.compress(b"abc" * 50, mtime=0)[:-9], "damaged"),
    ],
)
def test_bad_idx(data: bytes, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        read_idx(data, "train-images")


@pytest.mark.parametrize("text", ["x 1:1", "1 300:0", "1 0:1", "1 a:b", "1 1", "11 1:1", "0 1:1"])
def test_bad_libsvm(text: str) -> None:
    with pytest.raises(BadInput, match="usps"):
        read_libsvm(text.encode(), "usps")


def test_bad_mat(tmp_path: Path) -> None:
    scipy.io.savemat(tmp_path / "a.mat", {"X": np.zeros((32, 32, 3, 2), dtype=np.uint8), "y": [1]})
    with pytest.raises(BadInput, match="with 1 labels; expected"):
        read_mat((tmp_path / "a.mat").read_bytes(), "a.mat")
    scipy.io.savemat(tmp_path / "b.mat", {"Z": [1]})
    with pytest.raises(BadInput, match="MATLAB file with X and y"):
        read_mat((tmp_path / "b.mat").read_bytes(), "b.mat")


def test_missing_labels_and_images_are_named(tmp_path: Path) -> None:
    root = tmp_path / "digits"
    write_mnist(root)
    write_usps(root)
    (root / "train-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(BadInput, match=r"train-labels-idx1-ubyte.gz is missing"):
        prepare("digits5", root, cache=tmp_path / "cache")
    write_mnist(root)
    (root / "mnist_m_train_labels.txt").write_text("0.png 1\n")
    with pytest.raises(BadInput, match=r"names 1 images that are not there: mnist_m_train/0.png"):
        prepare("digits5", root, cache=tmp_path / "cache")
    (root / "mnist_m_train_labels.txt").write_text("0.png eleven\n")
    with pytest.raises(BadInput, match=r"line 1 is '0.png eleven'"):
        prepare("digits5", root, cache=tmp_path / "cache")


@settings(max_examples=60, deadline=None)
@given(
    st.binary(max_size=120),
    st.sampled_from([b"", b"\0\0\x08\x01\0\0\0\x02", b"1 1:", b"MATLAB 5.0 MAT-file", b"\x1f\x8b", b"BZh9", b"\x89HDF\r\n\x1a\n"]),
)
def test_any_bytes_are_digits_or_bad_input(tail: bytes, head: bytes) -> None:
    for read in (read_idx, read_libsvm, read_mat, lambda data, name: read_h5(data, name, "train")):
        try:
            read(head + tail, "x")
        except BadInput as bad:
            assert "x" in str(bad)
