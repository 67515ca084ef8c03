"""Owns what torch alone knows of an image, for its build to write down.

``python -m app_trainer_sdk.training.image_facts`` needs no device. ``preflight/image.py`` reads the file. It
must not know how an image is built.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch


def image_facts(revision: str = "") -> dict[str, Any]:
    """The code's revision as the build tells it, and torch's version with the architectures it has kernels for.

    None in the form for the CPU.
    """
    flags = getattr(torch._C, "_cuda_getArchFlags", None)
    return {
        "revision": revision or None, "torch": torch.__version__, "cuda": torch.version.cuda,
        "hip": torch.version.hip, "architectures": (flags() or "").split() if flags else [],
    }  # fmt: skip


if __name__ == "__main__":
    sys.stdout.write(json.dumps(image_facts(*sys.argv[1:]), indent=2) + "\n")
