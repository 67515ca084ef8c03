"""The catalog of the text image."""

from __future__ import annotations

import re

from app_trainer_sdk.files import sha256_file
from trainer_images.text.models import MODELS


def test_every_row_is_pinned_licensed_and_has_predicted_floors():
    """A row names a commit, a licence and the three floors, which were computed and show how."""
    for row in MODELS:
        assert re.fullmatch(r"[0-9a-f]{40}", row.weights["base"].revision)
        assert row.licence == "Apache-2.0"
        assert {"lora", "full", "inference"} == set(row.floors)
        assert {"predicted"} == {floor.grade for floor in row.floors.values()}
        assert all(floor.evidence["predicted_bytes"] > 2 * row.parameters for floor in row.floors.values())


def test_the_package_carries_the_file_the_row_names(gguf_file):
    """Digest and size of the GGUF file are those of the row."""
    source = MODELS[0].weights["base"]

    assert source.sha256 == sha256_file(gguf_file)
    assert source.size_bytes == gguf_file.stat().st_size
