"""Who uses what: a lease lives as long as its process, and what is held is not moved for a moment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from app_trainer_sdk.cache.leases import Leases, remove_unless


def test_the_leases_of_the_dead_are_cleared_away(tmp_path: Path):
    """And those of the living are all told."""
    code = "import sys; from pathlib import Path; from app_trainer_sdk.cache.leases import Leases; "
    code += "Leases(Path(sys.argv[1])).take(['theirs'])"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    leases = Leases(tmp_path)
    leases.take(["mine"])
    leases.take([])
    leases.take(["also"])

    assert leases.taken() == {"mine", "also"}
    assert len(list((tmp_path / "uses").iterdir())) == 2


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_who_holds_late_gets_it_back_or_has_made_it_anew(tmp_path: Path, kind: str):
    """What is held from the start is not touched; the name that went stays gone, with nothing beside."""
    path, asked = tmp_path / "it", []

    def make(text: str) -> None:
        file = path if kind == "file" else path / "file"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)

    def late(*, anew: bool) -> bool:
        asked.append(path.exists())
        if anew and len(asked) == 2:
            make("new")
        return len(asked) == 2

    def text() -> str:
        return (path if kind == "file" else path / "file").read_text()

    make("old")
    assert remove_unless(lambda: True, path) is False
    assert remove_unless(lambda: late(anew=False), path) is False
    assert (asked, text()) == ([True, False], "old")
    asked.clear()
    assert remove_unless(lambda: late(anew=True), path) is False
    assert text() == "new"
    assert remove_unless(lambda: False, path) is True
    assert remove_unless(lambda: False, path) is True
    assert list(tmp_path.iterdir()) == []
