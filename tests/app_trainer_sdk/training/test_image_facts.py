"""What torch alone knows of an image, for its build to write down."""

from __future__ import annotations

import json
import subprocess
import sys

import torch

from app_trainer_sdk.training.image_facts import image_facts


def test_a_build_writes_what_torch_knows():
    """One JSON document; the revision is what the build says, or null."""
    command = [sys.executable, "-m", "app_trainer_sdk.training.image_facts", "abc123"]
    told = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert told == image_facts("abc123")
    assert (told["torch"], told["cuda"]) == (torch.__version__, torch.version.cuda)
    assert isinstance(told["architectures"], list)
    assert image_facts()["revision"] is None
