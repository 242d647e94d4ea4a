"""What the sites of a sum agreed on, read from the study and its approvals: the same at the server and at every site."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from unseen.engines.tasks import Place
from unseen.errors import BadInput
from unseen.federation.keys import read_public
from unseen.federation.study.approvals import Approval
from unseen.federation.study.study import Study
from unseen.federation.sums.context import FEWEST_SITES, SumContext

__all__ = ["sum_context"]


def sum_context(
    study: Study, approvals: Mapping[str, Approval], names: Iterable[str], place: Place, fewest: int = FEWEST_SITES
) -> SumContext:
    """The sum of these sites' answers at a place of the study; BadInput where there can be none."""
    chosen = {name: approvals[name] for name in names}
    without = sorted(name for name, approval in chosen.items() if approval.box is None)
    if without:
        raise BadInput(f"{', '.join(without)} gave no key for the sums of this study: another version approved it; propose it anew")
    keys = {name: read_public(study.participants[name].signing) for name in chosen}
    boxes = {name: bytes.fromhex(approval.box or "") for name, approval in chosen.items()}
    counts = {name: approval.train or 0 for name, approval in chosen.items()}
    may_lose = all(approval.may_lose for approval in chosen.values())
    return SumContext(study.digest, place.round, place.ask, keys, boxes, counts, may_lose, fewest)
