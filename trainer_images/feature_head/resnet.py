"""Owns the picture backbone: a bottleneck ResNet whose batch norm is folded into its convolutions.

Strides lie in the first convolution of a stage, and the first pooling pads on the right and below only, as
the weights were trained. It must not know files of classes, heads or training.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor, nn
from torch.nn import functional

from app_trainer_sdk.handle import Run

Prepared = tuple[Mapping[str, Tensor], list[str]]
Prepare = Callable[[Sequence[Path]], Prepared]


class Bottleneck(nn.Module):
    """Narrow, look around, widen; added to what came in."""

    def __init__(self, inside: int, width: int, outside: int, stride: int) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(inside, width, 1, stride)
        self.middle = nn.Conv2d(width, width, 3, padding=1)
        self.expand = nn.Conv2d(width, outside, 1)
        self.shortcut = (
            nn.Conv2d(inside, outside, 1, stride) if stride > 1 or inside != outside else nn.Identity()
        )

    def forward(self, pixels: Tensor) -> Tensor:
        """Channels in, channels out, at the stride."""
        inner = functional.relu(self.middle(functional.relu(self.reduce(pixels))))
        return functional.relu(self.expand(inner) + self.shortcut(pixels))


class ResNet(nn.Module):
    """Pictures (rows, 3, height, width), BGR minus the mean, to features (rows, widths[-1] × expansion).

    Args:
        config: ``stem``, ``widths`` and ``blocks`` by stage, and ``expansion``, from the catalog row.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, config["stem"], 7, 2, padding=3)
        stages, channels = [], config["stem"]
        for number, (width, blocks) in enumerate(zip(config["widths"], config["blocks"], strict=True)):
            outside = width * config["expansion"]
            stage = nn.Sequential()
            for block in range(blocks):
                stride = 2 if number and not block else 1
                stage.append(Bottleneck(channels, width, outside, stride))
                channels = outside
            stages.append(stage)
        self.stages = nn.Sequential(*stages)

    def forward(self, pixels: Tensor) -> Tensor:
        """The mean over the last stage's places."""
        early = functional.relu(self.stem(pixels))
        pooled = functional.max_pool2d(
            functional.pad(early, (0, 1, 0, 1)), 3, 2
        )  # after ReLU zero is the least
        return self.stages(pooled).mean((2, 3))


def build(run: Run) -> ResNet:
    """The backbone without weights. Channels lie last, which took a third less time on the CPU."""
    return ResNet(run.model.architecture["config"]).to(memory_format=torch.channels_last)


def named(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The converted file has our names already."""
    return dict(tensors)


def preparer(run: Run) -> Prepare:
    """What decodes pictures, several at once.

    It gives ``pixels`` (rows, 3, size, size) fp32 with channels last in memory, and for each row why it cannot
    be decoded, or nothing. A row that cannot is black.
    """
    wanted = run.model.architecture["preprocessing"]
    blank = numpy.zeros((wanted["size"], wanted["size"], 3), numpy.float32)

    def prepare(paths: Sequence[Path]) -> Prepared:
        with ThreadPoolExecutor(min(len(paths), torch.get_num_threads())) as pool:
            decoded = list(pool.map(lambda path: _decode(path, wanted), paths))
        pixels = numpy.stack([blank if isinstance(each, str) else each for each in decoded])
        problems = [each if isinstance(each, str) else "" for each in decoded]
        return {"pixels": torch.from_numpy(pixels).permute(0, 3, 1, 2)}, problems

    return prepare


def largest_batch(run: Run, rows: int) -> dict[str, Tensor]:
    """``rows`` pictures; all are equally heavy."""
    size = run.model.architecture["preprocessing"]["size"]
    return {"pixels": torch.zeros(rows, size, size, 3).permute(0, 3, 1, 2)}


def _decode(path: Path, wanted: Mapping[str, Any]) -> numpy.ndarray | str:
    """Pixels (size, size, 3) as the backbone wants them, or why there are none."""
    content = path.read_bytes()  # a file that is gone is an error of its own, not a corrupt picture
    try:
        with Image.open(io.BytesIO(content)) as image:
            upright = ImageOps.exif_transpose(image)
            if upright.has_transparency_data:
                upright = upright.convert("RGBA")
                white = Image.new("RGBA", upright.size, "white")
                upright = Image.alpha_composite(white, upright)
            small = upright.convert("RGB").resize((wanted["size"],) * 2, Image.Resampling.BILINEAR)
    except UnidentifiedImageError:  # its own words name an object in memory
        return "its bytes are of no known picture format"
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - decoders raise anything on broken bytes
        return f"{type(error).__name__}: {error}"
    return numpy.asarray(small, numpy.float32)[:, :, ::-1] - numpy.array(wanted["mean"], numpy.float32)
