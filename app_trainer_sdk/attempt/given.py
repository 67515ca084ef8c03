"""Owns where a start's job document comes from: a file, or a URL where a platform passes only an environment.

The URL is the platform's, and a secret: its host may be a private one, and its query is in no message. It must
not know what a job says.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from app_trainer_sdk.errors import BadJob, DependencyUnavailable, InputMissing
from app_trainer_sdk.job import Job, load_job, read_job
from app_trainer_sdk.job.syntax import parse_text
from app_trainer_sdk.paths import PREFIX
from app_trainer_sdk.redaction import remember_document, shown_url
from app_trainer_sdk.transfers.addresses import Guard
from app_trainer_sdk.transfers.answers import check_whole
from app_trainer_sdk.transfers.faults import Busy, Fault, Gone
from app_trainer_sdk.transfers.lines import ended_after
from app_trainer_sdk.transfers.pauses import full_jitter
from app_trainer_sdk.transfers.web import Web

JOB_URL = PREFIX + "JOB_URL"
SETTING = f"--job or {JOB_URL}"
LARGEST_BYTES, PIECE_BYTES = 4 << 20, 1 << 16
#: Less than any platform's grace: nobody listens to signals yet.
PATIENCE_SECONDS, SILENCE_SECONDS = 15.0, 5.0


def given_job(place: Path | str) -> Job:
    """The job in a file, or at a URL; paths in the latter are relative to the working directory.

    Raises:
        BadJob: what is there is no job; as :func:`load_job`.
        InputMissing: nothing is at the URL, or not any more.
        DependencyUnavailable: its server does not answer.
    """
    return load_job(place) if isinstance(place, Path) else read_job(fetch_document(place), base=Path.cwd())


def fetch_document(url: str, *, pause: Callable[[float], object] = time.sleep) -> Any:
    """The document at a URL; a server that fails is asked again for some seconds. Raises as :func:`given_job`.

    Args:
        url: where; a path that ends with ``.yaml`` or ``.yml`` leads to YAML, any other to JSON.
        pause: waits between tries; an argument so that tests need not wait.
    """
    remember_document(url)
    until, chance, tries = time.monotonic() + PATIENCE_SECONDS, random.Random(), 0  # noqa: S311 - jitter
    while True:
        try:
            return parse_text(_text(url, until), shown_url(url), SETTING)
        except Gone as fault:
            raise InputMissing(str(fault), expected="the job document", setting=SETTING) from None
        except Fault as fault:
            asked = (fault.seconds or 0.0) if isinstance(fault, Busy) else 0.0
            waiting = max(asked, full_jitter(tries, chance))
            if time.monotonic() + waiting > until:
                found, expected = str(fault), "the job document"
                raise DependencyUnavailable(found, expected=expected, setting=SETTING) from None
        pause(waiting)
        tries += 1


def _text(url: str, until: float) -> str:
    guard = Guard((*Guard.from_environment().allowed, urlsplit(url).hostname or ""))
    web = Web(guard, connections=1, connect_seconds=SILENCE_SECONDS, silence_seconds=SILENCE_SECONDS)
    try:
        with web.open("GET", url) as answer:
            check_whole(answer, url, None)
            data = b""
            with ended_after(answer.shutdown, PATIENCE_SECONDS):
                while len(data) <= LARGEST_BYTES and (piece := answer.read1(PIECE_BYTES)):
                    data += piece
                    if time.monotonic() > until:
                        raise Fault(f"{shown_url(url)}: not whole after {PATIENCE_SECONDS:.0f} s")
    finally:
        web.close()
    if len(data) > LARGEST_BYTES:
        found = f"more than {LARGEST_BYTES:,} bytes at {shown_url(url)}"
        raise BadJob(found, expected="a job document", setting=SETTING)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        found = f"{shown_url(url)} is not UTF-8: {error.reason} at byte {error.start:,}"
        raise BadJob(found, expected="text in UTF-8", setting=SETTING) from None
