"""Whoever hands over an archive of images, against the machine that opens it: kilobytes that become gigabytes, members that lead out of it.

Limits are lowered a thousand times where it matters not how high they are, so that bombs are small.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import struct
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from unseen.cli import app
from unseen.data.reading import limits
from unseen.data.reading.archive import nested, open_source
from unseen.data.reading.decode import decode_rgb, open_image
from unseen.data.sets.digit_files import read_h5, read_idx, read_mat
from unseen.deploy.images import find_image_files
from unseen.errors import BadInput

NAMES = [f"site{site}/{label}/{number}.png" for site in "ab" for label in "01" for number in range(3)]
INSIDE = "sitea/0/odd.png"
BOMB = "sitea/0/bomb.png"


@pytest.fixture
def thousandth(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.2 MB instead of 200, and 16,000 pixels instead of 16 million."""
    monkeypatch.setenv(limits.LIMITS, "0.001")


def picture(name: str, side: int = 16) -> bytes:
    pixels = np.random.default_rng([*name.encode()]).integers(0, 256, (side, side, 3), dtype=np.uint8)
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "PNG")
    return data.getvalue()


def member(name: str, **more: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    for key, value in more.items():
        setattr(info, key, value)
    return info


def tar(file: Path, add: Callable[[tarfile.TarFile], object], mode: str = "w") -> Path:
    with tarfile.open(file, mode) as archive:  # type: ignore[call-overload]
        for name in NAMES:
            archive.addfile(member(name, size=len(picture(name))), io.BytesIO(picture(name)))
        add(archive)
    return file


def zipped(file: Path, add: Callable[[zipfile.ZipFile], object], how: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(file, "w", how) as archive:
        for name in NAMES:
            archive.writestr(name, picture(name))
        add(archive)
    return file


def zeros(name: str, size: int) -> Callable[[tarfile.TarFile], None]:
    return lambda archive: archive.addfile(member(name, size=size), io.BytesIO(bytes(size)))


def large_png(side: int, colour: int = 0, bits: int = 8) -> bytes:
    """An image of side x side pixels in few bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows, width = zlib.compressobj(9), side * {0: 1, 2: 3, 6: 4}[colour] * bits // 8
    data = b"".join(rows.compress(bytes(width + 1)) for _ in range(side)) + rows.flush()
    head = struct.pack(">IIBBBBB", side, side, bits, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


# ---- what is honest


def test_honest_archives_are_read(tmp_path: Path, thousandth: None) -> None:
    for file in (tar(tmp_path / "a.tar.gz", lambda t: None, "w:gz"), zipped(tmp_path / "a.zip", lambda z: None)):
        with closing(open_source(file)) as source:
            assert source.read(NAMES[0]) == picture(NAMES[0])


# ---- bombs


def test_a_real_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    def bomb(archive: zipfile.ZipFile) -> None:
        with archive.open(BOMB, "w") as stream:
            for _ in range(210):
                stream.write(bytes(10**6))

    file = zipped(tmp_path / "zeros.zip", bomb)
    assert file.stat().st_size < 300_000
    done = CliRunner().invoke(app, ["data", "check", f"folder:{file}", "--size", "16"])
    said = " ".join(done.output.split())
    assert done.exit_code == 2 and "unpacks to 210 MB; at most 200 MB are taken" in said and "UNSEEN_LIMITS=10" in said


@pytest.mark.parametrize("ending", ["tar.gz", "tar.bz2", "tar.xz"])
@pytest.mark.parametrize("where", [BOMB, "sitea/notes.txt", ".hidden"])
def test_a_packed_tar_is_unpacked_up_to_its_limit(ending: str, where: str, tmp_path: Path, thousandth: None) -> None:
    file = tar(tmp_path / f"a.{ending}", zeros(where, 10**6), f"w:{ending[4:]}")
    with pytest.raises(BadInput, match=r"unpacks to more; at most 0\.2 MB"):
        open_source(file)


def test_bytes_after_the_tar_count_too(tmp_path: Path, thousandth: None) -> None:
    file = tar(tmp_path / "a.tar.gz", lambda t: None, "w:gz")
    file.write_bytes(file.read_bytes() + gzip.compress(bytes(10**6)))  # a second stream behind the first
    with pytest.raises(BadInput, match="unpacks to more"):
        open_source(file)


def test_many_small_bombs_are_one_large_one(tmp_path: Path, thousandth: None) -> None:
    file = zipped(tmp_path / "a.zip", lambda z: [z.writestr(f"sitea/0/bomb-{n}.png", bytes(50_000)) for n in range(20)])
    with pytest.raises(BadInput, match=r"a\.zip has .* and unpacks to 1\.0 MB"):
        open_source(file)


def test_overlapping_members_are_counted_each(tmp_path: Path, thousandth: None) -> None:
    """One compressed stream that many entries of the directory point to."""
    file = zipped(tmp_path / "a.zip", lambda z: z.writestr(BOMB, bytes(100_000)))
    with zipfile.ZipFile(file, "a") as archive:
        once = archive.getinfo(BOMB)
        for n in range(20):
            again = zipfile.ZipInfo(f"sitea/0/{n}-{n}.png")
            for key in ("header_offset", "file_size", "compress_size", "CRC", "compress_type"):
                setattr(again, key, getattr(once, key))
            archive.filelist.append(again)
        archive._didModify = True  # type: ignore[attr-defined]
    with pytest.raises(BadInput, match="at most"):
        open_source(file)


@pytest.mark.parametrize("told", [10, 100_000])
def test_sizes_that_lie_unpack_no_further(told: int, tmp_path: Path, thousandth: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory says that the member is small. The library would unpack all of it at once, then cut it."""
    file = zipped(tmp_path / "a.zip", lambda z: z.writestr(BOMB, bytes(10**7)))
    data = file.read_bytes().replace(struct.pack("<I", 10**7), struct.pack("<I", told))
    file.write_bytes(data)
    longest, real = [0], zlib.decompressobj

    class Watched:
        def __init__(self, *given: int) -> None:
            self._inner = real(*given)

        def decompress(self, data: bytes, most: int = 0) -> bytes:
            out = self._inner.decompress(data, most)
            longest[0] = max(longest[0], len(out))
            return out

        def __getattr__(self, name: str) -> object:
            return getattr(self._inner, name)

    monkeypatch.setattr(zlib, "decompressobj", Watched)
    with closing(open_source(file)) as source, pytest.raises(BadInput, match="cannot be read"):
        source.read(BOMB)
    assert 0 < longest[0] <= 2**20


@pytest.mark.parametrize("how", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_zip_methods_without_bounds_are_refused(how: int, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="packed in another way"):
        open_source(zipped(tmp_path / "a.zip", lambda z: None, how))


@pytest.fixture
def little_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only that limit is lowered, so that what is larger goes by the size that it was packed in."""
    monkeypatch.setattr(limits, "FREE", 200_000)


def test_padding_does_not_hide_a_bomb(tmp_path: Path, little_is_free: None) -> None:
    file = zipped(tmp_path / "a.zip", lambda z: [z.writestr("padding", os.urandom(50_000)), z.writestr(BOMB, bytes(10**6))])
    with pytest.raises(BadInput, match=r"bomb\.png in .* at most 0\.2 MB"):  # all together might become 2.5 MB
        open_source(file)


def test_archives_in_archives_do_not_multiply(tmp_path: Path, little_is_free: None) -> None:
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("padding", bytes(150_000))  # a file of that size might become 7.5 MB, if it were not packed itself
        archive.writestr("big.png", bytes(100_000), zipfile.ZIP_DEFLATED)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("inner.zip", inner.getvalue())
    with closing(open_source(tmp_path / "a.zip")) as source, pytest.raises(BadInput, match=r"inner\.zip .*unpacks to .*; at most 0\.2 MB"):
        nested(source, "inner.zip")


def test_more_members_than_bytes_for_them(tmp_path: Path, thousandth: None) -> None:
    file = tar(tmp_path / "a.tar.gz", lambda t: [t.addfile(member(f"d{n}", type=tarfile.DIRTYPE)) for n in range(200)], "w:gz")
    with pytest.raises(BadInput, match="holds more than 100 files"):
        open_source(file)


@pytest.mark.parametrize(("note", "message"), [("x" * (3 << 20), "a header of 3,"), ("0" * 50_000, "more than 255 digits")])
def test_a_header_that_is_a_bomb(note: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "a.tar.gz"
    with tarfile.open(file, "w:gz", format=tarfile.PAX_FORMAT, compresslevel=1) as archive:
        archive.addfile(member("x.png", pax_headers={"comment": note}))
    with pytest.raises(BadInput, match=message):
        open_source(file)


def test_long_names_are_no_bombs(tmp_path: Path) -> None:
    name = "/".join(["x" * 200] * 5) + f"/{'7' * 200}.png"
    for format in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        with tarfile.open(tmp_path / "a.tar", "w", format=format) as archive:
            archive.addfile(member(name, size=3), io.BytesIO(b"abc"))
        with closing(open_source(tmp_path / "a.tar")) as source:
            assert source.read(name) == b"abc"


def test_files_with_holes(tmp_path: Path, thousandth: None) -> None:
    sparse = member(INSIDE, type=tarfile.GNUTYPE_SPARSE)
    with pytest.raises(BadInput, match=r"with holes|damaged"):
        open_source(tar(tmp_path / "a.tar", lambda t: t.addfile(sparse)))
    (tmp_path / "folder/site").mkdir(parents=True)
    with (tmp_path / "folder/site/x.png").open("wb") as file:
        file.truncate(5 * 10**6)  # no block of the disk
    with closing(open_source(tmp_path / "folder")) as source, pytest.raises(BadInput, match=r"has 5\.0 MB; at most"):
        source.read("site/x.png")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes in folders here")
def test_a_pipe_in_a_folder_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.png")
    with pytest.raises(BadInput, match="neither a file nor a folder"):
        open_source(tmp_path)


# ---- images


@pytest.mark.parametrize(("side", "colour", "bits"), [(4500, 0, 8), (4500, 6, 8), (4500, 0, 16), (12_000, 0, 1)])
def test_an_image_larger_than_its_file_can_mean(side: int, colour: int, bits: int) -> None:
    data = large_png(side, colour, bits)
    for read in (lambda: decode_rgb(data, "x.png", 16), lambda: open_image(data, "x.png")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with pytest.raises(BadInput, match=rf"x\.png has {side * side:,} pixels in .* at most .* UNSEEN_LIMITS=10"):
                read()


def test_padding_does_not_help_beyond_the_limit() -> None:
    data = large_png(7100) + bytes(10**6)  # 50.4 million pixels
    with pytest.raises(BadInput, match="at most 50,000,000 are taken"):
        open_image(data, "x.png")


def test_pillows_own_limit_gives_one_message_too() -> None:
    with pytest.raises(BadInput, match=r"x\.png is refused"):
        open_image(large_png(14_000, 0, 1), "x.png")


def test_the_limit_can_be_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(limits.LIMITS, "2")
    assert open_image(large_png(4500), "x.png")[0].size == (4500, 4500)
    for text in ("", "many", "0", "-1", "nan", "inf"):
        monkeypatch.setenv(limits.LIMITS, text)
        with pytest.raises(BadInput, match="UNSEEN_LIMITS is"):
            open_image(large_png(8), "x.png")


def test_no_program_is_started_for_a_picture() -> None:
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
    with pytest.raises(BadInput, match="no known image format"):
        decode_rgb(script, "x.png", 8)


def test_predictions_name_a_bomb_and_go_on(tmp_path: Path) -> None:
    from unseen.deploy.card import ModelCard
    from unseen.deploy.images import as_input

    card = object.__new__(ModelCard)
    for key, value in (("size", (8, 8)), ("channels", 3)):
        object.__setattr__(card, key, value)
    (tmp_path / "bomb.png").write_bytes(large_png(4500))
    (file,) = find_image_files([tmp_path])
    with pytest.raises(BadInput, match="pixels"):
        as_input(file.path.read_bytes(), file.name, card)


# ---- single files that are packed


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_single_files_unpack_up_to_their_limit(pack: Callable[[bytes], bytes], thousandth: None) -> None:
    assert limits.unpacked(pack(bytes(1000)), "x") == bytes(1000)
    with pytest.raises(BadInput, match="at most"):
        read_idx(pack(bytes(10**6)), "train-images.gz")
    with pytest.raises(BadInput, match="is damaged"):
        limits.unpacked(pack(os.urandom(1000))[:-20], "x")


def test_volumes_say_how_large_they_are(thousandth: None) -> None:
    nibabel = pytest.importorskip("nibabel", reason="NIfTI needs the extra: medical")
    from unseen.data.sets.prostate import _VolumePiece

    for volume, ending in ((np.zeros((100, 100, 10), np.int16), ""), (np.zeros((30, 30, 400), np.uint8), ".gz")):
        data = nibabel.Nifti1Image(volume, np.eye(4)).to_bytes()
        data = gzip.compress(data) if ending else data

        class Given:
            def read(self, name: str, data: bytes = data) -> bytes:
                return data

        with pytest.raises(BadInput, match=r"pixels in|at most"):
            _VolumePiece(Given(), f"x.nii{ending}", "y", "case", nibabel)._load(f"x.nii{ending}")  # type: ignore[arg-type]


def test_tables_of_numbers_say_how_large_they_are(thousandth: None) -> None:
    from scipy.io import savemat

    file = io.BytesIO()
    savemat(file, {"X": np.zeros((32, 32, 3, 200), np.uint8), "y": np.zeros(200, np.uint8)}, do_compression=True)
    with pytest.raises(BadInput, match="at most"):
        read_mat(file.getvalue(), "train_32x32.mat")
    h5py = pytest.importorskip("h5py", reason="HDF5 needs the extra: h5")
    file = io.BytesIO()
    with h5py.File(file, "w") as made:
        made.create_dataset("train/data", (10**9, 256), "f8", chunks=(1, 256))  # nothing of it is stored
        made.create_dataset("train/target", data=np.zeros(3))
    with pytest.raises(BadInput, match="at most"):
        read_h5(file.getvalue(), "usps.h5", "train")


# ---- members that lead out


def linked(archive: zipfile.ZipFile, target: str) -> None:
    info = zipfile.ZipInfo(INSIDE)
    info.external_attr = 0o120777 << 16
    archive.writestr(info, target)


PNG = picture("x")
TARS: dict[str, Callable[[tarfile.TarFile], object]] = {
    "up": lambda t: t.addfile(member("../out.png", size=len(PNG)), io.BytesIO(PNG)),
    "absolute": lambda t: t.addfile(member("/tmp/out.png", size=len(PNG)), io.BytesIO(PNG)),
    "link out": lambda t: t.addfile(member(INSIDE, type=tarfile.SYMTYPE, linkname="../../../secret.png")),
    "absolute link": lambda t: t.addfile(member(INSIDE, type=tarfile.SYMTYPE, linkname="/etc/passwd")),
    "hard link out": lambda t: t.addfile(member(INSIDE, type=tarfile.LNKTYPE, linkname="/etc/passwd")),
    "hard link up": lambda t: t.addfile(member(INSIDE, type=tarfile.LNKTYPE, linkname="../secret.png")),
    "circle": lambda t: [t.addfile(member(f"sitea/0/{a}.png", type=tarfile.SYMTYPE, linkname=f"{b}.png")) for a, b in ("lm", "ml")],
    "pipe": lambda t: t.addfile(member(INSIDE, type=tarfile.FIFOTYPE)),
    "device": lambda t: t.addfile(member(INSIDE, type=tarfile.CHRTYPE, devmajor=1, devminor=5)),
    "1 TB that is not there": lambda t: t.fileobj.write(member(INSIDE, size=2**40).tobuf()),  # type: ignore[union-attr]
}
ZIPS: dict[str, Callable[[zipfile.ZipFile], object]] = {
    "up": lambda z: z.writestr("../out.png", PNG),
    "absolute": lambda z: z.writestr("/tmp/out.png", PNG),
    "backslashes": lambda z: z.writestr("..\\..\\out.png", PNG),
    "drive": lambda z: z.writestr("C:\\out.png", PNG),
    "link": lambda z: linked(z, "/etc/passwd"),
}


@pytest.mark.parametrize("what", TARS)
@pytest.mark.parametrize("ending", ["tar", "tar.gz"])
def test_tars_that_lead_out_are_refused(what: str, ending: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        open_source(tar(tmp_path / f"a.{ending}", TARS[what], f"w:{ending[4:]}"))


@pytest.mark.parametrize("what", ZIPS)
def test_zips_that_lead_out_are_refused(what: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        open_source(zipped(tmp_path / "a.zip", ZIPS[what]))


def test_cut_short_and_no_archive_at_all(tmp_path: Path) -> None:
    file = zipped(tmp_path / "a.zip", lambda z: None)
    file.write_bytes(file.read_bytes()[:-30])
    (tmp_path / "b.tar").write_bytes(os.urandom(5000))
    for name in ("a.zip", "b.tar"):
        done = CliRunner().invoke(app, ["data", "check", f"folder:{tmp_path / name}", "--size", "16"])
        assert done.exit_code == 2 and "Traceback" not in done.output
