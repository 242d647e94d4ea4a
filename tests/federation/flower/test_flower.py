"""A federation of real processes on this machine, with SuperLink, SuperNodes and TLS.

It has the bits of the in-process engine, kills of every kind of process included; strangers stay out; a run goes on past every other
fault. All this is one test over one federation: to start the processes of another takes longer than most of it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from PIL import Image

from faulty_network import CertificateServer, Proxy
from loopback import PATIENCE, Loopback, free_port, same, unseen

pytest.importorskip("flwr")
from unseen.federation import keys
from unseen.federation.activity import Event
from unseen.federation.flower.node import Node
from unseen.federation.kits import init, open_kit
from unseen.federation.messages import SignedMessage
from unseen.federation.site.join import SiteSettings
from unseen.federation.site.ledger import read_ledger

resource = pytest.importorskip("resource")

SITES = ("north", "south")
TARGET = "unseen"
DEADLINE = 15.0  # seconds for an exchange of the run with faults
EVERYTHING = """studies = "by-rule"
kinds = ["model", "spectrum", "score", "statistic", "count"]
others_see = ["model", "spectrum"]
fields_that_grow = true
images_per_spectrum = 1
most_orders = 100
fewest_images = 1
fewest_validation = 0
"""
COMMON = ["--target", TARGET, "--network", "small_cnn:width=2", "--device", "cpu"]
ELCFS = ["--method", "elcfs", "--set", "batch=8", *COMMON, "--rounds", 2]
FEDDAG = ["--method", "feddag", "--set", "batch=8", "--set", "width=4", "--set", "warmup=1", *COMMON, "--rounds", 3]
FEDSB = ["--method", "fedsb", "--set", "budget=2", "--set", "batch=8", *COMMON, "--rounds", 1000]


def make_images(root: Path) -> None:
    """Stripes of three directions, each site with its own brightness; the south has none of the third."""
    rng = np.random.default_rng(0)
    for number, site in enumerate((*SITES, TARGET)):
        for label in ("across", "along", "neither")[: 2 if site == "south" else 3]:
            folder = root / site / label
            folder.mkdir(parents=True)
            for n in range(10):
                pixels = rng.integers(0, 60 + 20 * number, (16, 16, 3))
                if label != "neither":
                    pixels[(slice(n % 2, None, 2), slice(None)) if label == "across" else (slice(None), slice(n % 2, None, 2))] += 120
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{n}.png")


@pytest.fixture
def federation_and_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Loopback, Proxy]]:
    """Two sites and a target, each with a folder of its own; the one in the north behind a network that can be cut."""
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path / "cache"))
    make_images(tmp_path / "all")
    (tmp_path / "policy.toml").write_text(EVERYTHING)
    federation = Loopback(tmp_path, (*SITES, TARGET))
    proxy = Proxy(federation.port)
    federation.serve()
    for site in (*SITES, TARGET):
        (tmp_path / "data" / site).mkdir(parents=True)
        (tmp_path / "data" / site / "images").symlink_to(tmp_path / "all" / site, target_is_directory=True)
        role = ["--policy", "policy.toml", *(["--evaluate-only"] if site == TARGET else [])]
        way = ["--server", f"localhost:{proxy.port}"] if site == "north" else []
        federation.join(site, "--data", f"folder:{tmp_path / 'data' / site}", "--size", 16, *role, *way)
    try:
        yield federation, proxy
    finally:
        federation.stop()
        proxy.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Flower's own
@pytest.mark.skipif(not Path("/proc").exists(), reason="looks processes up in /proc")
def test_a_federation_of_real_processes(federation_and_proxy: tuple[Loopback, Proxy], tmp_path: Path) -> None:
    federation, proxy = federation_and_proxy
    strangers_stay_out(federation, tmp_path)
    a_run_has_the_bits_of_the_in_process_engine(federation, tmp_path)
    a_run_has_them_through_kills(federation, tmp_path)
    a_run_goes_on_past_faults(federation, proxy, tmp_path)
    for name in (*SITES, TARGET):
        unseen("ledger", "verify", tmp_path / f"site-{name}")
        secret = [p for p in (tmp_path / f"site-{name}").rglob("*") if p.is_file() and p.stat().st_mode & 0o077]
        assert not secret, f"others can read {secret}"
    left = {entry["task"] for entry in read_ledger(tmp_path / f"site-{TARGET}" / "ledger.jsonl") if "task" in entry}
    assert left == {"hello", "scoring.score"}, left


class Said(Exception):
    """What a site says, which ends it here."""


def what_a_site_says(kit: Path, folder: Path) -> str:
    """The first thing that a site with this kit has to say; none of those here may be asked anything."""

    def say(event: Event) -> NoReturn:
        raise Said(event.line)

    def answer(question: SignedMessage) -> SignedMessage:
        raise AssertionError("a stranger was asked")

    node = Node(open_kit(kit, folder), None, say)
    try:
        node.serve(answer)
    except Said as said:
        return str(said)
    finally:
        node.close()
    raise AssertionError("it ended without a word")


def own_kit(federation: Path, folder: Path, **files: bytes) -> Path:
    """The kit of the south, with other files in it."""
    with zipfile.ZipFile(federation / "kits/south.kit") as archive:
        archive.extractall(folder)
    for name, data in files.items():
        (folder / name.replace("_", ".")).write_bytes(data)
    return folder


def strangers_stay_out(federation: Loopback, tmp_path: Path) -> None:
    """An unregistered key, the kit of another federation, a server whose certificate ran out while it ran."""
    authority = keys.Authority.make("x", 1)
    elsewhere = init(tmp_path / "elsewhere", "localhost", ["south"], federation.port)
    stale = init(tmp_path / "stale", "localhost", ["south"], free_port())
    certificate, key = authority.certify("localhost", 0)
    for name, content in (("server.pem", certificate), ("secrets/server.key", key)):
        (stale.path / name).write_bytes(content)
    server = CertificateServer(stale.path / "server.pem", stale.path / "secrets/server.key", stale.port)
    kits = {
        "not connected: the server does not know this site": own_kit(
            federation.path, tmp_path / "stranger", node_key=keys.SiteKeys.make().files["node.key"]
        ),
        "certificate verify failed": elsewhere.path / "kits/south.kit",
        "certificate has expired": own_kit(stale.path, tmp_path / "visitor", ca_pem=authority.pem),
    }
    federation.until("serve", "serving federation")  # before that everybody is refused
    with ThreadPoolExecutor() as threads:
        folders = [tmp_path / f"site-of-stranger-{number}" for number in range(len(kits))]
        for reason, said in zip(kits, threads.map(what_a_site_says, kits.values(), folders), strict=True):
            assert reason in said
    server.close()


def patient(federation: Loopback) -> list[object]:
    return ["--data", "all", "--deadline", PATIENCE, "--minimum-clients", len(SITES), *federation.between]


def in_process(tmp_path: Path) -> list[object]:
    return ["--data", f"folder:{tmp_path / 'all'}", "--size", 16, "--workers", 1, "-q"]


def a_run_has_the_bits_of_the_in_process_engine(federation: Loopback, tmp_path: Path) -> None:
    """Of sites with folders, one without a class that the other has; a method that asks before round 1 and lets out what grows."""
    unseen("run", *ELCFS, *in_process(tmp_path), "--out", tmp_path / "here")
    unseen("run", *ELCFS, *patient(federation), "--out", tmp_path / "there")
    assert same(tmp_path / "here", tmp_path / "there")


def a_run_has_them_through_kills(federation: Loopback, tmp_path: Path) -> None:
    """Of a method with memories, whose sites see each other's models."""
    unseen("run", *FEDDAG, *in_process(tmp_path), "--out", tmp_path / "whole")
    federation.start("killed", "run", *FEDDAG, *patient(federation), "--out", tmp_path / "broken")
    until_record(tmp_path / "broken", lambda record: True)
    federation.kill("serve", "superlink")  # in the middle of round 2
    federation.kill("south", "site.process")
    federation.kill("north", "supernode")
    until_record(tmp_path / "broken", lambda record: record["round"] == 2)
    federation.kill("killed")
    unseen("run", *FEDDAG, *patient(federation), "--out", tmp_path / "broken", "--resume")
    assert same(tmp_path / "whole", tmp_path / "broken")


def a_run_goes_on_past_faults(federation: Loopback, proxy: Proxy, tmp_path: Path) -> None:
    run = tmp_path / "long"
    terms = ["--data", "all", "--deadline", DEADLINE, "--minimum-clients", 1, *federation.between]
    federation.start("driver", "run", *FEDSB, *terms, "--out", run)
    done = until_record(run, whole)
    done = late(federation, run, done)
    done = full_disk(federation, run, done)
    done = cut(proxy, run, done)
    replayed(federation, tmp_path, done)
    assert federation.processes["driver"].poll() is None


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


def late(federation: Loopback, run: Path, done: int) -> int:
    """A site that works longer than the deadline: left out of that round, its answer does not count, and it is back in the next.

    It is let go once the deadline of a training question has passed, so that it can give its score in that same round.
    """
    process = federation.child("south", "site.process")
    os.kill(process, signal.SIGSTOP)
    time.sleep(DEADLINE + 2)
    os.kill(process, signal.SIGCONT)
    done = until_record(run, left_out("south", f"train: no answer within {DEADLINE:g} s"), done)
    return until_record(run, whole, done)


def full_disk(federation: Loopback, run: Path, done: int) -> int:
    """The kernel takes no more bytes into any file of the site, as on a full disk; then it does again."""
    process = federation.child("south", "site.process")
    before = resource.prlimit(process, resource.RLIMIT_FSIZE)
    resource.prlimit(process, resource.RLIMIT_FSIZE, (0, before[1]))
    done = until_record(run, left_out("south", "failed by the site: the disk: File too large"), done)
    resource.prlimit(process, resource.RLIMIT_FSIZE, before)
    return until_record(run, whole, done)


def cut(proxy: Proxy, run: Path, done: int) -> int:
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


def replayed(federation: Loopback, tmp_path: Path, done: int) -> None:
    """A site that gives an old answer again is left out."""
    federation.processes["south"].terminate()
    federation.ended("south")
    kit, folder = federation.path / "kits/south.kit", tmp_path / "site-south"
    site = SiteSettings(
        str(kit), str(folder), f"folder:{tmp_path / 'data/south'}", size=16, device="cpu", policy=str(tmp_path / "policy.toml")
    )
    with (tmp_path / "south.log").open("ab") as log:
        hostile = [sys.executable, str(Path(__file__).parents[2] / "replaying_site.py"), json.dumps(asdict(site))]
        federation.processes["south"] = subprocess.Popen(hostile, stdout=log, stderr=log, cwd=tmp_path)
    until_record(tmp_path / "long", left_out("south", "train: an answer to another question"), done)
