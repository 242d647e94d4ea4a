"""Approvals: a site's signature under a study, with what it tells of its data for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from unseen.errors import BadInput
from unseen.federation.keys import read_public, read_public_box
from unseen.federation.study.study import Study

__all__ = ["Approval", "approve", "read_approvals"]

_OPTIONAL = {"box", "may_lose"}  # written down only where there is something to say
_MOST = 10**9  # samples
_UNTOLD = (10**6, 10**6)  # of a site that keeps its counts to itself


@dataclass(frozen=True)
class Approval:
    """One site agrees to one study. The counts are those that it lets out; None where its policy keeps them.

    For secure sums a site gives a key that it made for this study: other sites encrypt with it what the server must not read. It
    also says whether a sum may leave sites out. What is not so is not written down.
    """

    study: str
    site: str
    train: int | None
    validation: int | None
    box: str | None = None  # X25519, hexadecimal; none where the study has no sums
    may_lose: bool = False  # a sum may leave sites out, as far as this site is asked; only where all say so, it may
    signature: str = ""

    def plain(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key not in _OPTIONAL or value not in (None, False)}

    @property
    def counts(self) -> tuple[int, int]:
        """Of training and of validation samples."""
        return _UNTOLD if self.train is None or self.validation is None else (self.train, self.validation)

    @property
    def _signed_bytes(self) -> bytes:
        told = {key: value for key, value in self.plain().items() if key != "signature"}
        return b"unseen approval 1 " + json.dumps(told, sort_keys=True, separators=(",", ":")).encode()

    def refuse_forged(self, study: Study) -> None:
        """BadInput unless a participant of this study signed it."""
        if self.study != study.digest or self.site not in study.participants:
            raise BadInput(f"an approval of another study, or of a site that is not in it ({self.site[:63]!r})")
        try:
            read_public(study.participants[self.site].signing).verify(bytes.fromhex(self.signature), self._signed_bytes)
        except (InvalidSignature, ValueError):
            raise BadInput(f"the approval of {self.site!r} does not bear its signature") from None
        if self.box is not None:
            read_public_box(self.box)


def approve(
    study: Study,
    site: str,
    train: int | None,
    validation: int | None,
    key: Ed25519PrivateKey,
    box: str | None = None,
    may_lose: bool = False,
) -> Approval:
    """This site's approval, signed."""
    draft = Approval(study.digest, site, train, validation, box, may_lose)
    return replace(draft, signature=key.sign(draft._signed_bytes).hex())


def read_approvals(told: Any, study: Study) -> dict[str, Approval]:
    """The approvals of a study, by site, each checked; BadInput for anything else."""
    if not isinstance(told, list) or len(told) > len(study.participants):
        raise BadInput("the approvals cannot be read")
    found = {}
    for one in told:
        approval = read_approval(one)
        approval.refuse_forged(study)
        found[approval.site] = approval
    return dict(sorted(found.items()))


def read_approval(told: Any) -> Approval:
    """An approval from plain values; its signature is not looked at yet."""
    keys = Approval.__dataclass_fields__.keys()
    texts = ("study", "site", "signature", *(["box"] if isinstance(told, Mapping) and "box" in told else []))
    whole = isinstance(told, Mapping) and told.keys() | _OPTIONAL == keys and all(isinstance(told[key], str) for key in texts)
    whole = whole and told.get("may_lose", True) is True
    if not whole or not all(told[k] is None or (type(told[k]) is int and 0 <= told[k] <= _MOST) for k in ("train", "validation")):
        raise BadInput("an approval cannot be read")
    return Approval(**told)
