"""Every paper's method between machines and in one process: the same weights and records, bit for bit.

    python benchmarks/same_bits.py [METHOD ...]

Three sites and a target on this machine, with SuperLink, SuperNodes and TLS; two rounds each.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from loopback import Loopback, same, unseen

DOMAINS = ("plain", "textured", "inverted", "outline")
TARGET = "outline"
METHODS = {
    "fedsb": ["budget=2", "batch=16"],
    "fedadg": ["classification_epochs=1", "alignment_epochs=1", "batch=32"],
    "elcfs": ["batch=32"],
    "feddag": ["batch=32", "width=4", "warmup=1"],
    "fedgca": ["batch=32", "epochs=1", "copies=1"],
}


def main() -> None:
    print(f"$ python benchmarks/same_bits.py {' '.join(sys.argv[1:])}".rstrip())
    different = []
    with tempfile.TemporaryDirectory() as folder:
        federation = Loopback(Path(folder), DOMAINS)
        (federation.folder / "policy.toml").write_text(
            'kinds = ["model", "spectrum", "score", "statistic", "count"]\nfields_that_grow = true\n'
        )
        federation.serve()
        for name in DOMAINS:
            role = ["--evaluate-only"] if name == TARGET else ["--policy", "policy.toml"]
            federation.join(name, "--data", "styled-digits", "--domain", name, *role)
        try:
            for method in sys.argv[1:] or METHODS:
                own = [
                    "--method",
                    method,
                    "--data",
                    "styled-digits",
                    "--target",
                    TARGET,
                    "--network",
                    "small_cnn:width=2",
                    "--device",
                    "cpu",
                ]
                own += ["--rounds", "2", *(word for setting in METHODS[method] for word in ("--set", setting))]
                unseen("run", *own, "--workers", 1, "-q", "--out", federation.folder / f"here-{method}")
                began = time.perf_counter()
                federation.run(*own, "--minimum-clients", 3, "--out", federation.folder / f"there-{method}")
                equal = same(federation.folder / f"here-{method}", federation.folder / f"there-{method}")
                print(f"{method:7} the same bits: {equal} ({time.perf_counter() - began:.0f} s for two rounds)", flush=True)
                different += [] if equal else [method]
        finally:
            federation.stop()
    raise SystemExit(f"different: {', '.join(different)}" if different else 0)


if __name__ == "__main__":
    main()
