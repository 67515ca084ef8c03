"""Owns what the installed torch was built for, told without importing it: by its version file and the image's.

``IMAGE_FACTS`` is written when the image is built (``python -m app_trainer_sdk.training.image_facts``), since
only torch itself knows for which architectures it carries kernels. This file must not know devices' needs.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app_trainer_sdk.files import read_json
from app_trainer_sdk.paths import PREFIX

IMAGE_FACTS = Path("/image.json")


@dataclass(frozen=True)
class TorchBuild:
    """The installed torch.

    Attributes:
        version: such as ``2.13.0+cu130``; empty when torch is not installed.
        cuda: CUDA version it was built with; empty when it was not.
        hip: the same for ROCm.
        architectures: for which it carries kernels, such as ``sm_90`` or ``gfx942``; empty when not known.
        why: where the architectures come from, or why they are not known.
    """

    version: str = ""
    cuda: str = ""
    hip: str = ""
    architectures: tuple[str, ...] = ()
    why: str = ""

    def drives(self, vendor: str) -> bool:
        """Whether it was built for the cards of ``vendor`` at all."""
        return bool({"nvidia": self.cuda, "amd": self.hip}.get(vendor))

    def serves(self, architecture: str) -> bool | None:
        """Whether there are kernels for ``architecture``; None when that cannot be told."""
        if not self.architectures or not architecture:
            return None
        if architecture.startswith("gfx"):
            return any(_is_amd(each, architecture) for each in self.architectures)
        return any(_is_nvidia(each, architecture) for each in self.architectures)


def installed_torch(environment: Mapping[str, str] | None = None) -> TorchBuild:
    """What ``import torch`` would give, without doing it."""
    told = _version_file()
    version = str(told.get("__version__", ""))
    place = Path((os.environ if environment is None else environment).get(PREFIX + "IMAGE_FACTS", IMAGE_FACTS))
    architectures, why = _baked(place, version)
    return TorchBuild(version, told.get("cuda") or "", told.get("hip") or "", architectures, why)


def _baked(place: Path, version: str) -> tuple[tuple[str, ...], str]:
    try:
        facts = read_json(place)
        built_with, architectures = str(facts["torch"]), tuple(map(str, facts["architectures"]))
    except FileNotFoundError:
        return (), f"no {place}, which an image's build writes"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return (), f"{place} cannot be read ({type(error).__name__})"
    if built_with != version:
        return (), f"{place} was written for torch {built_with}"
    return architectures, str(place)


def _version_file() -> dict[str, Any]:
    """Assignments of ``torch/version.py``, read as data."""
    spec = importlib.util.find_spec("torch")
    places: Sequence[str] = (spec and spec.submodule_search_locations) or ()
    try:
        tree = ast.parse((Path(places[0]) / "version.py").read_text(encoding="utf-8"))
    except (OSError, IndexError, SyntaxError):
        return {}
    told: dict[str, Any] = {}
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant):
            told[target.id] = value.value
    return told


def _is_nvidia(built: str, architecture: str) -> bool:
    """Kernels run on their own architecture and later ones of its generation, those that end in ``a`` on their
    own alone; code for ``compute_`` on any later one.
    """
    match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", built)
    major, _, minor = architecture.partition(".")
    if match is None or not major.isdecimal() or not minor.isdecimal():
        return False
    kind, form = match[1], match[4]
    made, here = (int(match[2]), int(match[3])), (int(major), int(minor))
    if form == "a":
        return made == here
    return made <= here and ((kind == "compute" and not form) or made[0] == here[0])


def _is_amd(built: str, architecture: str) -> bool:
    """AMD's kernels run on their architecture alone, or on a family that is named as such."""
    name = built.partition(":")[0]
    if name.endswith("-generic"):
        return architecture.startswith(name.removesuffix("-generic").replace("-", ""))
    return name == architecture
