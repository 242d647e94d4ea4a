"""Kills at random moments, of every kind of process of a federation; the run must end with the bits of the undisturbed one.

    python benchmarks/kills.py [--kills 20] [--seed 0] [--rounds 0] [--method feddag]

SIGKILL only. SuperLink, SuperNode and a site's process are started again by the process that runs them; `unseen serve`,
`unseen join` and `unseen run --resume` are started again by this script, as a service manager would. Three sites must answer for a
round to count.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from loopback import Loopback, unseen

DOMAINS = ("plain", "textured", "inverted", "outline")
TARGET = "outline"
VICTIMS = (
    ("the driver", "driver", None),
    ("the SuperLink", "serve", "superlink"),
    ("the server", "serve", None),
    ("a SuperNode", "site", "supernode"),
    ("a site's process", "site", "site.process"),
    ("a site", "site", None),
)
OWN = {"feddag": ["width=4", "warmup=1", "batch=32"], "fedsb": ["budget=2", "batch=16"], "elcfs": ["batch=32"]}


class RecoveringFederation(Loopback):
    """A federation whose processes come back."""

    def __init__(self, folder: Path, run: list[str]) -> None:
        super().__init__(folder, DOMAINS)
        (folder / "policy.toml").write_text('kinds = ["model", "spectrum", "score", "statistic", "count"]\nfields_that_grow = true\n')
        self._run = run

    def bring_up(self) -> None:
        """Start what is not running, but for a driver that has finished."""
        for name in ("serve", *DOMAINS, "driver"):
            process = self.processes.get(name)
            if process is not None and (process.poll() is None or (name == "driver" and process.returncode == 0)):
                continue
            if name == "serve":
                self.serve()
            elif name == "driver":
                again = ["--resume"] if (self.folder / "broken/run.json").exists() else []
                self.start("driver", "run", *self._run, "--out", self.folder / "broken", "--minimum-clients", 3, *again, *self.between)
            else:
                role = ["--evaluate-only"] if name == TARGET else ["--policy", "policy.toml"]
                self.join(name, "--data", "styled-digits", "--domain", name, *role)

    @property
    def finished(self) -> bool:
        return self.processes["driver"].poll() == 0

    @property
    def rounds(self) -> int:
        file = self.folder / "broken/records.jsonl"
        return len(file.read_bytes().splitlines()) if file.exists() else 0


def wait(federation: RecoveringFederation, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and not federation.finished:
        federation.bring_up()
        time.sleep(0.2)


def until_round(federation: RecoveringFederation, number: int, patience: float = 300.0) -> None:
    end = time.monotonic() + patience
    while federation.rounds < number and not federation.finished:
        if time.monotonic() > end:
            raise SystemExit(f"no round {number} after {patience:g} s; the driver said: {federation.said('driver')[-1000:]}")
        federation.bring_up()
        time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=0, help="0: one more than kills")
    parser.add_argument("--method", choices=sorted(OWN), default="feddag")
    options = parser.parse_args()
    rounds = options.rounds or options.kills + 1
    rng = random.Random(options.seed)
    settings = [word for setting in OWN[options.method] for word in ("--set", setting)]
    run = ["--method", options.method, *settings, "--data", "styled-digits", "--target", TARGET]
    run += ["--network", "small_cnn:width=2", "--device", "cpu", "--rounds", str(rounds)]
    print(f"$ python benchmarks/kills.py {' '.join(sys.argv[1:])}".rstrip())
    with tempfile.TemporaryDirectory() as folder:
        federation = RecoveringFederation(Path(folder), run)
        unseen("run", *run, "--workers", 1, "-q", "--out", federation.folder / "whole")
        began = time.monotonic()
        try:
            kill_again_and_again(federation, options.kills, rng, began)
            until_round(federation, rounds)
            federation.ended("driver")
        finally:
            federation.stop()
        verdict(federation, rounds, time.monotonic() - began)


def kill_again_and_again(federation: RecoveringFederation, kills: int, rng: random.Random, began: float) -> None:
    """Every kind of process in turn, in random order, each at a random moment of the round that follows the last one's recovery."""
    victims = [victim for n in range(-(-kills // len(VICTIMS))) for victim in rng.sample(VICTIMS, len(VICTIMS))][:kills]
    federation.bring_up()
    until_round(federation, 1)
    for number, (what, name, child) in enumerate(victims, 1):
        wait(federation, rng.uniform(0.0, 4.0))
        if federation.finished:
            raise SystemExit(f"the run ended after {number - 1} kills; give it more --rounds")
        who = rng.choice(DOMAINS) if name == "site" else name
        federation.kill(who, child)
        of = f" of {who}" if name == "site" else ""
        print(f"kill {number:2} at {time.monotonic() - began:6.1f} s, {federation.rounds} rounds done: {what}{of}", flush=True)
        until_round(federation, federation.rounds + 1)


def verdict(federation: RecoveringFederation, rounds: int, seconds: float) -> None:
    whole, broken = federation.folder / "whole", federation.folder / "broken"
    equal = {file: (whole / file).read_bytes() == (broken / file).read_bytes() for file in ("model.safetensors", "records.jsonl")}
    numbers = [json.loads(line)["round"] for line in (broken / "records.jsonl").read_text().splitlines()]
    print(f"{rounds} rounds in {seconds:.0f} s; each once and in order: {numbers == list(range(1, rounds + 1))}")
    print(f"last model equal to the undisturbed run's, bit for bit: {equal['model.safetensors']}; records: {equal['records.jsonl']}")
    for name in DOMAINS:
        unseen("ledger", "verify", federation.folder / f"site-{name}")
    print("ledgers of all sites: whole")
    if not all(equal.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
