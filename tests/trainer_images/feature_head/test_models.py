"""The catalog of the feature_head image."""

from __future__ import annotations

import pytest

from app_trainer_sdk.files import sha256_file
from trainer_images.feature_head.models import MODELS


@pytest.mark.parametrize("row", MODELS, ids=lambda row: row.name)
def test_every_row_is_pinned_licensed_and_has_computed_floors(row, packaged):
    """The package carries the file whose digest and size the row names; the floors are predictions."""
    source, file = row.weights["base"], packaged[row.architecture["kind"]]

    assert (source.sha256, source.size_bytes) == (sha256_file(file), file.stat().st_size)
    assert row.licence
    assert source.revision
    assert {"head", "inference"} == set(row.floors)
    assert {"predicted"} == {floor.grade for floor in row.floors.values()}
