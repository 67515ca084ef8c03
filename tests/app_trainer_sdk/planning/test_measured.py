"""What a pilot says to the next plan: used where it holds, graded where it is carried over, else told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app_trainer_sdk.choice import Candidate
from app_trainer_sdk.errors import BadJob
from app_trainer_sdk.gpus import find_card
from app_trainer_sdk.hyperparameters import Hyperparameters
from app_trainer_sdk.job import Job
from app_trainer_sdk.planning.measured import Measured, find_measured, read_measured
from app_trainer_sdk.quantities import MIB
from app_trainer_sdk.testing.toys import ToyTrainer

L4, L40S, H200 = find_card("L4"), find_card("L40S"), find_card("H200")
JOB = Job.model_validate({"trainer": "app_trainer_sdk.testing.toys:ToyTrainer", "model": "toy-mlp"})
KNOBS = {
    "microbatch": 4, "gradient_accumulation_steps": 2, "gradient_checkpointing": False, "optim_8bit": False,
}  # fmt: skip
TIMES = {"compile_seconds": 20.0, "eager_seconds": 0.5, "compiled_seconds": 0.4}


def pilot(*, device: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """``pilot.json`` of a toy on an L4, half as much again as was predicted."""
    settings = Hyperparameters.read({"updates": 7, "epochs": "auto"}).model_dump(mode="json")
    settings |= {**KNOBS, "global_batch": 8, "mixed_precision": "bf16", "torch_compile": False, "epochs": 3}
    return {
        "schema": "app.trainer.pilot/v1", "settings": settings,
        "run": {
            "trainer": ToyTrainer.name, "trainer_version": ToyTrainer.version, "model": "toy-mlp",
            "method": "full", "updates": 70, "replicas": 1,
        },
        "device": device or {"kind": "cuda", "name": "NVIDIA L4", "memory_bytes": 23_800_000_000},
        "predicted": {
            "rehearsed_bytes": 182 * MIB, "rounding_bytes": MIB, "measured_bytes": 300 * MIB,
        },
        "updates": {"seconds": 0.5}, "compile": TIMES, **changes,
    }  # fmt: skip


def measured(**changes: Any) -> Measured:
    return Measured.of(pilot(**changes), "pilot.json")


def resolved(**changes: Any) -> Hyperparameters:
    """Settings in effect, as the pilot's unless they are changed."""
    return Hyperparameters.model_construct(**{**pilot()["settings"], **changes})


def test_memory_is_corrected_by_what_was_measured():
    """Rounding and the libraries' workspace are in the measurement, so they stand on both sides."""
    assert measured().factor(L4) == pytest.approx(300 / (182 + 1 + L4.library_bytes / MIB))
    assert measured(predicted={"failed": "a loss with a branch"}).factor(L4) is None
    assert measured(device={"kind": "cpu", "name": "x86", "memory_bytes": 0}).factor(L4) is None


def test_the_same_settings_on_the_same_card_are_measured_and_others_corrected():
    """The grade says which of the two, by whom, and where it is written."""
    same = measured().grade(L4, resolved(seed=1, learning_rate=0.5, updates=9), 1)
    others = [
        measured().grade(L4, resolved(microbatch=2), 1), measured().grade(L40S, resolved(), 1),
        measured().grade(L4, resolved(), 2), measured().grade(L4, resolved(), 1, exact=False),
    ]  # fmt: skip

    assert same == "measured by the pilot on NVIDIA L4 (pilot.json); context and headroom declared"
    assert {each.partition(",")[0] for each in others} == {"predicted"}
    assert "times 1.500 as measured by the pilot on NVIDIA L4 (pilot.json)" in others[0]


@pytest.mark.parametrize(
    ("name", "gib", "card", "same"),
    [
        ("NVIDIA L4", 22.0, L4, True), ("NVIDIA L40S", 44.4, L4, False), ("NVIDIA L40S", 44.4, L40S, True),
        ("NVIDIA A100-SXM4-80GB", 79.3, find_card("A100-80"), True),
        ("NVIDIA A100-SXM4-40GB", 39.4, find_card("A100-80"), False),
        ("NVIDIA GeForce RTX 3090", 23.5, find_card("RTX-4090"), False),
        ("AMD Instinct MI300X", 191.9, find_card("MI300X"), True),
        ("NVIDIA L4", 22.0, find_card("22GiB"), False),
    ],
)  # fmt: skip
def test_one_card_has_several_names(name, gib, card, same):
    """The driver, the maker and the catalog each write it in their way."""
    device = {"kind": "cuda", "name": name, "memory_bytes": int(gib * (1 << 30))}

    assert measured(device=device).ran_on(card) is same


def test_seconds_of_an_update_are_carried_over_to_other_knobs_alone():
    """Measured where they are the same, scaled by the declared times where not, unknown on another card."""
    whole, lean = Candidate(4, 2, False, False), Candidate(4, 2, True, False)

    assert measured().seconds(L4, resolved(), whole, 1) == (0.5, "measured by the pilot on NVIDIA L4")
    seconds, grade = measured().seconds(L4, resolved(gradient_checkpointing=True), lean, 1)
    assert seconds == pytest.approx(0.5 * 4 / 3)
    assert "times a declared 1.33" in grade
    assert measured().seconds(H200, resolved(), whole, 1) is None
    assert measured().seconds(L4, resolved(global_batch=64), whole, 1) is None


def test_compile_times_hold_for_the_device_and_the_settings():
    """Knobs that a plan may choose otherwise do not matter; what the job says does."""
    asked = Hyperparameters.read({})

    assert measured().compiling("cuda", "NVIDIA L4", asked).compile_seconds == 20.0
    assert measured().compiling("cuda", "NVIDIA L4", asked).source == "the pilot (pilot.json)"
    assert measured().compiling("cuda", "NVIDIA L40S", asked) is None
    assert measured().compiling("cpu", "x86_64", asked) is None
    assert measured().compiling("cuda", "NVIDIA L4", Hyperparameters.read({"global_batch": 16})) is None
    assert measured(compile={"failed": "no compiler"}).compiling("cuda", "NVIDIA L4", asked) is None


def test_the_length_of_the_run_is_the_pilots():
    """A plan without data does not know how many updates the rows make; the pilot counted them."""
    assert measured().length(Hyperparameters.read({})) == 70
    assert measured().length(Hyperparameters.read({"epochs": 3})) == 70
    assert measured().length(Hyperparameters.read({"epochs": 4})) is None
    assert measured().length(Hyperparameters.read({"updates": 3})) is None


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (pilot(schema="app.trainer.fit/v1"), "is a app.trainer.fit/v1"),
        (pilot(run={**pilot()["run"], "model": "other"}), "is a pilot with model 'other', not 'toy-mlp'"),
        ({"schema": "app.trainer.pilot/v1"}, "is no whole pilot: KeyError: 'run'"), ([], "is no whole pilot"),
    ],
)  # fmt: skip
def test_a_pilot_of_something_else_is_not_used_and_told(tmp_path: Path, document: Any, why: str):
    """In the job's directory it is passed over with the reason; named by somebody it is refused."""
    path = tmp_path / "pilot" / "pilot.json"
    path.parent.mkdir()
    path.write_text(json.dumps(document))
    found, told = find_measured(None, tmp_path, JOB, ToyTrainer)

    assert found is None
    assert why in told
    with pytest.raises(BadJob, match="--pilot"):
        find_measured(path, None, JOB, ToyTrainer)


def test_the_pilot_of_the_directory_is_found(tmp_path: Path):
    """One that is not there is no reason for a word; a file that cannot be read is."""
    path = tmp_path / "pilot" / "pilot.json"

    assert find_measured(None, tmp_path, JOB, ToyTrainer) == (None, "")
    assert find_measured(None, None, JOB, ToyTrainer) == (None, "")
    path.parent.mkdir()
    path.write_text(json.dumps(pilot()))
    found, _ = find_measured(None, tmp_path, JOB, ToyTrainer)
    assert found == Measured.of(pilot(), str(path))
    path.write_text("{")
    assert "cannot be read" in read_measured(path, JOB, ToyTrainer)[1]
