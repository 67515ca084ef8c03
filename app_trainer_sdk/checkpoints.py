"""Owns reading what checkpoints are on disk: which are whole, and why others are not.

Torch-free, so that a directory can be looked at anywhere: ``app-trainer checkpoints DIR``. Writing one, and
its tensors, belong to ``training/checkpoint.py``, which says how a checkpoint is laid out. This file must not
know what is trained.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app_trainer_sdk.arguments import Parser, existing_folder
from app_trainer_sdk.errors import BadJob, ExitCode
from app_trainer_sdk.files import read_json, sha256_file
from app_trainer_sdk.plan import Plan

CHECKPOINT_SCHEMA = "app.trainer.checkpoint/v1"
MANIFEST = "manifest.json"
STATE, PLAN, IDENTITY = "state.json", "plan.json", "identity.json"
# A second number where the name is taken: by another run, or by an earlier save of the same step.
FOLDER = re.compile(r"step-(\d{8,})(?:-(\d+))?")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint found on disk.

    Attributes:
        path: its directory.
        step: updates made.
        run: identifier of the job that wrote it.
        problem: why it is not valid, empty when it is.
        size_bytes: bytes of all files the manifest names.
    """

    path: Path
    step: int
    run: str
    problem: str = ""
    size_bytes: int = 0

    @property
    def number(self) -> int:
        """Which of several folders of one step this is; the highest was written last."""
        match = FOLDER.fullmatch(self.path.name)
        return int(match[2] or 0) if match else 0


def find_checkpoints(directory: Path) -> list[Path]:
    """Every folder below ``directory`` that is named like a checkpoint."""
    if not directory.is_dir():
        return []
    return [each for each in directory.iterdir() if FOLDER.fullmatch(each.name)]


def inspect_checkpoint(folder: Path, *, digests: bool = True) -> Checkpoint:
    """Read a checkpoint's manifest and verify sizes and, with ``digests``, contents of all files it names."""
    match = FOLDER.fullmatch(folder.name)
    step = int(match[1]) if match else -1
    try:
        manifest = read_json(folder / MANIFEST)
        run, files = str(manifest["run"]), dict(manifest["files"])
        step = int(manifest["step"])
        total = sum(int(each["size"]) for each in files.values())
        problem = _first_problem(folder, files, digests)
    except FileNotFoundError:
        return Checkpoint(folder, step, "", "it has no manifest: it was never completed")
    except (OSError, ValueError, KeyError, TypeError) as error:
        return Checkpoint(folder, step, "", f"its manifest cannot be read ({type(error).__name__}: {error})")
    return Checkpoint(folder, step, run, problem, total)


def read_document(checkpoint: Checkpoint, name: str) -> Any:
    """A JSON document of the checkpoint, such as its plan."""
    return read_json(checkpoint.path / name)


def is_trained(checkpoint: Checkpoint, plan: Plan) -> bool:
    """Whether nothing is left to do but export: every update made or ended early, and evaluated too."""
    driver = read_document(checkpoint, STATE)["driver"]
    return (checkpoint.step >= plan.updates or bool(driver["ended"])) and not driver["evaluations_pending"]


def _first_problem(folder: Path, files: Mapping[str, Mapping[str, Any]], digests: bool) -> str:
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != expected["size"]:
            return f"{name} has {path.stat().st_size} bytes, the manifest says {expected['size']}"
        if digests and sha256_file(path) != expected["sha256"]:
            return f"{name} does not have the digest its manifest says"
    return ""


def main(arguments: Sequence[str] | None = None) -> int:
    """List the checkpoints of a job's directory, newest step first; 0 when at least one is valid."""
    parser = Parser(prog="app-trainer checkpoints", description="List a job's checkpoints.")
    parser.add_argument(
        "directory", type=Path, metavar="DIR", help="a job's directory, or its checkpoints folder"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    chosen = parser.parse_args(arguments)
    try:
        existing_folder(chosen.directory, "a job's directory, or its checkpoints folder", "DIR")
    except BadJob as error:
        sys.stderr.write(f"checkpoints: {error}\n")
        return int(error.code)
    inside = chosen.directory / "checkpoints"
    folders = find_checkpoints(inside if inside.is_dir() else chosen.directory)
    found = sorted(map(inspect_checkpoint, folders), key=lambda each: (each.step, each.number), reverse=True)
    if chosen.json:
        documents = [{**vars(each), "path": str(each.path)} for each in found]
        sys.stdout.write(json.dumps(documents, indent=2) + "\n")
    else:
        sys.stdout.write("".join(f"{line}\n" for line in _table(found, chosen.directory)))
    return int(ExitCode.SUCCEEDED if any(not each.problem for each in found) else ExitCode.INPUT_MISSING)


def _table(found: Sequence[Checkpoint], directory: Path) -> list[str]:
    if not found:
        return [f"no checkpoint in {directory}"]
    rows = [("folder", "step", "bytes", "run", "state")]
    for each in found:
        state = each.problem or "valid"
        rows.append((each.path.name, f"{each.step:,}", f"{each.size_bytes:,}", each.run or "unknown", state))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    return ["  ".join(line).rstrip() for line in lines]


if __name__ == "__main__":
    sys.exit(main())
