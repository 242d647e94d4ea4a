"""What a secure sum costs: 100 MB of float32 weights at three sites, step by step, on one core, against a plain answer.

    python benchmarks/sums.py [MILLIONS OF NUMBERS] [SITES]

The sites' work runs one after another; what is told is the processor's time of one site, the median over all of them. A plain answer
is written to bytes at the site, read at the server and added to a mean there. The mean by way of the sum is compared with the plain
one. The last line is `ratio N`: seconds of a summed answer, at a site and at the server together, over those of a plain one.
"""

from __future__ import annotations

import hashlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from unseen.federation.sums.context import STEPS, SumContext
from unseen.federation.sums.encoding import decode_mean, encode_answer, rounding
from unseen.federation.sums.server import DONE, ServerSum
from unseen.federation.sums.site import SiteSum
from unseen.ops.averaging import RunningMean
from unseen.parts.combining import Down, Up
from unseen.state import Entries

TENSORS = 40


def timed(seconds: list[float], work: Callable[[], Any]) -> Any:
    began = time.process_time()
    value = work()
    seconds.append(time.process_time() - began)
    return value


def main(millions: float = 25.0, number: int = 3) -> None:
    torch.set_num_threads(1)
    names = [f"site{n}" for n in range(number)]
    size = int(millions * 1e6) // TENSORS
    rng = torch.Generator().manual_seed(0)
    base = {f"layer{n}.weight": torch.randn(size, generator=rng) * 0.05 for n in range(TENSORS)}
    entries = Entries({}, frozenset(base), frozenset(), frozenset())
    down = Down(model=base)
    asked = hashlib.sha256(down.to_bytes()).digest()
    keys = {name: Ed25519PrivateKey.generate() for name in names}
    counts = {name: 100 * (n + 1) for n, name in enumerate(names)}
    boxes = {name: X25519PrivateKey.generate() for name in names}
    public = {name: box.public_key().public_bytes_raw() for name, box in boxes.items()}
    context = SumContext("0" * 64, 1, 1, {name: key.public_key() for name, key in keys.items()}, public, counts)
    sites = {name: SiteSum(context, name, keys[name], boxes[name].private_bytes_raw()) for name in names}
    server, plain = ServerSum(context, asked), RunningMean()
    at_site: dict[str, list[float]] = {}
    at_server: dict[str, list[float]] = {}
    sent = {"plain": 0, "summed": 0, "other steps": 0}

    def up_of(name: str) -> Up:
        change = torch.Generator().manual_seed(names.index(name))
        trained = {key: value + 0.01 * torch.randn(size, generator=change) for key, value in base.items()}
        return Up(model=trained, samples=counts[name], perturbed=None)

    def answer(name: str, question: bytes) -> bytes:
        site = sites[name]
        if server.step != 2:
            return {1: lambda _: site.keys(), 3: site.consent, 4: site.unmask}[server.step](question)
        up = up_of(name)
        data = timed(at_site.setdefault("plain answer", []), up.to_bytes)
        sent["plain"] = len(data)
        timed(at_server.setdefault("plain answer", []), lambda: plain.add(Up.from_bytes(data).model, counts[name]))
        site.take_keys(question, asked)
        words = timed(at_site.setdefault("fixed point", []), lambda: encode_answer(up, down, context, name, lambda _: entries))
        masked: bytes = timed(at_site.setdefault("masks", []), lambda: site.mask(words))
        sent["summed"] = len(masked)
        return masked

    while server.step != DONE:
        step = STEPS[server.step]
        for name, question in server.questions().items():
            if server.step == 2:
                told = answer(name, question)
            else:
                told = timed(at_site.setdefault(step, []), lambda n=name, q=question: answer(n, q))  # type: ignore[misc]
                sent["other steps"] += len(told) // number
            timed(at_server.setdefault(step, []), lambda n=name, t=told: server.take(n, t))  # type: ignore[misc]
        timed(at_server.setdefault(f"end of {step}", []), server.advance)
    mean = timed(at_server.setdefault("mean", []), lambda: decode_mean(server.result, Up, down, context, number))
    wanted = timed(at_server.setdefault("plain mean", []), plain.result)
    print(f"{number} sites, {len(base) * size / 1e6:.1f} million float32 weights, one core, torch {torch.__version__}")
    print(f"bytes of one answer: plain {sent['plain']:,}, summed {sent['summed']:,}; all other steps together {sent['other steps']:,}")
    print(
        "one site, seconds: " + ", ".join(f"{what} {statistics.median(of):.3f}" for what, of in at_site.items() if what != "plain answer")
    )
    print("server, seconds in all: " + ", ".join(f"{what} {sum(of):.3f}" for what, of in at_server.items() if not what.startswith("plain")))
    site = sum(statistics.median(of) for what, of in at_site.items() if what != "plain answer")
    whole = sum(sum(of) for what, of in at_server.items() if not what.startswith("plain"))
    plain_site, plain_server = statistics.median(at_site["plain answer"]), sum(at_server["plain answer"]) + sum(at_server["plain mean"])
    print(f"a summed answer: {site:.2f} s at a site, {whole:.2f} s at the server for all sites")
    print(f"a plain answer:  {plain_site:.2f} s at a site, {plain_server:.2f} s at the server for all sites")
    off = max(float((mean.model[key].double() - value.double()).abs().max()) for key, value in wanted.items())
    total = sum(counts.values())
    print(f"largest difference from the plain mean: {off:.1e}; stated: {rounding(number, total, total):.1e} and a last bit of float32")
    print(f"ratio {(site + whole) / (plain_site + plain_server):.2f}")


if __name__ == "__main__":
    main(*map(float, sys.argv[1:2]), *map(int, sys.argv[2:3]))
