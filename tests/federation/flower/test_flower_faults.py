"""What goes wrong between machines, with real processes and TLS: intruders stay out, and a run goes on past every fault."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from loopback import PATIENCE, Loopback, free_port, same, unseen

pytest.importorskip("flwr")
resource = pytest.importorskip("resource")

SITES = ("north", "south", "west")
TARGET = "unseen"
DEADLINE = 25.0
RUN = [
    "--method",
    "fedsb",
    "--set",
    "budget=2",
    "--set",
    "batch=8",
    "--network",
    "small_cnn:width=2",
    "--device",
    "cpu",
    "--target",
    TARGET,
]


class Proxy:
    """A network that can be cut: passes bytes between a site and the server as long as it is whole."""

    def __init__(self, server_port: int) -> None:
        self.port, self._server_port, self._whole = free_port(), server_port, True
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._whole = False
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def mend(self) -> None:
        self._whole = True

    def close(self) -> None:
        self.cut()
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for connections
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = self._onwards() if self._whole else None
                if far is None:
                    near.close()
                    continue
                self._open += [near, far]
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=_pass, args=(one, other), daemon=True).start()

    def _onwards(self) -> socket.socket | None:
        with contextlib.suppress(OSError):
            return socket.create_connection(("127.0.0.1", self._server_port))
        return None


def _pass(one: socket.socket, other: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := one.recv(65536):
            other.sendall(data)
    for end in (one, other):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
    one.close()


def serve_tls(certificate: Path, key: Path, port: int) -> socket.socket:
    """A server that does no more than show its certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    listener = socket.create_server(("127.0.0.1", port))

    def show() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                context.wrap_socket(connection, server_side=True).close()

    threading.Thread(target=show, daemon=True).start()
    return listener


def make_images(root: Path) -> None:
    """Stripes of three directions, each site with its own brightness; west has none of the third."""
    rng = np.random.default_rng(0)
    for number, site in enumerate((*SITES, TARGET)):
        for label in ("across", "along", "neither")[: 2 if site == "west" else 3]:
            folder = root / site / label
            folder.mkdir(parents=True)
            for n in range(10):
                pixels = rng.integers(0, 60 + 20 * number, (16, 16, 3))
                if label != "neither":
                    pixels[(slice(n % 2, None, 2), slice(None)) if label == "across" else (slice(None), slice(n % 2, None, 2))] += 120
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{n}.png")


@pytest.fixture
def federation_and_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Loopback, Proxy]]:
    """Three sites and a target, each with a folder of its own; the one in the north behind a network that can be cut."""
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path / "cache"))
    make_images(tmp_path / "all")
    for site in (*SITES, TARGET):
        (tmp_path / "data" / site).mkdir(parents=True)
        (tmp_path / "data" / site / "images").symlink_to(tmp_path / "all" / site, target_is_directory=True)
    federation = Loopback(tmp_path, (*SITES, TARGET))
    proxy = Proxy(federation.port)
    federation.serve()
    for site in (*SITES, TARGET):
        join(federation, site, proxy)
    try:
        yield federation, proxy
    finally:
        federation.stop()
        proxy.close()


def join(federation: Loopback, site: str, proxy: Proxy) -> None:
    role = ["--evaluate-only"] if site == TARGET else []
    way = ["--server", f"localhost:{proxy.port}"] if site == "north" else []
    federation.join(site, "--data", f"folder:{federation.folder / 'data' / site}", "--size", 16, *role, *way)


def until_record(run: Path, fits: Callable[[dict[str, Any]], bool], after: int = 0) -> int:
    """The number of the first round, after one, whose record is as it should be."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        lines = (run / "records.jsonl").read_text().splitlines() if (run / "records.jsonl").exists() else []
        records = [json.loads(line) for line in lines]
        for record in records:
            if record["round"] > after and fits(record):
                return int(record["round"])
        time.sleep(0.2)
    raise AssertionError(f"no such record: {[(r['round'], r['missing']) for r in records]}")


def whole(record: dict[str, Any]) -> bool:
    return not record["missing"] and record["source"].keys() == set(SITES) and record["target"].keys() == {TARGET}


def left_out(site: str, why: str) -> Callable[[dict[str, Any]], bool]:
    return lambda record: record["missing"].keys() == {site} and why in record["missing"][site]


def own_kit(federation: Path, folder: Path, **files: bytes) -> Path:
    """The kit of the west, with other files in it."""
    with zipfile.ZipFile(federation / "kits/west.kit") as archive:
        archive.extractall(folder)
    for name, data in files.items():
        (folder / name.replace("_", ".")).write_bytes(data)
    return folder


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks processes up in /proc")
def test_intruders_stay_out_and_faults_do_not_end_a_run(federation_and_proxy: tuple[Loopback, Proxy], tmp_path: Path) -> None:
    federation, proxy = federation_and_proxy
    _intruders_stay_out(federation, tmp_path)

    unseen(
        "run", *RUN, "--data", f"folder:{tmp_path / 'all'}", "--size", 16, "--rounds", 2, "--workers", 1, "-q", "--out", tmp_path / "here"
    )
    federation.run(*RUN, "--data", "all", "--rounds", 2, "--deadline", PATIENCE, "--minimum-clients", 3, "--out", tmp_path / "there")
    assert same(tmp_path / "here", tmp_path / "there")  # sites with folders, one without a class that the others have

    long = [*RUN, "--data", "all", "--rounds", 1000, "--deadline", DEADLINE, "--minimum-clients", 2, "--out", tmp_path / "long"]
    federation.start("driver", "run", *long, *federation.between)
    done = until_record(tmp_path / "long", whole)
    done = _late(federation, tmp_path / "long", done)
    done = _full_disk(federation, tmp_path / "long", done)
    done = _cut(proxy, tmp_path / "long", done)
    done = _changed_data(federation, proxy, tmp_path, done)
    _replayed(federation, tmp_path, done)
    assert federation.processes["driver"].poll() is None
    for site in (*SITES, TARGET):
        unseen("ledger", "verify", tmp_path / f"site-{site}")


def _intruders_stay_out(federation: Loopback, tmp_path: Path) -> None:
    """An unregistered key, the kit of another federation, a kit and a server whose certificates are out of time."""
    from unseen.federation import keys
    from unseen.federation.kits import init

    stranger = own_kit(federation.path, tmp_path / "stranger", node_key=keys.node_key()[0])
    data = ["--data", f"folder:{tmp_path / 'data/west'}", "--size", 16]
    federation.start("stranger-log", "join", stranger, "--dir", "site-stranger", *data)
    elsewhere = init(tmp_path / "elsewhere", "localhost", ["west"], federation.port)
    federation.start("foreigner-log", "join", elsewhere.path / "kits/west.kit", "--dir", "site-foreigner", *data)
    ended = keys.Authority.make("ended", 0).pem
    federation.start("ended-log", "join", own_kit(federation.path, tmp_path / "ended", ca_pem=ended), "--dir", "site-ended", *data)
    assert federation.ended("ended-log") == 2 and "valid until" in federation.said("ended-log")

    # A server whose certificate ended while it ran: `unseen serve` would not start with it.
    authority = keys.Authority.make("x", 1)
    stale = init(tmp_path / "stale", "localhost", ["west"], free_port())
    certificate, key = authority.certify("localhost", 0)
    for name, content in (("ca.pem", authority.pem), ("server.pem", certificate), ("secrets/server.key", key)):
        (stale.path / name).write_bytes(content)
    federation.start("stale-log", "serve", "--dir", stale.path)
    assert federation.ended("stale-log") == 2 and "valid until" in federation.said("stale-log")
    listener = serve_tls(stale.path / "server.pem", stale.path / "secrets/server.key", stale.port)
    visitor = own_kit(stale.path, tmp_path / "visitor", ca_pem=authority.pem)
    federation.start("visitor-log", "join", visitor, "--dir", "site-visitor", *data)

    reasons = {"stranger": "not connected: [code: 2004]", "foreigner": "certificate verify failed", "visitor": "certificate has expired"}
    for name, reason in reasons.items():
        federation.until(f"{name}-log", reason)
        federation.processes[f"{name}-log"].terminate()
    for name in reasons:
        federation.ended(f"{name}-log")
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def _late(federation: Loopback, run: Path, done: int) -> int:
    """A site that works longer than the deadline: left out of that round, its answer does not count, and it is back in the next."""
    process = federation.child("west", "site.process")
    os.kill(process, signal.SIGSTOP)
    done = until_record_or_scoring(run, "west", done, lambda: os.kill(process, signal.SIGCONT))
    return until_record(run, whole, done)


def until_record_or_scoring(run: Path, site: str, after: int, let_go: Callable[[], None]) -> int:
    """The site is let go once the deadline of a training question has passed, so that it can give its score in that same round."""
    time.sleep(DEADLINE + 2)
    let_go()
    return until_record(run, left_out(site, f"train: no answer within {DEADLINE:g} s"), after)


def _full_disk(federation: Loopback, run: Path, done: int) -> int:
    """The kernel takes no more bytes into any file of the site, as on a full disk; then it does again."""
    process = federation.child("south", "site.process")
    before = resource.prlimit(process, resource.RLIMIT_FSIZE)
    resource.prlimit(process, resource.RLIMIT_FSIZE, (0, before[1]))
    done = until_record(run, left_out("south", "failed by the site: the disk: File too large"), done)
    resource.prlimit(process, resource.RLIMIT_FSIZE, before)
    return until_record(run, whole, done)


def _cut(proxy: Proxy, run: Path, done: int) -> int:
    """A network that is away for a while costs time; nobody is left out but for a deadline that passed, as it may on a busy machine."""
    proxy.cut()
    time.sleep(5)
    rounds = len((run / "records.jsonl").read_text().splitlines())
    proxy.mend()
    after = until_record(run, whole, rounds)
    records = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()[done:]]
    reasons = [why for record in records for why in record["missing"].values()]
    assert rounds <= done + 2 and all(f"no answer within {DEADLINE:g} s" in why for why in reasons), reasons
    return after


def _changed_data(federation: Loopback, proxy: Proxy, tmp_path: Path, done: int) -> int:
    """One image of a site is another after a restart: the site refuses. The image is put back: it takes part again."""
    image = tmp_path / "all/south/along/0.png"
    before = image.read_bytes()
    for content, fits in ((None, left_out("south", "refused by the site: data: they changed since this run began")), (before, whole)):
        federation.processes["south"].terminate()
        federation.ended("south")
        if content is None:
            Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(image)
        else:
            image.write_bytes(content)
        join(federation, "south", proxy)
        done = until_record(tmp_path / "long", fits, done)
    return done


def _replayed(federation: Loopback, tmp_path: Path, done: int) -> None:
    """A site that gives an old answer again is left out."""
    from unseen.federation.site.join import SiteSettings

    federation.processes["west"].terminate()
    federation.ended("west")
    kit, folder = federation.path / "kits/west.kit", tmp_path / "site-west"
    site = SiteSettings(str(kit), str(folder), f"folder:{tmp_path / 'data/west'}", size=16, device="cpu")
    with (tmp_path / "west.log").open("ab") as log:
        hostile = [sys.executable, str(Path(__file__).parents[2] / "replaying_site.py"), json.dumps(asdict(site))]
        federation.processes["west"] = subprocess.Popen(hostile, stdout=log, stderr=log, cwd=tmp_path)
    until_record(tmp_path / "long", left_out("west", "train: an answer to another question"), done)
