"""Owns what a rank can tell of its software and device for the manifest. It must not know jobs or plans."""

from __future__ import annotations

import os
import platform
import sys
from typing import Any

import torch

#: Variables that change how numbers are computed or in which order.
VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG", "CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES",
    "HSA_OVERRIDE_GFX_VERSION", "MIOPEN_FIND_MODE", "MKL_CBWR", "NCCL_ALGO",
    "NCCL_PROTO", "NVIDIA_TF32_OVERRIDE", "OMP_NUM_THREADS", "PYTHONHASHSEED",
    "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "ROCR_VISIBLE_DEVICES", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_BLAS_PREFER_HIPBLASLT", "TORCH_ROCM_FA_PREFER_CK",
)  # fmt: skip


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Versions, device and what decides whether equal inputs give equal bits."""
    cuda = device.type == "cuda"
    count = torch.cuda.device_count() if cuda else 0
    library: Any = torch  # its annotations are not complete
    built = library.version
    return {
        "python": platform.python_version(), "implementation": sys.implementation.name,
        "system": platform.platform(), "machine": platform.machine(),
        "torch": {
            "version": torch.__version__, "git": built.git_version, "cuda": built.cuda, "hip": built.hip,
            "cudnn": library.backends.cudnn.version() if cuda else None,
        },
        "devices": [torch.cuda.get_device_name(each) for each in range(count)],
        "kernels": torch.backends.cpu.get_cpu_capability(),
        "determinism": {
            "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
            "cudnn_deterministic": torch.backends.cudnn.deterministic,
            "cudnn_benchmark": torch.backends.cudnn.benchmark,
            "tf32": torch.backends.cuda.matmul.allow_tf32,
            "tf32_convolutions": library.backends.cudnn.conv.fp32_precision == "tf32",
            "matmul_precision": torch.get_float32_matmul_precision(),
        },
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }  # fmt: skip
