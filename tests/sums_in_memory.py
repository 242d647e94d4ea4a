"""A secure sum in one process: real keys, sites and server, and whoever is lost at whichever step."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from unseen.federation.sums.context import SumContext
from unseen.federation.sums.server import ServerSum
from unseen.federation.sums.site import SiteSum
from unseen.federation.sums.words import Words

ASKED = hashlib.sha256(b"the question").digest()
KEYS = {f"{number:02d}": Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in range(64)}
BOXES = {f"{number:02d}": bytes([100 + number]) * 32 for number in range(64)}  # private; a real site draws its own for every study


def context_of(sites: int, round_number: int = 1, ask: int = 1, study: str = "5" * 64, may_lose: bool = True) -> SumContext:
    names = [*KEYS][:sites]
    boxes = {n: X25519PrivateKey.from_private_bytes(BOXES[n]).public_key().public_bytes_raw() for n in names}
    keys, counts = {n: KEYS[n].public_key() for n in names}, {n: 10 + int(n) for n in names}
    return SumContext(study, round_number, ask, keys, boxes, counts, may_lose)


def site_sum(context: SumContext, name: str, state: bytes | None = None) -> SiteSum:
    return SiteSum(context, name, KEYS[name], BOXES[name], state)


def words_of(site: str, wide: int = 2, narrow: int = 3, layout: str = "layout") -> Words:
    rng = np.random.default_rng(int(site))
    return Words(layout, rng.integers(0, 2**64, wide, dtype=np.uint64), rng.integers(0, 2**32, narrow, dtype=np.uint32))


def added(sites: list[str]) -> tuple[list[int], list[int]]:
    """The sum of their words, in Python's own integers."""
    words = [words_of(site) for site in sites]
    wide = [sum(int(one.wide[at]) for one in words) % 2**64 for at in range(2)]
    return wide, [sum(int(one.narrow[at]) for one in words) % 2**32 for at in range(3)]


def kept_of(server: ServerSum) -> tuple[bytes, bytes]:
    """What a server that is restarted now finds on its disk."""
    return server.to_bytes(), b"".join(server.words_in_parts()) if server.step > 2 else b""


class SumInMemory:
    """`lost` says from which step on a site does not answer; `restart` makes server and sites anew from their bytes before every call."""

    def __init__(self, sites: int, lost: Mapping[str, int] | None = None, restart: bool = False, may_lose: bool = True) -> None:
        self.context = context_of(sites, may_lose=may_lose)
        self.lost, self.restart = dict(lost or {}), restart
        self.sites = {name: site_sum(self.context, name) for name in self.context.sites}
        self.server = ServerSum(self.context, ASKED)
        self.words = {name: words_of(name) for name in self.sites}
        self.asked: dict[tuple[str, int], bytes] = {}
        self.answers: dict[tuple[str, int], bytes] = {}

    def site(self, name: str) -> SiteSum:
        if self.restart:
            self.sites[name] = site_sum(self.context, name, self.sites[name].to_bytes())
        return self.sites[name]

    def answer(self, name: str, step: int, question: bytes) -> bytes:
        site = self.site(name)
        if step == 1:
            answer = site.keys()
        elif step == 2:
            site.take_keys(question, ASKED)
            answer = self.site(name).mask(self.words[name].copy())
        else:
            answer = {3: site.consent, 4: site.unmask}[step](question)
        self.asked[name, step], self.answers[name, step] = question, answer
        return answer

    def one_step(self) -> None:
        step = self.server.step
        for name, question in self.server.questions().items():
            if self.lost.get(name, 9) <= step:
                self.server.miss(name, "no answer in time")
            else:
                self.server.take(name, self.answer(name, step, question))
        self.server.advance()
        if self.restart:
            self.server = ServerSum(self.context, ASKED, *kept_of(self.server))

    def run(self, until: int = 4) -> ServerSum:
        while self.server.step <= until:
            self.one_step()
        return self.server

    @property
    def total(self) -> tuple[list[int], list[int]]:
        return self.server.result.wide.tolist(), self.server.result.narrow.tolist()
