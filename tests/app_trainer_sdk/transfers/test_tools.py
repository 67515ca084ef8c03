"""What a download is made with."""

from __future__ import annotations

from typing import Any

import pytest

from app_trainer_sdk.errors import BadJob
from app_trainer_sdk.transfers.tools import open_tools


def test_hosts_are_those_of_the_environment_and_connections_end(
    serve_body: Any, monkeypatch: pytest.MonkeyPatch
):
    """A run of days keeps none of them."""
    server = serve_body(b"bytes")
    with open_tools() as tools, tools.web.open("GET", server.url) as answer:
        assert answer.read() == b"bytes"
    monkeypatch.setenv("APP_TRAINER_ALLOW_HOSTS", "")
    with (
        open_tools() as tools,
        pytest.raises(BadJob, match="public internet"),
        tools.web.open("GET", server.url),
    ):
        pass
