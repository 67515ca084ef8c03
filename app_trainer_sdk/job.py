"""Owns the job document ``app.trainer.job/v1``: what it may say, how it is read, and its digest.

A job says what to do and nothing of where: variables of one start live in the environment. This file must
not know how inputs are fetched, and checks hyperparameters only through the trainer's own class.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from app_trainer_sdk.arguments import existing_file
from app_trainer_sdk.catalog import ModelRow
from app_trainer_sdk.contract import Trainer
from app_trainer_sdk.contract_check import merged_defaults
from app_trainer_sdk.errors import BadJob, Problem, TrainerError, did_you_mean
from app_trainer_sdk.hyperparameters import Hyperparameters
from app_trainer_sdk.redaction import without_secrets
from app_trainer_sdk.transfers.names import clash, unsafe_name
from app_trainer_sdk.validation import explain, show

JOB_SCHEMA = "app.trainer.job/v1"
#: How a set of weights may be named.
PLACES = ("url", "files", "hub")
DERIVED_NAME = re.compile(r"j_[0-9a-f]{16}")
#: What begins like a URL, its slashes miscounted too; one letter is a drive. ``./a:/b`` is a path all the same.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


def _place(url: str) -> str:
    """A path or URL that this SDK can read, or a ``ValueError`` with what was expected."""
    word = _SCHEME.match(url)
    if word is None and "://" not in url and not url.startswith("file:"):
        return url
    try:
        parts = urlsplit(url)
        there, _ = parts.hostname, parts.port
    except ValueError:
        parts, there = urlsplit(""), None
    if parts.scheme == "file" and there in (None, "localhost") and parts.path.startswith("/"):
        return url
    if parts.scheme in ("http", "https") and there:
        return url
    unknown = word is not None and word[1].lower() not in ("file", "http", "https")
    since = f", since {word[1]}: looks like a URL with an unknown scheme" if unknown and word else ""
    raise ValueError(f"a path, file:///path or https://host/path{since}")


def _receiver(url: str) -> str:
    """A URL that events can be posted to, or a ``ValueError`` with what was expected."""
    if url.startswith(("http://", "https://")):
        with contextlib.suppress(ValueError):
            return _place(url)
    raise ValueError("https://host/path")


def _relative(name: str) -> str:
    """A name that stays in its folder, or a ``ValueError`` with what was expected."""
    if wrong := unsafe_name(name):
        raise ValueError(f"a relative name below the folder, and not {wrong}")
    return name


Place = Annotated[str, Field(min_length=1), AfterValidator(_place)]


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, defer_build=True)


class ArchiveLimits(_Document):
    """What an archive may become; one that goes beyond is refused."""

    max_files: Annotated[int, Field(ge=1)] = 100_000
    max_bytes: Annotated[int, Field(ge=1)] = 64 << 30
    max_ratio: Annotated[float, Field(ge=1)] = 200.0


class FileReference(_Document):
    """One file: where it is (a path, ``file:`` or ``https:`` URL) and, when known, its size and digest.

    With a ``kind`` it is an archive, and the trainer gets the folder that it is unpacked to.
    """

    url: Place
    size: Annotated[int, Field(ge=0)] | None = None
    sha256: Sha256 | None = None
    kind: Literal["zip", "tar"] | None = None
    limits: ArchiveLimits | None = None


class WeightFile(_Document):
    """One file of a set of weights: its name in the set, and mirrors in the order of preference."""

    path: Annotated[str, Field(min_length=1), AfterValidator(_relative)]
    urls: Annotated[list[Place], Field(min_length=1)]
    size: Annotated[int, Field(ge=0)] | None = None
    sha256: Sha256 | None = None


class WeightsReference(_Document):
    """Base weights: a local folder or file (``url``), files with mirrors, or a Hub repository's revision."""

    url: Place | None = None
    size: Annotated[int, Field(ge=0)] | None = None
    sha256: Sha256 | None = None
    files: Annotated[list[WeightFile], Field(min_length=1)] | None = None
    hub: Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+$")] | None = None
    revision: str | None = None


class Outputs(_Document):
    """What must be handed over for the job to count as succeeded, and where to.

    With ``grant_url`` (the control plane grants uploads) or ``put`` (long-lived URLs by ``artifact/file``) a
    job has succeeded once each required artifact was confirmed there; where none is named, each that is made.
    ``checkpoints``: they are uploaded too, while training goes on.
    """

    required: list[Name] = Field(default_factory=list)
    grant_url: Annotated[str, Field(pattern=r"^https?://"), AfterValidator(_receiver)] | None = None
    put: dict[str, Annotated[str, Field(pattern=r"^https?://"), AfterValidator(_receiver)]] | None = None
    checkpoints: bool | None = None

    def put_pointer(self, name: str) -> str:
        """Where a URL of ``put`` stands, as a JSON pointer."""
        return "/outputs/put/" + name.replace("~", "~0").replace("/", "~1")


class Resume(_Document):
    """A checkpoint that another machine uploaded: an empty disk goes on from it.

    ``files`` are all of its files, their paths below its folder or with it (``step-00000100/manifest.json``),
    and those of the best checkpoint where that is another. ``identity`` is the SHA-256 of ``identity.json``.
    """

    step: Annotated[int, Field(ge=0)]
    identity: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")] | None = None
    files: Annotated[list[WeightFile], Field(min_length=1)]


class Callbacks(_Document):
    """Where events go. In ``notify`` mode nothing in an answer is obeyed."""

    url: Annotated[str, Field(pattern=r"^https?://"), AfterValidator(_receiver)]
    mode: Literal["notify", "control"] = "notify"


class Job(_Document):
    """A job, normalised: every file is an object, every default of the document is filled in."""

    schema_: Literal["app.trainer.job/v1"] = Field("app.trainer.job/v1", alias="schema")
    job_id: Name | None = None
    trainer: Annotated[str, Field(min_length=1)]
    model: Annotated[str, Field(min_length=1)]
    method: Annotated[str, Field(min_length=1)] | None = None
    hyperparameters: dict[str, Any] = Field(default_factory=dict)
    weights: dict[Name, WeightsReference] = Field(default_factory=dict)
    inputs: dict[Name, FileReference] = Field(default_factory=dict)
    outputs: Outputs = Field(default_factory=Outputs)
    resume: Resume | None = None
    callbacks: Callbacks | None = None
    allow: list[Literal["pickle", "remote_code"]] | None = None

    @property
    def allowed(self) -> frozenset[str]:
        """Formats that can run code when they are read, and may be read all the same."""
        return frozenset(self.allow or ())

    def document(self) -> dict[str, Any]:
        """The job as JSON, without what was not said."""
        return self.model_dump(by_alias=True, exclude_none=True)

    def identifier(self) -> str:
        """``job_id``, or a digest of what the job asks for (callbacks are how it is told, not what it is)."""
        if self.job_id:
            return self.job_id
        said = what_is_asked(self.document())
        asked = {key: value for key, value in said.items() if key not in ("callbacks", "job_id")}
        canonical = json.dumps(asked, sort_keys=True, separators=(",", ":"))
        return "j_" + hashlib.sha256(canonical.encode()).hexdigest()[:16]

    def kept_here(self) -> Job:
        """The same job that uploads nothing and begins anew, as a pilot does."""
        outputs = Outputs(required=self.outputs.required)
        return self.model_copy(update={"outputs": outputs, "resume": None})

    def under_name(self, name: str) -> Job:
        """The same job as one that is called ``name`` already, when both names are digests of what is asked."""
        digests = DERIVED_NAME.fullmatch(name) and DERIVED_NAME.fullmatch(self.identifier())
        return self.model_copy(update={"job_id": name}) if digests else self


def load_job(path: Path) -> Job:
    """Read a job from a JSON or YAML file; paths in it are relative to the file.

    Raises:
        BadJob: the file is missing, unreadable, not JSON or YAML, or not a job; all problems at once.
    """
    return read_job(parse_document(path), base=path.resolve().parent)


def parse_document(path: Path, setting: str = "--job") -> Any:
    """Parse a JSON or YAML file; a syntax error is told with its line and column.

    Raises:
        BadJob: it is missing, unreadable, or neither; ``setting`` is the argument that named it.
    """
    existing_file(path, "a JSON or YAML file", setting)
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors begin a file with a byte-order mark
    except UnicodeDecodeError as error:
        found = f"{path} is not UTF-8: {error.reason} at byte {error.start:,}"
        raise BadJob(found, expected="a text file in UTF-8", setting=setting) from None
    except OSError as error:
        found = f"cannot read {path}: {error.strerror}"
        raise BadJob(found, expected="a file that can be read", setting=setting) from None
    if path.suffix.lower() in (".yaml", ".yml"):
        return _parse_yaml(path, text)
    try:
        return json.loads(text, object_pairs_hook=unique_keys, parse_constant=refuse_constant)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise BadJob(f"{path} is not JSON: {error.msg} at {place}", expected="valid JSON") from None
    except (ValueError, RecursionError) as error:
        raise BadJob(f"{path} is not a job: {error}", expected="valid JSON") from None


def read_job(document: Any, *, base: Path | None = None) -> Job:
    """Validate a parsed job. Relative paths are resolved against ``base`` when it is given."""
    if not isinstance(document, Mapping):
        raise BadJob(f"a job that is {show(document)}", expected="an object with trainer and model")
    normal = _normalised(document)
    try:
        job = Job.model_validate(normal)
    except ValidationError as error:
        problems = explain(error, Job)
        raise BadJob("the job cannot be used:", problems=problems + _further(normal, problems)) from None
    return _resolve_paths(job, base) if base else job


def _further(document: Mapping[str, Any], problems: Sequence[Problem]) -> list[Problem]:
    """What the trainer, where it is known, refuses of the parts that are right by themselves."""
    from app_trainer_sdk.registry import find_trainer  # only once something is wrong

    wrong = {part for problem in problems for part in problem.pointer.split("/")[1:2]}
    right = {name: each for name, each in document.items() if name not in wrong}
    try:
        job = Job.model_validate({"model": "-", **right})  # a placeholder, where it is among the wrong parts
        trainer = find_trainer(job.trainer)
    except (TrainerError, ValidationError):  # nobody to ask: that error comes once the document is right
        return []
    try:
        check_job(job, trainer)
    except BadJob as error:
        return [each for each in error.problems if each.pointer.split("/")[1] not in wrong]
    return []


def check_job(job: Job, trainer: type[Trainer]) -> tuple[Hyperparameters, ModelRow, str]:
    """Check what only the trainer knows: model, method, inputs, hyperparameters; all problems at once.

    Returns:
        the settings as asked (defaults merged), the catalog row and the method.
    """
    problems: list[Problem] = []
    rows = {row.name: row for row in trainer.models}
    method = job.method or trainer.methods[0]
    if job.model not in rows:
        problems.append(_unknown("/model", job.model, rows, "a model of the trainer"))
    if method not in trainer.methods:
        problems.append(_unknown("/method", method, trainer.methods, "a method of the trainer"))
    problems += _input_problems(job, trainer) + _weight_problems(job, rows.get(job.model))
    if job.model in rows and method in trainer.methods:
        defaults = merged_defaults(trainer, rows[job.model], method)
        values = {**_not_asked_otherwise(defaults, job.hyperparameters), **job.hyperparameters}
    else:
        values = dict(job.hyperparameters)
    settings, wrong = trainer.hyperparameters_class.inspect(values)
    problems += wrong
    problems += _output_problems(job, trainer, method) + _place_problems(job)
    if problems or settings is None:
        raise BadJob("the job cannot be used:", problems=problems)
    return settings, rows[job.model], method


def _not_asked_otherwise(defaults: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults that do not contradict what the job says: asking for epochs drops a default for updates."""
    kept = dict(defaults)
    if "updates" in asked or "epochs" in asked:
        kept.pop("updates", None)
        kept.pop("epochs", None)
    batch = {"global_batch", "microbatch", "gradient_accumulation_steps"}
    if batch & asked.keys():
        kept = {name: value for name, value in kept.items() if name not in batch}
    return kept


def _input_problems(job: Job, trainer: type[Trainer]) -> list[Problem]:
    problems = [
        _unknown(f"/inputs/{name}", name, trainer.inputs, "an input of the trainer")
        for name in job.inputs
        if name not in trainer.inputs
    ]
    for name, described in trainer.inputs.items():
        if described.required and name not in job.inputs:
            problems.append(Problem(f"/inputs/{name}", "nothing", f"a path or URL: {described.description}"))
    return problems


def _weight_problems(job: Job, row: ModelRow | None) -> list[Problem]:
    problems = []
    for role, asked in job.weights.items():
        pointer = f"/weights/{role}"
        if row is not None and row.weights and role not in row.weights:
            problems.append(_unknown(pointer, role, row.weights, "a set of weights of the model"))
        elif len(said := [each for each in PLACES if getattr(asked, each) is not None]) != 1:
            expected = "one of the three: url, files, or hub with revision"
            problems.append(Problem(pointer, " and ".join(said) or "neither url, files nor hub", expected))
        elif asked.files is not None and (wrong := clash(each.path for each in asked.files)):
            problems.append(Problem(f"{pointer}/files", wrong, "each name once"))
        elif asked.url is None and (asked.size is not None or asked.sha256 is not None):
            problems.append(
                Problem(pointer, f"size or sha256 beside {said[0]}", "them beside url, or in files")
            )
        elif asked.hub is not None and not asked.revision:
            problems.append(Problem(f"{pointer}/revision", "nothing", "the commit of the Hub repository"))
    return problems


def _output_problems(job: Job, trainer: type[Trainer], method: str) -> list[Problem]:
    if method not in trainer.methods:
        return []  # told already; what the method hands over is not known
    known = trainer.artifacts.get(method, ())
    places = [(f"/outputs/required/{index}", name) for index, name in enumerate(job.outputs.required)]
    places += [(job.outputs.put_pointer(key), key.partition("/")[0]) for key in job.outputs.put or ()]
    return [
        _unknown(pointer, name, known, "an artifact of the method")
        for pointer, name in places
        if name not in known
    ]


def _place_problems(job: Job) -> list[Problem]:
    """Where outputs go, and where a checkpoint comes from."""
    problems, outputs = [], job.outputs
    if outputs.grant_url is not None and outputs.put is not None:
        problems.append(Problem("/outputs", "grant_url and put", "one of the two"))
    if outputs.checkpoints and outputs.grant_url is None:
        problems.append(Problem("/outputs/checkpoints", "no grant_url", "somebody who grants their upload"))
    for index, each in enumerate(job.resume.files if job.resume else ()):
        if each.sha256 is None or each.size is None:
            problems.append(Problem(f"/resume/files/{index}", "no size or no sha256", "both"))
    if job.resume and (wrong := clash(each.path for each in job.resume.files)):
        problems.append(Problem("/resume/files", wrong, "each name once"))
    return problems


def _unknown(pointer: str, found: str, known: Any, expected: str) -> Problem:
    return Problem(pointer, repr(found), expected, did_you_mean(found, known))


def _normalised(document: Mapping[str, Any]) -> dict[str, Any]:
    """A string where a file is expected means ``{"url": ...}``: said before validation, told once."""
    normal = dict(document)
    for key in ("inputs", "weights"):
        if isinstance(normal.get(key), Mapping):
            normal[key] = {
                name: {"url": value} if isinstance(value, str) else value for name, value in normal[key].items()
            }
    if isinstance(normal.get("weights"), Mapping):
        normal["weights"] = {name: _normal_files(each) for name, each in normal["weights"].items()}
    if isinstance(normal.get("resume"), Mapping):
        normal["resume"] = _normal_files(normal["resume"])
    if isinstance(normal.get("callbacks"), str):
        normal["callbacks"] = {"url": normal["callbacks"]}
    return normal


def _normal_files(weights: Any) -> Any:
    """In ``files`` a string is the one place of a file of that name, and ``url`` is one mirror."""
    if not isinstance(weights, Mapping) or not isinstance(weights.get("files"), list):
        return weights
    files: list[Any] = []
    for each in weights["files"]:
        if isinstance(each, str):
            each = {"path": unquote(urlsplit(each).path).rpartition("/")[2], "urls": [each]}
        elif isinstance(each, Mapping):
            each = dict(each)
            if "url" in each and "urls" not in each:
                each["urls"] = each.pop("url")
            if isinstance(each.get("urls"), str):
                each["urls"] = [each["urls"]]
        files.append(each)
    return {**weights, "files": files}


def what_is_asked(document: Mapping[str, Any]) -> dict[str, Any]:
    """A job's document with its files as what they are and not where they are had from, or brought, today.

    With a digest the place does not matter; without one a signature in the URL does not. So a job goes on with
    fresh presigned URLs, and what is shown of it holds no secret.
    """
    said = dict(document)
    for part in ("inputs", "weights"):
        if isinstance(said.get(part), Mapping):
            said[part] = without_secrets({name: _without_place(each) for name, each in said[part].items()})
    said.pop("resume", None)
    if isinstance(said.get("outputs"), Mapping):
        said["outputs"] = {name: each for name, each in said["outputs"].items() if name == "required"}
    return said


def _without_place(reference: Any) -> Any:
    if not isinstance(reference, Mapping):
        return reference
    said = dict(reference)
    if isinstance(said.get("files"), list):
        said["files"] = [_without_place(each) for each in said["files"]]
    digest = said.get("sha256") is not None
    for key in ("url", "urls"):
        if key in said and digest:
            del said[key]
    return said


def _resolve_paths(job: Job, base: Path) -> Job:
    def place(url: str) -> str:
        local = "://" not in url and not url.startswith("file:")
        return str(base / _at_home(Path(url))) if local else url

    def resolve_files(reference: Any) -> Any:
        files = [each.model_copy(update={"urls": [*map(place, each.urls)]}) for each in reference.files]
        return reference.model_copy(update={"files": files})

    def resolve(reference: Any) -> Any:
        update: dict[str, Any] = {} if reference.url is None else {"url": place(reference.url)}
        resolved = reference.model_copy(update=update)
        return resolved if getattr(reference, "files", None) is None else resolve_files(resolved)

    return job.model_copy(
        update={
            "inputs": {name: resolve(each) for name, each in job.inputs.items()},
            "weights": {name: resolve(each) for name, each in job.weights.items()},
            "resume": None if job.resume is None else resolve_files(job.resume),
            "job_id": job.identifier(),
        }
    )


def _at_home(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError:  # ~somebody who has no home here: then it is a file of that name
        return path


def _parse_yaml(path: Path, text: str) -> Any:
    import yaml  # 30 ms that a JSON job need not pay

    from app_trainer_sdk.job_yaml import load_yaml

    try:
        return load_yaml(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        words = ", ".join(filter(None, (error.context, error.problem)))
        raise BadJob(f"{path} is not YAML: {words}{place}", expected="valid YAML") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadJob(f"{path} is not a job: {error}", expected="valid YAML") from None


def unique_keys(pairs: Sequence[tuple[Any, Any]]) -> dict[Any, Any]:
    """An object from its pairs; a key that stands twice is a ``ValueError``, since one would be lost."""
    document = dict(pairs)
    if len(document) != len(pairs):
        twice = next(key for key, _ in pairs if [each for each, _ in pairs].count(key) > 1)
        raise ValueError(f"the key {twice!r} stands twice")
    return document


def refuse_constant(word: str) -> None:
    """NaN and Infinity are words of Python's parser, not of JSON."""
    raise ValueError(f"{word} is not a JSON number")
