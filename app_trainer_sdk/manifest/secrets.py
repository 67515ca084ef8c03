"""Owns what of a job may be kept: everything but what a URL hides in its query or before its host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app_trainer_sdk.redaction import shown_url


def without_secrets(value: Any, pointer: str = "") -> tuple[Any, list[str]]:
    """A copy of a JSON value with every URL cut to scheme, host and path, and pointers to those that were."""
    if isinstance(value, Mapping):
        parts = {name: without_secrets(each, f"{pointer}/{_escaped(name)}") for name, each in value.items()}
        return {name: each for name, (each, _) in parts.items()}, [
            at for _, cut in parts.values() for at in cut
        ]
    if isinstance(value, list | tuple):
        items = [without_secrets(each, f"{pointer}/{index}") for index, each in enumerate(value)]
        return [each for each, _ in items], [at for _, cut in items for at in cut]
    if isinstance(value, str) and "://" in value:
        shown = cut_url(value)
        return shown, [pointer] if shown != value else []
    return value, []


def cut_url(url: str) -> str:
    """A URL without query, fragment, user and password; text that is no URL is cut at its first such place."""
    try:
        return shown_url(url)
    except ValueError:
        return url.partition("?")[0].partition("#")[0].rpartition("@")[2]


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
