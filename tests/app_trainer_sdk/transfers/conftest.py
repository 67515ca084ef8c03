"""Servers that the tests of downloads share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from lying_server import LyingServer


@pytest.fixture
def serve_body() -> Iterator[Callable[..., LyingServer]]:
    """Servers of one body each."""
    servers: list[LyingServer] = []

    def start(body: bytes, *script: str, **said: Any) -> LyingServer:
        servers.append(LyingServer(body, script, **said))
        return servers[-1]

    yield start
    for server in servers:
        server.end()
