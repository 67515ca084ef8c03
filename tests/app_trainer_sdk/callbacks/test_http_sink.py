"""Events reach a receiver in order, and a receiver that is sick disturbs nobody."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from loopback import reply, reserved_port
from standardwebhooks import Webhook

from app_trainer_sdk.callbacks.credentials import Credentials
from app_trainer_sdk.callbacks.delivery import DeliveryRecord
from app_trainer_sdk.callbacks.http_sink import HttpSink
from app_trainer_sdk.callbacks.sinks import ManySinks, NoSink, RecordingSink
from app_trainer_sdk.events import Event, EventLog, encode_event
from app_trainer_sdk.paths import JobDirectory


def event(number: int, kind: str = "job.phase") -> Event:
    return encode_event({"id": f"j.1.{number}", "seq": number, "type": kind})


def progress(number: int) -> Event:
    return event(number, "job.progress")


def received(server: Any) -> list[int]:
    return [json.loads(request.body)["seq"] for request in server.received]


#: Enough for any machine, and only as long as it takes.
PATIENCE = 60.0


def quick(seconds: float) -> None:
    time.sleep(0.01)


def seconds_of(call: Callable[[], Any]) -> float:
    started = time.monotonic()
    call()
    return time.monotonic() - started


def test_events_arrive_in_order_with_their_id(serve: Any):
    """The id is the idempotency key; the body is byte for byte what was stored."""
    server = serve(lambda handler, request: reply(handler))
    sink = HttpSink(
        server.url + "/hook?signature=s", credentials=Credentials({"APP_TRAINER_CALLBACK_TOKEN": "token"})
    )
    sent = [event(number) for number in range(1, 21)]
    for each in sent:
        sink.send(each)

    assert sink.close(PATIENCE)
    assert [each.body for each in sent] == [request.body for request in server.received]
    first = server.received[0]
    assert (first.method, first.path) == ("POST", "/hook?signature=s")
    headers = {name.lower(): value for name, value in first.headers.items()}
    assert {
        "content-type": "application/json", "idempotency-key": "j.1.1", "webhook-id": "j.1.1",
        "authorization": "Bearer token",
    }.items() <= headers.items()  # fmt: skip


def test_of_progress_the_latest_waits_and_the_last_is_delivered(serve: Any):
    """While one event is on its way progress has one place; the trailing one is never lost."""

    def answer(handler: Any, request: Any) -> None:
        if len(server.received) == 1:
            server.released.wait(PATIENCE)
        reply(handler)

    server = serve(answer)
    sink = HttpSink(server.url)
    sink.send(event(1))
    while not server.received:
        time.sleep(0.005)
    for each in (progress(2), progress(3), event(4, "job.checkpoint"), progress(5), progress(6), event(7)):
        sink.send(each)
    server.released.set()

    assert sink.close(PATIENCE)
    assert received(server) == [1, 4, 6, 7]


def test_progress_before_the_end_is_heard_before_the_end(serve: Any):
    """CASES J4: accepted < progress < succeeded, though the first answer takes longer than the run."""

    ended = threading.Event()

    def answer(handler: Any, request: Any) -> None:
        ended.wait(PATIENCE)
        reply(handler)

    server = serve(answer)
    sink = HttpSink(server.url)
    sink.send(event(1, "job.accepted"))
    while not server.received:
        time.sleep(0.005)
    for each in (progress(2), progress(3), event(4, "job.succeeded")):
        sink.send(each)
    ended.set()

    assert sink.close(PATIENCE)
    assert received(server) == [1, 3, 4]


def test_a_server_error_is_tried_again_with_the_same_id_and_bytes(serve: Any):
    """500, 503, 429 and 408 twice each, then 200: nothing is skipped, nothing comes before its turn."""
    wrong = [500, 503, 429, 408]

    def answer(handler: Any, request: Any) -> None:
        reply(handler, wrong.pop() if wrong else 200)

    server = serve(answer)
    pauses: list[float] = []
    sink = HttpSink(server.url, pause=pauses.append)
    sink.send(event(1))
    sink.send(event(2))
    while len(server.received) < 6:
        time.sleep(0.005)

    assert sink.close(PATIENCE)
    assert received(server) == [1] * 5 + [2]
    assert {(request.headers["webhook-id"], request.body) for request in server.received[:5]} == {
        ("j.1.1", event(1).body)
    }
    assert len(pauses) == 4
    assert all(0.5 <= pause <= 30.0 for pause in pauses)


def test_a_refused_event_is_dropped_and_later_ones_arrive(serve: Any):
    """4xx means never: the event stays in its file; a redirect is not followed."""
    status = {1: 400, 2: 404, 3: 302, 4: 422, 5: 200}

    def answer(handler: Any, request: Any) -> None:
        reply(handler, status[json.loads(request.body)["seq"]])

    server = serve(answer)
    sink = HttpSink(server.url)
    for number in status:
        sink.send(event(number))

    assert sink.close(PATIENCE)
    assert received(server) == [1, 2, 3, 4, 5]


def test_an_endpoint_that_refuses_connections_costs_nothing():
    """CASES J2 (a): sending returns at once, closing is bounded and says that something is left."""
    with reserved_port() as port:
        sink = HttpSink(f"http://127.0.0.1:{port}/", pause=quick)

        assert seconds_of(lambda: [sink.send(event(number)) for number in range(200)]) < PATIENCE
        assert seconds_of(lambda: sink.close(0.3)) < PATIENCE
        assert not sink.close(0.0)


def test_an_endpoint_that_hangs_costs_nothing(serve: Any):
    """CASES J2 (c): it accepts and never answers; nobody waits longer than asked."""
    server = serve(lambda handler, request: server.released.wait(10 * PATIENCE))
    sink = HttpSink(server.url)

    assert seconds_of(lambda: [sink.send(progress(number)) for number in range(1000)]) < PATIENCE
    assert seconds_of(lambda: sink.close(0.3)) < PATIENCE


def test_an_endpoint_that_is_down_bounds_the_queue(serve: Any):
    """CASES J2 (b): 500 for ever: lifecycle events wait in order, progress has one place."""
    server = serve(lambda handler, request: reply(handler, 500))
    sink = HttpSink(server.url, pause=quick)
    for number in range(1, 301):
        sink.send(event(number) if number % 100 == 0 else progress(number))
    with sink._changed:
        waiting = [each.document["seq"] for each in sink._waiting]

    assert len(waiting) <= 4
    assert [seq for seq in waiting if seq % 100 == 0] == [100, 200, 300]
    assert not sink.close(0.2)


def test_closing_tries_at_once_instead_of_sitting_out_a_pause(serve: Any, monkeypatch: pytest.MonkeyPatch):
    """A receiver that came back in the middle of a long pause still hears the end."""
    for name in ("SHORTEST_RETRY", "LONGEST_RETRY"):
        monkeypatch.setattr(f"app_trainer_sdk.callbacks.http_sink.{name}", 10 * PATIENCE)
    down, pauses = threading.Event(), threading.Event()
    down.set()

    def pause(seconds: float) -> None:
        pauses.set()
        sink._hurry.wait(seconds)

    def answer(handler: Any, request: Any) -> None:
        reply(handler, 500 if down.is_set() else 200)

    server = serve(answer)
    sink = HttpSink(server.url, pause=pause)
    sink.send(event(1, "job.succeeded"))
    assert pauses.wait(PATIENCE)
    down.clear()

    assert sink.close(PATIENCE)
    assert received(server) == [1, 1]


def test_nothing_is_taken_after_the_end(serve: Any):
    """A closed sink forgets what it is given."""
    server = serve(lambda handler, request: reply(handler))
    sink = HttpSink(server.url)
    sink.send(event(1))

    assert sink.close(PATIENCE)
    sink.send(event(2))
    assert sink.close(0.0)
    time.sleep(0.05)
    assert received(server) == [1]


def test_a_url_that_is_none_is_as_good_as_a_dead_one():
    """Whatever stands in the job, speaking does not raise."""
    sink = HttpSink("http://[half/", pause=quick)
    sink.send(event(1))

    assert not sink.close(0.1)


def test_many_sinks_share_the_time_to_close():
    """Each hears everything; all are closed at once: two that hang do not take twice as long."""
    meeting = threading.Barrier(2)

    class Hanging(RecordingSink):
        def close(self, seconds: float) -> bool:
            meeting.wait(PATIENCE)
            return False

    recording = RecordingSink()
    many = ManySinks([Hanging(), recording, Hanging(), NoSink()])
    many.send(event(1))

    assert not many.close(1.0)
    assert [event(1)] == recording.events
    assert ManySinks([recording, NoSink()]).close(1.0)


def answering(serve: Any, *answers: tuple[int, Any]) -> Any:
    """A server that gives these answers in order, then acknowledges whatever it hears."""
    left = list(answers)

    def answer(handler: Any, request: Any) -> None:
        said = json.loads(request.body)
        ack = {"ack": said["seq"], "attempt": said.get("attempt", 1), "next_seq": said["seq"] + 1}
        status, document = left.pop(0) if left else (200, ack)
        headers = document if isinstance(document, Headers) else {}
        body = b"" if isinstance(document, Headers) else json.dumps({**ack, **document}).encode()
        reply(handler, status, body, **headers)

    return serve(answer)


class Headers(dict[str, str]):
    """An answer of headers without a body."""


def ours(number: int, kind: str = "job.phase", *, attempt: int = 2, **facts: Any) -> Event:
    """An event of this process, whose instance is ``me``."""
    envelope = {
        "id": f"j.{attempt}.{number}",
        "attempt": attempt,
        "instance": "me",
        "seq": number,
        "type": kind,
    }
    return encode_event({**envelope, **facts})


def test_an_order_is_obeyed_in_control_mode_only(serve: Any):
    """A4: cancel in an acknowledgement; the same words from a plain webhook are nothing."""
    heard: dict[str, list[str]] = {"control": [], "notify": []}
    for mode, orders in heard.items():
        server = answering(serve, (200, {"cancel": True}))
        sink = HttpSink(server.url, mode=mode, instance="me", obey=orders.append)  # type: ignore[arg-type]
        sink.send(ours(1))
        sink.send(ours(2))

        assert sink.close(PATIENCE)
        assert received(server) == [1, 2]
    assert heard == {"control": ["cancel"], "notify": []}


def test_who_is_fenced_says_nothing_more(serve: Any, tmp_path: Path):
    """409 with a valid body: the order, and what waited is nobody's any more, not even a later start's."""
    layout, orders = JobDirectory(tmp_path), list[str]()
    layout.attempt(2).mkdir(parents=True)
    server = answering(serve, (409, {"attempt": 3}))
    record = DeliveryRecord(layout)
    events = EventLog(layout.attempt(2), job_id="j", attempt=2, instance="me")
    sink = HttpSink(server.url, mode="control", instance="me", obey=orders.append, record=record)  # type: ignore[arg-type]
    for kind in ("job.accepted", "job.phase", "job.interrupted"):
        sink.send(events.add(kind))

    assert sink.close(PATIENCE)
    assert (received(server), orders) == ([1], ["fenced"])
    assert record.waiting(2) == []


def test_an_earlier_start_that_is_fenced_fences_nobody(serve: Any):
    """What is left of attempt 1 is dropped; attempt 2 goes on, and is not stopped."""
    server = answering(serve, (409, {"attempt": 2}))
    orders: list[str] = []
    old = [encode_event({**ours(n, attempt=1).document, "instance": "old"}) for n in (7, 8)]
    sink = HttpSink(server.url, mode="control", instance="me", backlog=old, obey=orders.append)  # type: ignore[arg-type]
    sink.send(ours(1))

    assert sink.close(PATIENCE)
    assert [json.loads(request.body)["id"] for request in server.received] == ["j.1.7", "j.2.1"]
    assert orders == []


@pytest.mark.parametrize(("mode", "order"), [("control", ["gone"]), ("notify", [])])
def test_a_receiver_that_is_gone(serve: Any, mode: Any, order: list[str]):
    """410: to a webhook nothing is sent any more, from a control plane it is an order too."""
    server = answering(serve, (410, {}))
    orders: list[str] = []
    sink = HttpSink(server.url, mode=mode, instance="me", obey=orders.append)  # type: ignore[arg-type]
    sink.send(ours(1))
    sink.send(ours(2))

    assert not sink.close(1.0)
    assert (received(server), orders) == ([1], order)


def test_too_large_loses_its_metrics_once(serve: Any):
    """413: the same id without metrics; a second time it stays on disk, and the next is sent whole."""
    server = answering(serve, (413, {}), (413, {}))
    sink = HttpSink(server.url, pause=quick)
    large, other = ours(1, metrics={"loss": 1.0}), ours(2, metrics={"loss": 2.0})
    sink.send(large)
    sink.send(other)

    assert sink.close(PATIENCE)
    bodies = [json.loads(request.body) for request in server.received]
    assert [(body["seq"], "metrics" in body) for body in bodies] == [(1, True), (1, False), (2, True)]
    assert sink.acknowledged() == 0  # no progress was heard whole


def test_a_terminal_event_is_sent_byte_for_byte_whatever_is_answered(serve: Any):
    """A13 row 4: 413, then 503, then 200: the same bytes each time."""
    server = answering(serve, (413, {}), (413, {}), (503, {}))
    sink = HttpSink(server.url, pause=quick)
    end = ours(1, "job.failed", metrics={"loss": 1.0}, failure={"code": 70, "message": "m", "traceback": "t"})
    sink.send(end)

    assert sink.close(PATIENCE)
    assert [request.body for request in server.received] == [end.body] * 4


def test_a_wait_that_the_receiver_asks_for_is_kept(serve: Any):
    """Retry-After, although closing would have tried at once."""
    server = answering(serve, (503, Headers({"Retry-After": "1"})))
    sink = HttpSink(server.url)
    sink.send(ours(1))
    started = time.monotonic()

    assert sink.close(PATIENCE)
    assert time.monotonic() - started >= 0.9
    assert received(server) == [1, 1]


def test_a_rotated_token_is_read_when_the_receiver_refuses(serve: Any, tmp_path: Path):
    """401: the file is read again, and the event goes out with what it says now, without a pause."""
    file, pauses = tmp_path / "token", list[float]()
    file.write_text("old-token")

    def answer(handler: Any, request: Any) -> None:
        file.write_text("new-token")
        reply(handler, 401 if "old" in request.headers["Authorization"] else 200)

    server = serve(answer)
    credentials = Credentials({"APP_TRAINER_CALLBACK_TOKEN_FILE": str(file)})
    sink = HttpSink(server.url, credentials=credentials, pause=pauses.append)
    sink.send(ours(1))

    assert sink.close(PATIENCE)
    assert [request.headers["Authorization"] for request in server.received] == [
        "Bearer old-token", "Bearer new-token"
    ]  # fmt: skip
    assert pauses == []


@pytest.mark.parametrize(("mode", "status", "tries"), [("control", 401, [1, 1, 1]), ("notify", 403, [1, 2])])
def test_without_a_token_nothing_is_settled_and_a_later_sender_delivers(
    serve: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: Any, status: int, tries: list[int]
):
    """A missing token is like a wrong one: told once, kept on the disk, delivered by who has one.

    A control plane is asked again and again, since it counts on each; a mere webhook once for each event, so
    that nothing waits behind one.
    """
    server = serve(
        lambda handler, request: reply(
            handler,
            200 if "Authorization" in request.headers else status,
            json.dumps({"ack": json.loads(request.body)["seq"]}).encode(),
        )
    )
    layout = JobDirectory(tmp_path)
    record = DeliveryRecord(layout)
    layout.attempt(1).mkdir(parents=True)
    log = EventLog(layout.attempt(1), job_id="j", attempt=1, instance="i")
    said = [log.add("job.accepted"), log.add("job.phase")]
    sink = HttpSink(server.url, mode=mode, credentials=Credentials({}), record=record, pause=quick)
    for each in said:
        sink.send(each)
    while len(server.received) < len(tries):
        time.sleep(0.005)

    assert not sink.close(0.1)
    assert received(server)[: len(tries)] == tries
    # Senders of other tests, whose receivers hang, may find that out now.
    ours = [each.getMessage() for each in caplog.records if each.thread == sink._thread.ident]
    assert [text.partition(": ")[2] for text in ours] == [f"status {status}"]
    assert [each.id for each in record.backlog(everything=True)] == [each.id for each in said]
    again = Credentials({"APP_TRAINER_CALLBACK_TOKEN": "a-token"})
    assert HttpSink(server.url, mode=mode, credentials=again, record=record, backlog=said).close(PATIENCE)
    assert not record.backlog(everything=True)


def test_too_large_with_nothing_to_drop_is_not_sent_again(serve: Any):
    """413 for an event without metrics and settings: the same bytes would not get smaller."""
    server = answering(serve, (413, {}))
    sink = HttpSink(server.url, pause=quick)
    sink.send(ours(1))
    sink.send(ours(2))

    assert sink.close(PATIENCE)
    assert received(server) == [1, 2]


def test_what_is_signed_can_be_verified(serve: Any):
    """The published library accepts each request as it arrived."""
    secret = "whsec_" + base64.b64encode(b"k" * 24).decode()
    server = answering(serve)
    sink = HttpSink(server.url, credentials=Credentials({"APP_TRAINER_CALLBACK_SECRET": secret}))
    sink.send(ours(1, text="grüße"))

    assert sink.close(PATIENCE)
    (request,) = server.received
    assert Webhook(secret).verify(request.body, request.headers)["text"] == "grüße"


def test_a_redirect_is_not_followed(serve: Any):
    """It could lead the token elsewhere."""
    elsewhere = answering(serve)
    server = answering(serve, (307, Headers({"Location": elsewhere.url})))
    sink = HttpSink(server.url, credentials=Credentials({"APP_TRAINER_CALLBACK_TOKEN": "token"}))
    sink.send(ours(1))

    assert sink.close(PATIENCE)
    assert (len(server.received), elsewhere.received) == (1, [])


def test_only_a_receiver_that_proves_who_it_is_hears_anything(serve: Any, monkeypatch: pytest.MonkeyPatch):
    """TLS: with its certificate as the CA file it is heard, without it not a byte is sent."""
    pem = Path(__file__).parent / "loopback.pem"
    server = answering(serve)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    url = server.url.replace("http:", "https:")
    for environment, delivered in (({}, False), ({"APP_TRAINER_CALLBACK_CA_FILE": str(pem)}, True)):
        sink = HttpSink(url, credentials=Credentials(environment), pause=quick)
        sink.send(ours(1))

        assert sink.close(PATIENCE if delivered else 0.3) is delivered
        assert len(server.received) == delivered


def test_progress_keeps_the_interval_that_was_asked_for(serve: Any):
    """Within it progress waits; what is not progress passes it, and before the end the last is said."""
    server = answering(serve, (200, {"min_interval_s": 3600}))
    sink = HttpSink(server.url, mode="control", instance="me")
    sink.send(ours(1, "job.progress"))
    while sink.acknowledged() != 1:
        time.sleep(0.005)
    for each in (ours(2, "job.progress"), ours(3), ours(4, "job.progress"), ours(5, "job.progress")):
        sink.send(each)
    while len(server.received) < 2:
        time.sleep(0.005)
    time.sleep(0.05)

    assert received(server) == [1, 3]
    sink.send(ours(6, "job.succeeded"))
    assert sink.close(PATIENCE)
    assert received(server) == [1, 3, 5, 6]


def test_what_does_not_fit_in_memory_waits_on_the_disk(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """J2: an outage of any length; afterwards everything arrives once and in order."""
    monkeypatch.setattr("app_trainer_sdk.callbacks.http_sink.MOST_WAITING", 5)
    down = threading.Event()
    down.set()
    server = serve(lambda handler, request: reply(handler, 500 if down.is_set() else 200))
    layout = JobDirectory(tmp_path)
    layout.attempt(1).mkdir(parents=True)
    events = EventLog(layout.attempt(1), job_id="j", attempt=1, instance="me")
    sink = HttpSink(server.url, record=DeliveryRecord(layout), instance="me", pause=quick)
    for number in range(30):
        sink.send(events.add("job.progress" if number % 3 == 2 else "job.evaluation"))

    assert len(sink._waiting) <= 5
    down.clear()
    sink.send(events.add("job.succeeded"))
    assert sink.close(PATIENCE)
    heard = [number for number, status in zip(received(server), statuses(server), strict=True) if status == 200]
    assert heard == sorted(set(heard))
    assert {number for number in range(1, 32) if number % 3 or number > 29} <= {*heard}


def statuses(server: Any) -> list[int]:
    """500 while it was down: of tries of one event only the last counts."""
    bodies = [request.body for request in server.received]
    return [500 if body in bodies[place + 1 :] else 200 for place, body in enumerate(bodies)]
