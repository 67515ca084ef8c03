"""What is known of the installed torch without importing it."""

from __future__ import annotations

import json

import pytest
import torch

from app_trainer_sdk.preflight.image import TorchBuild, installed_torch
from app_trainer_sdk.training.image_facts import image_facts


@pytest.mark.parametrize(
    ("built", "architecture", "served"),
    [("sm_90", "9.0", True), ("sm_80", "8.9", True), ("sm_89", "8.0", False), ("sm_90", "12.0", False),
     ("compute_90", "12.0", True), ("sm_90a", "9.0", True), ("sm_100a", "10.3", False),
     ("sm_100f", "10.3", True), ("sm_100 sm_120", "12.0", True), ("gfx942", "gfx942", True),
     ("gfx942:xnack-", "gfx942", True), ("gfx942", "gfx90a", False), ("gfx11-generic", "gfx1103", True),
     ("gfx9-4-generic", "gfx942", True),
     ("sm_90", "", None), ("", "9.0", None)],
)  # fmt: skip
def test_which_kernels_run_where(built, architecture, served):
    """NVIDIA's run on later cards of their generation; AMD's on their own."""
    assert TorchBuild(architectures=tuple(built.split())).serves(architecture) is served


def test_the_version_is_torch_s_own():
    """Read as data, and the same as torch says."""
    build = installed_torch({"APP_TRAINER_IMAGE_FACTS": "/nowhere/image.json"})

    assert (build.version, build.cuda) == (torch.__version__, torch.version.cuda or "")
    assert build.why == "no /nowhere/image.json, which an image's build writes"


def test_an_image_s_list_counts_for_its_own_torch(tmp_path):
    """A list that another torch wrote is not believed."""
    place = tmp_path / "image.json"
    facts = {**image_facts(), "architectures": ["sm_90"]}
    place.write_text(json.dumps(facts))
    environment = {"APP_TRAINER_IMAGE_FACTS": str(place)}

    assert installed_torch(environment).architectures == ("sm_90",)

    place.write_text(json.dumps({**facts, "torch": "2.12.0"}))

    assert installed_torch(environment).architectures == ()
    assert "2.12.0" in installed_torch(environment).why

    place.write_text("{")

    assert "cannot be read" in installed_torch(environment).why
