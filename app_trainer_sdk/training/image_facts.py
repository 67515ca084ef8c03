"""Owns what torch alone knows of an image, for its build to write down.

``python -m app_trainer_sdk.training.image_facts`` needs no device. ``preflight/image.py`` reads the file.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch


def image_facts() -> dict[str, Any]:
    """Torch's version and for which architectures it carries kernels; none in the form for the CPU."""
    flags = getattr(torch._C, "_cuda_getArchFlags", None)
    return {"torch": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip,
            "architectures": (flags() or "").split() if flags else []}  # fmt: skip


if __name__ == "__main__":
    sys.stdout.write(json.dumps(image_facts(), indent=2) + "\n")
