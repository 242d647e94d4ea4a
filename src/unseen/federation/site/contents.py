"""What a ledger says of the content of an answer: shapes and hashes, never values."""

from __future__ import annotations

import hashlib
import json

import torch

from unseen.codec import hints_of, tensors_in
from unseen.payload import OF_A_NETWORK, Declaration, Payload

__all__ = ["content_of", "network_of", "sha256_of"]


def content_of(up: Payload, field: str) -> tuple[list[int] | str, str]:
    """The shape of a field's tensor, or how many there are, and the hash of its bytes."""
    value = getattr(up, field)
    tensors = [tensor.detach().cpu().contiguous() for _, tensor in tensors_in(value, hints_of(type(up))[field])]
    if not tensors:
        return [], sha256_of(json.dumps(value).encode())
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return (f"{len(tensors)} tensors" if len(tensors) > 1 else list(tensors[0].shape)), digest.hexdigest()


def network_of(told: Declaration) -> dict[str, str]:
    """Of which network, and of which part of it, a field holds weights, as it declares."""
    return {"network": told.role, "part": told.part} if told.kind in OF_A_NETWORK else {}


def sha256_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
