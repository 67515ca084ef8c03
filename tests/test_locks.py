"""The locks of an image say what ``constraints.txt`` says, have hashes for everything and leave nothing out."""

from __future__ import annotations

import importlib.util
import re
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
LOCKS = sorted((ROOT / "requirements").glob("image-*.txt"))
ENTRY = re.compile(r"([a-z0-9-]+)==([^ +]+)(\+cpu)?(?: \\\n {4}--hash=sha256:([0-9a-f]{64}))+\n")


def script() -> Any:
    """``requirements/lock.py``, which belongs to no package."""
    spec = importlib.util.spec_from_file_location("lock", ROOT / "requirements" / "lock.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def entries(lock: Path) -> dict[str, tuple[str, str]]:
    """Version and build of each package in a lock that holds nothing but entries with hashes."""
    head, _, text = lock.read_text().partition("\n")
    assert head.startswith("#")
    assert ENTRY.sub("", text) == ""
    return {found[1]: (found[2], found[3] or "") for found in ENTRY.finditer(text)}


def constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {str(canonicalize_name(name)): version for name, version in pairs}


def test_there_is_one_for_each_accelerator():
    """The Dockerfile names them by its argument."""
    assert [each.stem for each in LOCKS] == ["image-cpu", "image-cuda", "image-rocm"]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_each_has_the_constrained_version_and_a_hash(lock: Path):
    """One source of versions: a lock that was not made again after a change fails here."""
    asked = constraints()

    assert {name: version for name, (version, _) in entries(lock).items()} == {
        name: asked[name] for name in entries(lock)
    }


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_each_holds_everything_that_an_image_needs(lock: Path):
    """All that the requirements of SDK and trainers lead to; for ROCm without torch and what it alone needs."""
    lock_script = script()
    needs = {canonicalize_name(each.name): each.requires or () for each in distributions()}
    without = {"torch"} if lock.stem == "image-rocm" else set()

    wanted = lock_script.reached(lock_script.image_requirements(), needs, without=without)

    extra = entries(lock).keys() - wanted
    assert wanted <= entries(lock).keys()
    assert "torch" in wanted or without
    assert all(name.startswith(("nvidia-", "cuda-")) or name == "triton" for name in extra)
    assert bool(extra) == (lock.stem == "image-cuda")


def test_torch_is_the_build_for_its_accelerator():
    """PyPI's torch is CUDA's; the CPU's says so in its version; the vendor's for ROCm is in no lock."""
    builds = {lock.stem: entries(lock).get("torch", ("", "none"))[1] for lock in LOCKS}

    assert builds == {"image-cpu": "+cpu", "image-cuda": "", "image-rocm": "none"}
