"""Owns asking the process that plans: it has torch, whoever asks has not.

This file must not know what is asked, nor what is made of the answer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from app_trainer_sdk.errors import ExitCode, InternalError, TrainerError

PROGRAM = (sys.executable, "-m", "app_trainer_sdk.training.planning")
#: No network, and nothing on the terminal but the answer.
QUIET = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "PYTHONWARNINGS": "ignore"}
#: How memory is known, unless the answer for a card says otherwise.
GRADE = "predicted, CPU kernels; context, libraries and headroom declared"

Ask = Callable[[Mapping[str, Any]], dict[str, Any]]


def ask(request: Mapping[str, Any], *, seconds: float | None = None) -> dict[str, Any]:
    """What the planning process answers.

    Args:
        request: what is asked.
        seconds: how long it may take; None waits for ever.

    Raises:
        TrainerError: what it refused, or that it did not answer.
    """
    environment = {**os.environ, **QUIET}
    try:
        done = subprocess.run(
            PROGRAM, input=json.dumps(request), capture_output=True, text=True, env=environment, check=False,
            timeout=seconds,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise InternalError(f"planning took longer than {seconds:.0f} s") from None
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        tail = "\n".join(done.stderr.splitlines()[-8:])
        raise InternalError(f"planning ended with status {done.returncode}:\n{tail}") from None
    if "error" in found:
        raise _as_error(found["error"])
    return found


def _as_error(told: Mapping[str, Any]) -> TrainerError:
    """The error of the other side, as one of the same code here."""
    code = ExitCode(told["code"])
    kind = next((each for each in TrainerError.__subclasses__() if each.code is code), InternalError)
    return kind(told["message"])
