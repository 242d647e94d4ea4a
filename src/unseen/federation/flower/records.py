"""Signed messages inside Flower's: the payload as one array of bytes (Flower cuts arrays into pieces), the rest beside it."""

from __future__ import annotations

from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.common.constant import ErrorCode

from unseen.federation.messages import SignedMessage

__all__ = ["COULD_NOT_ANSWER", "MESSAGE_TYPE", "from_records", "to_records"]

MESSAGE_TYPE = "query.unseen"
COULD_NOT_ANSWER = ErrorCode.CLIENT_APP_RAISED_EXCEPTION  # from the site itself; Flower's own errors have other codes


def to_records(signed: SignedMessage) -> Any:
    array = Array(dtype="uint8", shape=(len(signed.payload),), stype="unseen", data=signed.payload)
    return RecordDict(
        {
            "payload": ArrayRecord({"bytes": array}),
            "message": ConfigRecord({"header": signed.header, "signature": signed.signature}),
        }
    )


def from_records(records: Any) -> SignedMessage | None:
    """The signed message in the records of one of Flower's, or None. The bytes of the array are taken as they are, never unpickled."""
    try:
        header, signature = records["message"]["header"], records["message"]["signature"]
        payload = records["payload"]["bytes"].data
    except (KeyError, TypeError, AttributeError):
        return None
    if not (isinstance(header, str) and isinstance(signature, bytes) and isinstance(payload, bytes)):
        return None
    return SignedMessage(header, payload, signature)
