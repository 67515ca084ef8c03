"""Owns the frozen backbone at work: loaded, in evaluation mode, and asked batch by batch.

Nothing of it trains, and nothing of it moves: parameters are frozen, batch norm keeps its statistics, and
no gradient is ever recorded. It must not know classes, heads or splits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from app_trainer_sdk.errors import BadData
from app_trainer_sdk.handle import Run
from app_trainer_sdk.training.tensors import load_tensors
from app_trainer_sdk.values import JSON, PhaseShapes
from trainer_images.feature_head import minilm, resnet
from trainer_images.feature_head.rows import file_digest
from trainer_images.feature_head.weights import weights_file

KINDS: dict[str, Any] = {"texts": minilm, "pictures": resnet}


class Extractor:
    """A frozen backbone that turns contents into features.

    Args:
        module: the backbone; its inputs are the tensors that ``prepare`` gives, by name.
        prepare: contents to tensors, and for each content why it cannot be used, or nothing.
        device: where it works.
        dtype: the precision it works in.
    """

    def __init__(
        self, module: nn.Module, prepare: Any, *, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> None:
        self.module = module.to(device, dtype).eval().requires_grad_(False)
        self._prepare = prepare
        self._device, self._dtype = device, dtype

    def __call__(self, contents: Sequence[str | Path]) -> tuple[Tensor, list[str]]:
        """Features (rows, features) in fp32 on the CPU, and for each row why it has none, or nothing."""
        tensors, problems = self._prepare(contents)
        return features_of(self.module, tensors, self._device, self._dtype), problems


@torch.inference_mode()
def features_of(
    module: nn.Module, tensors: Mapping[str, Tensor], device: torch.device, dtype: torch.dtype
) -> Tensor:
    """One batch through the backbone: (rows, features) in fp32 on the CPU.

    What is stored for other jobs is computed as its key says: on a card torch would else round convolutions in
    fp32 to ten bits (TF32), and might choose kernels whose results vary.
    """
    moved = {
        name: each.to(device, dtype if each.is_floating_point() else None) for name, each in tensors.items()
    }
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
        features: Tensor = module(**moved).float().cpu()
    return features


def load_extractor(run: Run) -> Extractor:
    """The backbone of the run with its weights, in the plan's precision.

    Raises:
        BadData: the weights are not those of the catalog row's architecture.
    """
    kind = KINDS[run.model.architecture["kind"]]
    module, file = kind.build(run), weights_file(run)
    try:
        module.load_state_dict(kind.named(load_tensors(file, allowed=run.allow)))
    except RuntimeError as error:
        raise BadData(
            f"{file.name} does not fit {run.model.name}: {str(error).splitlines()[1].strip()[:200]}",
            expected="weights of its architecture", setting="/weights/base",
        ) from None  # fmt: skip
    device = run.device or torch.device("cpu")
    return Extractor(module, kind.preparer(run), device=device, dtype=run.dtype or torch.float32)


def shapes(run: Run) -> PhaseShapes:
    """The backbone without weights, and the largest batch of the extraction, for planning."""
    kind, rows = KINDS[run.model.architecture["kind"]], run.settings.extraction_batch
    dtype = run.dtype or torch.float32

    def batch() -> dict[str, Tensor]:
        largest: dict[str, Tensor] = kind.largest_batch(run, rows)
        return {name: each.to(dtype) if each.is_floating_point() else each for name, each in largest.items()}

    def work(module: nn.Module, tensors: Mapping[str, Tensor]) -> Tensor:
        return features_of(module, tensors, run.device or torch.device("cpu"), dtype)

    return PhaseShapes(build=lambda: kind.build(run).to(dtype).eval(), batch=batch, work=work)


def preprocessing(run: Run) -> dict[str, JSON]:
    """All that is done to a content before the backbone sees it, and to its output after: part of the key."""
    done: dict[str, JSON] = dict(run.model.architecture["preprocessing"])
    if run.model.architecture["kind"] == "texts":
        done["max_length"] = run.settings.max_length
        done["tokenizer"] = file_digest(minilm.tokenizer_file(run))
    return done
