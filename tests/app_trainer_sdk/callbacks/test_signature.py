"""Our signatures are what the published library makes and accepts."""

from __future__ import annotations

import base64
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook

from app_trainer_sdk.callbacks.signature import secret_bytes, signature_headers

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef01234567").decode()


@given(st.text(st.characters(codec="utf-8"), max_size=200), st.integers(0, 4_000_000_000))
def test_the_published_library_signs_alike(text: str, seconds: int):
    """Any body, any second: the same header; our HMAC is over bytes."""
    headers = signature_headers([secret_bytes(SECRET)], "j.1.1", text.encode(), seconds=seconds)
    moment = datetime.fromtimestamp(seconds, UTC)

    assert headers["webhook-signature"] == Webhook(SECRET).sign("j.1.1", moment, text)


def test_the_published_library_verifies_now_and_with_either_key():
    """Two keys give two signatures: a receiver that knows one of them accepts; one with neither does not."""
    other, wrong = (base64.b64encode(word * 24).decode() for word in (b"b", b"c"))
    now = int(datetime.now(UTC).timestamp())
    keys = [secret_bytes(SECRET), secret_bytes(other)]
    headers = {"webhook-id": "j.1.1", **signature_headers(keys, "j.1.1", b'{"seq": 1}', seconds=now)}

    assert Webhook(SECRET).verify(b'{"seq": 1}', headers) == Webhook(other).verify(b'{"seq": 1}', headers)
    with pytest.raises(Exception, match="No matching signature"):
        Webhook(wrong).verify(b'{"seq": 1}', headers)
    with pytest.raises(Exception, match="No matching signature"):
        Webhook(SECRET).verify(b'{"seq": 2}', headers)


def test_nothing_is_signed_without_a_key():
    """No headers at all."""
    assert signature_headers([], "j.1.1", b"", seconds=0) == {}


@pytest.mark.parametrize("text", ["", "whsec_", "whsec_not base64!", "é", "xyz"])
def test_what_is_no_secret(text: str):
    """Refused before anything is signed with it."""
    with pytest.raises(ValueError, match="whsec_"):
        secret_bytes(text)
