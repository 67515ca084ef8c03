"""Owns looking at the environment before anything begins: what is wrong there is refused, not passed over.

Each variable is read by whoever owns it; this file asks them all at once, where an error can still be told and
nothing was made. ``docs/reference/environment.md`` lists the variables. It must not know what they are for.
"""

from __future__ import annotations

from app_trainer_sdk.callbacks.credentials import Credentials
from app_trainer_sdk.logs import check_logs
from app_trainer_sdk.paths import attempt_from_environment, number_from_environment
from app_trainer_sdk.stops import seconds_to_deadline
from app_trainer_sdk.transfers.addresses import Guard

#: Variables that are a number from 0 on.
NUMBERS = (
    "GRACE_SECONDS", "HEARTBEAT_SECONDS", "MIN_EVENT_INTERVAL", "UPLOAD_WAIT_SECONDS",
    "UPLOAD_BYTES_PER_SECOND",
)  # fmt: skip


def check_environment() -> None:
    """Refuse a variable that does not say what it could mean.

    Raises:
        BadJob: the first that is wrong, with what was found and expected.
    """
    check_logs()
    attempt_from_environment()
    for name in NUMBERS:
        number_from_environment(name, 0.0)
    number_from_environment("STALL_SECONDS", 1.0, zero=False)
    seconds_to_deadline()
    Credentials()
    Guard.from_environment()
