"""Signed messages inside Flower's: a large payload as one array of bytes, cut into pieces, and the rest beside it.

Flower carries every record, every array and every piece as an object of its own, with several calls for each. So a small payload is
beside the header: the steps of a secure sum are two or four exchanges, of which one is large.
"""

from __future__ import annotations

from typing import Any

from flwr.app import ConfigRecord, RecordDict
from flwr.common.constant import ErrorCode

from unseen.federation.flower.objects import record_of
from unseen.federation.messages import SignedMessage

__all__ = ["COULD_NOT_ANSWER", "MESSAGE_TYPE", "from_records", "to_records"]

MESSAGE_TYPE = "query.unseen"
COULD_NOT_ANSWER = ErrorCode.CLIENT_APP_RAISED_EXCEPTION  # from the site itself; Flower's own errors have other codes
_SMALL = 2**18  # bytes


def to_records(signed: SignedMessage, cut: dict[int, Any] | None = None) -> Any:
    """`cut` is shared by messages that are sent together: what is the same in them is cut into pieces once."""
    message: dict[str, str | bytes] = {"header": signed.header, "signature": signed.signature}
    if len(signed.prefix) + len(signed.payload) <= _SMALL:
        return RecordDict({"message": ConfigRecord(message | {"payload": b"".join((signed.prefix, signed.payload))})})
    parts = [part for part in (signed.prefix, signed.payload) if len(part)]
    return RecordDict({"payload": record_of("bytes", parts, {} if cut is None else cut), "message": ConfigRecord(message)})


def from_records(records: Any) -> SignedMessage | None:
    """The signed message in the records of one of Flower's, or None. The bytes of the array are taken as they are, never unpickled."""
    try:
        message = records["message"]
        header, signature = message["header"], message["signature"]
        payload = message["payload"] if "payload" in message else records["payload"]["bytes"].data
    except (KeyError, TypeError, AttributeError):
        return None
    if not (isinstance(header, str) and isinstance(signature, bytes) and isinstance(payload, bytes | memoryview)):
        return None
    return SignedMessage(header, payload, signature)
