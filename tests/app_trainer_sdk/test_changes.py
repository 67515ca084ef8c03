"""What a resume may change when somebody says so."""

from __future__ import annotations

import pytest

from app_trainer_sdk.changes import FIELDS, Difference, change_lines, check_allowed, refuse_differences
from app_trainer_sdk.errors import BadJob
from app_trainer_sdk.testing.toys import ToyTrainer

SEED = Difference("settings/seed", 42, 7)
MODEL = Difference("model", "small", "large")


def test_every_field_and_setting_may_be_named():
    """Facts about data and machine, shared settings and the trainer's own."""
    check_allowed([*FIELDS, "settings/learning_rate", "settings/dropout"], ToyTrainer)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("thread", "threads"), ("learning_rate", "settings/learning_rate"), ("settings/see", "settings/seed")],
)
def test_unknown_names_are_guessed_at(name, meant):
    """A misspelt wish is no wish: 64 with the nearest names, all of them at once."""
    with pytest.raises(BadJob, match=f"did you mean '{meant}'") as told:
        check_allowed([name, "nonsense-altogether"], ToyTrainer)

    assert [each.pointer for each in told.value.problems] == [
        f"--allow-change {name}", "--allow-change nonsense-altogether",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["trainer", "model", "method", "settings/optimizer", "settings/optim_8bit"])
def test_what_cannot_be_resumed_is_refused_with_its_reason(name):
    """No wish makes another model's checkpoint fit."""
    with pytest.raises(BadJob, match=rf"--allow-change {name}: found a change no resume can make.*\(.+\)"):
        check_allowed(["threads", name], ToyTrainer)


def test_differences_are_refused_with_the_way_out():
    """Field, saved value and the one of now; the option that allows it."""
    with pytest.raises(BadJob) as told:
        refuse_differences([SEED], where="step-00000400")

    assert str(told.value.problems[0]) == "settings/seed: found 7; expected 42, as in the checkpoint"
    assert "differs from step-00000400" in str(told.value)
    assert "--allow-change FIELD" in str(told.value)


def test_what_can_never_be_allowed_has_no_way_out():
    """The option is not advertised where it would not help, and does not help when it is there."""
    with pytest.raises(BadJob, match="those of its model") as told:
        refuse_differences([SEED, MODEL], where="step-00000400", allowed=["model", "settings/seed"])

    assert "--allow-change" not in str(told.value)
    assert [each.pointer for each in told.value.problems] == ["model"]


def test_allowed_differences_pass():
    """Nothing is raised, and the record says what was and what is."""
    refuse_differences([SEED], where="step-00000400", allowed=["settings/seed"])

    assert change_lines([SEED.record(400)]) == [
        "changed on resume after update 400: settings/seed was 42, is 7"
    ]
