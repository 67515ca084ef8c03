"""Every number of a run is decided once, with its reason."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import numpy
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from app_trainer_sdk.data_facts import DataFacts
from app_trainer_sdk.errors import BadData, BadJob, ExitCode, HardwareUnfit
from app_trainer_sdk.hyperparameters import Hyperparameters
from app_trainer_sdk.plan import DeviceFacts, Effective, Plan, plan_lines
from app_trainer_sdk.planning.resolve import resolve_plan
from app_trainer_sdk.tradeoffs import CompileTimes
from app_trainer_sdk.training.order import Order
from app_trainer_sdk.training.row_facts import RowFacts
from app_trainer_sdk.windows import updates_per_epoch

CPU = DeviceFacts("cpu", "a processor", bf16=False, cores=4)
CARD = DeviceFacts("cuda", "a card", bf16=True, cores=8, memory_bytes=24 << 30, shared_memory_bytes=8 << 30)
OLD_CARD = dataclasses.replace(CARD, name="an old card", bf16=False)


def plan(
    rows: int | None = 3200, *, replicas: int = 1, device: DeviceFacts = CPU, minimum_rows: int = 1,
    coupled_rows: bool = False, method: str = "lora", parameters: int = 0,
    compile_times: CompileTimes | None = None, chosen: Mapping[str, Effective] | None = None,
    fit: Mapping[str, Any] | None = None, groups: tuple[int, ...] = (), **asked: Any,
) -> Plan:  # fmt: skip
    data = DataFacts(rows, minimum_rows=minimum_rows, coupled_rows=coupled_rows, group_sizes=groups)
    return resolve_plan(
        Hyperparameters.read(asked), trainer="text", trainer_version="1", model="m", method=method, data=data,
        device=device, replicas=replicas, asked=asked, parameters=parameters, compile_times=compile_times,
        chosen=chosen, fit=fit,
    )  # fmt: skip


def batch(made: Plan) -> tuple[Any, ...]:
    return tuple(
        made.settings[name].effective for name in ("microbatch", "gradient_accumulation_steps", "global_batch")
    )


def test_two_times_eight_is_sixteen_and_3200_examples_once_are_200_updates():
    """The plan prints updates and examples seen, and the multiplication between them."""
    made = plan(microbatch=2, gradient_accumulation_steps=8, epochs=1)

    assert (
        made.examples_per_update, made.updates, made.examples_seen, made.updates_per_epoch,
    ) == (16, 200, 3200, 200)  # fmt: skip
    assert made.batch == "2 × 8 × 1 = 16 examples per update"
    assert "200 updates × 16 = 3,200 examples seen of 3,200 rows (200 updates a pass)" in plan_lines(made)[1]


def test_fewer_rows_than_one_update_name_both_numbers():
    """CASES I3: 5 rows and a batch of 8 asked for is an error with both numbers; no row is one too."""
    with pytest.raises(BadData) as caught:
        plan(5, global_batch=8)

    assert caught.value.code is ExitCode.BAD_DATA
    assert "the training split has 5 rows and one update takes 8" in str(caught.value)
    with pytest.raises(BadData, match="0 rows"):
        plan(0)


@given(st.integers(1, 200), st.integers(1, 50), st.integers(1, 8), st.integers(0, 3))
def test_windows_cover_every_row_exactly_once_an_epoch(rows: int, total: int, minimum: int, epoch: int):
    """As many windows as the plan says, and each epoch a permutation of all rows (CASES A3, I3)."""
    assume(rows >= total >= minimum)
    order = Order(rows, total, seed=7, minimum_rows=minimum)
    position, ids = epoch * rows, []
    for _ in range(updates_per_epoch(rows, total, minimum)):
        window = order.window(position)
        assert window.epoch == epoch
        assert len(window.ids) >= minimum
        ids += window.ids.tolist()
        position = window.after

    assert list(range(rows)) == sorted(ids)
    assert (epoch + 1) * rows == position


@given(st.integers(1, 200), st.integers(1, 50), st.integers(1, 400), st.integers(1, 4))
def test_examples_seen_are_counted_as_the_order_deals_them(rows: int, total: int, updates: int, minimum: int):
    """Short and merged last windows included."""
    assume(rows >= total >= minimum)
    made = plan(rows, global_batch=total, updates=updates, minimum_rows=minimum)
    order, position = Order(rows, total, seed=1, minimum_rows=minimum), 0
    for _ in range(updates):
        position = order.window(position).after

    assert position == made.examples_seen


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=6),
    st.integers(1, 12),
    st.integers(1, 90),
    st.integers(1, 3),
)
def test_updates_and_examples_of_groups_are_counted_as_the_order_deals_them(
    groups: list[int], total: int, updates: int, minimum: int
):
    """By group an epoch has the windows of each group, and any number of updates its exact examples."""
    rows = sum(groups)
    assume(rows >= total >= minimum <= min(groups))
    asked = {"global_batch": total, "batching": "by_group", "seed": 3}
    made = plan(rows, groups=tuple(groups), minimum_rows=minimum, updates=updates, **asked)
    facts = RowFacts(
        groups=numpy.repeat(numpy.arange(len(groups)), groups), names=tuple(map(str, range(len(groups))))
    )
    order, position = Order(rows, total, seed=3, minimum_rows=minimum, batching="by_group", facts=facts), 0
    for _ in range(updates):
        position = order.window(position).after

    assert position == made.examples_seen
    assert order.epoch(0).edges.size == made.updates_per_epoch + 1
    assert plan(rows, groups=tuple(groups), minimum_rows=minimum, epochs=2, **asked).examples_seen == 2 * rows


def test_groups_that_cannot_be_batched_are_refused():
    """By group the sizes of the groups must be known and add up, and none may be too small to train on."""
    for groups in ((), (3, 4)):
        with pytest.raises(BadJob, match=r"the trainer text tells groups of \[.*\] rows for 10 rows"):
            plan(10, groups=groups, batching="by_group", global_batch=2)
    with pytest.raises(BadData, match="a group of the training split has 1 rows; expected at least 2"):
        plan(10, groups=(9, 1), batching="by_group", global_batch=2, minimum_rows=2)


def test_the_order_is_a_choice_with_a_reason():
    """Nobody asked: every row once an epoch, shuffled; asked for: what was asked."""
    silent, asked = plan().settings["sampling"], plan(sampling="weighted").settings["sampling"]

    assert (silent.requested, silent.effective, asked.effective) == ("auto", "shuffled", "weighted")
    assert silent.why.startswith("every row once an epoch")
    assert plan().settings["batching"].effective == "mixed"


def test_short_windows_are_shown_in_the_multiplication():
    """The line of examples says when updates times the batch is not what is seen."""
    assert "3 updates × 4 = 12, and with short or merged windows 9 examples seen" in plan_lines(
        plan(9, global_batch=4, epochs=1)
    )[1]  # fmt: skip


def test_epochs_and_updates_follow_from_one_another():
    """A job fixes one of the two; silent about both it makes the trainer's default of three passes."""
    assert (plan(global_batch=16).updates, plan(global_batch=16).settings["epochs"].effective) == (600, 3)
    assert plan(global_batch=16).settings["updates"].why == "3 epochs × 200 updates"
    assert plan(17, global_batch=8, epochs=2).updates == 6
    assert plan(17, global_batch=8, epochs=2, minimum_rows=2).updates == 4

    made = plan(100, global_batch=10, updates=11)

    assert (made.updates, made.settings["epochs"].effective, made.examples_seen) == (11, 2, 110)


def test_work_without_rows_needs_updates():
    """A trainer whose work is not counted in rows cannot be asked for epochs."""
    with pytest.raises(BadJob, match="the length of the run is unknown"):
        plan(None)

    made = plan(None, updates=10)

    assert (made.updates, made.examples_seen, made.rows, made.updates_per_epoch) == (10, 80, None, None)
    assert "80 examples seen" in plan_lines(made)[1]


@pytest.mark.parametrize(
    ("asked", "device", "effective", "why"),
    [
        ({}, CPU, "no", "fp32 on the CPU unless asked"),
        ({}, CARD, "bf16", "a card has bf16 arithmetic"),
        ({}, OLD_CARD, "fp16", "an old card has no bf16 arithmetic: fp16 with a loss scale"),
        ({"mixed_precision": "bf16"}, CPU, "bf16", "asked for"),
        ({"mixed_precision": "no"}, CARD, "no", "asked for"),
    ],
)
def test_precision_has_a_reason(asked: dict[str, str], device: DeviceFacts, effective: str, why: str):
    """bf16 where the hardware has it, fp16 with a scaler otherwise, fp32 on the CPU."""
    made = plan(device=device, **asked)

    assert (effective, effective, why) == (
        made.precision, made.settings["mixed_precision"].effective, made.settings["mixed_precision"].why,
    )  # fmt: skip


def test_a_precision_the_card_does_not_have_is_refused():
    """bf16 asked of a card without it: exit code 78 and the setting to change."""
    with pytest.raises(HardwareUnfit, match="an old card has no bf16") as caught:
        plan(device=OLD_CARD, mixed_precision="bf16")

    assert caught.value.code == 78


def test_eight_bit_state_is_chosen_by_size_method_and_device():
    """A full fine-tune too large for the card gets it; adapters, small models and the CPU do not."""
    large = {"method": "full", "parameters": 1_500_000_000}
    chosen = [
        plan(device=CARD, **large), plan(device=CARD, method="lora", parameters=1_500_000_000),
        plan(device=CARD, method="full", parameters=135_000_000), plan(**large),
    ]  # fmt: skip

    assert [each.settings["optim_8bit"].effective for each in chosen] == [True, False, False, False]
    assert "47% of the card's 24.0 GiB" in chosen[0].settings["optim_8bit"].why


def test_what_was_chosen_for_a_card_stands_where_nobody_asked():
    """Each knob with the reason it came with; an explicit wish is never touched, and the choice is kept."""
    chosen = {
        "gradient_checkpointing": Effective("auto", True, "saves what would not fit otherwise"),
        "optim_8bit": Effective("auto", True, "saves what would not fit otherwise"),
        "microbatch": Effective("auto", 2, "the fastest split of the update that fits"),
    }
    made = plan(device=CARD, chosen=chosen, fit={"grade": "predicted"}, optim_8bit=False)

    assert made.settings["gradient_checkpointing"] == chosen["gradient_checkpointing"]
    assert made.settings["microbatch"] == chosen["microbatch"]
    assert made.settings["optim_8bit"].effective is False
    assert made.fit == {"grade": "predicted"}
    broken = dataclasses.replace(CARD, eight_bit_problem="no kernels")
    with pytest.raises(HardwareUnfit, match="no kernels"):
        plan(device=broken, chosen=chosen)


def test_eight_bit_state_that_does_not_work():
    """CASES G4: asked for it ends with 78 and the reason; ``auto`` keeps 32 bits and records why."""
    broken = dataclasses.replace(CARD, eight_bit_problem="RuntimeError: no kernel")
    with pytest.raises(HardwareUnfit, match=r"no kernel; expected bitsandbytes.*optim_8bit to 'auto' or false"):
        plan(device=broken, optim_8bit=True)
    knob = plan(device=broken, method="full", parameters=1_500_000_000).settings["optim_8bit"]

    assert (knob.requested, knob.effective) == ("auto", False)
    assert "32-bit state is 11.2 GiB" in knob.why
    assert "does not work here: RuntimeError: no kernel" in knob.why
    assert plan(device=broken, optim_8bit=False).settings["optim_8bit"].why == "asked for"


def test_compilation_is_chosen_when_it_was_measured():
    """CASES F2: a pilot's times decide for the updates to make; a wish stays a wish."""
    times = CompileTimes(60.0, 0.10, 0.08)
    effective = {
        updates: plan(updates=updates, compile_times=times).settings["torch_compile"]
        for updates in (1000, 10000)
    }

    assert {updates: knob.effective for updates, knob in effective.items()} == {1000: False, 10000: True}
    assert "pays after 3,000 updates" in effective[1000].why
    assert plan(updates=9, compile_times=times, torch_compile=True).settings["torch_compile"].effective is True


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "updates": st.integers(1, 999), "microbatch": st.integers(1, 9),
            "warmup_updates": st.integers(0, 9),
            "gradient_accumulation_steps": st.integers(1, 9), "torch_compile": st.sampled_from([True, "auto"]),
            "seed": st.integers(0, 9), "evaluate_every": st.integers(0, 9), "checkpoint_every": st.just("auto"),
        },
    )
)  # fmt: skip
def test_every_knob_says_what_was_asked_what_it_became_and_why(asked: dict[str, Any]):
    """Nothing falls back silently: no "auto" is left, and what was asked for is what happens."""
    made = plan(**asked)

    assert set(Hyperparameters.model_fields) == made.settings.keys()
    for name, knob in made.settings.items():
        assert knob.why, name
        assert knob.effective != "auto", name
        said = asked.get(name, "auto")
        if said != "auto":
            assert (said, said, "asked for") == (knob.requested, knob.effective, knob.why)
        elif knob.requested != "auto":
            assert (knob.requested, "default") == (knob.effective, knob.why)


def test_cadence_follows_from_the_length():
    """3 % of warm-up, four evaluations, ten checkpoints; a run of one update has each once."""
    long = {name: plan(updates=1000).settings[name].effective for name in ("warmup_updates", "evaluate_every")}

    assert long == {"warmup_updates": 30, "evaluate_every": 250}
    assert plan(updates=1000).settings["checkpoint_every"].effective == 100
    assert plan(updates=1).settings["checkpoint_every"].effective == 1
    assert plan(updates=1).settings["evaluate_every"].effective == 1


@given(st.integers(1, 500), st.integers(1, 4), st.integers(1, 40))
def test_a_plan_reads_back_from_its_document(rows: int, replicas: int, updates: int):
    """A resume reuses the saved plan: JSON and back is the same plan."""
    assume(rows >= replicas)
    made = plan(rows, replicas=replicas, updates=updates)

    assert made == Plan.from_document(json.loads(json.dumps(made.document())))


def test_resolved_settings_have_every_auto_decided():
    """What the trainer reads are the plan's numbers."""
    settings = Hyperparameters.read({"updates": 50})
    resolved = plan(updates=50).resolved(settings)

    assert "auto" not in resolved.model_dump().values()
    assert (resolved.microbatch, resolved.checkpoint_every, resolved.updates) == (8, 5, 50)


@pytest.mark.parametrize(
    ("device", "replicas", "asked", "workers", "why"),
    [
        (CPU, 1, {}, 0, "the processors train"), (CARD, 1, {}, 4, "4 of the rank's 8 usable processors read"),
        (CARD, 4, {}, 1, "1 of the rank's 2 usable"), (CARD, 8, {}, 0, "one processor for each rank"),
        (CARD, 8, {"dataloader_workers": 7}, 7, "asked for"),
        (dataclasses.replace(CARD, shared_memory_bytes=64 << 20), 1, {}, 0, "64 MiB of shared memory"),
    ],
)  # fmt: skip
def test_loader_workers(device: DeviceFacts, replicas: int, asked: dict[str, int], workers: int, why: str):
    """M2: as many as a rank's processors and shared memory allow; who asks gets what they ask."""
    knob = plan(device=device, replicas=replicas, updates=1, **asked).settings["dataloader_workers"]

    assert knob.effective == workers
    assert why in knob.why


def test_threads_of_a_rank_and_why():
    """M2: two ranks on four processors have two each; the plan says where four comes from."""
    device = dataclasses.replace(CARD, cores=4, cores_why="a quota of 400000/100000 µs, of 104 processors")
    made = plan(device=device, replicas=2, updates=1)

    assert made.threads == 2
    told = "  threads of a rank: 2 (a quota of 400000/100000 µs, of 104 processors, shared by 2 ranks)"
    assert told in plan_lines(made)


def test_threads_are_shared_between_replicas():
    """On the CPU ranks divide the cores, and each has at least one."""
    assert [plan(replicas=count, updates=1).threads for count in (1, 2, 8)] == [4, 2, 1]


def test_the_plan_is_printed_line_by_line():
    """What was asked and what it became stand beside the reason."""
    lines = plan_lines(plan(global_batch=16, updates=3))

    assert lines[0] == "plan: text 1, m, lora, on cpu: a processor"
    assert lines[2] == "  microbatch × accumulation × replicas: 8 × 2 × 1 = 16 examples per update"
    assert any(line.split()[:2] == ["seed", "42"] and line.endswith("default") for line in lines)
    assert any("microbatch" in line and "(asked auto)" in line for line in lines[3:])
