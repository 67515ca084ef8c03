"""Results of phases, features and compiled kernels: held by who uses them, removed whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from app_trainer_sdk.cache import folders as module
from app_trainer_sdk.cache.folders import COMPILED, Folders
from app_trainer_sdk.preflight.caches import FOLDERS

DAY = 86_400.0


def put(root: Path, name: str, *, days: float = 0.0, size: int = 100, items: str = "") -> Path:
    """A folder as a job leaves it, used so many days ago."""
    folder = root / name
    (folder / "part").mkdir(parents=True)
    (folder / "part" / "file").write_bytes(bytes(size))
    if items:
        (folder / "features.json").write_text(json.dumps({"folder": items, "files": []}))
    os.utime(folder, (time.time() - days * DAY,) * 2)
    return folder


def names(folders: Folders) -> set[str]:
    return {each.name for each in folders.kept()}


def test_what_is_there(tmp_path: Path):
    """By kind, with all bytes below; what is being made is not there yet."""
    put(tmp_path, "features/toy-encode-1", days=2)
    put(tmp_path, "features/items/latents-1", size=7)
    put(tmp_path, "features/.toy-encode-2.17.tmp")
    put(tmp_path, "compile")
    put(tmp_path, "home")
    found = Folders(tmp_path).kept()

    assert [(each.kind, each.name, each.size) for each in found] == [
        ("features", "features/toy-encode-1", 100), ("items", "features/items/latents-1", 7),
        ("compiled", "compile", 100),
    ]  # fmt: skip
    assert found[0].used_at == pytest.approx(time.time() - 2 * DAY, abs=60)


def test_compiled_kernels_lie_where_libraries_are_told():
    """The folders are those that a start gives to libraries."""
    assert set(COMPILED) <= {folder for folder, _ in FOLDERS.values()}


def test_a_result_is_held_with_the_features_it_uses(tmp_path: Path):
    """Also by who held the result before it was made: the process that made it has ended."""
    folders, result = Folders(tmp_path), tmp_path / "features" / "toy-encode-1"
    folders.hold_result(result)
    put(tmp_path, "features/toy-encode-1", days=9, items="features/items/latents-1")
    put(tmp_path, "features/items/latents-1", days=9)
    other = put(tmp_path, "features/items/latents-2")
    names_held = ("features/toy-encode-1", "features/items/latents-1")

    assert [folders.remove(name) for name in names_held] == [False, False]
    assert folders.remove("features/items/latents-2") is True
    assert not other.exists()
    folders.hold_result(result)
    assert all(each.used_at == pytest.approx(time.time(), abs=60) for each in folders.kept())


def test_what_another_process_holds_goes_once_it_has_ended(tmp_path: Path):
    """Compiled kernels as a rank holds them; those of the dead may go."""
    put(tmp_path, "compile")
    code = "import sys; from pathlib import Path; from app_trainer_sdk.cache.folders import Folders; "
    code += "Folders(Path(sys.argv[1])).hold_compiled(); print('held', flush=True); sys.stdin.read()"
    running = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert running.stdout is not None
    assert running.stdout.readline() == "held\n"

    assert Folders(tmp_path).remove("compile") is False
    running.communicate()
    assert Folders(tmp_path).remove("compile") is True
    assert names(Folders(tmp_path)) == set()


def test_a_result_whose_features_are_gone_goes(tmp_path: Path):
    """Any other stays."""
    folders = Folders(tmp_path)
    put(tmp_path, "features/toy-encode-1", items="features/items/latents-1")
    put(tmp_path, "features/toy-encode-2", items="features/items/latents-2")
    put(tmp_path, "features/items/latents-2")
    put(tmp_path, "features/toy-count-3")
    folders.remove_without_items()

    assert names(folders) == {"features/toy-encode-2", "features/items/latents-2", "features/toy-count-3"}


def test_leftovers_go_when_nobody_makes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of a killed phase or removal; not what a running phase is making, what is fresh, or what is not ours."""
    folders = Folders(tmp_path)
    made = [
        put(tmp_path, name)
        for name in (
            "features/.toy-encode-1.17.tmp", "features/items/.latents-1.a-b-1-2-c.tmp",
            ".compile.a-b-1-2-c.tmp", "features/.toy-encode-2.18.tmp", ".other.1.tmp",
        )
    ]  # fmt: skip
    folders.hold(tmp_path / "features" / "toy-encode-2")

    assert folders.remove_leftovers(older_than=0.0) == 0
    monkeypatch.setattr(module, "LEASE_SECONDS", -60.0)
    assert folders.remove_leftovers(older_than=-60.0) == 300
    assert [path.exists() for path in made] == [False, False, False, True, True]
