"""Events reach a receiver in order, and a receiver that is sick disturbs nobody."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from app_trainer_sdk.callbacks.sinks import HttpSink, ManySinks, NoSink, RecordingSink
from app_trainer_sdk.events import Event, encode_event


def event(number: int, kind: str = "job.phase") -> Event:
    return encode_event({"id": f"j.1.{number}", "seq": number, "type": kind})


def progress(number: int) -> Event:
    return event(number, "job.progress")


def received(server: Any) -> list[int]:
    return [json.loads(request.body)["seq"] for request in server.received]


def reply(handler: Any, status: int = 200) -> None:
    handler.send_response(status)
    handler.send_header("Content-Length", "0")
    handler.end_headers()


def quick(seconds: float) -> None:
    time.sleep(0.01)


def seconds_of(call: Callable[[], Any]) -> float:
    started = time.monotonic()
    call()
    return time.monotonic() - started


def test_events_arrive_in_order_with_their_id(serve: Any):
    """The id is the idempotency key; the body is byte for byte what was stored."""
    server = serve(lambda handler, request: reply(handler))
    sink = HttpSink(server.url + "/hook?signature=s", headers={"Authorization": "Bearer t"})
    sent = [event(number) for number in range(1, 21)]
    for each in sent:
        sink.send(each)

    assert sink.close(5.0)
    assert [each.body for each in sent] == [request.body for request in server.received]
    first = server.received[0]
    assert (first.method, first.path) == ("POST", "/hook?signature=s")
    headers = {name.lower(): value for name, value in first.headers.items()}
    assert {
        "content-type": "application/json", "idempotency-key": "j.1.1", "webhook-id": "j.1.1",
        "authorization": "Bearer t",
    }.items() <= headers.items()  # fmt: skip


def test_of_progress_the_latest_waits_and_the_last_is_delivered(serve: Any):
    """While one event is on its way progress has one place; the trailing one is never lost."""

    def answer(handler: Any, request: Any) -> None:
        if len(server.received) == 1:
            server.released.wait(5.0)
        reply(handler)

    server = serve(answer)
    sink = HttpSink(server.url)
    sink.send(event(1))
    while not server.received:
        time.sleep(0.005)
    for each in (progress(2), progress(3), event(4, "job.checkpoint"), progress(5), progress(6), event(7)):
        sink.send(each)
    server.released.set()

    assert sink.close(5.0)
    assert received(server) == [1, 4, 6, 7]


def test_progress_before_the_end_is_heard_before_the_end(serve: Any):
    """CASES J4: accepted < progress < succeeded, though the first answer takes longer than the run."""

    def answer(handler: Any, request: Any) -> None:
        if len(server.received) == 1:
            time.sleep(0.3)
        reply(handler)

    server = serve(answer)
    sink = HttpSink(server.url)
    for each in (event(1, "job.accepted"), progress(2), progress(3), event(4, "job.succeeded")):
        sink.send(each)

    assert sink.close(5.0)
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

    assert sink.close(5.0)
    assert received(server) == [1] * 5 + [2]
    assert {(request.headers["webhook-id"], request.body) for request in server.received[:5]} == {
        ("j.1.1", event(1).body)
    }
    assert len(pauses) == 4
    assert all(0.5 <= pause <= 30.0 for pause in pauses)


def test_a_refused_event_is_dropped_and_later_ones_arrive(serve: Any):
    """4xx means never: the event stays in its file; a redirect is not followed."""
    status = {1: 400, 2: 404, 3: 302, 4: 413, 5: 200}

    def answer(handler: Any, request: Any) -> None:
        reply(handler, status[json.loads(request.body)["seq"]])

    server = serve(answer)
    sink = HttpSink(server.url)
    for number in status:
        sink.send(event(number))

    assert sink.close(5.0)
    assert received(server) == [1, 2, 3, 4, 5]


def test_an_endpoint_that_refuses_connections_costs_nothing():
    """CASES J2 (a): sending returns at once, closing is bounded and says that something is left."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/"
    sink = HttpSink(url, pause=quick)

    assert seconds_of(lambda: [sink.send(event(number)) for number in range(200)]) < 0.5
    assert seconds_of(lambda: sink.close(0.3)) < 1.0
    assert not sink.close(0.0)


def test_an_endpoint_that_hangs_costs_nothing(serve: Any):
    """CASES J2 (c): it accepts and never answers; nobody waits longer than asked."""
    server = serve(lambda handler, request: server.released.wait(30.0))
    sink = HttpSink(server.url)

    assert seconds_of(lambda: [sink.send(progress(number)) for number in range(1000)]) < 0.5
    assert seconds_of(lambda: sink.close(0.3)) < 1.0


def test_an_endpoint_that_is_down_bounds_the_queue(serve: Any):
    """CASES J2 (b): 500 for ever: lifecycle events wait in order, progress has one place."""
    server = serve(lambda handler, request: reply(handler, 500))
    sink = HttpSink(server.url, pause=quick)
    for number in range(1, 301):
        sink.send(event(number) if number % 100 == 0 else progress(number))
    waiting = [each.document["seq"] for each in sink._waiting]

    assert len(waiting) <= 4
    assert [seq for seq in waiting if seq % 100 == 0] == [100, 200, 300]
    assert not sink.close(0.2)


def test_closing_tries_at_once_instead_of_sitting_out_a_pause(serve: Any):
    """A receiver that came back in the middle of a long pause still hears the end."""
    down = threading.Event()
    down.set()

    def answer(handler: Any, request: Any) -> None:
        reply(handler, 500 if down.is_set() else 200)

    server = serve(answer)
    sink = HttpSink(server.url)
    sink.send(event(1, "job.succeeded"))
    while len(server.received) < 2:
        time.sleep(0.01)
    down.clear()

    assert seconds_of(lambda: sink.close(10.0)) < 2.0
    assert received(server)[-1:] == [1]
    assert not sink._waiting


def test_nothing_is_taken_after_the_end(serve: Any):
    """A closed sink forgets what it is given."""
    server = serve(lambda handler, request: reply(handler))
    sink = HttpSink(server.url)
    sink.send(event(1))

    assert sink.close(5.0)
    sink.send(event(2))
    assert sink.close(0.0)
    time.sleep(0.05)
    assert received(server) == [1]


def test_a_url_that_is_none_is_as_good_as_a_dead_one():
    """Whatever stands in the job, speaking does not raise."""
    sink = HttpSink("http://[half/", pause=quick)
    sink.send(event(1))

    assert not sink.close(0.1)


def test_many_sinks_share_the_time_to_close(serve: Any):
    """Each hears everything; two that hang do not take twice as long."""
    server = serve(lambda handler, request: server.released.wait(30.0))
    recording = RecordingSink()
    many = ManySinks([HttpSink(server.url), recording, HttpSink(server.url), NoSink()])
    many.send(event(1))

    assert seconds_of(lambda: many.close(0.3)) < 0.8
    assert [event(1)] == recording.events
    assert ManySinks([recording, NoSink()]).close(1.0)
