"""Owns which sinks a run has: the one its job names, and those that ``APP_TRAINER_SINKS`` asks for.

It must not know what a sink does.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from app_trainer_sdk.callbacks.answers import Order
from app_trainer_sdk.callbacks.delivery import DeliveryRecord
from app_trainer_sdk.callbacks.http_sink import HttpSink
from app_trainer_sdk.callbacks.sinks import LinesSink, ManySinks, NoSink, Sink
from app_trainer_sdk.callbacks.trackers import VARIABLE, TrackerSink, check_tracker
from app_trainer_sdk.events import EventLog
from app_trainer_sdk.job import Job
from app_trainer_sdk.paths import JobDirectory


def asked_trackers() -> list[str]:
    """Names in ``APP_TRAINER_SINKS`` (``stdout,trackio``), each known to exist.

    Raises:
        BadJob: one is not installed.
    """
    names = [each.strip() for each in os.environ.get(VARIABLE, "").split(",")]
    wanted = [each for each in dict.fromkeys(names) if each not in ("", "none")]
    for name in wanted:
        if name != "stdout":
            check_tracker(name)
    return wanted


def build_sink(
    job: Job, layout: JobDirectory, events: EventLog, *, attempt: int, obey: Callable[[Order], None]
) -> Sink:
    """Everything that hears of this start; what earlier starts could not deliver goes first.

    Args:
        job: names the callback URL and its mode.
        layout: the job's directory.
        events: makes the events of this start.
        attempt: its number.
        obey: called from another thread with an order of the control plane.

    Raises:
        BadJob: credentials or a tracker are not what they should be.
    """
    sinks: list[Sink] = []
    for name in asked_trackers():
        sinks.append(LinesSink() if name == "stdout" else TrackerSink(name, layout, attempt))
    if job.callbacks is not None:
        record = DeliveryRecord(layout)
        record.begin(attempt)
        sinks.append(
            HttpSink(
                job.callbacks.url, mode=job.callbacks.mode, instance=events.instance, record=record,
                backlog=record.backlog(), obey=obey, next_sequence=events.go_on_from,
            )
        )  # fmt: skip
    if not sinks:
        return NoSink()
    return sinks[0] if len(sinks) == 1 else ManySinks(sinks)
