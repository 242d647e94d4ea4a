"""What an exchange between machines costs beyond the work itself: three sites on this machine, SuperLink, SuperNodes and TLS.

    python benchmarks/flower.py [--megabytes 0 100] [--exchanges 5]

Each exchange asks three sites for their card, and carries a payload of the given size to each of them.
"""

from __future__ import annotations

import argparse
import os
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from unseen.engines.flower.link import FlowerPost
from unseen.federation.folder import init
from unseen.federation.letters import Letter, seal

SITES = ("plain", "textured", "inverted")


def memory() -> dict[str, int]:
    """Megabytes by kind of process, the largest of each."""
    kinds = ("process superlink", "process supernode", "federation.worker", "unseen join")
    found: dict[str, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            peak = next(line for line in (entry / "status").read_text().splitlines() if line.startswith("VmRSS"))
        except (OSError, StopIteration):
            continue
        for kind in kinds:
            if kind in words and "-m unseen" in words:
                found[kind] = max(found.get(kind, 0), int(peak.split()[1]) // 1024)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, nargs="+", default=[0])
    parser.add_argument("--exchanges", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        path = Path(folder) / "federation"
        federation = init(path, "localhost", SITES, port)
        unseen = [sys.executable, "-m", "unseen"]
        log = (Path(folder) / "log").open("wb")
        jobs = [subprocess.Popen([*unseen, "serve", "--dir", str(path), "--host", "127.0.0.1"], stdout=log, stderr=log)]
        for site in SITES:
            own = ["--data", "styled-digits", "--domain", site, "--dir", f"{folder}/{site}", "--device", "cpu"]
            jobs.append(subprocess.Popen([*unseen, "join", str(path / "kits" / f"{site}.kit"), *own], stdout=log, stderr=log))
        post = FlowerPost(federation)
        try:
            began = time.perf_counter()
            ask(federation, post, 0)
            print(f"until all three answered: {time.perf_counter() - began:.1f} s; load average {os.getloadavg()[0]:.1f}")
            for size in options.megabytes:
                seconds = [ask(federation, post, size) for _ in range(options.exchanges)]
                spread = f"median {statistics.median(seconds):.2f} s, from {min(seconds):.2f} to {max(seconds):.2f}"
                print(f"{size} MB to each of three sites: {spread}; memory in MB {memory()}", flush=True)
        finally:
            post.close()
            for job in jobs:
                job.terminate()
            for job in jobs:
                job.wait()


def ask(federation, post, megabytes: int) -> float:  # type: ignore[no-untyped-def]
    payload = secrets.token_bytes(megabytes * 10**6)
    letters = {}
    for site in SITES:
        header = {"federation": federation.id, "to": site, "nonce": secrets.token_hex(16), "run": "", "task": "hello"}
        letters[site] = seal(Letter({**header, "seed": 0, "validation": 0.1}, payload), federation.signing, "question")
    began = time.perf_counter()
    answers = post.exchange(letters, 300.0)
    if any(isinstance(answer, str) for answer in answers.values()):
        raise SystemExit(f"no answer: {answers}")
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
