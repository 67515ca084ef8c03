"""What a control plane takes, and that no delay, duplicate or change of order makes it believe a falsehood."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app_trainer_sdk.receiver import MOST_GAPS, Decision, Record, ask_to_cancel, expect, receive

ENDS = {"job.succeeded": ("succeeded", 0), "job.failed": ("failed", 70), "job.canceled": ("canceled", 81)}


def event(
    number: int, kind: str = "job.phase", *, attempt: int = 1, instance: str = "a", **facts: Any
) -> dict[str, Any]:
    ending = dict(zip(("status", "code"), ENDS[kind], strict=True)) if kind in ENDS else {}
    return {
        "v": 1, "id": f"j.{attempt}.{number}", "job_id": "j", "attempt": attempt, "instance": instance,
        "seq": number, "type": kind, "uptime_s": float(number), **ending, **facts,
    }  # fmt: skip


def hear(record: Record, *events: dict[str, Any]) -> tuple[Record, list[Decision]]:
    decisions = []
    for each in events:
        decisions.append(receive(record, json.dumps(each).encode()))
        record = decisions[-1].record
    return record, decisions


def test_a_job_from_its_first_event_to_its_last():
    """States, acknowledgements, and at the end code, size and cost: GPU seconds of all starts times price."""
    record = Record("j", gpus=4, price=3.0)
    record, (first, second, third) = hear(
        record, event(1, "job.accepted"), event(2, "job.progress", progress={"step": 5}),
        event(7, "job.interrupted", status="interrupted", code=75, uptime_s=600),
    )  # fmt: skip

    assert (first.accepted, first.status) == (True, 200)
    assert second.answer == {"ack": 2, "attempt": 1, "next_seq": 3, "cancel": False, "min_interval_s": 0.0}
    assert (third.record.state, record.progress) == ("interrupted", {"step": 5})
    record, _ = hear(
        record, event(1, "job.accepted", attempt=2, instance="b"),
        event(2, "job.succeeded", attempt=2, instance="b", uptime_s=300, outputs={"count": 1, "bytes": 77},
              progress={"fraction": 1.0}),
    )  # fmt: skip
    assert (record.state, record.code, record.terminal, record.output_bytes) == ("succeeded", 0, "j.2.2", 77)
    assert record.cost == pytest.approx(900 * 4 * 3.0 / 3600)
    assert record.progress == {"fraction": 1.0}  # and not what was said last on the way


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"no", "not JSON"), (b"[NaN]", "not JSON"), (b"[]", "not an object"), (b"{}", "/id is missing"),
        (event(1, v=2), "version 1"), (event(1, seq=True), "/seq"), (event(1, id="j.1.2"), "an id that is not"),
        (event(1, job_id="k", id="k.1.1"), "an event of job k"), (event(0), "version 1"),
        (event(1, "job.succeeded", code=70), "with status succeeded and code 70"),
        (event(1, "job.failed", status="succeeded"), "job.failed with status succeeded"),
        (event(1, "job.failed", code=0), "code 0"), (b"[" * 100_000, "not JSON"),
    ],
)  # fmt: skip
def test_what_is_no_event_is_refused_by_name(body: Any, why: str):
    """422 and nothing changes: an end with another's code is no end."""
    decision = receive(Record("j"), body)

    assert (decision.accepted, decision.status, decision.record) == (False, 422, Record("j"))
    assert why in decision.reason


def test_a_late_event_is_kept_and_changes_no_state():
    """A13 row 3: order on the wire is not order of events; what was heard before is acknowledged again."""
    record, decisions = hear(
        Record("j"), event(1), event(4, "job.progress", progress={"step": 4}),
        event(2, "job.progress", progress={"step": 2}), event(2, "job.progress"), event(4, "job.progress"),
    )  # fmt: skip

    assert [(each.accepted, each.late) for each in decisions] == [
        (True, False), (True, False), (True, True), (False, False), (False, False)
    ]  # fmt: skip
    assert "heard before" in decisions[-1].reason
    assert (record.progress, record.gaps, decisions[-1].answer["ack"]) == ({"step": 4}, (3,), 4)


def test_who_was_replaced_is_fenced():
    """A new process of the attempt takes over, a newer attempt too; both tell the next free number."""
    record, (_, _, taken, old, _, older) = hear(
        Record("j"), event(1), event(17), event(1, instance="b"), event(18),
        event(1, attempt=2, instance="c"), event(3, instance="b"),
    )  # fmt: skip

    assert (taken.accepted, taken.answer["ack"], taken.answer["next_seq"]) == (True, 1, 18)
    assert (old.status, old.answer["attempt"]) == (409, 1)
    assert (older.status, older.answer["attempt"]) == (409, 2)
    assert (record.instance, record.next_sequence) == ("c", 2)


def test_after_the_end_nothing_counts():
    """J4, A13 rows 3 and 4: the same end again, late progress, another end, other starts."""
    end = event(5, "job.failed", uptime_s=60, outputs={"bytes": 0})
    record, decisions = hear(
        Record("j", price=1.0), event(1), end, end, event(4, "job.progress"), event(6, "job.succeeded"),
        event(1, instance="b"), event(1, attempt=2, instance="c"),
    )  # fmt: skip

    assert [each.accepted for each in decisions] == [True, True, *[False] * 5]
    assert [each.status for each in decisions] == [200] * 5 + [409, 410]
    assert [each.answer["ack"] for each in decisions[2:5]] == [5, 5, 6]
    assert (record.state, record.terminal, record.cost) == ("failed", "j.1.5", round(60 / 3600, 6))


def test_a_control_plane_opens_a_failed_job_again():
    """It says so: earlier starts are fenced from then on. What succeeded or was canceled stays."""
    record, _ = hear(Record("j"), event(1), event(2, "job.failed"))
    opened = expect(record, 2)
    _, (old, new) = hear(opened, event(3), event(1, attempt=2))
    done, _ = hear(opened, event(1, "job.succeeded", attempt=2))

    assert (opened.state, opened.terminal, opened.cost) == ("pending", "", None)
    assert (old.status, new.accepted) == (409, True)
    for wrong, attempt in ((done, 3), (record, 1)):
        with pytest.raises(ValueError, match="attempt"):
            expect(wrong, attempt)


def test_who_has_said_that_it_ends_says_nothing_more():
    """An interrupted start is over; another process of the same attempt goes on."""
    interrupted = event(2, "job.interrupted", status="interrupted", code=75)
    record, decisions = hear(Record("j"), event(1), interrupted, event(3), event(1, instance="b"))

    assert [each.accepted for each in decisions] == [True, True, False, True]
    assert (record.state, record.instance) == ("running", "b")


def test_cancel_is_said_until_the_end():
    """In each answer; an ended job cannot be canceled."""
    record, (first,) = hear(ask_to_cancel(Record("j")), event(1))
    ended, _ = hear(record, event(2, "job.canceled"))

    assert first.answer["cancel"] is True
    assert (ended.state, ask_to_cancel(ended).cancel) == ("canceled", False)


def test_a_record_is_json_and_stays_small():
    """It survives a database, and a run of a million replaced progress events."""
    record, _ = hear(Record("j"), event(1), event(1_000_000, "job.progress"), event(1_000_002))
    again = Record.from_document(json.loads(json.dumps(record.document())))

    assert again == record
    assert len(record.gaps) == MOST_GAPS
    assert receive(again, event(5)).accepted is False


def story(attempts: int, events: int, end: str) -> list[dict[str, Any]]:
    """What is said in truth: starts that are interrupted, the last of which ends."""
    said = []
    for attempt in range(1, attempts + 1):
        who = {"attempt": attempt, "instance": f"i{attempt}"}
        for number in range(1, events + 1):
            kind = ("job.evaluation", "job.progress", "job.phase")[number % 3]
            said.append(event(number, kind, **who, progress={"step": 100 * attempt + number}))
        last = end if attempt == attempts else "job.interrupted"
        said.append(event(events + 1, last, **who, outputs={"bytes": 9}))
    return said


@settings(max_examples=200)
@given(
    st.integers(1, 3), st.integers(0, 8), st.sampled_from(sorted(ENDS)), st.randoms(use_true_random=False),
    st.integers(1, 3), st.integers(0, 12),
)  # fmt: skip
def test_no_order_of_deliveries_makes_a_falsehood(
    attempts: int, count: int, end: str, random: Any, copies: int, window: int
):
    """A13 row 3: each event delivered several times, each delayed at random.

    However it comes: the end is the true one, told once with one cost; nothing is taken twice or after the end;
    the state never goes back; what was taken of an attempt carries the highest number as the newest.
    """
    truth = story(attempts, count, end)
    deliveries = [
        (place + random.uniform(0, window), each) for place, each in enumerate(truth) for _ in range(copies)
    ]
    deliveries += [(len(truth) + window + 1, truth[-1])]  # at least once, at last
    record, taken, costs = Record("j", price=3600.0), list[str](), set[float]()
    for _, each in sorted(deliveries, key=lambda pair: pair[0]):
        before = record
        decision = receive(record, each)
        record = decision.record
        if decision.accepted:
            taken.append(f"{each['id']}/{each['instance']}")
            assert not before.terminal
        assert record.attempt >= before.attempt
        assert decision.status in (200, 409)
        assert decision.status == 409 or decision.answer["ack"] >= each["seq"]
        if record.terminal:
            costs.add(record.cost or 0.0)

    assert len(taken) == len(set(taken))
    assert (record.state, record.terminal) == (ENDS[end][0], truth[-1]["id"])
    assert len(costs) == 1
    if attempts == 1 and window == 0:
        assert len(taken) == len(truth)
