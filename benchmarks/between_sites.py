"""Runs between real processes on this machine: their bits, what kills do to them, what secure sums cost, and what a site takes at rest.

    python benchmarks/between_sites.py bits [--carrier flower|folder] [METHOD ...]
    python benchmarks/between_sites.py kills [--carrier flower|folder] [--sums] [--kills 20] [--method feddag] [--seed 0]
    python benchmarks/between_sites.py cost [--carrier flower|folder] [--rounds 3] [--times 3] [--width 527]
    python benchmarks/between_sites.py rest [--carrier flower|folder]

Three sites train on styled-digits and a fourth, whose domain is the target, only evaluates. `flower` is `unseen serve` with SuperLink,
SuperNodes and TLS; `folder` is a folder of letters. The outputs are in benchmarks/results/between-*.txt, each under its command.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # of every process: the same bits, and no more threads than cores
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from safetensors.torch import load_file

from loopback import Loopback, same, unseen

SITES, TARGET = ("plain", "textured", "inverted"), "outline"
POLICY = """studies = "by-rule"
most_orders = 100
kinds = ["model", "spectrum", "score", "statistic", "count", "number"]
others_see = ["model", "spectrum"]
fields_that_grow = true
images_per_spectrum = 1
fewest_images = 1
"""
SETTINGS = {
    "feddag": ["batch=32", "width=4", "warmup=1"],
    "fedadg": ["classification_epochs=1", "alignment_epochs=1", "batch=32"],
    "elcfs": ["batch=32"],
    "fedsb": ["budget=2", "batch=16"],
    "fedgca": ["batch=32", "epochs=1", "copies=1"],
}
SUMMABLE = {"feddag": ["aggregation=mean"]}  # its own, sha, looks at single models
VICTIMS = {
    "flower": (
        ("the driver", "driver", None),
        ("the SuperLink", "serve", "superlink"),
        ("the server", "serve", None),
        ("the SuperNode", "site", "supernode"),
        ("the data process", "site", "site.process"),
        ("the site", "site", None),
    ),
    "folder": (("the driver", "driver", None), ("the data process", "site", "site.process"), ("the site", "site", None)),
}


def experiment(method: str, rounds: int, *own: str) -> list[str]:
    """The options of a run, here or between sites."""
    settings = [word for setting in (*SETTINGS[method], *own) for word in ("--set", setting)]
    about = ["--data", "styled-digits", "--target", TARGET, "--network", "small_cnn:width=2", "--device", "cpu", "--rounds", str(rounds)]
    return ["--method", method, *settings, *about]


class Federation(Loopback):
    """Three sites and a target, whose processes can be brought up as a service manager does."""

    def __init__(self, folder: Path, carrier: str) -> None:
        super().__init__(folder, (*SITES, TARGET), letters=carrier == "folder")
        (folder / "policy.toml").write_text(POLICY)
        self._always = (*(["serve"] if carrier == "flower" else []), *SITES, TARGET)

    def bring_up(self) -> None:
        """Start what should be running and is not."""
        for name in self._always:
            process = self.processes.get(name)
            if process is not None and process.poll() is None:
                continue
            if name == "serve":
                self.serve()
            else:
                role = ["--evaluate-only"] if name == TARGET else []
                self.join(name, "--data", "styled-digits", "--domain", name, "--policy", "policy.toml", *role)

    def verify_ledgers(self) -> None:
        for name in (*SITES, TARGET):
            unseen("ledger", "verify", self.folder / f"site-{name}")
        print("ledgers of all sites: whole")


def bits(options: argparse.Namespace, folder: Path) -> bool:
    """Every method, plain and under secure sums, beside the same run in one process."""
    good = True
    federation = Federation(folder, options.carrier)
    federation.bring_up()
    try:
        for method in options.methods or SETTINGS:
            for sums in (False, True):
                name = f"{method}{' under sums' if sums else ''}"
                run = experiment(method, 2, *(SUMMABLE.get(method, []) if sums else []))
                here, there = folder / f"here {name}", folder / f"there {name}"
                if not sums or method in SUMMABLE:
                    unseen("run", *run, "--workers", 1, "-q", "--out", here)
                else:
                    here = folder / f"here {method}"
                began = time.perf_counter()
                federation.run(*run, "--minimum-clients", 3, "--out", there, *(["--secure-sums"] if sums else []))
                seconds = time.perf_counter() - began
                good &= told(name, here, there, sums, seconds)
    finally:
        federation.stop()
    federation.verify_ledgers()
    return good


def told(name: str, here: Path, there: Path, sums: bool, seconds: float) -> bool:
    """Say how two runs compare; whether it is as it should be."""
    missing = [record["missing"] for record in records(there) if record["missing"]]
    if not sums:
        equal = same(here, there)
        print(f"{name:18} records, last and best model have the same bits: {equal} ({seconds:.0f} s for two rounds)", flush=True)
        return equal and not missing
    off = largest_difference(here, there)
    scores = max(abs(a - b) for a, b in zip(scores_of(here), scores_of(there), strict=True))
    about = f"largest difference of a weight {off:.1e}, of a score {scores:.1e}"
    print(f"{name:18} last model: {about} ({seconds:.0f} s for two rounds)", flush=True)
    return off < 1e-2 and not missing


def largest_difference(here: Path, there: Path) -> float:
    """Of the last models' floats; a counter of batches is the mean in a sum, and the largest otherwise."""
    one, other = (load_file(run / "model.safetensors") for run in (here, there))
    assert one.keys() == other.keys()
    return max(float((one[k].double() - other[k].double()).abs().max()) for k in one if one[k].is_floating_point())


def records(run: Path) -> list[dict[str, Any]]:
    file = run / "records.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def scores_of(run: Path) -> list[float]:
    return [score["accuracy"] for record in records(run) for group in ("source", "target") for _, score in sorted(record[group].items())]


class KilledRun:
    """A run whose processes, the driver among them, are killed and brought up again."""

    def __init__(self, federation: Federation, run: list[str]) -> None:
        self.federation, self._run, self.out = federation, run, federation.folder / "broken"

    def bring_up(self) -> None:
        self.federation.bring_up()
        driver = self.federation.processes.get("driver")
        if driver is None or driver.poll() not in (None, 0):
            again = ["--resume"] if (self.out / "run.json").exists() else []
            self.federation.start("driver", "run", *self._run, "--out", self.out, *self.federation.between, *again)

    @property
    def finished(self) -> bool:
        return self.federation.processes["driver"].poll() == 0

    @property
    def rounds(self) -> int:
        file = self.out / "records.jsonl"
        return len(file.read_bytes().splitlines()) if file.exists() else 0

    def wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.finished:
            self.bring_up()
            time.sleep(0.05)

    def until_round(self, number: int, patience: float = 400.0) -> float:
        """Seconds until this round is done."""
        began = time.monotonic()
        while self.rounds < number and not self.finished:
            if time.monotonic() > began + patience:
                raise SystemExit(f"no round {number} after {patience:g} s; the driver said: {self.federation.said('driver')[-2000:]}")
            self.bring_up()
            time.sleep(0.05)
        return time.monotonic() - began


def kills(options: argparse.Namespace, folder: Path) -> bool:
    """Every kind of process in turn, in random order, each at a random moment of a round; the bits are those of the undisturbed run."""
    rounds, rng = 2 * options.kills, random.Random(options.seed)
    federation = Federation(folder, options.carrier)
    run = experiment(options.method, rounds, *(SUMMABLE.get(options.method, []) if options.sums else []))
    between = [*run, "--minimum-clients", "3", *(["--secure-sums"] if options.sums else [])]
    killed, whole = KilledRun(federation, between), folder / "whole"
    try:
        if options.sums:
            federation.bring_up()
            federation.start("undisturbed", "run", *between, "--out", whole, *federation.between)
            assert federation.ended("undisturbed", 1200) == 0, federation.said("undisturbed")[-2000:]
        else:
            unseen("run", *run, "--workers", 1, "-q", "--out", whole)
        began = time.monotonic()
        killed.bring_up()
        killed.until_round(1)
        pace = killed.until_round(2)
        for number, (what, name, child) in enumerate(victims(options.carrier, options.kills, rng), 1):
            killed.wait(rng.uniform(0.0, pace))
            if killed.finished:
                raise SystemExit(f"the run ended after {number - 1} kills")
            who = rng.choice((*SITES, TARGET)) if name == "site" else name
            federation.kill(who, child)
            of = f" of {who}" if name == "site" else ""
            print(f"kill {number:2} at {time.monotonic() - began:6.1f} s, {killed.rounds} rounds done: {what}{of}", flush=True)
            killed.until_round(killed.rounds + 1)
        killed.until_round(rounds)
        federation.ended("driver")
        seconds = time.monotonic() - began
    finally:
        federation.stop()
    equal, numbers = same(whole, killed.out), [record["round"] for record in records(killed.out)]
    print(f"{rounds} rounds in {seconds:.0f} s; each once and in order: {numbers == list(range(1, rounds + 1))}")
    beside = "the undisturbed summed run" if options.sums else "the undisturbed run in one process"
    print(f"records, last and best model have the bits of {beside}: {equal}")
    federation.verify_ledgers()
    return equal


def victims(carrier: str, number: int, rng: random.Random) -> Iterator[tuple[str, str, str | None]]:
    kinds = VICTIMS[carrier]
    while number > 0:
        yield from rng.sample(kinds, len(kinds))[:number]
        number -= len(kinds)


def cost(options: argparse.Namespace, folder: Path) -> bool:
    """Rounds of one step of FedSB with a network of 100 MB, which goes down to three sites and comes back; plain and summed in turn.

    Each turn begins with a round that does not count: a site that turns from one study to another makes its networks anew.
    """
    from unseen.cli.between import carrier_of
    from unseen.experiment import read_experiment
    from unseen.federation.kits import read_federation
    from unseen.federation.server.exchange import Terms
    from unseen.federation.server.proposing import federate

    federation = Federation(folder, options.carrier)
    seconds, work = ({False: list[float](), True: list[float]()} for _ in range(2))
    federation.bring_up()
    try:
        known = read_federation(federation.path)
        way = f"folder:{folder / 'share'}" if options.carrier == "folder" else "flower"
        plain = {"method": "fedsb", "set": {"budget": 1, "batch": 4}, "data": "styled-digits", "target": TARGET, "device": "cpu"}
        plain |= {"network": f"small_cnn:width={options.width}", "rounds": options.times * (options.rounds + 1)}
        experiment = read_experiment(plain)
        with carrier_of(way, known, lambda text: print(f"  {text}", file=sys.stderr)) as carrier:
            runs = {}
            for sums in (False, True):
                (out := folder / f"run {sums}").mkdir()
                run = federate(experiment, known, carrier, Terms(minimum_clients=3), lambda text: print(f"  {text}", file=sys.stderr), sums)
                runs[sums] = CostedRun(run, out)
            for _ in range(options.times):
                for sums in (False, True):
                    runs[sums].round()
                    before = processor_seconds(federation)
                    seconds[sums] += [runs[sums].round() for _ in range(options.rounds)]
                    work[sums].append((processor_seconds(federation) - before) / options.rounds)
                    took = ", ".join(f"{one:.2f}" for one in seconds[sums][-options.rounds :])
                    about = f"{work[sums][-1]:.1f} s of processor time each; load average {os.getloadavg()[0]:.1f}"
                    print(f"{'summed' if sums else 'plain ':6} rounds: {took} s ({about})", flush=True)
        size = runs[False].bytes
        peaks = memory(federation)
    finally:
        federation.stop()
    times = {sums: [statistics.median(seconds[sums][n : n + options.rounds]) for n in range(0, len(seconds[sums]), options.rounds)]
             for sums in seconds}  # fmt: skip
    ratio = statistics.median(summed / plain for plain, summed in zip(times[False], times[True], strict=True))
    plain_time, summed_time = statistics.median(seconds[False]), statistics.median(seconds[True])
    print(f"{size / 1e6:.0f} MB down to and up from each of three sites, over {options.carrier}; medians of {options.times} turns:")
    print(f"plain {plain_time:.2f} s, summed {summed_time:.2f} s a round; ratio of summed to plain within a turn {ratio:.2f}")
    plain_work, summed_work = statistics.median(work[False]), statistics.median(work[True])
    print(f"processor time of all processes: plain {plain_work:.2f} s, summed {summed_work:.2f} s; ratio {summed_work / plain_work:.2f}")
    print("peaks of memory: " + ", ".join(f"{kind} {peak} MB" for kind, peak in peaks.items()))
    return ratio <= 1.2


def rest(options: argparse.Namespace, folder: Path) -> bool:
    """What one site takes while nobody asks it anything: all of its processes, half a minute after it joined."""
    federation = Federation(folder, options.carrier)
    federation.bring_up()
    try:
        for name in (*SITES, TARGET):
            federation.until(name, "joining")
        time.sleep(30.0)
        site = federation.processes[SITES[0]].pid
        resident = {pid: _status(pid, "VmRSS") for pid in (site, *_children(site))}
        before = processor_seconds(federation)
        time.sleep(20.0)
        idle = (processor_seconds(federation) - before) / 20.0
    finally:
        federation.stop()
    parts = ", ".join(f"{'unseen join' if pid == site else 'a process of it'} {size} MB" for pid, size in resident.items())
    print(f"a site at rest over {options.carrier}: {sum(resident.values())} MB ({parts})")
    print(f"processor time of all four sites, and of the server if there is one: {100 * idle:.1f} % of a core")
    return sum(resident.values()) <= 250


def _children(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(entry.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(entry.parent.name))
    return found


class CostedRun:
    """A run of which only the exchanges are of interest: no scores, no records."""

    def __init__(self, run: Any, out: Path) -> None:
        self._method, self._engine = run.world.experiment.method, run.engine(out)
        cohort = self._engine.cohort(0)
        self._state, self._number = self._method.start(run.world.fresh, cohort), 0
        cohort.close()
        self.bytes = sum(tensor.nbytes for tensor in self._method.model(self._state).values())

    def round(self) -> float:
        """Seconds of the next round."""
        self._number += 1
        began, cohort = time.perf_counter(), self._engine.cohort(self._number)
        self._state = self._method.round(self._state, cohort)
        cohort.close()
        assert not cohort.missing, cohort.missing
        return time.perf_counter() - began


def processor_seconds(federation: Federation) -> float:
    """That this process and those of the federation have taken so far, those that they started included."""
    wanted, ticks = {os.getpid(), *(process.pid for process in federation.processes.values())}, 0
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            words = entry.read_text().rpartition(")")[2].split()
            if int(entry.parent.name) in wanted or int(words[1]) in wanted - {os.getpid()}:
                ticks += int(words[11]) + int(words[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def memory(federation: Federation) -> dict[str, int]:
    """Megabytes of each kind of process at its peak."""
    kinds = {"unseen join": (SITES[0], None), "a site's data process": (SITES[0], "site.process")}
    if "serve" in federation.processes:
        kinds |= {"SuperLink": ("serve", "superlink"), "SuperNode": (SITES[0], "supernode")}
    pids = {kind: federation.child(name, child) if child else federation.processes[name].pid for kind, (name, child) in kinds.items()}
    pids["the server's run"] = os.getpid()
    return {kind: _peak(pid) for kind, pid in pids.items()}


def _peak(pid: int) -> int:
    return _status(pid, "VmHWM")


def _status(pid: int, entry: str) -> int:
    """Megabytes, as the system has them."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(lines[entry].split()[0]) // 1024


def main() -> None:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(required=True)
    for work in (bits, kills, cost, rest):
        command = commands.add_parser(work.__name__, help=work.__doc__)
        command.set_defaults(work=work)
        command.add_argument("--carrier", choices=sorted(VICTIMS), default="flower")
        if work is bits:
            command.add_argument("methods", nargs="*")
        elif work is kills:
            command.add_argument("--method", choices=sorted(SETTINGS), default="feddag")
            command.add_argument("--sums", action="store_true")
            command.add_argument("--kills", type=int, default=20)
            command.add_argument("--seed", type=int, default=0)
        elif work is cost:
            command.add_argument("--rounds", type=int, default=3)
            command.add_argument("--times", type=int, default=3)
            command.add_argument("--width", type=int, default=527)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # with all processes
    print(f"$ python benchmarks/between_sites.py {' '.join(sys.argv[1:])}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["UNSEEN_STATE"] = folder  # a benchmark spends nothing of this user's
        good = options.work(options, Path(folder))
    raise SystemExit(0 if good else "not as it should be")


if __name__ == "__main__":
    main()
