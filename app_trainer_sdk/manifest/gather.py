"""Owns writing ``manifest.json``: read from what a run left in its directory, whichever way it ended.

Nothing is computed that a run did not write, besides what software is installed. This file must not know how a
run is run.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from app_trainer_sdk import __version__
from app_trainer_sdk.contract import Trainer
from app_trainer_sdk.files import read_json, read_lines, write_json
from app_trainer_sdk.manifest.document import (
    Dataset,
    Determinism,
    Environment,
    InputFile,
    Manifest,
    Output,
    PhaseTime,
    Reload,
    Setting,
    Weights,
)
from app_trainer_sdk.manifest.software import describe_code, installed_packages
from app_trainer_sdk.paths import JobDirectory
from app_trainer_sdk.preflight.command import FILE as PREFLIGHT
from app_trainer_sdk.redaction import shown_document, shown_url
from app_trainer_sdk.registry import find_trainer
from app_trainer_sdk.start import ENVIRONMENT, START


def write_manifest(layout: JobDirectory, result: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Write the manifest of an ended attempt beside ``result.json``; whole, or the old one stays.

    Args:
        layout: the job's directory.
        result: how the attempt ended.
        asked: the job document, secrets and all; they are cut out here, and it is told where.
    """
    write_json(layout.manifest, gather_manifest(layout, result, asked).document())


def gather_manifest(layout: JobDirectory, result: Mapping[str, Any], asked: Mapping[str, Any]) -> Manifest:
    """What the directory tells of the attempt that ``result`` ended."""
    folder = layout.attempt(result["attempt"])
    start, told, plan = _read(folder / START), _read(folder / ENVIRONMENT), _read(layout.plan)
    job, cut = shown_document(asked)
    trainer = find_trainer(job["trainer"])
    settings = plan.get("settings", {})
    seed = settings.get("seed", {}).get("effective")
    return Manifest(
        schema="app.trainer.manifest/v1", sdk_version=__version__, job_id=result["job_id"],
        attempt=result["attempt"], status=result["status"], exit_code=result["exit_code"],
        ended=datetime.now(UTC).isoformat(timespec="seconds"), job=job, cut=cut,
        settings={name: Setting(**each) for name, each in settings.items()},
        changed=list(plan.get("changed", ())),
        determinism=Determinism(seed=seed, flags=told.get("determinism", {})),
        code=describe_code(job["trainer"], trainer.__module__, trainer.version, os.environ),
        packages=installed_packages(), environment=_environment(folder, start, told, plan),
        weights=_weights(start, trainer), inputs=_inputs(start),
        dataset=Dataset(**{name: told.get("data", {}).get(name) or None for name in Dataset.model_fields}),
        timings=result.get("timings") or {}, phases=list(_phases(layout)),
        outputs=[Output(**each) for each in result.get("outputs") or ()], reload=_reload(result),
        stored=result.get("stored"),
        failure=result.get("failure"),
    )  # fmt: skip


def processor_name() -> str:
    """The processor as Linux names it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def _environment(
    folder: Path, start: Mapping[str, Any], told: Mapping[str, Any], plan: Mapping[str, Any]
) -> Environment:
    machine = _read(folder / PREFLIGHT).get("machine", {})
    names = ("python", "implementation", "system", "machine", "torch", "devices", "kernels", "variables")
    known = {name: told[name] for name in (*names, "operations") if name in told}
    here = {"python": platform.python_version(), **known}
    driver = machine.get("accelerator", {}).get("driver") or None
    return Environment(
        **here,
        processor=processor_name(),
        driver=driver,
        ranks=start.get("ranks", 1),
        threads=plan.get("threads"),
    )


def _weights(start: Mapping[str, Any], trainer: type[Trainer]) -> dict[str, Weights]:
    job = start.get("job", {})
    row = next((each for each in trainer.models if each.name == job.get("model")), None)
    found = {}
    for role, identity in start.get("weights_identity", {}).items():
        asked, source = job.get("weights", {}).get(role), row.weights.get(role) if row is not None else None
        if asked is not None:
            place = (
                asked.get("hub") or shown_url(asked["url"])
                if "://" in asked.get("url", "")
                else asked.get("url")
            )
            parts = {"revision": asked.get("revision"), "source": asked.get("hub") or place}
        elif source is not None:
            parts = {
                "revision": source.revision,
                "source": source.package or source.hub,
                "sha256": source.sha256,
            }
        else:
            parts = {}
        size = _bytes_of(Path(start["weights"][role]))
        found[role] = Weights(
            identity=identity, **{name: each or None for name, each in parts.items()}, bytes=size
        )
    return found


def _inputs(start: Mapping[str, Any]) -> dict[str, InputFile]:
    local = start.get("inputs", {})
    return {
        name: InputFile(
            url=shown_url(each["url"]) if "://" in each["url"] else each["url"], sha256=each.get("sha256"),
            bytes=_bytes_of(Path(local[name])) if name in local else each.get("size"),
        )
        for name, each in start.get("job", {}).get("inputs", {}).items()
    }  # fmt: skip


def _phases(layout: JobDirectory) -> Iterator[PhaseTime]:
    others = sorted(layout.root.glob(f"attempts/*/rank-*/{layout.phases.name}"))
    for row in (row for path in (layout.phases, *others) for row in read_lines(path)):
        name = f"{row.get('within', '')}/{row['phase']}".lstrip("/")
        yield PhaseTime(
            attempt=row["attempt"], rank=row.get("rank", 0), phase=name, seconds=row["seconds"],
            peak_bytes=row["peak"], reused=row["reused"],
        )  # fmt: skip


def _reload(result: Mapping[str, Any]) -> Reload | None:
    artifact = result.get("artifact")
    if not artifact or not artifact.get("reload"):
        return None
    asked = bool((result.get("replay") or {}).get("asked"))
    folder = f"artifacts/{artifact['name']}"
    return Reload(artifact=artifact["name"], folder=folder, python=artifact["reload"], asked_again=asked)


def _bytes_of(path: Path) -> int | None:
    try:
        files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
        return sum(each.stat().st_size for each in files)
    except OSError:
        return None


def _read(path: Path) -> dict[str, Any]:
    """A document of the run; empty where it did not come so far."""
    try:
        document = read_json(path)
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}
