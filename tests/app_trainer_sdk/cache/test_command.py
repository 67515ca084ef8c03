"""The command ``cache`` lists, verifies and prunes, and spares what a running job uses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kept_files import DAY, put

from app_trainer_sdk.cache.command import main
from app_trainer_sdk.cache.features import seal
from app_trainer_sdk.cache.folders import Folders
from app_trainer_sdk.cache.weights import Cache


def put_folder(root: Path, name: str, *, days: float = 0.0, size: int = 100) -> Path:
    """A folder as a job leaves it, used so many days ago."""
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "file").write_bytes(bytes(size))
    os.utime(folder, (time.time() - days * DAY,) * 2)
    return folder


def test_the_command_lists(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """All kinds in one table, last used first, with the names files have in their sets, and what is in use."""
    cache = Cache(tmp_path)
    old, new = put(cache, b"old", days=3), put(cache, b"newer")
    put_folder(tmp_path, "features/toy-encode-1", days=1)
    compiled = put_folder(tmp_path, "compile", days=5)
    cache.write_set("key", "a/b@c", {"model": new})
    cache.hold([new])
    Folders(tmp_path).hold(compiled)
    os.utime(compiled, (time.time() - 2 * DAY,) * 2)

    assert main(["--cache-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "kind           size   unused for          what",
        f"weights         5 B     0.0 days  in use  {new[:16]}  a/b@c: model",
        "features      100 B     1.0 days          features/toy-encode-1",
        "compiled      100 B     2.0 days  in use  compile",
        f"weights         3 B     3.0 days          {old[:16]}  -",
        f"4 entries, 208 B in {tmp_path}",
    ]
    assert main(["list", "--cache-dir", str(tmp_path), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(each["kind"], each["path"], each["sha256"], each["in_use"]) for each in rows] == [
        ("weights", f"weights/sha256/{new[:2]}/{new}", new, True),
        ("features", "features/toy-encode-1", None, False), ("compiled", "compile", None, True),
        ("weights", f"weights/sha256/{old[:2]}/{old}", old, False),
    ]  # fmt: skip
    assert set(rows[0]) == {"kind", "path", "sha256", "size", "used_at", "names", "in_use"}


def test_an_empty_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Is one line."""
    assert main(["--cache-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"0 entries, 0 B in {tmp_path}\n"


def test_the_command_verifies(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A file that rotted is removed with the sets that had it; then all is sound."""
    cache = Cache(tmp_path)
    good, rotten = put(cache, b"good", days=3), put(cache, b"rotten")
    cache.write_set("key", "title", {"model": rotten})
    cache.file(rotten).write_bytes(b"ROTTEN")

    assert main(["verify", "--cache-dir", str(tmp_path)]) == 65
    assert f"{rotten}  is not what it was; removed" in capsys.readouterr().out
    assert [each.sha256 for each in cache.kept()] == [good]
    assert cache.read_set("key") is None
    assert main(["verify", "--cache-dir", str(tmp_path)]) == 0
    assert time.time() - cache.kept()[0].used_at > 2 * DAY, "looking at a file is no use of it"


def test_the_command_verifies_features(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A damaged item goes unless a job uses its folder; what has no digest is told."""
    items = tmp_path / "features" / "items" / "latents-1"
    items.mkdir(parents=True)
    for name in ("good", "rotten"):
        header = b'{"__metadata__":{"file_crc32":"00000000"}}'
        (items / f"{name}.safetensors").write_bytes(seal(len(header).to_bytes(8, "little") + header))
    rotten = items / "rotten.safetensors"
    rotten.write_bytes(rotten.read_bytes() + b"x")
    put_folder(tmp_path, "features/toy-count-1")
    verify = ["verify", "--cache-dir", str(tmp_path)]

    assert main(verify) == 65
    assert capsys.readouterr().out.splitlines() == [
        "features/items/latents-1/rotten.safetensors  is not what it was; removed",
        "1 files are sound, 1 were not; 1 folders have no digests",
    ]
    assert main(verify) == 0
    Folders(tmp_path).hold(items)
    rotten.write_bytes(b"x")
    assert main(verify) == 65
    assert "in use by a running job" in capsys.readouterr().out
    assert rotten.exists()


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


def test_the_command_prunes_all_kinds_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """By age; then by size whatever was not used for longest; never what a running job uses."""
    cache, prune = Cache(tmp_path), ["prune", "--cache-dir", str(tmp_path)]
    made = {
        "file": cache.file(put(cache, b"x" * 100, days=2)),
        "result": put_folder(tmp_path, "features/toy-encode-1", days=1),
        "items": put_folder(tmp_path, "features/items/latents-1", days=3),
        "old": put_folder(tmp_path, "features/toy-encode-2", days=8),
        "compiled": put_folder(tmp_path, "compile", days=9),
    }

    def left() -> set[str]:
        return {name for name, path in made.items() if path.exists()}

    assert main([*prune, "--max-age-days", "8.5"]) == 0
    assert left() == {"file", "result", "items", "old"}
    assert main([*prune, "--max-size", "250"]) == 0
    assert left() == {"file", "result"}
    Folders(tmp_path).hold(made["result"])
    assert main([*prune, "--max-size", "0"]) == 0
    assert left() == {"result"}
    assert capsys.readouterr().out.splitlines() == [
        "100 B freed", "200 B freed", "100 B freed; 1 stay: a running job uses them",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "size"), [("300", 300), ("1.5k", 1500), ("50G", 50 * 10**9), ("2t", 2 * 10**12)]
)
def test_sizes_as_people_write_them(text: str, size: int):
    """Decimal units."""
    from app_trainer_sdk.cache.command import _size

    assert _size(text) == size


@pytest.mark.parametrize("text", ["", "G", "many", "infG", "-5G"])
def test_sizes_that_are_none(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]):
    """Told with what was found."""
    with pytest.raises(SystemExit):
        main(["prune", "--cache-dir", str(tmp_path), f"--max-size={text}"])
    assert repr(text) in capsys.readouterr().err


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "", "week"])
def test_ages_that_are_none(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]):
    """A negative one would remove everything."""
    with pytest.raises(SystemExit) as ending:
        main(["prune", "--cache-dir", str(tmp_path), f"--max-age-days={text}"])

    assert ending.value.code == 64
    assert f"found {text!r}; expected days, 0 or more" in capsys.readouterr().err


def test_prune_spares_what_another_process_uses(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """While that process runs, whatever the bounds are; the moment it has ended, its files may go."""
    cache = Cache(tmp_path)
    sha256 = put(cache, b"weights", days=99)
    cache.write_set("key", "title", {"model": sha256})
    code = "import sys; from pathlib import Path; from app_trainer_sdk.cache.weights import Cache; "
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
