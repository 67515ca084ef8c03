"""Owns handing over: artifacts written whole from a checkpoint, and asked again in a new process.

This file must not know how the checkpoint came about, or who is told.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from app_trainer_sdk.channel import work_is_elsewhere
from app_trainer_sdk.errors import InternalError, refuse_other
from app_trainer_sdk.files import read_json, remove_tree, sync_directory, write_json
from app_trainer_sdk.paths import JobDirectory
from app_trainer_sdk.start import START, Start
from app_trainer_sdk.training.opening import Opened
from app_trainer_sdk.values import JSON, Artifact, Snapshot


def export_artifacts(opened: Opened, snapshot: Snapshot, layout: JobDirectory) -> Artifact:
    """Write the artifacts from a snapshot; they appear whole, by one rename.

    Raises:
        InternalError: a folder that the trainer declares is not there.
    """
    beside = layout.root / f".artifacts.{os.getpid()}.tmp"
    for leftover in layout.root.glob(".artifacts.*.tmp"):
        remove_tree(leftover)
    beside.mkdir()
    artifact = refuse_other(opened.trainer.export(opened.run, snapshot, beside), Artifact, "export")
    declared = opened.trainer.artifacts[opened.run.method]
    for name in declared:
        if not (beside / name).is_dir():
            raise InternalError(f"export wrote no folder {name}", expected=", ".join(declared))
    remove_tree(layout.artifacts)
    beside.rename(layout.artifacts)
    sync_directory(layout.root)
    return artifact


def ask_again(artifact: Artifact, start: Start, check: Callable[[], None]) -> dict[str, Any]:
    """Load the artifact in a new process and compare its answers with those before export.

    Raises:
        InternalError: it cannot be loaded there, or answers otherwise.
    """
    if not artifact.controls:
        return {"asked": 0, "same": True}
    attempt = start.layout.attempt(start.attempt)
    question, answer = attempt / "replay-question.json", attempt / "replay-answer.json"
    write_json(question, {"artifact": artifact.name, "controls": artifact.controls})
    module = "app_trainer_sdk.training.replay"
    if run_module(module, attempt / START, question, answer, check=check):
        raise InternalError(f"the artifact {artifact.name} could not be loaded again in a new process")
    answers: Sequence[JSON] = read_json(answer)
    expected = json.loads(json.dumps(artifact.expected))
    if answers != expected:
        raise InternalError(
            f"the exported {artifact.name} answers {answers!r}", expected=f"{expected!r}, as before export"
        )
    return {"asked": len(answers), "same": True}


def run_module(module: str, *arguments: Path, check: Callable[[], None]) -> int:
    """Run a module in a new process, which is killed when ``check`` raises; its exit code."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    with subprocess.Popen(command) as process:
        while process.poll() is None:
            try:
                with work_is_elsewhere():
                    check()
                time.sleep(0.05)
            except BaseException:
                process.kill()
                raise
    return process.returncode
