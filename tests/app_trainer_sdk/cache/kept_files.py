"""Files of weights as a cache has them."""

from __future__ import annotations

import hashlib
import os
import time

from app_trainer_sdk.cache.weights import Cache

DAY = 86_400.0


def put(cache: Cache, body: bytes, *, days: float = 0.0) -> str:
    """A file as a download leaves it, asked for so many days ago."""
    sha256 = hashlib.sha256(body).hexdigest()
    path = cache.file(sha256)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body)
    os.utime(path, (time.time() - days * DAY,) * 2)
    return sha256
