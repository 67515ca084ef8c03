"""Of a file in the making what is said to be there is, and nothing is written once it is given up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from claimed import owned

from app_trainer_sdk.transfers import partial as module
from app_trainer_sdk.transfers.faults import Abandoned
from app_trainer_sdk.transfers.partial import State, part_lengths


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
