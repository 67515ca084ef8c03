"""A file in the making has one owner at a time, and what is said to be there is."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from app_trainer_sdk.transfers import partial as module
from app_trainer_sdk.transfers.claims import claim
from app_trainer_sdk.transfers.faults import Abandoned
from app_trainer_sdk.transfers.owner import EXPIRES_SECONDS
from app_trainer_sdk.transfers.partial import Lost, Partial, State, part_lengths
from app_trainer_sdk.transfers.pauses import RealClock

DEAD = "0123456789ab-1-1-1-00000000"


def take(folder: Path, *, ready: bool = False, looks: int = 0, waiting: Any = lambda: None) -> Partial | None:
    def check() -> None:
        nonlocal looks
        looks -= 1
        if looks < 0:
            raise InterruptedError

    return claim(folder, "key", ready=lambda: ready, check=check, clock=RealClock(), waiting=waiting)


def owned(folder: Path) -> Partial:
    found = take(folder, looks=3)
    assert found is not None
    return found


def test_one_owner_at_a_time(tmp_path: Path):
    """Another waits, is told to stop, and gets it once it is released."""
    first = owned(tmp_path)
    with pytest.raises(InterruptedError):
        take(tmp_path, looks=1)
    first.begin(State(4, 2, [0, 0]), keep=True)
    first.release()

    assert [each.name for each in tmp_path.iterdir()] == ["key"]
    assert owned(tmp_path).load() == State(4, 2, [0, 0])
    assert take(tmp_path, ready=True) is None


def test_a_dead_owners_file_is_adopted(tmp_path: Path):
    """Its claim is old and nobody beats: it is gone on with at once."""
    before = owned(tmp_path)
    before.begin(State(4, 2, [0, 0]), keep=True)
    before.open_writer(State(4, 2, [0, 0]), 1).write(b"ab", 2, 2)
    before.release()
    (tmp_path / "key").rename(tmp_path / f"key.{DEAD}")
    (tmp_path / f"key.{DEAD}" / "heartbeat").unlink()

    assert owned(tmp_path).load() == State(4, 2, [0, 2])


ELSEWHERE = "ffffffffffff-1-1-1-00000000"


def test_an_owner_that_cannot_be_looked_up_is_waited_for_while_it_beats(tmp_path: Path):
    """One of another container: told each time, and left when somebody wants to stop, until it expires."""
    theirs, told = tmp_path / f"key.{ELSEWHERE}", []
    theirs.mkdir()
    beat = theirs / "heartbeat"
    beat.touch()
    with pytest.raises(InterruptedError):
        take(tmp_path, looks=2, waiting=lambda: told.append(1))
    assert len(told) == 2
    at = beat.stat().st_mtime - EXPIRES_SECONDS
    os.utime(beat, (at, at))

    assert owned(tmp_path).data.parent != theirs
    assert len(told) == 2


def test_many_threads_that_claim_take_turns(tmp_path: Path):
    """A rename has one winner: nobody works while another does."""
    inside, most, errors = [], [], []

    def work() -> None:
        try:
            mine = claim(tmp_path, "key", ready=lambda: False, check=lambda: None, clock=RealClock())
            assert mine is not None
            inside.append(1)
            most.append(len(inside))
            inside.pop()
            mine.release()
        except BaseException as error:  # noqa: BLE001 - told below
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(30.0)

    assert errors == []
    assert len(most) == 6
    assert list(tmp_path.iterdir()) == []  # nothing came, so nothing is kept


def test_an_owner_that_was_taken_for_dead_notices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Held up for long, it looks again before it writes, and makes no folder of the old name."""
    mine = owned(tmp_path)
    state = State(4, 4, [0])
    mine.begin(state, keep=True)
    writer = mine.open_writer(state, 0)
    mine.data.parent.rename(tmp_path / f"key.{DEAD}")
    monkeypatch.setattr(module, "BEAT_SECONDS", -1.0)
    with pytest.raises(Lost):
        writer.write(b"ab", 0, 2)
    with pytest.raises(Lost):
        mine.finish(tmp_path / "final")
    mine.save(state)
    mine.release()

    assert [each.name for each in tmp_path.iterdir()] == [f"key.{DEAD}"]
    assert state.done == [0]


def test_nothing_is_written_through_a_closed_slot(tmp_path: Path):
    """A thread that comes back late cannot touch a file that has its final name."""
    mine, state = owned(tmp_path), State(4, 4, [0])
    mine.begin(state, keep=True)
    writer = mine.open_writer(state, 0)
    writer.write(b"abcd", 0, 4)
    writer.close()
    mine.finish(tmp_path / "final", read_only=True)
    with pytest.raises(Abandoned):
        writer.write(b"wxyz", 0, 4)

    assert (tmp_path / "final").read_bytes() == b"abcd"
    assert (tmp_path / "final").stat().st_mode & 0o777 == 0o444
    assert [each.name for each in tmp_path.iterdir()] == ["final"]


@pytest.mark.parametrize(
    "change",
    [
        {"size": 5}, {"part_bytes": 1}, {"part_bytes": 0}, {"done": [2]}, {"done": [3, 0]},
        {"done": [-1, 0], "boot": ""}, {"done": "x"}, {"etags": 3}, {"boot": None, "size": "x"},
    ],
)  # fmt: skip
def test_a_state_that_cannot_be_is_not_believed(tmp_path: Path, change: dict[str, object]):
    """Another size, impossible parts, nonsense: begun anew, and never an error."""
    mine = owned(tmp_path)
    mine.begin(State(4, 2, [2, 1]), keep=True)
    path = mine.data.with_name("state.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))

    assert mine.load() is None


def test_a_part_that_is_begun_anew_is_at_its_beginning_after_a_kill(tmp_path: Path):
    """Positions tell of a rewind, too."""
    mine, state = owned(tmp_path), State(4, 2, [0, 0])
    mine.begin(state, keep=True)
    mine.open_writer(state, 1).write(b"ab", 2, 2)
    mine.rewind(1)

    assert mine.load() == State(4, 2, [0, 0])


def test_a_folder_that_cannot_be_written_is_an_error_and_not_a_wait(tmp_path: Path):
    """A file where the folder should be."""
    (tmp_path / "partials").write_text("")
    with pytest.raises(OSError, match="partials"):
        take(tmp_path / "partials", looks=5)


def test_parts_cover_a_file():
    """The last is what is left; an empty file has none."""
    assert part_lengths(5, 2) == [2, 2, 1]
    assert part_lengths(0, 2) == []


def test_wrong_bytes_are_put_away_only_where_the_right_ones_still_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Never gone on with, kept to be looked at, and never the reason that a disk is full."""
    for room, kept in ((4, True), (3, False)):
        monkeypatch.setattr(module, "free_bytes", lambda folder, room=room: room)
        mine = owned(tmp_path)
        mine.begin(State(4, 4, [4]), keep=True)
        mine.quarantine()

        assert mine.load() is None
        assert not mine.data.exists()
        assert (mine.data.with_name("wrong")).exists() is kept
        mine.release()
