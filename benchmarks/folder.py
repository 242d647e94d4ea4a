"""Letters of 100 MB through a folder: how long one takes to write (encrypted, on the disk) and to read (decrypted, checked).

python benchmarks/folder.py [MEGABYTES] > benchmarks/results/folder.txt
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from unseen.federation.folder.carrier import FolderCarrier
from unseen.federation.folder.site import SiteLetters
from unseen.federation.kits import init, open_kit
from unseen.federation.messages import Message, SignedMessage, open_message, sign

MEGABYTES = int(sys.argv[1]) if len(sys.argv) > 1 else 100
REPEATS = 5


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        home, share = Path(place), Path(place) / "share"
        share.mkdir()
        federation = init(home / "server", "localhost", ["north"])
        kit = open_kit(federation.path / "kits/north.kit", home / "north")
        seconds: dict[str, list[float]] = {}
        for number in range(REPEATS):
            once(federation, kit, share, os.urandom(MEGABYTES * 10**6), number, seconds)
    print(f"letters of {MEGABYTES} MB, {REPEATS} times, one thread; seconds, least to most")
    for what, values in seconds.items():
        print(f"{what:<60}{min(values):7.2f} {max(values):7.2f}")


def once(federation, kit, share: Path, payload: bytes, number: int, seconds: dict[str, list[float]]) -> None:
    def timed(what: str, began: float) -> float:
        seconds.setdefault(what, []).append(time.perf_counter() - began)
        return time.perf_counter()

    carrier = FolderCarrier(federation, share)
    clock = time.perf_counter()
    question = sign(Message({"round": number}, payload), federation.signing, "question")
    clock = timed("server: sign a question", clock)
    assert dict(carrier.exchange({"north": question}, 0.0))["north"] == "no answer within 0 s"
    clock = timed("server: encrypt it, write it, on the disk", clock)

    def answer(asked: SignedMessage) -> SignedMessage:
        nonlocal clock
        clock = timed("site: read and decrypt it", clock)
        assert open_message(asked, kit.server_key, "question", 2**31 - 1).payload == payload
        reply = sign(Message({"round": number}, payload), kit.signing, "answer")
        clock = timed("site: check its signature, sign an answer of that size", clock)
        return reply

    assert SiteLetters(kit, share, answer, print).look()
    clock = timed("site: encrypt it, write it, on the disk", clock)
    ((_, reply),) = carrier.exchange({"north": question}, 0.0)
    clock = timed("server: read and decrypt it", clock)
    assert isinstance(reply, SignedMessage) and reply.payload == payload
    open_message(reply, federation.public_key("north"), "answer", 2**31 - 1)
    timed("server: check its signature", clock)
    carrier.close()


if __name__ == "__main__":
    main()
