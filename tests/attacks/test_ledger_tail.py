"""Somebody at a site wants entries of its ledger gone: whatever is cut, deleted or put back, a restart and `verify` must not make it whole.

Told apart by what the attacker has: the site's files, its key too, or the whole folder.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from unseen.cli.ledger import ledger_app
from unseen.errors import BadInput, RefusedReply
from unseen.federation.kits import Federation, Kit, init, open_kit, read_federation
from unseen.federation.server.receipts import Receipts
from unseen.federation.site.ledger import Ledger
from unseen.federation.site.policy import Rejected

LINES = 10


class Scene:
    """A site that answered a server with receipts, up to some line."""

    def __init__(self, made: Path, folder: Path, receipted: int) -> None:
        shutil.copytree(made, folder / "server")
        self.federation: Federation = read_federation(folder / "server")
        self.kit: Kit = open_kit(self.federation.path / "kits/plain.kit", folder / "plain")
        self.receipts = Receipts(self.federation)
        ledger = self.open()
        self.copies: dict[int, dict[Path, bytes]] = {}
        for number in range(2, LINES + 1):
            self.copies[number - 1] = {file: file.read_bytes() for file in self.kit.path.glob("ledger.jsonl*")}
            ledger.append([{"study": "s", "round": number, "field": "model", "bytes": 1000}])
            if number <= receipted:
                self.receipts.sign("plain", "s", ledger.head)
                ledger.take_receipt(self.receipts.last("plain") or {})
        self.ledger, self.head = ledger.file, ledger.file.with_name("ledger.jsonl.head")
        self.kept = ledger.file.with_name("ledger.jsonl.receipts")

    def open(self) -> Ledger:
        return Ledger(self.kit.path / "ledger.jsonl", self.kit.signing, self.kit.server_key, "plain")

    def is_verified(self, *more: str) -> bool:
        return CliRunner().invoke(ledger_app, ["verify", str(self.kit.path), *more]).exit_code == 0

    def restarted(self) -> bool:
        """Whether the site starts, takes the next question's receipt, answers, and the server takes that."""
        try:
            ledger = self.open()
            last = self.receipts.last("plain")
            if last is not None:
                ledger.take_receipt(last)
            ledger.append([{"study": "s", "round": 99}])
            self.receipts.sign("plain", "s", ledger.head)
        except (BadInput, Rejected, RefusedReply):
            return False
        return True

    def cut(self, lines: int) -> None:
        self.ledger.write_bytes(b"".join(self.ledger.read_bytes().splitlines(keepends=True)[: LINES - lines]))

    def put_back(self, lines: int) -> None:
        """The files as they were `lines` lines ago, receipts and all."""
        for file in self.kit.path.glob("ledger.jsonl*"):
            file.unlink()
        for file, data in self.copies[LINES - lines].items():
            file.write_bytes(data)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return init(tmp_path_factory.mktemp("made") / "server", "localhost", ["plain"]).path


Change = Callable[[Scene], object]


@pytest.mark.parametrize("receipted", [0, 4])
@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.cut(3),
        lambda s: s.cut(1),
        lambda s: s.cut(9),
        lambda s: (s.cut(3), s.head.unlink()),
        lambda s: (s.cut(9), s.head.unlink()),
        lambda s: (s.cut(9), s.head.unlink(), s.kept.unlink(missing_ok=True)),
        lambda s: (s.ledger.unlink(), s.kept.unlink(missing_ok=True)),
        lambda s: s.ledger.unlink(),
        lambda s: s.head.unlink(),
        lambda s: (s.ledger.write_bytes(b""), s.head.unlink()),
        lambda s: (s.cut(3), s.head.write_text(" ".join(["7", *s.head.read_text().split()[1:]]) + "\n")),
        lambda s: (s.cut(3), s.head.write_bytes(b"")),
        lambda s: (s.cut(10), s.head.write_text("0 " + "0" * 64 + " " + s.head.read_text().split()[2] + "\n")),
    ],
)
def test_whoever_has_the_files_alone_is_found_at_the_site(change: Change, receipted: int, made: Path, tmp_path: Path) -> None:
    scene = Scene(made, tmp_path, receipted)
    assert scene.is_verified()
    change(scene)
    assert not scene.is_verified() and not scene.restarted() and not scene.restarted() and not scene.is_verified()


@pytest.mark.parametrize(
    "change", [lambda s: s.put_back(3), lambda s: s.put_back(8), lambda s: [f.unlink() for f in s.kit.path.glob("ledger*")]]
)
def test_an_old_copy_or_a_new_start_is_found_by_the_server(change: Change, made: Path, tmp_path: Path) -> None:
    """With receipts deleted too. This is all that the site's own disk could tell."""
    scene = Scene(made, tmp_path, LINES)
    change(scene)
    assert not scene.is_verified("--receipts", str(scene.receipts.file("plain")))
    assert not scene.restarted()
    assert not scene.is_verified("--receipts", str(scene.receipts.file("plain")))


def test_nothing_is_found_where_nothing_was_done(made: Path, tmp_path: Path) -> None:
    scene = Scene(made, tmp_path, LINES)
    assert scene.restarted() and scene.restarted() and scene.is_verified("--receipts", str(scene.receipts.file("plain")))
