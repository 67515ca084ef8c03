"""Owns the sender's credentials: a bearer token, signing secrets, a CA file; read again, since tokens rotate.

They come from ``APP_TRAINER_CALLBACK_*`` alone: a variable, or a file that is read again every minute and
when the receiver says 401 or 403. Each value read is remembered as a secret. It must not know what is sent.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from app_trainer_sdk.callbacks.signature import secret_bytes
from app_trainer_sdk.errors import BadJob
from app_trainer_sdk.paths import PREFIX
from app_trainer_sdk.redaction import remember

LOG = logging.getLogger(__name__)

REREAD_SECONDS = 60.0
SECRET_BYTES, CERTIFICATES_BYTES = 1 << 16, 1 << 22
CERTIFICATE = "-----BEGIN"
TOKEN, SECRET, CA_FILE = PREFIX + "CALLBACK_TOKEN", PREFIX + "CALLBACK_SECRET", PREFIX + "CALLBACK_CA_FILE"


class Credentials:
    """What proves to the receiver who speaks, and to us who listens.

    Args:
        environment: where variables are; this process's by default.
        clock: seconds, monotonic.

    Attributes:
        token: the bearer token, empty when there is none.
        keys: keys to sign with, none when events are not signed.
        ca_file: certificates to trust instead of the system's.

    Raises:
        BadJob: a file cannot be read, or a secret is none.
    """

    def __init__(
        self, environment: Mapping[str, str] | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._environment = os.environ if environment is None else environment
        self._clock = clock
        self.ca_file = self._environment.get(CA_FILE) or None
        if self.ca_file and CERTIFICATE not in _beginning_of(self.ca_file, CA_FILE, CERTIFICATES_BYTES):
            raise BadJob(f"no certificate in {self.ca_file}", expected="certificates in PEM", setting=CA_FILE)
        self.token, self.keys = self._read()
        self._read_at = clock()

    def refresh(self, *, now: bool = False) -> bool:
        """Read files again when a minute has passed, or ``now``; True when anything changed.

        A file that cannot be read any more, or holds no secret, changes nothing.
        """
        if not now and self._clock() - self._read_at < REREAD_SECONDS:
            return False
        self._read_at = self._clock()
        before = (self.token, self.keys)
        try:
            self.token, self.keys = self._read()
        except BadJob as error:
            LOG.warning("callback credentials stay as they were: %s", error)
        return before != (self.token, self.keys)

    def _read(self) -> tuple[str, tuple[bytes, ...]]:
        token, secrets = self._value(TOKEN), self._value(SECRET).split()
        remember(token, *secrets)
        if not (token.isascii() and token.isprintable()):
            found = f"{TOKEN} holds what no header may have"
            raise BadJob(found, expected="one line of printable ASCII", setting=TOKEN)
        try:
            return token, tuple(secret_bytes(each) for each in secrets)
        except ValueError as error:
            found = f"{SECRET} holds {error}"
            raise BadJob(found, expected="whsec_ and base64, padded with =", setting=SECRET) from None

    def _value(self, name: str) -> str:
        path = self._environment.get(name + "_FILE")
        if not path:
            return self._environment.get(name, "").strip()
        return _beginning_of(path, name + "_FILE", SECRET_BYTES).strip()


def _beginning_of(path: str, setting: str, most: int) -> str:
    """The text of a file, as far as what should be in it may be long: nobody reads a device to its end."""
    try:
        with Path(path).open("rb") as file:
            return file.read(most).decode()
    except (OSError, UnicodeDecodeError) as error:
        found = f"cannot read {path}: {type(error).__name__}"
        raise BadJob(found, expected="a readable file", setting=setting) from None
