"""A hostile site, `python replaying_site.py SITE`: its first answer to a training question answers every later question again."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from unseen.engines.flower.node import Node
from unseen.federation.folder import open_kit
from unseen.federation.join import Site, Worker
from unseen.federation.letters import Sealed


def main() -> None:
    site = Site(**json.loads(sys.argv[1]))
    worker, first = Worker(site), list[Sealed]()

    def answer(letter: Sealed) -> Sealed:
        if not first:
            reply = worker.answer(letter)
            if json.loads(letter.header)["task"] == "train":
                first.append(reply)
            return reply
        return first[0]

    Node(open_kit(Path(site.kit), Path(site.folder)), None, print).serve(answer)


if __name__ == "__main__":
    main()
