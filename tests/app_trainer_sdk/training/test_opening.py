"""Opening a job in a rank: the plan of a fresh start, and what a resume may and may not change."""

from __future__ import annotations

import dataclasses
import json
import shutil
import types
from pathlib import Path

import pytest
from torch import nn
from torch_helpers import StillProbe, drive_opened, make_trainer, read_lines

from app_trainer_sdk.cache.folders import COMPILED, Folders
from app_trainer_sdk.errors import BadData, BadJob, HardwareUnfit, InternalError
from app_trainer_sdk.files import read_json
from app_trainer_sdk.plan import DeviceFacts, Effective, Plan, plan_lines
from app_trainer_sdk.start import Start
from app_trainer_sdk.training.checkpoint import load_checkpoint
from app_trainer_sdk.training.ledger import Ledger
from app_trainer_sdk.training.opening import _refuse_ranks, open_job, prepare, settle_plan, store_of
from app_trainer_sdk.training.order import Order
from app_trainer_sdk.values import Snapshot

TOY, OWN_LOOP = "app_trainer_sdk.testing.toys:ToyTrainer", "small_models:Wanderer"
SETTINGS = {"rows": 12, "validation_rows": 0, "updates": 3, "global_batch": 4, "checkpoint_every": 1}


def start_of(directory, attempt=1, *, allow=(), trainer=TOY, fit=None, **settings):
    directory.mkdir(exist_ok=True)
    asked = {"updates": 3, "checkpoint_every": 1} if trainer == OWN_LOOP else SETTINGS
    job = {
        "schema": "app.trainer.job/v1", "job_id": "j", "trainer": trainer,
        "model": "none" if trainer == OWN_LOOP else "toy-mlp", "hyperparameters": {**asked, **settings},
    }  # fmt: skip
    return Start(
        directory=str(directory), attempt=attempt, cache=str(directory / "cache"), job=job,
        allow_changes=[*allow], fit=fit or {},
    )  # fmt: skip


def opened(start):
    ledger = Ledger(StillProbe(), lambda row: None, policy="report")
    return open_job(start, ledger=ledger, check=lambda: None, progress=lambda *_: None), ledger


def trained(start, *, stop_at=0):
    """Open, plan, prepare and train; the plan used."""
    job, ledger = opened(start)
    store = store_of(start.layout, start)
    plan, _ = settle_plan(job, start, store)
    drive_opened(prepare(job, plan, ledger), start, plan, store, stop_at=stop_at)
    return plan


def settled(start):
    job, _ = opened(start)
    return settle_plan(job, start, store_of(start.layout, start))


def test_compiled_kernels_are_held(tmp_path):
    """Also where nothing is compiled yet."""
    start = start_of(tmp_path / "job")
    opened(start)

    assert Folders(Path(start.cache)).in_use() >= {*COMPILED}


def test_a_fresh_plan_is_written(tmp_path):
    """The plan of a first start is resolved from job, data and device, and lies in the job's directory."""
    start = start_of(tmp_path)
    plan, checkpoint = settled(start)

    assert (plan.updates, plan.examples_per_update, plan.rows, checkpoint) == (3, 4, 12, None)
    assert Plan.from_document(json.loads(start.layout.plan.read_text())) == plan


def test_settings_are_decided(tmp_path):
    """Once prepared, no setting the trainer sees is ``auto``."""
    start = start_of(tmp_path)
    job, ledger = opened(start)
    plan, _ = settle_plan(job, start, store_of(start.layout, start))
    run = prepare(job, plan, ledger).run

    assert "auto" not in run.settings.model_dump().values()
    assert str(run.dtype) == "torch.float32"


def test_a_resume_uses_the_saved_plan(tmp_path):
    """A second start finds the newest checkpoint and its plan, cadence aside."""
    first = trained(start_of(tmp_path), stop_at=4)
    plan, checkpoint = settled(start_of(tmp_path, attempt=2, checkpoint_every=2, evaluate_every=1))

    assert checkpoint.step == 2
    assert plan.settings["checkpoint_every"].effective == 2
    assert plan.settings["evaluate_every"].effective == 1
    assert dataclasses.replace(plan, settings={}) == dataclasses.replace(first, settings={})


FIT = {
    "settings": {
        "microbatch": {"requested": "auto", "effective": 2, "why": "the fastest split of the update that fits"},
        "gradient_checkpointing": {"requested": "auto", "effective": True, "why": "saves what would not fit"},
        "optim_8bit": {"requested": False, "effective": False, "why": "asked for"},
        "mixed_precision": {"requested": "auto", "effective": "bf16", "why": "L4 has bf16 arithmetic"},
    },
    "card": {"name": "L4"}, "considered": [{"verdict": "fits"}],
}  # fmt: skip


def test_a_plan_for_a_card_is_kept_and_never_made_again(tmp_path):
    """The knobs chosen for the card that was there are the run's; a resume elsewhere goes on with them."""
    first = trained(start_of(tmp_path, fit=FIT, optim_8bit=False), stop_at=4)
    larger = {"settings": {"microbatch": {"requested": "auto", "effective": 4, "why": "it fits"}}}
    again, checkpoint = settled(start_of(tmp_path, attempt=2, fit=larger, optim_8bit=False))
    nowhere, _ = settled(start_of(tmp_path, attempt=3, optim_8bit=False))
    knobs = first.settings

    assert checkpoint is not None
    assert (knobs["microbatch"].effective, knobs["gradient_accumulation_steps"].effective) == (2, 2)
    assert knobs["gradient_checkpointing"] == Effective("auto", True, "saves what would not fit")
    assert knobs["mixed_precision"].effective == "no"  # which is fast is the device's own to say
    assert first.fit == {"card": {"name": "L4"}, "considered": [{"verdict": "fits"}]}
    assert first == again == nowhere


def test_what_a_pilot_measured_decides_whether_to_compile(tmp_path):
    """For the updates that are really made; measured elsewhere it decides nothing."""
    facts = opened(start_of(tmp_path))[0].facts
    measured = {
        "source": "pilot.json", "device": {"kind": "cpu", "name": facts.name, "memory_bytes": 0},
        "settings": {**opened(start_of(tmp_path))[0].asked.model_dump(mode="json")}, "replicas": 1,
        "measured_bytes": None, "predicted_bytes": 0, "rounding_bytes": 0, "update_seconds": 1.0, "updates": 9,
        "compile_times": {"compile_seconds": 1.0, "eager_seconds": 1.0, "compiled_seconds": 0.5},
    }  # fmt: skip
    start = dataclasses.replace(start_of(tmp_path), measured=measured)
    elsewhere = {**measured, "device": {**measured["device"], "kind": "cuda"}}
    plan, _ = settled(start)

    assert plan.settings["torch_compile"].effective is True
    assert "after 2 updates of the 3 to make; the pilot (pilot.json)" in plan.settings["torch_compile"].why
    plan, _ = settled(dataclasses.replace(start, measured=elsewhere))
    assert plan.settings["torch_compile"].effective is False


@pytest.mark.parametrize(
    ("change", "field", "saved", "now"),
    [
        ({"seed": 7}, "settings/seed", "42", "7"),
        ({"rows": 16}, "dataset", "'toy-12'", "'toy-16'"),
        ({"learning_rate": 0.5}, "settings/learning_rate", "0.001", "0.5"),
        ({"updates": 4}, "settings/updates", "3", "4"),
    ],
)
def test_a_changed_job_is_refused(tmp_path, change, field, saved, now):
    """B6: a resume that would not be exact is refused before a weight is loaded, field by field."""
    trained(start_of(tmp_path), stop_at=4)
    with pytest.raises(BadJob, match="differs from step-00000002") as told:
        settled(start_of(tmp_path, attempt=2, **change))
    problems = {problem.pointer: problem for problem in told.value.problems}

    assert problems[field].found == now
    assert problems[field].expected.startswith(saved)


class TestAllowed:
    CHANGE = "settings/learning_rate"

    def test_the_new_value_is_used_and_recorded(self, tmp_path):
        """An allowed change is what the run uses from here on, with the reason, and is kept with the plan."""
        trained(start_of(tmp_path), stop_at=4)
        start = start_of(tmp_path, attempt=2, allow=[self.CHANGE], learning_rate=0.5)
        plan = trained(start)
        knob = plan.settings["learning_rate"]
        rates = [line["learning_rate"] for line in read_lines(start.layout.metrics)]

        assert knob == Effective(0.5, 0.5, "asked for; changed on resume after update 2, was 0.001")
        assert [*plan.changed] == [{"field": self.CHANGE, "saved": 0.001, "now": 0.5, "step": 2}]
        assert Plan.from_document(read_json(start.layout.plan)) == plan
        assert (rates[0], rates[2]) == (0.001, pytest.approx(0.25))
        assert read_json(start.layout.job)["hyperparameters"]["learning_rate"] == 0.5

    def test_changes_add_up_over_resumes(self, tmp_path):
        """Each change is told for ever with its own update, and needs to be allowed once."""
        trained(start_of(tmp_path), stop_at=2)
        second = {"attempt": 2, "allow": [self.CHANGE], "learning_rate": 0.5}
        trained(start_of(tmp_path, **second), stop_at=2)
        third = {"allow": ["settings/weight_decay"], "learning_rate": 0.5, "weight_decay": 0.1}
        plan, checkpoint = settled(start_of(tmp_path, attempt=3, **third))

        assert [(each["field"], each["step"]) for each in plan.changed] == [
            (self.CHANGE, 1), ("settings/weight_decay", 2),
        ]  # fmt: skip
        assert checkpoint.step == 2
        assert "changed on resume after update 1" in plan.settings["learning_rate"].why
        assert [line for line in plan_lines(plan) if "was 0.0, is 0.1" in line]

    def test_what_was_not_allowed_is_still_refused(self, tmp_path):
        """The refusal names the difference that nobody allowed, and the option."""
        trained(start_of(tmp_path), stop_at=4)
        with pytest.raises(BadJob, match="--allow-change FIELD") as told:
            settled(start_of(tmp_path, attempt=2, allow=[self.CHANGE], learning_rate=0.5, seed=7))

        assert [problem.pointer for problem in told.value.problems] == ["settings/seed"]

    @pytest.mark.parametrize(("updates", "fits"), [(2, False), (1, False), (5, True)])
    def test_more_and_fewer_updates(self, tmp_path, updates, fits):
        """A run may be made longer, or shorter down to what was made already."""
        trained(start_of(tmp_path), stop_at=4)
        start = start_of(tmp_path, attempt=2, allow=["settings/updates"], updates=updates)
        if not fits:
            with pytest.raises(BadJob, match=f"updates is {updates}, and 2 have been made"):
                settled(start)
            return
        trained(start)

        assert [line["step"] for line in read_lines(start.layout.metrics)] == [1, 2, 3, 4, 5]

    def test_another_batch(self, tmp_path):
        """B1: with another batch from the middle of a pass on, that pass still visits each row once."""
        trained(start_of(tmp_path, updates=6), stop_at=2)
        fields = ["global_batch", "microbatch", "updates"]
        start = start_of(
            tmp_path, attempt=2, allow=[f"settings/{name}" for name in fields], global_batch=3, updates=4
        )
        plan = trained(start)
        lines = read_lines(start.layout.metrics)

        assert plan.examples_per_update == 3
        assert [line["examples"] for line in lines] == [4, 3, 3, 2]
        assert lines[1]["ids"] == Order(12, 3, seed=42).window(4).digest()

    def test_a_checkpoint_that_does_not_fit(self, tmp_path):
        """A setting of the image that changes shapes is the job's mistake, told with what does not fit."""
        trained(start_of(tmp_path), stop_at=4)
        start = start_of(tmp_path, attempt=2, allow=[self.CHANGE], learning_rate=0.5)
        job, ledger = opened(start)
        store = store_of(start.layout, start)
        plan, _ = settle_plan(job, start, store)
        wider = make_trainer(lambda run: nn.Linear(3, 1), None, [1.0])()

        with pytest.raises(BadJob, match=r"with settings/learning_rate changed .* does not fit: .* is missing"):
            drive_opened(dataclasses.replace(prepare(job, plan, ledger), trainer=wider), start, plan, store)


class TestRandom:
    """Checkpoints that are whole and yet lack the generators' state."""

    @staticmethod
    def forgetful(start, *names):
        """Save the newest checkpoint again without the state of some generators."""
        store = store_of(start.layout, start)
        newest, _ = store.newest()
        saved = load_checkpoint(newest)
        kept = {name: each for name, each in saved.tensors.items() if name not in names}
        documents = {name: read_json(newest.path / name) for name in ("plan.json", "identity.json")}
        store.save(newest.step, Snapshot(kept, saved.values), documents)

    @pytest.mark.parametrize("trainer", [TOY, OWN_LOOP])
    def test_refused_unless_it_is_allowed(self, tmp_path, trainer):
        """Missing states are refused by name, with the option; allowed, the result tells what was done."""
        start = start_of(tmp_path, trainer=trainer)
        trained(start, stop_at=2)
        self.forgetful(start, "random/numpy", "random/torch")
        with pytest.raises(BadJob, match="--allow-change FIELD") as told:
            settled(start_of(tmp_path, attempt=2, trainer=trainer))
        plan = trained(start_of(tmp_path, attempt=2, trainer=trainer, allow=["random"]))
        (change,) = plan.changed

        assert str(told.value.problems[0]) == (
            "random: found no state of numpy, no state of torch; "
            "expected the state of every generator, in this version's form"
        )
        assert (change["field"], change["saved"]) == ("random", "no state of numpy, no state of torch")
        assert change["now"].startswith("seeded anew by the seed and the update")
        assert ("does not need them" in change["now"]) == (trainer != OWN_LOOP)

    def test_the_ordinary_loop_goes_on_exactly(self, tmp_path):
        """It draws by position: without the generators' state it still makes the same numbers."""
        whole, cut = start_of(tmp_path / "whole"), start_of(tmp_path / "cut")
        trained(whole)
        trained(cut, stop_at=2)
        self.forgetful(cut, "random/python", "random/numpy", "random/torch")
        trained(start_of(tmp_path / "cut", attempt=2, allow=["random"]))

        assert read_lines(cut.layout.metrics) == read_lines(whole.layout.metrics)

    def test_a_loop_of_its_own_begins_new_draws(self, tmp_path):
        """Neither those after the checkpoint nor those of the first update, and the same at each try."""
        lines = []
        for name in ("whole", "one", "two"):
            start = start_of(tmp_path / name, trainer=OWN_LOOP)
            trained(start, stop_at=0 if name == "whole" else 3)
            if name != "whole":
                self.forgetful(start, "random/python")
                trained(start_of(tmp_path / name, attempt=2, trainer=OWN_LOOP, allow=["random"]))
            lines.append(read_lines(start.layout.metrics))
        whole, one, two = lines

        assert one == two
        assert one[0] == whole[0]
        assert [line["step"] for line in one] == [1, 2, 3]
        assert one[1]["loss"] != whole[1]["loss"]

    def test_a_damaged_file_is_a_damaged_checkpoint(self, tmp_path):
        """C1: bytes that changed on the disk are found by their digest, and the checkpoint before is used."""
        start = start_of(tmp_path)
        trained(start, stop_at=4)
        file = start.layout.checkpoints / "step-00000002" / "random.safetensors"
        file.write_bytes(file.read_bytes()[:-1] + b"?")

        assert settled(start_of(tmp_path, attempt=2, allow=["random"]))[1].step == 1


def test_only_damaged_checkpoints(tmp_path):
    """B6: when no checkpoint of the job is whole it is not started over in silence: each is named with why."""
    start = start_of(tmp_path)
    trained(start, stop_at=4)
    for folder in start.layout.checkpoints.iterdir():
        (folder / "model.safetensors").unlink()
    with pytest.raises(
        InternalError, match=r"step-00000002: model\.safetensors is missing.*remove it to start"
    ):
        settled(start)

    shutil.rmtree(start.layout.checkpoints)

    assert settled(start)[1] is None


def test_no_rows(tmp_path):
    """I3: an empty training split is bad data, told before anything is loaded."""
    with pytest.raises(BadData, match="the training split has no rows"):
        opened(start_of(tmp_path, rows=0))


def test_too_few_rows(tmp_path):
    """I3: five rows and a batch of eight are told with both numbers."""
    with pytest.raises(BadData, match="has 5 rows and one update takes 8"):
        settled(start_of(tmp_path, rows=5, global_batch=8))


@pytest.mark.parametrize(
    ("trainer", "why"),
    [
        (types.SimpleNamespace(name="one"), "has a loop of its own"),
        (make_trainer(lambda run: None, None, [1.0], name="one", coupled_rows=True)(), "see each other"),
    ],
)
def test_trainers_that_train_on_one_rank(trainer, why):
    """What the ordinary loop cannot share between ranks is refused, with the option to change."""
    _refuse_ranks(trainer, 1)
    with pytest.raises(BadJob, match=f"2 ranks, and the trainer one .*{why}.*change --ranks"):
        _refuse_ranks(trainer, 2)


@pytest.mark.parametrize("text", [None, "{", "[]", "{}", "null"])
def test_a_plan_that_is_no_plan_is_written_again(tmp_path, text):
    """Before the first checkpoint and on a resume: the replay reads the plan, so it must be there and whole."""
    start = start_of(tmp_path)
    for begun in (False, True):
        if begun:
            trained(start)
        if text is None:
            start.layout.plan.unlink(missing_ok=True)
        else:
            start.layout.plan.write_text(text)
        plan, checkpoint = settled(start)

        assert (checkpoint is not None) == begun
        assert Plan.from_document(json.loads(start.layout.plan.read_text())) == plan


CARD = DeviceFacts("cuda", "a card", bf16=False, cores=1, memory_bytes=6400)  # twice the toy's state


def settled_on(device, start, probe=lambda device: ""):
    job, ledger = opened(start)
    job = dataclasses.replace(job, facts=device)
    return job, ledger, settle_plan(job, start, store_of(start.layout, start), probe=probe)[0]


def test_eight_bit_state_is_tried_before_it_is_planned(tmp_path):
    """G4: what does not work is refused with 78 when asked for; ``auto`` keeps 32 bits and says why."""
    start = start_of(tmp_path, mixed_precision="no")
    _, _, wanted = settled_on(CARD, start)
    _, _, fallen = settled_on(CARD, start, lambda device: "RuntimeError: no kernel")
    with pytest.raises(HardwareUnfit, match="8-bit AdamW on a card does not work: RuntimeError: no kernel"):
        settled_on(CARD, start_of(tmp_path, optim_8bit=True), lambda device: "RuntimeError: no kernel")

    assert wanted.settings["optim_8bit"].effective is True
    assert fallen.settings["optim_8bit"].effective is False
    assert "8-bit state would be" in fallen.settings["optim_8bit"].why
    assert "no kernel" in json.loads(start.layout.plan.read_text())["settings"]["optim_8bit"]["why"]


def test_nobody_tries_what_nobody_wants(tmp_path):
    """On the CPU, unasked, no step of 8-bit AdamW is made and its library not imported."""

    def probe(device):
        raise AssertionError("tried")

    assert (
        settled_on(CARD, start_of(tmp_path, optim_8bit=False), probe)[2].settings["optim_8bit"].requested
        is False
    )
    job, _ = opened(start_of(tmp_path))
    settle_plan(job, start_of(tmp_path), store_of(start_of(tmp_path).layout, start_of(tmp_path)), probe=probe)


def test_a_choice_by_size_stays_on_a_larger_card(tmp_path):
    """A job begun with 8-bit state goes on with it where 32 bits would fit, if it works there."""
    start = start_of(tmp_path, mixed_precision="no")
    job, ledger, plan = settled_on(CARD, start)
    drive_opened(prepare(job, plan, ledger), start, plan, store_of(start.layout, start), stop_at=4)
    larger = dataclasses.replace(CARD, memory_bytes=1 << 40)
    again = start_of(tmp_path, attempt=2, mixed_precision="no")
    _, _, resumed = settled_on(larger, again)

    assert resumed.settings["optim_8bit"] == plan.settings["optim_8bit"]
    with pytest.raises(HardwareUnfit, match="no kernel"):
        settled_on(larger, again, lambda device: "no kernel")
