"""Files are kept by digest and shared; what a living process holds is never removed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from kept_files import put

from app_trainer_sdk.cache.weights import Cache, set_key


def hold_and_die(cache: Cache, sha256: str) -> None:
    """Another process that held a file and ended."""
    code = "import sys; from pathlib import Path; from app_trainer_sdk.cache.weights import Cache; "
    code += "Cache(Path(sys.argv[1])).hold([sys.argv[2]])"
    subprocess.run([sys.executable, "-c", code, str(cache.root), sha256], check=True)


def test_a_set_is_a_folder_of_links(tmp_path: Path):
    """Names as trainers expect them, bytes by digest, the same for sets that share a file."""
    cache = Cache(tmp_path)
    config, weights = put(cache, b"{}"), put(cache, b"weights")
    folder = cache.write_set("one", "a/b@c", {"config.json": config, "sub/model.safetensors": weights})
    other = cache.write_set("two", "d", {"config.json": config})

    assert (folder / "config.json").read_text() == "{}"
    assert (folder / "sub" / "model.safetensors").read_text() == "weights"
    assert (folder / "config.json").samefile(other / "config.json")
    assert cache.read_set("one") == folder
    assert cache.digests("one") == {"config.json": config, "sub/model.safetensors": weights}
    assert cache.write_set("one", "a/b@c", {"config.json": config}) == folder
    assert cache.read_set("three") is None
    assert cache.knows("one")
    assert not cache.knows("three")


@pytest.mark.parametrize("damage", ["missing", "size", "link", "list"])
def test_a_set_that_is_not_whole_is_none(tmp_path: Path, damage: str):
    """And is whole again once the file is back, without a new folder."""
    cache = Cache(tmp_path)
    sha256 = put(cache, b"weights")
    folder = cache.write_set("key", "title", {"model": sha256})
    if damage == "missing":
        cache.file(sha256).unlink()
    elif damage == "size":
        cache.file(sha256).write_bytes(b"short")
    elif damage == "link":
        (folder / "model").unlink()
    else:
        folder.with_suffix(".json").write_text('{"files": 3}')

    assert cache.read_set("key") is None
    put(cache, b"weights")
    assert (cache.write_set("key", "title", {"model": sha256}) / "model").read_text() == "weights"
    assert cache.read_set("key") == folder


def test_what_a_running_process_holds_stays(tmp_path: Path):
    """Also a file that is not there yet; what the dead held may go, and their leases are cleared away."""
    cache = Cache(tmp_path)
    mine, dead = put(cache, b"mine"), put(cache, b"dead")
    cache.hold([mine, "f" * 64])
    hold_and_die(cache, dead)

    assert cache.in_use() == {mine, "f" * 64}
    assert cache.remove(mine) is False
    assert cache.remove(dead) is True
    assert cache.remove("0" * 64) is True
    assert [each.sha256 for each in cache.kept()] == [mine]
    assert len(list((tmp_path / "uses").iterdir())) == 1


def test_what_is_held_is_not_moved_for_a_moment_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A rank may be opening it; who holds it only since it was put aside gets it back."""
    cache = Cache(tmp_path)
    held, late, rename, moved = put(cache, b"held"), put(cache, b"late"), Path.rename, []

    def watched(path: Path, target: Path) -> Path:
        moved.append(path.name)
        if path.name == late:
            cache.hold([late])
        return rename(path, target)

    cache.hold([held])
    monkeypatch.setattr(Path, "rename", watched)

    assert cache.remove(held) is False
    assert held not in moved
    assert cache.remove(late) is False
    assert late in moved
    assert cache.file(late).read_bytes() == b"late"


def test_keys_follow_from_what_a_set_is():
    """Not from the order in which it is said."""
    assert set_key({"a": 1, "b": 2}) == set_key({"b": 2, "a": 1}) != set_key({"a": 1, "b": 3})
