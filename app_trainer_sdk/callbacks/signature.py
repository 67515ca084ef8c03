"""Owns how an event is signed: Standard Webhooks, HMAC-SHA256 over the exact bytes that are sent.

The published library takes text and a ``datetime`` and mis-signs some of them; this takes bytes and seconds.
Source: standardwebhooks.com, the specification. This file must not know where secrets come from.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping, Sequence

PREFIX = "whsec_"
TOLERANCE_SECONDS = 300


def secret_bytes(text: str) -> bytes:
    """The key in ``whsec_<base64>`` or plain base64; a ``ValueError`` for anything else.

    Padding must be there, as for the published library: without it a mere word would be taken for a key.
    """
    encoded = text.strip().removeprefix(PREFIX)
    try:
        key = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not key:
        raise ValueError("a secret that is not whsec_ and base64")
    return key


def signature_headers(keys: Sequence[bytes], identity: str, body: bytes, *, seconds: int) -> dict[str, str]:
    """The headers that let a receiver verify a body; one signature for each key, so that keys can be changed.

    Args:
        keys: none means that nothing is signed.
        identity: the event's id.
        body: the bytes as sent.
        seconds: Unix time of this try.
    """
    if not keys:
        return {}
    signed = f"{identity}.{seconds}.".encode() + body
    made = [base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode() for key in keys]
    return {"webhook-timestamp": str(seconds), "webhook-signature": " ".join(f"v1,{each}" for each in made)}


def verified(keys: Sequence[bytes], headers: Mapping[str, str], body: bytes, *, now: float) -> bool:
    """Whether a delivery is signed with one of the keys and is not old; always, when there is no key.

    Args:
        keys: the receiver's.
        headers: of the request, names in lower case.
        body: as it arrived.
        now: Unix time.
    """
    if not keys:
        return True
    stamp, given = headers.get("webhook-timestamp", ""), headers.get("webhook-signature", "").split()
    if not stamp.isdecimal() or abs(now - int(stamp)) > TOLERANCE_SECONDS:
        return False
    made = signature_headers(keys, headers.get("webhook-id", ""), body, seconds=int(stamp))
    ours = made["webhook-signature"].split()
    return any(hmac.compare_digest(each, other) for each in ours for other in given)
