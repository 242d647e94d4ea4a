"""Receipts: the server signs how far a site's ledger went, so that neither of them can shorten or rewrite it afterwards.

A receipt tells of one line of a ledger by its number and hash. Line 0 is the empty ledger: a receipt for it, written by the server's
owner, lets a site whose ledger was lost begin a new one.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from unseen.errors import BadInput, RefusedReply

__all__ = ["EMPTY", "check_head", "check_receipt", "read_receipts", "receipt_line", "refuse_behind", "sign_receipt"]

EMPTY = "0" * 64  # the hash before the first line
_PURPOSE = b"unseen ledger receipt 1 "  # no other signature begins so
_KINDS = {"federation": str, "site": str, "study": str, "number": int, "hash": str, "time": str, "signature": str}
_HASH, _SIGNATURE = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{128}")
_MOST_LINES, _MOST_TEXT = 2**53, 1000


def sign_receipt(key: Ed25519PrivateKey, federation: str, site: str, study: str, head: tuple[int, str]) -> dict[str, Any]:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    body = {"federation": federation, "site": site, "study": study, "number": head[0], "hash": head[1], "time": now}
    return {**body, "signature": key.sign(_signed_bytes(body)).hex()}


def check_receipt(receipt: Any, key: Ed25519PublicKey, site: str) -> tuple[int, str]:
    """The number and hash of the line that a receipt tells of, or RefusedReply: no receipt, another site's, or not the server's."""
    if not isinstance(receipt, Mapping) or receipt.keys() != _KINDS.keys():
        raise RefusedReply("it is no receipt")
    if any(type(receipt[name]) is not kind for name, kind in _KINDS.items()):
        raise RefusedReply("it is no receipt")
    if any(len(value) > _MOST_TEXT for value in receipt.values() if isinstance(value, str)):
        raise RefusedReply("it is no receipt")
    head = check_head((receipt["number"], receipt["hash"]))
    if receipt["site"] != site:
        raise RefusedReply(f"it is of {receipt['site']!r}, not of {site!r}")
    try:
        if not _SIGNATURE.fullmatch(receipt["signature"]):
            raise InvalidSignature
        key.verify(bytes.fromhex(receipt["signature"]), _signed_bytes({n: v for n, v in receipt.items() if n != "signature"}))
    except (InvalidSignature, UnicodeEncodeError):
        raise RefusedReply("its signature is not the server's") from None
    return head


def check_head(head: Any) -> tuple[int, str]:
    """How far a ledger went, as somebody else tells it: a number of lines and the last one's hash."""
    if not isinstance(head, Sequence) or isinstance(head, str) or len(head) != 2:
        raise RefusedReply("no number and hash of a ledger's last line")
    number, last = head
    if type(number) is not int or not 0 <= number < _MOST_LINES or not isinstance(last, str) or not _HASH.fullmatch(last):
        raise RefusedReply("no number and hash of a ledger's last line")
    if (number == 0) != (last == EMPTY):
        raise RefusedReply("an empty ledger has no hash, and every other has one")
    return number, last


def receipt_line(receipt: Mapping[str, Any]) -> bytes:
    return json.dumps(receipt, separators=(",", ":"), ensure_ascii=True).encode() + b"\n"


def read_receipts(file: Path, key: Ed25519PublicKey, site: str, last: bool = False) -> tuple[list[dict[str, Any]], int]:
    """The receipts in a file (or its last one alone), checked, and the bytes of all. A line that a kill cut short does not count."""
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return [], 0
    except OSError as error:
        raise BadInput(f"{file} cannot be read ({error.strerror})") from error
    size = data.rfind(b"\n") + 1
    data = data[data.rfind(b"\n", 0, size - 1) + 1 : size] if last else data[:size]
    receipts = []
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        try:
            receipt = json.loads(line)
            check_receipt(receipt, key, site)
        except (ValueError, RecursionError, RefusedReply) as error:
            what = str(error) if isinstance(error, RefusedReply) else "it cannot be read"
            where = "its last line" if last else f"line {number}"
            raise BadInput(f"{file}, {where} is not a receipt of this federation's server: {what}") from None
        receipts.append(receipt)
    return receipts, size


def refuse_behind(hashes: Sequence[str], receipts: Sequence[Mapping[str, Any]], ledger: Path) -> None:
    """BadInput if a receipt tells of a line that the ledger, given by its lines' hashes, does not have.

    What came before a receipt for line 0 was of an earlier ledger, whose loss the server's owner knows of.
    """
    anew = max((place for place, receipt in enumerate(receipts) if receipt["number"] == 0), default=0)
    for receipt in receipts[anew:]:
        number = receipt["number"]
        if number > len(hashes):
            what = f"the ledger has {len(hashes)} lines: its end was cut off, or it was begun anew"
        elif number and hashes[number - 1] != receipt["hash"]:
            what = "the ledger has another line there: it was changed, or begun anew"
        else:
            continue
        raise BadInput(f"{ledger}: the server gave a receipt for line {number} on {receipt['time']}, but {what}")


def _signed_bytes(body: Mapping[str, Any]) -> bytes:
    return _PURPOSE + json.dumps(body, separators=(",", ":"), ensure_ascii=True, sort_keys=True).encode()
