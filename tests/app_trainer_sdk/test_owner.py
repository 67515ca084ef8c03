"""Who a process is, and whether the one that a name speaks of still works."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from app_trainer_sdk.owner import is_alive, is_owned, new_token


def heart(folder: Path, *, age: float = 0.0) -> Path:
    path = folder / "claimed" / "heartbeat"
    path.parent.mkdir(exist_ok=True)
    path.touch()
    os.utime(path, (path.stat().st_mtime - age,) * 2)
    return path


def test_this_process_is_alive_whatever_its_heartbeat_says(tmp_path: Path):
    """In its own PID namespace the process table knows better; each token is another."""
    assert is_alive(new_token(), heart(tmp_path, age=1e6))
    assert new_token() != new_token()


def test_a_process_that_ended_is_not_alive(tmp_path: Path):
    """At once, however fresh its heartbeat; nor is a number that another process has now."""
    code = "from app_trainer_sdk.owner import new_token; print(new_token())"
    token = subprocess.check_output([sys.executable, "-c", code], text=True).strip()
    parts = new_token().split("-")

    assert not is_alive(token, heart(tmp_path))
    assert not is_alive("-".join([*parts[:3], "1", parts[4]]), heart(tmp_path))


def test_elsewhere_the_heartbeat_decides(tmp_path: Path):
    """Another machine or container: fresh is alive, old or missing is not, and nothing is left beside."""
    elsewhere = "0123456789ab-1-1-1-00000000"

    assert is_alive(elsewhere, heart(tmp_path))
    assert not is_alive(elsewhere, heart(tmp_path, age=60.0))
    assert is_alive(elsewhere, heart(tmp_path, age=60.0), expires=600.0)
    assert not is_alive(elsewhere, tmp_path / "claimed" / "nothing")
    assert [each.name for each in tmp_path.iterdir()] == ["claimed"]


def test_a_folder_is_owned_by_whom_its_name_says(tmp_path: Path):
    """As long as they live; one that was released has no owner, however fresh its heartbeat."""
    released = heart(tmp_path).parent
    mine = tmp_path / f"key.{new_token()}"
    theirs = tmp_path / "key.0123456789ab-1-1-1-00000000"
    mine.mkdir()
    theirs.mkdir()

    assert is_owned(mine)
    assert not is_owned(theirs)
    assert not is_owned(released)
