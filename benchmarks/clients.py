"""Many clients: peak memory and time per client, for 10 to 1,000 clients of a small CNN over the same 20,000 images.

    python benchmarks/clients.py

Each number of clients runs in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time

COUNTS = (10, 100, 1000)


def one(clients: int) -> None:
    import numpy as np
    import torch

    import unseen
    from unseen import Classification, Domain, DomainDataset, FedAvg

    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (20000, 3, 16, 16), dtype=np.uint8)
    labels = rng.integers(0, 5, 20000)
    data = DomainDataset("many", Classification(tuple("abcde")), (Domain("a", images, labels), Domain("b", images[:50], labels[:50])))
    rounds = max(2, 300 // clients)
    began = time.perf_counter()
    unseen.run(FedAvg(steps=2, batch=16), data, "b", network="small_cnn", partition="split", clients=clients, rounds=rounds)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"clients": clients, "rounds": rounds, "seconds": seconds, "peak_mb": peak}))


def main() -> None:
    rows = []
    for clients in COUNTS:
        out = subprocess.run([sys.executable, __file__, str(clients)], check=True, capture_output=True, text=True).stdout
        rows.append(json.loads(out))
        row = rows[-1]
        per_task = 1e3 * row["seconds"] / row["rounds"] / clients
        print(
            f"{clients:5d} clients: peak {row['peak_mb']:6.0f} MB, {per_task:6.2f} ms a client and round (training and scoring)", flush=True
        )
    print(f"memory, {COUNTS[-1]} clients against {COUNTS[0]}: ratio {rows[-1]['peak_mb'] / rows[0]['peak_mb']:.2f}")
    first, last = (row["seconds"] / row["rounds"] / row["clients"] for row in (rows[0], rows[-1]))
    print(f"time a client and round, {COUNTS[-1]} clients against {COUNTS[0]}: ratio {last / first:.2f}")


if __name__ == "__main__":
    one(int(sys.argv[1])) if len(sys.argv) > 1 else main()
