"""A file in the making has one owner at a time."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from claimed import owned, take

from app_trainer_sdk.owner import EXPIRES_SECONDS
from app_trainer_sdk.transfers import partial as module
from app_trainer_sdk.transfers.claims import claim
from app_trainer_sdk.transfers.partial import Lost, State
from app_trainer_sdk.transfers.pauses import RealClock

DEAD = "0123456789ab-1-1-1-00000000"


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
        each.join(120.0)

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


def test_a_folder_that_cannot_be_written_is_an_error_and_not_a_wait(tmp_path: Path):
    """A file where the folder should be."""
    (tmp_path / "partials").write_text("")
    with pytest.raises(OSError, match="partials"):
        take(tmp_path / "partials", looks=5)
