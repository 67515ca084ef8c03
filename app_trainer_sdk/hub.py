"""Owns huggingface_hub: nobody else imports it. Downloads happen in the supervisor, never in a rank."""

from __future__ import annotations

from pathlib import Path

from app_trainer_sdk.errors import DependencyUnavailable

#: What a model folder needs; formats that execute code when they are read are never fetched.
PATTERNS = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja")


def download_snapshot(repository: str, revision: str, cache: Path) -> Path:
    """Local folder of a repository at a pinned revision.

    Raises:
        DependencyUnavailable: the Hub did not answer, or has no such revision.
    """
    import huggingface_hub

    try:
        folder = huggingface_hub.snapshot_download(
            repository, revision=revision, cache_dir=cache / "hub", allow_patterns=list(PATTERNS)
        )
    except Exception as error:  # noqa: BLE001 - many kinds, one meaning: the weights are not to be had
        raise DependencyUnavailable(
            f"{repository}@{revision}: {type(error).__name__}: {str(error)[:200]}",
            expected="the Hub to answer",
            setting="/weights to a local folder",
        ) from None
    return Path(folder)
