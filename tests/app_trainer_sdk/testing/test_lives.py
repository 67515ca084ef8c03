"""Promises about whole jobs are judged by what those jobs left."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from app_trainer_sdk.files import write_json
from app_trainer_sdk.paths import JobDirectory
from app_trainer_sdk.testing import lives
from app_trainer_sdk.testing.processes import Life
from app_trainer_sdk.testing.verdict import BrokenPromise, NotApplicable


@pytest.fixture(autouse=True)
def _surroundings(tmp_path, monkeypatch):
    monkeypatch.setenv("APP_TRAINER_CACHE_DIR", str(tmp_path / "cache"))


def life(
    folder: Path, *, code: int = 0, step: int = -1, loss: float = 1.0, weights: bytes = b"w", **result
) -> Life:
    """A job that ended, as its directory tells."""
    layout = JobDirectory(folder)
    (layout.artifacts / "weights").mkdir(parents=True)
    (layout.artifacts / "weights" / "model").write_bytes(weights)
    write_json(layout.metrics, {"step": 1, "loss": loss, "seconds": hash(folder)})
    layout.metrics.write_text(layout.metrics.read_text().replace("\n", " ") + "\n")
    return Life(
        layout, code, {"replay": {"asked": 1}, **result}, step, "Traceback ...\n", step if step >= 0 else None
    )


def lived(**each):
    return SimpleNamespace(
        lives=SimpleNamespace(**{name: (lambda value=value: value) for name, value in each.items()})
    )


def test_equal_lives_keep_the_promise_whatever_time_they_took(tmp_path):
    """Time fields are the only ones that may differ."""
    subject = lived(whole=life(tmp_path / "a"), killed=life(tmp_path / "b", step=3))

    assert lives.killed_and_resumed(subject) == "killed after update 3"


def test_a_stream_that_cannot_go_on_need_not_be_bit_identical(tmp_path):
    """A job whose data order is known to be lost goes on after a kill, and is not compared."""
    stream = {"resume": "not exact"}
    whole, other = life(tmp_path / "a", stream=stream), life(tmp_path / "b", step=3, loss=2.0, stream=stream)
    with pytest.raises(NotApplicable, match="cannot go on where it was"):
        lives.killed_and_resumed(lived(whole=whole, killed=other))


@pytest.mark.parametrize(
    ("killed", "told"),
    [
        ({"loss": 2.0}, "resumed after update 3, loss of step 1 in metrics.jsonl is 2.0 and not 1.0"),
        ({"weights": b"v"}, "equal metrics gave another file weights/model of the artifact"),
        ({"code": 70, "failure": {"message": "no such tensor"}}, "ended with code 70: no such tensor"),
    ],
)
def test_unequal_lives_are_told_apart(tmp_path, killed, told):
    """The first difference is the reason."""
    subject = lived(whole=life(tmp_path / "a"), killed=life(tmp_path / "b", step=3, **killed))

    with pytest.raises(BrokenPromise, match=told):
        lives.killed_and_resumed(subject)


def test_another_answer_in_a_new_process_breaks_the_replay(tmp_path):
    """The run's own comparison is the reason; training itself is not blamed."""
    failure = {"message": "the exported weights answers [2]; expected [1], as before export", "phase": "replay"}
    subject = lived(whole=life(tmp_path / "a", code=70, failure=failure))

    assert lives.whole_run(subject) == "1 updates"
    with pytest.raises(BrokenPromise, match=r"answers \[2\]; expected \[1\]"):
        lives.replayed(subject)


def test_a_stop_that_ends_otherwise_is_told(tmp_path):
    """Anything but 75 after SIGTERM breaks the promise."""
    subject = lived(stopped=life(tmp_path / "a", code=0, status="succeeded"))

    with pytest.raises(BrokenPromise, match="after SIGTERM the job ended with code 0"):
        lives.stopped(subject)
