"""A real federation on this machine: SuperLink, SuperNodes and TLS; the bits of the in-process engine, kills included."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from loopback import PATIENCE, Loopback, same, unseen
from unseen.federation.site.ledger import read_ledger

pytest.importorskip("flwr")

DOMAINS = ("plain", "textured", "inverted", "outline")
TARGET = "outline"
EVERYTHING = 'kinds = ["model", "spectrum", "score", "statistic", "count"]\nfields_that_grow = true\n'
COMMON = ["--data", "styled-digits", "--target", TARGET, "--network", "small_cnn:width=2", "--device", "cpu"]
RUNS = {
    "fedsb": ["--set", "budget=2", "--set", "batch=16"],
    "elcfs": ["--set", "batch=32"],
    "feddag": ["--set", "batch=32", "--set", "width=4", "--set", "warmup=1"],
}


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Loopback]:
    made = Loopback(tmp_path, DOMAINS)
    (tmp_path / "policy.toml").write_text(EVERYTHING)
    made.serve()
    for name in DOMAINS:
        made.join(
            name, "--data", "styled-digits", "--domain", name, *(["--evaluate-only"] if name == TARGET else ["--policy", "policy.toml"])
        )
    try:
        yield made
    finally:
        made.stop()


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks processes up in /proc")
def test_the_bits_of_the_in_process_engine_and_kills(federation: Loopback, tmp_path: Path) -> None:
    patient = ["--deadline", PATIENCE, "--minimum-clients", 3]
    for name, own in RUNS.items():
        settings = ["--method", name, *COMMON, *own, "--rounds", 2]
        unseen("run", *settings, "--workers", 1, "-q", "--out", tmp_path / f"here-{name}")
        federation.run(*settings, "--out", tmp_path / f"there-{name}", *patient)
        assert same(tmp_path / f"here-{name}", tmp_path / f"there-{name}"), name

    broken = ["--method", "feddag", *COMMON, *RUNS["feddag"], "--rounds", 4]
    unseen("run", *broken, "--workers", 1, "-q", "--out", tmp_path / "whole")
    federation.start("driver", "run", *broken, "--out", tmp_path / "broken", *patient, *federation.between)
    federation.until("driver", "round 1/4")
    federation.kill("serve", "superlink")  # in the middle of round 2
    federation.kill("textured", "site.process")
    federation.until("driver", "round 2/4")
    federation.kill("driver")
    federation.kill("plain", "supernode")
    federation.run(*broken, "--out", tmp_path / "broken", *patient, "--resume")
    assert same(tmp_path / "whole", tmp_path / "broken")

    for name in DOMAINS:
        unseen("ledger", "verify", tmp_path / f"site-{name}")
        secret = [p for p in (tmp_path / f"site-{name}").rglob("*") if p.is_file() and p.stat().st_mode & 0o077]
        assert not secret, f"others can read {secret}"
    left = {entry["task"] for entry in read_ledger(tmp_path / f"site-{TARGET}" / "ledger.jsonl")}
    assert left == {"hello", "scoring.score"}
