"""Owns huggingface_hub: nobody else imports it. It tells what a repository has; bytes come as all others do.

So a download from the Hub is resumed, verified and cached like one from any mirror. This file must not know
what the files are for.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fnmatch import fnmatch
from pathlib import PurePath

from app_trainer_sdk.errors import DependencyUnavailable
from app_trainer_sdk.names import unsafe_name
from app_trainer_sdk.transfers.wanted import Wanted
from app_trainer_sdk.trust.formats import PICKLE, PICKLES, REMOTE_CODE, SAFE

#: What a model folder needs; what executes code when it is read is fetched only where a job allows it.
PATTERNS = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja")


def list_repository(
    repository: str, revision: str, *, setting: str = "/weights", allowed: Collection[str] = ()
) -> tuple[Wanted, ...]:
    """The files of a repository at a pinned revision, with sizes and digests as the Hub tells them.

    ``allowed`` are the job's: pickles where there are no safetensors, and Python, by name.

    Raises:
        DependencyUnavailable: the Hub did not answer, has no such revision, or names files that are not safe.
    """
    import huggingface_hub

    try:
        facts = huggingface_hub.HfApi().model_info(repository, revision=revision, files_metadata=True)
        token = huggingface_hub.get_token()
        commit, siblings = facts.sha or revision, facts.siblings or []
        urls = {
            each.rfilename: huggingface_hub.hf_hub_url(repository, each.rfilename, revision=commit)
            for each in siblings
        }
    except Exception as error:  # noqa: BLE001 - many kinds, one meaning: the weights are not to be had
        raise DependencyUnavailable(
            f"{repository}@{revision}: {type(error).__name__}: {str(error)[:200]}",
            expected="the Hub to answer",
            setting="/weights to a local folder",
        ) from None
    credentials = {"Authorization": f"Bearer {token}"} if token else {}
    patterns = _patterns([each.rfilename for each in siblings], allowed)
    found = [each for each in siblings if any(fnmatch(each.rfilename, pattern) for pattern in patterns)]
    unsafe = [each.rfilename for each in found if unsafe_name(each.rfilename)]
    if unsafe or not found:
        what = f"the unsafe name {unsafe[0]!r}" if unsafe else "no file that weights are made of"
        raise DependencyUnavailable(f"{repository}@{revision} has {what}", expected=", ".join(PATTERNS))
    return tuple(
        Wanted(
            each.rfilename, (urls[each.rfilename],), size=each.size,
            sha256=each.lfs.sha256 if each.lfs else None, git_sha1=None if each.lfs else each.blob_id,
            setting=setting, credentials=credentials,
        )
        for each in sorted(found, key=lambda each: each.rfilename)
    )  # fmt: skip


def _patterns(names: Sequence[str], allowed: Collection[str]) -> list[str]:
    patterns = list(PATTERNS)
    if PICKLE in allowed and not any(PurePath(name).suffix == SAFE for name in names):
        patterns += [f"*{suffix}" for suffix in sorted(PICKLES)]
    if REMOTE_CODE in allowed:
        patterns.append("*.py")
    return patterns
