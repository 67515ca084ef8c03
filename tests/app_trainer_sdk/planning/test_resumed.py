"""Whether a run that is taken up fits the card that is there now."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from stand_in import JOB, Planning

from app_trainer_sdk.attempt.preparation import Wishes, _foresee
from app_trainer_sdk.errors import HardwareUnfit
from app_trainer_sdk.files import write_json
from app_trainer_sdk.gpus import find_card
from app_trainer_sdk.plan import Effective, Plan
from app_trainer_sdk.planning.fit import Foresight, cards_to_plan_for
from app_trainer_sdk.planning.resumed import refuse_too_small_cards
from app_trainer_sdk.quantities import GIB
from app_trainer_sdk.testing.toys import ToyTrainer

L4, H200 = find_card("L4"), find_card("H200")
MEMORY = {
    "peak_bytes": 30 * GIB, "rounding_bytes": 1000, "exchange_bytes": 0, "correction_bytes": 0,
    "needed_bytes": 33 * GIB, "available_bytes": H200.memory_bytes,
}  # fmt: skip
SETTINGS = {
    "global_batch": 16, "microbatch": 8, "gradient_accumulation_steps": 2, "gradient_checkpointing": False,
    "optim_8bit": False, "mixed_precision": "bf16",
}  # fmt: skip
Save = Callable[..., Path]


def planning_of(*, fits: bool = True) -> Planning:
    return Planning(SETTINGS, fits=fits, needed=33 * GIB, saved=GIB)


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """A checkpoint of a run, planned for an H200."""

    def make(
        step: int = 10, *, memory: Mapping[str, int] | None = MEMORY, halved: int = 0, ended: str = ""
    ) -> Path:
        folder = tmp_path / f"step-{step:08}"
        folder.mkdir()
        fit = {} if memory is None else {"card": dataclasses.asdict(H200), "memory": dict(memory)}
        plan = Plan(
            trainer="t", trainer_version="1", model="toy-mlp", method="full", updates=20,
            examples_per_update=16, examples_seen=320, rows=100, updates_per_epoch=7,
            replicas=1, threads=2, precision="bf16",
            device="cuda", batch="8 × 2 × 1 = 16", fit=fit,
            settings={name: Effective("auto", value, "w") for name, value in SETTINGS.items()},
        )  # fmt: skip
        write_json(folder / "plan.json", plan.document())
        write_json(
            folder / "state.json",
            {"counters": {"microbatch": halved}, "driver": {"ended": ended, "evaluations_pending": 0}},
        )
        files = {each.name: {"size": each.stat().st_size, "sha256": ""} for each in folder.iterdir()}
        write_json(folder / "manifest.json", {"run": "r", "step": step, "files": files})
        return tmp_path

    return make


def test_a_card_that_holds_the_saved_plan_is_not_planned_for(save: Save):
    """By its own context, libraries and headroom; nor is anything asked without a card or a checkpoint."""
    planning, folder = planning_of(), save()
    for cards in ([H200], [find_card("L40S")], []):
        refuse_too_small_cards(folder, JOB, ToyTrainer, cards, ask=planning)
    refuse_too_small_cards(folder / "none", JOB, ToyTrainer, [L4], ask=planning)

    assert planning.requests == []


def test_a_smaller_card_is_refused_with_what_fits(save: Save):
    """E3: 78 before anything is loaded, with the run's own knobs and the nearest settings."""
    planning, folder = planning_of(fits=False), save()
    with pytest.raises(HardwareUnfit) as told:
        refuse_too_small_cards(folder, JOB, ToyTrainer, [L4], ask=planning)
    asked = planning.requests[0]["job"]["hyperparameters"]

    assert told.value.code == 78
    assert "step-00000010 is of a run that was planned for NVIDIA H200" in str(told.value)
    assert "NVIDIA L4 24 GB has 21.90 GiB" in str(told.value)
    assert "microbatch 1 or a H200" in str(told.value)
    assert "--allow-change" in str(told.value)
    assert {name: asked[name] for name in SETTINGS} == {**SETTINGS, "gradient_accumulation_steps": "auto"}


def test_the_planner_has_the_last_word(save: Save):
    """What a saved plan says may be too much by now, such as after memory ran out and rows were halved."""
    planning, folder = planning_of(), save(halved=2)
    refuse_too_small_cards(folder, JOB, ToyTrainer, [L4], ask=planning)

    assert planning.requests[0]["job"]["hyperparameters"]["microbatch"] == 2


def test_the_newest_whole_checkpoint_is_what_is_taken_up(save: Save):
    planning = planning_of(fits=False)
    save(10)
    folder = save(15, memory={**MEMORY, "peak_bytes": GIB})
    refuse_too_small_cards(folder, JOB, ToyTrainer, [L4], ask=planning)
    (folder / "step-00000015" / "plan.json").write_text("cut")

    with pytest.raises(HardwareUnfit):
        refuse_too_small_cards(folder, JOB, ToyTrainer, [L4], ask=planning)


def test_settings_that_may_change_are_planned_whatever_the_plan_says(save: Save):
    planning, folder = planning_of(), save()
    job = JOB.model_copy(update={"hyperparameters": {"microbatch": 4, "optim_8bit": "auto"}})
    refuse_too_small_cards(folder, job, ToyTrainer, [H200], changes=True, ask=planning)
    asked = planning.requests[0]["job"]["hyperparameters"]

    assert (asked["microbatch"], asked["optim_8bit"]) == (4, False)


@pytest.mark.parametrize("saved", [{"memory": None}, {"step": 20}, {"ended": "patience"}], ids=str)
def test_a_run_whose_memory_nobody_planned_and_one_that_is_trained_go_on(save: Save, saved: dict[str, Any]):
    planning = planning_of(fits=False)
    refuse_too_small_cards(save(**saved), JOB, ToyTrainer, [L4], ask=planning)

    assert planning.requests == []


def test_a_start_asks_before_anything_is_fetched(save: Save, monkeypatch: pytest.MonkeyPatch):
    """Also of a run with a checkpoint, and with the card that ``--gpu`` names."""
    refuses = 'print(\'{"error": {"code": 78, "message": "too small"}}\')'
    monkeypatch.setattr("app_trainer_sdk.planning.process.PROGRAM", (sys.executable, "-c", refuses))
    desk: Any = SimpleNamespace(layout=SimpleNamespace(checkpoints=save(), root=Path("/nowhere")), job=JOB)
    wishes = [Wishes(1, (), Foresight(cards=cards_to_plan_for(card))) for card in ("L4", "none")]

    with pytest.raises(HardwareUnfit, match=r"was planned for NVIDIA H200 .*too small"):
        _foresee(desk, wishes[0], ToyTrainer)
    assert _foresee(desk, wishes[1], ToyTrainer) == {}
