"""The command ``cache`` lists, verifies and prunes, and spares what a running job uses."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from app_trainer_sdk.transfers.cache import Cache
from app_trainer_sdk.transfers.cache_command import main

DAY = 86_400.0


def put(cache: Cache, body: bytes, *, days: float = 0.0) -> str:
    """A file as a download leaves it, asked for so many days ago."""
    sha256 = hashlib.sha256(body).hexdigest()
    path = cache.file(sha256)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body)
    os.utime(path, (time.time() - days * DAY,) * 2)
    return sha256


def test_the_command_lists(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Last used first, with the names files have in their sets, and what is in use."""
    cache = Cache(tmp_path)
    old, new = put(cache, b"old", days=3), put(cache, b"newer")
    cache.write_set("key", "a/b@c", {"model": new})
    cache.hold([new])

    assert main(["--cache-dir", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(new[:16])
    assert lines[0].endswith("a/b@c: model  in use")
    assert "3.0 days  -" in lines[1]
    assert lines[2] == f"2 files, 8 B in {tmp_path}"
    assert main(["list", "--cache-dir", str(tmp_path), "--json"]) == 0
    assert [(each["sha256"], each["in_use"]) for each in json.loads(capsys.readouterr().out)] == [
        (new, True), (old, False),
    ]  # fmt: skip


def test_the_command_verifies(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A file that rotted is removed with the sets that had it; then all is sound."""
    cache = Cache(tmp_path)
    good, rotten = put(cache, b"good"), put(cache, b"rotten")
    cache.write_set("key", "title", {"model": rotten})
    cache.file(rotten).write_bytes(b"ROTTEN")

    assert main(["verify", "--cache-dir", str(tmp_path)]) == 65
    assert f"{rotten}  is not what its name says; removed" in capsys.readouterr().out
    assert [each.sha256 for each in cache.kept()] == [good]
    assert cache.read_set("key") is None
    assert main(["verify", "--cache-dir", str(tmp_path)]) == 0


def test_the_command_prunes_by_age_and_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The oldest go first, what is in use stays, and so do fresh files in the making."""
    cache = Cache(tmp_path)
    made = [put(cache, bytes([each]) * 100, days=each) for each in range(1, 7)]
    cache.hold([made[5]])  # asking for it is using it
    for name, age in (("fresh", 0.0), ("stale", 9 * DAY)):
        data = cache.partials / name / "data"
        data.parent.mkdir(parents=True)
        data.write_bytes(b"x" * 5000)
        for each in (data, data.parent):
            os.utime(each, (time.time() - age,) * 2)

    assert main(["prune", "--cache-dir", str(tmp_path), "--max-age-days", "4.5"]) == 0
    assert {each.sha256 for each in cache.kept()} == {*made[:4], made[5]}
    assert [each.name for each in cache.partials.iterdir()] == ["fresh"]
    assert main(["prune", "--cache-dir", str(tmp_path), "--max-size", "300"]) == 0
    assert {each.sha256 for each in cache.kept()} == {made[0], made[1], made[5]}
    assert main(["prune", "--cache-dir", str(tmp_path), "--max-size", "0"]) == 0
    assert [each.sha256 for each in cache.kept()] == [made[5]]
    assert "1 stay: a running job uses them" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "size"), [("300", 300), ("1.5k", 1500), ("50G", 50 * 10**9), ("2t", 2 * 10**12)]
)
def test_sizes_as_people_write_them(text: str, size: int):
    """Decimal units."""
    from app_trainer_sdk.transfers.cache_command import _size

    assert _size(text) == size


@pytest.mark.parametrize("text", ["", "G", "many", "infG"])
def test_sizes_that_are_none(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]):
    """Told with what was found."""
    with pytest.raises(SystemExit):
        main(["prune", "--cache-dir", str(tmp_path), f"--max-size={text}"])
    assert repr(text) in capsys.readouterr().err


def test_prune_spares_what_another_process_uses(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """While that process runs, whatever the bounds are; the moment it has ended, its files may go."""
    cache = Cache(tmp_path)
    sha256 = put(cache, b"weights", days=99)
    cache.write_set("key", "title", {"model": sha256})
    code = "import sys; from pathlib import Path; from app_trainer_sdk.transfers.cache import Cache; "
    code += "print(Cache(Path(sys.argv[1])).read_set('key'), flush=True); sys.stdin.read()"
    running = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert running.stdout is not None
    folder = Path(running.stdout.readline().strip())
    prune = ["prune", "--cache-dir", str(tmp_path), "--max-size", "0", "--max-age-days", "0"]

    assert main(prune) == 0
    assert "1 stay: a running job uses them" in capsys.readouterr().out
    assert (folder / "model").read_bytes() == b"weights"
    running.communicate()
    assert main(prune) == 0
    assert cache.kept() == []
