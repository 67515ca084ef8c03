"""Owns the JSON Schema of a job as people write it: with a string wherever one file, place or URL is meant.

The shape is that of :mod:`app_trainer_sdk.job`; only what is normalised before validation is added here. This
file must not know how a job is read.
"""

from __future__ import annotations

from typing import Any

from app_trainer_sdk.describe import JSON_SCHEMA_DIALECT
from app_trainer_sdk.job import JOB_SCHEMA, Job

TEXT = {"type": "string", "minLength": 1}


def job_schema() -> dict[str, Any]:
    """The JSON Schema of a job document."""
    schema = Job.model_json_schema()
    properties, parts = schema["properties"], schema["$defs"]
    for name in ("inputs", "weights"):
        values = properties[name].pop("additionalProperties", None)
        for pattern, one in properties[name].get("patternProperties", {}).items():
            properties[name]["patternProperties"][pattern] = {"anyOf": [TEXT, one]}
        properties[name]["additionalProperties"] = {"anyOf": [TEXT, values]} if values else False
    properties["callbacks"]["anyOf"].insert(0, {"type": "string", "pattern": "^https?://"})
    _let_files_be_text(parts)
    return {"$schema": JSON_SCHEMA_DIALECT, "$id": f"urn:{JOB_SCHEMA}", **schema}


def _let_files_be_text(parts: dict[str, Any]) -> None:
    """In ``files`` a string is a file with one place; ``url`` is one mirror, and ``urls`` may be one too."""
    file = parts["WeightFile"]
    urls = file["properties"]["urls"]
    file["properties"]["urls"] = {"anyOf": [TEXT, urls]}
    file["properties"]["url"] = {"anyOf": [TEXT, urls]}
    file["required"] = [name for name in file["required"] if name != "urls"]
    file["anyOf"] = [{"required": ["urls"]}, {"required": ["url"]}]
    lists = parts["WeightsReference"]["properties"]["files"]["anyOf"]
    for choice in (*lists, parts["Resume"]["properties"]["files"]):
        if choice.get("type") == "array":
            choice["items"] = {"anyOf": [TEXT, choice["items"]]}
