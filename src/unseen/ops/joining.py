"""Several networks' weights as one state, so that one pass over the replies averages them all."""

from __future__ import annotations

from collections.abc import Mapping

from unseen.codec import State

__all__ = ["joined", "separated"]


def joined(states: Mapping[str, State | None]) -> State:
    """Every entry under its network's name; a network that is None is left out.

    >>> joined({"model": {"w": 1}, "generator": {"w": 2}, "other": None})
    {'model/w': 1, 'generator/w': 2}
    """
    return {f"{network}/{name}": value for network, state in states.items() for name, value in (state or {}).items()}


def separated(state: State, network: str) -> State | None:
    """One network of a joined state; None where it was left out.

    >>> separated({"model/w": 1, "generator/w": 2}, "generator")
    {'w': 2}
    """
    return {name.removeprefix(f"{network}/"): value for name, value in state.items() if name.startswith(f"{network}/")} or None
