"""What exchanges between machines cost beyond the work itself: three sites on this machine, SuperLink, SuperNodes and TLS.

    python benchmarks/flower.py [--exchanges 8] [--rounds 3] [--width 527]

First empty exchanges (three sites are asked for their card); then rounds of FedSB with a network of 100 MB (width 527), which travels
down to each site and back, beside the same rounds in one process; the memory of every process at rest and at its peak.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from loopback import Loopback, command, same
from unseen.federation.flower.link import FlowerCarrier
from unseen.federation.kits import Federation, read_federation
from unseen.federation.messages import Message, sign

SITES = ("plain", "textured", "inverted")
TARGET = "outline"
PROCESSES = {
    "server: SuperLink": ("serve", "superlink"),
    "server: unseen serve": ("serve", None),
    "site: SuperNode": ("plain", "supernode"),
    "site: unseen join": ("plain", None),
    "site: process": ("plain", "site.process"),
}


def memory(federation: Loopback) -> dict[str, tuple[int, int]]:
    """Megabytes of each kind of process: now, and at its peak."""
    found = {}
    for kind, (name, child) in PROCESSES.items():
        pid = federation.child(name, child) if child else federation.processes[name].pid
        lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        found[kind] = (int(lines["VmRSS"].split()[0]) // 1024, int(lines["VmHWM"].split()[0]) // 1024)
    return found


def ask(federation: Federation, carrier: FlowerCarrier) -> float:
    """Seconds of an exchange without work."""
    messages = {}
    for site in SITES:
        header = {"federation": federation.id, "to": site, "nonce": secrets.token_hex(16), "run": "", "task": "hello"}
        messages[site] = sign(Message({**header, "seed": 0, "validation": 0.1}), federation.signing, "question")
    began = time.perf_counter()
    for site, answer in carrier.exchange(messages, 300.0):
        if isinstance(answer, str):
            raise SystemExit(f"{site}: {answer}")
    return time.perf_counter() - began


def empty_exchanges(federation: Loopback, number: int) -> None:
    federation = read_federation(federation.path)
    carrier = FlowerCarrier(federation)
    try:
        began = time.perf_counter()
        ask(federation, carrier)
        print(f"until all three answered: {time.perf_counter() - began:.1f} s after their commands; load average {os.getloadavg()[0]:.1f}")
        seconds = [ask(federation, carrier) for _ in range(number)]
    finally:
        carrier.close()
    print(f"an empty exchange with three sites: median {statistics.median(seconds):.2f} s, from {min(seconds):.2f} to {max(seconds):.2f}")


def drive(*arguments: object) -> int:
    """A run in a process of its own; its peak in megabytes."""
    process = subprocess.Popen(command("run", *arguments), stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"the run ended with status {status}")
    return usage.ru_maxrss // 1024


def large_rounds(federation: Loopback, rounds: int, width: int) -> None:
    own = ["--method", "fedsb", "--set", "budget=1", "--set", "batch=4", "--data", "styled-digits", "--target", TARGET, "--device", "cpu"]
    own += ["--network", f"small_cnn:width={width}", "--rounds", str(rounds), "-q"]
    here, there = federation.folder / "here", federation.folder / "there"
    peak_here = drive(*own, "--workers", 1, "--out", here)
    peak_there = drive(*own, "--minimum-clients", 3, "--out", there, *federation.between)
    size = (there / "model.safetensors").stat().st_size / 1e6
    print(f"a network of {size:.0f} MB, {rounds} rounds of FedSB; the same bits as in one process: {same(here, there)}")
    for what, ways in (("train", "down to and up from three sites"), ("score", "down to three sites and the target")):
        took = {run: statistics.median(_seconds(run, what)) for run in (here, there)}
        beyond = took[there] - took[here]
        print(
            f"  {what}: {size:.0f} MB {ways}: median {took[there]:.1f} s; the work alone, one client after another: {took[here]:.1f} s",
            end="",
        )
        print(f"; beyond it {beyond:.1f} s")
    print(f"  peak of unseen run at the server: {peak_there} MB (in one process, with the clients: {peak_here} MB)")


def _seconds(run: Path, what: str) -> list[float]:
    """The first round also makes networks."""
    return [json.loads(line)[what] for line in (run / "timings.jsonl").read_text().splitlines()[1:]]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--exchanges", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--width", type=int, default=527)
    options = parser.parse_args()
    print(f"$ python benchmarks/flower.py {' '.join(sys.argv[1:])}".rstrip())
    with tempfile.TemporaryDirectory() as folder:
        federation = Loopback(Path(folder), (*SITES, TARGET))
        federation.serve()
        for site in SITES:
            federation.join(site, "--data", "styled-digits", "--domain", site)
        try:
            empty_exchanges(federation, options.exchanges)
            at_rest = memory(federation)
            federation.join(TARGET, "--data", "styled-digits", "--domain", TARGET, "--evaluate-only")
            large_rounds(federation, options.rounds, options.width)
            peaks = memory(federation)
        finally:
            federation.stop()
    for kind, (now, _) in at_rest.items():
        print(f"  {kind}: {now} MB at rest, {peaks[kind][1]} MB at its peak")
    site = sum(now for kind, (now, _) in at_rest.items() if kind.startswith("site"))
    print(f"a site's processes at rest, before any model: {site} MB together (data of {SITES[0]} included)")


if __name__ == "__main__":
    main()
