"""Archives are read where they lie; what points out of them is refused."""

from __future__ import annotations

import io
import tarfile
import zipfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unseen.data.reading.archive import nested, open_source
from unseen.errors import BadInput

Member = tuple[str, bytes | str]  # bytes: a file; text: a symbolic link


def tar_of(path: Path, members: list[Member], mode: str = "w", hard: bool = False) -> Path:
    with tarfile.open(path, mode) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
            else:
                info.type, info.linkname = (tarfile.LNKTYPE if hard else tarfile.SYMTYPE), content
                tar.addfile(info)
    return path


def zip_of(path: Path, members: list[tuple[str, bytes]]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize(("ending", "mode"), [("tar", "w"), ("tar.gz", "w:gz"), ("tgz", "w:gz"), ("tar.bz2", "w:bz2"), ("tar.xz", "w:xz")])
def test_every_tar_reads_the_same(tmp_path: Path, ending: str, mode: str) -> None:
    path = tar_of(tmp_path / f"a.{ending}", [("./r/b.png", b"two"), ("r/a.png", b"one"), ("r/.DS_Store", b"x")], mode)
    with closing(open_source(path)) as source:
        assert source.names == ("r/a.png", "r/b.png")
        assert [source.read(name) for name in source.names] == [b"one", b"two"]


def test_zip_reads_with_either_slash(tmp_path: Path) -> None:
    with closing(open_source(zip_of(tmp_path / "a.zip", [("r/a.png", b"one"), ("r\\b.png", b"two")]))) as source:
        assert [source.read(name) for name in source.names] == [b"one", b"two"]


@pytest.mark.parametrize("name", ["../evil.png", "/etc/evil.png", "a/../../evil.png", "C:/evil.png", "..\\evil.png"])
def test_members_that_point_out_are_refused(tmp_path: Path, name: str) -> None:
    for path in (tar_of(tmp_path / "a.tar", [("ok.png", b""), (name, b"x")]), zip_of(tmp_path / "a.zip", [("ok.png", b""), (name, b"x")])):
        with pytest.raises(BadInput, match="refused"):
            open_source(path)


@pytest.mark.parametrize("target", ["/etc/passwd", "../../secret", "../.."])
@pytest.mark.parametrize("hard", [False, True])
def test_links_out_are_refused(tmp_path: Path, target: str, hard: bool) -> None:
    with pytest.raises(BadInput, match="link out of the archive"):
        open_source(tar_of(tmp_path / "a.tar", [("r/link.png", target)], hard=hard))


def test_links_inside_are_followed_and_loops_refused(tmp_path: Path) -> None:
    with closing(open_source(tar_of(tmp_path / "a.tar", [("r/a.png", b"one"), ("s/b.png", "../r/a.png")]))) as source:
        assert source.read("s/b.png") == b"one"
    with pytest.raises(BadInput, match="link to nothing"):
        open_source(tar_of(tmp_path / "b.tar", [("a.png", "b.png"), ("b.png", "a.png")]))


def test_devices_and_zip_links_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        pipe = tarfile.TarInfo("pipe")
        pipe.type = tarfile.FIFOTYPE
        tar.addfile(pipe)
    with pytest.raises(BadInput, match="neither a file nor a folder"):
        open_source(path)
    link = zipfile.ZipInfo("link.png")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(BadInput, match="is a link"):
        open_source(tmp_path / "b.zip")


def test_a_nested_archive_opens_and_closes_with_its_source(tmp_path: Path) -> None:
    inner = tar_of(tmp_path / "inner.tar.gz", [("a.png", b"one")], "w:gz")
    with closing(open_source(tar_of(tmp_path / "outer.tar", [("x/inner.tar.gz", inner.read_bytes())]))) as source:
        assert nested(source, "x/inner.tar.gz").read("a.png") == b"one"


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.zip"])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(head=st.sampled_from([b"", b"\x1f\x8b\x08\0", b"BZh9", b"PK\x03\x04"]), data=st.binary(max_size=600))
def test_any_bytes_are_an_archive_or_bad_input(tmp_path: Path, name: str, head: bytes, data: bytes) -> None:
    (tmp_path / name).write_bytes(head + data)
    try:
        open_source(tmp_path / name).close()
    except BadInput as bad:
        assert name in str(bad)


def test_a_cut_archive_is_refused_or_named(tmp_path: Path) -> None:
    path = tar_of(tmp_path / "a.tar.gz", [("a.png", bytes(range(256)) * 40)], "w:gz")
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(BadInput, match="damaged"):
        open_source(path)


def test_what_is_missing_or_strange_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not exist"):
        open_source(tmp_path / "nothing")
    (tmp_path / "a.rar").write_bytes(b"x")
    with pytest.raises(BadInput, match="no known kind"):
        open_source(tmp_path / "a.rar")
