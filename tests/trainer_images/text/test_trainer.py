"""The table of contents of the text image."""

from __future__ import annotations

import subprocess
import sys

CHECK = """
import sys
from trainer_images.text.trainer import TextTrainer
heavy = {"torch", "transformers", "peft", "numpy", "safetensors"} & set(sys.modules)
sys.exit(f"imported {heavy}" if heavy else 0)
"""


def test_it_is_imported_without_torch():
    """Importing the trainer imports none of the heavy packages, not even through others."""
    done = subprocess.run([sys.executable, "-c", CHECK], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
