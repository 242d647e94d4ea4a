"""The most memory that the server's process takes in a run between sites, with a network of 100 MB and with a tiny one.

    python benchmarks/server_memory.py [--carrier flower|folder] [--rounds 3] [--width 527] [--trace]

Three sites train and a fourth only evaluates, as in between_sites.py, all on this machine. A study is proposed by a process of its own
(a rehearsal trains, which takes more). What counts is the process of `unseen run --study`: VmHWM, as the system has it, plain and under
secure sums. The run with a tiny network shows what Python, torch and the carrier take without any model. `--trace` tells how the
memory moved. The output is in benchmarks/results/server-memory.txt.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from between_sites import TARGET, Federation, _status
from loopback import command

EXPERIMENT = """method = "fedsb"
data = "styled-digits"
target = "{target}"
network = "small_cnn:width={width}"
device = "cpu"
rounds = {rounds}
[set]
budget = 1
batch = 4
"""


def peak(federation: Federation, width: int, rounds: int, sums: bool, trace: bool) -> tuple[int, float]:
    """Megabytes of the server's process at its peak, and megabytes of the model."""
    name = f"{width}{' sums' if sums else ''}"
    file, study, out = (federation.folder / f"{name}.{end}" for end in ("toml", "json", "run"))
    file.write_text(EXPERIMENT.format(target=TARGET, width=width, rounds=rounds))
    between = [*federation.between, "--minimum-clients", "3"]
    how = ["--secure-sums"] if sums else []
    proposed = subprocess.run(command("federation", "propose", file, "--out", study, *how, *between), capture_output=True, text=True)
    assert proposed.returncode == 0, proposed.stdout + proposed.stderr
    federation.start(name, "run", file, "--study", study, "--out", out, *between)
    process, most, last, began = federation.processes.pop(name), 0, 0, time.perf_counter()
    while process.poll() is None:
        try:
            most, now = max(most, _status(process.pid, "VmHWM")), _status(process.pid, "VmRSS")
        except (OSError, KeyError):
            break  # it is ending
        if trace and abs(now - last) > 20:
            last = now
            anonymous = _status(process.pid, "RssAnon")
            print(f"    {time.perf_counter() - began:6.2f} s: {now} MB, of which {anonymous} MB are its own", flush=True)
        time.sleep(0.005)
    assert process.wait() == 0, federation.said(name)[-2000:]
    return most, (out / "model.safetensors").stat().st_size / 1e6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--carrier", choices=("flower", "folder"), default="flower")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--width", type=int, default=527)
    parser.add_argument("--trace", action="store_true")
    options = parser.parse_args()
    print(f"$ python benchmarks/server_memory.py {' '.join(sys.argv[1:])}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["UNSEEN_STATE"] = folder
        federation = Federation(Path(folder), options.carrier)
        federation.bring_up()
        try:
            for sums in (False, True):
                empty, _ = peak(federation, 2, options.rounds, sums, False)
                full, size = peak(federation, options.width, options.rounds, sums, options.trace)
                about = f"{(full - empty) * 2**20 / 1e6 / size:.1f} times the model above a run with a tiny one ({empty} MB)"
                print(
                    f"{'summed' if sums else 'plain'}, over {options.carrier}: {full} MB at its peak, {size:.0f} MB of model; {about}",
                    flush=True,
                )
        finally:
            federation.stop()


if __name__ == "__main__":
    main()
