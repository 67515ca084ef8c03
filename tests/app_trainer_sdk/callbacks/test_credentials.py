"""Tokens and secrets come from variables or files, and a file that changes is read again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from app_trainer_sdk.callbacks.credentials import Credentials
from app_trainer_sdk.errors import BadJob
from app_trainer_sdk.redaction import redact

NAME = "APP_TRAINER_CALLBACK_"


def test_a_rotated_token_is_read_after_a_minute_or_at_once(tmp_path: Path):
    """Every minute, and now when the receiver refused; the file's newline is not part of it."""
    file, now = tmp_path / "token", [0.0]
    file.write_text("first-token\n")
    credentials = Credentials({NAME + "TOKEN_FILE": str(file)}, clock=lambda: now[0])
    file.write_text("second-token\n")

    assert (credentials.refresh(), credentials.token) == (False, "first-token")
    now[0] = 60.0
    assert (credentials.refresh(), credentials.token) == (True, "second-token")
    file.write_text("third-token")
    assert (credentials.refresh(now=True), credentials.token) == (True, "third-token")
    file.unlink()
    assert (credentials.refresh(now=True), credentials.token) == (False, "third-token")
    assert redact("first-token second-token third-token") == " ".join(["[redacted]"] * 3)


def test_variables_serve_platforms_without_files():
    """A token and two secrets; without any nothing is sent."""
    credentials = Credentials({NAME + "TOKEN": "plain-token", NAME + "SECRET": "whsec_YWE= YmI="})
    none = Credentials({})

    assert (credentials.token, credentials.keys) == ("plain-token", (b"aa", b"bb"))
    assert (none.token, none.keys, none.ca_file) == ("", (), None)


@pytest.mark.parametrize("variable", ["TOKEN_FILE", "SECRET_FILE", "CA_FILE", "SECRET"])
def test_a_start_with_wrong_credentials_is_refused(tmp_path: Path, variable: str):
    """64 with the variable to change, and never with the value of a secret."""
    with pytest.raises(BadJob, match=NAME + variable) as raised:
        Credentials({NAME + variable: str(tmp_path / "no!such")})

    assert variable != "SECRET" or "no!such" not in str(raised.value)


def test_what_is_no_secret_is_not_read_to_its_end(tmp_path: Path):
    """A device has none; a file of certificates has one."""
    assert len(Credentials({NAME + "TOKEN_FILE": os.devnull}).token) == 0
    with pytest.raises(BadJob, match=NAME + "TOKEN holds"):
        Credentials({NAME + "TOKEN_FILE": "/dev/zero"})
    file = tmp_path / "ca.pem"
    file.write_text("no certificate")
    with pytest.raises(BadJob, match=f"no certificate in .*{NAME}CA_FILE"):
        Credentials({NAME + "CA_FILE": str(file)})


@pytest.mark.parametrize("token", ["two\nlines", "schlüssel", "\x7f"])
def test_a_token_that_no_header_can_have_is_refused(tmp_path: Path, token: str):
    """Before anything begins; one that a file has later changes nothing."""
    with pytest.raises(BadJob, match=NAME + "TOKEN holds"):
        Credentials({NAME + "TOKEN": token})
    file = tmp_path / "token"
    file.write_text("good-token")
    credentials = Credentials({NAME + "TOKEN_FILE": str(file)})
    file.write_text(token)

    assert (credentials.refresh(now=True), credentials.token) == (False, "good-token")
