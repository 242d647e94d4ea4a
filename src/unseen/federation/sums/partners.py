"""Who masks with whom in a sum, and holds shares of whose secrets.

Up to 32 sites everyone does with everyone (Bonawitz et al., CCS 2017). Above that each site has some partners alone (SecAgg+: Bell et
al., CCS 2020), on a ring whose order comes from what all sites agreed on and from keys that each of them drew for the study.
"""

from __future__ import annotations

import hashlib
import math

__all__ = ["MOST_WITH_EVERYONE", "partners_of"]

MOST_WITH_EVERYONE = 32


def partners_of(names: list[str], seed: bytes) -> dict[str, list[str]]:
    """For each site, with whom it masks and shares. Every pair knows of each other.

    >>> partners_of(["a", "b", "c"], b"")
    {'a': ['b', 'c'], 'b': ['a', 'c'], 'c': ['a', 'b']}
    """
    number = len(names)
    if number <= MOST_WITH_EVERYONE:
        return {name: [other for other in names if other != name] for name in names}
    ring = sorted(names, key=lambda name: hashlib.sha256(seed + name.encode()).digest())
    reach = 2 * math.ceil(math.log2(number)) + 4  # to either side: 32 partners of 33 to 64 sites, 48 of 1000
    around = [step for step in range(-reach, reach + 1) if step]
    return {name: sorted({ring[(at + step) % number] for step in around} - {name}) for at, name in enumerate(ring)}
