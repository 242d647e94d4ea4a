"""A hostile site, `python replaying_site.py SITE`: its first answer to a training question answers every later question again."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from unseen.federation.flower.node import Node
from unseen.federation.kits import open_kit
from unseen.federation.messages import SignedMessage
from unseen.federation.site.join import SiteProcess, SiteSettings


def main() -> None:
    site = SiteSettings(**json.loads(sys.argv[1]))
    process, first = SiteProcess(site), list[SignedMessage]()

    def answer(message: SignedMessage) -> SignedMessage:
        if not first:
            reply = process.answer(message)
            if json.loads(message.header).get("ask") == 1:
                first.append(reply)
            return reply
        return first[0]

    Node(open_kit(Path(site.kit), Path(site.folder)), None, print).serve(answer)


if __name__ == "__main__":
    main()
