"""What torch alone knows of an image, for its build to write down."""

from __future__ import annotations

import json
import runpy
import sys

import torch

from app_trainer_sdk.training import image_facts as module
from app_trainer_sdk.training.image_facts import image_facts


def test_a_build_writes_what_torch_knows(monkeypatch, capsys):
    """One JSON document; the revision is what the build says, or null."""
    monkeypatch.setattr(sys, "argv", ["image_facts", "abc123"])
    runpy.run_path(module.__file__, run_name="__main__")
    told = json.loads(capsys.readouterr().out)

    assert told == image_facts("abc123")
    assert (told["torch"], told["cuda"]) == (torch.__version__, torch.version.cuda)
    assert isinstance(told["architectures"], list)
    assert image_facts()["revision"] is None
