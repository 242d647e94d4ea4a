"""What commands between machines share: who carries the messages, and how long is waited for answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unseen.federation.activity import Event, Observer
    from unseen.federation.kits import Federation
    from unseen.federation.server.exchange import Carrier, Terms
    from unseen.runs.watch import Within

__all__ = ["carrier_of", "needs_cryptography", "needs_flower", "steps_of_sums", "terms_of"]


def needs_flower() -> None:
    _needs("flwr", "cryptography")


def needs_cryptography() -> None:
    _needs("cryptography")


def _needs(*packages: str) -> None:
    from importlib.util import find_spec

    from unseen.errors import BadInput

    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise BadInput(f"{' and '.join(missing)} is not installed; run: pip install 'unseen[flower]'")


@contextmanager
def carrier_of(text: str, federation: Federation, say: Callable[[str], None]) -> Iterator[Carrier]:
    """`flower`, or `folder:PATH`."""
    needs_cryptography()
    from unseen.federation.folder.carrier import FolderCarrier
    from unseen.federation.folder.place import parse_carrier

    folder = parse_carrier(text)
    if folder is not None:
        with closing(FolderCarrier(federation, folder, say)) as by_files:
            yield by_files
        return
    needs_flower()
    from unseen.federation.flower.link import FlowerCarrier

    with closing(FlowerCarrier(federation, say=say)) as by_wire:
        yield by_wire


def steps_of_sums(within: Callable[[Within], None]) -> Observer:
    """Shows how far each step of a secure sum has come. Of plain questions the engine tells by itself."""
    waiting: set[str] = set()
    clients: set[str] = set()

    def take(event: Event) -> None:
        from unseen.runs.watch import Within

        if not event.step or event.round is None:
            return
        if event.kind == "asked":
            if not waiting:
                clients.clear()
            waiting.add(event.site)
            clients.add(event.site)
        else:
            waiting.discard(event.site)
        within(Within(event.round, event.task, len(clients) - len(waiting), len(clients)))

    return take


def terms_of(deadline: object, minimum_clients: object) -> Terms:
    from unseen.errors import BadInput
    from unseen.federation.server.exchange import Terms

    if not isinstance(deadline, int | float) or not deadline > 0 or not isinstance(minimum_clients, int) or minimum_clients < 1:
        raise BadInput(f"deadline is {deadline!r} and minimum_clients {minimum_clients!r}; expected seconds above 0 and a number from 1")
    return Terms(float(deadline), minimum_clients)
