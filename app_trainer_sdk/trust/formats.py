"""Owns which files can run code when they are read, and that none is read unless the job allows it by name.

A pickle runs what its author wrote; a model's repository may bring Python of its own. Everything else that
trainers read (safetensors, GGUF, ONNX, JSON) is data. This file must not know how anything is loaded:
``training/tensors.py`` does that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from app_trainer_sdk.errors import BadJob, Problem

PICKLE, REMOTE_CODE = "pickle", "remote_code"
#: Names under which pickles travel.
PICKLES = frozenset({".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib"})
SAFE = ".safetensors"


def is_pickle(file: Path) -> bool:
    """Whether a file's name says that it is one, or may be."""
    return file.suffix.lower() in PICKLES


def refuse_untrusted(weights: Mapping[str, Path | Sequence[str]], allowed: Collection[str]) -> None:
    """Refuse sets of weights that can only be read by running what is in them.

    A folder that has safetensors is read from these alone, whatever lies beside.

    Args:
        weights: local path of each set, by role; or the names of its files, before they are fetched.
        allowed: the job's ``allow``.

    Raises:
        BadJob: with a pointer to each set and the word that would allow it.
    """
    problems = []
    for role, place in weights.items():
        found = _only_pickle(place)
        if found is not None and PICKLE not in allowed:
            expected, hint = (
                "safetensors",
                f'convert it, or add "{PICKLE}" to /allow where you trust its author',
            )
            told = f"{found.name}, which runs code when it is read"
            problems.append(Problem(f"/weights/{role}", told, expected, hint))
    if problems:
        raise BadJob("weights that are not only data:", problems=problems)


def refuse_remote_code(error: Exception, place: Path, allowed: Collection[str], *, role: str = "base") -> None:
    """Tell a library's wish to run a model's own Python as what it is; any other error passes.

    Raises:
        BadJob: the library wants it and the job does not allow it.
    """
    if "trust_remote_code" in str(error) and REMOTE_CODE not in allowed:
        hint = f'another model, or add "{REMOTE_CODE}" to /allow where you trust its author'
        wrong = Problem(
            f"/weights/{role}", f"{place.name}, whose model is Python of its own", "a known model", hint
        )
        raise BadJob("weights that are not only data:", problems=[wrong]) from error


def _only_pickle(weights: Path | Sequence[str]) -> Path | None:
    """The pickle that a loader would have to read, if there is nothing else to read."""
    if not isinstance(weights, Path):
        files = [Path(name) for name in weights]
    elif weights.is_dir():
        files = sorted(each for each in weights.rglob("*") if each.is_file())
    else:
        files = [weights]
    if any(each.suffix == SAFE for each in files):
        return None
    return next(filter(is_pickle, files), None)
