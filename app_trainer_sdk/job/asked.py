"""Owns what of a job is asked and what is only how it is brought and told: the part that makes two jobs one.

It must not know what a digest of it is used for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app_trainer_sdk.redaction import without_secrets


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
