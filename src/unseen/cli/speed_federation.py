"""`unseen speed --federation`: the exchange between sites, told."""

from __future__ import annotations

from importlib.util import find_spec

from unseen.cli.answers import errors, screen

__all__ = ["show_exchange"]


def show_exchange(megabytes: float, rounds: int, quiet: bool) -> dict[str, dict[str, float]]:
    """Measure over a folder, and over Flower where it is installed; the numbers, by carrier."""
    from unseen.speed.federation import measure_exchange

    found = {}
    for carrier in ("folder", *(["flower"] if find_spec("flwr") else [])):

        def say(text: str, carrier: str = carrier) -> None:
            if not quiet:
                errors.print(f"{carrier}: {text}", markup=False)

        one = measure_exchange(carrier, megabytes, rounds, say)
        found[carrier] = {name: getattr(one, name) for name in ("megabytes", "work", "plain", "summed", "beyond")}
        told = f"{one.megabytes:.1f} MB down to and up from three sites: {one.plain:.2f} s a round, {one.beyond:.2f} s beyond the work"
        sums = f"in a secure sum {one.summed:.2f} s, {one.summed / one.plain:.2f} of the plain round"
        screen.print(f"{carrier}: {told} ({one.work:.2f} s for all three in one process); {sums}", markup=False)
    return found
