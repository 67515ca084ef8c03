"""Where a job's files lie, and how attempts are counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from app_trainer_sdk.errors import BadJob
from app_trainer_sdk.paths import JobDirectory, cache_directory, number_from_environment

NAMES = {
    "job": "job.json", "plan": "plan.json", "metrics": "metrics.jsonl", "evaluations": "evaluations.jsonl",
    "phases": "phases.jsonl", "result": "result.json", "report": "report.md", "inputs": "inputs",
    "checkpoints": "checkpoints", "artifacts": "artifacts",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ATTEMPT", "CACHE_DIR", "NUMBER"):
        monkeypatch.delenv(f"APP_TRAINER_{name}", raising=False)


def test_the_layout_is_the_published_one(tmp_path: Path):
    """A job's state is shared by its attempts; one start's own lies below attempts/<n>."""
    layout = JobDirectory(tmp_path)

    assert {name: getattr(layout, name).relative_to(tmp_path).as_posix() for name in NAMES} == NAMES
    assert tmp_path / "attempts" / "3" == layout.attempt(3)


def test_attempts_are_counted_from_one(tmp_path: Path):
    """One more than the highest there; other names do not count."""
    layout = JobDirectory(tmp_path)

    assert layout.next_attempt() == 1
    for name in ("1", "2", "10", "x", "³"):
        layout.attempt(0).with_name(name).mkdir(parents=True)
    assert layout.next_attempt() == 11


@pytest.mark.parametrize(("given", "expected"), [("7", 7), ("1", 1), ("", 1)])
def test_a_control_plane_may_count_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, expected: int
):
    """APP_TRAINER_ATTEMPT is the fencing token."""
    monkeypatch.setenv("APP_TRAINER_ATTEMPT", given)

    assert expected == JobDirectory(tmp_path).next_attempt()


def test_the_cache_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A home is expanded; without the variable the user's cache is used where there is no /cache."""
    monkeypatch.setenv("APP_TRAINER_CACHE_DIR", "~/c")

    assert Path.home() / "c" == cache_directory()
    monkeypatch.delenv("APP_TRAINER_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() in (Path("/cache"), tmp_path / "app_trainer_sdk")


def test_a_user_without_a_home_is_told_the_variable(monkeypatch: pytest.MonkeyPatch):
    """A container may run under a number that no user has."""
    monkeypatch.setenv("APP_TRAINER_CACHE_DIR", "~nobody-of-that-name/cache")

    with pytest.raises(BadJob, match="change APP_TRAINER_CACHE_DIR"):
        cache_directory()


@pytest.mark.parametrize(
    ("given", "expected"),
    [("2.5", 2.5), ("0", 0.0), ("", 5.0), ("inf", float("inf"))],
)
def test_numbers_from_the_environment(monkeypatch: pytest.MonkeyPatch, given: str, expected: float):
    """Nothing means the default."""
    monkeypatch.setenv("APP_TRAINER_NUMBER", given)

    assert expected == number_from_environment("NUMBER", 5.0)
    monkeypatch.delenv("APP_TRAINER_NUMBER")
    assert number_from_environment("NUMBER", 5.0) == 5.0


@pytest.mark.parametrize("given", ["soon", "nan", "-4"])
def test_what_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch, given: str):
    """With the variable, what was found and what was expected; never the default in its place."""
    monkeypatch.setenv("APP_TRAINER_NUMBER", given)

    with pytest.raises(BadJob, match=f"APP_TRAINER_NUMBER is '{given}'"):
        number_from_environment("NUMBER", 5.0)


@pytest.mark.parametrize("given", ["seven", "²", "-1", "1.5", "0", "١", "9" * 20])
def test_an_attempt_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: str):
    """It is the fencing token: another number than was meant would fence the wrong start."""
    monkeypatch.setenv("APP_TRAINER_ATTEMPT", given)

    with pytest.raises(BadJob, match="change APP_TRAINER_ATTEMPT"):
        JobDirectory(tmp_path).next_attempt()
