"""Owns how a pydantic refusal becomes problems a person can act on: one mistake, one line, with its pointer.

It must not know any particular document; jobs and hyperparameters pass their own models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from app_trainer_sdk.errors import Problem, did_you_mean, json_pointer

# Characters of a found value that a message repeats; more would bury the sentence.
SHOWN_VALUE_CHARACTERS = 80
#: Patterns in words; one that is not here is told as it is.
PATTERNS = {
    "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$": "of at most 128 letters, digits, '.', '_', '-', no sign first",
    "^[A-Za-z_][A-Za-z0-9_.-]{0,63}$": "of at most 64 letters, digits, '_', '.', '-', a letter or '_' first",
    "^[0-9a-f]{64}$": "of 64 digits and letters a to f",
    "^sha256:[0-9a-f]{64}$": "of sha256: and 64 digits and letters a to f",
    r"^[\w.-]+/[\w.-]+$": "such as owner/name",
    "^https?://": "such as https://host/path",
}


def find_problems(model: type[BaseModel], document: Any, *, pointer: str = "") -> list[Problem]:
    """Every mistake of ``document`` against ``model``, in document order, each once.

    Args:
        model: the pydantic class the document should satisfy.
        document: parsed JSON.
        pointer: JSON pointer of the document inside a larger one.
    """
    try:
        model.model_validate(document)
    except ValidationError as error:
        return explain(error, model, pointer=pointer)
    return []


def explain(error: ValidationError, model: type[BaseModel], *, pointer: str = "") -> list[Problem]:
    """Turn a pydantic error into problems; alternatives of one union are told as one expectation."""
    schema = model.model_json_schema()
    problems: dict[str, Problem] = {}
    for detail in error.errors(include_url=False):
        path = _path_in_document(detail["loc"], schema, unknown_key=detail["type"] == "extra_forbidden")
        here = pointer + json_pointer(*path)
        if here in problems:
            continue
        problems[here] = _problem(here, path, detail, schema)
    return list(problems.values())


def show(value: Any) -> str:
    """The value as it goes into a message, cut when long."""
    text = repr(value)
    return text if len(text) <= SHOWN_VALUE_CHARACTERS else text[: SHOWN_VALUE_CHARACTERS - 1] + "…"


def expectation(schema: Mapping[str, Any], root: Mapping[str, Any] | None = None) -> str:
    """A JSON Schema fragment in words: ``an integer from 1 to 64 or 'auto'``."""
    root = root or schema
    schema = _resolved(schema, root)
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    if alternatives:
        return " or ".join(expectation(alternative, root) for alternative in alternatives)
    if "enum" in schema:
        return "one of " + ", ".join(repr(value) for value in schema["enum"])
    if "const" in schema:
        return repr(schema["const"])
    kind = {
        "integer": "an integer",
        "number": "a finite number",
        "string": "a string",
        "boolean": "true or false",
        "object": "an object",
        "array": "a list",
        "null": "null",
    }.get(schema.get("type", ""), "a value")
    return kind + _bounds(schema)


def _bounds(schema: Mapping[str, Any]) -> str:
    low, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    high, below = schema.get("maximum"), schema.get("exclusiveMaximum")
    words = ""
    if low is not None:
        words += f" from {low:,}" if high is not None else f" of at least {low:,}"
    if above is not None:
        words += f" above {above:,}"
    if high is not None:
        words += f" to {high:,}" if low is not None else f" of at most {high:,}"
    if below is not None:
        words += f" below {below:,}" if above is None else f" and below {below:,}"
    if "pattern" in schema:
        words += f" {_in_words(schema['pattern'])}"
    return words


def _in_words(pattern: str) -> str:
    return PATTERNS.get(pattern, f"matching {pattern}")


def _problem(
    here: str, path: Sequence[str | int], detail: Mapping[str, Any], schema: Mapping[str, Any]
) -> Problem:
    parent, fragment = _fragments(path, schema)
    if detail["loc"][-1:] == ("[key]",):
        patterns = " or ".join(map(_in_words, parent.get("patternProperties", {})))
        return Problem(here, f"the name {path[-1]!r}", f"a name {patterns}")
    if detail["type"] == "extra_forbidden":
        known = _known_keys(parent, schema)
        return Problem(
            here, f"an unknown key {path[-1]!r}", "only known keys", did_you_mean(str(path[-1]), known)
        )
    if detail["type"] == "missing":
        return Problem(here, "nothing", expectation(fragment, schema))
    if detail["type"] == "value_error":
        return Problem(here, show(detail["input"]), str(detail["ctx"]["error"]))
    hint = ""
    if "enum" in fragment and isinstance(detail["input"], str):
        hint = did_you_mean(detail["input"], [str(value) for value in fragment["enum"]])
    # The kind is right, so its name alone would say nothing: an empty text is a text.
    empty = (
        ", not an empty one" if detail["input"] in ("", [], {}) and detail["type"].endswith("_short") else ""
    )
    return Problem(here, show(detail["input"]), expectation(fragment, schema) + empty, hint)


def _resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = schema.get("$ref")
    if not reference:
        return schema
    resolved: Mapping[str, Any] = root["$defs"][reference.removeprefix("#/$defs/")]
    return resolved


def _fragments(
    path: Sequence[str | int], root: Mapping[str, Any]
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The schema around the last step of ``path`` and the schema at it."""
    parent: Mapping[str, Any] = root
    here: Mapping[str, Any] = root
    for step in path:
        parent = _resolved(here, root)
        here = _step(parent, step, root) or {}
    return parent, _resolved(here, root)


def _step(schema: Mapping[str, Any], step: str | int, root: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The schema one step down, through unions, or None when the step is not part of the document."""
    schema = _resolved(schema, root)
    found: Mapping[str, Any] | None
    if isinstance(step, int):
        found = schema.get("items")
    else:
        properties = schema.get("properties", {})
        found = properties.get(step) or _schema_of_other_keys(schema)
    if found is not None:
        return found
    for alternative in _alternatives(schema):
        found = _step(alternative, step, root)
        if found is not None:
            return found
    return None


def _schema_of_other_keys(schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What a mapping with free keys says of its values; pydantic writes a key's pattern beside it."""
    patterns: Mapping[str, Mapping[str, Any]] = schema.get("patternProperties", {})
    for below in patterns.values():
        return below
    extra = schema.get("additionalProperties")
    return extra if isinstance(extra, Mapping) else None


def _alternatives(schema: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return [*schema.get("anyOf", ()), *schema.get("oneOf", ())]


def _known_keys(schema: Mapping[str, Any], root: Mapping[str, Any]) -> list[str]:
    """Keys an object may have here, through unions."""
    schema = _resolved(schema, root)
    return [
        *schema.get("properties", {}),
        *(key for each in _alternatives(schema) for key in _known_keys(each, root)),
    ]


def _path_in_document(
    location: Sequence[str | int], root: Mapping[str, Any], *, unknown_key: bool = False
) -> list[str | int]:
    """Drop the steps pydantic adds for the alternatives of a union: they are not in the document."""
    path: list[str | int] = []
    here: Mapping[str, Any] = root
    for index, step in enumerate(location):
        if step == "[key]":  # pydantic's word for a mapping's key, whose own step stands before it
            continue
        if unknown_key and index == len(location) - 1:  # in the document, though no schema knows it
            return [*path, step]
        below = _step(here, step, root)
        if below is None and index < len(location) - 1 and path:
            continue
        if below is None and path and "anyOf" in _resolved(here, root):
            continue
        if below is None and path and _resolved(here, root).get("type") not in ("object", "array", None):
            continue
        path.append(step)
        here = below or {}
    return path
