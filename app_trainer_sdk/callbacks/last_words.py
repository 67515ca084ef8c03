"""Owns the copies of the terminal event that a platform reads by itself: Kubernetes and SageMaker.

They are copies: the event is in ``terminal.json``. It must not know how the event is sent.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from app_trainer_sdk.events import Event
from app_trainer_sdk.paths import PREFIX

LOG = logging.getLogger(__name__)

VARIABLE = PREFIX + "TERMINATION_LOG"
TERMINATION_LOG = Path("/dev/termination-log")
#: SageMaker shows the first 1,024 characters of it as the reason of a failure.
FAILURE_FILE = Path("/opt/ml/output/failure")
SAGEMAKER_VARIABLES = ("TRAINING_JOB_ARN", "TRAINING_JOB_NAME")


def leave_last_words(
    event: Event, environment: Mapping[str, str] | None = None, *, failure_file: Path = FAILURE_FILE,
    termination_log: Path = TERMINATION_LOG,
) -> list[Path]:  # fmt: skip
    """Copy a terminal event to where the platform looks; the files that were written.

    A platform's file that cannot be written changes nothing of how the job ended.
    """
    there = os.environ if environment is None else environment
    written = []
    for path, text in _copies(event, there, failure_file, termination_log):
        try:
            path.write_bytes(text)
            written.append(path)
        except OSError as error:
            LOG.warning("the last word is not copied to %s: %s", path, error.strerror)
    return written


def _copies(
    event: Event, environment: Mapping[str, str], failure_file: Path, termination_log: Path
) -> Iterator[tuple[Path, bytes]]:
    chosen = environment.get(VARIABLE)
    if chosen:
        yield Path(chosen), event.body
    elif termination_log.exists() and os.access(termination_log, os.W_OK):
        yield termination_log, event.body
    failure = event.document.get("failure")
    if event.type == "job.failed" and any(environment.get(name) for name in SAGEMAKER_VARIABLES):
        facts = failure if isinstance(failure, Mapping) else {}
        first = f"{facts.get('name', 'failed')} ({event.document.get('code')}): {facts.get('message', '')}\n"
        yield failure_file, first.encode() + event.body
