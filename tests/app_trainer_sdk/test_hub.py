"""The Hub is asked by one module, for a pinned revision; its bytes come as all others do, and are verified."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from loopback import reply

from app_trainer_sdk.hub import PATTERNS
from app_trainer_sdk.job import read_job

ASK = """
import json, sys
from pathlib import Path
from app_trainer_sdk.catalog import ModelRow, WeightSource
from app_trainer_sdk.errors import TrainerError
from app_trainer_sdk.weights import fetch_weights
from app_trainer_sdk.job import read_job
row = ModelRow("m", "M", 1, weights={"base": WeightSource(revision="r1", hub="a/b")})
try:
    job = read_job({"trainer": "t", "model": "m"})
    paths, identities = fetch_weights(job, row, Path(sys.argv[1]), lambda: None)
    print(json.dumps([str(paths["base"]), identities["base"]]))
except TrainerError as error:
    print(int(error.code), error)
"""
COMMIT = "1" * 40
LARGE = bytes(range(256)) * 400
FILES = {
    "config.json": b"{}",
    "sub/model.safetensors": LARGE,
    "pytorch_model.bin": b"pickle",
    "model.py": b"code",
}


def ask(url: str, cache: Path) -> str:
    """In a process of its own: huggingface_hub reads the endpoint when it is imported."""
    told = {**os.environ, "HF_ENDPOINT": url, "HF_HUB_DISABLE_TELEMETRY": "1", "HF_TOKEN": "VerySecret"}
    command = [sys.executable, "-c", ASK, str(cache)]
    return subprocess.run(command, env=told, capture_output=True, text=True, check=True, timeout=180).stdout


def mirror(url: str, cache: Path, *more: str) -> str:
    """What the command prints, in a process of its own."""
    told = {**os.environ, "HF_ENDPOINT": url, "APP_TRAINER_CACHE_DIR": str(cache)}
    command = [sys.executable, "-m", "app_trainer_sdk.mirror_command", "a/b@r1"]
    command += ["--base-url", "https://bucket.example/w", *more]
    return subprocess.run(command, env=told, capture_output=True, text=True, check=True, timeout=180).stdout


def sibling(name: str, body: bytes) -> dict[str, Any]:
    """A file as the Hub lists it: git's id for small ones, a SHA-256 for large ones."""
    git = hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()
    told = {"rfilename": name, "size": len(body), "blobId": git}
    if name.endswith(".safetensors"):
        told["lfs"] = {"sha256": hashlib.sha256(body).hexdigest(), "size": len(body), "pointerSize": 134}
    return told


def hub(files: dict[str, bytes], served: dict[str, bytes]) -> Any:
    """A Hub with one repository that lists ``files`` and serves ``served``."""

    def answer(handler: Any, request: Any) -> None:
        if "/api/models/a/b/revision/r1" in request.path:
            siblings = [sibling(name, body) for name, body in files.items()]
            body = {
                "id": "a/b",
                "sha": COMMIT,
                "siblings": siblings,
                "tags": [],
                "downloads": 0,
                "private": False,
            }
            return reply(handler, 200, json.dumps(body).encode(), Content_Type="application/json")
        prefix = f"/a/b/resolve/{COMMIT}/"
        if request.path.startswith(prefix):
            return reply(handler, 200, served[request.path.removeprefix(prefix)], ETag='"e"')
        return reply(handler, 404)

    return answer


def test_a_hub_without_the_revision_is_a_dependency(tmp_path: Path, serve: Any):
    """Exit code 69 with repository, revision and what to do instead."""
    server = serve(lambda handler, request: reply(handler, 404))
    told = ask(server.url, tmp_path)

    assert told.startswith("69 a/b@r1: ")
    assert "change /weights to a local folder" in told


def test_a_revision_is_fetched_once_verified_and_pinned(tmp_path: Path, serve: Any):
    """safetensors and JSON only; bytes of the commit, with the token; the second start asks nobody."""
    server = serve(hub(FILES, FILES))
    folder, identity = json.loads(ask(server.url, tmp_path))
    asked = len(server.received)
    again = json.loads(ask(server.url, tmp_path))

    files = {
        str(each.relative_to(folder)): each.read_bytes() for each in Path(folder).rglob("*") if each.is_file()
    }
    assert {name: FILES[name] for name in ("config.json", "sub/model.safetensors")} == files
    assert identity == "a/b@r1"
    assert [folder, identity] == again
    assert len(server.received) == asked
    assert {"Bearer VerySecret"} == {each.headers.get("authorization", each.headers.get("Authorization"))
                                    for each in server.received}  # fmt: skip
    assert not any(pattern.endswith((".bin", ".pt", ".py")) for pattern in PATTERNS)


def test_a_small_file_is_verified_by_gits_own_id(tmp_path: Path, serve: Any):
    """The Hub tells no SHA-256 of it; a wrong byte is noticed all the same."""
    server = serve(hub(FILES, {**FILES, "config.json": b"[]"}))

    assert "has the git id" in ask(server.url, tmp_path)


def test_an_unsafe_name_is_refused(tmp_path: Path, serve: Any):
    """A repository must not write beside the cache."""
    server = serve(hub({"../../evil.json": b"{}"}, {}))

    assert "unsafe name '../../evil.json'" in ask(server.url, tmp_path)


def test_the_list_of_a_revision_is_what_a_job_takes(tmp_path: Path, serve: Any):
    """``app-trainer mirror REPO@REVISION``: the Hub tells large files' digests, only small ones are fetched."""
    server = serve(hub(FILES, FILES))
    document = json.loads(mirror(server.url, tmp_path))
    asked = [each.path for each in server.received if each.method == "GET"]

    assert document["files"] == [
        {"path": name, "size": len(body), "sha256": hashlib.sha256(body).hexdigest(),
         "urls": [f"https://bucket.example/w/{name}"]}
        for name, body in FILES.items() if name.endswith((".json", ".safetensors"))
    ]  # fmt: skip
    assert document["revision"] == "r1"
    assert read_job({"trainer": "t", "model": "m", "weights": {"base": document}}).weights["base"].files
    assert [path for path in asked if "resolve" in path] == [f"/a/b/resolve/{COMMIT}/config.json"]


def test_a_revision_can_be_brought_to_be_copied(tmp_path: Path, serve: Any):
    """``--fetch``: the same list, and a folder with every file of it."""
    server = serve(hub(FILES, FILES))
    document = json.loads(mirror(server.url, tmp_path, "--fetch"))
    (folder,) = (tmp_path / "weights" / "sets").glob("mirror-*/")

    for each in document["files"]:
        assert (folder / each["path"]).read_bytes() == FILES[each["path"]]
