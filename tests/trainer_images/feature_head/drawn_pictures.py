"""Small pictures for the tests of the feature_head image, drawn where they are needed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from PIL import Image, ImageDraw


def draw(folder: Path, counts: Mapping[str, int], *, size: int = 32) -> Path:
    """Class folders of different small PNG pictures: squares, circles and bars on varied grounds."""
    shapes = ("rectangle", "ellipse", "line")
    for place, (name, count) in enumerate(counts.items()):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for index in range(count):
            image = Image.new("RGB", (size, size), (20 * index % 256, 60 * place % 256, 200))
            corner = [4, 4, size - 4 - index % 4, size - 4]
            getattr(ImageDraw.Draw(image), shapes[place % 3])(corner, fill=(255, 20 * index % 256, 40 * place))
            image.save(folder / name / f"{index:03}.png")
    return folder
