"""Owns the command ``reproduce``: the job that makes a run again, and what of its environment is other here.

Torch-free: versions and devices are read, not imported. It must not run anything.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from app_trainer_sdk.arguments import Parser, existing_file, write_document
from app_trainer_sdk.data_facts import cores_of_a_rank
from app_trainer_sdk.errors import BadJob, ExitCode, Problem, TrainerError
from app_trainer_sdk.files import read_json
from app_trainer_sdk.job import check_job, read_job
from app_trainer_sdk.limits import processors
from app_trainer_sdk.manifest.document import Manifest, Package
from app_trainer_sdk.manifest.gather import processor_name
from app_trainer_sdk.manifest.software import describe_code, installed_packages
from app_trainer_sdk.preflight.image import installed_torch
from app_trainer_sdk.preflight.present import present_devices
from app_trainer_sdk.registry import find_trainer
from app_trainer_sdk.validation import explain

SCHEMA = "app.trainer.reproduction/v1"
#: Settings that are decided from others when they are silent; the others are said.
FOLLOWS = ("epochs",)
#: Only these packages compute; another version of a linter makes no other numbers.
COMPUTING = (
    "accelerate", "app-trainer-sdk", "bitsandbytes", "diffusers", "gguf", "gsplat", "numpy", "onnx", "peft",
    "pillow", "safetensors", "tokenizers", "torch", "transformers", "triton",
)  # fmt: skip


@dataclass(frozen=True)
class Otherwise:
    """One thing that is other here than it was. ``decides`` is whether bits may differ for it."""

    field: str
    then: Any
    now: Any
    decides: bool = True


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the job that repeats a run: 0 when nothing that decides bits is other here, else 78."""
    chosen = _parser().parse_args(arguments)
    try:
        manifest = load_manifest(chosen.manifest)
        job = job_again(manifest, inputs=_pairs(chosen.input), weights=_pairs(chosen.weights))
        differences = list(compare(manifest, os.environ))
        if chosen.write_job:
            write_document(chosen.write_job, job, "--write-job")
    except TrainerError as error:
        sys.stderr.write(f"reproduce: {error}\n")
        return int(error.code)
    document = {
        "schema": SCHEMA, "same": not any(each.decides for each in differences), "job": job,
        "ranks": manifest.environment.ranks, "differences": [asdict(each) for each in differences],
    }  # fmt: skip
    text = json.dumps(document, indent=2, allow_nan=False) if chosen.json else _told(document, chosen)
    sys.stdout.write(text + "\n")
    return int(ExitCode.SUCCEEDED if document["same"] else ExitCode.HARDWARE_UNFIT)


def load_manifest(path: Path) -> Manifest:
    """Read a manifest.

    Raises:
        BadJob: it is not there, or is none; all problems at once.
    """
    existing_file(path, "the manifest.json of a run", "MANIFEST")
    try:
        document = read_json(path)
    except (OSError, ValueError) as error:
        raise BadJob(
            f"cannot read {path}: {error}", expected="the manifest.json of a run", setting="MANIFEST"
        ) from None
    try:
        return Manifest.model_validate(document)
    except ValidationError as error:
        raise BadJob(f"{path} is no manifest:", problems=explain(error, Manifest)) from None


def job_again(
    manifest: Manifest, *, inputs: Mapping[str, str] | None = None, weights: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The job of the manifest with every setting said as it was, so that no default or card decides anew.

    Args:
        manifest: of a run that came as far as its plan.
        inputs: places of inputs, where those of the manifest are not to be had, or hid a secret.
        weights: the same of weights.

    Raises:
        BadJob: the run had no plan; a place is needed that is not kept; or no such job can be run.
    """
    if not manifest.settings:
        raise BadJob(f"{manifest.job_id} ended before it had a plan", expected="a run whose settings are known")
    job = {name: each for name, each in manifest.job.items() if name not in ("job_id", "callbacks")}
    places = {"inputs": inputs or {}, "weights": weights or {}}
    for part, given in places.items():
        known = job.get(part, {})
        job[part] = known | {name: {**known.get(name, {}), "url": url} for name, url in given.items()}
    given_again = {f"/{part}/{name}/url" for part, given in places.items() for name in given}
    missing = [at for at in manifest.cut if at.split("/")[1] in places and at not in given_again]
    if missing:
        problems = [Problem(at, "a URL whose secret part was not kept", _option(at)) for at in missing]
        raise BadJob("places that the manifest does not keep:", problems=problems)
    knobs = {name: each.effective for name, each in manifest.settings.items() if name not in FOLLOWS}
    document: dict[str, Any] = {**job, "hyperparameters": {**job.get("hyperparameters", {}), **knobs}}
    for name in FOLLOWS:
        document["hyperparameters"].pop(name, None)
    checked = read_job(document)
    check_job(checked, find_trainer(checked.trainer))
    return checked.document()


def compare(manifest: Manifest, environment: Mapping[str, str]) -> Iterator[Otherwise]:
    """What is other here: code, packages, torch, device, processors; what decides bits first."""
    differences = [each for each in _pairs_to_compare(manifest, environment) if each.then != each.now]
    yield from sorted(differences, key=lambda each: not each.decides)


def _pairs_to_compare(manifest: Manifest, environment: Mapping[str, str]) -> Iterator[Otherwise]:
    trainer = find_trainer(manifest.job["trainer"])
    code = describe_code(manifest.job["trainer"], trainer.__module__, trainer.version, environment)
    for name in ("sdk_digest", "trainer_digest"):
        yield Otherwise(f"code/{name}", getattr(manifest.code, name), getattr(code, name))
    for name in ("revision", "image_digest", "trainer_version"):
        yield Otherwise(f"code/{name}", getattr(manifest.code, name), getattr(code, name), decides=False)
    there, here = manifest.packages, installed_packages()
    for name in sorted(there.keys() | here.keys() - {"app-trainer-sdk"}):
        then, now = there.get(name), here.get(name)
        yield Otherwise(f"packages/{name}", _package(then), _package(now), decides=name in COMPUTING)
    yield from _machine(manifest, environment)


def _package(package: Package | None) -> str | None:
    return None if package is None else f"{package.version} {package.digest or ''}".strip()


def _machine(manifest: Manifest, environment: Mapping[str, str]) -> Iterator[Otherwise]:
    was, torch = manifest.environment, installed_torch(environment)
    found, visible = present_devices(environment)
    devices = [each.name for each in visible.devices] if torch.drives(found.vendor) else []
    if was.torch is not None:
        yield Otherwise("environment/torch", was.torch.version, torch.version)
        yield Otherwise("environment/cuda", was.torch.cuda or "", torch.cuda)
        yield Otherwise("environment/hip", was.torch.hip or "", torch.hip)
    yield Otherwise("environment/devices", was.devices[: was.ranks], devices[: was.ranks])
    yield Otherwise("environment/driver", was.driver or "", found.driver, decides=False)
    if was.threads is not None:
        usable = processors()
        yield Otherwise(
            "environment/threads", was.threads, cores_of_a_rank(usable.count, usable.why, was.ranks)[0]
        )
    # Libraries choose their kernels by the kind of processor.
    yield Otherwise("environment/processor", was.processor, processor_name(), decides=not was.devices)
    for name in sorted(was.variables):
        yield Otherwise(
            f"environment/variables/{name}", was.variables[name], environment.get(name), decides=False
        )


def _told(document: Mapping[str, Any], chosen: argparse.Namespace) -> str:
    differences = document["differences"]
    lines = [f"{len(differences)} differences" if differences else "nothing is other here"]
    for each in differences:
        note = "" if each["decides"] else " (decides no bits)"
        lines.append(f"  {each['field']}: then {each['then']}; now {each['now']}{note}")
    place = chosen.write_job or "job.json"
    if not chosen.write_job:
        words = [f"--{part}={each}" for part in ("input", "weights") for each in getattr(chosen, part)]
        asked = shlex.join([str(chosen.manifest), *words, "--write-job", str(place)])
        lines.append(f"write the job: app-trainer reproduce {asked}")
    ranks = f" --ranks {document['ranks']}" if document["ranks"] > 1 else ""
    lines.append(f"run: app-trainer run --job {place} --job-dir A-NEW-DIRECTORY{ranks}")
    return "\n".join(lines)


def _option(pointer: str) -> str:
    _, part, name, *_ = pointer.split("/")
    return f"--{part.removesuffix('s') if part == 'inputs' else part} {name}=PATH-OR-URL"


def _pairs(words: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for word in words:
        name, equals, place = word.partition("=")
        if not equals or not name or not place:
            raise BadJob(f"{word!r}", expected="NAME=PATH-OR-URL", setting="--input or --weights")
        pairs[name] = place
    return pairs


def _parser() -> Parser:
    parser = Parser(
        prog="app-trainer reproduce",
        description="Write the job that makes a run again, and list what of its environment is other here.",
    )
    parser.add_argument("manifest", type=Path, metavar="MANIFEST", help="the run's manifest.json")
    parser.add_argument("--write-job", type=Path, metavar="FILE", help="write the job")
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")
    for name in ("input", "weights"):
        parser.add_argument(
            f"--{name}",
            action="append",
            default=[],
            metavar="NAME=URL",
            help=f"another place of {name}; may be repeated",
        )
    return parser


if __name__ == "__main__":
    sys.exit(main())
