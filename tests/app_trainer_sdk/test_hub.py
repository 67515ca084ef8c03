"""The Hub is asked by one module, for a pinned revision, and its silence has a code of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from app_trainer_sdk.hub import PATTERNS

ASK = """
import sys
from pathlib import Path
from app_trainer_sdk.errors import TrainerError
from app_trainer_sdk.hub import download_snapshot
try:
    print(download_snapshot("a/b", "r1", Path(sys.argv[1])))
except TrainerError as error:
    print(int(error.code), error)
"""
COMMIT = "1" * 40


def ask(url: str, cache: Path) -> str:
    """In a process of its own: huggingface_hub reads the endpoint when it is imported."""
    told = {**os.environ, "HF_ENDPOINT": url, "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1"}
    command = [sys.executable, "-c", ASK, str(cache)]
    return subprocess.run(command, env=told, capture_output=True, text=True, check=True, timeout=60).stdout


def reply(handler: Any, status: int, body: bytes = b"", **headers: str) -> None:
    handler.send_response(status)
    for name, value in {"Content-Length": str(len(body)), **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(body)


def test_a_hub_without_the_revision_is_a_dependency(tmp_path: Path, serve: Any):
    """Exit code 69 with repository, revision and what to do instead."""
    server = serve(lambda handler, request: reply(handler, 404))
    told = ask(server.url, tmp_path)

    assert told.startswith("69 a/b@r1: ")
    assert "change /weights to a local folder" in told


def test_only_formats_that_execute_nothing_are_fetched(tmp_path: Path, serve: Any):
    """safetensors, JSON and text; a pickle beside them stays where it is."""
    files = {"config.json": b"{}", "pytorch_model.bin": b"pickle", "model.py": b"code"}

    def answer(handler: Any, request: Any) -> None:
        if "/api/models/a/b/revision/r1" in request.path:
            siblings = [{"rfilename": name} for name in files]
            body = {
                "id": "a/b",
                "sha": COMMIT,
                "siblings": siblings,
                "tags": [],
                "downloads": 0,
                "private": False,
            }
            return reply(handler, 200, json.dumps(body).encode(), Content_Type="application/json")
        if "/api/models/a/b/tree/" in request.path:
            tree = [
                {"type": "file", "path": name, "size": len(body), "oid": "0" * 40}
                for name, body in files.items()
            ]
            return reply(handler, 200, json.dumps(tree).encode(), Content_Type="application/json")
        if "/resolve/" in request.path:
            name = request.path.rsplit("/", 1)[-1]
            return reply(handler, 200, files[name], ETag='"e"', X_Repo_Commit=COMMIT)
        return reply(handler, 404)

    server = serve(answer)
    folder = Path(ask(server.url, tmp_path).strip())

    assert [path.name for path in folder.iterdir()] == ["config.json"]
    assert not any(pattern.endswith((".bin", ".pt", ".py")) for pattern in PATTERNS)
